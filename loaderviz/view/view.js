// The timeline view for a page, a notebook output and a widget. No dependency, no build, no
// network; see model.js.
//
//     const view = mount(host, head, bytes); // as view/pack.py makes them ("lv1")
//     await view.ready; // then view.window, view.go(t0, t1), view.select(bar), view.play()

// ------------------------------------------------------------------------------------------- input

/** Keys by `event.code` where the place on the keyboard counts, else by `event.key`. True: the key
 * was ours. */
function onKey(view, event) {
  if (event.ctrlKey || event.metaKey || (event.altKey && event.key !== "?")) return false;
  const step = 0.12 * (view.window[1] - view.window[0]);
  const act =
    {
      KeyW: () => view.zoom(0.7),
      KeyS: () => view.zoom(1 / 0.7),
      KeyA: () => view.pan(-step),
      KeyD: () => view.pan(step),
    }[event.code] ??
    {
      "+": () => view.zoom(0.7),
      "=": () => view.zoom(0.7),
      "-": () => view.zoom(1 / 0.7),
      ArrowLeft: () => view.walk(-1),
      ArrowRight: () => view.walk(1),
      ArrowUp: () => view.climb(-1),
      ArrowDown: () => view.climb(1),
      Enter: () => view.selection >= 0 && view.fit(view.selection),
      0: () => view.goAll(),
      "[": () => view.walkBatch(-1),
      "]": () => view.walkBatch(1),
      "/": () => view.ui.search.focus(),
      " ": () => (view.playing ? view.pause() : view.play()),
      ".": () => view.stepEvent(1),
      ",": () => view.stepEvent(-1),
      "?": () => toggleHelp(view),
      Escape: () => view.clear(),
    }[event.key];
  act?.();
  return Boolean(act);
}

function listen(view) {
  const { stage, scroll, ruler, mini, over } = view.ui;
  stage.addEventListener("keydown", event => {
    if (event.target.closest?.("button") && (event.key === "Enter" || event.key === " ")) return;
    if (onKey(view, event)) {
      event.preventDefault();
      event.stopPropagation();
    }
  });
  stage.addEventListener("wheel", event => onWheel(view, event), { passive: false });
  scroll.addEventListener("scroll", () => {
    view.scrollTop = scroll.scrollTop;
    view.redraw();
  });
  over.addEventListener("pointermove", event => {
    if (!view.pointers.size) view.point(event);
  });
  over.addEventListener("pointerleave", () => view.point(null));
  over.addEventListener("dblclick", event => {
    const hit = view.at(event.clientX, event.clientY);
    if (hit?.bar >= 0) view.fit(hit.bar);
    else view.goAll();
  });
  over.addEventListener("pointerdown", event =>
    drag(view, event, event.shiftKey ? "measure" : "pan"),
  );
  ruler.addEventListener("pointerdown", event => drag(view, event, "measure"));
  mini.addEventListener("pointerdown", event => drag(view, event, "mini"));
}

/** ctrl, meta or a pinch zooms; shift or sideways pans; a plain wheel scrolls, but zooms over the
 * axis of a page. */
function onWheel(view, event) {
  const pixels = event.deltaMode === 1 ? 18 : event.deltaMode === 2 ? 400 : 1;
  const x = event.clientX - view.ui.over.getBoundingClientRect().left,
    sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY);
  const onAxis = view.isPage && event.composedPath().includes(view.ui.axis);
  if (event.ctrlKey || event.metaKey || (onAxis && !sideways)) {
    view.lastZoom = performance.now();
    view.zoom(1.2 ** ((event.deltaY * pixels) / 53), x);
  } else if (sideways || event.shiftKey) {
    view.panPixels((sideways ? event.deltaX : event.deltaY) * pixels);
  } else if (performance.now() - view.lastZoom > 120) {
    // else the inertia of a zoom that ended would scroll
    return view.showHint();
  }
  event.preventDefault();
}

/** One pointer drags (pans, measures, or moves the window of the strip), two pinch. */
function drag(view, event, what) {
  if (event.button) return;
  const node = event.currentTarget,
    { pointers } = view,
    from = { x: event.clientX, y: event.clientY };
  pointers.set(event.pointerId, from);
  node.setPointerCapture(event.pointerId);
  view.ui.stage.focus({ preventScroll: true });
  let moved = false,
    scroll = view.scrollTop;
  const begin = what === "measure" ? view.timeAt(event.clientX) : 0;
  if (what === "mini") view.centre(event.clientX);
  const move = next => {
    const before = pointers.get(next.pointerId);
    if (!before) return;
    const now = { x: next.clientX, y: next.clientY };
    if (pointers.size === 2)
      pinch(
        view,
        before,
        now,
        [...pointers.values()].find(each => each !== before),
      );
    moved ||= Math.hypot(now.x - from.x, now.y - from.y) > 3;
    pointers.set(next.pointerId, now);
    if (!moved || pointers.size > 1) return;
    if (what === "pan") {
      view.panPixels(before.x - now.x);
      if (next.pointerType === "mouse") view.ui.scroll.scrollTop = scroll + from.y - now.y;
    } else if (what === "mini") view.centre(now.x);
    else view.setMeasure(begin, view.timeAt(now.x));
  };
  const stop = last => {
    pointers.delete(last.pointerId);
    if (pointers.size && last.pointerId !== event.pointerId) return;
    for (const [name, act] of [
      ["pointermove", move],
      ["pointerup", stop],
      ["pointercancel", stop],
    ])
      node.removeEventListener(name, act);
    if (!moved && what === "pan" && last.type === "pointerup")
      view.select(view.at(last.clientX, last.clientY)?.bar ?? -1);
    if (!moved && what === "measure") view.clear();
  };
  for (const [name, act] of [
    ["pointermove", move],
    ["pointerup", stop],
    ["pointercancel", stop],
  ])
    node.addEventListener(name, act);
}

