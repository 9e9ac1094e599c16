// The timeline view: one ES module for a page, a notebook output and a widget. No dependency, no build, no network.
//
//     const view = mount(host, head, bytes);    // `head` and `bytes` as view/pack.py makes them ("lv1")
//     await view.ready;                         // then view.window, view.go(t0, t1), view.select(bar), view.play()
//
// Sections: decode, model, words, theme, layout, draw, overlay, story, chrome, input, play, view, hosts.
// Words used throughout: a *bar* is a row of the body (a span, or several merged ones), a *track* a row of bars that do
// not overlap, a *lane* one or more tracks with a name, a *part* one timeline. Times are ns from the part's origin.

// ---------------------------------------------------------------------------------------------------------- decode

const ESCAPE = 0xffffffff; // the true value is the next of head.wide

export function fromBase64(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const letters = atob(text.trim());
  const bytes = new Uint8Array(letters.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = letters.charCodeAt(i);
  return bytes;
}

async function gunzip(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

const WIDTH = { u8: 1, u16: 2, u32: 4, i32: 4 };
const ARRAY = { u8: Uint8Array, u16: Uint16Array, u32: Uint32Array, i32: Int32Array };
const DEFAULTS = { gap: 0, duration: 0, style: 0, name: 0, batch: -1, nbytes: 0, cause: 0, pinned: 0, source: 0,
  hidden: 255,
  count: 1, tail: 0, head: 0, arrow: 0 };
const ARROWS = ["tail", "head", "arrow"];

/** Give the columns of a body: one typed array for each name of DEFAULTS, and `start` and `end` in ns as Float64. */
export async function decode(head, body) {
  const bytes = head.codec === "gzip" ? await gunzip(body) : body;
  const columns = {};
  let at = 0;
  for (const spec of head.columns) {
    const rows = spec.table === "arrows" ? head.arrows : head.rows;
    if ("constant" in spec) {
      columns[spec.name] = new ARRAY[spec.type](rows).fill(spec.constant);
    } else {
      columns[spec.name] = readPlanes(bytes, at, rows, spec.type);
      at += rows * WIDTH[spec.type];
    }
  }
  if (at > bytes.length) throw new Error(`the body has ${bytes.length} bytes, its columns need ${at}`);
  for (const [name, value] of Object.entries(DEFAULTS)) {
    columns[name] ??= new Int32Array(ARROWS.includes(name) ? head.arrows : head.rows).fill(value);
  }
  return withTimes(head, columns);
}

function readPlanes(bytes, at, rows, type) {
  const values = new ARRAY[type](rows);
  for (let plane = 0; plane < WIDTH[type]; plane++, at += rows) {
    const shift = 8 * plane;
    for (let row = 0; row < rows; row++) values[row] |= bytes[at + row] << shift;
  }
  if (type !== "i32") return values;
  let before = 0;
  for (let row = 0; row < rows; row++) values[row] = before = (before + ((values[row] >>> 1) ^ -(values[row] & 1))) | 0;
  return values;
}

function withTimes(head, columns) {
  const { gap, duration } = columns;
  const start = new Float64Array(head.rows), end = new Float64Array(head.rows);
  const wide = { gap: 0, duration: 0, nbytes: 0 };
  let row = 0;
  for (const count of head.parts.flatMap(part => part.lanes.flatMap(lane => lane.tracks.map(track => track.count)))) {
    for (let last = 0, stop = row + count; row < stop; row++) {
      start[row] = last + (gap[row] === ESCAPE ? head.wide.gap[wide.gap++] : gap[row]);
      last = end[row] = start[row] + (duration[row] === ESCAPE ? head.wide.duration[wide.duration++] : duration[row]);
    }
  }
  if (row !== head.rows) throw new Error(`the tracks have ${row} bars, the body has ${head.rows}`);
  const bytes = Float64Array.from(columns.nbytes,
    value => (value === ESCAPE ? head.wide.nbytes[wide.nbytes++] : value) - 1);
  return { ...columns, nbytes: bytes, start, end };
}

// ----------------------------------------------------------------------------------------------------------- model

/** Rows of a table by key: `rows.subarray(first[key], first[key + 1])` are those whose key it is. */
function byKey(keys, size) {
  const first = new Uint32Array(size + 1), rows = new Uint32Array(keys.length);
  for (const key of keys) if (key >= 0) first[key + 1]++;
  for (let key = 0; key < size; key++) first[key + 1] += first[key];
  const next = first.slice(0, size);
  keys.forEach((key, row) => { if (key >= 0) rows[next[key]++] = row; });
  return key => (key >= 0 && key < size ? rows.subarray(first[key], first[key + 1]) : rows.subarray(0, 0));
}

/** What the columns mean: tracks, who waits for whom, the way of a batch. Knows nothing of pixels. */
class Model {
  constructor(head, columns) {
    Object.assign(this, { head, columns, parts: head.parts, tracks: [] });
    let first = 0;
    const add = (part, lane) => ({ count, mirror }, index) => {
      this.tracks.push({ part, lane, index, first, stop: first + count, count, mirror: !!mirror });
      first += count;
    };
    head.parts.forEach(({ lanes }, part) => lanes.forEach(({ tracks }, lane) => tracks.forEach(add(part, lane))));
    const { start, end } = columns;
    const real = head.parts.map((part, index) => this.tracks.filter(track => track.part === index && track.count));
    this.ends = head.parts.map((part, index) => Math.max(part.duration ?? 0,
      ...real[index].map(track => end[track.stop - 1])));
    this.begin = Math.min(0, ...real.flat().map(track => start[track.first]));
    this.end = Math.max(head.axis ?? 0, ...this.ends, 1);
    this.lazy = {};
  }

  get into() { return (this.lazy.into ??= byKey(this.columns.head, this.head.rows)); } // arrows by the bar they lead to
  get outOf() { return (this.lazy.outOf ??= byKey(this.columns.tail, this.head.rows)); }
  get ofBatch() {
    return (this.lazy.ofBatch ??= byKey(this.columns.batch,
      this.columns.batch.reduce((most, batch) => Math.max(most, batch), -1) + 1));
  }

  style(bar) { return this.head.styles[this.columns.style[bar]] ?? this.head.styles[0]; }
  name(bar) { return this.head.names[this.columns.name[bar]] ?? ""; }
  lane(track) { return this.parts[track.part].lanes[track.lane]; }

  track(part, lane, index) {
    return this.tracks.find(each => each.part === part && each.lane === lane && each.index === index);
  }

  trackOf(bar) {
    let low = 0, high = this.tracks.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.tracks[middle].first <= bar) low = middle; else high = middle - 1;
    }
    while (low && !this.tracks[low].count) low--;
    return this.tracks[low];
  }

  /** First bar of a track that ends after `time`; bars of no length inside another are passed over. */
  firstAfter(track, time) {
    const { start, end } = this.columns;
    let low = track.first, high = track.stop;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (start[middle] < time) low = middle + 1; else high = middle;
    }
    let bar = low;
    while (bar > track.first && (end[bar - 1] > time || start[bar - 1] === end[bar - 1])) bar--;
    return bar;
  }

  /** The bars of a track that lie in a piece of time, or begin or end in it. */
  * within(track, from = -Infinity, to = Infinity) {
    const { start } = this.columns;
    for (let bar = this.firstAfter(track, from); bar < track.stop && start[bar] < to; bar++) yield bar;
  }

  /** The bar of a track at a time, or the nearest within `reach` ns of it; -1 if there is none. */
  barAt(track, time, reach = 0) {
    const { start, end } = this.columns;
    let best = -1, nearest = Infinity;
    for (const bar of this.within(track, time - reach, time + reach + 1e-3)) {
      const away = Math.max(start[bar] - time, time - end[bar], 0);
      if (away < nearest || (away === nearest && end[bar] - start[bar] > 0)) [best, nearest] = [bar, away];
    }
    return nearest <= reach ? best : -1;
  }

  /** ns of each style in a part of a track: `{style key: ns}`. */
  shares(track, from, to) {
    const { start, end, style } = this.columns;
    const found = {};
    for (const bar of this.within(track, from, to)) {
      const length = Math.min(end[bar], to) - Math.max(start[bar], from);
      if (length > 0) found[this.head.styles[style[bar]].key] = (found[this.head.styles[style[bar]].key] ?? 0) + length;
    }
    return found;
  }

  /** What is in a piece of a track: how many spans, how long they are, the longest. */
  crowd(track, from, to) {
    const { start, end, count } = this.columns;
    const found = { spans: 0, busy: 0, longest: -1 };
    let most = -1;
    for (const bar of this.within(track, from, to)) {
      found.spans += count[bar];
      found.busy += Math.max(0, Math.min(end[bar], to) - Math.max(start[bar], from));
      if (end[bar] - start[bar] > most) [found.longest, most] = [bar, end[bar] - start[bar]];
    }
    return found;
  }

  /** The bars of a batch in one part, in order of time; those of mirrors too if asked for. */
  way(part, batch, mirrors = false) {
    return Array.from(this.ofBatch(batch))
      .filter(bar => { const track = this.trackOf(bar); return track.part === part && (mirrors || !track.mirror); })
      .sort((one, other) => this.columns.start[one] - this.columns.start[other]);
  }

  /** Bars whose name holds the text, or that belong to the batch named ("batch 12", "12"). */
  search(text) {
    const wanted = text.trim().toLowerCase();
    if (!wanted) return [];
    const named = this.head.names.map(name => name.toLowerCase().includes(wanted));
    const batch = /^(?:batch\s*)?(\d+)$/.exec(wanted);
    const found = [];
    for (const track of this.tracks) {
      if (track.mirror || this.parts[track.part].ghost || this.lane(track).kind === "strip") continue;
      for (const bar of this.within(track)) {
        if (named[this.columns.name[bar]] || (batch && this.columns.batch[bar] === +batch[1])) found.push(bar);
      }
    }
    return found;
  }
}

// ----------------------------------------------------------------------------------------------------------- words

