// The explorer's loop in virtual time, where there is no Python: settings -> timeline.
//
// It follows loaderviz/emulator for what `Settings` can say; tests/view/test_engine.py holds it
// equal, to the nanosecond. It is shorter by what such a loop never meets: only the default stream
// computes and only one stream copies, so no engine is asked for by two. A command's start and end
// are known when it is enqueued. Times are whole ns, sizes bytes, rates bytes a second; machines,
// presets and limits are those of Python's tables (`tables_of` in widgets/explorer.py).

const SECOND = 1_000_000_000,
  FULL = 1000,
  PAGE = 4096,
  MIB = 2 ** 20;
const PAGEABLE_ASYNC = 65_536,
  PREFETCH_FACTOR = 2;
const KIND = { compute: 0, h2d: 2, api: 6, operator: 7, fetch: 8, pin: 9, wait: 10, range: 11 };
const CAUSE = { staging: 1, synchronize: 2, full: 3, locking: 4, allocation: 5, data: 6, gil: 13 };
const LAUNCH = 0,
  WAITED = 1; // kinds of arrows

/** ceil(a * b / c) of whole numbers, exact where the product is beyond 2^53, too. */
function ceilOf(a, b, c) {
  const product = a * b,
    rest = product % c;
  if (product <= Number.MAX_SAFE_INTEGER) return (product - rest) / c + (rest > 0);
  return Number((BigInt(a) * BigInt(b) + BigInt(c) - 1n) / BigInt(c));
}

const floorOf = (a, b) => (a - (a % b)) / b;
/** floor(a * b / 1000) of whole numbers, as exact. */
const thousandths = (a, b) => Number((BigInt(a) * BigInt(b)) / BigInt(FULL));
const pages = nbytes => ceilOf(nbytes, 1, PAGE);

/** First place in a sorted list at which `value` could stand; after its equals if `right`. */
function bisect(list, value, right = false) {
  let low = 0,
    high = list.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (list[middle] < value || (right && list[middle] === value)) low = middle + 1;
    else high = middle;
  }
  return low;
}

// ---------------------------------------------------------------------------------------- machines

class Gpu {
  constructor(numbers, settings) {
    const link = { h2d: settings.pinned_rate, pageable: settings.pageable_rate };
    Object.assign(this, numbers, link);
  }

  copyTime(nbytes, rate) {
    return this.copy_latency + ceilOf(nbytes, SECOND, rate);
  }
  mallocTime(nbytes) {
    return nbytes <= 2 * MIB ? this.malloc_small : this.malloc;
  }

  /** A kernel that moves so many bytes; what fits into a cache of known speed stays there. */
  memoryTime([floor, bandwidth], nbytes) {
    const near = Math.min(nbytes, Math.max(0, 2 * this.l2 - nbytes));
    const cached = near ? ceilOf(near, SECOND, this.l2_bandwidth) : 0;
    const rate = BigInt(this.memory_bandwidth) * BigInt(bandwidth);
    const moved = BigInt(nbytes - near) * BigInt(SECOND * FULL);
    return floor + cached + Number((moved + rate - 1n) / rate);
  }
}

class Host {
  /** What one of `ranks` equal processes has of a host. */
  constructor(numbers, ranks) {
    Object.assign(this, numbers);
    if (ranks === 1) return;
    const together = ceilOf(this.parallel_bandwidth, 1, ranks);
    this.cores = this.cores && Math.max(1, floorOf(this.cores, ranks));
    this.memory_bandwidth = Math.min(this.memory_bandwidth, together || this.memory_bandwidth);
    this.parallel_bandwidth = together;
  }

  workTime(nbytes) {
    return ceilOf(nbytes, SECOND, this.memory_bandwidth);
  }

  pinTime(nbytes) {
    return ceilOf(2 * nbytes, SECOND, Math.max(this.memory_bandwidth, this.parallel_bandwidth));
  }

  pageLockTime(nbytes) {
    return this.page_lock_base + ceilOf(nbytes, this.page_lock_per_gib, 2 ** 30);
  }

  fetchTime(nbytes) {
    return this.fetch_base + ceilOf(nbytes, this.fetch_per_byte, 1000);
  }
  sending(nbytes) {
    return this.tensor_sent + pages(nbytes) * this.new_page;
  }
  receiving(nbytes) {
    return this.tensor_received + pages(nbytes) * this.unmap;
  }
  pinning(nbytes) {
    return this.workTime(2 * nbytes) + pages(nbytes) * this.first_read;
  }