function pinch(view, before, now, other) {
  const [old, fresh] = [before, now].map(each => Math.max(20, Math.abs(each.x - other.x)));
  view.zoom(old / fresh, (now.x + other.x) / 2 - view.ui.over.getBoundingClientRect().left);
}

// -------------------------------------------------------------------------------------------- view

const SHORTEST = 8; // ns in sight at least

class View {
  constructor(host, head, columns, options) {
    Object.assign(this, {
      host,
      options,
      folds: new Set(),
      pointers: new Map(),
      window: [0, 1],
      selection: -1,
      hover: null,
      measure: null,
      time: -1,
      playing: false,
      found: { list: [], at: -1 },
      evidence: [],
      scrollTop: 0,
      frames: 0,
      drawn: { rects: 0, buckets: 0, labels: 0, arrows: 0 },
      lastZoom: 0,
      rows: [],
      widths: new Map(),
      surface: { width: 0, height: 0, dpr: 1 },
      isPage: document.documentElement.classList.contains("lv-page"),
      told: new Map(), // the height of the words of each part, CSS px
      folders: new Map(),
      low: matchMedia("(max-height: 959px)"), // `innerHeight` has the browser lay out the page
    });
    this.root = host.shadowRoot ?? host.attachShadow({ mode: "open" });
    this.head = head;
    this.root.replaceChildren(styleNode(), build(this).card);
    this.context = this.ui.data.getContext("2d");
    this.overContext = this.ui.over.getContext("2d");
    listen(this);
    this.resizer = new ResizeObserver(() => this.resize());
    this.resizer.observe(this.ui.stage);
    this.watchPixels();
    this.load(head, columns);
  }

  /** Show other data. The window stays if they are as long; with `keep` always, and what stood here
   * as an outline. */
  load(head, columns, options = {}) {
    this.former = options.keep && this.model ? { model: this.model } : null;
    this.options = { ...this.options, ...options };
    const first = !this.model,
      before = this.head,
      whole = this.model?.end;
    this.head = head;
    this.model = new Model(head, columns);
    this.byBatch = head.color === "batch" && columns.batch.some(batch => batch >= 0);
    Object.assign(this, {
      selection: -1,
      hover: null,
      measure: null,
      evidence: [],
      found: { list: [], at: -1 },
      waysOf: new Map(),
    });
    if (first || before.parts.length !== head.parts.length) this.foldAsTold();
    if (first || before.styles !== head.styles) this.theme = readTheme(this.host, head);
    this.swatches = swatchesOf(head, this.model.columns, this.byBatch);
    this.veiled = head.withheld !== undefined;
    describeHost(this);
    fillWords(this);
    fillDetail(this);
    if (first || (!this.former && this.model.end !== whole))
      this.window = head.window ?? this.aroundMarks() ?? [this.model.begin, this.model.end];
    this.relayout();
    this.setWindow(...this.window);
  }

  /** What the picture says is withheld until its reader asks for it, so that it can be found
   * first. */
  unveil() {
    this.veiled = false;
    describeHost(this);
    fillWords(this);
    fillHeads(this);
    this.say(this.title);
  }

  get title() {
    return (this.veiled ? "" : this.head.withheld) || this.head.title || "";
  }

  foldAsTold() {
    this.folds.clear();
    this.head.parts.forEach((part, index) => {
      if (part.folded) this.folds.add(`p${index}`);
      if (part.ghost?.hidden) this.folds.add(`h${index}`);
      part.groups?.forEach((group, number) => {
        if (group.folded) this.folds.add(`g${index}.${number}`);
      });
    });
  }

  /** Where the hazards are, if that is a small part of the time: what a reader wants to see
   * first. */
  aroundMarks() {
    const { start, end } = this.model.columns,
      bars = this.model.parts
        .flatMap(part => part.marks ?? [])
        .flatMap(mark => mark.bars ?? [])
        .filter(bar => bar >= 0);
    if (!bars.length) return null;
    const from = Math.min(...bars.map(bar => start[bar])),
      to = Math.max(...bars.map(bar => end[bar])),
      room = 0.6 * (to - from);
    return to - from < (this.model.end - this.model.begin) / 3 ? [from - room, to + room] : null;
  }

