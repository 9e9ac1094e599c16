// What is on the canvases: looks, where each row is, bars and their shares, arrows, hazards, the
// time cursor.

// ------------------------------------------------------------------------------------------- theme

/** Dark or light: what the host says first (JupyterLab, VS Code, Colab), then the page, then the
 * system. */
function isDark(host) {
  const { body, documentElement: root } = document;
  const told = host.dataset.lvTheme ?? root.dataset.lvTheme;
  if (told) return told === "dark";
  if (body?.dataset.jpThemeLight) return body.dataset.jpThemeLight === "false";
  if (body?.matches(".vscode-light, .vscode-high-contrast-light")) return false;
  if (body?.matches(".vscode-dark, .vscode-high-contrast")) return true;
  const named = root.getAttribute("theme") ?? root.dataset.theme;
  if (named === "dark" || named === "light") return named === "dark";
  return matchMedia("(prefers-color-scheme: dark)").matches;
}

const rgb = color => {
  const hex = color.replace(/^#(.)(.)(.)$/, "#$1$1$2$2$3$3");
  return [1, 3, 5].map(at => parseInt(hex.slice(at, at + 2), 16) || 0);
};
const hex = value => Math.round(value).toString(16).padStart(2, "0");
const between = (one, other, part) =>
  rgb(one).map((value, at) => value + part * (rgb(other)[at] - value));
const mix = (one, other, part) => `#${between(one, other, part).map(hex).join("")}`;
const isPale = color => rgb(color).reduce((sum, value) => sum + value, 0) > 560;
const pixel = ([red, green, blue]) => (blue << 16) | (green << 8) | red;
const opacity = share => (Math.round(255 * share) << 24) >>> 0;

const TOKENS = ["ground", "ink", "line", "frame", "band", "race", "focus"];

/** The looks of this moment: tokens of the CSS, and one swatch for each style, each batch and "no
 * batch". */
function readTheme(host, head) {
  const dark = isDark(host);
  host.toggleAttribute("data-lv-dark", dark);
  const css = getComputedStyle(host),
    forced = matchMedia("(forced-colors: active)").matches;
  const brush = document.createElement("canvas").getContext("2d");
  const token = name => {
    brush.fillStyle = css.getPropertyValue(`--lv-${name}`).trim();
    return brush.fillStyle; // as #rrggbb
  };
  const dimmed = look => {
    // no white slabs in the dark
    if (!isPale(look.pattern ? look.back : look.color)) return null;
    const [ground, ink] = [token("ground"), token("ink")];
    return look.pattern
      ? { ink, back: mix(ground, look.color, 0.14) }
      : { ink, color: mix(ground, ink, 0.2) };
  };
  const swatch = look => {
    const chosen = { ...look, ...(dark ? dimmed(look) : null) };
    const ground = chosen.pattern ? chosen.back : chosen.color;
    // where a bar is too narrow for a pattern
    const flat = between(chosen.color, ground, 0.5).map(Math.round);
    return { ...chosen, ground, flat };
  };
  const looks = [...head.styles, ...head.batches, head.no_batch].map(swatch);
  return {
    dark,
    forced,
    ...Object.fromEntries(TOKENS.map(name => [name, token(name)])),
    font: css.fontFamily || "sans-serif",
    swatches: [...looks, ...looks.map(look => ({ ...look, height: head.thin }))],
    patterns: new Map(),
  };
}

/** The swatch of each bar: of its batch where the picture is coloured by batch, else of its kind;
 * of its height. */
function swatchesOf(head, columns, byBatch) {
  const found = new Uint8Array(head.rows),
    styles = head.styles.length,
    batches = head.batches.length;
  for (let bar = 0; bar < head.rows; bar++) {
    const style = columns.style[bar],
      batch = columns.batch[bar],
      { by_batch: ofBatch, height } = head.styles[style];
    found[bar] =
      (height < 1 ? styles + batches + 1 : 0) +
      (!byBatch || !ofBatch ? style : batch >= 0 ? styles + (batch % batches) : styles + batches);
  }
  return found;
}

function patternOf(theme, swatch, context, dpr) {
  if (!theme.patterns.has(swatch)) {
    const cell = Math.round(7 * dpr),
      tile = Object.assign(document.createElement("canvas"), { width: cell, height: cell });
    const brush = tile.getContext("2d");
    brush.fillStyle = swatch.ground;
    brush.fillRect(0, 0, cell, cell);
    brush.strokeStyle = brush.fillStyle = swatch.color;
    brush.lineWidth = 1.6 * dpr;
    const stroke = (...points) => {
      brush.beginPath();
      for (const [x, y] of points) brush.lineTo(x * cell, y * cell);
      brush.stroke();
    };
    if (swatch.pattern === ".") brush.fillRect(cell * 0.35, cell * 0.35, cell * 0.3, cell * 0.3);
    else
      for (const shift of [-1, 0, 1]) {
        stroke([shift - 0.5, 1.5], [shift + 1.5, -0.5]);
        if (swatch.pattern === "x") stroke([shift - 0.5, -0.5], [shift + 1.5, 1.5]);
      }
    theme.patterns.set(swatch, context.createPattern(tile, "repeat"));
  }
  return theme.patterns.get(swatch);
}

// ------------------------------------------------------------------------------------------ layout

const TRACK = { host: 22, engine: 17, stream: 28, strip: 28 },
  LOW = { host: 17, engine: 15, stream: 24, strip: 22 },
  FOLDED = 12,
  HEADER = 24,
  HERO_BAR = 30,
  CURVE = 44,
  LANE_GAP = 3,
  GROUP_GAP = 8,
  MANY_GROUPS = 20;
const NARROW = 560; // px; below it lanes have their short names

/** The rows of the picture from top to bottom: headers of parts and groups, tracks, curves. y and
 * height in CSS px. */
function layout(view) {
  const rows = [],
    { model, folds } = view;
  let y = 2;
  const add = (type, height, more) => {
    rows.push({ type, y, height, ...more });
    y += height;
  };
  const several = view.compared.length > 1;
  const place = (part, index) => {
    if (part.ghost || several || part.hero) {
      const hero =
        part.hero &&
        model.tracks.find(track => track.part === index && track.lane === part.hero.lane);
      add(
        part.ghost ? "ghost" : "part",
        (hero ? HERO_BAR : 0) + Math.max(HEADER, (view.told.get(index) ?? 0) + 7),
        { part: index, hero, ghost: part.ghost, folded: folds.has(`p${index}`) },
      );
    }
    if (!folds.has(`p${index}`)) placeLanes(part, index);
    y += GROUP_GAP;
    model.parts.forEach((other, number) => {
      if (other.ghost?.of === index && !folds.has(`h${number}`)) place(other, number);
    });
  };
  const placeLanes = (part, index) => {
    const done = new Set();
    let before = null;
    part.lanes.forEach((lane, number) => {
      if (number === part.hero?.lane) return; // it is in the row of the part
      const group = part.groups?.[lane.group];
      if (group && !done.has(group)) {
        done.add(group);
        const folded = folds.has(`g${index}.${lane.group}`);
        const stand =
          folded && model.tracks.find(track => track.part === index && track.lane === group.lane);
        add("group", folded && part.groups.length > MANY_GROUPS ? FOLDED : HEADER, {
          part: index,
          group: lane.group,
          folded,
          stand,
        });
      }
      if (group && folds.has(`g${index}.${lane.group}`)) return;
      if (before && before !== lane.kind) y += GROUP_GAP;
      before = lane.kind;
      const folded = folds.has(`l${index}.${number}`),
        tracks = model.tracks.filter(track => track.part === index && track.lane === number);
      tracks.forEach((track, level) =>
        add(
          "track",
          folded
            ? Math.max(3, FOLDED / tracks.length)
            : (view.head.compact && view.low.matches ? LOW : TRACK)[lane.kind],
          {
            part: index,
            lane: number,
            track,
            level,
            folded,
            ghost: part.ghost,
            slim: lane.kind === "engine" && !folded,
          },
        ),
      );
      y += view.head.compact ? 1 : LANE_GAP;
    });
    (part.strips ?? []).forEach((_, strip) => {
      y += GROUP_GAP;
      add("curve", CURVE, { part: index, strip });
    });
  };
  model.parts.forEach((part, index) => {
    if (!part.ghost) place(part, index);
  });
  return { rows, height: Math.max(y + 2, 40) };
}

/** Where the thick bars of a row are drawn, inside of the row: [y, height] in CSS px. */
function rowBox(row) {
  if (row.type === "part" || row.type === "ghost") return [row.y + 3, HERO_BAR - 6];
  if (row.type === "group")
    return row.height > FOLDED ? [row.y + 6, row.height - 12] : [row.y, row.height - 1];
  return row.folded ? [row.y, row.height - 1] : [row.y + 2, row.height - 4];
}
const trackIn = row => row.track ?? row.hero ?? row.stand ?? null;

/** The same of a bar, thick or thin: a copy hangs from the top. The lane of a copy engine is as
 * slim as they are. */
function barBox(view, bar, row) {
  const [y, height] = rowBox(row);
  return [y, row.slim ? height : height * view.model.style(bar).height];
}

// -------------------------------------------------------------------------------------------- draw

const EXACT = 2; // device px: narrower bars are drawn as shares of their pixel columns
const FAINTEST = 0.3; // a column with anything in it is seen

/** What a frame needs to know; all lengths in device px, `top` is the scroll position. */
function frameOf(view) {
  const { dpr, width, height } = view.surface,
    [from, to] = view.window;
  const k = (width * dpr) / (to - from);
  return {
    view,
    model: view.model,
    theme: view.theme,
    swatches: view.swatches,
    dpr,
    width: Math.round(width * dpr),
    // whole px: no shimmer when panned
    height: Math.round(height * dpr),
    top: view.scrollTop,
    k,
    from: Math.round(from * k) / k,
    colors: new Map(),
    told: [],
    runs: [],
    image: null,
    imageUsed: false,
    rects: 0,
    buckets: 0,
    labels: 0,
  };
}

// always cleared by who has read it
let shared = { width: 0, shares: null, used: new Uint8Array(0) };

function scratch(width, kinds) {
  if (shared.width !== width || shared.used.length !== kinds) {
    shared = { width, shares: new Float32Array(kinds * width), used: new Uint8Array(kinds) };
  }
  return shared;
}

/** Spread the narrow bars of a track over pixel columns: `shares[swatch * width + column]`; the
 * others go to `wide`. */
function bucket(frame, track, wide) {
  const { start, end } = frame.model.columns,
    { k, from, width, swatches: swatch } = frame;
  const { shares, used } = scratch(width, frame.theme.swatches.length);
  const until = from + width / k,
    { stop } = track,
    strip = frame.model.lane(track).kind === "strip";
  let hair = -1;
  for (let bar = frame.model.firstAfter(track, from); bar < stop && start[bar] < until; bar++) {
    const x0 = (start[bar] - from) * k,
      x1 = (end[bar] - from) * k;
    if (x1 - x0 >= EXACT) {
      wide.push(bar);
      if (strip) {
        // states follow each other: a column that two of them share is no gap
        const base = swatch[bar] * width,
          first = Math.ceil(x0),
          last = Math.floor(x1);
        used[swatch[bar]] = 1;
        if (first > 0 && first <= width) shares[base + first - 1] += first - x0;
        if (last >= 0 && last < width) shares[base + last] += x1 - last;
      }
      continue;
    }
    if (x1 < 0 || x0 >= width) continue;
    if (x1 === x0) {
      // no time, no share: a hair, one in a column
      if ((x0 | 0) !== hair) wide.push(bar);
      hair = x0 | 0;
      continue;
    }
    const low = x0 < 0 ? 0 : x0,
      high = x1 > width ? width : x1;
    const base = swatch[bar] * width,
      first = low | 0,
      last = high | 0;
    used[swatch[bar]] = 1;
    if (first === last) {
      shares[base + first] += high - low;
      continue;
    }
    shares[base + first] += first + 1 - low;
    for (let column = first + 1; column < last; column++) shares[base + column] += 1;
    if (last < width) shares[base + last] += high - last;
  }
  return { shares, used };
}

/** Write the shares of a track into the image, area = time: thick ones from the bottom, thin ones
 * from the top. */
function paintBuckets(frame, found, y, height, alpha, slim = false) {
  const kinds = [...found.used.keys()].filter(swatch => found.used[swatch]),
    isThin = swatch => frame.theme.swatches[swatch].height < 1;
  paintStack(
    frame,
    found.shares,
    kinds.filter(swatch => !isThin(swatch)),
    y + height - 1,
    -1,
    height,
    alpha,
  );
  const thin = slim ? height : height * frame.view.head.thin;
  paintStack(frame, found.shares, kinds.filter(isThin), y, 1, thin, alpha);
  found.used.fill(0);
}

/** Stack the shares of some swatches, at most `height` high, from the row `first` of the image on.
 * Clears the shares. */
function paintStack(frame, shares, kinds, first, step, height, alpha) {
  const { width, theme, image, height: rows } = frame;
  if (!kinds.length) return;
  const colors = kinds.map(swatch => pixel(theme.swatches[swatch].flat)),
    solid = opacity(alpha);
  for (let column = 0; column < width; column++) {
    let filled = 0,
      drawn = 0;
    for (let at = 0; at < kinds.length; at++) {
      const value = shares[kinds[at] * width + column];
      if (!value) continue;
      shares[kinds[at] * width + column] = 0;
      filled = Math.min(height, filled + value * height);
      const full = Math.floor(filled);
      for (; drawn < full; drawn++) put(first + step * drawn, column, colors[at] | solid);
      if (filled > full && full < height) {
        put(
          first + step * full,
          column,
          colors[at] | opacity(alpha * Math.max(FAINTEST, filled - full)),
        );
      }
      frame.buckets++;
    }
  }
  frame.imageUsed = true;
  function put(row, column, value) {
    if (row >= 0 && row < rows) image[row * width + column] = value;
  }
}

function drawTrack(frame, row, alpha = 1) {
  const [top, high] = rowBox(row),
    { dpr } = frame,
    { start, end } = frame.model.columns,
    wide = [];
  const y = Math.round((top - frame.top) * dpr),
    most = Math.max(1, Math.round(high * dpr));
  const found = bucket(frame, trackIn(row), wide);
  if (isLabelled(row) && stripBox(frame, row)) {
    for (const [swatch, x0, x1] of stateRuns(frame, found, wide)) {
      frame.runs.push([
        swatch,
        [x0, x1],
        y,
        Math.round(high * frame.theme.swatches[swatch].height * dpr),
        alpha < 1,
      ]);
    }
  }
  paintBuckets(frame, found, y, most, alpha, row.slim);
  for (const bar of wide) {
    const swatch = frame.swatches[bar],
      key = alpha < 1 ? swatch + 1000 : swatch;
    if (!frame.colors.has(key)) frame.colors.set(key, []);
    const height = Math.max(1, Math.round(barBox(frame.view, bar, row)[1] * dpr)),
      // a hair is no share: it stays low
      tall = start[bar] < end[bar] ? height : Math.ceil(0.3 * height);
    frame.colors.get(key).push(bar, y + height - tall, tall, row);
  }
}

const isLabelled = row => !row.folded || row.type === "part";

/** The pieces of a strip that look like one state: [swatch, first column, column after its
 * last]. */
function stateRuns(frame, { shares, used }, wide) {
  const { width, swatches } = frame,
    most = new Int16Array(width + 1).fill(-1),
    runs = [];
  for (const bar of wide)
    most.fill(swatches[bar], ...ends(frame, bar).map(x => Math.min(width, Math.max(0, x))));
  used.forEach((is, swatch) => {
    for (let x = 0; is && x < width; x++) if (shares[swatch * width + x] > 0.5) most[x] = swatch;
  });
  for (let x = 1, first = 0; x <= width; x++) {
    if (most[x] === most[first]) continue;
    if (most[first] >= 0) runs.push([most[first], first, x]);
    first = x;
  }
  return runs;
}

/** The left and right end of a bar in whole device px, cut to the picture; of a state the columns
 * that it fills. */
function ends(frame, bar) {
  const { start, end } = frame.model.columns,
    { state } = frame.model.style(bar);
  const [left, right] = state ? [Math.ceil, Math.floor] : [Math.round, Math.round];
  const x0 = Math.max(-1, left((start[bar] - frame.from) * frame.k)),
    x1 = Math.min(frame.width + 1, right((end[bar] - frame.from) * frame.k));
  return [x0, Math.max(x1, x0 + 1)];
}

function paintRects(context, frame) {
  const { theme, dpr, view } = frame,
    { count } = frame.model.columns;
  for (const [key, list] of frame.colors) {
    const swatch = theme.swatches[key % 1000],
      parting = swatch.state ? 0 : Math.round(dpr); // a gap would be idle
    context.globalAlpha = key >= 1000 ? 0.45 : 1;
    context.fillStyle = theme.forced
      ? theme.ground
      : swatch.pattern
        ? patternOf(theme, swatch, context, dpr)
        : swatch.color;
    for (let at = 0; at < list.length; at += 4) {
      const [x0, x1] = ends(frame, list[at]),
        width = x1 - x0,
        gap = width >= 4 * dpr ? parting : 0;
      if (count[list[at]] > 1) context.globalAlpha = 0.55;
      context.fillRect(x0, list[at + 1], width - gap, list[at + 2]);
      if (count[list[at]] > 1) context.globalAlpha = key >= 1000 ? 0.45 : 1;
      if (theme.forced)
        outline(context, x0, list[at + 1], width - gap, list[at + 2], theme.ink, dpr);
    }
    frame.rects += list.length / 4;
  }
  context.globalAlpha = 1;
  for (const [key, list] of frame.colors) {
    for (let at = 0; at < list.length; at += 4) {
      const [bar, y, tall, row] = list.slice(at, at + 4),
        swatch = theme.swatches[key % 1000];
      if (isLabelled(row) && !swatch.state) {
        const texts = () => labelsOf(view, bar);
        write(context, frame, texts, ends(frame, bar), y, tall, swatch, key >= 1000);
      }
    }
  }
  for (const [at, ...place] of frame.runs) {
    const look = theme.swatches[at],
      [ends, y, height, ghost] = place;
    const names = () => [look.name, look.name.replace(/^copy /, "")];
    write(context, frame, names, ends, y, height, look, ghost);
  }
  view.drawn.labels = frame.labels;
}

/** Where the strip of states in a row is: [x, y, width, height] in device px; null for a row of
 * other bars. */
function stripBox({ model, dpr, top, from, k, width }, row) {
  const track = trackIn(row),
    { start, end } = model.columns,
    [y, height] = rowBox(row);
  if (!track?.count || !model.style(track.first).state) return null;
  const x = time => Math.min(width + dpr, Math.max(-dpr, Math.round((time - from) * k))),
    left = x(start[track.first]);
  return [
    left,
    Math.round((y - top) * dpr),
    x(end[track.stop - 1]) - left,
    Math.round(height * dpr),
  ];
}

function outline(context, x, y, width, height, color, line) {
  context.strokeStyle = color;
  context.lineWidth = line;
  context.strokeRect(
    x + line / 2,
    y + line / 2,
    Math.max(0, width - line),
    Math.max(0, height - line),
  );
}

/** What may stand on a bar, the longest first. */
function labelsOf(view, bar) {
  const { model } = view,
    { batch, cause, nbytes, count } = model.columns,
    style = model.style(bar),
    name = model.name(bar);
  if (count[bar] > 1) return [spans(view, count[bar]), number(count[bar])];
  const of = batch[bar] >= 0 ? `${batch[bar]}` : "",
    short = shortName(name),
    bare = short.replace(/^(cuda|hip)(?=[A-Z])/, "");
  switch (style.label) {
    case "none":
      return [];
    case "cause":
      return causeWords(model.head.causes[cause[bar]] || name || "blocked");
    case "bytes":
      return withBatch(nbytes[bar] > 0 ? [size(nbytes[bar])] : [name, short]);
    case "batch":
      return of ? [name, `batch ${of}`, of] : [name, short];
    default:
      return withBatch(
        [name, short, bare],
        [`${of}: ${name}`, `${of}: ${short}`, `${of}: ${bare}`],
      );
  }
  function withBatch(texts, shorter = []) {
    if (!view.byBatch || !style.by_batch || !of) return texts;
    const long = name => word(view, "batch {batch}: {name}", { batch: of, name });
    return [...texts.map(long), ...shorter, `batch ${of}`, of];
  }
}

const causeWords = words => [
  words,
  {
    "waiting for data": "data",
    "waiting for Python's lock": "lock",
    synchronize: "sync",
    "page-locking": "locking",
  }[words] ?? words.split(/[ -]/)[0],
];

/** Write the longest of some texts that fits into the visible part of a bar; nothing where nothing
 * fits. */
function write(context, frame, texts, [x0, x1], y, height, swatch, ghost) {
  const { dpr, view, theme } = frame;
  const low = Math.max(0, x0),
    high = Math.min(frame.width, x1),
    room = (high - low) / dpr - 6;
  if (room < 7 || height < 11 * dpr) return;
  const letters = height < 14 * dpr ? 11 : 12,
    measure = text => (view.textWidth(text) * letters) / 12;
  const fits = each => each.length * 3 < room && measure(each) <= room;
  let text = "";
  for (const each of texts()) {
    text = word(view, each);
    if (fits(text)) break;
  }
  if (!fits(text)) {
    const isCut = room > 48 && !/^\d+$/.test(text) && !swatch.state;
    text = isCut ? cropped(text, room, measure) : "";
  }
  if (!text) return;
  if (frame.letters !== letters) context.font = `${letters * dpr}px ${theme.font}`;
  frame.letters = letters; // to set a font costs more than to write a word
  const x = (low + high) / 2 - (measure(text) * dpr) / 2,
    base = Math.round(y + height / 2 + 0.34 * letters * dpr);
  if (swatch.pattern || theme.forced) {
    const behind = Math.min(height, 14 * dpr);
    context.fillStyle = swatch.back && !theme.forced ? swatch.back : theme.ground;
    context.fillRect(x - 2 * dpr, y + (height - behind) / 2, measure(text) * dpr + 4 * dpr, behind);
  }
  context.globalAlpha = ghost ? 0.7 : 1;
  context.fillStyle = theme.forced ? theme.ink : ghost ? theme.ink : swatch.ink;
  context.fillText(text, Math.round(x), base);
  context.globalAlpha = 1;
  frame.labels++;
}

function cropped(text, room, measure) {
  let letters = Math.floor((room / measure(text)) * text.length) - 1;
  for (; letters >= 4; letters--) {
    const tail = letters >= 16 ? Math.floor(letters / 3) : 0,
      cut = `${text.slice(0, letters - tail)}…${tail ? text.slice(-tail) : ""}`;
    if (measure(cut) <= room) return cut;
  }
  return "";
}

function drawCurve(context, frame, row) {
  const { dpr, theme, k, from } = frame,
    part = frame.model.parts[row.part],
    strip = part.strips[row.strip];
  const y = (row.y + 2 - frame.top) * dpr,
    height = (row.height - 4) * dpr,
    x = time => (time - from) * k;
  context.fillStyle = theme.band;
  context.fillRect(0, y, frame.width, height);
  context.beginPath();
  strip.values.forEach((value, at) => {
    const level = y + height * (1 - value),
      left = at * strip.cell;
    if (!at) context.moveTo(x(left), y + height);
    context.lineTo(x(left), level);
    context.lineTo(x(left + strip.cell), level);
  });
  context.lineTo(x(strip.values.length * strip.cell), y + height);
  context.fillStyle = theme.focus;
  context.globalAlpha = 0.25;
  context.fill();
  context.globalAlpha = 1;
  context.strokeStyle = theme.focus;
  context.lineWidth = 1.5 * dpr;
  context.stroke();
}

const visibleRows = frame =>
  frame.view.rows.filter(
    row => row.y + row.height >= frame.top && row.y <= frame.top + frame.height / frame.dpr,
  );

/** The data canvas: bands, grid, bars, curves, arrows of events. */
function drawData(view) {
  const frame = frameOf(view),
    context = view.context,
    { theme, dpr } = frame;
  context.setTransform(1, 0, 0, 1, 0, 0);
  context.clearRect(0, 0, frame.width, frame.height);
  frame.image = view.image(frame.width, frame.height).fill(0);
  const rows = visibleRows(frame);
  drawGround(context, frame, rows);
  for (const row of rows) {
    if (row.type === "curve") drawCurve(context, frame, row);
    else if (trackIn(row)) drawTrack(frame, row, row.ghost ? 0.45 : 1);
  }
  if (frame.imageUsed) view.blitImage(context);
  paintRects(context, frame);
  for (const row of rows) {
    // its idle parts, as pale as the ground, are seen to be a part of a strip
    const box = stripBox(frame, row);
    if (box) outline(context, ...box, theme.frame, dpr);
  }
  if (view.former) drawFormer(context, frame);
  view.drawn = {
    rects: frame.rects,
    buckets: frame.buckets,
    labels: frame.labels,
    arrows: drawEvents(context, frame, rows),
  };
  view.frames++;
}

function drawGround(context, frame, rows) {
  const { dpr, theme } = frame,
    { model, window } = frame.view;
  for (const row of rows) {
    const y = Math.round((row.y - frame.top) * dpr),
      height = Math.round(row.height * dpr);
    if (row.type === "track" && frame.model.parts[row.part].lanes[row.lane].kind === "host") {
      context.fillStyle = theme.band;
      context.fillRect(0, y, frame.width, height);
    }
  }
  context.fillStyle = theme.line;
  for (const time of frame.view.ticks.times) {
    context.fillRect(
      Math.round((time - frame.from) * frame.k),
      0,
      Math.max(1, Math.round(dpr / 2)),
      frame.height,
    );
  }
  const idle =
    theme.swatches[frame.view.head.styles.findIndex(style => style.key === "state:idle")];
  for (const row of rows) {
    // below a thin bar of its strip the GPU computes nothing
    const box = stripBox(frame, row);
    context.globalAlpha = row.ghost ? 0.45 : 1;
    context.fillStyle = theme.forced ? theme.ground : idle.color;
    if (box) context.fillRect(...box);
    context.globalAlpha = 1;
  }
  for (const row of rows) {
    // after its end a part has no time
    const end = model.ends[row.part];
    if (row.type === "track" && end < window[1] && model.parts.length > 1) {
      const x = Math.round((end - frame.from) * frame.k);
      context.globalAlpha = 0.6;
      context.fillStyle = theme.ground;
      context.fillRect(
        x,
        Math.round((row.y - frame.top) * dpr),
        frame.width - x,
        Math.round(row.height * dpr),
      );
      context.globalAlpha = 1;
    }
  }
}

/** The outlines of what stood here before a setting was changed; narrow bars that follow each other
 * have one. */
function drawFormer(context, frame) {
  const { dpr, view, theme, k, from } = frame,
    { model } = view.former;
  context.globalAlpha = 0.4;
  for (const row of view.rows) {
    if (row.type !== "track" || row.folded) continue;
    const name = frame.model.lane(row.track).name;
    const track = model.tracks.find(
      each => each.index === row.level && each.part === row.part && model.lane(each).name === name,
    );
    if (!track) continue;
    const y = Math.round((row.y - frame.top + 1) * dpr),
      { start, end } = model.columns,
      runs = [];
    for (const bar of model.within(track, from, from + frame.width / k)) {
      const [x0, x1] = [start[bar], end[bar]].map(time => Math.round((time - from) * k)),
        run = runs.at(-1);
      if (model.style(bar).key === "state:idle") continue;
      const high = Math.round((barBox({ model }, bar, row)[1] + 2) * dpr);
      if (
        run &&
        x0 - run[1] < 4 * dpr &&
        x1 - x0 < 12 * dpr &&
        run[2] < 12 * dpr &&
        run[3] === high
      )
        run[1] = x1;
      else runs.push([x0, x1, x1 - x0, high]);
    }
    for (const [x0, x1, , high] of runs)
      if (x1 - x0 > 2 * dpr) outline(context, x0, y, x1 - x0, high, theme.ink, dpr);
  }
  context.globalAlpha = 1;
}

// ----------------------------------------------------------------------------------------- overlay

const BOLD = 1.17; // bold letters are as much wider
const MOST_ARROWS = 240; // of those that show by themselves; more hide the picture

/** The middle of a bar and half its height in device px, also where its lane is folded; null where
 * its part is. */
function middle(frame, bar) {
  const row = frame.view.rowOf(bar);
  if (!row) return null;
  const [y, height] = barBox(frame.view, bar, row);
  return [(y + height / 2 - frame.top) * frame.dpr, (height / 2) * frame.dpr];
}

/** An arrow from the end of one bar (its start for a launch) to the start of another. */
function drawArrow(context, frame, arrow, strong) {
  const { start, end, tail, head, arrow: kind } = frame.model.columns;
  const [one, other] = [middle(frame, tail[arrow]), middle(frame, head[arrow])];
  if (!one || !other || one[0] === other[0]) return false;
  const launch = kind[arrow] === 0,
    x = time => (time - frame.from) * frame.k,
    down = Math.sign(other[0] - one[0]);
  const from = [x(launch ? start[tail[arrow]] : end[tail[arrow]]), one[0] + down * one[1] * 0.6],
    to = [x(start[head[arrow]]), other[0] - down * other[1]];
  curve(context, frame, from, to, {
    width: strong ? 2 : 1.3,
    dash: launch ? [2, 3] : [],
    color: frame.theme.ink,
  });
  return true;
}

function curve(context, { dpr, theme }, from, to, { width, dash, color }) {
  const bend = Math.max(8 * dpr, Math.min(40 * dpr, Math.abs(to[1] - from[1]) / 2)),
    down = Math.sign(to[1] - from[1]) || 1;
  const path = new Path2D();
  path.moveTo(...from);
  path.bezierCurveTo(
    from[0],
    from[1] + down * bend,
    to[0],
    to[1] - down * bend,
    to[0],
    to[1] - down * 4 * dpr,
  );
  context.lineCap = "round";
  for (const [line, ink] of [
    [width + 2.4, theme.ground],
    [width, color],
  ]) {
    // a rim keeps it apart from the bars
    context.lineWidth = line * dpr;
    context.strokeStyle = ink;
    context.setLineDash(ink === color ? dash.map(each => each * dpr) : []);
    context.stroke(path);
  }
  context.setLineDash([]);
  context.fillStyle = color;
  context.beginPath();
  const tip = (2.5 + 1.2 * width) * dpr;
  context.moveTo(...to);
  context.lineTo(to[0] - tip * 0.8, to[1] - down * tip * 1.6);
  context.lineTo(to[0] + tip * 0.8, to[1] - down * tip * 1.6);
  context.fill();
}

/** The event edges in sight; none where there are too many to follow, and then `view.crowded` says
 * so. */
function drawEvents(context, frame, rows) {
  const { view, model } = frame,
    { start, end, tail, head, arrow } = model.columns,
    [from, to] = view.window;
  const shown = new Set(
    rows.filter(row => row.type === "track" && !row.ghost).map(row => row.track),
  );
  const found = [];
  for (let at = 0; at < arrow.length && found.length <= MOST_ARROWS; at++) {
    if (arrow[at] !== 1 || end[tail[at]] > to || start[head[at]] < from) continue;
    if (shown.has(model.trackOf(tail[at])) && shown.has(model.trackOf(head[at]))) found.push(at);
  }
  view.crowded = found.length > MOST_ARROWS;
  if (view.crowded) return 0;
  context.globalAlpha = found.length > 60 ? 0.55 : 0.85;
  const drawn = found.filter(at => drawArrow(context, frame, at, false)).length;
  context.globalAlpha = 1;
  return drawn;
}

/** The overlay canvas: what belongs to pointer, selection, search, measure, hazards and the time
 * cursor. */
function drawOverlay(view) {
  const frame = frameOf(view),
    context = view.overContext;
  context.setTransform(1, 0, 0, 1, 0, 0);
  context.clearRect(0, 0, frame.width, frame.height);
  const bar = view.hover?.bar >= 0 ? view.hover.bar : view.selection;
  if (view.time >= 0) drawPlayhead(context, frame);
  else if (bar >= 0) drawJourney(context, frame, bar, view.selection === bar ? 0.72 : 0.5);
  for (const found of view.found.list.slice(0, 4000))
    frameBar(context, frame, found, frame.theme.focus, 1.5);
  for (const index of view.shownParts())
    for (const mark of view.model.parts[index].marks ?? []) drawRace(context, frame, index, mark);
  for (const found of view.evidence) frameBar(context, frame, found, frame.theme.focus, 2.5);
  if (view.selection >= 0) frameBar(context, frame, view.selection, frame.theme.ink, 2.5);
  if (view.hover?.bar >= 0) frameBar(context, frame, view.hover.bar, frame.theme.ink, 1.5);
  if (view.measure) drawMeasure(context, frame);
  if (view.former) drawDifference(context, frame);
  drawGhostGain(context, frame);
}

function frameBar(context, frame, bar, color, line) {
  const row = frame.view.rowOf(bar),
    [x0, x1] = ends(frame, bar);
  if (!row || x1 < 0 || x0 > frame.width) return;
  const [y, height] = barBox(frame.view, bar, row),
    { dpr } = frame;
  outline(
    context,
    x0 - (line * dpr) / 2,
    (y - frame.top) * dpr - (line * dpr) / 2,
    x1 - x0 + line * dpr,
    (height + line) * dpr,
    color,
    line * dpr,
  );
}

/** Dim the rest; then the batch along its whole way, or the bar alone, what it waited for and what
 * waits for it. */
function drawJourney(context, frame, bar, dim) {
  const { model, view, theme } = frame,
    { batch, arrow } = model.columns,
    part = model.trackOf(bar).part;
  const lit = batch[bar] >= 0 ? model.way(part, batch[bar], true) : [bar];
  context.globalAlpha = dim;
  context.fillStyle = theme.ground;
  context.fillRect(0, 0, frame.width, frame.height);
  context.globalAlpha = 1;
  const again = { ...frame, colors: new Map() };
  for (const each of lit) {
    const row = view.rowOf(each);
    if (!row || row.y + row.height < frame.top || row.y > frame.top + frame.height / frame.dpr)
      continue;
    const [y, height] = barBox(view, each, row),
      key = view.swatches[each];
    if (!again.colors.has(key)) again.colors.set(key, []);
    again.colors
      .get(key)
      .push(each, Math.round((y - frame.top) * frame.dpr), Math.round(height * frame.dpr), row);
  }
  const { labels } = view.drawn;
  paintRects(context, again);
  view.drawn.labels = labels;
  for (const at of [...model.into(bar), ...model.outOf(bar)])
    drawArrow(context, frame, at, arrow[at] === 1);
}

/** A race: its two spans framed, and a bold dashed arrow where an order is missing. */
function drawRace(context, frame, part, mark) {
  const { dpr, theme, model, view } = frame,
    { start, end } = model.columns,
    [one, other] = mark.bars ?? [-1, -1];
  for (const bar of [one, other]) if (bar >= 0) frameBar(context, frame, bar, theme.race, 2.5);
  if (one < 0 || other < 0) return drawCross(context, frame, part, mark);
  const from = middle(frame, one),
    to = middle(frame, other),
    x = time => (time - frame.from) * frame.k;
  if (!from || !to) return;
  // bars may be close
  const down = Math.sign(to[0] - from[0]) || 1,
    ends = [
      [x(end[one]), from[0]],
      [x(start[other]), to[0] - 0.4 * down * to[1]],
    ];
  curve(context, frame, ...ends, { width: 2.6, dash: [6, 5], color: theme.race });
  const text = mark.missing ? word(view, "missing wait") : mark.kind;
  const room = (view.textWidth(text) * BOLD + 8) * dpr,
    [left, right] = ends.map(([x]) => x).sort((a, b) => a - b);
  const y = (ends[0][1] + ends[1][1]) / 2,
    free = x =>
      x > 4 * dpr &&
      x + room < frame.width &&
      !frame.told.some(
        ([other, wide, at]) => x < other + wide && other < x + room && Math.abs(y - at) < 20 * dpr,
      );
  const at = [right + 12 * dpr, left - room - 8 * dpr, right - room / 2].find(free);
  if (at === undefined) return; // its line below has the words
  frame.told.push([at, room, y]);
  tag(context, frame, text, at, y, theme.race);
}

function drawCross(context, frame, part, mark) {
  const row = frame.view.rows.find(
    each =>
      each.part === part && each.type === "track" && frame.model.lane(each.track).of === mark.lane,
  );
  if (!row) return;
  const x = (mark.time - frame.from) * frame.k,
    y = (row.y + row.height / 2 - frame.top) * frame.dpr,
    reach = 5 * frame.dpr;
  for (const [line, color] of [
    [5, frame.theme.ground],
    [2.5, frame.theme.race],
  ]) {
    context.strokeStyle = color;
    context.lineWidth = line * frame.dpr;
    context.beginPath();
    for (const turn of [reach, -reach]) {
      context.moveTo(x - reach, y - turn);
      context.lineTo(x + reach, y + turn);
    }
    context.stroke();
  }
}

function drawMeasure(context, frame) {
  const [from, to] = frame.view.measure.map(time => Math.round((time - frame.from) * frame.k));
  context.fillStyle = frame.theme.focus;
  context.globalAlpha = 0.16;
  context.fillRect(from, 0, to - from, frame.height);
  context.globalAlpha = 1;
  for (const x of [from, to]) context.fillRect(x - frame.dpr / 2, 0, 1.5 * frame.dpr, frame.height);
}

/** Where the former setting ended, and by how much that was later or earlier. */
function drawDifference(context, frame) {
  const { dpr, model, view, theme } = frame;
  const [before, now] = [view.former.model, model].map(each => Math.max(...each.ends));
  const x = Math.round((before - frame.from) * frame.k);
  context.strokeStyle = theme.ink;
  context.setLineDash([4 * dpr, 4 * dpr]);
  context.lineWidth = dpr;
  context.beginPath();
  context.moveTo(x, 0);
  context.lineTo(x, frame.height);
  context.stroke();
  context.setLineDash([]);
  if (before === now) return;
  const time = duration(Math.abs(before - now));
  const text = word(view, before > now ? "before: {time} more" : "before: {time} less", { time });
  tag(context, frame, text, x + 6 * dpr, 14 * dpr, theme.ink);
}

/** Words in a frame, inside of the picture; `y` is their middle. */
function tag(context, frame, text, x, y, color) {
  const { dpr, theme, width } = frame,
    room = frame.view.textWidth(text) * BOLD * dpr + 8 * dpr;
  const at = Math.max(0, Math.min(width - room, x));
  context.font = `bold ${12 * dpr}px ${theme.font}`;
  context.fillStyle = theme.ground;
  context.fillRect(at, y - 9 * dpr, room, 18 * dpr);
  outline(context, at, y - 9 * dpr, room, 18 * dpr, color, dpr);
  context.fillStyle = color;
  context.fillText(text, at + 4 * dpr, y + 4 * dpr);
}

/** Between the end of a prediction and the end of what it is about: the time gained. */
function drawGhostGain(context, frame) {
  const { dpr, theme } = frame;
  for (const row of frame.view.rows) {
    if (row.type !== "ghost" || !(row.ghost.gain > 0)) continue;
    const { gain, until } = row.ghost,
      [from, to] = [until - gain, until].map(time => (time - frame.from) * frame.k);
    const [top, height] = rowBox(row),
      y = (top + height / 2 - frame.top) * dpr,
      text = word(frame.view, "{time} gained", { time: duration(gain) });
    context.strokeStyle = context.fillStyle = theme.ink;
    context.lineWidth = 1.5 * dpr;
    context.beginPath();
    context.moveTo(from, y);
    context.lineTo(to, y);
    for (const x of [from, to]) {
      context.moveTo(x, y - 5 * dpr);
      context.lineTo(x, y + 5 * dpr);
    }
    context.stroke();
    context.font = `${12 * dpr}px ${theme.font}`;
    const width = frame.view.textWidth(text) * dpr,
      at = (Math.max(0, from) + Math.min(to, frame.width) - width) / 2;
    if (at - 4 * dpr < from) continue; // its words are below
    context.fillStyle = theme.ground;
    context.fillRect(at - 4 * dpr, y - 8 * dpr, width + 8 * dpr, 16 * dpr);
    context.fillStyle = theme.ink;
    context.fillText(text, at, y + 4 * dpr);
  }
}

// -------------------------------------------------------------------------------------------- play

const PLAY_SECONDS = 14; // for what is in the window, unless a speed is given

/** Where a batch is at a time: `{bar, next, share}`, in a bar (share 0) or on its way to the next;
 * null elsewhere. */
function placeOf(model, way, time) {
  const { start, end } = model.columns;
  if (!way.length || time < start[way[0]]) return null;
  let last = -1;
  for (const bar of way) {
    if (start[bar] > time) {
      return last < 0 || end[last] > time
        ? { bar: last, next: -1, share: 0 }
        : { bar: last, next: bar, share: (time - end[last]) / (start[bar] - end[last]) };
    }
    if (last < 0 || end[bar] >= end[last]) last = bar;
  }
  return time <= end[last] ? { bar: last, next: -1, share: 0 } : null;
}

/** The time cursor: what is to come is pale, and each batch rides on the lanes as a numbered
 * token. */
function drawPlayhead(context, frame) {
  const { view, theme, dpr } = frame,
    x = (view.time - frame.from) * frame.k;
  context.globalAlpha = 0.72;
  context.fillStyle = theme.ground;
  context.fillRect(x, 0, frame.width - x, frame.height);
  context.globalAlpha = 1;
  context.fillStyle = theme.focus;
  context.fillRect(x - dpr, 0, 2 * dpr, frame.height);
  for (const index of view.shownParts()) drawTokens(context, frame, index, x);
  for (const row of view.rows) if (row.hero && !row.ghost) drawRunner(context, frame, row, x);
}

/** On the row of a loader: its clock, which stops where the loader is done. */
function drawRunner(context, frame, row, x) {
  const { model, view, theme, dpr } = frame,
    end = model.ends[row.part],
    done = view.time >= end,
    [y, height] = rowBox(row);
  const text = done ? word(view, "done: {time}", { time: duration(end) }) : duration(view.time),
    width = view.textWidth(text) * BOLD * dpr,
    at = done ? (end - frame.from) * frame.k : x;
  const left = Math.max(2 * dpr, Math.min(frame.width - width - 10 * dpr, at - width - 10 * dpr)),
    top = (y - frame.top) * dpr;
  context.fillStyle = done ? theme.ink : theme.focus;
  context.fillRect(left, top + 2 * dpr, width + 8 * dpr, height * dpr - 4 * dpr);
  context.fillStyle = theme.ground;
  context.font = `bold ${12 * dpr}px ${theme.font}`;
  context.fillText(text, left + 4 * dpr, top + (height / 2 + 4) * dpr);
}

function drawTokens(context, frame, part, x) {
  const { model, view, theme, dpr } = frame,
    radius = 9 * dpr,
    taken = new Map();
  for (const [batch, { way, until }] of view.ways(part)) {
    const place = view.time <= until && placeOf(model, way, view.time);
    if (!place || place.bar < 0) continue;
    const from = middle(frame, place.bar)?.[0],
      to = place.next < 0 ? from : middle(frame, place.next)?.[0];
    if (from === undefined || to === undefined) continue;
    const ease = place.share * place.share * (3 - 2 * place.share),
      y = from + (to - from) * ease,
      slot = Math.round(y / (2 * radius)),
      shift = taken.get(slot) ?? 0;
    taken.set(slot, shift + 1);
    const look = theme.swatches[view.head.styles.length + (batch % view.head.batches.length)],
      at = Math.max(radius, x - shift * 2.1 * radius);
    context.beginPath();
    context.arc(at, y, radius, 0, 7);
    context.fillStyle = look.color;
    context.fill();
    context.lineWidth = 2 * dpr;
    context.strokeStyle = theme.ground;
    context.stroke();
    context.lineWidth = dpr;
    context.strokeStyle = theme.ink;
    context.stroke();
    context.font = `bold ${11 * dpr}px ${theme.font}`;
    context.fillStyle = look.ink;
    context.fillText(
      String(batch),
      at - (view.textWidth(String(batch)) * dpr * 0.97) / 2,
      y + 4 * dpr,
    );
  }
}
