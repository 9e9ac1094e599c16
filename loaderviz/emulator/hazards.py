"""Happens-before over streams, events and the host: what is certain to be over when something else begins.

Every command has a place: (stream, its number in that stream). A stream knows, for each stream, up to which number it
is ordered after it; an event carries such a clock from one stream to another; a synchronise gives it to the host, and
what the host enqueues later is ordered after all that the host knows (R16).

    order = HappensBefore()
    copied = order.enqueue(stream=1)
    order.wait(0, order.snapshot(1))
    order.is_ordered(0, copied)     # True: stream 0 waits for an event recorded after the copy
"""

from __future__ import annotations

Clock = dict[int, int]  # stream -> number of its last command known to be over
Place = tuple[int, int]  # (stream, number of a command in it)
HOST = -1  # the host's own entry among the clocks


class HappensBefore:
    """Vector clocks, one per stream and one for the host."""

    def __init__(self) -> None:
        self._clocks: dict[int, Clock] = {HOST: {}}
        self._seen: dict[int, int] = {}  # stream -> version of the host's clock that it has taken over
        self._host_version = 0

    def enqueue(self, stream: int) -> Place:
        """Note that the host puts a command into `stream`; return its place."""
        clock = self._clock(stream)
        number = clock.get(stream, 0) + 1
        clock[stream] = number
        return stream, number

    def snapshot(self, stream: int) -> Clock:
        """Return what an event recorded now in `stream` stands for."""
        return dict(self._clock(stream))

    def wait(self, stream: int, clock: Clock) -> None:
        """Order everything that `stream` gets from now on after `clock`."""
        _join(self._clock(stream), clock)

    def host_wait(self, clock: Clock) -> None:
        """Order the host, and so all that it enqueues later, after `clock`."""
        _join(self._clocks[HOST], clock)
        self._host_version += 1

    def host_wait_all(self) -> None:
        """A device synchronise: the host is ordered after every stream."""
        for stream in [stream for stream in self._clocks if stream != HOST]:
            _join(self._clocks[HOST], self._clocks[stream])
        self._host_version += 1

    def is_ordered(self, stream: int, place: Place) -> bool:
        """Tell whether what `stream` gets next runs after the command at `place`. `HOST` asks for the host."""
        owner, number = place
        clock = self._clocks[HOST] if stream == HOST else self._clock(stream)
        return clock.get(owner, 0) >= number

    def _clock(self, stream: int) -> Clock:
        clock = self._clocks.setdefault(stream, {})
        if self._seen.get(stream) != self._host_version:
            _join(clock, self._clocks[HOST])
            self._seen[stream] = self._host_version
        return clock


def _join(clock: Clock, other: Clock) -> None:
    for stream, number in other.items():
        if clock.get(stream, 0) < number:
            clock[stream] = number