  toggle(...keys) {
    const folds = !this.folds.has(keys[0]);
    keys.forEach(key => (folds ? this.folds.add(key) : this.folds.delete(key)));
    this.grown = true; // in a notebook, the output grows: no scrolling inside of what scrolls
    this.relayout();
    this.say(folds ? "collapsed" : "expanded");
  }

  /** Fold all parts that are compared, or unfold them. */
  toggleAll() {
    const keys = this.compared.map(index => `p${index}`),
      folded = keys.filter(key => this.folds.has(key));
    this.toggle(...(folded.length ? folded : keys));
  }

  /** The parts that stand side by side. */
  get compared() {
    return [...this.model.parts.keys()].filter(index => !this.model.parts[index].ghost);
  }

  // sizes

  relayout() {
    const { rows, height } = layout(this);
    this.rows = rows;
    this.rowOfTrack = new Map();
    for (const row of rows)
      if (trackIn(row) && !this.rowOfTrack.has(trackIn(row)))
        this.rowOfTrack.set(trackIn(row), row);
    for (const row of rows) if (row.track) this.rowOfTrack.set(row.track, row);
    if (this.head.height)
      this.tall ??= Math.max(this.head.height, Math.min(420, innerHeight - this.head.beside));
    const most = this.head.height
      ? this.tall
      : this.isPage
        ? Math.max(260, innerHeight - 250)
        : this.grown || this.compared.length > 1
          ? 2_000
          : (this.head.most ?? 480);
    const shown = this.head.height ? most : Math.min(height, most),
      wasTall = this.isTall;
    this.isTall = height > shown; // then a scrollbar takes room
    [this.ui.inner.style.height, this.ui.scroll.style.height] = [`${height}px`, `${shown}px`];
    if (!this.room || this.isTall !== wasTall) return this.resize();
    this.room.height = Math.round(shown);
    this.arrange();
  }

  /** Measure the room there is, which the browser has to lay the page out for. */
  resize() {
    const { stage, scroll } = this.ui;
    const [width, height, inside] = [stage.clientWidth, scroll.clientHeight, scroll.clientWidth];
    this.room = width && height ? { width, height, inside } : null;
    if (!this.room) return;
    views.add(this); // also when it comes back into the page
    this.arrange();
  }

  /** Fit the canvases to the room; the picture is drawn when the browser next draws. */
  arrange() {
    const { ui } = this,
      { width, height, inside } = this.room,
      dpr = devicePixelRatio || 1;
    const narrowed = !this.width || width < NARROW !== this.width < NARROW;
    this.width = width;
    const heads = Math.round(Math.min(this.headRoom(width < NARROW), 0.34 * width));
    if (narrowed) {
      this.headWidth = heads;
      return this.relayout();
    }
    this.headWidth = heads;
    const plot = Math.max(40, inside - heads);
    if (dpr !== this.surface.dpr) this.theme.patterns.clear();
    this.surface = { width: plot, height, dpr };
    const [across, down] = [Math.round(plot * dpr), Math.round(height * dpr)];
    for (const canvas of [ui.data, ui.over]) {
      fitCanvas(canvas, across, down);
      Object.assign(canvas.style, { width: `${plot}px`, height: `${height}px` });
    }
    for (const [name, px] of [
      ["--heads", heads],
      ["--plot", plot],
    ]) {
      if (ui.card.style.getPropertyValue(name) !== `${px}px`)
        ui.card.style.setProperty(name, `${px}px`);
    }
    fillHeads(this);
    drawAxis(this);
    this.redraw();
  }

  headRoom(narrow) {
    const names = this.rows.map(({ type, part, lane, group }) => {
      const of = this.model.parts[part];
      return type === "track"
        ? [word(this, (narrow && of.lanes[lane].short) || of.lanes[lane].name), 1.04]
        : [type === "group" ? of.groups[group].name : (of.name ?? ""), 1.3]; // bold and larger
    });
    return Math.max(
      narrow ? 60 : 90,
      ...names.map(([name, wider]) => this.textWidth(name) * wider + 30),
    );
  }

  textWidth(text) {
    if (!this.widths.has(text)) {
      if (this.widths.size > 5000) this.widths.clear();
      this.overContext.save();
      this.overContext.font = `12px ${this.theme.font}`;
      this.widths.set(text, this.overContext.measureText(text).width);
      this.overContext.restore();
    }
    return this.widths.get(text);
  }

  /** The pixels that all narrow bars of a frame are written into. */
  image(width, height) {
    if (this.pixels?.width !== width || this.pixels.height !== height) {
      this.pixels = new ImageData(width, Math.max(1, height));
      this.words = new Uint32Array(this.pixels.data.buffer);
      this.sheet = Object.assign(document.createElement("canvas"), {
        width,
        height: Math.max(1, height),
      });
    }
    return this.words;
  }

