// What the page makes of a timeline of emulator.js: its numbers, and what the view draws.
// `summarize` follows loaderviz/metrics.py, `pictured` loaderviz/view (lanes.py and pack.py), for
// such timelines: emulated, of one GPU, each step marked, their start left out. A set of intervals
// is a list of [start, end), sorted, that do not touch.

const FEW = 3,
  BREAK = 3,
  OUTLIER = 10,
  RARE = 100,
  DEPTH = 4;
const TOLD = [CAUSE.data, CAUSE.allocation, CAUSE.locking];

// --------------------------------------------------------------------------------------- intervals

function union(pieces) {
  const found = [];
  const full = pieces.filter(([from, to]) => to > from).sort((one, other) => one[0] - other[0]);
  for (const [start, end] of full) {
    const last = found.at(-1);
    if (last && start <= last[1]) last[1] = Math.max(last[1], end);
    else found.push([start, end]);
  }
  return found;
}

function intersect(one, other) {
  const found = [];
  for (let i = 0, j = 0; i < one.length && j < other.length;) {
    const start = Math.max(one[i][0], other[j][0]),
      end = Math.min(one[i][1], other[j][1]);
    if (end > start) found.push([start, end]);
    if (one[i][1] < other[j][1]) i++;
    else j++;
  }
  return found;
}

function subtract(one, other) {
  const edges = [-Infinity, ...other.flat(), Infinity],
    gaps = [];
  for (let at = 0; at < edges.length; at += 2) gaps.push([edges[at], edges[at + 1]]);
  return intersect(one, gaps);
}

const lengthOf = set => set.reduce((sum, [start, end]) => sum + end - start, 0);
const within = (set, start, end) => lengthOf(intersect(set, [[start, end]]));

/** What each of the parts has of the whole, but for what a part before it has. */
function layersOf(whole, parts) {
  let rest = whole;
  return parts.map(([name, part]) => {
    const mine = intersect(rest, part);
    rest = subtract(rest, part);
    return [name, mine];
  });
}

function median(values, low = false) {
  const sorted = [...values].sort((a, b) => a - b),
    half = (sorted.length - 1) >> 1;
  return low || sorted.length % 2 ? sorted[half] : (sorted[half] + sorted[half + 1]) / 2;
}

// ----------------------------------------------------------------------------------------- numbers

const ratio = (part, whole) => (whole ? part / whole : null);
const coveredBy = rows => union(rows.map(({ start, end }) => [start, end]));

/** The loop of a timeline: its spans by what they are, and its steps. */
class Loop {
  constructor({ lanes, rows, arrows }) {
    Object.assign(this, { lanes, rows, arrows });
    const main = lanes.findIndex(({ role }) => role === "main");
    const isLoading = ({ kind }) => kind === KIND.fetch || kind === KIND.pin;
    this.own = rows.filter(({ lane }) => lane === main);
    this.steps = this.own.filter(({ kind }) => kind === KIND.range);
    this.fetches = rows.filter(({ kind }) => kind === KIND.fetch);
    this.kernels = rows.filter(({ kind }) => kind === KIND.compute);
    this.copies = rows.filter(({ kind }) => kind === KIND.h2d);
    this.work = [...this.kernels, ...this.copies];
    this.loading = this.own.filter(row => isLoading(row) || row.cause === CAUSE.data);
    this.told = this.own.filter(row => isLoading(row) || TOLD.includes(row.cause));
    this.start = Math.min(...rows.map(({ start }) => start));
    this.end = Math.max(...[...this.work, ...this.steps].map(({ end }) => end));
    this.begins = this.beginsOf(this.steps);
  }

  /** When the GPU begins on the batches of the steps; their starts where most have no kernel. */
  beginsOf(steps) {
    const of = new Map();
    for (const { batch, start } of this.kernels) {
      if (!of.has(batch)) of.set(batch, []);
      of.get(batch).push(start);
    }
    const first = ({ batch, start }) => of.get(batch)?.find(each => each >= start);
    const begins = steps
      .map(first)
      .filter(each => each !== undefined)
      .sort((a, b) => a - b);
    return 2 * begins.length > steps.length ? begins : steps.map(({ start }) => start);
  }

