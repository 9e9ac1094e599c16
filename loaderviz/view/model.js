// What the view knows: columns from bytes, who waits for whom, the words for it. Nothing of pixels,
// nothing of the page.
//
// model.js, draw.js, chrome.js and view.js are one module: picture.py joins them in this order, and
// each uses the names of those before it. Words used throughout: a *bar* is a row of the body (a
// span, or several merged ones), a *track* a row of bars that do not overlap, a *lane* one or more
// tracks with a name, a *part* one timeline. Times are ns from the part's origin.

// ------------------------------------------------------------------------------------------ decode

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

const DEFAULTS = {
  start: 0,
  duration: 0,
  style: 0,
  name: 0,
  batch: -1,
  nbytes: 0,
  cause: 0,
  waited: 0,
  pinned: 0,
  source: 0,
  hidden: 255,
  count: 1,
  tail: 0,
  head: 0,
  arrow: 0,
};
const ARROWS = ["tail", "head", "arrow"];

/** Give the columns of a body: one array for each name of DEFAULTS, and `end`; times in ns. */
export async function decode(head, body) {
  const bytes = head.codec === "gzip" ? await gunzip(body) : body;
  const columns = {};
  let at = 0;
  for (const { name, table, planes, differences, constant } of head.columns) {
    const rows = table === "arrows" ? head.arrows : head.rows;
    if (constant !== undefined) {
      columns[name] = new Float64Array(rows).fill(constant);
    } else {
      columns[name] = (differences ? summed : each => each)(readPlanes(bytes, at, rows, planes));
      at += rows * planes;
    }
  }
  if (at > bytes.length)
    throw new Error(`the body has ${bytes.length} bytes, its columns need ${at}`);
  for (const [name, value] of Object.entries(DEFAULTS)) {
    columns[name] ??= new Int32Array(ARROWS.includes(name) ? head.arrows : head.rows).fill(value);
  }
  const { start, duration } = columns,
    end = new Float64Array(head.rows);
  for (let row = 0; row < head.rows; row++) end[row] = start[row] + duration[row];
  return { ...columns, end, nbytes: Float64Array.from(columns.nbytes, value => value - 1) };
}

function readPlanes(bytes, at, rows, planes) {
  if (planes === 1) return bytes.slice(at, at + rows);
  const values = new (planes > 4 ? Float64Array : planes > 2 ? Uint32Array : Uint16Array)(rows);
  for (let plane = 0; plane < planes; plane++, at += rows) {
    const unit = 256 ** plane;
    for (let row = 0; row < rows; row++) values[row] += bytes[at + row] * unit;
  }
  return values;
}

/** The values whose differences these zigzag numbers are. */
function summed(differences) {
  const values = new Float64Array(differences.length);
  let before = 0;
  for (let row = 0; row < values.length; row++) {
    const each = differences[row];
    values[row] = before += each % 2 ? -(each + 1) / 2 : each / 2;
  }
  return values;
}

// ------------------------------------------------------------------------------------------- model

/** Rows of a table by key: `rows.subarray(first[key], first[key + 1])` are those whose key it
 * is. */
function byKey(keys, size) {
  const first = new Uint32Array(size + 1),
    rows = new Uint32Array(keys.length);
  for (const key of keys) if (key >= 0) first[key + 1]++;
  for (let key = 0; key < size; key++) first[key + 1] += first[key];
  const next = first.slice(0, size);
  keys.forEach((key, row) => {
    if (key >= 0) rows[next[key]++] = row;
  });
  return key =>
    key >= 0 && key < size ? rows.subarray(first[key], first[key + 1]) : rows.subarray(0, 0);
}

/** What the columns mean: tracks, who waits for whom, the way of a batch. Knows nothing of
 * pixels. */