  blitImage(context) {
    this.sheet.getContext("2d").putImageData(this.pixels, 0, 0);
    context.drawImage(this.sheet, 0, 0);
  }

  /** Draw both canvases (or the overlay only) in the next frame, once however often it is asked
   * for. */
  redraw(overlayOnly = false) {
    this.dirty ||= !overlayOnly;
    if (this.asked) return;
    this.asked = true;
    requestAnimationFrame(() => {
      this.asked = false;
      this.paint();
    });
  }

  paint() {
    if (!this.surface.width) return;
    if (this.dirty) drawData(this);
    if (this.dirty && !this.head.plain) drawMini(this);
    this.dirty = false;
    drawOverlay(this);
  }

  /** Draw anew when the page is zoomed or goes to a screen with other pixels. */
  watchPixels() {
    matchMedia(`(resolution: ${devicePixelRatio}dppx)`).addEventListener(
      "change",
      () => {
        if (!this.host.isConnected) return;
        this.widths.clear();
        this.resize();
        this.watchPixels();
      },
      { once: true },
    );
  }

  retheme() {
    const theme = readTheme(this.host, this.head);
    if (JSON.stringify(theme) === JSON.stringify(this.theme)) return;
    this.theme = theme;
    this.widths.clear();
    fillWords(this);
    fillHeads(this);
    this.redraw();
  }

  // the window of time

  setWindow(from, to) {
    const { begin, end } = this.model,
      whole = end - begin,
      span = Math.min(Math.max(to - from, SHORTEST), whole);
    const middle = (from + to) / 2,
      left = Math.min(Math.max(middle - span / 2, begin), end - span);
    this.window = [left, left + span];
    if (this.surface.width) drawAxis(this);
    this.redraw();
    this.tell("lv-window", { window: this.window });
    this.needMore();
  }

  go(from, to) {
    this.setWindow(from, to);
    this.say(pieceOf(this, from, to));
  }
  goAll() {
    this.go(this.model.begin, this.model.end);
  }
  pan(by) {
    this.setWindow(this.window[0] + by, this.window[1] + by);
  }
  panPixels(by) {
    this.pan((by * (this.window[1] - this.window[0])) / this.surface.width);
  }

  /** Zoom by a factor (below 1: in) about a place in the plot, in CSS px; the time there stays
   * there. */
  zoom(factor, x = this.surface.width / 2) {
    const [from, to] = this.window,
      span = Math.min(Math.max((to - from) * factor, SHORTEST), this.model.end - this.model.begin),
      share = x / this.surface.width;
    const time = from + (to - from) * share;
    this.setWindow(time - span * share, time + span * (1 - share));
  }

  centre(clientX) {
    const room = this.ui.mini.getBoundingClientRect(),
      time =
        this.model.begin +
        ((clientX - room.left) / room.width) * (this.model.end - this.model.begin);
    const half = (this.window[1] - this.window[0]) / 2;
    this.setWindow(time - half, time + half);
  }

  fit(bar) {
    const { start, end } = this.model.columns,
      room = Math.max((end[bar] - start[bar]) * 0.3, SHORTEST / 2);
    this.go(start[bar] - room, end[bar] + room);
    this.reveal(bar);
  }

  timeAt(clientX) {
    const x = clientX - this.ui.over.getBoundingClientRect().left;
    return (
      this.window[0] +
      (Math.min(Math.max(x, 0), this.surface.width) / this.surface.width) *
        (this.window[1] - this.window[0])
    );
  }

  /** Parts of which only a window is here in full: a kernel is asked for more, without one it is
   * said once. */
  needMore() {
    const outside = this.model.parts.some(
      part => part.whole && (this.window[0] < part.whole[0] || this.window[1] > part.whole[1]),
    );
    if (outside) this.options.need?.(this.window);
  }

  // what is where

  rowOf(bar) {
    return this.rowOfTrack.get(this.model.trackOf(bar)) ?? null;
  }
  partShown(index) {
    return !this.folds.has(`p${index}`) && !this.folds.has(`h${index}`);
  }
  shownParts() {
    return this.compared.filter(index => this.partShown(index));
  }

  at(clientX, clientY) {
    const room = this.ui.over.getBoundingClientRect(),
      y = clientY - room.top + this.scrollTop,
      x = clientX - room.left;
    const row = this.rows.find(each => trackIn(each) && y >= each.y && y < each.y + each.height),
      track = row && trackIn(row);
    if (!track || x < 0 || x > this.surface.width) return null;
    const pixelTime = (this.window[1] - this.window[0]) / this.surface.width,
      time = this.timeAt(clientX),
      { start, end } = this.model.columns;
    const bar = this.model.barAt(track, time, 2 * pixelTime),
      from = time - pixelTime,
      to = time + pixelTime,
      found = this.model.crowd(track, from, to);
    const place = {
      part: track.part,
      lane: track.lane,
      track: track.index,
      trackRef: track,
      from,
      to,
      count: found.spans,
      busy: found.busy / (to - from),
      longest: found.longest,
    };
    if (bar < 0) return null;
    return { ...place, bar: found.spans > 2 && end[bar] - start[bar] < 2 * pixelTime ? -1 : bar };
  }