  /** When the loop does other work than steps. */
  breaks() {
    const { begins } = this,
      starts = this.kernels.map(({ start }) => start);
    if (begins.length < FEW) return [];
    const told = coveredBy(this.told),
      known = subtract(told, coveredBy(this.work));
    const edges = [...begins, Math.max(this.end, begins.at(-1))],
      kernels = coveredBy(this.kernels);
    const pieces = begins.map((begin, at) => [begin, edges[at + 1]]);
    const own = pieces.map(([from, to]) => to - from - within(known, from, to));
    const counts = pieces.map(([from, to]) => bisect(starts, to) - bisect(starts, from));
    const computing = pieces.map(([from, to]) => within(kernels, from, to));
    const usual = median(own, true),
      alike = median(counts, true),
      most = median(computing);
    const longer = at => (counts[at] === alike ? Math.max(0, computing[at] - most) : 0);
    const far = pieces.filter((_, at) => own[at] - longer(at) > BREAK * usual);
    if (2 * far.length >= own.length) return [];
    return subtract(union(far.map(([from, to]) => [from + usual, to])), told);
  }

  /** What belongs to no step: the breaks, and what is lost by fetches that take far longer. */
  outside() {
    if (this.steps.length < FEW) return [];
    const times = this.fetches.map(({ start, end }) => end - start),
      usual = median(times);
    const far = this.fetches.filter((_, at) => times[at] > OUTLIER * usual);
    const rare = far.length <= Math.max(1, Math.floor(times.length / RARE)) ? far : [];
    const lost = intersect(coveredBy(rare), coveredBy(this.loading));
    return union([...this.breaks(), ...lost].map(piece => [...piece]));
  }

  /** The time of a step: whole rounds where the loop waits for several workers. */
  pace(outside) {
    if (this.steps.length < 2) return null;
    let begins = this.begins.slice(0, 1 + this.lastWhole());
    if (begins.length < 2) return null;
    const waits = this.own.some(
      ({ kind, cause, start, end }) =>
        kind === KIND.wait && cause === CAUSE.data && start < begins.at(-1) && end > begins[0],
    );
    const lanes = new Set(this.fetches.map(({ lane }) => lane));
    const workers = [...lanes].filter(lane => this.lanes[lane].role === "worker").length;
    if (waits && workers > 1 && workers < begins.length) {
      const over = this.fetches.filter(({ end }) => end <= begins[0]);
      const made = new Set(over.map(({ batch }) => batch));
      const stock = this.steps.filter(({ batch }) => made.has(batch)).length;
      if (stock + workers < begins.length) begins = begins.slice(stock);
      begins = begins.slice((begins.length - 1) % workers);
    }
    const [from, to] = [begins[0], begins.at(-1)];
    return (to - from - within(outside, from, to)) / (begins.length - 1);
  }

  /** The place of the last step by whose hand-out a batch was still copied. */
  lastWhole() {
    const last = this.steps.length - 1;
    const newest = Math.max(-1, ...this.copies.map(({ batch }) => batch));
    if (newest < this.steps[last].batch || newest < 0) return last;
    const mine = new Set(this.copies.filter(({ batch }) => batch === newest));
    const launches = this.arrows.filter(([, , kind]) => kind === LAUNCH);
    const calls = launches.filter(([, head]) => mine.has(this.rows[head]));
    const all = [...mine, ...calls.map(([tail]) => this.rows[tail])];
    const called = Math.min(...all.map(({ start }) => start));
    const after = this.steps.findIndex(({ start }) => start >= called);
    return after < 0 ? last : after;
  }
}

