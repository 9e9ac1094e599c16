// The front page: six scenes, each with one picture of its own. Engine, view and explorer stand
// before this in the module. A scene is worked out when it comes near to the window.

const LONGEST_ADDRESS = 600; // characters of settings in an address

/** The first settings of a GPU: with its own link. */
function firstOf(gpu, tables) {
  const { gpus, settings } = tables;
  return Object.hasOwn(gpus, gpu) ? moved(settings, { gpu }, tables) : settings;
}

/** The settings of an address, or the first ones if it is `wrong`. */
export function settingsOf(hash, tables) {
  const text = hash.replace(/^#/, ""),
    start = { ...tables.settings };
  if (/^[\w-]*$/.test(text)) return { settings: start, wrong: false }; // a place in the page
  try {
    if (text.length > LONGEST_ADDRESS) throw new SettingsError("too long");
    const found = Object.create(null); // in which "__proto__" is a name as any other
    for (const piece of text.split("&")) {
      const [, name, word] = /^(\w+)=([\w.-]+)$/.exec(decodeURIComponent(piece)) ?? [];
      if (!name || Object.hasOwn(found, name)) throw new SettingsError(piece);
      const kind = typeof start[name],
        isTruth = kind === "boolean" && /^(true|false)$/.test(word);
      const isNumber = kind === "number" && /^\d{1,15}$/.test(word);
      found[name] = isTruth ? word === "true" : isNumber ? Number(word) : word;
    }
    const settings = { ...firstOf(found.gpu, tables), ...checked(found, tables) };
    workedOut(settings, tables); // or there is no memory for it
    return { settings, wrong: false };
  } catch (problem) {
    const known = [SettingsError, OutOfMemory, URIError];
    if (!known.some(kind => problem instanceof kind)) throw problem;
    return { settings: start, wrong: true };
  }
}

/** What an address has of settings: those that differ from the first. */
export function addressOf(settings, tables) {
  const first = { ...firstOf(settings.gpu, tables), gpu: tables.settings.gpu };
  const isOther = ([name, value]) => value !== first[name];
  const differs = Object.entries(settings).filter(isOther);
  return differs.length ? `#${differs.map(pair => pair.join("=")).join("&")}` : "";
}

// ------------------------------------------------------------------------------------------ scenes

/** Settings, timeline and numbers of each row of a scene. */
function rowsOf({ rows }, settings, tables) {
  return Object.fromEntries(
    Object.entries(rows).map(([name, changes]) => {
      const mine = { ...settings, ...changes },
        timeline = simulate(mine, tables);
      const summary = summarize(timeline, mine.batch_size, tables.causes);
      return [name, { settings: mine, timeline, summary }];
    }),
  );
}

/** Of each batch that is copied and computed: how long its copy takes, and how early it is. */
function batchesOf({ rows }) {
  const found = new Map(),
    copies = new Map();
  for (const row of rows) if (row.kind === KIND.h2d) copies.set(row.batch, row);
  for (const { kind, batch, start } of rows) {
    const copy = copies.get(batch);
    if (kind !== KIND.compute || !copy || found.has(batch)) continue;
    found.set(batch, { copy: duration(copy.end - copy.start), ahead: duration(start - copy.end) });
  }
  return new Map([...found].sort(([one], [other]) => one - other));
}

/** What the texts of a scene may ask for, in words, as `values_of` in docs/site.py. */
export function valuesOf(scene, tables, rows = rowsOf(scene, scene.settings, tables)) {
  const values = {},
    all = Object.entries(rows),
    [[, { summary: first }]] = all;
  for (const [name, { settings: mine, summary }] of all) {
    const { step, window, batches, overlap } = summary;
    const of = {
      batch: number(mine.batch_size),
      compute: duration(mine.compute),
      computes: share(summary.compute_share),
      hidden: overlap === null ? tables.texts.no_copies : share(overlap),
      step: duration(step),
      exposed: duration((summary.exposed_copy * step) / window),
      copy: duration(summary.copy / (batches || 1)),
      speedup: times(first.step / step),
    };
    for (const key of Object.keys(of)) values[`${name}_${key}`] = of[key];
  }
  const { settings: last, summary, timeline } = all.at(-1)[1],
    known = [...batchesOf(timeline)];
  const [batch, about] = known[Math.min(1, known.length - 1)] ?? [];
  return {
    ...values,
    gpu: tables.gpus[last.gpu].short,
    advice: adviceOf(last, summary, tables),
    ...(about && { batch: String(batch), ...about }),
  };
}

class Scene {
  constructor(name, { scenes, tables, texts, race }) {
    const place = document.getElementById(name),
      about = scenes[name],
      { settings, drawn } = about;
    Object.assign(this, { name, place, tables, texts, race, about, settings, drawn, axis: 0 });
    this.host = place.querySelector(".picture");
    this.said = place.querySelector(".said");
    this.tools = place.querySelector(".controls");
    this.tools.append(...about.controls.map(each => this.control(each)));
    this.equip();
    this.title = place.querySelector("h2").lastChild.textContent.trim();
    if (about.lanes || about.controls.length) this.place.append(this.opener());
    new IntersectionObserver(
      ([{ isIntersecting }], watcher) => {
        if (!isIntersecting) return;
        watcher.disconnect();
        this.show();
      },
      { rootMargin: "500px" },
    ).observe(place);
  }

  equip() {}

  text(key, values = {}) {
    return together(fill(this.texts[`${this.name}-${key}`], values));
  }

  /** A link that takes what is drawn last to the last scene. */
  opener() {
    const place = el("p", "open"),
      link = (this.link = el("a", "", this.texts.open));
    link.addEventListener("click", () => document.getElementById("numbers").scrollIntoView());
    place.append(link);
    return place;
  }

  /** A control of one setting, with its label and what it is set to. */
  control(name) {
    const { tables, settings } = this;
    const label = el("label"),
      title = el("span", "", tables.labels[name]);
    if (CHECKS.includes(name)) {
      const check = el("input", "", undefined, { type: "checkbox" });
      check.checked = settings[name];
      check.addEventListener("change", () => this.change({ [name]: check.checked }));
      label.append(check, title);
    } else if (name === "gpu") {
      const list = el("select");
      const option = ([key, { short }]) => el("option", "", short, { value: key });
      list.append(...Object.entries(tables.gpus).map(option));
      list.value = settings.gpu;
      list.addEventListener("change", () => this.change({ gpu: list.value }));
      label.append(title, list);
    } else {
      label.append(title, ...this.slider(name));
    }
    return label;
  }

  slider(name) {
    const values = [...new Set([...SLIDERS[name][0], this.settings[name]])];
    values.sort((one, other) => one - other);
    const about = { type: "range", min: 0, max: values.length - 1, step: 1 };
    const range = el("input", "", undefined, about);
    const output = el("output"),
      tell = () => {
        output.textContent = written(name, values[range.value], this.tables);
        range.setAttribute("aria-valuetext", output.textContent);
      };
    range.value = values.indexOf(this.settings[name]);
    range.addEventListener("input", () => {
      tell();
      this.change({ [name]: values[range.value] });
    });
    tell();
    return [range, output];
  }

  change(values) {
    this.settings = moved(this.settings, values, this.tables);
    this.show();
  }

  show() {
    const { about, tables, settings } = this;
    this.rows = rowsOf(about, settings, tables);
    this.values = valuesOf(about, tables, this.rows);
    this.draw();
    this.tell();
    const { settings: last } = Object.values(this.rows).at(-1);
    if (this.link) this.link.href = addressOf(last, tables) || "#numbers";
  }

  tell() {
    this.write(this.text("said", this.values));
  }
  write(text) {
    if (this.said.textContent !== text) this.said.textContent = text;
  }

  draw() {
    const { tables, about, drawn, rows } = this,
      folded = !about.lanes;
    const parts = drawn.map(row => ({ ...rows[row], name: folded ? this.text(`row-${row}`) : "" }));
    const { head, columns } = pictured(parts, tables.looks, { folded, only: about.lanes });
    const lengths = head.parts.map(part => part.duration),
      { causes, picture: words } = tables;
    const axis = (this.axis = Math.max(this.axis, ...lengths)); // so that they can be compared
    Object.assign(head, { plain: true, axis, causes, words, title: this.title, twin: "" });
    if (this.view) this.view.load(head, columns);
    else this.view = begin(this.host, head, columns);
    this.host.setAttribute("aria-describedby", `${this.name}-said`);
  }
}

class Now extends Scene {
  equip() {
    const play = el("button", "primary", this.texts.play, { type: "button" });
    play.addEventListener("click", () => {
      if (this.view?.playing) this.view.pause();
      else this.view?.play();
    });
    this.host.addEventListener("lv-time", ({ detail }) => {
      const text = detail.playing ? this.texts.pause : this.texts.play;
      if (play.textContent !== text) play.textContent = text;
    });
    this.tools.prepend(play);
  }
}

class Guess extends Scene {
  equip() {
    const changes = Object.keys(this.about.rows).slice(1);
    const about = { role: "group", "aria-label": this.text("ask") };
    const group = el("div", "choices", undefined, about);
    this.choices = changes.map(name => {
      const node = el("button", "", undefined, { type: "button", "aria-pressed": "false" });
      node.append(...codeIn(this.text(`choice-${name}`)));
      node.addEventListener("click", () => this.choose(name));
      return node;
    });
    group.append(...this.choices);
    const without = el("button", "quiet", this.text("without"), { type: "button" });
    without.addEventListener("click", () => this.choose(""));
    this.tools.append(group, without);
  }

  choose(mine) {
    this.mine = mine;
    this.drawn = Object.keys(this.about.rows);
    const changes = this.drawn.slice(1);
    this.choices.forEach((node, at) => node.setAttribute("aria-pressed", changes[at] === mine));
    this.show();
  }

  tell() {
    if (this.mine === undefined) return this.write(this.text("waiting"));
    const speed = name => this.rows.now.summary.step / this.rows[name].summary.step;
    const better = (one, other) => (speed(other) > speed(one) ? other : one);
    const best = Object.keys(this.about.rows).reduce(better);
    const verdict = { mine: this.mine && times(speed(this.mine)), best: times(speed(best)) };
    const judged = this.mine ? this.text(this.mine === best ? "right" : "wrong", verdict) : "";
    this.write(judged + this.text("said", this.values));
  }
}

class Prefetch extends Scene {
  equip() {
    const label = el("label"),
      list = (this.list = el("select"));
    label.append(el("span", "", this.text("follow")), list);
    list.addEventListener("change", () => {
      this.follow();
      this.tell();
    });
    const other = el("label"),
      check = el("input", "", undefined, { type: "checkbox" });
    this.forgets = check;
    other.append(check, el("span", "", this.text("forget")));
    check.addEventListener("change", () => this.show());
    this.tools.append(label, other);
    const name = this.tables.labels.code_region;
    const about = { tabindex: "0", role: "region", "aria-label": name };
    this.code = el("pre", "race", undefined, about);
    this.code.hidden = true;
    this.frozen = el("div", "picture");
    this.frozen.hidden = this.code.hidden;
    this.host.after(this.frozen);
    this.said.after(this.code);
  }

  draw() {
    const forgets = this.forgets.checked;
    this.list.disabled = this.host.hidden = this.link.hidden = forgets;
    this.code.hidden = this.frozen.hidden = !forgets;
    if (forgets) return this.freeze();
    super.draw();
    this.batches = batchesOf(this.rows.now.timeline);
    const chosen = this.list.value || this.values.batch;
    this.list.replaceChildren(...[...this.batches.keys()].map(each => el("option", "", `${each}`)));
    this.list.value = chosen;
    this.follow();
  }

  /** The race, as Python has recorded it: its picture, the host's lanes folded, and its code. */
  async freeze() {
    if (this.frozen.lv) return;
    const {
      head,
      body,
      code,
      values: { line },
    } = this.race;
    this.code.replaceChildren(
      ...code.split("\n").map(text => {
        const isMissing = text.includes(line),
          more = isMissing ? `  ← ${this.text("wait")}` : "";
        return el(isMissing ? "mark" : "span", "", `${text}${more}\n`);
      }),
    );
    const mine = { ...head, words: this.tables.picture, title: this.title };
    const { ready } = mount(this.frozen, mine, fromBase64(body)),
      view = await ready;
    const { lanes } = head.parts[0],
      ofHost = at => lanes[at].kind === "host";
    view.toggle(...[...lanes.keys()].filter(ofHost).map(at => `l0.${at}`));
    this.frozen.setAttribute("aria-describedby", `${this.name}-said`);
  }

  /** Only the way of one batch keeps its colour. */
  follow() {
    const { columns } = this.view.model,
      batch = Number(this.list.value);
    const copy = columns.batch.findIndex(
      (each, bar) => each === batch && this.view.head.styles[columns.style[bar]].key === "copy_h2d",
    );
    this.view.select(copy);
  }

  tell() {
    if (this.forgets.checked) return this.write(this.text("race", this.race.values));
    const batch = Number(this.list.value);
    this.write(this.text("said", { ...this.values, batch, ...this.batches.get(batch) }));
  }
}

/** Text with `code` in it, as nodes. */
function codeIn(text) {
  return text.split("`").map((piece, at) => (at % 2 ? el("code", "", piece) : piece));
}

// ----------------------------------------------------------------------------------------- numbers

/** The last scene: the explorer, whose settings are in the address. */
class Numbers {
  constructor({ tables, texts }) {
    Object.assign(this, { tables, texts });
    const find = name => document.getElementById(name),
      place = find("numbers");
    for (const name of ["problem", "link", "copied", "language"]) this[name] = find(name);
    const { settings, wrong } = this.asked();
    const later = fresh => {
      this.say(fresh);
      clearTimeout(this.later);
      this.later = setTimeout(() => this.keep(), 400); // Safari takes 100 addresses in 30 s
    };
    this.explorer = new Explorer(place.querySelector(".lv-explorer"), { tables, settings }, later);
    place.querySelector(".link").hidden = false;
    find("copy").addEventListener("click", () => this.copy());
    addEventListener("hashchange", () => {
      if (/^#[\w-]+$/.test(location.hash)) return; // a place in the page
      const { settings: other, wrong: ill } = this.asked();
      this.explorer.show(other);
      clearTimeout(this.later);
      this.say(other, ill);
      if (!ill) this.keep();
    });
    this.say(settings, wrong);
    if (!wrong) this.keep();
  }

  asked() {
    return settingsOf(location.hash, this.tables);
  }

  /** Links have what is shown, and what was wrong is said, in the same frame as the picture. */
  say(settings, wrong = false) {
    this.hash = addressOf(settings, this.tables);
    setText(this.problem, wrong ? this.texts["numbers-problem"] : "");
    setText(this.copied, "");
    this.link.value = location.href.split("#")[0] + this.hash;
    this.language.hash = this.hash;
  }

  /** The address has it, too; a place in the page that it named stays. */
  keep() {
    const isPlace = /^#[\w-]+$/.test(location.hash);
    if (isPlace && !this.hash) return;
    history.replaceState(null, "", this.hash || location.href.split("#")[0]);
  }

  copy() {
    const { texts } = this,
      done = isCopied => {
        this.copied.textContent = isCopied ? texts["numbers-copied"] : texts["numbers-by-hand"];
      };
    toClipboard(this.link.value, () => this.link.select(), done);
  }
}

/** The page in the reader's language, unless its address says which. */
function isElsewhere() {
  const other = document.getElementById("language"),
    [first = ""] = navigator.languages ?? [];
  const isAsked = new URLSearchParams(location.search).has("lang");
  const isEnglish = document.documentElement.lang === "en";
  if (isAsked || !isEnglish || !first.startsWith(other.lang)) return false;
  location.replace(other.pathname + location.hash);
  return true;
}

if (typeof document !== "undefined" && !isElsewhere()) {
  const data = JSON.parse(document.getElementById("story").textContent);
  const kinds = { now: Now, guess: Guess, prefetch: Prefetch };
  const scenes = Object.keys(data.scenes).map(name => new (kinds[name] ?? Scene)(name, data));
  const place = document.getElementById("numbers"),
    isShared = /[^#\w-]/.test(location.hash);
  const build = () => {
    place.lv ??= new Numbers(data);
  };
  if (isShared) build();
  const near = { rootMargin: "800px" };
  const seen = ([{ isIntersecting }]) => isIntersecting && build();
  new IntersectionObserver(seen, near).observe(place);
  if (isShared) place.scrollIntoView();
  globalThis.lvScenes = scenes; // for tests
}
