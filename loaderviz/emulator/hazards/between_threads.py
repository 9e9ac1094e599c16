"""What each thread of the host knows of the work of the others: the order that a program of several threads ensures.

That one thread put work into a stream before another one asked for it to be over is certain only if a lock, or what is
made of locks, a start or a join lies between the two calls; that it came so in this run is not. So each thread has a
view of its own, a vector clock for the host and for each stream as far as it knows of it, and an edge between two
threads joins one view into the other: from who lets go of a lock to who takes it next, for example.

A clock's entries are of one thread's work in one stream: a `Source`. What two threads put into the same stream runs one
after the other in any case, and is no race.
"""

from __future__ import annotations

from typing import NamedTuple

from loaderviz.emulator.hazards.happens_before import Clock, Clocks, HappensBefore, join_clock

Source = int  # a stream's id, and which thread put the work there
THREAD = 1 << 20  # what a thread adds to a stream's id; one that has ended leaves its number to a later one
View = dict[int, Clock]  # by stream, and `HOST`


class Recorded(NamedTuple):
    """A thread's view of a stream when it recorded an event there, the `number`-th of its work in it."""

    source: Source
    number: int
    clock: Clock


class BetweenThreads(Clocks):
    """The views of all threads; the calls are made for the one that runs, whose `clocks` are its view.

    All begin with what the main one, 0, knows. Here work is ordered if that one is certain of it.
    """

    def __init__(self, order: HappensBefore) -> None:
        super().__init__({stream: dict(order.clock(stream)) for stream in order.clocks})
        self._views, self._slots, self._running = {0: self.clocks}, {0: 0}, 0
        self._told: dict[int, View] = {}  # what each has told last, unless it has learnt or done something since
        self._ended: list[tuple[int, View]] = []

    def source(self, stream: int) -> Source:
        """Return what stands for work that the running thread puts into a stream."""
        return stream + self._slots[self._running] * THREAD

    # What it does

    def enqueue(self, stream: int, number: int) -> None:
        """It puts work into a stream, the `number`-th there."""
        self.clock(stream)[self.source(stream)] = number
        self._told.pop(self._running, None)

    def recorded(self, stream: int) -> Recorded:
        """It has recorded an event in a stream, or waits for all that it knows to be there."""
        clock, source = self.clock(stream), self.source(stream)
        return Recorded(source, clock.get(source, 0), dict(clock))

    def wait(self, stream: int, event: Recorded | None, clock: Clock) -> None:
        """It lets a stream (or the `HOST`, itself) wait for an event; of one older than the threads all know.

        Of another thread's, that it does not know to be recorded, it may have come too early.
        """
        if event is None or self.is_ordered(event.source % THREAD, (event.source, event.number)):
            join_clock(self.clock(stream), event.clock if event else clock)
            self._told.pop(self._running, None)

    # What others know of it

    def run(self, thread: int) -> None:
        """Another thread goes on."""
        self._running, self.clocks = thread, self._views[thread]

    def tell(self, before: View | None = None) -> View:
        """Return what the running thread knows, for others to `learn`; `before` it others may have told something."""
        told = self._told.get(self._running)
        if told is None:
            told = self._told[self._running] = {stream: dict(clock) for stream, clock in self.clocks.items()}
        if before is None or before is told:
            return told
        both = {stream: dict(clock) for stream, clock in before.items()}
        _join(both, told)
        return both

    def learn(self, told: View | None) -> None:
        """The running thread comes after what another one did before it told this."""
        if told is not None and told is not self._told.get(self._running):
            _join(self.clocks, told)
            self._told.pop(self._running, None)

    def start(self, thread: int) -> None:
        """The running thread starts another one."""
        self._views[thread] = {stream: dict(clock) for stream, clock in self.clocks.items()}
        for ended in self._ended:
            work = [(stream, *entry) for stream, clock in ended[1].items() for entry in clock.items()]
            if all(self.clocks.get(stream, {}).get(source, 0) >= number for stream, source, number in work):
                self._ended.remove(ended)
                self._slots[thread] = ended[0]
                return
        self._slots[thread] = len(self._slots) + len(self._ended)

    def end(self, thread: int) -> View:
        """A thread has ended: return what it knew."""
        view = self._views.pop(thread)
        self._ended.append((self._slots.pop(thread), view))
        self._told.pop(thread, None)
        return view


def _join(view: View, other: View) -> None:
    for stream, clock in other.items():
        join_clock(view.setdefault(stream, {}), clock)
