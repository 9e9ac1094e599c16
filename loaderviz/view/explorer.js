// The explorer in a page: settings -> picture, numbers, code and words, without a kernel.
// emulator.js works out the timeline, numbers.js what it says, the view draws it. All sentences
// with numbers come from `tables.texts`, which Python writes its own with.

// ------------------------------------------------------------------------------------------- words

/** A small number as Python's %g writes it. */
function general(value) {
  if (!value) return "0";
  const [digits, power] = value.toExponential(5).split("e").map(Number);
  return power < -4 ? `${digits}e-0${-power}` : `${Number(value.toPrecision(6))}`;
}

function perSecond(value) {
  if (value >= 1e6) return `${number(Number((value / 1e6).toPrecision(4)))} M`;
  return value >= 100 ? number(rounded(value)) : `${Number(value.toPrecision(3))}`;
}

const inThreads = ({ threads, workers }) => threads && workers > 0;
const held = python => share(python / FULL);

/** The state in one line, as `Settings.words` has it. */
function stateWords(settings, { texts, gpus }) {
  const bytes = size(settings.sample_bytes).replace("bytes", "B"),
    { short } = gpus[settings.gpu];
  const state = `${short}${texts.comma}${number(settings.batch_size)} × ${bytes}`;
  if (settings.resident) return `${state}${texts.comma}${texts.resident}`;
  const policy = settings.lifetime === "consumer" ? "" : ` (${settings.lifetime})`;
  const values = { ...settings, policy, held: held(settings.python) };
  const kind = inThreads(settings) ? "thread" : "worker";
  return [
    state,
    fill(texts[settings.workers === 1 ? kind : `${kind}s`], values),
    settings.pin ? texts.pinned : texts.pageable,
    settings.non_blocking && texts.non_blocking,
    settings.side_stream ? fill(texts.side, values) : texts.one_stream,
    settings.depth && fill(texts.ahead, values),
    settings.ranks_on_host > 1 && fill(texts.ranks, values),
  ]
    .filter(Boolean)
    .join(texts.comma);
}

/** What the numbers say, as `metrics.finding` has it for one GPU. */
function findingOf({ compute_share: computes, overlap, headroom }, { texts, at_the_limit: limit }) {
  const away =
    headroom <= limit ? texts.at_the_limit : fill(texts.of_the_limit, { times: times(headroom) });
  const hidden = overlap === null ? texts.no_copies : fill(texts.hidden, { share: share(overlap) });
  return [fill(texts.computes, { share: share(computes) }), hidden, headroom !== null && away]
    .filter(Boolean)
    .join(texts.comma);
}

/** What the loop waits for, and what would change it, as `advice` in widgets/explorer.py. */
function adviceOf(settings, summary, tables) {
  const { texts } = tables,
    rest = Object.entries(summary.breakdown).filter(([name]) => name !== "compute");
  if (summary.compute_share >= tables.busy) return texts.busy;
  if (!rest.length) return "";
  const [cause, time] = rest.reduce((most, each) => (each[1] > most[1] ? each : most));
  const remedy = remedyOf(cause, settings, summary, tables),
    what = tables.rests[cause] ?? cause;
  return fill(texts.rest, { share: share(time / summary.window), what, remedy }).trimEnd();
}

