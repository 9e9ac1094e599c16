// What stands around the canvases as DOM: title, toolbar, names of lanes, axis, overview strip,
// findings, tables, tips.

// ------------------------------------------------------------------------------------------ chrome

function el(tag, className, text, attributes = {}) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

/** Write a text, unless it is there. */
function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Set an attribute, unless it is so. */
function setAttribute(node, name, value) {
  if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
}

/** Fill a place with nodes. What stands there is changed, which is laid out and painted sooner than
 * what is new. But a button has its own act. */
function renew(place, nodes) {
  nodes.forEach((node, at) => {
    const child = place.childNodes[at],
      isKept = child?.nodeName === node.nodeName && node.nodeName !== "BUTTON";
    if (!child) place.append(node);
    else if (child.isEqualNode(node)) return;
    else if (!isKept) child.replaceWith(node);
    else if (node.nodeType === Node.TEXT_NODE) child.data = node.data;
    else {
      for (const { name } of [...child.attributes])
        if (!node.hasAttribute(name)) child.removeAttribute(name);
      for (const { name, value } of node.attributes) setAttribute(child, name, value);
      renew(child, [...node.childNodes]);
    }
  });
  while (place.childNodes.length > nodes.length) place.lastChild.remove();
}

const button = (text, title, act, className = "") => {
  const node = el("button", className, text, { type: "button", title, "aria-label": title });
  node.addEventListener("click", act);
  return node;
};

const KEYS = [
  ["W S  + −", "zoom"],
  ["A D", "pan"],
  ["← →", "walk the spans of a lane"],
  ["↑ ↓", "follow an arrow, or go to the next lane"],
  ["Enter", "zoom to the selection"],
  ["0", "all"],
  ["[ ]", "batch before, batch after"],
  ["/", "search"],
  ["space", "play"],
  [", .", "one event back, on"],
  ["Esc", "leave"],
  ["ctrl + wheel, two fingers", "zoom"],
  ["drag", "pan"],
  ["drag on the axis", "measure"],
  ["double click", "fit a span"],
];

const PIECES =
  `card:div title:h3 subtitle:p wheres:div tools:div help:dl stage:div mini:canvas axis:div
  corner:div ruler:div scroll:div inner:div stick:div data:canvas over:canvas heads:div hint:div
  tip:div detail:div legend:ul findings:ol table:details notes:div live:div`
    .split(/\s+/)
    .map(pair => pair.split(":"));

/** Build what stands around the canvases, once; the parts that change are filled by the functions
 * below. */
function build(view) {
  const ui = (view.ui = {});
  for (const [name, tag] of PIECES) ui[name] = el(tag, name);
  const set = (name, attributes) =>
    Object.entries(attributes).forEach(pair => ui[name].setAttribute(...pair));
  set("tools", { role: "toolbar", "aria-label": word(view, "timeline") });
  set("stage", {
    tabindex: "0",
    role: "application",
    "aria-roledescription": word(view, "timeline"),
  });
  set("live", { role: "status", "aria-live": "polite" });
  set("ruler", { title: word(view, "drag to measure") });
  for (const name of ["mini", "tip"]) set(name, { "aria-hidden": "true" });
  const below = el("slot", "", undefined, { name: "below" }),
    still = el("slot", "paper", undefined, { name: "still" });
  ui.axis.append(ui.corner, ui.ruler);
  ui.stick.append(ui.data, ui.over);
  ui.inner.append(ui.stick, ui.heads);
  ui.scroll.append(ui.inner);
  ui.stage.append(ui.mini, ui.axis, ui.scroll, ui.hint, ui.tip);
  ui.card.append(ui.title, ui.subtitle, ui.wheres, ui.tools, ui.help, ui.stage, still, ui.detail);
  ui.card.append(ui.legend, ui.findings, ui.table, ui.notes, ui.live, below);
  ui.table.append(el("summary", "", word(view, "as a table")));
  ui.table.addEventListener("toggle", () => ui.table.open && fillTable(view));
  ui.help.hidden = ui.tip.hidden = ui.hint.hidden = true;
  for (const [keys, what] of KEYS) {
    ui.help.append(el("dt", "", word(view, keys)), el("dd", "", word(view, what)));
  }
  buildTools(view);
  return ui;
}