  /** The speed of one more thread beside `busy` cores, in thousandths of a core alone. */
  speed(busy) {
    const all = this.cores * this.siblings;
    const free = busy < this.cores ? FULL : busy < all ? this.sibling : 0;
    return floorOf(free * FULL, FULL + this.contention * busy);
  }

  stepOperator() {
    return this.dispatch + floorOf(this.python + this.module + this.node + this.composite, 2);
  }
}

// -------------------------------------------------------------------------------------------- host

/** The use of one host's cores; main thread first, then batches in their order. */
class Shared {
  constructor(host) {
    Object.assign(this, { host, times: [0], used: [0], main: 0, loader: null, lock: null });
  }

  /** Workers are threads of the main one's process: one at a time has the interpreter's lock. */
  shareLock() {
    const one = { cores: 1, siblings: 1, contention: 0 };
    this.lock = new Shared(Object.assign(Object.create(this.host), one));
  }

  mainRests(start, end) {
    this.take(this.main, start);
    this.main = Math.max(this.main, end);
  }

  take(start, end) {
    const { times, used } = this;
    if (!this.host.cores || start >= end) return;
    for (const time of [start, end]) {
      const place = bisect(times, time);
      if (times[place] === time) continue;
      times.splice(place, 0, time);
      used.splice(place, 0, used[place - 1]);
    }
    for (let place = bisect(times, start); times[place] < end; place++) used[place]++;
  }

  /** When `work` that is ready at `start` has a core first, and when it is done. */
  compute(start, work, now) {
    if (!this.host.cores || !work) return [start, start + work];
    this.mainRests(now, now);
    const pieces = [];
    let left = BigInt(work) * BigInt(FULL);
    for (let place = bisect(this.times, start, true) - 1; left > 0n; place++) {
      const speed = this.host.speed(this.used[place]);
      const next = this.times[place + 1] ?? Infinity;
      if (speed) {
        const done = start + Number((left + BigInt(speed) - 1n) / BigInt(speed));
        const end = Math.min(done, next);
        pieces.push([start, end]);
        left -= BigInt(end - start) * BigInt(speed);
        start = end;
      } else start = next;
    }
    for (const [from, to] of pieces) this.take(from, to);
    return [pieces[0][0], start];
  }

  /** When a thread that is ready at `start` has done so much Python, after all that came before. */
  python(start, work) {
    return this.lock ? this.lock.compute(start, work, 0)[1] : start + work;
  }

  /** When a worker begins and ends so much work; `python` ns of it, first, need the lock. */
  fetched(start, work, python, now) {
    if (!this.lock || !python) return this.compute(start, work, now);
    const [first, end] = this.lock.compute(start, python, 0);
    this.take(first, end);
    return [first, this.compute(end, work - python, now)[1]];
  }

  /** How long a copy within the host's memory takes, beside the workers that are busy then. */
  crowded(time, at) {
    const busy = this.loader?.busyWorkers(at) ?? 0;
    const most = Math.min(busy, this.host.cores || busy);
    return thousandths(time, FULL + this.host.crowding * most);
  }
}

/** When workers and pin thread have each batch; an order goes out at each hand-out. */
class LoaderSchedule {
  constructor(runtime, workers) {
    const { now } = runtime;
    const ordered = Array(workers * PREFETCH_FACTOR).fill(now),
      free = Array(workers).fill(now);
    Object.assign(this, { runtime, ordered, free, pinFree: now, fetched: 0, took: 0 });
    runtime.shared.loader = this;
  }

  fetch(batch, worker, took, python, nbytes, source) {
    const { runtime } = this,
      start = Math.max(this.ordered[batch], this.free[worker]);
    const [first, ready] = runtime.shared.fetched(start, took, python, runtime.now);
    this.free[worker] = ready;
    this.fetched++;
    this.took = ready - start;
    const lane = runtime.lane(`worker ${worker}`, "host", "worker", worker);
    const name = `fetch batch ${batch}`;
    const about = { start: first, end: ready, lane, kind: KIND.fetch, name, batch, nbytes, source };
    runtime.span(about);
    return ready;
  }