function remedyOf(cause, settings, summary, tables) {
  const { texts } = tables;
  if (cause === "copy exposed") {
    if (summary.copy_share < tables.worth_hiding) return texts.small_copy;
    const missing = Object.keys(tables.ways).filter(name => !settings[name]);
    const names = missing.map(name => tables.ways[name]).join(texts.comma);
    return missing.length ? fill(texts.hide, { missing: names }) : texts.long_copy;
  }
  if (cause.startsWith("idle: host in")) return texts.launching;
  const isFetching = [CAUSE.data, CAUSE.gil].some(each => cause.endsWith(tables.causes[each]));
  if (!isFetching) return "";
  const host = new Host(tables.host, 1),
    nbytes = settings.batch_size * settings.sample_bytes,
    sends = !inThreads(settings);
  const pinning = sends * host.receiving(nbytes) + (settings.pin ? host.pinning(nbytes) : 0);
  const work = host.fetchTime(nbytes) + settings.batch_size * settings.fetch_per_sample;
  const fetching = work + sends * host.sending(nbytes),
    each = fetching / Math.max(1, settings.workers),
    locked = sends ? 0 : thousandths(work, settings.python);
  if (locked >= Math.max(each, pinning)) return fill(texts.lock, { time: duration(locked) });
  return each >= pinning
    ? fill(texts.more_workers, { time: duration(fetching) })
    : fill(texts.pin_thread, { time: duration(pinning) });
}

/** The code of settings, and which of its lines does what, as `program_of` in Python. */
function programOf(settings, tables) {
  const policy = tables.lifetimes[settings.lifetime],
    loads = !settings.resident;
  const side = loads && settings.side_stream,
    ahead = loads && settings.depth > 0;
  const slow = loads && settings.fetch_per_sample > 0,
    ring = side && policy.ring,
    pool = loads && inThreads(settings);
  const true_ = {
    loads,
    side,
    ahead,
    slow,
    ring,
    pool,
    pins: settings.pin,
    queue: ahead || pool,
    again: ahead || ring || pool,
    library: ahead || ring || pool || slow,
    own: side && policy.of_consumer,
    waits: side && policy.waits,
    records: side && policy.records,
  };
  const { batch_size: batch, sample_bytes: bytes, depth } = settings;
  const values = {
    ...settings,
    samples: tables.samples,
    took: duration(settings.compute),
    buffers: depth + 1,
    held: held(settings.python),
    ordered: PREFETCH_FACTOR * settings.workers,
    inner: ahead ? "    " : "",
    seconds: general(settings.fetch_per_sample / 1e9),
    pinned: settings.pin ? ", pin_memory=True" : "",
    shape: `${batch}, ${bytes}, dtype=torch.uint8, device="cuda"`,
    how: settings.non_blocking ? ", non_blocking=True" : "",
    batches: depth === 1 ? "batch" : `${depth} batches`,
  };
  const kept = fill(tables.program, values)
    .split("\n")
    .filter(Boolean)
    .map(line => [line.slice(0, line.indexOf("|")), line.slice(line.indexOf("|") + 1)])
    .filter(([guard]) =>
      guard
        .split(" ")
        .filter(Boolean)
        .every(word => true_[word.replace("-", "")] !== word.startsWith("-")),
    );
  const lines = {},
    text = kept.map(([, line], at) => {
      const [shown, does] = line.split("  #: ");
      if (does) lines[does] = at + 1;
      return `${shown}\n`;
    });
  return { text: text.join(""), lines };
}

function difference(former, summary, { texts }) {
  if (!former?.step || !summary.step) return "";
  const faster = former.step / summary.step,
    same = faster > 0.995 && faster < 1.005;
  const slower = fill(texts.slower, { times: times(1 / faster) });
  const quicker = fill(texts.faster, { times: times(faster) });
  const change = same ? texts.same : faster > 1 ? quicker : slower;
  const [now, before] = [summary, former].map(({ step }) => duration(step));
  return fill(texts.changed, { now, before, change });
}

/** All that the page shows of settings. Throws `OutOfMemory` and `SettingsError`. */
export function workedOut(settings, tables) {
  const program = programOf(settings, tables);
  const timeline = simulate(settings, tables, does => program.lines[does] ?? 0);
  const summary = summarize(timeline, settings.batch_size, tables.causes);
  const { texts } = tables,
    finding = findingOf(summary, tables);
  const state = fill(texts.said, { state: stateWords(settings, tables), finding });
  const text = fill(texts.whole, { state, advice: adviceOf(settings, summary, tables) });
  return { settings, program, timeline, summary, state, text };
}