const toggleHelp = ({ ui }) => ui.help.toggleAttribute("hidden");

function buildTools(view) {
  const { ui } = view;
  ui.play = button(
    "▶",
    word(view, "play (space)"),
    () => (view.playing ? view.pause() : view.play()),
    "icon",
  );
  ui.clock = el("span", "clock");
  ui.search = el("input", "search", undefined, {
    type: "search",
    placeholder: `${word(view, "search")}  /`,
    "aria-label": word(view, "search names or a batch"),
  });
  ui.count = el("span", "count");
  ui.byBatch = button("", "", () => view.setColor(!view.byBatch));
  ui.foldAll = button("", "", () => view.toggleAll());
  ui.search.addEventListener("input", () => view.search(ui.search.value));
  ui.search.addEventListener("keydown", event => {
    event.stopPropagation();
    if (event.key === "Enter") {
      view.nextFound(event.shiftKey ? -1 : 1);
      event.preventDefault();
    }
    if (event.key === "Escape") {
      ui.search.value = "";
      view.search("");
      ui.stage.focus();
    }
  });
  const group = (...nodes) => {
    const node = el("span", "group");
    node.append(...nodes);
    return node;
  };
  ui.tools.append(
    group(
      button(word(view, "show all"), word(view, "show all (0)"), () => view.goAll()),
      button("+", word(view, "zoom in (W)"), () => view.zoom(0.5), "icon"),
      button("−", word(view, "zoom out (S)"), () => view.zoom(2), "icon"),
    ),
    ui.play,
    group(ui.search, ui.count),
    ui.byBatch,
    ui.foldAll,
    button("?", word(view, "keys"), () => toggleHelp(view), "icon"),
    ui.clock,
  );
}

/** Keep numbers and their units in one line. */
const together = text => text.replace(/(?<=\d) (?=[nµm]?s\b|%)/g, "\u00a0");

function fillWords(view) {
  const { ui, head, options } = view;
  ui.card.classList.toggle("plain", Boolean(head.plain));
  if (head.plain) return; // the page around it has words and controls
  setText(ui.title, together(view.title));
  if (view.veiled && head.withheld)
    ui.title.append(
      button(
        word(view, "what does it show?"),
        word(view, "show what the picture says in words"),
        () => view.unveil(),
      ),
    );
  // words and numbers beside it say what its title would
  ui.card.classList.toggle("compact", Boolean(head.compact));
  ui.title.hidden = head.compact || !ui.title.firstChild;
  const above = [!head.compact && head.subtitle, options.difference].filter(Boolean);
  setText(ui.subtitle, above.join(" · "));
  ui.subtitle.hidden = (!head.compact || head.bare) && !ui.subtitle.textContent;
  renew(
    ui.notes,
    (head.notes ?? []).map(note => el("p", "", note)),
  );
  setText(ui.byBatch, word(view, view.byBatch ? "colour: batches" : "colour: kinds"));
  ui.byBatch.title = word(view, view.byBatch ? "colour by kind of span" : "colour by batch");
  ui.byBatch.hidden = !view.model.columns.batch.some(batch => batch >= 0);
  const told = head.parts.filter(
    part => part.where.length && !part.hero && !head.bare && !view.veiled,
  );
  renew(
    ui.wheres,
    told.map(part => whereBar(view, part)),
  );
  fillFindings(view);
  fillLegend(view);
}

/** One stacked bar: where a step goes. */
function stack(view, part) {
  const bar = el("span", "whereBar", undefined, { "aria-hidden": "true" }),
    whole = wholeOf(part);
  bar.append(
    ...part.where
      .filter(each => each.ns > 0)
      .map(each => {
        const piece = el("span", "piece", undefined, {
          title: word(view, "{name}: {time}, {share}", {
            name: word(view, each.name),
            time: duration(each.ns),
            share: share(each.ns / whole),
          }),
        });
        piece.style.width = `${(100 * each.ns) / whole}%`;
        piece.append(swatchNode(view, each.key));
        return piece;
      }),
  );
  return bar;
}
const wholeOf = part => part.where.reduce((sum, each) => sum + each.ns, 0) || 1;