const UNITS = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"]];
const SIZES = [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"]];

function fourDigits(value) {
  const text = value.toFixed(Math.abs(value) < 10 ? 3 : Math.abs(value) < 100 ? 2 : 1);
  return text.replace(/\.?0+$/, "");
}
function withUnit(value, units, smallest) {
  const [unit, name] = units.find(([unit]) => Math.abs(value) >= unit * 0.9995) ?? [1, smallest];
  return `${fourDigits(value / unit)} ${name}`;
}
const duration = ns => withUnit(ns, UNITS, "ns");
const size = bytes => (bytes === 1 ? "1 byte" : withUnit(bytes, SIZES, "bytes"));
const number = value => value.toLocaleString("en");
const times = value => `${value >= 9.95 ? number(Math.round(value)) : value.toFixed(value < 1.1 ? 2 : 1)}x`;
const plural = (count, noun) => `${number(count)} ${noun}${count === 1 ? "" : noun.endsWith("ch") ? "es" : "s"}`;

function share(value) {
  const percent = 100 * value;
  if ((percent > 0 && percent < 1) || (percent > 99 && percent < 100)) return percent < 1 ? "< 1 %" : "> 99 %";
  return `${percent.toFixed(0)} %`;
}

/** A name as short as it can be told from others: no return type, no template, no namespace. */
function shortName(name) {
  const bare = name.replace(/^void /, "").replace(/\(.*$/s, "").replace(/<.*$/s, "");
  return bare.slice(bare.lastIndexOf("::") + 1).replace(/^:/, "") || name;
}

/** Ticks of an axis at 1, 2 or 5 times a power of ten: their times, and how to write them. */
function ticks(from, to, most) {
  const rough = (to - from) / Math.max(1, most), power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find(each => each * power >= rough);
  const [unit, name] = UNITS.find(([unit]) => Math.max(Math.abs(from), Math.abs(to)) >= 2 * unit) ?? [1, "ns"];
  const places = Math.max(0, Math.ceil(-Math.log10(step / unit) - 1e-9));
  const found = [];
  for (let at = Math.ceil(from / step - 1e-9); at * step <= to + step * 1e-9; at++) found.push(at * step);
  return { times: found, step, write: time => `${(time / unit).toFixed(places)} ${name}` };
}

// ----------------------------------------------------------------------------------------------------------- theme

/** Dark or light: what the host says first (JupyterLab, VS Code, Colab), then the page, then the system. */
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
const between = (one, other, part) => rgb(one).map((value, at) => value + part * (rgb(other)[at] - value));
const mix = (one, other, part) => `#${between(one, other, part).map(hex).join("")}`;
const isPale = color => rgb(color).reduce((sum, value) => sum + value, 0) > 560;
const pixel = ([red, green, blue]) => (blue << 16) | (green << 8) | red;
const opacity = share => (Math.round(255 * share) << 24) >>> 0;

const TOKENS = ["ground", "ink", "line", "band", "race", "focus"];

/** The looks of this moment: tokens of the CSS, and one swatch for each style, each batch and "no batch". */
function readTheme(host, head) {
  const dark = isDark(host);
  host.toggleAttribute("data-lv-dark", dark);
  const css = getComputedStyle(host), forced = matchMedia("(forced-colors: active)").matches;
  const brush = document.createElement("canvas").getContext("2d");
  const token = name => {
    brush.fillStyle = css.getPropertyValue(`--lv-${name}`).trim();
    return brush.fillStyle; // as #rrggbb
  };
  const dimmed = look => { // no white slabs in the dark
    if (!isPale(look.pattern ? look.back : look.color)) return null;
    const [ground, ink] = [token("ground"), token("ink")];
    return look.pattern ? { ink, back: mix(ground, look.color, 0.14) } : { ink, color: mix(ground, ink, 0.2) };
  };
  const swatch = look => {
    const chosen = { ...look, ...(dark ? look.dark ?? dimmed(look) : null) };
    const ground = chosen.pattern ? chosen.back : chosen.color;
    const flat = between(chosen.color, ground, 0.5).map(Math.round); // where a bar is too narrow for a pattern
    return { ...chosen, ground, flat };
  };
  return {
    dark, forced, ...Object.fromEntries(TOKENS.map(name => [name, token(name)])), font: css.fontFamily || "sans-serif",
    swatches: [...head.styles, ...head.batches, head.no_batch].map(swatch), patterns: new Map(),
  };
}

/** The swatch of each bar: of its batch where the picture is coloured by batch, else of its kind. */
function swatchesOf(head, columns, byBatch) {
  const found = new Uint8Array(head.rows), styles = head.styles.length, batches = head.batches.length;
  for (let bar = 0; bar < head.rows; bar++) {
    const style = columns.style[bar], batch = columns.batch[bar];
    found[bar] = !byBatch || !head.styles[style].by_batch ? style : batch >= 0 ? styles + (batch % batches)
      : styles + batches;
  }
  return found;
}

function patternOf(theme, swatch, context, dpr) {
  if (!theme.patterns.has(swatch)) {
    const cell = Math.round(7 * dpr), tile = Object.assign(document.createElement("canvas"),
      { width: cell, height: cell });
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
    else for (const shift of [-1, 0, 1]) {
      stroke([shift - 0.5, 1.5], [shift + 1.5, -0.5]);
      if (swatch.pattern === "x") stroke([shift - 0.5, -0.5], [shift + 1.5, 1.5]);
    }
    theme.patterns.set(swatch, context.createPattern(tile, "repeat"));
  }
  return theme.patterns.get(swatch);
}

// ---------------------------------------------------------------------------------------------------------- layout

const TRACK = 24, FOLDED = 12, HEADER = 24, HERO_BAR = 30, HERO = 54, CURVE = 44, LANE_GAP = 3, GROUP_GAP = 8,
  MANY_GROUPS = 20;
// further lines of words under its bar
const heroExtra = width => (!width ? 0 : width < NARROW ? 34 : width < 900 ? 17 : 0);
const NARROW = 560; // px; below it lanes have their short names

/** The rows of the picture from top to bottom: headers of parts and groups, tracks, curves. y and height in CSS px. */
function layout(view) {
  const rows = [], { model, folds } = view;
  let y = 2;
  const add = (type, height, more) => { rows.push({ type, y, height, ...more }); y += height; };
  const several = model.parts.filter(part => !part.ghost).length > 1;
  const place = (part, index) => {
    if (part.ghost || several || part.hero) {
      const hero = part.hero && model.tracks.find(track => track.part === index && track.lane === part.hero.lane);
      add(part.ghost ? "ghost" : "part", hero ? HERO + view.heroExtra : HEADER,
        { part: index, hero, ghost: part.ghost, folded: folds.has(`p${index}`) });
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
        const stand = folded && model.tracks.find(track => track.part === index && track.lane === group.lane);
        add("group", folded && part.groups.length > MANY_GROUPS ? FOLDED : HEADER,
          { part: index, group: lane.group, folded, stand });
      }
      if (group && folds.has(`g${index}.${lane.group}`)) return;
      if (before && before !== lane.kind) y += GROUP_GAP;
      before = lane.kind;
      const folded = folds.has(`l${index}.${number}`),
        tracks = model.tracks.filter(track => track.part === index && track.lane === number);
      tracks.forEach((track, level) => add("track", folded ? Math.max(3, FOLDED / tracks.length) : TRACK,
        { part: index, lane: number, track, level, folded, ghost: part.ghost }));
      y += LANE_GAP;
    });
    (part.strips ?? []).forEach((_, strip) => {
      y += GROUP_GAP;
      add("curve", CURVE, { part: index, strip });
    });
  };
  model.parts.forEach((part, index) => { if (!part.ghost) place(part, index); });
  return { rows, height: Math.max(y + 2, 40) };
}

/** Where the bars of a row are drawn, inside of the row: [y, height] in CSS px. */
function barBox(row) {
  if (row.type === "part" || row.type === "ghost") return [row.y + 3, HERO_BAR - 6];
  if (row.type === "group") return row.height > FOLDED ? [row.y + 6, row.height - 12] : [row.y, row.height - 1];
  return row.folded ? [row.y, row.height - 1] : [row.y + 2, row.height - 4];
}
const trackIn = row => row.track ?? row.hero ?? row.stand ?? null;

// ------------------------------------------------------------------------------------------------------------ draw

const EXACT = 2; // device px: narrower bars are drawn as shares of their pixel columns
const FAINTEST = 0.3; // a column with anything in it is seen

/** What a frame needs to know; all lengths in device px, `top` is the scroll position. */
function frameOf(view) {
  const { dpr, width, height } = view.surface, [from, to] = view.window;
  const k = (width * dpr) / (to - from);
  return { view, model: view.model, theme: view.theme, swatches: view.swatches, dpr, width: Math.round(width * dpr),
    // whole px: no shimmer when panned
    height: Math.round(height * dpr), top: view.scrollTop, k, from: Math.round(from * k) / k,
    colors: new Map(), told: [], image: null, imageUsed: false, rects: 0, buckets: 0, labels: 0 };
}

let shared = { width: 0, shares: null, used: new Uint8Array(0) }; // always cleared by who has read it

function scratch(width, kinds) {
  if (shared.width !== width || shared.used.length !== kinds) {
    shared = { width, shares: new Float32Array(kinds * width), used: new Uint8Array(kinds) };
  }
  return shared;
}

/** Spread the narrow bars of a track over pixel columns: `shares[swatch * width + column]`; the others go to `wide`. */
function bucket(frame, track, wide) {
  const { start, end } = frame.model.columns, { k, from, width, swatches: swatch } = frame;
  const { shares, used } = scratch(width, frame.theme.swatches.length);
  const until = from + width / k, { stop } = track;
  let hair = -1;
  for (let bar = frame.model.firstAfter(track, from); bar < stop && start[bar] < until; bar++) {
    const x0 = (start[bar] - from) * k, x1 = (end[bar] - from) * k;
    if (x1 - x0 >= EXACT) { wide.push(bar); continue; }
    if (x1 < 0 || x0 >= width) continue;
    if (x1 === x0) { // no time, no share: a hair, one in a column
      if ((x0 | 0) !== hair) wide.push(bar);
      hair = x0 | 0;
      continue;
    }
    const low = x0 < 0 ? 0 : x0, high = x1 > width ? width : x1;
    const base = swatch[bar] * width, first = low | 0, last = high | 0;
    used[swatch[bar]] = 1;
    if (first === last) { shares[base + first] += high - low; continue; }
    shares[base + first] += first + 1 - low;
    for (let column = first + 1; column < last; column++) shares[base + column] += 1;
    if (last < width) shares[base + last] += high - last;
  }
  return { shares, used };
}

/** Write the shares of a track into the image: columns filled from below, area = time. Clears the shares. */
function paintBuckets(frame, { shares, used }, y, height, alpha) {
  const { width, theme, image, height: rows } = frame;
  const kinds = [...used.keys()].filter(swatch => used[swatch]);
  if (!kinds.length) return;
  const colors = kinds.map(swatch => pixel(theme.swatches[swatch].flat));
  const solid = opacity(alpha), bottom = y + height;
  for (let column = 0; column < width; column++) {
    let filled = 0, drawn = 0;
    for (let at = 0; at < kinds.length; at++) {
      const value = shares[kinds[at] * width + column];
      if (!value) continue;
      shares[kinds[at] * width + column] = 0;
      filled = Math.min(height, filled + value * height);
      const full = Math.floor(filled);
      for (; drawn < full; drawn++) put(bottom - 1 - drawn, column, colors[at] | solid);
      if (filled > full && full < height) {
        put(bottom - 1 - full, column, colors[at] | opacity(alpha * Math.max(FAINTEST, filled - full)));
      }
      frame.buckets++;
    }
  }
  used.fill(0);
  frame.imageUsed = true;
  function put(row, column, value) { if (row >= 0 && row < rows) image[row * width + column] = value; }
}

function drawTrack(frame, row, alpha = 1) {
  const [top, high] = barBox(row), { dpr } = frame, { start, end } = frame.model.columns, wide = [];
  const y = Math.round((top - frame.top) * dpr), height = Math.max(1, Math.round(high * dpr));
  paintBuckets(frame, bucket(frame, trackIn(row), wide), y, height, alpha);
  for (const bar of wide) {
    const swatch = frame.swatches[bar], key = alpha < 1 ? swatch + 1000 : swatch;
    if (!frame.colors.has(key)) frame.colors.set(key, []);
    const tall = start[bar] < end[bar] ? height : Math.ceil(0.3 * height); // a hair is no share: it stays low
    frame.colors.get(key).push(bar, y + height - tall, tall, row);
  }
}

/** The left and right end of a bar in whole device px, cut to the picture. */
function ends(frame, bar) {
  const { start, end } = frame.model.columns;
  const x0 = Math.max(-1, Math.round((start[bar] - frame.from) * frame.k)),
    x1 = Math.min(frame.width + 1, Math.round((end[bar] - frame.from) * frame.k));
  return [x0, Math.max(x1, x0 + 1)];
}

function paintRects(context, frame) {
  const { theme, dpr, view } = frame, { count } = frame.model.columns;
  for (const [key, list] of frame.colors) {
    const swatch = theme.swatches[key % 1000], parting = swatch.state ? 0 : Math.round(dpr); // a gap would be idle
    context.globalAlpha = key >= 1000 ? 0.45 : 1;
    context.fillStyle = theme.forced ? theme.ground : swatch.pattern ? patternOf(theme, swatch, context, dpr)
      : swatch.color;
    for (let at = 0; at < list.length; at += 4) {
      const [x0, x1] = ends(frame, list[at]), width = x1 - x0, gap = width >= 4 * dpr ? parting : 0;
      if (count[list[at]] > 1) context.globalAlpha = 0.55;
      context.fillRect(x0, list[at + 1], width - gap, list[at + 2]);
      if (count[list[at]] > 1) context.globalAlpha = key >= 1000 ? 0.45 : 1;
      if (theme.forced || swatch.outline) outline(context, x0, list[at + 1], width - gap, list[at + 2],
        theme.forced ? theme.ink : swatch.outline, dpr);
    }
    frame.rects += list.length / 4;
  }
  context.globalAlpha = 1;
  for (const [key, list] of frame.colors) {
    for (let at = 0; at < list.length; at += 4) if (!list[at + 3].folded) label(context, frame, list[at], list[at + 1],
      list[at + 2], theme.swatches[key % 1000], key >= 1000);
  }
  view.drawn.labels = frame.labels;
}

function outline(context, x, y, width, height, color, line) {
  context.strokeStyle = color;
  context.lineWidth = line;
  context.strokeRect(x + line / 2, y + line / 2, Math.max(0, width - line), Math.max(0, height - line));
}

