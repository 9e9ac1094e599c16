"""Happens-before over streams, events and the host: what is certain to be over when something else begins.

Every piece of work has a place: (stream, its sequence number there). A stream knows, for each stream, up to which
number it is ordered after it; an event carries such a vector clock from one stream to another; a synchronise gives it
to the host, and what the host enqueues later is ordered after all that the host knows (R16). `races` finds hazards
with it.

    order = HappensBefore()
    copied = order.enqueue(stream=1)
    order.wait(0, order.snapshot(1))
    order.is_ordered(0, copied)     # True: stream 0 waits for an event recorded after the copy

Is a wait needed? For each source line of waits the order is also kept as it would be without them, its counterfactual,
until something relies on an order that only this line makes. A line whose counterfactual lasts to the end is not
needed.
"""

from __future__ import annotations

from collections.abc import Iterable

Clock = dict[int, int]  # stream -> sequence number of its last work known to be over
Place = tuple[int, int]  # (stream, sequence number of the work in it)
HOST = -1  # the host's own entry among the clocks
COUNTERFACTUALS = 16  # kept at a time: each costs as much as the order itself


class Snapshot(Clock):
    """What an event stands for; `without` holds the same for each counterfactual."""

    __slots__ = ("without",)

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.without: dict[str, Clock] = {}


class HappensBefore:
    """Vector clocks, one per stream and one for the host; and the same for each counterfactual."""

    def __init__(self) -> None:
        self._clocks: dict[int, Clock] = {HOST: {}}
        self._seen: dict[int, int] = {}  # stream -> version of the host's clock that it has taken over
        self._host_version = 0
        self.counterfactuals: dict[str, HappensBefore] = {}  # source line of waits -> the order without them
        self.needed: set[str] = set()  # lines that something relies on

    def enqueue(self, stream: int) -> Place:
        """Note that the host puts work into `stream`; return its place."""
        clock = self.clock(stream)
        number = clock[stream] = clock.get(stream, 0) + 1
        if self.counterfactuals:
            for other in self.counterfactuals.values():
                other.enqueue(stream)
        return stream, number

    def snapshot(self, stream: int) -> Snapshot:
        """Return what an event recorded now in `stream` stands for."""
        snapshot = Snapshot(self.clock(stream))
        for line, other in self.counterfactuals.items():
            snapshot.without[line] = other.snapshot(stream)
        return snapshot

    def wait(self, stream: int, clock: Clock, line: str = "") -> None:
        """Order everything that `stream` gets from now on after `clock`; not so in the counterfactual of its `line`."""
        _join(self.clock(stream), clock)
        for name, other in self.counterfactuals.items():
            if name != line:
                other.wait(stream, _without(clock, name))

    def host_wait(self, clock: Clock) -> None:
        """Order the host, and so all that it enqueues later, after `clock`."""
        _join(self._clocks[HOST], clock)
        self._host_version += 1
        for name, other in self.counterfactuals.items():
            other.host_wait(_without(clock, name))

    def host_wait_all(self) -> None:
        """A device synchronise: the host is ordered after every stream."""
        for stream in self._clocks.keys() - {HOST}:
            _join(self._clocks[HOST], self._clocks[stream])
        self._host_version += 1
        for other in self.counterfactuals.values():
            other.host_wait_all()

    def is_ordered(self, stream: int, place: Place) -> bool:
        """Tell whether what `stream` gets next runs after the work at `place`. `HOST` asks for the host."""
        owner, number = place
        return self.clock(stream).get(owner, 0) >= number

    def clock(self, stream: int) -> Clock:
        """Return the clock of a stream (or of the `HOST`) as it is now; it is not a copy."""
        if self._seen.get(stream) == self._host_version:
            return self._clocks[stream]
        clock = self._clocks.setdefault(stream, {})
        if stream != HOST:
            _join(clock, self._clocks[HOST])
            self._seen[stream] = self._host_version
        return clock

    # Which waits are needed

    def add_counterfactual(self, line: str) -> None:
        """Keep the order without the waits of a line, too, from before the first of them on."""
        known = line in self.counterfactuals or line in self.needed
        if line and not known and len(self.counterfactuals) < COUNTERFACTUALS:
            other = self.counterfactuals[line] = HappensBefore()
            other._clocks = {stream: dict(clock) for stream, clock in self._clocks.items()}
            other._seen, other._host_version = dict(self._seen), self._host_version

    def rely(self, stream: int, place: Place) -> None:
        """`stream` (or the `HOST`) does something that must come after `place`: the lines that see to it are needed."""
        self._need(line for line, other in self.counterfactuals.items() if not other.is_ordered(stream, place))

    def rely_on(self, clock: Clock, place: Place) -> None:
        """The same for something that comes after `clock` was reached, such as the reuse of recorded memory."""
        owner, number = place
        self._need(line for line in self.counterfactuals if _without(clock, line).get(owner, 0) < number)

    def _need(self, lines: Iterable[str]) -> None:
        for line in list(lines):
            del self.counterfactuals[line]
            self.needed.add(line)


def _without(clock: Clock, line: str) -> Clock:
    """Return a clock as it would be without the waits of a line; before their first it was the same."""
    return clock.without.get(line, clock) if isinstance(clock, Snapshot) else clock


def _join(clock: Clock, other: Clock) -> None:
    for stream, number in other.items():
        if clock.get(stream, 0) < number:
            clock[stream] = number