  busyWorkers(at) {
    const free = [...this.free];
    let busy = 0;
    for (let batch = this.fetched; batch < this.ordered.length; batch++) {
      const worker = batch % free.length,
        start = Math.max(this.ordered[batch], free[worker]);
      free[worker] = start + this.took;
      busy += start <= at && at < free[worker];
    }
    return busy;
  }

  pin(batch, ready, nbytes, receiving, locks) {
    const { runtime } = this,
      { host, shared } = runtime,
      begun = Math.max(ready, this.pinFree);
    const copying = shared.crowded(host.pinning(nbytes), begun);
    const work = receiving + locks(begun) + copying;
    const [start, end] = shared.compute(begun, work, runtime.now);
    this.pinFree = end;
    const lane = runtime.lane("pin thread", "host", "pin"),
      name = `pin batch ${batch}`;
    runtime.span({ start, end, lane, kind: KIND.pin, name, batch, nbytes, pinned: true });
    return end;
  }

  handOut(ready, receiving) {
    const { runtime } = this;
    runtime.waitForData(ready);
    runtime.work(runtime.host.hand_out + receiving, "DataLoader hand-out");
    this.ordered.push(runtime.now);
  }
}

// ----------------------------------------------------------------------------------------- runtime

class Stream {
  constructor(number) {
    Object.assign(this, { number, queue: [], over: 0, last: null, lastWork: null });
    this.awaited = new Map(); // work that the next command waits for by an event, by its stream
  }

  /** The commands that are not over at a time are those from here on. */
  waiting(now) {
    while (this.over < this.queue.length && this.queue[this.over].end <= now) this.over++;
    return this.queue.length - this.over;
  }
}

/** The main thread at `now`, and the GPU behind it. */
class Runtime {
  constructor(gpu, host, words) {
    Object.assign(this, { gpu, host, words, now: 0, batch: -1, source: 0 });
    Object.assign(this, { lanes: [], rows: [], arrows: [], commands: [] });
    this.shared = new Shared(host);
    this.main = this.lane("main", "host", "main");
    this.default = new Stream(7);
    this.streams = [this.default];
  }

  lane(name, group, role = "stream", number = 0) {
    const place = this.lanes.findIndex(lane => lane.name === name);
    return place < 0 ? this.lanes.push({ name, group, role, number }) - 1 : place;
  }

  /** Add a span. All have one shape, which keeps them small and quick. */
  span({
    start,
    end,
    lane,
    kind,
    name,
    batch = -1,
    nbytes = -1,
    correlation = -1,
    pinned = null,
    cause = 0,
    source = 0,
  }) {
    const row = { start, end, lane, kind, name, batch, nbytes, correlation, pinned, cause, source };
    return this.rows.push(row) - 1;
  }

  note(start, name, kind = KIND.operator, { nbytes, correlation, pinned, cause } = {}) {
    const { now: end, main: lane, batch, source } = this;
    const row = { start, end, lane, kind, name, batch, nbytes, correlation, pinned, cause, source };
    return this.span(row);
  }

  /** The last command of each stream. */
  get lasts() {
    return this.streams.map(stream => stream.last);
  }

  stream() {
    this.streams.push(new Stream(12 + this.streams.length));
    return this.streams.at(-1);
  }

  recordEvent(event, stream) {
    this.call("cudaEventRecord", this.host.event_call);
    event.record = this.enqueue(stream, this.now + this.gpu.launch_latency, 0);
    const last = stream.lastWork ? [stream.lastWork] : [];
    event.awaits = [...last, ...stream.awaited.values()];
  }

  waitEvent(stream, event) {
    this.call("cudaStreamWaitEvent", this.host.event_call);
    if (!event.record) return;
    this.enqueue(stream, Math.max(this.now, event.record.end), 0);
    for (const command of event.awaits) {
      const known = stream.awaited.get(command.stream);
      if (!known || known.number < command.number) stream.awaited.set(command.stream, command);
    }
  }

  waitStream(stream, other) {
    const event = {};
    this.recordEvent(event, other);
    this.waitEvent(stream, event);
  }

  query(event) {
    this.call("cudaEventQuery", this.host.query);
    return this.isOver(event);
  }

  isOver({ record }) {
    return !record || record.end <= this.now;
  }

  synchronize(name, ends) {
    const start = this.now;
    this.now += this.host.synchronize;
    if (this.block(ends, CAUSE.synchronize)) this.now += this.host.wake;
    this.note(start, name, KIND.api);
  }