class Model {
  constructor(head, columns) {
    Object.assign(this, { head, columns, parts: head.parts, tracks: [] });
    let first = 0;
    const add =
      (part, lane) =>
      ({ count, mirror }, index) => {
        this.tracks.push({
          part,
          lane,
          index,
          first,
          stop: first + count,
          count,
          mirror: !!mirror,
        });
        first += count;
      };
    head.parts.forEach(({ lanes }, part) =>
      lanes.forEach(({ tracks }, lane) => tracks.forEach(add(part, lane))),
    );
    const { start, end } = columns;
    const real = head.parts.map((part, index) =>
      this.tracks.filter(track => track.part === index && track.count),
    );
    this.ends = head.parts.map((part, index) =>
      Math.max(part.duration ?? 0, ...real[index].map(track => end[track.stop - 1])),
    );
    this.begin = Math.min(0, ...real.flat().map(track => start[track.first]));
    this.end = Math.max(head.axis ?? 0, ...this.ends, 1);
    this.lazy = {};
  }

  get into() {
    return (this.lazy.into ??= byKey(this.columns.head, this.head.rows));
  } // arrows by the bar they lead to
  get outOf() {
    return (this.lazy.outOf ??= byKey(this.columns.tail, this.head.rows));
  }
  get ofBatch() {
    return (this.lazy.ofBatch ??= byKey(
      this.columns.batch,
      this.columns.batch.reduce((most, batch) => Math.max(most, batch), -1) + 1,
    ));
  }

  style(bar) {
    return this.head.styles[this.columns.style[bar]] ?? this.head.styles[0];
  }
  name(bar) {
    return this.head.names[this.columns.name[bar]] ?? "";
  }
  lane(track) {
    return this.parts[track.part].lanes[track.lane];
  }

  track(part, lane, index) {
    return this.tracks.find(
      each => each.part === part && each.lane === lane && each.index === index,
    );
  }

  trackOf(bar) {
    let low = 0,
      high = this.tracks.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.tracks[middle].first <= bar) low = middle;
      else high = middle - 1;
    }
    while (low && !this.tracks[low].count) low--;
    return this.tracks[low];
  }

  /** First bar of a track that ends after `time`; bars of no length inside another are passed
   * over. */
  firstAfter(track, time) {
    const { start, end } = this.columns;
    let low = track.first,
      high = track.stop;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (start[middle] < time) low = middle + 1;
      else high = middle;
    }
    let bar = low;
    while (bar > track.first && (end[bar - 1] > time || start[bar - 1] === end[bar - 1])) bar--;
    return bar;
  }

  /** The bars of a track that lie in a piece of time, or begin or end in it. */
  *within(track, from = -Infinity, to = Infinity) {
    const { start } = this.columns;
    for (let bar = this.firstAfter(track, from); bar < track.stop && start[bar] < to; bar++)
      yield bar;
  }

  /** The bar of a track at a time, or the nearest within `reach` ns of it; -1 if there is none. */
  barAt(track, time, reach = 0) {
    const { start, end } = this.columns;
    let best = -1,
      nearest = Infinity;
    for (const bar of this.within(track, time - reach, time + reach + 1e-3)) {
      const away = Math.max(start[bar] - time, time - end[bar], 0);
      if (away < nearest || (away === nearest && end[bar] - start[bar] > 0))
        [best, nearest] = [bar, away];
    }
    return nearest <= reach ? best : -1;
  }

  /** ns of each style in a part of a track: `{style key: ns}`. */
  shares(track, from, to) {
    const { start, end, style } = this.columns;
    const found = {};
    for (const bar of this.within(track, from, to)) {
      const length = Math.min(end[bar], to) - Math.max(start[bar], from);
      if (length > 0)
        found[this.head.styles[style[bar]].key] =
          (found[this.head.styles[style[bar]].key] ?? 0) + length;
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
      .filter(bar => {
        const track = this.trackOf(bar);
        return track.part === part && (mirrors || !track.mirror);
      })
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
      if (track.mirror || this.parts[track.part].ghost || this.lane(track).kind === "strip")
        continue;
      for (const bar of this.within(track)) {
        if (named[this.columns.name[bar]] || (batch && this.columns.batch[bar] === +batch[1]))
          found.push(bar);
      }
    }
    return found;
  }
}

// ------------------------------------------------------------------------------------------- words

const UNITS = [
  [1e9, "s"],
  [1e6, "ms"],
  [1e3, "µs"],
];
const SIZES = [
  [1e9, "GB"],
  [1e6, "MB"],
  [1e3, "kB"],
];