/** The same with its words. */
function whereBar(view, part) {
  const whole = wholeOf(part),
    node = el("div", "where"),
    large = part.where.filter(each => each.ns >= whole / 100);
  const words = el("p", "whereWords", part.where_title ? `${word(view, part.where_title)}: ` : "");
  for (const each of large) {
    const entry = el("span", "entry");
    entry.append(swatchNode(view, each.key), `${word(view, each.name)} ${share(each.ns / whole)}`);
    words.append(entry, " ");
  }
  const rest = whole - large.reduce((sum, each) => sum + each.ns, 0);
  if (rest > 0 && large.length)
    words.append(el("span", "entry", `${word(view, "the rest")} ${share(rest / whole)}`));
  node.append(stack(view, part), words);
  return node;
}

/** A small box that looks like the bars of a style (by its key) or of a swatch (by its number). */
function swatchNode(view, which) {
  const at =
      typeof which === "number" ? which : view.head.styles.findIndex(style => style.key === which),
    look = view.theme.swatches[at],
    node = el("i", "swatch");
  if (!look) return node;
  if (look.height < 1) node.classList.add("thin");
  const stripes = angle =>
    `repeating-linear-gradient(${angle}, ${look.color} 0 1.5px, transparent 1.5px 5px)`;
  const patterns = {
    "/": stripes("135deg"),
    x: `${stripes("135deg")}, ${stripes("45deg")}`,
    ".": `0 0 / 6px 6px radial-gradient(${look.color} 1.5px, transparent 2px)`,
  };
  node.style.background = look.pattern ? `${patterns[look.pattern]}, ${look.ground}` : look.color;
  return node;
}

function fillLegend(view) {
  const { model, ui } = view,
    { style, batch, arrow, tail, head } = model.columns,
    [kinds, byBatch] = [new Set(), new Set()];
  const shown = bar => view.byBatch && batch[bar] >= 0 && view.head.styles[style[bar]].by_batch;
  for (const track of model.tracks) {
    for (let bar = track.first; bar < track.stop; bar++)
      (shown(bar) ? byBatch : kinds).add(style[bar]);
  }
  const waits = arrow.some(
    (kind, at) => kind === 1 && model.trackOf(tail[at]) !== model.trackOf(head[at]),
  );
  const made = [view.head.styles, view.theme, [...kinds, waits, ...byBatch].join()];
  if (view.legendOf?.every((each, at) => each === made[at])) return;
  view.legendOf = made;
  const entries = [],
    keys = new Set([...kinds, ...byBatch].map(at => view.head.styles[at].key));
  const entry = (name, ...swatches) => {
    const node = el("li");
    node.append(...swatches, word(view, name));
    entries.push(node);
  };
  const first = view.head.styles.length;
  if (byBatch.size)
    entry(
      "a batch: one colour along its way",
      ...view.head.batches.map((_, at) => swatchNode(view, first + at)),
    );
  const thick = KERNELS.some(key => keys.has(key)),
    thin = [
      keys.has("memset") && "memset",
      [...keys].some(key => key.startsWith("copy_")) && "copy",
    ]
      .filter(Boolean)
      .reverse();
  if (thick) entry("thick: kernel", el("i", "swatch shape"));
  if (thin.length) {
    const names = thin.map(each => word(view, each)).join(word(view, ", "));
    entry(word(view, "thin: {names}", { names }), el("i", "swatch shape thin"));
  }
  const noBatch = at => view.byBatch && view.head.styles[at].by_batch;
  const known = [...kinds].sort((one, other) => one - other);
  if (known.some(noBatch)) entry("no batch", swatchNode(view, first + view.head.batches.length));
  const { compact, styles } = view.head; // there is little room
  for (const at of known.filter(each => !noBatch(each)))
    entry(compact ? styles[at].name : styles[at].legend, swatchNode(view, at));
  if (waits && !compact) entry("arrow from A to B: B waits until A has ended", el("b", "", "→ "));
  renew(ui.legend, entries);
}

/** A hazard as a finding. */
function raceOf(mark) {
  return { ...mark, title: mark.kind, change: mark.report ? "" : mark.missing, race: true };
}

