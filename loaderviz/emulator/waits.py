"""Waits: which lines of a program let a stream wait for nothing, or wait without need; streams made in every epoch.

A wait is needed if some access relies on it: `hazards` keeps each line on trial until one does. What a wait costs is
the time for which it holds back the next work of its stream.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from loaderviz import words
from loaderviz.emulator import explain
from loaderviz.emulator.findings import Access, Hazard, stream_words

if TYPE_CHECKING:
    from loaderviz.emulator.device import Command, Stream
    from loaderviz.emulator.hazards import HappensBefore

WORTH = 100  # a needless wait is told if it costs at least this part of the run
STREAMS = 3  # streams made at one line and left behind, from which on it is told


class Held(NamedTuple):
    """A wait whose cost is not yet known: its marker, what was in the stream before, and what came next."""

    line: WaitLine
    marker: Command
    before: Command | None
    after: Command


@dataclass
class WaitLine:
    """All waits of one source line."""

    source: str
    waiter: int  # numbers of the streams: of the first wait, and of the last one
    other: int
    batch: int
    count: int = 0
    empty: int = 0  # of these waited for nothing
    recorded: bool = True
    delay: int = 0  # [ns]


@dataclass
class CopyLine:
    """All asynchronous copies of one source line that blocked the host."""

    name: str
    stream: int
    batch: int
    count: int = 0
    blocked: int = 0  # [ns]


@dataclass
class StreamLine:
    """The streams made at one source line. `left` were not used any more when the next one was made."""

    last: tuple[Stream, int] | None = None  # and the number of its last work, when the next one was made
    newest: Stream | None = None
    made: int = 0
    left: set[int] = field(default_factory=set)


class Waits:
    """The waits of one recording, by source line."""

    def __init__(self, order: HappensBefore) -> None:
        self._order = order
        self._lines: dict[str, WaitLine] = {}
        self._last: dict[tuple[int, int], str] = {}  # (waiter, other) -> line of the last wait
        self._known: dict[int, dict[int, int]] = {}  # waiter -> other -> number of the last work waited for
        self._open: dict[int, list[tuple[WaitLine, Command, Command | None]]] = {}  # by stream: nothing came yet
        self._held: deque[Held] = deque()
        self._copies: dict[str, CopyLine] = {}
        self._streams: dict[str, StreamLine] = {}

    def note(
        self, stream: Stream, record: Command | None, source: str, batch: int, marker: Command | None = None
    ) -> None:
        """`stream` is about to wait, by `marker`, for the event recorded by `record` (None: it never was)."""
        line = self._lines.get(source)
        if line is None:
            line = self._lines[source] = WaitLine(source, stream.number, record.stream.number if record else -1, batch)
        line.count += 1
        line.recorded = record is not None
        if record is None or marker is None:
            line.empty += 1
            return
        line.other = record.stream.number
        self._last[stream.id, record.stream.id] = source
        if self._adds(stream, record):
            self._order.try_without(source)
        else:
            line.empty += 1
        if source in self._order.trials:
            self._open.setdefault(stream.id, []).append((line, marker, stream.last))

    def _adds(self, stream: Stream, record: Command) -> bool:
        """Tell whether the event stands for work that the stream has not waited for yet, and remember that it has."""
        known, adds = self._known.setdefault(stream.id, {}), False
        for work in record.awaits:
            if work.stream is not stream and known.get(work.stream.id, -1) < work.number:
                known[work.stream.id] = work.number
                adds = True
        return adds

    def followed(self, command: Command) -> None:
        """The next work after waits is in the stream."""
        waiting = self._open.pop(command.stream.id, None)
        for line, marker, before in waiting or ():
            self._held.append(Held(line, marker, before, command))
        while self._held and self._held[0].after.done:
            self._add_up(self._held.popleft())

    def _add_up(self, held: Held) -> None:
        free = max(held.before.end if held.before else 0, held.after.ready)
        held.line.delay += max(0, held.marker.end - free)

    def last_between(self, stream: Stream | None, other: Stream | None) -> str:
        """Return the line of the last wait of one stream for another, "" if there was none."""
        return "" if stream is None or other is None else self._last.get((stream.id, other.id), "")

    def blocked(self, command: Command, duration: int) -> None:
        """A copy that was asked to be asynchronous blocked the host for `duration` ns."""
        if duration > 0:
            fresh = CopyLine(command.name, command.stream.number, command.batch)
            line = self._copies.setdefault(command.source, fresh)
            line.count += 1
            line.blocked += duration

    def stream_made(self, stream: Stream, source: str) -> None:
        """The program asked for a stream of the pool."""
        line = self._streams.setdefault(source, StreamLine())
        line.made += 1
        self._leave(line)
        if line.newest is not None:
            line.last = line.newest, _last_number(line.newest)
        line.newest = stream

    def _leave(self, line: StreamLine) -> None:
        stream, number = line.last or (None, -1)
        if stream is not None and stream is not line.newest and _last_number(stream) == number >= 0:
            line.left.add(stream.id)

    # What was found

    def findings(self, window: int, cached: dict[int, int]) -> list[Hazard]:
        """Return the findings of a run of `window` ns; `cached` is what lies free in each stream's pool [bytes]."""
        while self._held:
            self._add_up(self._held.popleft())
        found = [self._nothing(line) for line in self._lines.values() if line.empty == line.count]
        found += [_hidden(source, line) for source, line in self._copies.items()]
        for source, made in self._streams.items():
            self._leave(made)
            held = [cached.get(stream, 0) for stream in made.left]
            if len(made.left) + 1 >= STREAMS and sum(size > 0 for size in held) >= STREAMS - 1:
                text = explain.stream_per_epoch(made.made, words.size(sum(held)), source)
                access = Access("torch.cuda.Stream", False, None, source=source)
                found.append(_finding("stream-per-epoch", text, access, made.made))
        found += [
            self._needless(line)
            for line in self._lines.values()
            if line.source in self._order.trials and line.empty < line.count and line.delay * WORTH >= window > 0
        ]
        return found

    def _nothing(self, line: WaitLine) -> Hazard:
        waiter, other = stream_words(line.waiter), stream_words(line.other)
        text = explain.wait_on_nothing(waiter, other, line.source, line.recorded)
        return _finding("wait-on-nothing", text, _wait(line), line.count, line.batch)

    def _needless(self, line: WaitLine) -> Hazard:
        waiter, other = stream_words(line.waiter), stream_words(line.other)
        text = explain.needless_wait(waiter, other, line.source, words.duration(line.delay))
        return _finding("needless-wait", text, _wait(line), line.count, line.batch)


def _wait(line: WaitLine) -> Access:
    return Access("cudaStreamWaitEvent", False, line.waiter, batch=line.batch, source=line.source)


def _hidden(source: str, line: CopyLine) -> Hazard:
    text = explain.hidden_sync(line.name, source, words.duration(line.blocked))
    access = Access(line.name, False, line.stream, batch=line.batch, source=source)
    return _finding("hidden-sync", text, access, line.count, line.batch)


def _finding(kind: str, text: explain.Text, access: Access, count: int, batch: int = -1) -> Hazard:
    batches = (batch,) if batch >= 0 else ()
    return Hazard(
        kind, text.rule, access, None, text.problem, text.missing, text.fix, text.shows, count, batches
    )  # fmt: skip


def _last_number(stream: Stream) -> int:
    return stream.last_work.number if stream.last_work else -1