  rect(bar) {
    const row = this.rowOf(bar),
      { start, end } = this.model.columns,
      k = this.surface.width / (this.window[1] - this.window[0]);
    if (!row) return null;
    const [y, height] = barBox(this, bar, row);
    return {
      x: (start[bar] - this.window[0]) * k,
      y: y - this.scrollTop,
      width: (end[bar] - start[bar]) * k,
      height,
    };
  }

  /** Shares of the pixel columns of a track as drawn now, by swatch; `wide` are the bars that are
   * drawn singly. */
  buckets(part, lane, index) {
    const track = this.model.track(part, lane, index),
      wide = [],
      frame = frameOf(this);
    const { shares, used } = bucket(frame, track, wide),
      found = {};
    [...used.keys()]
      .filter(swatch => used[swatch])
      .forEach(swatch => {
        found[swatch] = shares.slice(swatch * frame.width, (swatch + 1) * frame.width);
      });
    shares.fill(0);
    used.fill(0);
    return { shares: found, wide, from: frame.from, k: frame.k };
  }

  point(event) {
    const hit = event && this.at(event.clientX, event.clientY);
    if (!hit && !this.hover) return;
    const same =
      hit &&
      this.hover &&
      hit.bar === this.hover.bar &&
      hit.trackRef === this.hover.trackRef &&
      hit.bar >= 0;
    this.hover = hit;
    this.ui.tip.hidden = !hit;
    if (hit && !same) fillTip(this, hit);
    if (hit) placeTip(this, event.clientX, event.clientY);
    if (!same) this.redraw(true);
  }

  // selection, search, measure

  select(bar, reveal = false) {
    this.selection = bar;
    this.measure = null;
    fillDetail(this);
    this.redraw(true);
    if (reveal && bar >= 0) this.reveal(bar);
    if (bar >= 0) this.say([...facts(this.model, bar), ...story(this.model, bar)].join(", "));
    this.tell("lv-select", { bar });
  }

  /** Bring a bar into sight: unfold what hides it, scroll, pan. */
  reveal(bar) {
    const track = this.model.trackOf(bar),
      lane = this.model.lane(track);
    const hidden = [
      `p${track.part}`,
      `g${track.part}.${lane.group}`,
      `l${track.part}.${track.lane}`,
    ].filter(key => this.folds.has(key));
    if (hidden.length) {
      hidden.forEach(key => this.folds.delete(key));
      this.relayout();
    }
    const row = this.rowOf(bar),
      { scroll } = this.ui,
      { start, end } = this.model.columns,
      [from, to] = this.window;
    const below = row && row.y + row.height > scroll.scrollTop + scroll.clientHeight;
    if (below || row?.y < scroll.scrollTop) scroll.scrollTop = row.y - scroll.clientHeight / 2;
    if (
      end[bar] < from ||
      start[bar] > to ||
      (start[bar] < from && end[bar] < to) ||
      (end[bar] > to && start[bar] > from)
    ) {
      const middle = Math.min((start[bar] + end[bar]) / 2, start[bar] + (to - from) / 3),
        half = (to - from) / 2;
      this.setWindow(middle - half, middle + half);
    }
  }

  /** The bar to walk from: the selection, else the first in sight. */
  walk(by) {
    if (this.selection < 0) return this.select(this.firstInSight(), true);
    const track = this.model.trackOf(this.selection),
      next = this.selection + by;
    if (next >= track.first && next < track.stop) this.select(next, true);
    else this.say(by < 0 ? "the first of its lane" : "the last of its lane");
  }

  firstInSight() {
    for (const row of this.rows) {
      if (row.type !== "track" || row.track.mirror) continue;
      const bar = this.model.firstAfter(row.track, this.window[0]);
      if (bar < row.track.stop && this.model.columns.start[bar] < this.window[1]) return bar;
    }
    return -1;
  }

  /** Up or down: along an arrow that leads there, else to what is nearest in time in the next
   * lane. */
  climb(by) {
    if (this.selection < 0) return this.select(this.firstInSight(), true);
    const { tail, head, start, end } = this.model.columns,
      rows = this.rows.filter(row => row.type === "track" && !row.track.mirror && row.track.count);
    const here = rows.findIndex(row => row.track === this.model.trackOf(this.selection)),
      rank = bar => rows.findIndex(row => row.track === this.model.trackOf(bar));
    const linked = [
      ...Array.from(this.model.outOf(this.selection), at => head[at]),
      ...Array.from(this.model.into(this.selection), at => tail[at]),
    ].filter(bar => rank(bar) >= 0 && Math.sign(rank(bar) - here) === by);
    if (linked.length) return this.select(linked[0], true);
    const next = rows[here + by];
    if (!next) return this.say(by < 0 ? "the first lane" : "the last lane");
    const time = (start[this.selection] + end[this.selection]) / 2;
    let bar = Math.min(this.model.firstAfter(next.track, time), next.track.stop - 1);
    if (bar > next.track.first && start[bar] - time > time - end[bar - 1]) bar--;
    this.select(bar, true);
  }