/** Typed settings, such as "workers=3, pin=True". Throws `SettingsError`. */
export function typed(text, tables) {
  const found = {};
  for (const piece of text.split(",").filter(each => each.trim())) {
    const [, name, word] = /^\s*(\w+)\s*=\s*(\S+)\s*$/.exec(piece) ?? [];
    if (!name) throw new SettingsError(fill(tables.texts.sets_nothing, { text: piece.trim() }));
    const bare = word.replaceAll("_", ""),
      plain = { True: true, False: false }[word];
    found[name] = plain ?? (/^-?\d+$/.test(bare) ? Number(bare) : word.slice(1, -1));
  }
  return checked(found, tables);
}

/** These settings, if each means something. Throws `SettingsError`, with what is there. */
function checked(settings, { texts, limits, ...tables }) {
  const choices = { gpu: tables.gpus, lifetime: tables.lifetimes };
  const refuse = (text, values) => {
    throw new SettingsError(fill(texts[text], values));
  };
  for (const [name, value] of Object.entries(settings)) {
    const names = Object.keys(tables.settings).join(", ");
    if (!Object.hasOwn(tables.settings, name)) refuse("no_setting", { name, names });
    const [least, most] = limits[name] ?? [],
      known = choices[name];
    if (limits[name] && !(Number.isInteger(value) && value >= least && value <= most)) {
      refuse("number", { name, value, least: number(least), most: number(most) });
    } else if (known && !Object.hasOwn(known, value)) {
      refuse("choice", { name, value, names: Object.keys(known).join(", ") });
    } else if (typeof tables.settings[name] === "boolean" && typeof value !== "boolean") {
      refuse("truth", { name, value });
    }
  }
  return settings;
}

// ---------------------------------------------------------------------------------------- controls

const steps = (from, to, factors) =>
  Array.from({ length: to - from }, (_, power) =>
    factors.map(factor => Math.round(factor * 10 ** (from + power))),
  ).flat();
const RATES = [1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 25, 32, 40, 55, 80, 97, 150, 300].map(
  each => each * SECOND,
);
const bytesOf = value => size(value).replace("bytes", "B");
const SAMPLES = [100, 400, 784, 1_500, 3_136, 6_000, 12_288, 30_000, 60_000, 150_528, 602_112];
const upTo = most => [...Array(most).keys()];

const SLIDERS = {
  // what is offered, and how it is written if it is no count of tables.counts
  batch_size: [upTo(13).map(power => 8 << power)],
  sample_bytes: [SAMPLES, bytesOf],
  compute: [steps(3, 9, [1, 1.5, 2, 3, 4.4, 6, 8.8]), duration],
  kernels: [[1, 2, 4, 8, 12, 17, 24, 32, 48, 64]],
  workers: [upTo(13)],
  python: [upTo(11).map(tenth => tenth * 100), held],
  ranks_on_host: [[1, 2, 4, 8, 16]],
  fetch_per_sample: [[0, ...steps(3, 6, [1, 2, 5]), 1e6], duration],
  depth: [upTo(9)],
  pinned_rate: [RATES, value => `${bytesOf(value)}/s`],
  pageable_rate: [RATES, value => `${bytesOf(value)}/s`],
};
const CHECKS = ["pin", "non_blocking", "side_stream"];
const WORKERS = ["workers", "threads", "python", "ranks_on_host", "fetch_per_sample", ...CHECKS];
const GROUPS = {
  machine: ["gpu", "pinned_rate", "pageable_rate"],
  work: ["resident", "batch_size", "sample_bytes", "compute", "kernels"],
  loading: [...WORKERS, "depth", "lifetime"],
};

/** The value of a slider in words, with its unit. */
function written(name, value, { counts }) {
  const [, write] = SLIDERS[name];
  if (write) return value ? write(value) : counts.nothing;
  const [one, many = one] = counts[name].split("|");
  return fill(value === 1 ? one : many, { count: number(value) });
}