/** What may stand on a bar, the longest first. */
function labelsOf(view, bar) {
  const { model } = view, { batch, cause, nbytes, count } = model.columns, style = model.style(bar),
    name = model.name(bar);
  if (count[bar] > 1) return [plural(count[bar], "span"), number(count[bar])];
  if (style.state) return [style.name, style.name.replace(/^copy /, "")];
  const of = batch[bar] >= 0 ? `${batch[bar]}` : "", short = shortName(name),
    bare = short.replace(/^(cuda|hip)(?=[A-Z])/, "");
  switch (style.label) {
    case "none": return [];
    case "cause": return causeWords(model.head.causes[cause[bar]] || name || "blocked");
    case "bytes": return [...(view.byBatch && of ? [`${of}: ${nbytes[bar] > 0 ? size(nbytes[bar]) : short}`, of]
      : nbytes[bar] > 0 ? [size(nbytes[bar])] : [name, short])];
    case "batch": return of ? [name, `batch ${of}`, of] : [name, short];
    default: return view.byBatch && style.by_batch && of ? [`${of}: ${name}`, `${of}: ${short}`, `${of}: ${bare}`, of]
      : [name, short, bare];
  }
}

const causeWords = words => [words, { "waiting for data": "data", synchronize: "sync" }[words]
  ?? words.split(/[ -]/)[0]];