  walkBatch(by) {
    const { batch } = this.model.columns,
      selected = this.selection >= 0 && this.model.trackOf(this.selection);
    const ways = this.ways(selected ? selected.part : (this.shownParts()[0] ?? 0));
    const known = [...ways.keys()];
    const at =
      this.selection >= 0 ? known.indexOf(batch[this.selection]) : by > 0 ? -1 : known.length;
    const next = known[at + by];
    if (next === undefined) return this.say("no further batch");
    this.select(ways.get(next).way[0], true);
  }

  /** The stations of each batch of a part. */
  ways(part) {
    if (!this.waysOf.has(part)) {
      const batches = [...new Set(this.model.columns.batch)]
        .filter(batch => batch >= 0)
        .sort((one, other) => one - other);
      const last = way => way.reduce((most, bar) => Math.max(most, this.model.columns.end[bar]), 0);
      const found = batches
        .map(batch => [batch, stations(this.model, part, batch)])
        .filter(([, way]) => way.length);
      this.waysOf.set(
        part,
        new Map(found.map(([batch, way]) => [batch, { way, until: last(way) }])),
      );
    }
    return this.waysOf.get(part);
  }

  story(bar) {
    return story(this.model, bar);
  }
  place(part, batch, time) {
    return placeOf(this.model, this.ways(part).get(batch)?.way ?? [], time);
  }

  search(text) {
    this.found = { list: this.model.search(text), at: -1 };
    this.ui.count.textContent = text.trim()
      ? this.found.list.length
        ? number(this.found.list.length)
        : word(this, "nothing")
      : "";
    this.redraw(true);
  }

  nextFound(by) {
    const { list } = this.found;
    if (!list.length) return this.say("nothing found");
    this.found.at = (this.found.at + by + list.length) % list.length;
    this.ui.count.textContent = `${number(this.found.at + 1)} / ${number(list.length)}`;
    this.select(list[this.found.at], true);
  }

  setMeasure(from, to) {
    this.measure = [Math.min(from, to), Math.max(from, to)];
    fillDetail(this);
    this.redraw(true);
  }

  showEvidence(part, finding) {
    if (finding.bars.length) this.folds.delete(`p${part}`);
    if (finding.ghost != null) this.folds.delete(`h${finding.ghost}`);
    this.relayout();
    this.evidence = finding.bars.filter(bar => bar >= 0);
    const { start, end } = this.model.columns;
    const times = finding.window ?? this.evidence.flatMap(bar => [start[bar], end[bar]]);
    const [from, to] = [Math.min(...times), Math.max(...times)],
      room = 0.15 * (to - from);
    if (this.evidence.length)
      this.evidence
        .slice()
        .reverse()
        .forEach(bar => this.reveal(bar));
    this.go(from - room, to + room);
    this.ui.stage.focus({ preventScroll: true });
    this.ui.stage.scrollIntoView({ block: "nearest" });
    this.say(finding.text || finding.title);
  }

  clear() {
    if (this.time >= 0) this.stop();
    Object.assign(this, { measure: null, evidence: [], hover: null });
    this.ui.tip.hidden = true;
    this.select(-1);
  }

  setColor(byBatch) {
    this.byBatch = byBatch;
    this.swatches = swatchesOf(this.head, this.model.columns, byBatch);
    fillWords(this);
    this.redraw();
  }

  // play

  /** Run the time cursor over the window from where it is; at `speed` ns of the timeline for each
   * ms. */
  play(speed = this.options.speed) {
    const [from, to] = this.window,
      end = Math.min(to, Math.max(...this.model.ends));
    if (this.time < from || this.time >= end) this.time = from;
    this.speed = speed || (end - from) / (1000 * PLAY_SECONDS);
    this.playing = true;
    this.showClock();
    this.tell("lv-time", { time: this.time, playing: true });
    if (matchMedia("(prefers-reduced-motion: reduce)").matches) return this.playSteps(end);
    let before = performance.now();
    const tick = now => {
      if (!this.playing) return;
      this.setTime(Math.min(end, this.time + (now - before) * this.speed));
      before = now;
      if (this.time >= end) this.pause();
      else requestAnimationFrame(tick);
    };
    requestAnimationFrame(tick);
  }

  /** Without motion: one event after the other, at rest in between. */
  playSteps(end) {
    const next = () => {
      if (!this.playing) return;
      this.stepEvent(1, true);
      if (this.time >= end) this.pause();
      else setTimeout(next, 600);
    };
    next();
  }