/** The findings and hazards: a line each that shows its evidence. */
function fillFindings(view) {
  const lines = [];
  view.head.parts.forEach((part, index) => {
    (part.marks ?? []).forEach(mark => lines.push(findingNode(view, index, raceOf(mark))));
    (part.findings ?? []).forEach(finding => lines.push(findingNode(view, index, finding)));
  });
  view.ui.card.insertBefore(
    view.ui.findings,
    view.compared.length > 1 ? view.ui.table : view.ui.tools,
  );
  view.ui.findings.replaceChildren(...lines);
  view.ui.findings.hidden = !lines.length;
}

function findingNode(view, part, finding) {
  const node = el("li", finding.race ? "race" : ""),
    open = el("details"),
    summary = el("summary");
  const many = view.compared.length > 1 ? `${view.head.parts[part].name}: ` : "";
  summary.append(
    el("b", "", many + together(finding.title)),
    el("span", "", finding.race ? ` ${finding.text}` : ""),
  );
  const show = button(
    word(view, "show"),
    word(view, "show the evidence: {title}", { title: finding.title }),
    () => view.showEvidence(part, finding),
    "show",
  );
  show.style.visibility = finding.window || finding.bars.some(bar => bar >= 0) ? "" : "hidden";
  open.append(summary);
  open.open = Boolean(finding.open);
  if (!finding.race && finding.text) open.append(el("p", "", finding.text));
  if (finding.change) open.append(el("pre", "", finding.change));
  if (finding.report) open.append(el("pre", "report", finding.report));
  node.append(show, open);
  return node;
}

/** Names of lanes, groups and parts beside the canvas; each folds what it names. */
function fillHeads(view) {
  const { ui, model } = view,
    nodes = [],
    narrow = view.width < NARROW;
  const put = (row, node, height = row.height) => {
    node.style.top = `${row.y}px`;
    node.style.height = `${height}px`;
    nodes.push(node);
    return node;
  };
  const fold = (key, folded, text, title, className) => {
    const node = view.folders.get(key) ?? button("", "", () => view.toggle(key));
    view.folders.set(key, node); // the same button, so that it keeps the focus
    const label = word(view, folded ? "unfold {name}" : "fold {name}", { name: title });
    const about = { "aria-label": label, title: label, "aria-expanded": !folded, "data-key": key };
    for (const pair of Object.entries(about)) setAttribute(node, ...pair);
    node.className = `head ${className}`;
    const chevron = el("span", "chevron", folded ? "▸" : "▾", { "aria-hidden": "true" });
    renew(node, [chevron, el("span", "", text)]);
    return node;
  };
  for (const row of view.rows) {
    const part = model.parts[row.part],
      { name } = part;
    if (row.type === "part" || row.type === "ghost") {
      const node = fold(`p${row.part}`, row.folded, name, name, row.type);
      put(row, node, row.hero ? HERO_BAR : row.height);
      if (row.ghost) nodes.push(told(view, row, part.ghost.label));
      else if (row.hero && !view.veiled) nodes.push(told(view, row, ...heroWords(view, part)));
      else if (!row.hero && part.finding) nodes.push(told(view, row, part.finding));
    } else if (row.type === "group") {
      const { name: text } = part.groups[row.group];
      const look = `group ${row.height > FOLDED ? "" : "small"}`;
      put(row, fold(`g${row.part}.${row.group}`, row.folded, text, text, look));
    } else if (row.type === "curve") {
      const { name: what, text } = part.strips[row.strip];
      const words = [what, text?.replace(/ (?=%)|(?<=[<>]) /g, "\u00a0")].filter(Boolean);
      put(row, el("span", "head curve", words.join(": ")));
    } else if (row.level === 0) {
      const lane = part.lanes[row.lane],
        tall = lane.tracks.length;
      const text = word(view, narrow ? lane.short || lane.name : lane.name),
        title = word(view, lane.title || lane.name),
        look = `lane ${row.folded ? "small" : ""}`;
      put(row, fold(`l${row.part}.${row.lane}`, row.folded, text, title, look), tall * row.height);
    }
  }
  renew(ui.heads, nodes);
  const folded = view.compared.some(index => view.folds.has(`p${index}`));
  setText(ui.foldAll, word(view, folded ? "unfold all" : "fold all"));
  ui.foldAll.title = word(view, folded ? "show the lanes of each" : "show one row for each");
  ui.foldAll.hidden = view.compared.length < 2;
  placeHeroes(view); // first: what stands beside its bar takes no room below it
  if (giveRoom(view)) view.relayout();
}