  synchronizeDevice() {
    this.synchronize("cudaDeviceSynchronize", this.lasts);
  }

  launch(work, name) {
    const start = this.now,
      stream = this.default;
    this.waitForPlace(stream);
    this.now += this.host.launch;
    const command = this.put(stream, KIND.compute, name, work);
    command.api = this.note(start, "cudaLaunchKernel", KIND.api, { correlation: command.number });
  }

  /** A copy to the device; `fresh`: from a worker's shared memory that nobody has read here yet. */
  memcpy(nbytes, stream, pinned, blocking, fresh) {
    const { gpu, host } = this,
      start = this.now,
      staged = !pinned && nbytes > PAGEABLE_ASYNC;
    this.waitForPlace(stream);
    if (staged) this.block([stream.last], CAUSE.staging);
    this.now += host.memcpy_call;
    const touched = fresh && !pinned ? pages(nbytes) : 0;
    const alone = gpu.copyTime(nbytes, gpu.pageable);
    let beside = staged ? this.shared.crowded(alone, this.now) - alone : 0;
    if (staged) beside += touched * host.staged_page;
    else this.now += touched * host.first_read + (pinned ? 0 : host.workTime(nbytes));
    const name = `Memcpy HtoD (${pinned ? "Pinned" : "Pageable"} -> Device)`;
    const work = pinned ? gpu.copyTime(nbytes, gpu.h2d) : alone + beside;
    const command = this.put(stream, KIND.h2d, name, work, nbytes, pinned);
    if (staged) {
      const tail = gpu.copyTime(Math.min(nbytes, gpu.staging_chunk), gpu.h2d);
      this.blockUntil(command.start + Math.max(0, alone + beside - tail), CAUSE.staging);
    }
    const correlation = command.number;
    command.api = this.note(start, "cudaMemcpyAsync", KIND.api, { nbytes, correlation });
    if (blocking) this.synchronize("cudaStreamSynchronize", [stream.last]);
  }

  pageLock(nbytes) {
    const start = this.now;
    this.blockUntil(this.now + this.host.pageLockTime(nbytes), CAUSE.locking);
    this.note(start, "cudaHostAlloc", KIND.api, { nbytes });
  }

  malloc(nbytes) {
    this.call("cudaMalloc", this.gpu.mallocTime(nbytes), { nbytes });
  }

  free(nbytes) {
    const start = this.now;
    this.block(this.lasts, CAUSE.allocation);
    this.now += this.gpu.mallocTime(nbytes);
    this.note(start, "cudaFree", KIND.api, { nbytes });
  }

  work(duration, name, kind, about) {
    const start = this.now;
    this.needs(duration);
    this.note(start, name, kind, about);
  }

  /** The host does `duration` ns of Python, after threads that hold Python's lock (R53). */
  needs(duration) {
    const end = this.shared.python(this.now, duration);
    this.blockUntil(end - duration, CAUSE.gil);
    this.now = end;
  }

  waitForData(until) {
    this.shared.mainRests(this.now, Math.max(this.now, until));
    this.blockUntil(until, CAUSE.data);
  }

  call(name, cost, about) {
    const start = this.now;
    this.now += cost;
    this.note(start, name, KIND.api, about);
  }

  waitForPlace(stream) {
    while (stream.waiting(this.now) >= this.gpu.queue_depth) {
      this.block([stream.queue[stream.over]], CAUSE.full);
    }
  }

  /** Put a kernel or copy that takes `work` ns into a stream. */
  put(stream, kind, name, work, nbytes = -1, pinned = null) {
    const command = this.enqueue(stream, this.now + this.gpu.launch_latency, work, kind);
    command.awaits = stream.awaited.size ? [...stream.awaited.values()] : [];
    if (stream.awaited.size) stream.awaited.clear();
    const { batch, source } = this,
      number = this.commands.push(command);
    command.number = number;
    command.about = { name, batch, source, nbytes, pinned, correlation: number };
    stream.lastWork = command;
    return command;
  }

  /** A command (without a kind: a marker) begins when it is ready, and the one before it over. */
  enqueue(stream, ready, work, kind = -1) {
    const { last } = stream,
      gap = last?.kind === KIND.compute && kind === KIND.compute;
    const start = Math.max(ready, (last?.end ?? 0) + (gap ? this.gpu.queue_gap : 0));
    const end = start + work,
      command = { stream, kind, start, end, number: 0, awaits: [], about: null, api: -1, row: -1 };
    stream.queue.push(command);
    return (stream.last = command);
  }