/** The numbers of a timeline, named as those of `Summary`; `sets` has when the GPU does what. */
export function summarize(timeline, samplesOfBatch, words) {
  const loop = new Loop(timeline),
    outside = loop.outside();
  const judged = subtract([[loop.start, loop.end]], outside);
  const here = rows => intersect(coveredBy(rows), judged);
  const kernels = here(loop.kernels),
    copies = here(loop.copies),
    work = here(loop.work);
  const span = lengthOf(judged),
    compute = lengthOf(kernels),
    copy = lengthOf(copies);
  const hidden = lengthOf(intersect(copies, kernels)),
    limit = Math.max(compute, copy);
  const waits = words
    .map((word, cause) => [
      word,
      here(loop.own.filter(row => row.kind === KIND.wait && row.cause === cause)),
    ])
    .filter(([, set]) => set.length);
  const batches = loop.steps.length,
    pace = loop.pace(outside);
  const step = batches > 1 ? pace : pace || ratio(span, batches);
  const samples = batches * samplesOfBatch;
  return {
    window: span,
    compute,
    copy,
    h2d: copy,
    hidden_copy: hidden,
    exposed_copy: copy - hidden,
    overlap: ratio(hidden, copy),
    busy: ratio(lengthOf(work), span),
    idle: span - lengthOf(work),
    host_blocked: Object.fromEntries(waits.map(([word, set]) => [word, lengthOf(set)])),
    limit,
    headroom: ratio(span, limit),
    batches,
    samples,
    step,
    samples_per_second: ratio(samples * 1e9, batches * (step || 0)),
    copy_share: ratio(copy, span),
    compute_share: ratio(compute, span),
    breakdown: breakdownOf(loop, judged, { kernels, copies, work, waits }),
    outside: lengthOf(outside),
    sets: statesOf(loop),
    loop,
  };
}

/** Every ns of what is judged: device work, then what the host does while the device is idle. */
function breakdownOf({ own }, judged, { kernels, copies, work, waits }) {
  const host = kind => coveredBy(own.filter(row => row.kind === kind));
  const layers = layersOf(judged, [
    ["compute", kernels],
    ["copy exposed", copies],
    ["other device work", work],
    ...waits.map(([word, set]) => [`idle: host blocked, ${word}`, set]),
    ["idle: host fetches a batch", host(KIND.fetch)],
    ["idle: host pins a batch", host(KIND.pin)],
    ["idle: host in CUDA calls", host(KIND.api)],
    ["idle: host in operators", host(KIND.operator)],
    ["idle: other", judged],
  ]);
  const lengths = layers.map(([name, set]) => [name, lengthOf(set)]);
  return Object.fromEntries(lengths.filter(([, time]) => time));
}

/** What the GPU is doing, as sets that are disjoint and together fill the timeline. */
function statesOf({ rows, kernels, copies, start }) {
  const whole = [[start, Math.max(...rows.map(({ end }) => end))]];
  const [computes, copying] = [coveredBy(kernels), coveredBy(copies)];
  return layersOf(whole, [
    ["copy hidden", intersect(computes, copying)],
    ["copy exposed", copying],
    ["compute", computes],
    ["idle", whole],
  ]);
}

// ----------------------------------------------------------------------------------------- picture

const HOST_LANES = ["worker", "pin", "main"];