/** Words that wrap are higher: note how high those of each part are; true if they have other room
 * than that. */
function giveRoom(view) {
  let changed = false;
  for (const { dataset, offsetHeight } of view.ui.heads.querySelectorAll(".hero")) {
    changed ||= view.told.get(+dataset.part) !== offsetHeight;
    view.told.set(+dataset.part, offsetHeight);
  }
  return changed;
}

/** What is told of a part, under its bar if it has one, else beside its name. */
function told(view, row, ...words) {
  const node = el("div", "hero"),
    wide = row.hero && view.width < NARROW;
  node.append(...words);
  node.dataset.part = row.part;
  Object.assign(node.style, {
    top: `${row.y + (row.hero ? HERO_BAR : 4)}px`,
    left: `${wide ? 15 : view.headWidth}px`,
    width: `${wide ? view.width - 20 : view.surface.width}px`,
  });
  return node;
}

/** Of a loader: what the GPU does in words, and at its end the time of a step and the speed-up. */
function heroWords(view, part) {
  const { hero } = part;
  const piece = (state, ns) => {
    const each = el("span", "entry");
    each.append(
      swatchNode(view, `state:${state}`),
      `${word(view, state.replace("copy ", ""))} ${duration(ns)}`,
    );
    return each;
  };
  const step = hero.step != null && word(view, "{step} a step", { step: duration(hero.step) });
  const words = [step, hero.speedup != null && times(hero.speedup)].filter(Boolean);
  return [
    stack(view, part),
    el("span", "entry", `${word(view, "GPU computes")} ${share(hero.busy)}`),
    piece("copy exposed", hero.exposed),
    piece("copy hidden", hero.hidden),
    piece("idle", hero.idle),
    el("b", "", words.join(" · ")),
  ];
}

/** The time of a step stands where the bar ends, if it has room there. */
function placeHeroes(view) {
  const [from, to] = view.window,
    { width } = view.surface;
  for (const words of view.ui.heads.querySelectorAll(".hero b")) {
    const node = words.parentNode,
      end = ((view.model.ends[node.dataset.part] - from) / (to - from)) * width;
    const beside = end > 0 && width - end > view.textWidth(words.textContent) * 1.3 + 16;
    node.classList.toggle("beside", beside);
    words.style.left = beside ? `${end + 8 + view.headWidth - parseFloat(node.style.left)}px` : "";
  }
}

function drawAxis(view) {
  const [from, to] = view.window,
    k = view.surface.width / (to - from);
  const shown = [from, to, view.surface.width, view.headWidth].join();
  if (view.axisShown === shown) return placeHeroes(view);
  view.axisShown = shown;
  view.ticks = ticks(from, to, view.surface.width / 64);
  const wide = 24 + view.textWidth(view.ticks.write(to));
  if (wide > 64) view.ticks = ticks(from, to, view.surface.width / wide);
  const { ruler } = view.ui,
    { fine } = view.ticks;
  ruler.style.backgroundPosition = `${(Math.ceil(from / fine) * fine - from) * k - 0.5}px 100%`;
  ruler.style.backgroundSize = `${fine * k}px 3px`;
  renew(
    ruler,
    view.ticks.times.map(time => {
      const node = el("span", "tick", view.ticks.write(time)),
        x = (time - from) * k;
      node.style.left = `${x}px`;
      if (x > view.surface.width - 34) node.classList.add("last");
      if (x < 20) node.classList.add("first");
      return node;
    }),
  );
  placeHeroes(view);
  const shownWord = view.headWidth > 120 ? ` ${word(view, "shown")}` : "";
  setText(view.ui.corner, duration(to - from) + shownWord);
}

const MINI = 22; // CSS px, as in view.css

/** The strip that shows where one is: the states of the GPU over all the time, with the window
 * framed. */