const EXPLORER_STYLE = "__LV_EXPLORER_CSS__"; // explorer.css; put in by view/picture.py

/** Settings in which some have changed; what follows from those changes, too. */
function moved(settings, values, { gpus }) {
  const now = { ...settings, ...values };
  if (values.gpu) {
    const { h2d, pageable } = gpus[values.gpu];
    Object.assign(now, { pinned_rate: h2d, pageable_rate: pageable });
  }
  if (values.batch_size) {
    // a larger batch is more work: the time per sample stays
    now.compute = Math.max(1, rounded((settings.compute * now.batch_size) / settings.batch_size));
  }
  return now;
}

class Explorer {
  /** `place` is filled; `tell` hears of each change that worked. */
  constructor(place, { tables, settings }, tell = () => {}) {
    const number = Math.random().toString(36).slice(2); // a page may have this module twice
    Object.assign(this, { place, tables, tell, number, controls: {}, axis: 0 });
    this.build();
    this.show(settings);
  }

  build() {
    const part = (name, ...children) => {
      const node = el("div", `lv-${name}`);
      node.append(...children);
      return node;
    };
    const { labels, presets } = this.tables;
    this.presets = Object.entries(presets).map(([name, preset]) => {
      const said = labels[name === "resident" ? "on_gpu" : name];
      const title = fill(labels.help_preset, { name: said });
      const node = el("button", "", said, { type: "button", title });
      node.addEventListener("click", () => this.change(preset));
      return node;
    });
    this.numbers = el("div", "lv-numbers");
    const isLive = this.place.hasAttribute("data-lv-live");
    this.host = el("div", "", undefined, isLive ? { "data-lv-live": "" } : {});
    this.words = el("p", "lv-words", undefined, { role: "status", "aria-live": "polite" });
    this.problem = el("p", "", undefined, { role: "alert" });
    const about = { tabindex: "0", role: "region", "aria-label": labels.code_region };
    this.code = el("pre", "", undefined, about);
    const groups = Object.entries(GROUPS).map(([title, names]) => {
      const group = el("fieldset");
      group.append(el("legend", "", labels[title]), ...names.map(name => this.control(name)));
      return group;
    });
    groups[1].append(this.typing());
    const head = el("div"),
      copy = el("button", "", labels.copy_code, { type: "button" });
    copy.addEventListener("click", () => this.copy(copy));
    head.append(el("b", "", labels.code), copy);
    const all = part(
      "all",
      part("presets", ...this.presets),
      this.numbers,
      part("picture", this.host, this.words, this.problem),
      part("controls", ...groups),
      part("code", head, this.code),
    );
    this.place.replaceChildren(Object.assign(el("style"), { textContent: EXPLORER_STYLE }), all);
    this.place.addEventListener("keydown", keepKeys);
  }

  row(name, label, control, ...more) {
    const row = el("div", control.type === "checkbox" ? "lv-row lv-check" : "lv-row");
    control.id = `lv-${this.number}-${name}`;
    const title = el("label", "", label, { for: control.id });
    row.append(...(control.type === "checkbox" ? [control, title] : [title, control]), ...more);
    return row;
  }

  control(name) {
    if (name in SLIDERS) return this.slider(name);
    const isCheck = CHECKS.includes(name),
      label = this.tables.labels[name];
    const control = isCheck ? el("input", "", undefined, { type: "checkbox" }) : el("select");
    const value = () => (isCheck ? control.checked : this.choices[name][control.value]);
    control.addEventListener("change", () => this.change({ [name]: value() }));
    this.controls[name] = {
      node: control,
      set: now => {
        const key = Object.entries(this.choices[name] ?? {}).find(([, each]) => each === now)?.[0];
        if (isCheck) control.checked = now;
        else control.value = key;
      },
    };
    if (isCheck) return this.row(name, label, control);
    for (const key of Object.keys(this.choices[name])) control.append(el("option", "", key));
    return this.row(name, label, control);
  }