/** Write on a bar what fits into its visible part; nothing where nothing fits. */
function label(context, frame, bar, y, height, swatch, ghost) {
  const { dpr, view, theme } = frame, [x0, x1] = ends(frame, bar);
  const low = Math.max(0, x0), high = Math.min(frame.width, x1), room = (high - low) / dpr - 6;
  if (room < 7 || height < 14 * dpr) return;
  const texts = labelsOf(view, bar), measure = text => view.textWidth(text);
  let text = texts.find(each => each.length * 3 < room && measure(each) <= room);
  if (text === undefined && texts.length && room > 48 && !/^\d+$/.test(texts.at(-1))
    && !frame.model.style(bar).state) text = cropped(texts.at(-1), room, measure);
  if (!text) return;
  context.font = `${12 * dpr}px ${theme.font}`;
  const x = (low + high) / 2 - (measure(text) * dpr) / 2, base = Math.round(y + height / 2 + 4.2 * dpr);
  if (swatch.pattern || theme.forced) {
    context.fillStyle = swatch.back && !theme.forced ? swatch.back : theme.ground;
    context.fillRect(x - 2 * dpr, y + height / 2 - 7 * dpr, measure(text) * dpr + 4 * dpr, 14 * dpr);
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
  const { dpr, theme, k, from } = frame, part = frame.model.parts[row.part], strip = part.strips[row.strip];
  const y = (row.y + 2 - frame.top) * dpr, height = (row.height - 4) * dpr, x = time => (time - from) * k;
  context.fillStyle = theme.band;
  context.fillRect(0, y, frame.width, height);
  context.beginPath();
  strip.values.forEach((value, at) => {
    const level = y + height * (1 - value / (strip.max || 1)), left = strip.begin + at * strip.cell;
    if (!at) context.moveTo(x(left), y + height);
    context.lineTo(x(left), level);
    context.lineTo(x(left + strip.cell), level);
  });
  context.lineTo(x(strip.begin + strip.values.length * strip.cell), y + height);
  context.fillStyle = theme.focus;
  context.globalAlpha = 0.25;
  context.fill();
  context.globalAlpha = 1;
  context.strokeStyle = theme.focus;
  context.lineWidth = 1.5 * dpr;
  context.stroke();
}

const visibleRows = frame => frame.view.rows.filter(row => row.y + row.height >= frame.top
  && row.y <= frame.top + frame.height / frame.dpr);

/** The data canvas: bands, grid, bars, curves, arrows of events. */
function drawData(view) {
  const frame = frameOf(view), context = view.context, { theme, dpr } = frame;
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
  if (view.former) drawFormer(context, frame);
  view.drawn = { rects: frame.rects, buckets: frame.buckets, labels: frame.labels,
    arrows: drawEvents(context, frame, rows) };
  view.frames++;
}

function drawGround(context, frame, rows) {
  const { dpr, theme } = frame, { model, window: [from, to] } = frame.view;
  for (const row of rows) {
    const y = Math.round((row.y - frame.top) * dpr), height = Math.round(row.height * dpr);
    if (row.type === "track" && frame.model.parts[row.part].lanes[row.lane].kind === "host") {
      context.fillStyle = theme.band;
      context.fillRect(0, y, frame.width, height);
    }
  }
  context.fillStyle = theme.line;
  for (const time of frame.view.ticks.times) {
    context.fillRect(Math.round((time - frame.from) * frame.k), 0, Math.max(1, Math.round(dpr / 2)), frame.height);
  }
  for (const row of rows) { // after its end a part has no time
    const end = model.ends[row.part];
    if (row.type === "track" && end < to && model.parts.length > 1) {
      const x = Math.round((end - frame.from) * frame.k);
      context.globalAlpha = 0.6;
      context.fillStyle = theme.ground;
      context.fillRect(x, Math.round((row.y - frame.top) * dpr), frame.width - x, Math.round(row.height * dpr));
      context.globalAlpha = 1;
    }
  }
}

/** The outlines of what stood here before a setting was changed; narrow bars that follow each other have one. */
function drawFormer(context, frame) {
  const { dpr, view, theme, k, from } = frame, { model } = view.former;
  context.globalAlpha = 0.4;
  for (const row of view.rows) {
    if (row.type !== "track" || row.folded) continue;
    const name = frame.model.lane(row.track).name;
    const track = model.tracks.find(each => each.index === row.level && each.part === row.part
      && model.lane(each).name === name);
    if (!track) continue;
    const y = Math.round((row.y - frame.top + 1) * dpr), { start, end, style } = model.columns, runs = [];
    for (const bar of model.within(track, from, from + frame.width / k)) {
      const [x0, x1] = [start[bar], end[bar]].map(time => Math.round((time - from) * k)), run = runs.at(-1);
      if (model.head.styles[style[bar]].key === "state:idle") continue;
      if (run && x0 - run[1] < 4 * dpr && x1 - x0 < 12 * dpr && run[2] < 12 * dpr) run[1] = x1;
      else runs.push([x0, x1, x1 - x0]);
    }
    for (const [x0, x1] of runs) {
      if (x1 - x0 > 2 * dpr) outline(context, x0, y, x1 - x0, Math.round((row.height - 2) * dpr), theme.ink, dpr);
    }
  }
  context.globalAlpha = 1;
}

// --------------------------------------------------------------------------------------------------------- overlay

const BOLD = 1.17; // bold letters are as much wider
const MOST_ARROWS = 240; // of those that show by themselves; more hide the picture

/** The middle of a bar's row in device px, also where its lane is folded; null where its part is. */
function middle(frame, bar) {
  const row = frame.view.rowOf(bar);
  if (!row) return null;
  const [y, height] = barBox(row);
  return [(y + height / 2 - frame.top) * frame.dpr, (height / 2) * frame.dpr];
}

/** An arrow from the end of one bar (its start for a launch) to the start of another. */
function drawArrow(context, frame, arrow, strong) {
  const { start, end, tail, head, arrow: kind } = frame.model.columns;
  const [one, other] = [middle(frame, tail[arrow]), middle(frame, head[arrow])];
  if (!one || !other || one[0] === other[0]) return false;
  const launch = kind[arrow] === 0, x = time => (time - frame.from) * frame.k, down = Math.sign(other[0] - one[0]);
  const from = [x(launch ? start[tail[arrow]] : end[tail[arrow]]), one[0] + down * one[1] * 0.6],
    to = [x(start[head[arrow]]), other[0] - down * other[1]];
  curve(context, frame, from, to, { width: strong ? 2 : 1.3, dash: launch ? [2, 3] : [], color: frame.theme.ink });
  return true;
}

function curve(context, { dpr, theme }, from, to, { width, dash, color }) {
  const bend = Math.max(8 * dpr, Math.min(40 * dpr, Math.abs(to[1] - from[1]) / 2)),
    down = Math.sign(to[1] - from[1]) || 1;
  const path = new Path2D();
  path.moveTo(...from);
  path.bezierCurveTo(from[0], from[1] + down * bend, to[0], to[1] - down * bend, to[0], to[1] - down * 4 * dpr);
  context.lineCap = "round";
  for (const [line, ink] of [[width + 2.4, theme.ground], [width, color]]) { // a rim keeps it apart from the bars
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

/** The event edges in sight; none where there are too many to follow, and then `view.crowded` says so. */
function drawEvents(context, frame, rows) {
  const { view, model } = frame, { start, end, tail, head, arrow } = model.columns, [from, to] = view.window;
  const shown = new Set(rows.filter(row => row.type === "track" && !row.ghost).map(row => row.track));
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

/** The overlay canvas: what belongs to pointer, selection, search, measure, hazards and the time cursor. */
function drawOverlay(view) {
  const frame = frameOf(view), context = view.overContext;
  context.setTransform(1, 0, 0, 1, 0, 0);
  context.clearRect(0, 0, frame.width, frame.height);
  const bar = view.hover?.bar >= 0 ? view.hover.bar : view.selection;
  if (view.time >= 0) drawPlayhead(context, frame);
  else if (bar >= 0) drawJourney(context, frame, bar, view.selection === bar ? 0.72 : 0.5);
  for (const found of view.found.list.slice(0, 4000)) frameBar(context, frame, found, frame.theme.focus, 1.5);
  for (const index of view.shownParts()) for (const mark of view.model.parts[index].marks ?? []) drawRace(context,
    frame, index, mark);
  for (const found of view.evidence) frameBar(context, frame, found, frame.theme.focus, 2.5);
  if (view.selection >= 0) frameBar(context, frame, view.selection, frame.theme.ink, 2.5);
  if (view.hover?.bar >= 0) frameBar(context, frame, view.hover.bar, frame.theme.ink, 1.5);
  if (view.measure) drawMeasure(context, frame);
  if (view.former) drawDifference(context, frame);
  drawGhostGain(context, frame);
}

function frameBar(context, frame, bar, color, line) {
  const row = frame.view.rowOf(bar), [x0, x1] = ends(frame, bar);
  if (!row || x1 < 0 || x0 > frame.width) return;
  const [y, height] = barBox(row), { dpr } = frame;
  outline(context, x0 - line * dpr / 2, (y - frame.top) * dpr - line * dpr / 2, x1 - x0 + line * dpr,
    (height + line) * dpr, color, line * dpr);
}

/** Dim the rest; then the batch along its whole way, or the bar alone, what it waited for and what waits for it. */
function drawJourney(context, frame, bar, dim) {
  const { model, view, theme } = frame, { batch, arrow } = model.columns, part = model.trackOf(bar).part;
  const lit = batch[bar] >= 0 ? model.way(part, batch[bar], true) : [bar];
  context.globalAlpha = dim;
  context.fillStyle = theme.ground;
  context.fillRect(0, 0, frame.width, frame.height);
  context.globalAlpha = 1;
  const again = { ...frame, colors: new Map() };
  for (const each of lit) {
    const row = view.rowOf(each);
    if (!row || row.y + row.height < frame.top || row.y > frame.top + frame.height / frame.dpr) continue;
    const [y, height] = barBox(row), key = view.swatches[each];
    if (!again.colors.has(key)) again.colors.set(key, []);
    again.colors.get(key).push(each, Math.round((y - frame.top) * frame.dpr), Math.round(height * frame.dpr), row);
  }
  const { labels } = view.drawn;
  paintRects(context, again);
  view.drawn.labels = labels;
  for (const at of [...model.into(bar), ...model.outOf(bar)]) drawArrow(context, frame, at, arrow[at] === 1);
}

/** A race: its two spans framed, and a bold dashed arrow where an order is missing. */
function drawRace(context, frame, part, mark) {
  const { dpr, theme, model, view } = frame, { start, end } = model.columns, [one, other] = mark.bars ?? [-1, -1];
  for (const bar of [one, other]) if (bar >= 0) frameBar(context, frame, bar, theme.race, 2.5);
  if (one < 0 || other < 0) return drawCross(context, frame, part, mark);
  const from = middle(frame, one), to = middle(frame, other), x = time => (time - frame.from) * frame.k;
  if (!from || !to) return;
  // bars may be close
  const down = Math.sign(to[0] - from[0]) || 1,
    ends = [[x(end[one]), from[0]], [x(start[other]), to[0] - 0.4 * down * to[1]]];
  curve(context, frame, ...ends, { width: 2.6, dash: [6, 5], color: theme.race });
  const text = mark.missing ? "missing wait" : mark.kind;
  const room = (view.textWidth(text) * BOLD + 8) * dpr, [left, right] = ends.map(([x]) => x).sort((a, b) => a - b);
  const y = (ends[0][1] + ends[1][1]) / 2, free = x => x > 4 * dpr && x + room < frame.width
    && !frame.told.some(([other, wide, at]) => x < other + wide && other < x + room && Math.abs(y - at) < 20 * dpr);
  const at = [right + 12 * dpr, left - room - 8 * dpr, right - room / 2].find(free);
  if (at === undefined) return; // its line below has the words
  frame.told.push([at, room, y]);
  tag(context, frame, text, at, y, theme.race);
}

function drawCross(context, frame, part, mark) {
  const row = frame.view.rows.find(each => each.part === part && each.type === "track"
    && frame.model.lane(each.track).of === mark.lane);
  if (!row) return;
  const x = (mark.time - frame.from) * frame.k, y = (row.y + row.height / 2 - frame.top) * frame.dpr,
    reach = 5 * frame.dpr;
  for (const [line, color] of [[5, frame.theme.ground], [2.5, frame.theme.race]]) {
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
  const text = `before: ${duration(Math.abs(before - now))} ${before > now ? "more" : "less"}`;
  tag(context, frame, text, x + 6 * dpr, 14 * dpr, theme.ink);
}

/** Words in a frame, inside of the picture; `y` is their middle. */
function tag(context, frame, text, x, y, color) {
  const { dpr, theme, width } = frame, room = frame.view.textWidth(text) * BOLD * dpr + 8 * dpr;
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
    const { gain, until } = row.ghost, [from, to] = [until - gain, until].map(time => (time - frame.from) * frame.k);
    const [top, height] = barBox(row), y = (top + height / 2 - frame.top) * dpr, text = `${duration(gain)} gained`;
    context.strokeStyle = context.fillStyle = theme.ink;
    context.lineWidth = 1.5 * dpr;
    context.beginPath();
    context.moveTo(from, y);
    context.lineTo(to, y);
    for (const x of [from, to]) { context.moveTo(x, y - 5 * dpr); context.lineTo(x, y + 5 * dpr); }
    context.stroke();
    context.font = `${12 * dpr}px ${theme.font}`;
    const width = frame.view.textWidth(text) * dpr, at = (Math.max(0, from) + Math.min(to, frame.width) - width) / 2;
    if (at - 4 * dpr < from) continue; // its words are below
    context.fillStyle = theme.ground;
    context.fillRect(at - 4 * dpr, y - 8 * dpr, width + 8 * dpr, 16 * dpr);
    context.fillStyle = theme.ink;
    context.fillText(text, at, y + 4 * dpr);
  }
}

// ----------------------------------------------------------------------------------------------------------- story

const DEVICE = new Set(["compute", "communication", "copy_h2d", "copy_d2h", "copy_d2d", "memset"]);
const LOADING = new Set(["fetch", "pin"]);
const NOUNS = { compute: "kernel", communication: "collective", copy_h2d: "copy", copy_d2h: "copy back",
  copy_d2d: "copy on the GPU", memset: "memset",
  fetch: "fetch", pin: "pinning" };

/** A bar in a few words: "copy of batch 13", "kernel conv2d of batch 2", "cudaLaunchKernel". */
function thing(model, bar) {
  const key = model.style(bar).key, batch = model.columns.batch[bar], name = shortName(model.name(bar));
  const noun = NOUNS[key], named = noun === "kernel" || noun === "collective" ? `${noun} ${name}` : noun ?? name;
  return batch >= 0 && noun ? `${named} of batch ${batch}` : named;
}

/** How long a bar waited for another, ns: from when all else was ready until that one ended. */
function waited(model, bar, other) {
  const { start, end, arrow, tail } = model.columns, track = model.trackOf(bar);
  const ready = [bar > track.first ? end[bar - 1] : start[other],
    ...Array.from(model.into(bar)).filter(at => arrow[at] === 0).map(at => start[tail[at]])];
  return Math.max(0, Math.min(start[bar], end[other]) - Math.max(...ready));
}

/** Why a bar is where it is, in sentences: what it waited for, what waits for it, what launched it. */
function story(model, bar) {
  const { start, end, arrow, tail, head, cause, batch } = model.columns, said = [], waits = at => arrow[at] === 1;
  for (const at of Array.from(model.into(bar)).filter(waits)) {
    const time = waited(model, bar, tail[at]);
    if (time > 0) said.push(`waits ${duration(time)} for the ${thing(model, tail[at])}`);
  }
  const after = Array.from(model.outOf(bar)), edge = Array.from(model.into(bar)).find(waits);
  const gap = (from, to) => duration(Math.max(0, to - from));
  if (!said.length && edge !== undefined) {
    said.push(`ordered after the ${thing(model, tail[edge])}, which ended ${gap(end[tail[edge]], start[bar])} before`);
  }
  const blocked = cause[bar] > 0 ? blocker(model, bar) : -1;
  if (cause[bar] > 0) {
    const where = blocked >= 0 && model.lane(model.trackOf(blocked)).name;
    const until = blocked >= 0 ? `, until the ${thing(model, blocked)} ends (${where})` : "";
    said.push(`host blocked ${duration(end[bar] - start[bar])}: ${model.head.causes[cause[bar]]}${until}`);
  }
  for (const at of after.filter(waits).slice(0, 3)) {
    const time = waited(model, head[at], bar);
    said.push(`the ${thing(model, head[at])} waits for it${time > 0 ? ` (${duration(time)})` : ""}`);
  }
  const call = Array.from(model.into(bar)).find(at => arrow[at] === 0), work = after.find(at => arrow[at] === 0);
  if (call !== undefined) {
    said.push(`launched by ${model.name(tail[call])}, ${gap(start[tail[call]], start[bar])} before it starts`);
  }
  if (work !== undefined) {
    const later = gap(start[bar], start[head[work]]);
    said.push(`launches the ${thing(model, head[work])}, which starts ${later} later`);
  }
  if (batch[bar] >= 0) said.push(journey(model, model.trackOf(bar).part, batch[bar]));
  return said.filter(Boolean);
}

/** What a blocked host waited for: the last thing to end in its wait, of the next batch if it waits for data. */
function blocker(model, bar) {
  const { start, end, cause } = model.columns, track = model.trackOf(bar),
    data = model.head.causes[cause[bar]] === "waiting for data";
  let best = -1;
  for (const other of model.tracks) {
    const lane = model.lane(other);
    if (other.part !== track.part || other.mirror || lane.kind === "strip"
      || (data ? !["worker", "pin"].includes(lane.role) : lane.kind === "host")) continue;
    for (const each of model.within(other, start[bar], end[bar])) {
      const { key } = model.style(each), counts = data ? LOADING.has(key) : DEVICE.has(key);
      if (counts && end[each] <= end[bar] && (best < 0 || end[each] > end[best])) best = each;
    }
  }
  return best;
}

/** The stations of a batch: the bars in which it is fetched, pinned, copied and computed on, in order of time. */
function stations(model, part, batch) {
  return model.way(part, batch).filter(bar => LOADING.has(model.style(bar).key) || DEVICE.has(model.style(bar).key));
}

function journey(model, part, batch) {
  const { start, end, hidden } = model.columns, bars = stations(model, part, batch);
  if (bars.length < 2) return "";
  const sums = {};
  for (const bar of bars) {
    const key = model.style(bar).key, sum = (sums[key] ??= { time: 0, hidden: 0 }), time = end[bar] - start[bar];
    sum.time += time;
    if (hidden[bar] <= 200) sum.hidden += (time * hidden[bar]) / 200;
  }
  const verbs = { fetch: "fetched", pin: "pinned", copy_h2d: "copied", compute: "computed",
    communication: "communicated", copy_d2h: "copied back" };
  const told = Object.entries(verbs).filter(([key]) => sums[key]).map(([key, verb]) => {
    const { time, hidden: under } = sums[key];
    return `${verb} ${duration(time)}${key === "copy_h2d" && time ? ` (${share(under / time)} hidden)` : ""}`;
  });
  const whole = Math.max(...bars.map(bar => end[bar])) - start[bars[0]];
  return `batch ${batch}: ${told.join(", ")}; ${duration(whole)} from first to last`;
}

/** All that is known of a bar, a line each; the first is its name. */
function facts(model, bar) {
  const { start, end, batch, nbytes, pinned, hidden, source, count } = model.columns,
    lane = model.lane(model.trackOf(bar)), time = end[bar] - start[bar];
  if (count[bar] > 1) return [plural(count[bar], "span"), `${model.style(bar).name}, ${duration(time)} in all`,
    lane.title || lane.name, "kept here as one bar; to_html() has each of them"];
  const lines = [model.name(bar) || model.style(bar).name,
    `${lane.title || lane.name}${batch[bar] >= 0 ? `, batch ${batch[bar]}` : ""}`,
    `${duration(time)}, from ${duration(start[bar])}`];
  if (nbytes[bar] >= 0) lines.push(size(nbytes[bar]) + (time && nbytes[bar] ? `, ${fourDigits(nbytes[bar] / time)} GB/s`
    : ""));
  if (pinned[bar]) lines.push(pinned[bar] === 2 ? "pinned host memory" : "pageable host memory");
  if (hidden[bar] <= 200) lines.push(`${share(hidden[bar] / 200)} of it hidden under kernels`);
  if (source[bar]) lines.push(model.head.sources[source[bar]]);
  return lines;
}

// ---------------------------------------------------------------------------------------------------------- chrome

function el(tag, className, text, attributes = {}) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}
const button = (text, title, act, className = "") => {
  const node = el("button", className, text, { type: "button", title, "aria-label": title });
  node.addEventListener("click", act);
  return node;
};

const KEYS = [["W S  + −", "zoom"], ["A D", "pan"], ["← →", "walk the spans of a lane"],
  ["↑ ↓", "follow an arrow, or go to the next lane"],
  ["Enter", "zoom to the selection"], ["0", "all"], ["[ ]", "batch before, batch after"], ["/", "search"],
    ["space", "play"], [", .", "one event back, on"],
  ["Esc", "leave"], ["ctrl + wheel, two fingers", "zoom"], ["drag", "pan"], ["drag on the axis", "measure"],
    ["double click", "fit a span"]];

const PIECES = `card:div title:h3 subtitle:p wheres:div tools:div help:dl stage:div mini:canvas axis:div corner:div
  ruler:div scroll:div inner:div stick:div data:canvas over:canvas heads:div hint:div tip:div detail:div legend:ul
  findings:ol table:details notes:div live:div`.split(/\s+/).map(pair => pair.split(":"));

/** Build what stands around the canvases, once; the parts that change are filled by the functions below. */
function build(view) {
  const ui = (view.ui = {});
  for (const [name, tag] of PIECES) ui[name] = el(tag, name);
  const set = (name, attributes) => Object.entries(attributes).forEach(pair => ui[name].setAttribute(...pair));
  set("tools", { role: "toolbar", "aria-label": "timeline" });
  set("stage", { tabindex: "0", role: "application", "aria-roledescription": "timeline" });
  set("live", { role: "status", "aria-live": "polite" });
  set("ruler", { title: "drag to measure" });
  for (const name of ["mini", "tip"]) set(name, { "aria-hidden": "true" });
  const below = el("slot", "", undefined, { name: "below" }), still = el("slot", "paper", undefined, { name: "still" });
  ui.axis.append(ui.corner, ui.ruler);
  ui.stick.append(ui.data, ui.over);
  ui.inner.append(ui.stick, ui.heads);
  ui.scroll.append(ui.inner);
  ui.stage.append(ui.mini, ui.axis, ui.scroll, ui.hint, ui.tip);
  ui.card.append(ui.title, ui.subtitle, ui.wheres, ui.tools, ui.help, ui.stage, still, ui.detail, ui.legend,
    ui.findings, ui.table, ui.notes, ui.live, below);
  ui.table.append(el("summary", "", "as a table"));
  ui.table.addEventListener("toggle", () => ui.table.open && fillTable(view));
  ui.tools.hidden = view.options.controls === false;
  ui.help.hidden = ui.tip.hidden = ui.hint.hidden = true;
  for (const [keys, what] of KEYS) ui.help.append(el("dt", "", keys), el("dd", "", what));
  buildTools(view);
  return ui;
}

function buildTools(view) {
  const { ui } = view;
  ui.play = button("▶", "play (space)", () => (view.playing ? view.pause() : view.play()), "icon");
  ui.clock = el("span", "clock");
  ui.search = el("input", "search", undefined,
    { type: "search", placeholder: "search  /", "aria-label": "search names or a batch" });
  ui.count = el("span", "count");
  ui.byBatch = button("", "", () => view.setColor(!view.byBatch));
  ui.search.addEventListener("input", () => view.search(ui.search.value));
  ui.search.addEventListener("keydown", event => {
    event.stopPropagation();
    if (event.key === "Enter") { view.nextFound(event.shiftKey ? -1 : 1); event.preventDefault(); }
    if (event.key === "Escape") { ui.search.value = ""; view.search(""); ui.stage.focus(); }
  });
  const group = (...nodes) => { const node = el("span", "group"); node.append(...nodes); return node; };
  ui.tools.append(
    group(button("show all", "show all (0)", () => view.goAll()),
      button("+", "zoom in (W)", () => view.zoom(0.5), "icon"),
      button("−", "zoom out (S)", () => view.zoom(2), "icon")),
    ui.play, group(ui.search, ui.count), ui.byBatch,
      button("?", "keys", () => { ui.help.hidden = !ui.help.hidden; }, "icon"), ui.clock);
}

function fillWords(view) {
  const { ui, head, options } = view;
  ui.title.textContent = view.title;
  if (view.veiled && head.withheld) ui.title.append(button("what does it show?", "show what the picture says in words",
    () => view.unveil()));
  ui.title.hidden = !ui.title.firstChild;
  ui.subtitle.textContent = [head.subtitle, options.difference].filter(Boolean).join(" · ");
  ui.subtitle.hidden = !ui.subtitle.textContent;
  ui.notes.replaceChildren(...(head.notes ?? []).map(note => el("p", "", note)));
  ui.byBatch.textContent = view.byBatch ? "colour: batches" : "colour: kinds";
  ui.byBatch.title = view.byBatch ? "colour by kind of span" : "colour by batch";
  ui.byBatch.hidden = !view.model.columns.batch.some(batch => batch >= 0);
  const told = head.parts.filter(part => part.where.length && !part.hero && !view.veiled);
  ui.wheres.replaceChildren(...told.map(part => whereBar(view, part)));
  fillFindings(view);
  fillLegend(view);
}

/** One stacked bar: where a step goes. */
function whereBar(view, part) {
  const whole = part.where.reduce((sum, each) => sum + each.ns, 0) || 1, node = el("div", "where"),
    bar = el("div", "whereBar", undefined, { "aria-hidden": "true" });
  const words = el("p", "whereWords", part.where_title ? `${part.where_title}: ` : "");
  let rest = 0;
  part.where.filter(each => each.ns > 0).forEach(each => {
    const piece = el("span", "piece");
    piece.style.width = `${(100 * each.ns) / whole}%`;
    piece.append(swatchNode(view, each.key));
    piece.title = `${each.name}: ${duration(each.ns)}, ${share(each.ns / whole)}`;
    bar.append(piece);
    if (each.ns < whole / 100) { rest += each.ns; return; }
    const entry = el("span", "entry");
    entry.append(swatchNode(view, each.key), `${each.name} ${share(each.ns / whole)}`);
    words.append(entry, " ");
  });
  if (rest) words.append(el("span", "entry", `the rest ${share(rest / whole)}`));
  node.append(bar, words);
  return node;
}

/** A small box that looks like the bars of a style (by its key) or of a swatch (by its number). */
function swatchNode(view, which) {
  const at = typeof which === "number" ? which : view.head.styles.findIndex(style => style.key === which),
    look = view.theme.swatches[at], node = el("i", "swatch");
  if (!look) return node;
  const stripes = angle => `repeating-linear-gradient(${angle}, ${look.color} 0 1.5px, transparent 1.5px 5px)`;
  const patterns = { "/": stripes("135deg"), x: `${stripes("135deg")}, ${stripes("45deg")}`,
    ".": `0 0 / 6px 6px radial-gradient(${look.color} 1.5px, transparent 2px)` };
  node.style.background = look.pattern ? `${patterns[look.pattern]}, ${look.ground}` : look.color;
  return node;
}

function fillLegend(view) {
  const { model, ui } = view, { style, batch } = model.columns, kinds = new Set(), byBatch = new Set();
  const shown = bar => view.byBatch && batch[bar] >= 0 && view.head.styles[style[bar]].by_batch;
  for (const track of model.tracks) {
    for (let bar = track.first; bar < track.stop; bar++) (shown(bar) ? byBatch : kinds).add(style[bar]);
  }
  const entries = [];
  const entry = (name, ...swatches) => { const node = el("li"); node.append(...swatches, name); entries.push(node); };
  const first = view.head.styles.length;
  if (byBatch.size) entry("a batch: one colour along its way",
    ...view.head.batches.map((_, at) => swatchNode(view, first + at)));
  const noBatch = at => view.byBatch && view.head.styles[at].by_batch;
  const known = [...kinds].sort((one, other) => one - other);
  if (known.some(noBatch)) entry("no batch", swatchNode(view, first + view.head.batches.length));
  for (const at of known.filter(each => !noBatch(each))) {
    entry(`${view.head.styles[at].state ? "GPU: " : ""}${view.head.styles[at].name}`, swatchNode(view, at));
  }
  ui.legend.replaceChildren(...entries);
}

/** The findings and hazards: a line each that shows its evidence. */
function fillFindings(view) {
  const lines = [];
  view.head.parts.forEach((part, index) => {
    (part.marks ?? []).forEach(mark => lines.push(findingNode(view, index,
      { ...mark, title: mark.kind, change: mark.report ? "" : mark.missing, windows: [], race: true })));
    (part.findings ?? []).forEach(finding => lines.push(findingNode(view, index, finding)));
  });
  view.ui.findings.replaceChildren(...lines);
  view.ui.findings.hidden = !lines.length;
}

function findingNode(view, part, finding) {
  const node = el("li", finding.race ? "race" : ""), open = el("details"), summary = el("summary");
  const many = view.head.parts.filter(each => !each.ghost).length > 1 ? `${view.head.parts[part].name}: ` : "";
  summary.append(el("b", "", many + finding.title), el("span", "", finding.race ? ` ${finding.text}` : ""));
  const show = button("show", `show the evidence: ${finding.title}`, () => view.showEvidence(part, finding), "show");
  show.style.visibility = (finding.windows?.length || finding.bars?.some(bar => bar >= 0)) ? "" : "hidden";
  open.append(summary);
  if (!finding.race && finding.text) open.append(el("p", "", finding.text));
  if (finding.change) open.append(el("pre", "", finding.change));
  if (finding.report) open.append(el("pre", "report", finding.report));
  node.append(show, open);
  return node;
}

/** Names of lanes, groups and parts beside the canvas; each folds what it names. */
function fillHeads(view) {
  const { ui, model } = view, nodes = [], narrow = view.width < NARROW;
  const put = (row, node, height = row.height) => { node.style.top = `${row.y}px`; node.style.height = `${height}px`;
    nodes.push(node); return node; };
  const fold = (key, folded, text, title, className) => {
    const node = button("", `${folded ? "unfold" : "fold"} ${title}`, () => view.toggle(key), `head ${className}`);
    node.append(el("span", "chevron", folded ? "▸" : "▾", { "aria-hidden": "true" }), el("span", "", text));
    node.setAttribute("aria-expanded", String(!folded));
    return node;
  };
  for (const row of view.rows) {
    const part = model.parts[row.part], { name } = part;
    if (row.type === "part" || row.type === "ghost") {
      put(row, fold(`p${row.part}`, row.folded, name, name, row.type), row.hero ? HERO_BAR : row.height);
      if (row.ghost) nodes.push(verdict(view, row, part.ghost.label));
      else if (row.hero && !view.veiled) nodes.push(heroWords(view, row, part));
      else if (!row.hero && part.finding) nodes.push(verdict(view, row, part.finding));
    } else if (row.type === "group") {
      const { name: text } = part.groups[row.group];
      put(row, fold(`g${row.part}.${row.group}`, row.folded, text, text,
        `group ${row.height > FOLDED ? "" : "small"}`));
    } else if (row.type === "curve") {
      put(row, el("span", "head curve", [part.strips[row.strip].name,
        part.strips[row.strip].text?.replace(/ (?=%)|(?<=[<>]) /g, "\u00a0")].filter(Boolean).join(": ")));
    } else if (row.level === 0) {
      const lane = part.lanes[row.lane], tall = lane.tracks.length;
      put(row, fold(`l${row.part}.${row.lane}`, row.folded, narrow ? lane.short || lane.name : lane.name,
        lane.title || lane.name, `lane ${row.folded ? "small" : ""}`), tall * row.height);
    }
  }
  ui.heads.replaceChildren(...nodes);
  placeHeroes(view);
}

/** Under the bar of a loader: what the GPU does in words, and at its end the time of a step and the speed-up. */
function heroWords(view, row, part) {
  const { hero } = part, node = el("div", "hero");
  const piece = (state, ns) => {
    const each = el("span", "entry");
    each.append(swatchNode(view, `state:${state}`), `${state.replace("copy ", "")} ${duration(ns)}`);
    return each;
  };
  const end = el("b", "", [hero.step != null ? `${duration(hero.step)} a step` : "",
    hero.speedup != null ? times(hero.speedup) : ""].filter(Boolean).join(" · "));
  node.append(el("span", "entry", `GPU busy ${share(hero.busy)}`), piece("copy exposed", hero.exposed),
    piece("copy hidden", hero.hidden), piece("idle", hero.idle), end);
  node.dataset.end = row.part;
  node.style.top = `${row.y + HERO_BAR}px`;
  return node;
}

/** The words under a loader's bar end where the bar ends, if they have room. */
function placeHeroes(view) {
  const [from, to] = view.window, { width } = view.surface;
  for (const node of view.ui.heads.querySelectorAll("[data-end]")) {
    const end = ((view.model.ends[node.dataset.end] - from) / (to - from)) * width, narrow = view.width < NARROW;
    node.style.left = `${narrow ? 15 : view.headWidth}px`;
    node.style.width = `${narrow ? view.width - 20 : Math.min(width, Math.max(end, 680))}px`;
  }
}

function verdict(view, row, text) {
  const node = el("div", "hero", text);
  Object.assign(node.style, { top: `${row.y + (row.hero ? HERO_BAR : 4)}px`, left: `${view.headWidth}px`,
    width: `${view.surface.width}px` });
  return node;
}

function drawAxis(view) {
  const [from, to] = view.window, k = view.surface.width / (to - from);
  view.ticks = ticks(from, to, view.surface.width / 92);
  const { ruler } = view.ui;
  ruler.replaceChildren(...view.ticks.times.map(time => {
    const node = el("span", "tick", view.ticks.write(time)), x = (time - from) * k;
    node.style.left = `${x}px`;
    if (x > view.surface.width - 34) node.classList.add("last");
    if (x < 20) node.classList.add("first");
    return node;
  }));
  placeHeroes(view);
  view.ui.corner.textContent = duration(to - from) + (view.headWidth > 120 ? " shown" : "");
}

const MINI = 22; // CSS px, as in view.css

/** The strip that shows where one is: the states of the GPU over all the time, with the window framed. */
function drawMini(view) {
  const { mini } = view.ui, { dpr, width: plot } = view.surface;
  const [width, height] = [plot, MINI].map(px => Math.round(px * dpr));
  const made = [width, height, view.theme, view.swatches]; // what its picture depends on
  if (!view.mini?.made.every((each, at) => each === made[at])) {
    view.mini = { made, image: miniImage(view, width, height) };
  }
  mini.width = width;
  mini.height = height;
  const context = mini.getContext("2d"), { model, theme } = view, k = width / (model.end - model.begin);
  context.drawImage(view.mini.image, 0, 0);
  const [from, to] = view.window.map(time => (time - model.begin) * k);
  context.globalAlpha = 0.7;
  context.fillStyle = theme.ground;
  context.fillRect(0, 0, from, height);
  context.fillRect(to, 0, width - to, height);
  context.globalAlpha = 1;
  outline(context, from, 0, Math.max(2 * dpr, to - from), height, theme.focus, 1.5 * dpr);
}

function miniImage(view, width, height) {
  const { model } = view, strips = model.tracks.filter(track => model.lane(track).kind === "strip"
    && !model.parts[track.part].ghost);
  const tracks = (strips.length ? strips : model.tracks.filter(track => track.count)).slice(0, 8),
    image = new ImageData(width, height);
  const frame = { ...frameOf(view), width, height, k: width / (model.end - model.begin), from: model.begin,
    image: new Uint32Array(image.data.buffer) };
  const canvas = Object.assign(document.createElement("canvas"), { width, height }), context = canvas.getContext("2d"),
    wides = [];
  tracks.forEach((track, at) => {
    const y = Math.round((at * height) / tracks.length),
      tall = Math.max(1, Math.round(((at + 1) * height) / tracks.length) - y - 1), wide = [];
    paintBuckets(frame, bucket(frame, track, wide), y, tall, 1);
    wides.push(...wide.map(bar => [bar, y, tall]));
  });
  context.putImageData(image, 0, 0);
  for (const [bar, y, tall] of wides) {
    const [x0, x1] = ends(frame, bar), swatch = view.theme.swatches[view.swatches[bar]];
    context.fillStyle = swatch.pattern ? `rgb(${swatch.flat})` : swatch.color;
    context.fillRect(x0, y, x1 - x0, tall);
  }
  return canvas;
}

const LONGEST = 100; // rows of the table

/** What is in the window as a table: the shares of each lane, and its longest spans. Filled when it is opened. */
function fillTable(view) {
  const { model } = view, [from, to] = view.window, { start, end } = model.columns, table = (caption, heads, rows) => {
    const node = el("table"), head = el("tr");
    head.append(...heads.map(text => el("th", "", text, { scope: "col" })));
    node.append(el("caption", "", caption), head, ...rows.map(([first, ...rest]) => {
      const line = el("tr");
      line.append(el("th", "", first, { scope: "row" }), ...rest.map(text => el("td", "", text)));
      return line;
    }));
    return node;
  };
  const tracks = model.tracks.filter(track => view.partShown(track.part) && !track.mirror),
    lane = track => [model.parts[track.part].name, model.lane(track).name].filter(Boolean).join(": ");
  const shares = tracks.filter(track => track.index === 0).map(track => {
    const found = model.crowd(track, from, to);
    return [lane(track), number(found.spans), share(Math.min(1, found.busy / (to - from)))];
  });
  const bars = [];
  for (const track of tracks) {
    if (model.lane(track).kind === "strip") continue;
    for (const bar of model.within(track, from, to)) bars.push([bar, track]);
  }
  const longest = bars.sort(([one], [other]) => end[other] - start[other] - (end[one] - start[one])).slice(0, LONGEST)
    .map(([bar, track]) => [model.name(bar), lane(track),
      model.columns.batch[bar] >= 0 ? `${model.columns.batch[bar]}` : "", duration(start[bar]),
      duration(end[bar] - start[bar])]);
  view.ui.table.replaceChildren(el("summary", "", "as a table"),
    table(`${duration(from)} to ${duration(to)}`, ["lane", "spans", "busy"], shares),
    table(`the ${longest.length} longest spans`, ["span", "lane", "batch", "from", "length"], longest));
}

/** The panel under the picture: the selection and its story, or what is in the measured time. */
function fillDetail(view) {
  const { detail } = view.ui, { model } = view;
  if (view.measure) {
    const [from, to] = [...view.measure].sort((one, other) => one - other);
    detail.replaceChildren(el("b", "", duration(to - from)),
      button("zoom here", "zoom to the measured time", () => { view.measure = null; view.go(from, to); }),
      button("×", "end measuring (Esc)", () => view.clear(), "icon"),
        ...measured(model, from, to).map(text => el("p", "", text)));
  } else if (view.selection >= 0) {
    const [name, ...lines] = facts(model, view.selection);
    detail.replaceChildren(el("b", "", name), button("zoom to it", "zoom to the selection (Enter)",
      () => view.fit(view.selection)), button("×", "end the selection (Esc)", () => view.clear(), "icon"),
      el("p", "", lines.join(" · ")), ...story(model, view.selection).map(text => el("p", "story", text)));
  } else {
    detail.replaceChildren();
  }
  detail.hidden = !detail.firstChild;
}

/** What the GPU does in a piece of time, a line for each device of each part. */
function measured(model, from, to) {
  return model.tracks.filter(track => model.lane(track).kind === "strip" && !model.parts[track.part].ghost)
    .map(track => {
    const shares = model.shares(track, from, to), lane = model.lane(track), part = model.parts[track.part];
    const told = model.head.styles.filter(style => shares[style.key])
      .map(style => `${style.name} ${duration(shares[style.key])} (${share(shares[style.key] / (to - from))})`);
    return `${[part.name, lane.name].filter(Boolean).join(", ")}: ${told.join(", ") || "nothing"}`;
  });
}

function fillTip(view, hit) {
  const { tip } = view.ui, [name, ...lines] = hit.bar >= 0 ? facts(view.model, hit.bar) : crowdWords(view.model, hit);
  tip.replaceChildren(el("b", "", name), ...lines.map(line => el("p", "", line)),
    ...(hit.bar >= 0 ? story(view.model, hit.bar) : []).map(line => el("p", "story", line)));
}

/** Put the words about what is under the pointer beside it, inside of the picture and of the window. */
function placeTip(view, x, y) {
  const { tip, stage } = view.ui;
  const room = stage.getBoundingClientRect(), width = tip.offsetWidth, height = tip.offsetHeight;
  tip.style.left = `${Math.max(4, Math.min(x - room.left + 14, room.width - width - 4))}px`;
  const above = y - height - 14, fits = y + 18 + height <= innerHeight || above < 0;
  tip.style.top = `${(fits ? y + 18 : above) - room.top}px`;
}

function crowdWords(model, hit) {
  const { start, end } = model.columns;
  return [plural(hit.count, "span"), `busy ${share(hit.busy)} of ${duration(hit.to - hit.from)}`,
    model.lane(hit.trackRef).name,
    `the longest: ${thing(model, hit.longest)}, ${duration(end[hit.longest] - start[hit.longest])}`];
}

// ----------------------------------------------------------------------------------------------------------- input

/** Keys by `event.code` where the place on the keyboard counts, else by `event.key`. True: the key was ours. */
function onKey(view, event) {
  if (event.ctrlKey || event.metaKey || (event.altKey && event.key !== "?")) return false;
  const step = 0.12 * (view.window[1] - view.window[0]);
  const act = {
    KeyW: () => view.zoom(0.7), KeyS: () => view.zoom(1 / 0.7), KeyA: () => view.pan(-step), KeyD: () => view.pan(step),
  }[event.code] ?? {
    "+": () => view.zoom(0.7), "=": () => view.zoom(0.7), "-": () => view.zoom(1 / 0.7), ArrowLeft: () => view.walk(-1),
      ArrowRight: () => view.walk(1),
    ArrowUp: () => view.climb(-1), ArrowDown: () => view.climb(1),
      Enter: () => view.selection >= 0 && view.fit(view.selection),
      f: () => view.selection >= 0 && view.fit(view.selection),
    0: () => view.goAll(), Home: () => view.goAll(), "[": () => view.walkBatch(-1), "]": () => view.walkBatch(1),
      "/": () => view.ui.search.focus(),
    " ": () => (view.playing ? view.pause() : view.play()), ".": () => view.stepEvent(1), ",": () => view.stepEvent(-1),
    n: () => view.nextFound(1), N: () => view.nextFound(-1), "?": () => { view.ui.help.hidden = !view.ui.help.hidden; },
      Escape: () => view.clear(),
  }[event.key];
  act?.();
  return Boolean(act);
}

function listen(view) {
  const { stage, scroll, ruler, mini, over } = view.ui;
  stage.addEventListener("keydown", event => {
    if (event.target.closest?.("button") && (event.key === "Enter" || event.key === " ")) return;
    if (onKey(view, event)) { event.preventDefault(); event.stopPropagation(); }
  });
  stage.addEventListener("wheel", event => onWheel(view, event), { passive: false });
  scroll.addEventListener("scroll", () => { view.scrollTop = scroll.scrollTop; view.redraw(); });
  over.addEventListener("pointermove", event => { if (!view.pointers.size) view.point(event); });
  over.addEventListener("pointerleave", () => view.point(null));
  over.addEventListener("dblclick", event => {
    const hit = view.at(event.clientX, event.clientY);
    if (hit?.bar >= 0) view.fit(hit.bar); else view.goAll();
  });
  over.addEventListener("pointerdown", event => drag(view, event, event.shiftKey ? "measure" : "pan"));
  ruler.addEventListener("pointerdown", event => drag(view, event, "measure"));
  mini.addEventListener("pointerdown", event => drag(view, event, "mini"));
}

/** ctrl, meta or a pinch zooms; shift or sideways pans; a plain wheel scrolls, but zooms over the axis of a page. */
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
  } else if (performance.now() - view.lastZoom > 120) { // else the inertia of a zoom that ended would scroll
    return view.showHint();
  }
  event.preventDefault();
}

/** One pointer drags (pans, measures, or moves the window of the strip), two pinch. */
function drag(view, event, what) {
  if (event.button) return;
  const node = event.currentTarget, { pointers } = view, from = { x: event.clientX, y: event.clientY };
  pointers.set(event.pointerId, from);
  node.setPointerCapture(event.pointerId);
  view.ui.stage.focus({ preventScroll: true });
  let moved = false, scroll = view.scrollTop;
  const begin = what === "measure" ? view.timeAt(event.clientX) : 0;
  if (what === "mini") view.centre(event.clientX);
  const move = next => {
    const before = pointers.get(next.pointerId);
    if (!before) return;
    const now = { x: next.clientX, y: next.clientY };
    if (pointers.size === 2) pinch(view, before, now, [...pointers.values()].find(each => each !== before));
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
    for (const [name, act] of [["pointermove", move], ["pointerup", stop],
      ["pointercancel", stop]]) node.removeEventListener(name, act);
    if (!moved && what === "pan" && last.type === "pointerup") view.select(view.at(last.clientX, last.clientY)?.bar
      ?? -1);
    if (!moved && what === "measure") view.clear();
  };
  for (const [name, act] of [["pointermove", move], ["pointerup", stop],
    ["pointercancel", stop]]) node.addEventListener(name, act);
}

function pinch(view, before, now, other) {
  const [old, fresh] = [before, now].map(each => Math.max(20, Math.abs(each.x - other.x)));
  view.zoom(old / fresh, (now.x + other.x) / 2 - view.ui.over.getBoundingClientRect().left);
}

// ------------------------------------------------------------------------------------------------------------ play

const PLAY_SECONDS = 14; // for what is in the window, unless a speed is given

/** Where a batch is at a time: `{bar, next, share}`, in a bar (share 0) or on its way to the next; null elsewhere. */
function placeOf(model, way, time) {
  const { start, end } = model.columns;
  if (!way.length || time < start[way[0]]) return null;
  let last = -1;
  for (const bar of way) {
    if (start[bar] > time) {
      return last < 0 || end[last] > time ? { bar: last, next: -1, share: 0 }
        : { bar: last, next: bar, share: (time - end[last]) / (start[bar] - end[last]) };
    }
    if (last < 0 || end[bar] >= end[last]) last = bar;
  }
  return time <= end[last] ? { bar: last, next: -1, share: 0 } : null;
}

/** The time cursor: what is to come is pale, and each batch rides on the lanes as a numbered token. */
function drawPlayhead(context, frame) {
  const { model, view, theme, dpr } = frame, x = (view.time - frame.from) * frame.k;
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
  const { model, view, theme, dpr } = frame, end = model.ends[row.part], done = view.time >= end,
    [y, height] = barBox(row);
  const text = done ? `done: ${duration(end)}` : duration(view.time), width = view.textWidth(text) * BOLD * dpr,
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
  const { model, view, theme, dpr } = frame, radius = 9 * dpr, taken = new Map();
  for (const [batch, { way, until }] of view.ways(part)) {
    const place = view.time <= until && placeOf(model, way, view.time);
    if (!place || place.bar < 0) continue;
    const from = middle(frame, place.bar)?.[0], to = place.next < 0 ? from : middle(frame, place.next)?.[0];
    if (from === undefined || to === undefined) continue;
    const ease = place.share * place.share * (3 - 2 * place.share), y = from + (to - from) * ease,
      slot = Math.round(y / (2 * radius)), shift = taken.get(slot) ?? 0;
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
    context.fillText(String(batch), at - (view.textWidth(String(batch)) * dpr * 0.97) / 2, y + 4 * dpr);
  }
}

// ------------------------------------------------------------------------------------------------------------ view

const SHORTEST = 8; // ns in sight at least

class View {
  constructor(host, head, columns, options) {
    Object.assign(this, { host, options, folds: new Set(), pointers: new Map(), window: [0, 1], selection: -1,
      hover: null, measure: null, time: -1, playing: false,
      found: { list: [], at: -1 }, evidence: [], scrollTop: 0, frames: 0,
        drawn: { rects: 0, buckets: 0, labels: 0, arrows: 0 }, lastZoom: 0, rows: [], widths: new Map(),
      surface: { width: 0, height: 0, dpr: 1 }, isPage: document.documentElement.classList.contains("lv-page"),
        heroExtra: 0 });
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

  /** Show other data. The window stays if they are as long; with `keep` always, and what stood here as an outline. */
  load(head, columns, options = {}) {
    this.former = options.keep && this.model ? { model: this.model } : null;
    this.options = { ...this.options, ...options };
    const first = !this.model, before = this.head, whole = this.model?.end;
    this.head = head;
    this.model = new Model(head, columns);
    this.byBatch = head.color === "batch" && columns.batch.some(batch => batch >= 0);
    Object.assign(this, { selection: -1, hover: null, measure: null, evidence: [], found: { list: [], at: -1 },
      waysOf: new Map() });
    if (first || before.parts.length !== head.parts.length) this.foldAsTold();
    this.theme = readTheme(this.host, head);
    this.swatches = swatchesOf(head, this.model.columns, this.byBatch);
    this.veiled = head.withheld !== undefined;
    describeHost(this);
    fillWords(this);
    fillDetail(this);
    if (first || (!this.former && this.model.end !== whole)) this.window = head.window ?? this.aroundMarks()
      ?? [this.model.begin, this.model.end];
    this.relayout();
    this.setWindow(...this.window);
  }

  /** What the picture says is withheld until its reader asks for it, so that it can be found first. */
  unveil() {
    this.veiled = false;
    describeHost(this);
    fillWords(this);
    fillHeads(this);
    this.say(this.title);
  }

  get title() { return (this.veiled ? "" : this.head.withheld) || this.head.title || ""; }

  foldAsTold() {
    this.folds.clear();
    this.head.parts.forEach((part, index) => {
      if (part.folded) this.folds.add(`p${index}`);
      if (part.ghost?.hidden) this.folds.add(`h${index}`);
      part.groups?.forEach((group, number) => { if (group.folded) this.folds.add(`g${index}.${number}`); });
      part.lanes.forEach((lane, number) => { if (lane.folded) this.folds.add(`l${index}.${number}`); });
    });
  }

  /** Where the hazards are, if that is a small part of the time: what a reader wants to see first. */
  aroundMarks() {
    const { start, end } = this.model.columns,
      bars = this.model.parts.flatMap(part => part.marks ?? []).flatMap(mark => mark.bars ?? [])
      .filter(bar => bar >= 0);
    if (!bars.length) return null;
    const from = Math.min(...bars.map(bar => start[bar])), to = Math.max(...bars.map(bar => end[bar])),
      room = 0.6 * (to - from);
    return to - from < (this.model.end - this.model.begin) / 3 ? [from - room, to + room] : null;
  }

  toggle(key) {
    const folded = !this.folds.delete(key);
    if (folded) this.folds.add(key);
    this.relayout();
    this.say(folded ? "collapsed" : "expanded");
  }

  // sizes

  relayout() {
    this.heroExtra = heroExtra(this.width);
    const { rows, height } = layout(this);
    this.rows = rows;
    this.rowOfTrack = new Map();
    for (const row of rows) if (trackIn(row) && !this.rowOfTrack.has(trackIn(row))) this.rowOfTrack.set(trackIn(row),
      row);
    for (const row of rows) if (row.track) this.rowOfTrack.set(row.track, row);
    this.ui.inner.style.height = `${height}px`;
    const most = this.head.height ?? (this.isPage ? Math.max(260, innerHeight - 250) : 480);
    this.ui.scroll.style.height = `${this.head.height ?? Math.min(height, most)}px`;
    this.resize();
  }

  /** Fit the canvases to the room there is; the picture is drawn when the browser next draws. */
  resize() {
    const { ui } = this, width = ui.stage.clientWidth, height = ui.scroll.clientHeight, dpr = devicePixelRatio || 1;
    if (!width || !height) return;
    views.add(this); // also when it comes back into the page
    const narrowed = !this.width || (width < NARROW) !== (this.width < NARROW) || heroExtra(width) !== this.heroExtra;
    this.width = width;
    const heads = Math.round(Math.min(this.headRoom(width < NARROW), 0.34 * width));
    if (narrowed) { this.headWidth = heads; return this.relayout(); }
    this.headWidth = heads;
    const plot = Math.max(40, ui.scroll.clientWidth - heads);
    if (dpr !== this.surface.dpr) this.theme.patterns.clear();
    this.surface = { width: plot, height, dpr };
    for (const canvas of [ui.data, ui.over]) {
      canvas.width = Math.round(plot * dpr);
      canvas.height = Math.round(height * dpr);
      Object.assign(canvas.style, { width: `${plot}px`, height: `${height}px` });
    }
    ui.card.style.setProperty("--heads", `${heads}px`);
    ui.card.style.setProperty("--plot", `${plot}px`);
    fillHeads(this);
    drawAxis(this);
    this.redraw();
  }

  headRoom(narrow) {
    const names = this.rows.map(({ type, part, lane, group }) => {
      const of = this.model.parts[part];
      return type === "track" ? (narrow && of.lanes[lane].short) || of.lanes[lane].name : type === "group"
        ? of.groups[group].name : of.name ?? "";
    });
    return Math.max(narrow ? 60 : 90, ...names.map(name => this.textWidth(name) * 1.04 + 30));
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
      this.sheet = Object.assign(document.createElement("canvas"), { width, height: Math.max(1, height) });
    }
    return this.words;
  }

  blitImage(context) {
    this.sheet.getContext("2d").putImageData(this.pixels, 0, 0);
    context.drawImage(this.sheet, 0, 0);
  }

  /** Draw both canvases (or the overlay only) in the next frame, once however often it is asked for. */
  redraw(overlayOnly = false) {
    this.dirty ||= !overlayOnly;
    if (this.asked) return;
    this.asked = true;
    requestAnimationFrame(() => { this.asked = false; this.paint(); });
  }

  paint() {
    if (!this.surface.width) return;
    if (this.dirty) { drawData(this); drawMini(this); }
    this.dirty = false;
    drawOverlay(this);
  }

  /** Draw anew when the page is zoomed or goes to a screen with other pixels. */
  watchPixels() {
    matchMedia(`(resolution: ${devicePixelRatio}dppx)`).addEventListener("change", () => {
      if (!this.host.isConnected) return;
      this.widths.clear();
      this.resize();
      this.watchPixels();
    }, { once: true });
  }

  retheme() {
    const theme = readTheme(this.host, this.head), looks = ({ patterns, ...rest }) => JSON.stringify(rest);
    if (looks(theme) === looks(this.theme)) return;
    this.theme = theme;
    this.widths.clear();
    fillWords(this);
    fillHeads(this);
    this.redraw();
  }

  // the window of time

  setWindow(from, to) {
    const { begin, end } = this.model, whole = end - begin, span = Math.min(Math.max(to - from, SHORTEST), whole);
    const middle = (from + to) / 2, left = Math.min(Math.max(middle - span / 2, begin), end - span);
    this.window = [left, left + span];
    if (this.surface.width) drawAxis(this);
    this.redraw();
    this.tell("lv-window", { window: this.window });
    this.needMore();
  }

  go(from, to) { this.setWindow(from, to); this.say(`${duration(from)} to ${duration(to)}`); }
  goAll() { this.go(this.model.begin, this.model.end); }
  pan(by) { this.setWindow(this.window[0] + by, this.window[1] + by); }
  panPixels(by) { this.pan((by * (this.window[1] - this.window[0])) / this.surface.width); }

  /** Zoom by a factor (below 1: in) about a place in the plot, in CSS px; the time there stays there. */
  zoom(factor, x = this.surface.width / 2) {
    const [from, to] = this.window, span = Math.min(Math.max((to - from) * factor, SHORTEST),
      this.model.end - this.model.begin), share = x / this.surface.width;
    const time = from + (to - from) * share;
    this.setWindow(time - span * share, time + span * (1 - share));
  }

  centre(clientX) {
    const room = this.ui.mini.getBoundingClientRect(),
      time = this.model.begin + ((clientX - room.left) / room.width) * (this.model.end - this.model.begin);
    const half = (this.window[1] - this.window[0]) / 2;
    this.setWindow(time - half, time + half);
  }

  fit(bar) {
    const { start, end } = this.model.columns, room = Math.max((end[bar] - start[bar]) * 0.3, SHORTEST / 2);
    this.go(start[bar] - room, end[bar] + room);
    this.reveal(bar);
  }

  timeAt(clientX) {
    const x = clientX - this.ui.over.getBoundingClientRect().left;
    return this.window[0] + (Math.min(Math.max(x, 0),
      this.surface.width) / this.surface.width) * (this.window[1] - this.window[0]);
  }

  /** Parts of which only a window is here in full: a kernel is asked for more, without one it is said once. */
  needMore() {
    const outside = this.model.parts.some(part => part.whole
      && (this.window[0] < part.whole[0] || this.window[1] > part.whole[1]));
    if (outside) this.options.need?.(this.window);
  }

  // what is where

  rowOf(bar) { return this.rowOfTrack.get(this.model.trackOf(bar)) ?? null; }
  partShown(index) { return !this.folds.has(`p${index}`) && !this.folds.has(`h${index}`); }
  shownParts() { return [...this.model.parts.keys()].filter(index => !this.model.parts[index].ghost
    && this.partShown(index)); }

  at(clientX, clientY) {
    const room = this.ui.over.getBoundingClientRect(), y = clientY - room.top + this.scrollTop, x = clientX - room.left;
    const row = this.rows.find(each => trackIn(each) && y >= each.y && y < each.y + each.height),
      track = row && trackIn(row);
    if (!track || x < 0 || x > this.surface.width) return null;
    const pixelTime = (this.window[1] - this.window[0]) / this.surface.width, time = this.timeAt(clientX),
      { start, end } = this.model.columns;
    const bar = this.model.barAt(track, time, 2 * pixelTime), from = time - pixelTime, to = time + pixelTime,
      found = this.model.crowd(track, from, to);
    const place = { part: track.part, lane: track.lane, track: track.index, trackRef: track, from, to,
      count: found.spans, busy: found.busy / (to - from), longest: found.longest };
    if (bar < 0) return null;
    return { ...place, bar: found.spans > 2 && end[bar] - start[bar] < 2 * pixelTime ? -1 : bar };
  }

  rect(bar) {
    const row = this.rowOf(bar), { start, end } = this.model.columns,
      k = this.surface.width / (this.window[1] - this.window[0]);
    if (!row) return null;
    const [y, height] = barBox(row);
    return { x: (start[bar] - this.window[0]) * k, y: y - this.scrollTop, width: (end[bar] - start[bar]) * k, height };
  }

  /** Shares of the pixel columns of a track as drawn now, by swatch; `wide` are the bars that are drawn singly. */
  buckets(part, lane, index) {
    const track = this.model.track(part, lane, index), wide = [], frame = frameOf(this);
    const { shares, used } = bucket(frame, track, wide), found = {};
    [...used.keys()].filter(swatch => used[swatch])
      .forEach(swatch => { found[swatch] = shares.slice(swatch * frame.width, (swatch + 1) * frame.width); });
    shares.fill(0);
    used.fill(0);
    return { shares: found, wide, from: frame.from, k: frame.k };
  }

  point(event) {
    const hit = event && this.at(event.clientX, event.clientY);
    if (!hit && !this.hover) return;
    const same = hit && this.hover && hit.bar === this.hover.bar && hit.trackRef === this.hover.trackRef
      && hit.bar >= 0;
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
    const track = this.model.trackOf(bar), lane = this.model.lane(track);
    const hidden = [`p${track.part}`, `g${track.part}.${lane.group}`,
      `l${track.part}.${track.lane}`].filter(key => this.folds.has(key));
    if (hidden.length) { hidden.forEach(key => this.folds.delete(key)); this.relayout(); }
    const row = this.rowOf(bar), { scroll } = this.ui, { start, end } = this.model.columns, [from, to] = this.window;
    const below = row && row.y + row.height > scroll.scrollTop + scroll.clientHeight;
    if (below || row?.y < scroll.scrollTop) scroll.scrollTop = row.y - scroll.clientHeight / 2;
    if (end[bar] < from || start[bar] > to || (start[bar] < from && end[bar] < to)
      || (end[bar] > to && start[bar] > from)) {
      const middle = Math.min((start[bar] + end[bar]) / 2, start[bar] + (to - from) / 3), half = (to - from) / 2;
      this.setWindow(middle - half, middle + half);
    }
  }

  /** The bar to walk from: the selection, else the first in sight. */
  walk(by) {
    if (this.selection < 0) return this.select(this.firstInSight(), true);
    const track = this.model.trackOf(this.selection), next = this.selection + by;
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

  /** Up or down: along an arrow that leads there, else to what is nearest in time in the next lane. */
  climb(by) {
    if (this.selection < 0) return this.select(this.firstInSight(), true);
    const { tail, head, start, end } = this.model.columns,
      rows = this.rows.filter(row => row.type === "track" && !row.track.mirror && row.track.count);
    const here = rows.findIndex(row => row.track === this.model.trackOf(this.selection)),
      rank = bar => rows.findIndex(row => row.track === this.model.trackOf(bar));
    const linked = [...Array.from(this.model.outOf(this.selection), at => head[at]),
      ...Array.from(this.model.into(this.selection), at => tail[at])]
      .filter(bar => rank(bar) >= 0 && Math.sign(rank(bar) - here) === by);
    if (linked.length) return this.select(linked[0], true);
    const next = rows[here + by];
    if (!next) return this.say(by < 0 ? "the first lane" : "the last lane");
    const time = (start[this.selection] + end[this.selection]) / 2;
    let bar = Math.min(this.model.firstAfter(next.track, time), next.track.stop - 1);
    if (bar > next.track.first && start[bar] - time > time - end[bar - 1]) bar--;
    this.select(bar, true);
  }

  walkBatch(by) {
    const { batch } = this.model.columns, selected = this.selection >= 0 && this.model.trackOf(this.selection);
    const ways = this.ways(selected ? selected.part : this.shownParts()[0] ?? 0);
    const known = [...ways.keys()];
    const at = this.selection >= 0 ? known.indexOf(batch[this.selection]) : by > 0 ? -1 : known.length;
    const next = known[at + by];
    if (next === undefined) return this.say("no further batch");
    this.select(ways.get(next).way[0], true);
  }

  /** The stations of each batch of a part. */
  ways(part) {
    if (!this.waysOf.has(part)) {
      const batches = [...new Set(this.model.columns.batch)].filter(batch => batch >= 0)
        .sort((one, other) => one - other);
      const last = way => way.reduce((most, bar) => Math.max(most, this.model.columns.end[bar]), 0);
      const found = batches.map(batch => [batch, stations(this.model, part, batch)]).filter(([, way]) => way.length);
      this.waysOf.set(part, new Map(found.map(([batch, way]) => [batch, { way, until: last(way) }])));
    }
    return this.waysOf.get(part);
  }

  story(bar) { return story(this.model, bar); }
  place(part, batch, time) { return placeOf(this.model, this.ways(part).get(batch)?.way ?? [], time); }

  search(text) {
    this.found = { list: this.model.search(text), at: -1 };
    this.ui.count.textContent = text.trim() ? (this.found.list.length ? number(this.found.list.length) : "nothing")
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
    if (finding.bars?.length) this.folds.delete(`p${part}`);
    if (finding.ghost != null) this.folds.delete(`h${finding.ghost}`);
    this.relayout();
    this.evidence = (finding.bars ?? []).filter(bar => bar >= 0);
    const { start, end } = this.model.columns, windows = finding.windows?.length ? finding.windows.slice(0, 1) : [];
    const times = windows.length ? windows.flat() : this.evidence.flatMap(bar => [start[bar], end[bar]]);
    const [from, to] = [Math.min(...times), Math.max(...times)], room = 0.15 * (to - from);
    if (this.evidence.length) this.evidence.slice().reverse().forEach(bar => this.reveal(bar));
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

  /** Run the time cursor over the window from where it is; at `speed` ns of the timeline for each ms. */
  play(speed = this.options.speed) {
    const [from, to] = this.window, end = Math.min(to, Math.max(...this.model.ends));
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
      if (this.time >= end) this.pause(); else requestAnimationFrame(tick);
    };
    requestAnimationFrame(tick);
  }

  /** Without motion: one event after the other, at rest in between. */
  playSteps(end) {
    const next = () => {
      if (!this.playing) return;
      this.stepEvent(1, true);
      if (this.time >= end) this.pause(); else setTimeout(next, 600);
    };
    next();
  }

  pause() { this.playing = false; this.setTime(this.time); }
  stop() { this.playing = false; this.setTime(-1); }

  setTime(time) {
    this.time = time;
    this.showClock();
    this.redraw(true);
    this.tell("lv-time", { time, playing: this.playing });
  }

  /** Move the cursor to the next start or end of a station, in any part. */
  stepEvent(by, playing = false) {
    if (!playing) this.playing = false;
    const { start, end } = this.model.columns, now = this.time < 0 ? this.window[0] - (by > 0 ? 1 : 0) : this.time;
    let next = by > 0 ? Infinity : -Infinity;
    for (const row of this.rows) {
      const track = trackIn(row);
      if (!track || row.ghost) continue;
      const near = this.model.firstAfter(track, now);
      for (let bar = Math.max(track.first, near - 2); bar < Math.min(near + 3, track.stop); bar++) {
        for (const time of [start[bar], end[bar]]) if (by > 0 ? time > now && time < next
          : time < now && time > next) next = time;
      }
    }
    if (Number.isFinite(next)) this.setTime(next); else if (playing) this.setTime(this.model.end);
    const [from, to] = this.window;
    if (this.time > to || this.time < from) this.pan(this.time - (from + to) / 2);
  }

  showClock() {
    const { play, clock } = this.ui;
    play.textContent = this.playing ? "❚❚" : "▶";
    const slow = this.playing ? `, 1 ms = ${fourDigits(1e3 / this.speed)} s` : "";
    clock.textContent = this.time < 0 ? "" : duration(this.time) + slow;
  }

  // saying

  /** Speak by the live region, at most seven times a second. */
  say(text) {
    this.text = text;
    clearTimeout(this.speaking);
    this.speaking = setTimeout(() => { this.ui.live.textContent = text; }, 150);
  }

  showHint() {
    if (View.hinted) return;
    View.hinted = true;
    this.ui.hint.textContent = "ctrl + wheel zooms";
    this.ui.hint.hidden = false;
    setTimeout(() => { this.ui.hint.hidden = true; }, 1800);
  }

  tell(name, detail) { this.host.dispatchEvent(new CustomEvent(name, { detail, bubbles: true, composed: true })); }

  lanes() {
    return this.rows.filter(trackIn).map(row => {
      const { name } = row.track ? this.model.lane(row.track) : this.model.parts[row.part];
      const { part, type, height, lane = -1, level: track = 0 } = row;
      return { part, lane, track, type, name, height, top: row.y - this.scrollTop, folded: !!row.folded };
    });
  }

  shares(part, lane, index, from, to) { return this.model.shares(this.model.track(part, lane, index), from, to); }

  destroy() {
    this.playing = false;
    this.resizer.disconnect();
    views.delete(this);
  }
}

// ----------------------------------------------------------------------------------------------------------- hosts

const CSS = "__LV_CSS__"; // view.css; put in by view/page.py
const views = new Set(); // those in the page

function styleNode() {
  return Object.assign(document.createElement("style"), { textContent: CSS });
}

const LOOKS = ["class", "theme", "data-theme", "data-lv-theme", "data-jp-theme-light", "data-jp-theme-name"];

/** All views follow the theme of the page, and words in it that link to a place in the picture. */
function watchHosts() {
  let again = 0;
  const now = () => views.forEach(view => (view.host.isConnected ? view.retheme() : views.delete(view)));
  const retheme = () => { // a host may say that it is dark before its colours have come
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
  document.addEventListener("click", event => { // words that show what they speak of: data-lv-go="from,to,bar"
    const go = event.target.closest?.("[data-lv-go]"), view = go && [...views].find(each => each.host.contains(go));
    if (!view) return;
    const [from, to, bar] = go.dataset.lvGo.split(",").map(Number);
    view.showEvidence(0, { windows: [[from, to]], bars: bar >= 0 ? [bar] : [], title: go.textContent });
  });
}

const SEEN = ["window", "frames", "drawn", "head", "text", "model", "time", "selection"]; // of a view, by its hook
const DONE = ["at", "rect", "lanes", "shares", "buckets", "select", "go", "play", "pause", "place", "destroy", "toggle",
  "search", "setTime", "zoom", "pan"];
let counter = 0;

/** Put a view into an element, in place of what is there (but slot="below"). Returns `host.lv`, the hook of tests. */
export function mount(host, head, bytes, options = {}) {
  const hook = (host.lv = {});
  hook.ready = decode(head, bytes).then(columns => {
    if (!counter++) watchHosts();
    host.dataset.lvDone = "";
    host.classList.add("lv-view");
    const view = (hook.view = new View(host, head, columns, options));
    for (const name of SEEN) Object.defineProperty(hook, name, { get: () => view[name] });
    Object.defineProperty(hook, "columns", { get: () => view.model.columns });
    for (const name of DONE) hook[name] = view[name].bind(view);
    let asked = 0;
    hook.set = async (other, body, more = {}) => { // the last that was asked for wins, however long each unpacks
      const turn = ++asked, unpacked = await decode(other, body);
      if (turn === asked) view.load(other, unpacked, more);
    };
    return view;
  });
  return hook;
}

/** Name and describe the host for who does not see it; its still picture is for paper from now on. */
function describeHost(view) {
  const { host, head, ui, title, veiled } = view, twin = host.querySelector(":scope > .lv-twin");
  host.setAttribute("role", "figure");
  for (const node of [host, ui.stage]) node.setAttribute("aria-label", title || "timeline");
  if (twin && !veiled) {
    twin.id ||= `lv-twin-${counter++}`;
    host.setAttribute("aria-describedby", twin.id);
  } else if (head.twin && !veiled) {
    host.setAttribute("aria-description", head.twin);
  }
  host.querySelector(":scope > .lv-still")?.setAttribute("slot", "still");
}

const NO_MODEL = /^(Error (displaying|creating) widget|Model not found)/;

/** A view that stands in for the widget of the next output: it goes when that lives, else what says "no model" goes. */
function standIn(host) {
  const area = host.closest(".jp-OutputArea");
  if (!area || !host.hasAttribute("data-lv-stand")) return;
  const look = () => {
    host.style.display = area.querySelector("[data-lv-live]") ? "none" : ""; // `hidden` loses against :host's display
    for (const node of area.querySelectorAll(".jupyter-widgets")) {
      if (NO_MODEL.test(node.textContent.trim())) node.closest(".jp-OutputArea-child").style.display = "none";
    }
  };
  new MutationObserver(look).observe(area, { childList: true, subtree: true, characterData: true });
  look();
}

/** Mount every view of the document that is still a picture. What cannot be decoded stays the picture it is. */
export function upgradeAll(root = document) {
  for (const host of root.querySelectorAll(".lv-view")) {
    const head = host.querySelector(":scope > .lv-head"), body = host.querySelector(":scope > .lv-body");
    if (host.lv || !head || !body) continue;
    standIn(host);
    const stays = problem => { delete host.lv; console.warn("loaderviz: the still picture stays:", problem); };
    try {
      mount(host, JSON.parse(head.textContent), fromBase64(body.textContent.trim())).ready.catch(stays);
    } catch (problem) {
      stays(problem);
    }
  }
}

/** The widget: traits head, body, options, window, selection, time, playing, speed; see view/widget.py. */
function render({ model, el: place }) {
  const host = el("div", "lv-view", undefined, { "data-lv-live": "", "data-lm-suppress-shortcuts": "true" });
  place.append(host);
  place.dataset.lvLive = "";
  const bytes = () => {
    const { buffer, byteOffset, byteLength } = model.get("body");
    return new Uint8Array(buffer.slice(byteOffset, byteOffset + byteLength));
  };
  const options = () => ({ ...model.get("options"), speed: model.get("speed"),
    need: window => model.send({ need: window }) });
  const hook = mount(host, model.get("head"), bytes(), options());
  const later = {};
  let asking = false; // what Python asked for is not told back: it may have asked for more by then
  const tell = (name, value) => { // Python hears of a change at most ten times a second, and of the last one for sure
    if (asking) return;
    if (later[name]) { later[name].value = value; return; }
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
      playing: value => value !== view.playing && (value ? view.play(model.get("speed")) : view.pause()),
      window: value => value?.length === 2 && String(value) !== String(view.window) && view.setWindow(...value),
    };
    for (const [name, act] of Object.entries(asked)) model.on(`change:${name}`, () => {
      asking = true;
      try { act(model.get(name)); } finally { asking = false; }
    });
    model.on("change:head", () => hook.set(model.get("head"), bytes(), options()));
  });
  return () => hook.view?.destroy();
}

export default { render };

if (typeof document !== "undefined") upgradeAll();