/** The lanes of the picture, in the order of a batch's way, with their spans by track. */
function arranged({ lanes, rows }) {
  const of = (number, ...kinds) =>
    [...rows.keys()].filter(
      place => rows[place].lane === number && (!kinds.length || kinds.includes(rows[place].kind)),
    );
  const found = [],
    add = (spans, about) =>
      spans.length &&
      found.push({
        mirror: false,
        role: "",
        of: -1,
        title: about.name,
        tracks: tracksOf(rows, spans),
        ...about,
      });
  const order = [...lanes.keys()].sort((one, other) => lanes[one].number - lanes[other].number);
  const host = HOST_LANES.flatMap(role => order.filter(number => lanes[number].role === role));
  for (const number of host) {
    const { name, role, number: which } = lanes[number];
    const about = { title: name, kind: "host", of: number, role };
    if (role !== "main") {
      add(of(number), { ...about, name, short: role === "pin" ? "pin" : `w${which}` });
      continue;
    }
    const calls = of(number, KIND.api, KIND.fetch, KIND.pin);
    const loads = calls.some(place => rows[place].kind !== KIND.api);
    const [holds, short] = loads ? ["loads, calls", "load"] : ["CUDA calls", "calls"];
    const own = (spans, told, brief) =>
      add(spans, { ...about, name: `main thread${told}`, short: `main: ${brief}` });
    own(of(number, KIND.range), ": batches", "batches");
    own(calls, `: ${holds}`, short);
    own(of(number, KIND.wait), " waits", "waits");
  }
  const copies = [...rows.keys()].filter(place => rows[place].kind === KIND.h2d);
  const title = "H2D copy engine: the copies to the GPU, of all streams";
  const engine = { name: "copy engine to GPU", short: "copy in", title, kind: "engine" };
  add(copies, { ...engine, mirror: true });
  const device = order.filter(each => lanes[each].group === "device" && of(each).length);
  for (const number of device) {
    const { name: title, role, number: which } = lanes[number],
      alone = which === 7 ? "default" : device.length < 3 && "side";
    const [name, short] = alone ? [`${alone} stream`, alone] : [`side ${title}`, `s${which}`];
    add(of(number), { kind: "stream", of: number, role, name, short, title });
  }
  const strip = { name: "what the GPU does", short: "GPU", kind: "strip", tracks: [[]] };
  const over = "what the GPU is doing, over all streams";
  return [...found, { ...strip, title: over, of: -1, role: "", mirror: false }];
}

/** Spans that nest go one track down. */
function tracksOf(rows, spans) {
  const ends = [],
    tracks = [];
  for (const place of spans) {
    const { start, end } = rows[place];
    while (ends.length && ends.at(-1) <= start) ends.pop();
    if (ends.length < DEPTH) (tracks[ends.length] ??= []).push(place);
    if (end > start) ends.push(end);
  }
  return tracks;
}

/** Half to even, as Python rounds. */
function rounded(value) {
  const low = Math.floor(value),
    rest = value - low;
  return rest === 0.5 ? low + Math.abs(low % 2) : Math.round(value);
}

const STATE_KEYS = {
  compute: "state:compute",
  "copy exposed": "state:copy exposed",
  "other device work": "state:other device work",
};

/** Where a step goes: the window's breakdown, divided by its steps. */
function whereOf({ window, step, breakdown }) {
  const steps = step ? window / step : 1;
  return Object.entries(breakdown).map(([name, time]) => ({
    name: name === "compute" ? "GPU computes" : name,
    ns: rounded(time / steps),
    key: STATE_KEYS[name] ?? (name.startsWith("idle: host blocked") ? "wait" : "state:idle"),
  }));
}

const COLUMNS = "start end style name batch nbytes cause pinned source hidden".split(" ");

/** Head and columns of the view for `parts`, each a timeline and its summary, and maybe its name.
 *
 * `looks` are the styles, as pack.py has them. `folded`: one row each, with its speed against the
 * first; `only` names lanes (their short names without numbers), where not all are wanted.
 */
export function pictured(parts, looks, { folded = false, only = null } = {}) {
  const drawn = { bars: [], arrows: [], names: new Map([["", 0]]), sources: [0], looks, only };
  const made = parts.map(each => partOf(each, drawn, folded && parts[0].summary));
  const column = (table, place) => {
    const found = new Float64Array(table.length); // by hand: `from` takes ten times as long
    for (let row = 0; row < found.length; row++) found[row] = table[row][place];
    return found;
  };
  const { bars, arrows, names, sources } = drawn;
  const columns = Object.fromEntries(COLUMNS.map((name, place) => [name, column(bars, place)]));
  ["tail", "head", "arrow"].forEach((name, place) => {
    columns[name] = column(arrows, place);
  });
  columns.duration = columns.end.map((end, place) => end - columns.start[place]);
  columns.count = new Float64Array(bars.length).fill(1);
  const told = sources.map(line => (line ? `line ${line} of the code` : ""));
  const head = { v: 1, color: "batch", window: null, notes: [], ...looks, parts: made };
  Object.assign(head, { names: [...names.keys()], sources: told });
  return { head: { ...head, rows: bars.length, arrows: arrows.length }, columns };
}