function drawMini(view) {
  const { mini } = view.ui,
    { dpr, width: plot } = view.surface;
  const [width, height] = [plot, MINI].map(px => Math.round(px * dpr));
  const made = [width, height, view.theme, view.swatches]; // what its picture depends on
  if (!view.mini?.made.every((each, at) => each === made[at])) {
    view.mini = { made, image: miniImage(view, width, height) };
  }
  fitCanvas(mini, width, height);
  const context = mini.getContext("2d"),
    { model, theme } = view,
    k = width / (model.end - model.begin);
  context.clearRect(0, 0, width, height);
  context.drawImage(view.mini.image, 0, 0);
  const [from, to] = view.window.map(time => (time - model.begin) * k);
  context.globalAlpha = 0.7;
  context.fillStyle = theme.ground;
  context.fillRect(0, 0, from, height);
  context.fillRect(to, 0, width - to, height);
  context.globalAlpha = 1;
  outline(context, from, 0, Math.max(2 * dpr, to - from), height, theme.focus, 1.5 * dpr);
}

/** Give a canvas its size, unless it has it: else it would be made anew. */
function fitCanvas(canvas, width, height) {
  if (canvas.width !== width) canvas.width = width;
  if (canvas.height !== height) canvas.height = height;
}

function miniImage(view, width, height) {
  const { model } = view,
    strips = model.tracks.filter(
      track => model.lane(track).kind === "strip" && !model.parts[track.part].ghost,
    );
  const tracks = (strips.length ? strips : model.tracks.filter(track => track.count)).slice(0, 8),
    image = new ImageData(width, height);
  const frame = {
    ...frameOf(view),
    width,
    height,
    k: width / (model.end - model.begin),
    from: model.begin,
    image: new Uint32Array(image.data.buffer),
  };
  const canvas = (view.miniSheet ??= document.createElement("canvas")),
    context = canvas.getContext("2d"),
    wides = [];
  fitCanvas(canvas, width, height);
  tracks.forEach((track, at) => {
    const y = Math.round((at * height) / tracks.length),
      tall = Math.max(1, Math.round(((at + 1) * height) / tracks.length) - y - 1),
      wide = [];
    paintBuckets(frame, bucket(frame, track, wide), y, tall, 1);
    wides.push(...wide.map(bar => [bar, y, tall]));
  });
  context.putImageData(image, 0, 0);
  for (const [bar, y, tall] of wides) {
    const [x0, x1] = ends(frame, bar),
      swatch = view.theme.swatches[view.swatches[bar]];
    context.fillStyle = swatch.pattern ? `rgb(${swatch.flat})` : swatch.color;
    context.fillRect(x0, y, x1 - x0, Math.ceil(tall * swatch.height));
  }
  return canvas;
}

const pieceOf = (view, from, to) =>
  word(view, "{from} to {to}", { from: duration(from), to: duration(to) });
const LONGEST = 100; // rows of the table

/** What is in the window as a table: the shares of each lane, and its longest spans. Filled when it
 * is opened. */
function fillTable(view) {
  const { model } = view,
    [from, to] = view.window,
    { start, end } = model.columns,
    table = (caption, heads, rows) => {
      const node = el("table"),
        head = el("tr");
      head.append(...heads.map(text => el("th", "", word(view, text), { scope: "col" })));
      node.append(
        el("caption", "", caption),
        head,
        ...rows.map(([first, ...rest]) => {
          const line = el("tr");
          line.append(
            el("th", "", first, { scope: "row" }),
            ...rest.map(text => el("td", "", text)),
          );
          return line;
        }),
      );
      return node;
    };
  const tracks = model.tracks.filter(track => view.partShown(track.part) && !track.mirror),
    lane = track =>
      [model.parts[track.part].name, word(view, model.lane(track).name)].filter(Boolean).join(": ");
  const shares = tracks
    .filter(track => track.index === 0)
    .map(track => {
      const found = model.crowd(track, from, to);
      return [lane(track), number(found.spans), share(Math.min(1, found.busy / (to - from)))];
    });
  const bars = [];
  for (const track of tracks) {
    if (model.lane(track).kind === "strip") continue;
    for (const bar of model.within(track, from, to)) bars.push([bar, track]);
  }
  const longest = bars
    .sort(([one], [other]) => end[other] - start[other] - (end[one] - start[one]))
    .slice(0, LONGEST)
    .map(([bar, track]) => [
      word(view, model.name(bar)),
      lane(track),
      model.columns.batch[bar] >= 0 ? `${model.columns.batch[bar]}` : "",
      duration(start[bar]),
      duration(end[bar] - start[bar]),
    ]);
  view.ui.table.replaceChildren(
    el("summary", "", word(view, "as a table")),
    table(pieceOf(view, from, to), ["lane", "spans", "busy"], shares),
    table(
      word(view, "the {count} longest spans", { count: longest.length }),
      ["span", "lane", "batch", "from", "length"],
      longest,
    ),
  );
}