  block(commands, cause) {
    return this.blockUntil(Math.max(this.now, ...commands.map(each => each?.end ?? 0)), cause);
  }

  blockUntil(until, cause) {
    const start = this.now;
    if (until <= start) return false;
    this.now = until;
    this.note(start, this.words[cause], KIND.wait, { cause });
    return true;
  }

  /** What happened from a time on: lanes, rows in order of start, arrows as [tail, head, kind]. */
  timeline(begin) {
    this.now = Math.max(this.now, ...this.lasts.map(last => last?.end ?? 0));
    if (this.now > Number.MAX_SAFE_INTEGER) {
      throw new SettingsError("the steps last longer than 104 days; give smaller times or batches");
    }
    for (const command of this.commands) {
      const { start, end, kind, stream } = command;
      const which = `stream ${stream.number}${stream === this.default ? " (default)" : ""}`;
      const lane = this.lane(which, "device", "stream", stream.number);
      command.row = this.span(Object.assign(command.about, { start, end, lane, kind }));
      this.arrows.push([command.api, command.row, LAUNCH]);
      for (const each of command.awaits) this.arrows.push([each.row, command.row, WAITED]);
    }
    return clipped(this, begin, this.now);
  }
}

function inOrder({ lanes, rows, arrows }) {
  const order = [...rows.keys()].sort(
    (one, other) =>
      rows[one].start - rows[other].start || rows[other].end - rows[one].end || one - other,
  );
  const place = [];
  order.forEach((row, at) => {
    place[row] = at;
  });
  return {
    lanes,
    rows: order.map(row => rows[row]),
    arrows: arrows.map(([tail, head, kind]) => [place[tail], place[head], kind]),
  };
}

function clipped(all, from, to) {
  const { lanes, rows, arrows } = inOrder(all),
    kept = [],
    place = [];
  for (const row of rows) {
    const inside =
      row.start === row.end
        ? row.start >= from && row.start <= to
        : row.end > from && row.start < to;
    place.push(inside ? kept.push(row) - 1 : -1);
    row.start = Math.max(row.start, from);
    row.end = Math.min(row.end, to);
  }
  const moved = arrows.map(([tail, head, kind]) => [place[tail], place[head], kind]);
  return inOrder({
    lanes,
    rows: kept,
    arrows: moved.filter(([tail, head]) => tail >= 0 && head >= 0),
  });
}

// ------------------------------------------------------------------------------------------ memory

class OutOfMemory extends Error {}
class SettingsError extends Error {}

const ROUND = 512,
  SMALL = MIB;

function segmentSize(size) {
  if (size <= SMALL) return 2 * MIB;
  return size < 10 * MIB ? 20 * MIB : ceilOf(size, 1, 2 * MIB) * 2 * MIB;
}

class Pool {
  constructor(runtime) {
    Object.assign(this, { runtime, deferred: new Map(), caches: new Map() });
  }

  cache(key) {
    if (!this.caches.has(key)) this.caches.set(key, []);
    return this.caches.get(key);
  }

  /** Give a block back: at once, or when the streams that used it have come that far. */
  free(block) {
    block.freed = this.runtime.now;
    block.pending = block.streams.size;
    if (!block.pending) return this.release(block);
    for (const stream of block.streams) {
      const event = {},
        key = this.byStream ? stream : null;
      this.runtime.recordEvent(event, stream);
      if (!this.deferred.has(key)) this.deferred.set(key, []);
      this.deferred.get(key).push([event, block]);
    }
  }

  /** Take back what was freed too early, from the oldest on; `asks` CUDA, which costs. */
  collect(asks) {
    const { runtime } = this;
    for (const [key, queue] of [...this.deferred]) {
      while (queue.length && (asks ? runtime.query(queue[0][0]) : runtime.isOver(queue[0][0]))) {
        const [{ record }, block] = queue.shift();
        block.freed = Math.max(block.freed, asks ? runtime.now : record.end);
        if (!--block.pending) this.release(block);
      }
      if (!queue.length) this.deferred.delete(key);
    }
  }
}

/** PyTorch's caching allocator: best fit, lowest address first, neighbours merge. */
class DevicePool extends Pool {
  byStream = true;
  reserved = 0;
  next = 0;