  /** What a list offers: its words, and the value that each sets. */
  get choices() {
    const same = table => Object.fromEntries(Object.keys(table).map(name => [name, name]));
    const { labels, gpus, lifetimes } = this.tables,
      resident = { [labels.in_host]: false, [labels.in_gpu]: true },
      threads = { [labels.processes]: false, [labels.in_threads]: true };
    return { gpu: same(gpus), lifetime: same(lifetimes), resident, threads };
  }

  slider(name) {
    const [offered] = SLIDERS[name],
      { labels } = this.tables,
      label = labels[name];
    const help = labels[`help_${name}`] ?? label;
    const control = el("input", "", undefined, { type: "range", min: 0, step: 1, title: help });
    const output = el("output");
    let values = offered;
    control.addEventListener("input", () => this.change({ [name]: values[control.value] }));
    this.controls[name] = {
      node: control,
      set: value => {
        values = [...new Set([...offered, value])].sort((one, other) => one - other);
        control.max = values.length - 1;
        control.value = values.indexOf(value);
        output.textContent = written(name, value, this.tables);
        control.setAttribute("aria-valuetext", output.textContent);
      },
    };
    return this.row(name, label, control, output);
  }

  typing() {
    const hint = "workers=3, batch_size=1000";
    const {
      labels: { typed: label, help_typed: title },
    } = this.tables;
    const control = el("input", "", undefined, { type: "text", placeholder: hint, title });
    control.addEventListener("change", () => {
      try {
        const values = typed(control.value, this.tables);
        control.value = "";
        this.show({ ...this.settings, ...values });
      } catch (problem) {
        this.problem.textContent = `${problem.message}. ${fill(this.tables.texts.type, { hint })}`;
      }
    });
    return this.row("typed", label, control);
  }

  change(values) {
    this.show(moved(this.settings, values, this.tables));
  }

  /** Show settings; what does not fit is said, and the picture stays. */
  show(settings) {
    const former = this.now;
    this.settings = settings;
    this.showControls();
    try {
      this.now = workedOut(settings, this.tables);
    } catch (problem) {
      if (!(problem instanceof OutOfMemory || problem instanceof SettingsError)) throw problem;
      const { texts } = this.tables,
        full = problem instanceof OutOfMemory;
      this.problem.textContent = `${full ? texts.out_of_memory : problem.message} ${texts.stays}`;
      return;
    }
    this.problem.textContent = "";
    this.draw(former?.summary);
    if (former) this.tell(settings);
  }

  showControls() {
    const { settings } = this,
      { workers: threads, side_stream: lifetime } = settings,
      isAsked = { threads, lifetime, python: inThreads(settings) };
    for (const [name, { node, set }] of Object.entries(this.controls)) {
      if (this.shown?.[name] !== settings[name]) set(settings[name]);
      node.disabled = settings.resident ? GROUPS.loading.includes(name) : !(isAsked[name] ?? true);
      node.parentNode.classList.toggle("lv-off", node.disabled);
    }
    Object.values(this.tables.presets).forEach((preset, at) => {
      const on = Object.entries(preset).every(([name, value]) => settings[name] === value);
      setAttribute(this.presets[at], "aria-pressed", on);
    });
    this.shown = settings;
  }