/** The panel under the picture: the selection and its story, or what is in the measured time. */
function fillDetail(view) {
  const { detail } = view.ui,
    { model } = view;
  if (view.measure) {
    const [from, to] = [...view.measure].sort((one, other) => one - other);
    detail.replaceChildren(
      el("b", "", duration(to - from)),
      button(word(view, "zoom here"), word(view, "zoom to the measured time"), () => {
        view.measure = null;
        view.go(from, to);
      }),
      button("×", word(view, "end measuring (Esc)"), () => view.clear(), "icon"),
      ...measured(model, from, to).map(text => el("p", "", text)),
    );
  } else if (view.selection >= 0) {
    const [name, ...lines] = facts(model, view.selection);
    detail.replaceChildren(
      el("b", "", name),
      button(word(view, "zoom to it"), word(view, "zoom to the selection (Enter)"), () =>
        view.fit(view.selection),
      ),
      button("×", word(view, "end the selection (Esc)"), () => view.clear(), "icon"),
      el("p", "", lines.join(" · ")),
      ...story(model, view.selection).map(text => el("p", "story", text)),
    );
  } else {
    detail.replaceChildren();
  }
  detail.hidden = !detail.firstChild;
}

/** What the GPU does in a piece of time, a line for each device of each part. */
function measured(model, from, to) {
  return model.tracks
    .filter(track => model.lane(track).kind === "strip" && !model.parts[track.part].ghost)
    .map(track => {
      const shares = model.shares(track, from, to),
        lane = model.lane(track),
        part = model.parts[track.part];
      const told = model.head.styles
        .filter(style => shares[style.key])
        .map(({ key, name }) => {
          const time = duration(shares[key]);
          return `${word(model, name)} ${time} (${share(shares[key] / (to - from))})`;
        });
      const of = [part.name, word(model, lane.name)].filter(Boolean).join(", ");
      return `${of}: ${told.join(", ") || word(model, "nothing")}`;
    });
}

function fillTip(view, hit) {
  const { tip } = view.ui,
    [name, ...lines] = hit.bar >= 0 ? facts(view.model, hit.bar) : crowdWords(view.model, hit);
  tip.replaceChildren(
    el("b", "", name),
    ...lines.map(line => el("p", "", line)),
    ...(hit.bar >= 0 ? story(view.model, hit.bar) : []).map(line => el("p", "story", line)),
  );
}

/** Put the words about what is under the pointer beside it, inside of the picture and of the
 * window. */
function placeTip(view, x, y) {
  const { tip, stage } = view.ui;
  const room = stage.getBoundingClientRect(),
    width = tip.offsetWidth,
    height = tip.offsetHeight;
  tip.style.left = `${Math.max(4, Math.min(x - room.left + 14, room.width - width - 4))}px`;
  const above = y - height - 14,
    fits = y + 18 + height <= innerHeight || above < 0;
  tip.style.top = `${(fits ? y + 18 : above) - room.top}px`;
}

function crowdWords(model, hit) {
  const { start, end } = model.columns,
    { longest, from, to } = hit;
  const busy = { share: share(hit.busy), time: duration(to - from) };
  const most = { thing: thing(model, longest), time: duration(end[longest] - start[longest]) };
  return [
    spans(model, hit.count),
    word(model, "busy {share} of {time}", busy),
    word(model, model.lane(hit.trackRef).name),
    word(model, "the longest: {thing}, {time}", most),
  ];
}