  allocate(nbytes, stream) {
    if (this.deferred.size) this.collect(true);
    const size = ceilOf(nbytes, 1, ROUND) * ROUND,
      large = size > SMALL;
    const cache = this.cache(`${stream.number} ${large}`);
    const place = cache.findIndex(region => region.size >= size);
    const region = place < 0 ? this.grow(size, stream, cache) : cache.splice(place, 1)[0];
    return this.cut(region, size, large ? SMALL + 1 : ROUND);
  }

  recordStream(block, stream) {
    if (stream !== block.stream) block.streams.add(stream);
  }

  grow(size, stream, cache) {
    const { runtime } = this,
      { memory, context_memory: taken } = runtime.gpu;
    const segment = segmentSize(size),
      fits = () => this.reserved + segment <= memory - taken;
    if (!fits()) {
      runtime.malloc(segment);
      this.emptyCache();
    }
    runtime.malloc(segment);
    if (!fits()) throw new OutOfMemory(`${segment}`);
    this.reserved += segment;
    this.next += segment;
    return this.block(this.next - segment, segment, stream, cache);
  }

  block(address, size, stream, cache) {
    const alone = { before: null, after: null, streams: new Set() };
    return { address, size, stream, cache, live: false, ...alone };
  }

  keep(region) {
    const { cache } = region,
      later = ({ size, address }) =>
        size > region.size || (size === region.size && address > region.address);
    const place = cache.findIndex(later);
    cache.splice(place < 0 ? cache.length : place, 0, region);
  }

  cut(region, size, least) {
    const block = this.block(region.address, size, region.stream, region.cache);
    const rest = region.size - size,
      { before, after } = region;
    Object.assign(block, { before, live: true });
    if (before) before.after = block;
    if (rest >= least) {
      Object.assign(region, { address: region.address + size, size: rest, before: block });
      block.after = region;
      this.keep(region);
    } else {
      Object.assign(block, { size: region.size, after });
      if (after) after.before = block;
    }
    return block;
  }

  release(block) {
    let { before, after, address: start, cache } = block,
      end = start + block.size;
    const drop = region => cache.splice(cache.indexOf(region), 1);
    if (before && !before.live) {
      drop(before);
      ({ address: start, before } = before);
    }
    if (after && !after.live) {
      drop(after);
      end = after.address + after.size;
      ({ after } = after);
    }
    const region = this.block(start, end - start, block.stream, cache);
    Object.assign(region, { before, after });
    if (before) before.after = region;
    if (after) after.before = region;
    this.keep(region);
  }

  emptyCache() {
    const { runtime } = this;
    for (const queue of this.deferred.values()) {
      for (const [{ record }] of queue) runtime.synchronize("cudaEventSynchronize", [record]);
    }
    this.collect(false);
    for (const cache of this.caches.values()) {
      for (const region of cache.filter(({ before, after }) => !before && !after)) {
        cache.splice(cache.indexOf(region), 1);
        runtime.free(region.size);
        this.reserved -= region.size;
      }
    }
  }
}

/** PyTorch's cache of pinned host memory: powers of two, by when they were freed. */
class PinnedPool extends Pool {
  allocate(nbytes) {
    if (this.deferred.size) this.collect(true);
    const block = this.take(nbytes);
    if (block.isNew) this.runtime.pageLock(block.size);
    return block;
  }

  /** Return a block for the pin thread; `time` may lie before the host's. */
  allocateAt(nbytes, time) {
    if (this.deferred.size) this.collect(false);
    return this.take(nbytes, time);
  }

  take(nbytes, time) {
    let size = 1;
    while (size < nbytes) size *= 2;
    const cache = this.cache(size),
      free = since => since <= time;
    const place = time === undefined ? cache.length - 1 : cache.findIndex(free);
    if (place >= 0) cache.splice(place, 1);
    return { size, isNew: place < 0, streams: new Set() };
  }

  release(block) {
    this.cache(block.size).push(block.freed);
  }
}

// ------------------------------------------------------------------------------------------ replay