  pause() {
    this.playing = false;
    this.setTime(this.time);
  }
  stop() {
    this.playing = false;
    this.setTime(-1);
  }

  setTime(time) {
    this.time = time;
    this.showClock();
    this.redraw(true);
    this.tell("lv-time", { time, playing: this.playing });
  }

  /** Move the cursor to the next start or end of a station, in any part. */
  stepEvent(by, playing = false) {
    if (!playing) this.playing = false;
    const { start, end } = this.model.columns,
      now = this.time < 0 ? this.window[0] - (by > 0 ? 1 : 0) : this.time;
    let next = by > 0 ? Infinity : -Infinity;
    for (const row of this.rows) {
      const track = trackIn(row);
      if (!track || row.ghost) continue;
      const near = this.model.firstAfter(track, now);
      for (let bar = Math.max(track.first, near - 2); bar < Math.min(near + 3, track.stop); bar++) {
        for (const time of [start[bar], end[bar]])
          if (by > 0 ? time > now && time < next : time < now && time > next) next = time;
      }
    }
    if (Number.isFinite(next)) this.setTime(next);
    else if (playing) this.setTime(this.model.end);
    const [from, to] = this.window;
    if (this.time > to || this.time < from) this.pan(this.time - (from + to) / 2);
  }

  showClock() {
    const { play, clock } = this.ui;
    play.textContent = this.playing ? "❚❚" : "▶";
    const values = { time: duration(this.time), seconds: fourDigits(1e3 / this.speed) };
    const running = this.playing ? word(this, "{time}, 1 ms = {seconds} s", values) : values.time;
    clock.textContent = this.time < 0 ? "" : running;
  }

  // saying

  /** Speak by the live region, at most seven times a second. */
  say(text) {
    this.text = word(this, text);
    clearTimeout(this.speaking);
    this.speaking = setTimeout(() => {
      this.ui.live.textContent = this.text;
    }, 150);
  }

  showHint() {
    if (View.hinted) return;
    View.hinted = true;
    this.ui.hint.textContent = word(this, "ctrl + wheel zooms");
    this.ui.hint.hidden = false;
    setTimeout(() => {
      this.ui.hint.hidden = true;
    }, 1800);
  }

  tell(name, detail) {
    this.host.dispatchEvent(new CustomEvent(name, { detail, bubbles: true, composed: true }));
  }

  lanes() {
    return this.rows.filter(trackIn).map(row => {
      const { name } = row.track ? this.model.lane(row.track) : this.model.parts[row.part];
      const { part, type, height, lane = -1, level: track = 0 } = row;
      return {
        part,
        lane,
        track,
        type,
        name,
        height,
        top: row.y - this.scrollTop,
        folded: !!row.folded,
      };
    });
  }

  shares(part, lane, index, from, to) {
    return this.model.shares(this.model.track(part, lane, index), from, to);
  }

  destroy() {
    this.playing = false;
    this.resizer.disconnect();
    views.delete(this);
  }
}

// ------------------------------------------------------------------------------------------- hosts

const CSS = "__LV_CSS__"; // view.css; put in by view/picture.py
const views = new Set(); // those in the page

function styleNode() {
  return Object.assign(document.createElement("style"), { textContent: CSS });
}

const LOOKS = [
  "class",
  "theme",
  "data-theme",
  "data-lv-theme",
  "data-jp-theme-light",
  "data-jp-theme-name",
];