  draw(former) {
    const { timeline, summary, program, state, text, settings } = this.now,
      { tables } = this;
    const { head, columns } = pictured([{ timeline, summary }], tables.looks);
    this.axis = Math.max(this.axis, head.parts[0].duration); // so that lengths can be compared
    const { texts, labels, counts, picture: words } = tables;
    const machines = { gpu: tables.gpus[settings.gpu].name, host: tables.host.name };
    const subtitle = fill(texts.origin, machines);
    const { axis } = this,
      { causes } = tables;
    const about = { title: state, subtitle, twin: text, axis, causes, words };
    Object.assign(head, about, tables.frame);
    const said = former ? difference(former, summary, tables) : texts.outline;
    if (this.view) this.view.load(head, columns, { keep: true, difference: said });
    else this.view = begin(this.host, head, columns, { difference: said });
    const rate = perSecond(summary.samples_per_second ?? 0);
    const shown = [
      [labels.step, duration(summary.step ?? 0)],
      [labels.throughput, fill(counts.per_second, { count: rate })],
      [labels.computes, share(summary.compute_share)],
      [labels.hidden, summary.overlap === null ? texts.no_copies : share(summary.overlap)],
      [labels.limit, summary.headroom === null ? "–" : times(summary.headroom)],
    ];
    const pairs = shown.map(([name, value]) => {
      const pair = el("div");
      pair.append(el("div", "lv-name", name), el("div", "lv-value", value));
      return pair;
    });
    renew(this.numbers, pairs);
    setText(this.words, text);
    if (this.code.textContent === program.text) return;
    this.code.textContent = program.text;
    requestAnimationFrame(() => {
      // when all is written, so that it is laid out once
      this.code.scrollTop = this.code.scrollHeight; // its end, where the loop is
    });
  }

  copy(node) {
    const done = () => {
      node.textContent = this.tables.labels.copied;
      setTimeout(() => {
        node.textContent = this.tables.labels.copy_code;
      }, 1500);
    };
    const select = () => getSelection().selectAllChildren(this.code);
    toClipboard(this.now.program.text, select, done);
  }
}

/** Without `https` a page has no clipboard: then what `select` selects is copied. */
function toClipboard(text, select, done) {
  const byHand = () => {
    select();
    done(document.execCommand("copy"));
  };
  const { clipboard } = navigator;
  if (clipboard) clipboard.writeText(text).then(() => done(true), byHand);
  else byHand();
}

/** JupyterLab takes single keys for its cells, and the focus; Shift+Enter and Ctrl+S stay its. */
function keepKeys(event) {
  const held = event.ctrlKey || event.metaKey || event.altKey || event.shiftKey;
  if (!held || event.key === "Tab") event.stopPropagation();
}

// ------------------------------------------------------------------------------------------- hosts

/** The explorers that a page was saved with. */
also.push(root => {
  for (const place of root.querySelectorAll(".lv-explorer")) {
    const data = place.querySelector(":scope > .lv-settings");
    if (place.lv || !data) continue;
    standIn(place);
    const build = () => {
      place.lv ??= new Explorer(place, JSON.parse(data.textContent));
    };
    if (!place.closest(".jp-OutputArea") || !place.hasAttribute("data-lv-stand")) build();
    else {
      // the widget of the next output may live in a moment: two would take twice as long
      const seen = () => {
        if (place.offsetHeight) build();
      };
      const come = ([{ isIntersecting }]) => isIntersecting && setTimeout(seen, 700);
      new IntersectionObserver(come).observe(place);
    }
  }
});

/** The widget: traits tables and settings; see widgets/controls.py. */
widgets.render = ({ model, el: place }) => {
  const about = { "data-lv-live": "", "data-lm-suppress-shortcuts": "true" };
  const node = el("div", "lv-explorer", undefined, about);
  place.append(node);
  place.dataset.lvLive = "";
  let later = 0;
  const tell = settings => {
    clearTimeout(later);
    later = setTimeout(() => {
      model.set("settings", settings);
      model.save_changes();
    }, 100);
  };
  const given = { tables: model.get("tables"), settings: model.get("settings") };
  const explorer = (node.lv = new Explorer(node, given, tell));
  model.on("change:settings", () => {
    const asked = model.get("settings");
    explorer.tables = model.get("tables");
    if (Object.keys(asked).some(name => asked[name] !== explorer.settings[name])) {
      explorer.show(asked);
    }
  });
  return () => explorer.view.destroy();
};

if (typeof document !== "undefined") upgradeAll();