/** A training loop: batch after batch is loaded, copied, or gathered on the GPU, and trained on. */
class Replay {
  constructor(settings, runtime, policy, line) {
    const nbytes = settings.batch_size * settings.sample_bytes,
      { gpu, host } = runtime;
    const fetchTime = host.fetchTime(nbytes) + settings.batch_size * settings.fetch_per_sample;
    Object.assign(this, settings, { runtime, policy, line, nbytes, fetchTime });
    const least = gpu.kernels.elementwise[0];
    this.kernel = Math.max(least, ceilOf(settings.compute, 1, settings.kernels));
    this.schedule = new LoaderSchedule(runtime, settings.workers);
    Object.assign(this, { pinned: new PinnedPool(runtime), pool: new DevicePool(runtime) });
    [this.compute, this.onSide] = [runtime.default, settings.side_stream && !settings.resident];
    this.side = this.onSide ? runtime.stream() : this.compute;
    const pins = this.pin && !this.pinned_before;
    Object.assign(this, { pins, number: 0, holds: null, x: null, ring: [], queue: [], begun: [] });
    Object.assign(this, { prepared: [], sends: this.workers > 0 && !this.threads });
    this.receiving = this.sends ? host.receiving(nbytes) : 0;
    if (this.threads && this.workers && host.switch_interval) runtime.shared.shareLock();
  }

  run(tables) {
    const { runtime, resident, depth } = this;
    const warmup = PREFETCH_FACTOR * Math.max(this.workers, 2) + depth + 2;
    const step = resident ? this.gather : depth ? this.ahead : this.inPlace;
    if (resident) this.move(tables.samples);
    for (let number = 0; number < warmup + this.steps; number++) {
      if (number === warmup) this.synchronize();
      this.asked = runtime.now;
      step.call(this, number);
      runtime.batch = number;
      this.train();
    }
    this.synchronize();
    if (!resident) this.prepareAll(this.schedule.ordered.length);
    this.begun.forEach(([start, batch], at) => {
      const end = this.begun[at + 1]?.[0] ?? runtime.now;
      const name = `batch ${batch}: ${this.batch_size} samples`;
      runtime.span({ start, end, lane: runtime.main, kind: KIND.range, name, batch });
    });
    return runtime.timeline(this.begun[warmup][0]);
  }

  at(does) {
    this.runtime.source = this.line(does);
  }

  synchronize() {
    this.at("synchronize");
    this.runtime.synchronizeDevice();
  }

  launch(name, time) {
    const { runtime } = this,
      start = runtime.now;
    runtime.needs(runtime.host.stepOperator());
    runtime.launch(time, name);
    runtime.note(start, `aten::${name}`);
  }

  /** A step: a third of the kernels forward, the last one the optimizer's, the rest backward. */
  train() {
    const forward = Math.max(1, floorOf(this.kernels, 3));
    for (let kernel = 0; kernel < this.kernels; kernel++) {
      const last = kernel === this.kernels - 1;
      const name = kernel < forward ? "forward" : last ? "optimizer" : "backward";
      this.at(name);
      this.launch(name, this.kernel);
    }
  }

  /** The loader gives the main thread its next batch: its pinned block, null if it has none. */
  next() {
    const { runtime, nbytes, number } = this,
      { host } = runtime;
    this.number++;
    runtime.batch = number;
    this.at("loop");
    if (this.workers) {
      this.prepareAll(this.threads ? this.schedule.ordered.length : number + 1);
      const [ready, batch] = this.prepared.shift();
      this.schedule.handOut(ready, this.pins ? 0 : this.receiving);
      return batch;
    }
    runtime.work(this.fetchTime, `fetch batch ${number}`, KIND.fetch);
    if (!this.pins) return { block: null, pinned: this.pin };
    const block = this.pinned.allocate(nbytes),
      took = host.dispatch + host.pinTime(nbytes);
    runtime.work(took, `pin batch ${number}`, KIND.pin, { nbytes, pinned: true });
    return { block, pinned: true };
  }

  /** Workers prepare the batches before that one. */
  prepareAll(until) {
    while (this.schedule.fetched < until) this.prepared.push(this.prepare(this.schedule.fetched));
  }

  prepare(number) {
    const { nbytes, schedule, workers, fetchTime, receiving } = this,
      { host } = this.runtime;
    const took = fetchTime + (this.sends ? host.sending(nbytes) : 0);
    const python = thousandths(fetchTime, this.python);
    const source = this.line("fetch");
    let ready = schedule.fetch(number, number % workers, took, python, nbytes, source),
      block = null;
    if (this.pins) {
      ready = schedule.pin(number, ready, nbytes, receiving, start => {
        block = this.pinned.allocateAt(nbytes, start);
        return block.isNew ? host.pageLockTime(block.size) : 0;
      });
    }
    return [ready, { block, pinned: this.pin }];
  }