/** One timeline of the picture; its bars and arrows are put behind those that are drawn. */
function partOf({ timeline, summary, name = "" }, drawn, first) {
  const { rows } = timeline,
    { loop, sets } = summary,
    { bars, names, sources, looks } = drawn;
  const isAsked = ({ short }) => !drawn.only || drawn.only.includes(short.replace(/\d+$/, ""));
  const lanes = arranged(timeline).filter(isAsked);
  const kernels = coveredBy(loop.kernels),
    bar = new Map();
  for (const { source } of rows) if (!sources.includes(source)) sources.push(source);
  const numbered = text => names.get(text) ?? names.set(text, names.size).size - 1;
  const hidden = ({ kind, start, end }) =>
    kind === KIND.h2d ? rounded((within(kernels, start, end) / (end - start)) * 200) : 255;
  const styleOf = state => looks.styles.findIndex(({ key }) => key === `state:${state}`);
  const plain = { name: "", batch: -1, nbytes: -1, cause: 0, pinned: null, source: 0 };
  const states = sets.flatMap(([state, set]) =>
    set.map(([start, end]) => ({ ...plain, start, end, kind: styleOf(state) })),
  );
  states.sort((one, other) => one.start - other.start);
  for (const { kind, tracks, mirror } of lanes) {
    for (const track of tracks) {
      if (kind === "strip") track.push(...states.keys());
      for (const place of track) {
        const row = (kind === "strip" ? states : rows)[place];
        if (kind !== "strip" && !mirror) bar.set(place, bars.length);
        bars.push([
          row.start - loop.start,
          row.end - loop.start,
          row.kind,
          numbered(row.name),
          row.batch,
          row.nbytes,
          row.cause,
          row.pinned === null ? 0 : 1 + row.pinned,
          sources.indexOf(row.source),
          hidden(row),
        ]);
      }
    }
  }
  drawn.arrows.push(
    ...timeline.arrows
      .filter(([tail, head]) => bar.has(tail) && bar.has(head))
      .map(([tail, head, kind]) => [bar.get(tail), bar.get(head), kind])
      .sort((one, other) => one[0] - other[0] || one[1] - other[1]),
  );
  const last = Math.max(...rows.map(({ end }) => end));
  return {
    name,
    finding: "",
    duration: last - loop.start,
    folded: Boolean(first),
    hero: first ? heroOf(summary, first, lanes) : null,
    where: whereOf(summary),
    groups: [],
    strips: [],
    marks: [],
    findings: [],
    ghost: null,
    where_title: `a step, ${duration(summary.step ?? 0)}`,
    whole: null,
    lanes: lanes.map(({ tracks, mirror, ...about }) => ({
      ...about,
      group: -1,
      tracks: tracks.map(track => ({ count: track.length, mirror })),
    })),
  };
}

/** The numbers beside a row, as comparison.py has them; `first` is what speeds are told against. */
function heroOf(summary, first, lanes) {
  const { window, step, exposed_copy: exposed, hidden_copy: hidden, idle } = summary;
  const steps = step ? window / step : 1,
    each = time => rounded(time / steps);
  const [rate, before] = [summary, first].map(({ samples_per_second: per }) => per);
  const speedup = rate && before ? rate / before : ratio(first.window, window);
  return {
    step,
    speedup,
    exposed: each(exposed),
    hidden: each(hidden),
    idle: each(idle),
    busy: summary.compute_share,
    lane: lanes.findIndex(({ kind }) => kind === "strip"),
  };
}