/** All views follow the theme of the page. */
function watchHosts() {
  let again = 0;
  const now = () =>
    views.forEach(view => (view.host.isConnected ? view.retheme() : views.delete(view)));
  const retheme = () => {
    // a host may say that it is dark before its colours have come
    now();
    clearTimeout(again);
    again = setTimeout(now, 500);
  };
  const watcher = new MutationObserver(retheme);
  for (const node of [document.documentElement, document.body]) {
    if (node) watcher.observe(node, { attributes: true, attributeFilter: LOOKS });
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", retheme);
  matchMedia("(forced-colors: active)").addEventListener("change", retheme);
}

// of a view, by its hook
const [SEEN, DONE] = [
  "window frames drawn head text model time selection",
  "at rect lanes shares buckets select go play pause place destroy toggle search setTime zoom pan",
].map(names => names.split(" "));
let counter = 0;

/** Put a view into an element, in place of what is there (but slot="below"). Returns `host.lv`, the
 * hook of tests. */
export function mount(host, head, bytes, options = {}) {
  const hook = (host.lv = {});
  hook.ready = decode(head, bytes).then(columns => begin(host, head, columns, options));
  return hook;
}

/** The same with columns that are unpacked; returns the view. */
function begin(host, head, columns, options = {}) {
  const hook = (host.lv ??= {});
  if (!counter++) watchHosts();
  host.classList.add("lv-view");
  const view = (hook.view = new View(host, head, columns, options));
  for (const name of SEEN) Object.defineProperty(hook, name, { get: () => view[name] });
  Object.defineProperty(hook, "columns", { get: () => view.model.columns });
  for (const name of DONE) hook[name] = view[name].bind(view);
  let asked = 0;
  hook.set = async (other, body, more = {}) => {
    // the last that was asked for wins, however long each unpacks
    const turn = ++asked,
      unpacked = await decode(other, body);
    if (turn === asked) view.load(other, unpacked, more);
  };
  return view;
}

/** Name and describe the host for who does not see it; its still picture is for paper from now
 * on. */
function describeHost(view) {
  const { host, head, ui, title, veiled } = view,
    twin = host.querySelector(":scope > .lv-twin");
  setAttribute(host, "role", "figure");
  for (const node of [host, ui.stage])
    setAttribute(node, "aria-label", title || word(view, "timeline"));
  if (twin && !veiled) {
    twin.id ||= `lv-twin-${counter++}`;
    host.setAttribute("aria-describedby", twin.id);
  } else if (head.twin && !veiled) {
    setAttribute(host, "aria-description", head.twin);
  }
  host.querySelector(":scope > .lv-still")?.setAttribute("slot", "still");
}

const NO_MODEL = /^(Error (displaying|creating) widget|Model not found)/;

/** A view that stands in for the widget of the next output: it goes when that lives, else what says
 * "no model" goes. */
function standIn(host) {
  const area = host.closest(".jp-OutputArea");
  if (!area || !host.hasAttribute("data-lv-stand")) return;
  const look = () => {
    // `hidden` loses against :host's display
    host.style.display = area.querySelector("[data-lv-live]") ? "none" : "";
    for (const node of area.querySelectorAll(".jupyter-widgets")) {
      if (NO_MODEL.test(node.textContent.trim()))
        node.closest(".jp-OutputArea-child").style.display = "none";
    }
  };
  new MutationObserver(look).observe(area, { childList: true, subtree: true, characterData: true });
  look();
}

const also = []; // what further parts of the module do for a page

/** Mount every view of the document that is still a picture. What cannot be decoded stays the
 * picture it is. */
export function upgradeAll(root = document) {
  for (const upgrade of also) upgrade(root);
  for (const host of root.querySelectorAll(".lv-view")) {
    const head = host.querySelector(":scope > .lv-head"),
      body = host.querySelector(":scope > .lv-body");
    if (host.lv || !head || !body) continue;
    standIn(host);
    const stays = problem => {
      delete host.lv;
      console.warn("loaderviz: the still picture stays:", problem);
    };
    try {
      mount(host, JSON.parse(head.textContent), fromBase64(body.textContent.trim())).ready.catch(
        stays,
      );
    } catch (problem) {
      stays(problem);
    }
  }
}

/** The widget: traits head, body, options, window, selection, time, playing, speed; see
 * widgets/controls.py. */
function render({ model, el: place }) {
  const host = el("div", "lv-view", undefined, {
    "data-lv-live": "",
    "data-lm-suppress-shortcuts": "true",
  });
  place.append(host);
  place.dataset.lvLive = "";
  const bytes = () => {
    const { buffer, byteOffset, byteLength } = model.get("body");
    return new Uint8Array(buffer.slice(byteOffset, byteOffset + byteLength));
  };
  const options = () => ({
    ...model.get("options"),
    speed: model.get("speed"),
    need: window => model.send({ need: window }),
  });
  const hook = mount(host, model.get("head"), bytes(), options());
  const later = {};
  let asking = false; // what Python asked for is not told back: it may have asked for more by then
  const tell = (name, value) => {
    // Python hears of a change at most ten times a second, and of the last one for sure
    if (asking) return;
    if (later[name]) {
      later[name].value = value;
      return;
    }
    later[name] = { value };
    setTimeout(() => {
      model.set(name, later[name].value);
      delete later[name];
      model.save_changes();
    }, 100);
  };
  host.addEventListener("lv-window", event => tell("window", event.detail.window));
  host.addEventListener("lv-select", event => tell("selection", event.detail.bar));
  host.addEventListener("lv-time", event => {
    tell("time", event.detail.time);
    tell("playing", event.detail.playing);
  });
  hook.ready.then(view => {
    const asked = {
      selection: value => value !== view.selection && view.select(value, true),
      time: value => !view.playing && value !== view.time && view.setTime(value),
      playing: value =>
        value !== view.playing && (value ? view.play(model.get("speed")) : view.pause()),
      window: value =>
        value?.length === 2 && String(value) !== String(view.window) && view.setWindow(...value),
    };
    for (const [name, act] of Object.entries(asked))
      model.on(`change:${name}`, () => {
        asking = true;
        try {
          act(model.get(name));
        } finally {
          asking = false;
        }
      });
    // a cursor that was moved before it is shown
    if (model.get("time") >= 0) asked.time(model.get("time"));
    model.on("change:head", () => hook.set(model.get("head"), bytes(), options()));
  });
  return () => hook.view?.destroy();
}

const widgets = { render };
export default widgets;

if (typeof document !== "undefined") upgradeAll();