  begin(number, time = this.asked) {
    this.begun.push([time, number]);
  }

  /** Copy a batch when its turn has come. */
  inPlace(number) {
    const batch = this.next();
    this.begin(number);
    const fresh = this.copy(batch);
    if (this.onSide) {
      this.at("hand over");
      this.runtime.waitStream(this.compute, this.side);
    }
    this.rebind(fresh);
    this.recordStream(fresh);
  }

  /** Copy `depth` batches before their turn. */
  ahead(number) {
    while (!number && this.queue.length < this.depth) this.copyAhead();
    const { block, copied } = this.queue.shift();
    this.runtime.batch = number;
    this.at("drop");
    this.rebind(block);
    if (this.onSide) {
      this.at("hand over");
      this.runtime.waitEvent(this.compute, copied);
    }
    this.recordStream(block);
    this.copyAhead();
    this.begin(number);
  }

  copyAhead() {
    const block = this.copy(this.next()),
      copied = {};
    if (this.onSide) {
      this.at("event");
      this.runtime.recordEvent(copied, this.side);
    }
    this.queue.push({ block, copied });
  }

  /** The data set goes to the GPU, and the order of its samples. */
  move(samples) {
    for (const [does, bytes] of [
      ["move", this.sample_bytes],
      ["order", 8],
    ]) {
      this.at(does);
      this.pool.allocate(samples * bytes, this.compute);
      this.runtime.memcpy(samples * bytes, this.compute, false, true, false);
    }
  }

  gather(number) {
    this.begin(number);
    this.runtime.batch = number;
    this.at("gather");
    const fresh = this.pool.allocate(this.nbytes, this.compute),
      { gpu } = this.runtime;
    const moved = 2 * this.nbytes + 8 * this.batch_size;
    this.launch("index_select", gpu.memoryTime(gpu.kernels.gather, moved));
    this.rebind(fresh);
  }

  copy(batch) {
    const { runtime, nbytes } = this;
    if (this.holds?.block) this.pinned.free(this.holds.block);
    this.holds = batch;
    const memory = this.memory(),
      start = runtime.now;
    runtime.now += runtime.host.dispatch;
    if (this.non_blocking) batch.block?.streams.add(this.side);
    runtime.memcpy(nbytes, this.side, batch.pinned, !this.non_blocking, this.sends);
    runtime.note(start, "aten::copy_");
    return memory;
  }

  /** Take the device memory of a batch, in the way of the lifetime policy. */
  memory() {
    const { policy, ring, onSide, compute } = this;
    let block = null;
    if (onSide && policy.ring) {
      while (ring.length <= this.depth) ring.push(this.pool.allocate(this.nbytes, compute));
      ring.push((block = ring.shift()));
    } else if (onSide && policy.of_consumer) {
      this.at("allocate");
      block = this.pool.allocate(this.nbytes, compute);
    }
    if (onSide && policy.waits) {
      this.at("protect");
      this.runtime.waitStream(this.side, compute);
    }
    this.at("copy");
    return block ?? this.pool.allocate(this.nbytes, this.side);
  }

  /** `x = …`: the former batch on the device is dropped. */
  rebind(fresh) {
    if (this.x && !(this.onSide && this.policy.ring)) this.pool.free(this.x);
    this.x = fresh;
  }

  recordStream(block) {
    if (!this.onSide || !this.policy.records) return;
    this.at("record_stream");
    this.pool.recordStream(block, this.compute);
  }
}

/** The timeline of these settings; `line` tells which line of the program does what (0: none). */
export function simulate(settings, tables, line = () => 0) {
  const unknown = Object.keys(settings).filter(name => !(name in tables.settings));
  if (unknown.length) throw new SettingsError(`the page cannot show ${unknown.join(", ")}`);
  const all = { ...tables.settings, ...settings },
    machine = tables.gpus[all.gpu];
  if (!machine) throw new SettingsError(`the page does not know the GPU ${all.gpu}`);
  const gpu = new Gpu(machine, all),
    host = new Host(tables.host, all.ranks_on_host);
  const runtime = new Runtime(gpu, host, tables.causes);
  return new Replay(all, runtime, tables.lifetimes[all.lifetime], line).run(tables);
}
