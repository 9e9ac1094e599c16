"""Device: the GPU behind the host. Streams (FIFO), two copy engines and a compute engine, in virtual time.

The host submits commands; the device runs them later. One heap ordered by (time, phase, command number) decides
everything, so the same program gives the same times, whenever somebody looks. Times in ns.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from enum import IntEnum
from heapq import heappop, heappush

from loaderviz.emulator.hardware import FULL, Gpu, HardwareError, ceil_div
from loaderviz.errors import NotModelledError
from loaderviz.timeline import Kind


class Engine(IntEnum):
    """What a command occupies while it runs."""

    NONE = 0  # markers, memset, device-to-device copies
    COMPUTE = 1
    H2D = 2
    D2H = 3


NONE, COMPUTE, H2D, D2H = Engine  # looking one up in the enum costs as much as ten such names
OPPOSITE = {H2D: D2H, D2H: H2D}
FINISH, READY = 0, 1  # phases: what ends at time t frees its place for what wants to begin at t; engines choose last


class Stream:
    """A queue of commands that run one after the other (R16).

    `id` is 0 for the default stream; `number` is what traces show (7 for the default stream, pool streams after it);
    a lower `priority` goes first (R18); `blocking` streams wait for the default stream and it for them (R14).
    """

    def __init__(self, id: int, number: int, priority: int = 0, *, blocking: bool = False) -> None:
        self.id = id
        self.number = number
        self.priority = priority
        self.blocking = blocking
        self.queue: deque[Command] = deque()  # enqueued and not over
        self.last: Command | None = None  # the last command ever enqueued
        self.last_work: Command | None = None  # the same, markers left out
        self.awaited: dict[Stream, Command] = {}  # work that the next command waits for by an event, the last of each


class Command:
    """One entry of a stream: a kernel, copy or memset, or a marker (`kind` None) of an event record or wait."""

    __slots__ = (
        "api", "awaits", "batch", "correlation", "deps", "done", "end", "engine", "in_race", "kind", "name", "nbytes",
        "number", "operator", "pinned", "rate", "ready", "remaining", "sequence", "share", "since", "source", "start",
        "stream", "traffic", "unmet", "version", "waiters",
    )  # fmt: skip

    def __init__(
        self,
        stream: Stream,
        name: str,
        kind: Kind | None,
        engine: Engine,
        work: int,
        ready: int = 0,
        share: int = FULL,
        traffic: int = 0,
        nbytes: int = -1,
        pinned: bool | None = None,
    ) -> None:
        self.stream, self.name, self.kind, self.engine = stream, name, kind, engine
        self.ready, self.share = ready, share  # not before `ready`; thousandths of the compute engine
        self.traffic = traffic  # thousandths of the GPU's memory bandwidth that it takes at full speed
        self.nbytes, self.pinned = nbytes, pinned
        self.correlation, self.batch, self.source, self.api = -1, -1, "", -1
        self.remaining = work * FULL  # in thousandths of a ns at full speed, so that it stays whole when slowed
        self.rate, self.since, self.version = FULL, 0, 0
        self.start = self.end = -1
        self.number = -1
        self.done = False
        self.deps: tuple[Command, ...] = ()  # tuples, since most are empty
        self.waiters: tuple[Command, ...] = ()
        self.unmet = 0
        self.awaits: tuple[Command, ...] = ()
        # For the search for hazards: its number in its stream, who asked for it, whether it was found in one.
        self.sequence, self.operator = 0, name
        self.in_race = False


class Device:
    """Runs commands in virtual time, as far as somebody asks."""

    def __init__(self, gpu: Gpu) -> None:
        if gpu.async_engines < 1:
            raise NotModelledError(
                f"{gpu.name} with async_engines={gpu.async_engines}: a GPU that cannot copy while it computes is not "
                "modelled; give it at least one copy engine"
            )
        if not all((gpu.h2d, gpu.d2h, gpu.pageable)):
            raise HardwareError(
                f"{gpu.name} with h2d={gpu.h2d}, d2h={gpu.d2h}, pageable={gpu.pageable}: give bytes a second"
            )
        self.gpu = gpu
        self.clock = 0  # everything up to here has been worked out
        self._heap: list[tuple[int, int, int, int, Command]] = []
        self.submitted = 0  # how many commands there were
        self._to_choose = False  # an engine may have a place and somebody who wants it, at `clock`
        self._compute_used = 0
        self._computing: list[Command] = []
        self._compute_queue: list[tuple[int, int, Command]] = []
        self._copying: dict[Engine, Command | None] = {H2D: None, D2H: None}
        self._both_ways = {H2D: gpu.bidirectional, D2H: gpu.bidirectional_d2h or gpu.bidirectional}  # speeds (R21)
        self._copied = 0  # their traffic, in thousandths of the memory bandwidth
        self._copy_queue: dict[Engine, deque[Command]] = {H2D: deque(), D2H: deque()}

    def submit(self, command: Command) -> None:
        """Put a command at the end of its stream; it starts when its turn, its deps and its engine allow."""
        stream = command.stream
        command.number, self.submitted = self.submitted, self.submitted + 1
        stream.last = command
        stream.queue.append(command)
        if len(stream.queue) == 1:
            self._arm(command)

    def advance(self, until: int) -> None:
        """Work out what is over, and what is ready, up to and including `until` [ns].

        What engines begin at `until` itself is left open, since the host may enqueue more at this very time: so looking
        changes nothing.
        """
        while self.step_before(until):
            pass
        self.clock = max(self.clock, until)

    def step_before(self, host: int | None) -> bool:
        """Work out the next thing that happens before a host at `host` ns puts in more (None: no host will).

        Tell whether there was one.
        """
        heap = self._heap
        happens = (heap and (host is None or heap[0][0] <= host)) or (
            self._to_choose and (host is None or self.clock < host)
        )
        if happens:
            self._step()
        return bool(happens)

    def run(self, command: Command) -> int:
        """Work out everything up to the end of `command`; return that end [ns]."""
        while not command.done:
            self._step()
        return command.end

    def run_to_start(self, command: Command) -> int:
        """Work out everything up to the start of `command`; return that start [ns]."""
        while command.start < 0:
            self._step()
        return command.start

    def drain(self) -> int:
        """Work out everything that is enqueued; return the time [ns] of the last event."""
        while self._heap or self._to_choose:
            self._step()
        return self.clock

    def _step(self) -> None:
        heap = self._heap
        if self._to_choose and not (heap and heap[0][0] <= self.clock):
            self._choose()
            return
        time, phase, _, version, command = heappop(heap)
        if version != command.version:
            return  # it was slowed down or sped up since; a newer entry stands for it
        self.clock = time
        if phase == FINISH:
            self._finish(command)
        elif command.engine is NONE:
            self._begin(command)
        else:
            self._to_choose = True
            if command.engine is COMPUTE:
                insort(self._compute_queue, (command.stream.priority, command.number, command))
            else:
                self._copy_queue[command.engine].append(command)

    def _push(self, time: int, phase: int, command: Command) -> None:
        heappush(self._heap, (time, phase, command.number, command.version, command))

    def _arm(self, command: Command) -> None:
        """`command` is at the head of its stream: let it go as soon as its deps are over."""
        for dep in command.deps:
            if not dep.done:
                dep.waiters += (command,)
                command.unmet += 1
        if not command.unmet:
            self._push(command.ready if command.ready > self.clock else self.clock, READY, command)

    def _choose(self) -> None:
        """All that ends or becomes ready at this time is known: let the engines take what they have place for."""
        self._to_choose = False
        # lowest priority number first, while their shares fit together (R18, R19)
        while self._compute_queue and self._compute_used + self._compute_queue[0][2].share <= FULL:
            command = self._compute_queue.pop(0)[2]
            self._compute_used += command.share
            self._computing.append(command)
            command.rate = self._beside_copies(command)
            self._begin(command)
        for engine, queue in self._copy_queue.items():
            if queue and not self._copying[engine]:  # one at a time, who was ready first (R20)
                command = self._copying[engine] = queue.popleft()
                other = self._copying[OPPOSITE[engine]]
                if other and other.pinned and command.pinned:  # a pageable copy is held up by its staging alone
                    command.rate = self._both_ways[engine]
                    self._change_rate(other, self._both_ways[OPPOSITE[engine]])
                self._begin(command)
                self._share_memory()

    def _begin(self, command: Command) -> None:
        command.start = command.since = self.clock
        self._push(self.clock + ceil_div(command.remaining, command.rate), FINISH, command)

    def _share_memory(self) -> None:
        """A copy has begun, ended or changed its speed: its traffic slows the kernels beside it (R49)."""
        self._copied = sum(copy.traffic * copy.rate for copy in self._copying.values() if copy) // FULL
        for command in self._computing:
            if (rate := self._beside_copies(command)) != command.rate:
                self._change_rate(command, rate)

    def _beside_copies(self, command: Command) -> int:
        return max(FULL // 2, FULL - command.traffic * self._copied // FULL)  # at the worst they take equal parts

    def _change_rate(self, command: Command, rate: int) -> None:
        """Go on at another speed: both directions share the link (R21), copies and kernels the memory (R49)."""
        command.remaining -= (self.clock - command.since) * command.rate
        command.rate, command.since = rate, self.clock
        command.version += 1
        self._push(self.clock + ceil_div(max(0, command.remaining), rate), FINISH, command)

    def _finish(self, command: Command) -> None:
        command.end, command.done = self.clock, True
        stream = command.stream
        stream.queue.popleft()
        engine = command.engine
        if engine is COMPUTE:
            self._compute_used -= command.share
            self._computing.remove(command)
            if self._compute_queue:
                self._to_choose = True
        elif engine is not NONE:
            self._copying[engine] = None
            other = self._copying[OPPOSITE[engine]]
            if other and other.rate != FULL:
                self._change_rate(other, FULL)
            self._share_memory()
            if self._copy_queue[engine]:
                self._to_choose = True
        if stream.queue:
            following = stream.queue[0]
            if engine is COMPUTE is following.engine:
                following.ready = max(following.ready, self.clock + self.gpu.queue_gap)
            self._arm(following)
        for waiter in command.waiters:
            waiter.unmet -= 1
            if not waiter.unmet:
                self._push(max(waiter.ready, self.clock), READY, waiter)
        command.deps = command.waiters = ()
