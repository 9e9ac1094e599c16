"""Happens-before over streams, events and the host: what is certain to be over when something else begins.

Every piece of work has a place: (stream, its number in that stream). A stream knows, for each stream, up to which
number it is ordered after it; an event carries such a clock from one stream to another; a synchronise gives it to the
host, and what the host enqueues later is ordered after all that the host knows (R16). `races` finds hazards with it.

    order = HappensBefore()
    copied = order.enqueue(stream=1)
    order.wait(0, order.snapshot(1))
    order.is_ordered(0, copied)     # True: stream 0 waits for an event recorded after the copy

A wait can be put on trial: the same order is then kept without the waits of that source line, until two accesses meet
that only this line keeps apart. A line whose trial lasts to the end is not needed.
"""

from __future__ import annotations

Clock = dict[int, int]  # stream -> number of its last work known to be over
Place = tuple[int, int]  # (stream, number of the work in it)
HOST = -1  # the host's own entry among the clocks
TRIALS = 16  # lines on trial at a time: each costs as much as the order itself


class Snapshot(Clock):
    """What an event stands for; `without` holds the same for each line on trial."""

    __slots__ = ("without",)

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.without: dict[str, Clock] = {}


class HappensBefore:
    """Vector clocks, one per stream and one for the host; and the same for each line on trial."""

    def __init__(self) -> None:
        self._clocks: dict[int, Clock] = {HOST: {}}
        self._seen: dict[int, int] = {}  # stream -> version of the host's clock that it has taken over
        self._host_version = 0
        self.trials: dict[str, HappensBefore] = {}  # source line of waits -> the order without them
        self.needed: set[str] = set()  # lines whose trial is over: something depends on them

    def enqueue(self, stream: int) -> Place:
        """Note that the host puts work into `stream`; return its place."""
        clock = self.clock(stream)
        number = clock.get(stream, 0) + 1
        clock[stream] = number
        for trial in self.trials.values():
            trial.enqueue(stream)
        return stream, number

    def snapshot(self, stream: int) -> Snapshot:
        """Return what an event recorded now in `stream` stands for."""
        snapshot = Snapshot(self.clock(stream))
        for line, trial in self.trials.items():
            snapshot.without[line] = trial.snapshot(stream)
        return snapshot

    def wait(self, stream: int, clock: Clock, line: str = "") -> None:
        """Order everything that `stream` gets from now on after `clock`; not so in the trial of its `line`."""
        _join(self.clock(stream), clock)
        for name, trial in self.trials.items():
            if name != line:
                trial.wait(stream, _without(clock, name))

    def host_wait(self, clock: Clock) -> None:
        """Order the host, and so all that it enqueues later, after `clock`."""
        _join(self._clocks[HOST], clock)
        self._host_version += 1
        for name, trial in self.trials.items():
            trial.host_wait(_without(clock, name))

    def host_wait_all(self) -> None:
        """A device synchronise: the host is ordered after every stream."""
        for stream in [stream for stream in self._clocks if stream != HOST]:
            _join(self._clocks[HOST], self._clocks[stream])
        self._host_version += 1
        for trial in self.trials.values():
            trial.host_wait_all()

    def is_ordered(self, stream: int, place: Place) -> bool:
        """Tell whether what `stream` gets next runs after the work at `place`. `HOST` asks for the host."""
        owner, number = place
        return self.clock(stream).get(owner, 0) >= number

    def clock(self, stream: int) -> Clock:
        """Return the clock of a stream (or of the `HOST`) as it is now; it is not a copy."""
        if stream == HOST:
            return self._clocks[HOST]
        clock = self._clocks.setdefault(stream, {})
        if self._seen.get(stream) != self._host_version:
            _join(clock, self._clocks[HOST])
            self._seen[stream] = self._host_version
        return clock

    # Trials

    def try_without(self, line: str) -> None:
        """Put the waits of a line on trial, before the first of them is made."""
        if line and line not in self.trials and line not in self.needed and len(self.trials) < TRIALS:
            self.trials[line] = self._copy()

    def rely(self, stream: int, place: Place) -> None:
        """`stream` (or the `HOST`) does something that must come after `place`: lines without which it would not are
        needed."""
        for line in [line for line, trial in self.trials.items() if not trial.is_ordered(stream, place)]:
            self.settle(line)

    def rely_on(self, clock: Clock, place: Place) -> None:
        """The same for something that comes after `clock` was reached, such as the reuse of recorded memory."""
        owner, number = place
        for line in [line for line in self.trials if _without(clock, line).get(owner, 0) < number]:
            self.settle(line)

    def settle(self, line: str) -> None:
        """End the trial of a line: it is needed."""
        del self.trials[line]
        self.needed.add(line)

    def _copy(self) -> HappensBefore:
        twin = HappensBefore()
        twin._clocks = {stream: dict(clock) for stream, clock in self._clocks.items()}
        twin._seen = dict(self._seen)
        twin._host_version = self._host_version
        return twin


def _without(clock: Clock, line: str) -> Clock:
    """Return a clock as it would be without the waits of a line; before their first it was the same."""
    return clock.without.get(line, clock) if isinstance(clock, Snapshot) else clock


def _join(clock: Clock, other: Clock) -> None:
    for stream, number in other.items():
        if clock.get(stream, 0) < number:
            clock[stream] = number