/** A number with so many decimal places, half to even, as Python writes it: a tie is a dyadic
 * fraction. */
function fixed(value, places) {
  const ties = Math.abs(value) * 2 ** (places + 1),
    up = value.toFixed(places);
  return ties % 2 === 1 && up.at(-1) % 2
    ? (value - Math.sign(value) * 0.25 * 10 ** -places).toFixed(places)
    : up;
}

function fourDigits(value) {
  const text = fixed(value, Math.abs(value) < 10 ? 3 : Math.abs(value) < 100 ? 2 : 1);
  return text.replace(/\.?0+$/, "");
}
function withUnit(value, units, smallest) {
  const [unit, name] = units.find(([unit]) => Math.abs(value) >= unit * 0.9995) ?? [1, smallest];
  return `${fourDigits(value / unit)} ${name}`;
}
const duration = ns => withUnit(ns, UNITS, "ns");
const size = bytes => (bytes === 1 ? "1 byte" : withUnit(bytes, SIZES, "bytes"));
const ENGLISH = new Intl.NumberFormat("en");
const number = value => ENGLISH.format(value);
const times = value =>
  `${value >= 99.95 ? number(+fixed(value, 0)) : fixed(value, value < 9.995 ? 2 : 1)}x`;

/** A text of the table with its gaps filled. */
const fill = (text, values) => text.replace(/\{(\w+)\}/g, (_, name) => values[name]);

const NUMBER = /\d+(?:[.,]\d+)*/g;

/** A word of the picture in the language of the head of `of`, by its English; "#" stands for a
 * number, and what stands in braces is filled with `values`. */
