"""A second emulator of the same rules, as plain as can be: it goes forward one ns at a time and has no heap.

`Naive` answers the same calls as `Runtime`; `spans` is what `Runtime.timeline()` must show. Slow, so programs must be
short in ns.
"""

from dataclasses import dataclass, field

from loaderviz.timeline import Cause, Kind


def up(a, b):
    return (a + b - 1) // b


@dataclass(eq=False)
class Job:
    lane: int
    order: int  # over all jobs
    ready: int
    work: int  # thousandths of ns
    engine: str = ""  # "", "sm", "up" or "down"
    share: int = 1000
    traffic: int = 0
    pinned: bool | None = None
    after: list = field(default_factory=list)
    kind: Kind | None = None
    name: str = ""
    waiting_since: int = -1
    start: int = -1
    end: int = -1


@dataclass(eq=False)
class Lane:
    index: int
    number: int
    priority: int
    blocking: bool
    jobs: list = field(default_factory=list)


class Event:
    job = None  # that stands for the last record


class Naive:
    default_stream = 0  # a stream is the number of its lane

    def __init__(self, gpu, host, launch_blocking=False):
        self.gpu, self.host, self.launch_blocking = gpu, host, launch_blocking
        self.now = 0  # the host's
        self.t = 0  # the device's
        self.jobs = []
        self.lanes = [Lane(0, 7, 0, False)]
        self.host_spans = []

    # The device: one ns after the other

    def live(self):
        return [job for job in self.jobs if job.end < 0]

    def heads(self):
        """The first unfinished job of every lane, if all that it waits for is over and its time has come."""
        for lane in self.lanes:
            job = next((job for job in lane.jobs if job.end < 0), None)
            if job and job.start < 0 and job.ready <= self.t and all(other.end >= 0 for other in job.after):
                yield job

    def settle(self):
        """End what is done, begin what needs no engine, until nothing changes at this time."""
        changed = True
        while changed:
            changed = False
            for job in self.live():
                if job.start >= 0 and job.work <= 0:
                    job.end, changed = self.t, True
                    after = next((other for other in self.lanes[job.lane].jobs if other.end < 0), None)
                    if after and job.engine == after.engine == "sm":
                        after.ready = max(after.ready, self.t + self.gpu.queue_gap)
            for job in self.heads():
                if not job.engine:
                    job.start, changed = self.t, True
                elif job.waiting_since < 0:
                    job.waiting_since = self.t

    def choose(self):
        """Let the engines begin what they have place for; tell whether they did."""
        began = False
        waiting = [job for job in self.heads() if job.engine]
        running = [job for job in self.live() if job.start >= 0]
        used = sum(job.share for job in running if job.engine == "sm")
        for job in sorted(
            (job for job in waiting if job.engine == "sm"), key=lambda job: (self.lanes[job.lane].priority, job.order)
        ):
            if used + job.share > 1000:
                break
            used += job.share
            job.start, began = self.t, True
        for way in ("up", "down"):
            queue = [job for job in waiting if job.engine == way]
            if queue and not any(job.engine == way for job in running):
                min(queue, key=lambda job: (job.waiting_since, job.order)).start = self.t
                began = True
        return began

    def tick(self):
        """Finish this ns and go to the next."""
        self.settle()
        while self.choose():
            self.settle()
        running = [job for job in self.live() if job.start >= 0]
        both_ways = {"up", "down"} <= {job.engine for job in running if job.pinned}
        link = {"up": self.gpu.bidirectional, "down": self.gpu.bidirectional_d2h or self.gpu.bidirectional}
        if not both_ways:
            link = {"up": 1000, "down": 1000}
        copied = sum(job.traffic * link[job.engine] for job in running if job.engine in link) // 1000
        for job in running:
            if job.engine in link:
                job.work -= link[job.engine]
            else:
                job.work -= max(500, 1000 - job.traffic * copied // 1000)
        self.t += 1
        self.settle()

    def step(self):
        """Begin what there is place for at this ns, else go to the next."""
        if self.choose():
            self.settle()
        else:
            self.tick()

    def catch_up(self):
        while self.t < self.now:
            self.tick()
        self.settle()

    def block(self, condition, cause):
        """Hold the host until `condition()`; it may act at the very ns when that comes true."""
        self.catch_up()
        begin = self.now
        while not condition():
            self.step()
        self.now = max(self.now, self.t)
        self.wait_span(begin, cause)

    def wait_span(self, begin, cause):
        if self.now > begin:
            self.host_spans.append((begin, self.now, "main", Kind.WAIT, cause.words))

    def call(self, begin, name):
        self.host_spans.append((begin, self.now, "main", Kind.API, name))

    def short_call(self, name, takes):
        self.now += takes
        self.call(self.now - takes, name)

    # The host's calls

    def stream(self, priority, *, blocking):
        lane = Lane(len(self.lanes), 12 + len(self.lanes), priority, blocking)
        self.lanes.append(lane)
        return lane.index

    def put(self, lane, kind, name, work, ready, **rest):
        me = self.lanes[lane]
        job = Job(lane, len(self.jobs), ready, work * 1000, kind=kind, name=name, **rest)
        if lane == 0:
            job.after += [job for other in self.lanes if other.blocking for job in other.jobs]
        elif me.blocking:
            job.after += self.lanes[0].jobs
        self.jobs.append(job)
        me.jobs.append(job)
        return job

    def record_event(self, event, lane):
        self.short_call("cudaEventRecord", self.host.event_call)
        event.job = self.put(lane, None, "record", 0, self.now + self.gpu.launch_latency)

    def wait_event(self, lane, event):
        self.short_call("cudaStreamWaitEvent", self.host.event_call)
        if event.job:
            self.put(lane, None, "wait", 0, self.now).after.append(event.job)

    def launch(self, duration, lane, *, share, traffic):
        begin = self.now
        self.wait_for_place(lane)
        self.now += self.host.launch
        ready = self.now + self.gpu.launch_latency
        self.put(lane, Kind.COMPUTE, "kernel", duration, ready, engine="sm", share=share, traffic=traffic)
        self.call(begin, "cudaLaunchKernel")
        if self.launch_blocking:
            self.synchronize(lane)

    def wait_for_place(self, lane):
        self.catch_up()
        while self.queued(lane) >= self.gpu.queue_depth:
            head = next(job for job in self.lanes[lane].jobs if job.end < 0)
            self.block(lambda head=head: head.end >= 0, Cause.QUEUE_FULL)

    def queued(self, lane):
        self.catch_up()
        return sum(job.end < 0 for job in self.lanes[lane].jobs)

    def memcpy(self, nbytes, direction, lane, *, pinned, blocking):
        gpu, begin = self.gpu, self.now
        cached = min(nbytes, 2 * 2**20) if gpu.pageable_cached and direction == "h2d" and not pinned else 0
        staged_rate = gpu.pageable_d2h if direction == "d2h" and gpu.pageable_d2h else gpu.pageable
        rate = (gpu.h2d if direction == "h2d" else gpu.d2h) if pinned else staged_rate
        work = (gpu.copy_latency if direction == "h2d" else gpu.d2h_latency) + up((nbytes - cached) * 10**9, rate)
        work += up(cached * 10**9, gpu.pageable_cached) if cached else 0
        before = list(self.lanes[lane].jobs)
        staged = direction == "h2d" and not pinned and nbytes > 2**16
        self.wait_for_place(lane)
        if staged:
            self.block(lambda: all(job.end >= 0 for job in before), Cause.STAGING)
        self.now += self.host.memcpy_call
        if direction == "h2d" and not pinned and not staged:
            self.now += up(nbytes * 10**9, self.host.memory_bandwidth)
        memory = "Pinned" if pinned else "Pageable"
        name = f"Memcpy HtoD ({memory} -> Device)" if direction == "h2d" else f"Memcpy DtoH (Device -> {memory})"
        kind, engine = (Kind.COPY_H2D, "up") if direction == "h2d" else (Kind.COPY_D2H, "down")
        if gpu.async_engines == 1:
            engine = "up"
        traffic = min(1000, nbytes * 10**12 // (max(1, work) * gpu.memory_bandwidth))
        job = self.put(
            lane, kind, name, work, self.now + gpu.launch_latency, engine=engine, pinned=pinned, traffic=traffic
        )
        if staged:
            waited_from = self.now
            last = gpu.copy_latency + up(min(nbytes, gpu.staging_chunk) * 10**9, gpu.h2d)
            self.catch_up()
            while job.start < 0:
                self.step()
            self.now = max(self.now, job.start + max(0, work - last))
            self.wait_span(waited_from, Cause.STAGING)
        elif direction == "d2h" and not pinned and not blocking:
            self.block(lambda: job.end >= 0, Cause.STAGING)
        self.call(begin, "cudaMemcpyAsync")
        if blocking or self.launch_blocking:
            self.synchronize(lane)

    def host_work(self, duration):
        self.host_spans.append((self.now, self.now + duration, "main", Kind.OPERATOR, "host"))
        self.now += duration

    def synchronize(self, target=None):
        jobs, name = list(self.jobs), "cudaDeviceSynchronize"
        if isinstance(target, Event):
            jobs, name = [target.job] if target.job else [], "cudaEventSynchronize"
        elif target is not None:
            jobs, name = list(self.lanes[target].jobs), "cudaStreamSynchronize"
        begin = self.now
        self.now += self.host.synchronize
        called = self.now
        self.block(lambda: all(job.end >= 0 for job in jobs), Cause.SYNCHRONIZE)
        self.now += self.host.wake if self.now > called else 0
        self.call(begin, name)

    def malloc(self, nbytes):
        self.short_call("cudaMalloc", self.gpu.malloc_small)

    def free(self, nbytes):
        begin, jobs = self.now, list(self.jobs)
        self.block(lambda: all(job.end >= 0 for job in jobs), Cause.ALLOCATION)
        self.now += self.gpu.malloc
        self.call(begin, "cudaFree")

    def query(self, event):
        self.short_call("cudaEventQuery", self.host.query)
        self.catch_up()
        return event.job is None or event.job.end >= 0

    def spans(self):
        """[(start, end, lane, kind, name)], sorted."""
        while self.live():
            self.step()
        lanes = {lane.index: f"stream {lane.number}" + " (default)" * (lane.index == 0) for lane in self.lanes}
        work = [(job.start, job.end, lanes[job.lane], job.kind, job.name) for job in self.jobs if job.kind is not None]
        return sorted(work + self.host_spans)