function word(of, text, values) {
  const { words = {} } = of.head,
    numbers = [];
  let here = text;
  if (Object.hasOwn(words, text)) here = words[text];
  else if (/\d/.test(text)) {
    const general = text.replace(NUMBER, each => numbers.push(each) && "#");
    if (Object.hasOwn(words, general)) {
      here = words[general].replace(/#/g, () => numbers.shift());
    }
  }
  return values ? fill(here, values) : here;
}
const spans = (of, count) =>
  word(of, count === 1 ? "{count} span" : "{count} spans", { count: number(count) });

function share(value) {
  const percent = 100 * value;
  if ((percent > 0 && percent < 1) || (percent > 99 && percent < 100))
    return percent < 1 ? "< 1 %" : "> 99 %";
  return `${fixed(percent, 0)} %`;
}

/** A name as short as it can be told from others: no return type, no template, no namespace. */
function shortName(name) {
  const bare = name
    .replace(/^void /, "")
    .replace(/\(.*$/s, "")
    .replace(/<.*$/s, "");
  return bare.slice(bare.lastIndexOf("::") + 1).replace(/^:/, "") || name;
}

/** Ticks of an axis at 1, 2 or 5 times a power of ten: their times, how to write them, and a finer
 * step. */
function ticks(from, to, most) {
  const rough = (to - from) / Math.max(1, most),
    power = 10 ** Math.floor(Math.log10(rough));
  const times = [1, 2, 5, 10].find(each => each * power >= rough),
    step = power * times;
  const [unit, name] = UNITS.find(
    ([unit]) => Math.max(Math.abs(from), Math.abs(to)) >= 2 * unit,
  ) ?? [1, "ns"];
  const places = Math.max(0, Math.ceil(-Math.log10(step / unit) - 1e-9));
  const found = [];
  for (let at = Math.ceil(from / step - 1e-9); at * step <= to + step * 1e-9; at++)
    found.push(at * step);
  return {
    times: found,
    step,
    fine: step / (times === 2 ? 4 : 5),
    write: time => (time ? `${(time / unit).toFixed(places)} ${name}` : "0"),
  };
}

// ------------------------------------------------------------------------------------------- story

const DEVICE = new Set(["compute", "communication", "copy_h2d", "copy_d2h", "copy_d2d", "memset"]);
const KERNELS = ["compute", "communication"];
const LOADING = new Set(["fetch", "pin"]);
const NOUNS = {
  compute: "kernel",
  communication: "collective",
  copy_h2d: "copy",
  copy_d2h: "copy back",
  copy_d2d: "copy on the GPU",
  memset: "memset",
  fetch: "fetch",
  pin: "pinning",
};

const STATIONS = {
  fetch: "fetched {time}",
  pin: "pinned {time}",
  copy_h2d: "copied {time}",
  compute: "computed {time}",
  communication: "communicated {time}",
  copy_d2h: "copied back {time}",
};

/** A bar in a few words: "copy of batch 13", "kernel conv2d of batch 2", "cudaLaunchKernel". */
function thing(model, bar) {
  const { key } = model.style(bar),
    batch = model.columns.batch[bar],
    name = shortName(model.name(bar));
  if (!NOUNS[key]) return name;
  const noun = word(model, NOUNS[key]),
    named = KERNELS.includes(key) ? word(model, "{noun} {name}", { noun, name }) : noun;
  return batch >= 0 ? word(model, "{thing} of batch {batch}", { thing: named, batch }) : named;
}

/** How long a bar waited for another, ns: from when all else was ready until that one ended. */
function waited(model, bar, other) {
  const { start, end, arrow, tail } = model.columns,
    track = model.trackOf(bar);
  const ready = [
    bar > track.first ? end[bar - 1] : start[other],
    ...Array.from(model.into(bar))
      .filter(at => arrow[at] === 0)
      .map(at => start[tail[at]]),
  ];
  return Math.max(0, Math.min(start[bar], end[other]) - Math.max(...ready));
}

/** Why a bar is where it is, in sentences: what it waited for, what waits for it, what launched
 * it. */
function story(model, bar) {
  const { start, end, arrow, tail, head, cause, batch } = model.columns,
    said = [],
    waits = at => arrow[at] === 1,
    into = Array.from(model.into(bar)),
    after = Array.from(model.outOf(bar));
  const say = (text, values) => said.push(word(model, text, values));
  for (const at of into.filter(waits)) {
    const time = waited(model, bar, tail[at]);
    const values = { time: duration(time), thing: thing(model, tail[at]) };
    if (time > 0) say("waits {time} for the {thing}", values);
  }
  const edge = into.find(waits);
  const gap = (from, to) => duration(Math.max(0, to - from));
  if (!said.length && edge !== undefined) {
    const values = { thing: thing(model, tail[edge]), gap: gap(end[tail[edge]], start[bar]) };
    say("ordered after the {thing}, which ended {gap} before", values);
  }
  if (model.style(bar).key === "fetch") said.push(...fetched(model, bar));
  else if (cause[bar] > 0) said.push(blocked(model, bar));
  for (const at of after.filter(waits).slice(0, 3)) {
    const time = waited(model, head[at], bar);
    const values = { thing: thing(model, head[at]), time: duration(time) };
    say(time > 0 ? "the {thing} waits for it ({time})" : "the {thing} waits for it", values);
  }
  const call = into.find(at => arrow[at] === 0),
    work = after.find(at => arrow[at] === 0);
  if (call !== undefined) {
    const values = { name: model.name(tail[call]), gap: gap(start[tail[call]], start[bar]) };
    say("launched by {name}, {gap} before it starts", values);
  }
  if (work !== undefined) {
    const values = { thing: thing(model, head[work]), gap: gap(start[bar], start[head[work]]) };
    say("launches the {thing}, which starts {gap} later", values);
  }
  if (batch[bar] >= 0) said.push(journey(model, model.trackOf(bar).part, batch[bar]));
  return said.filter(Boolean);
}

/** What most of a fetch is, and for how long it needs no core. */
function fetched(model, bar) {
  const { start, end, cause, waited } = model.columns;
  const what = word(model, model.head.causes[cause[bar]] ?? "");
  const waits = waited?.[bar] ?? 0; // the explorer's have none
  const values = { waits: duration(waits), computes: duration(end[bar] - start[bar] - waits) };
  const split = waits && word(model, "waits {waits}, and takes {computes} of a core", values);
  return [what && word(model, "most of it is {what}", { what }), split];
}

/** How long the host is blocked, by what, and until when. */
function blocked(model, bar) {
  const { start, end, cause } = model.columns,
    by = blocker(model, bar);
  const words = word(model, model.head.causes[cause[bar]]);
  const values = { time: duration(end[bar] - start[bar]), cause: words };
  if (by < 0) return word(model, "host blocked {time}: {cause}", values);
  const where = word(model, model.lane(model.trackOf(by)).name);
  const until = { ...values, thing: thing(model, by), where };
  return word(model, "host blocked {time}: {cause}, until the {thing} ends ({where})", until);
}

/** What a blocked host waited for: the last thing to end in its wait, of the next batch if it waits
 * for data. */
function blocker(model, bar) {
  const { start, end, cause } = model.columns,
    track = model.trackOf(bar),
    data = model.head.causes[cause[bar]] === "waiting for data";
  let best = -1;
  for (const other of model.tracks) {
    const lane = model.lane(other);
    if (
      other.part !== track.part ||
      other.mirror ||
      lane.kind === "strip" ||
      (data ? !["worker", "pin"].includes(lane.role) : lane.kind === "host")
    )
      continue;
    for (const each of model.within(other, start[bar], end[bar])) {
      const { key } = model.style(each),
        counts = data ? LOADING.has(key) : DEVICE.has(key);
      if (counts && end[each] <= end[bar] && (best < 0 || end[each] > end[best])) best = each;
    }
  }
  return best;
}

/** The stations of a batch: the bars in which it is fetched, pinned, copied and computed on, in
 * order of time. */
function stations(model, part, batch) {
  return model
    .way(part, batch)
    .filter(bar => LOADING.has(model.style(bar).key) || DEVICE.has(model.style(bar).key));
}

function journey(model, part, batch) {
  const { start, end, hidden } = model.columns,
    bars = stations(model, part, batch);
  if (bars.length < 2) return "";
  const sums = {};
  for (const bar of bars) {
    const key = model.style(bar).key,
      sum = (sums[key] ??= { time: 0, hidden: 0 }),
      time = end[bar] - start[bar];
    sum.time += time;
    if (hidden[bar] <= 200) sum.hidden += (time * hidden[bar]) / 200;
  }
  const told = Object.entries(STATIONS)
    .filter(([key]) => sums[key])
    .map(([key, text]) => {
      const { time, hidden: under } = sums[key],
        isCopy = key === "copy_h2d" && time;
      const values = { time: duration(time), share: share(under / time) };
      return word(model, isCopy ? "copied {time} ({share} hidden)" : text, values);
    });
  const whole = Math.max(...bars.map(bar => end[bar])) - start[bars[0]];
  const values = { batch, told: told.join(word(model, ", ")), time: duration(whole) };
  return word(model, "batch {batch}: {told}; {time} from first to last", values);
}

/** All that is known of a bar, a line each; the first is its name. */
function facts(model, bar) {
  const { start, end, batch, nbytes, pinned, hidden, source, count } = model.columns,
    { title, name } = model.lane(model.trackOf(bar)),
    lane = word(model, title || name),
    style = word(model, model.style(bar).name),
    time = end[bar] - start[bar],
    lines = [];
  const say = (text, values) => lines.push(word(model, text, values));
  if (count[bar] > 1) {
    lines.push(spans(model, count[bar]));
    say("{name}, {time} in all", { name: style, time: duration(time) });
    lines.push(lane);
    say("kept here as one bar; loaderviz.export.to_html() has each of them");
    return lines;
  }
  lines.push(model.name(bar) ? word(model, model.name(bar)) : style);
  if (batch[bar] >= 0) say("{lane}, batch {batch}", { lane, batch: batch[bar] });
  else lines.push(lane);
  say("{time}, from {start}", { time: duration(time), start: duration(start[bar]) });
  if (nbytes[bar] >= 0) {
    const whole = size(nbytes[bar]);
    if (time && nbytes[bar])
      say("{size}, {rate}/s", { size: whole, rate: size((1e9 * nbytes[bar]) / time) });
    else lines.push(whole);
  }
  if (pinned[bar]) say(pinned[bar] === 2 ? "pinned host memory" : "pageable host memory");
  if (hidden[bar] <= 200)
    say("{share} of it hidden under kernels", { share: share(hidden[bar] / 200) });
  if (source[bar]) say(model.head.sources[source[bar]]);
  return lines;
}
