"""Linter: which lines of a program wait for nothing, or without need, or hide a synchronisation.

A wait is needed if some access relies on it: `happens_before` keeps the order without it until one does. What a wait
costs is the time for which it holds back the next work of its stream.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field

from loaderviz import words
from loaderviz.emulator.device import Command, Stream
from loaderviz.emulator.hazards import Access, Lint, Lints, code, lint_of, stream_words
from loaderviz.emulator.hazards.happens_before import HappensBefore

WORTH = 100  # a needless wait is told if it costs at least this part of the run
STREAMS = 3  # streams made at one line, all but the last left behind with memory, from which on it is told


@dataclass
class Line:
    """All waits, or all copies that blocked the host, of one source line; `at` is the first of them."""

    at: Access
    text: str = ""  # which case of texts.toml
    count: int = 0
    time: int = 0  # [ns] lost
    other: int = -1  # stream that was waited for last
    empty: int = 0  # so many waited for nothing
    recorded: bool = True  # the event of the last wait was

    def lint(self, text: str = "") -> Lint:
        """Return the report."""
        streams = {"waiter": stream_words(self.at.stream), "other": stream_words(self.other)}
        return lint_of(text or self.text, self.at, self.count, time=words.duration(self.time), **streams)


@dataclass
class StreamLine:
    """The streams made at one source line. `left` were not used any more when the next one was made."""

    last: tuple[Stream, int] | None = None  # and the number of its last work, when the next one was made
    newest: Stream | None = None
    made: int = 0
    left: set[int] = field(default_factory=set)

    def leave(self) -> None:
        """Was the last one used since the newest was made?"""
        stream, number = self.last or (None, -1)
        if stream is not None and stream is not self.newest and _last_number(stream) == number >= 0:
            self.left.add(stream.id)


class Linter:
    """The waits, blocking copies and streams of one recording, by source line."""

    def __init__(self, order: HappensBefore) -> None:
        self._order = order
        self._waits: dict[str, Line] = {}
        self._copies: dict[str, Line] = {}
        self._streams: dict[str, StreamLine] = {}
        self._blank: dict[tuple[str, str], Line] = {}  # by the lines that read and made it
        self._made: dict[int, str] = {}  # stream -> line
        self.last_waits: dict[tuple[int, int], str] = {}  # (who is waited for, waiter) -> line of the last wait
        self._known: dict[int, dict[int, int]] = {}  # waiter -> other -> number of the last work waited for
        # Waits that may be needless: line, marker, what was in the stream before, and what came next.
        self._open: dict[int, list[tuple[Line, Command, Command | None]]] = {}  # by stream: nothing came yet
        self._held: list[tuple[Line, Command, Command | None, Command]] = []

    def wait(self, stream: Stream, record: Command | None, source: str, batch: int, marker: Command) -> None:
        """`stream` is about to wait, by `marker`, for the event recorded by `record` (None: it never was)."""
        at = Access("cudaStreamWaitEvent", False, stream.number, batch=batch, source=source)
        line = self._waits.setdefault(source, Line(at))
        line.count += 1
        line.recorded = record is not None
        if record is None:
            line.empty += 1
            return
        line.other = record.stream.number
        self.last_waits[record.stream.id, stream.id] = source
        # does the event stand for work that the stream has not waited for yet? Now it has
        known, adds = self._known.setdefault(stream.id, {}), False
        for work in record.awaits:
            if work.stream is not stream and known.get(work.stream.id, -1) < work.number:
                known[work.stream.id] = work.number
                adds = True
        if adds:
            self._order.add_counterfactual(source)
        else:
            line.empty += 1
        if source in self._order.counterfactuals:
            self._open.setdefault(stream.id, []).append((line, marker, stream.last))

    def followed(self, command: Command) -> None:
        """The next work after waits is in the stream."""
        self._held += [(*waiting, command) for waiting in self._open.pop(command.stream.id, ())]

    def blocked(self, command: Command, duration: int, case: str = "") -> None:
        """A copy that was asked to be asynchronous, or is asked by indexing (`case`), blocked the host for these ns."""
        if duration > 0:
            at = Access(command.name, False, command.stream.number, batch=command.batch, source=command.source)
            case = case or (", to the host" if "DtoH" in command.name else "")
            line = self._copies.setdefault(command.source, Line(at, f"hidden-sync{case}"))
            line.count += 1
            line.time += duration

    def blank(self, at: Access, made: str) -> None:
        """Memory is read that was made at a line, and never written."""
        self._blank.setdefault((at.source, made), Line(at)).count += 1

    def name_of(self, stream: Stream | None) -> str:
        """Return what the program calls a stream, from the line that made it: "side", "self.copies"; or ""."""
        return assigned(self._made.get(stream.id, ""), "Stream") if stream else ""

    def stream_made(self, stream: Stream, source: str) -> None:
        """The program asked for a stream of the pool."""
        self._made.setdefault(stream.id, source)
        line = self._streams.setdefault(source, StreamLine())
        line.made += 1
        line.leave()
        if line.newest is not None:
            line.last = line.newest, _last_number(line.newest)
        line.newest = stream

    def add_up(self) -> None:
        """Add up what those waits have cost that are over."""
        held, self._held = self._held, []
        for line, marker, before, after in held:
            if marker.done:
                line.time += max(0, marker.end - max(before.end if before else 0, after.ready))
            else:
                self._held.append((line, marker, before, after))

    def lints(self, window: int, cached: dict[int, int]) -> Lints:
        """Return what is useless or slow in a run of `window` ns; `cached` lies free in each stream's pool [bytes]."""
        self.add_up()
        found = Lints()
        for line in self._waits.values():
            if line.empty == line.count:
                itself = line.other == line.at.stream
                case = ", for itself" if itself else "" if line.recorded else ", not recorded"
                found.append(line.lint(f"wait-on-nothing{case}"))
        found += [line.lint() for line in self._copies.values()]
        for (_, made), line in self._blank.items():
            found.append(lint_of("blank-read", line.at, line.count, made=code(made)))
        for source, streams in self._streams.items():
            streams.leave()
            held = [cached.get(stream, 0) for stream in streams.left]
            if sum(size > 0 for size in held) >= STREAMS - 1:
                at = Access("torch.cuda.Stream", False, None, source=source)
                found.append(
                    lint_of("stream-per-epoch", at, streams.made, made=streams.made, held=words.size(sum(held)))
                )
        found += [
            line.lint("needless-wait")
            for source, line in self._waits.items()
            if source in self._order.counterfactuals and line.empty < line.count and line.time * WORTH >= window > 0
        ]
        return found


def _last_number(stream: Stream) -> int:
    return stream.last_work.number if stream.last_work else -1


def assigned(source: str, function: str) -> str:
    """Return the variable to which a program line assigns what a function makes, "" if it does not or is not known."""
    statement = _statement(source)
    if not isinstance(statement, ast.Assign | ast.AnnAssign) or statement.value is None:
        return ""
    target, value = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target, statement.value
    pairs = [(target, value)]
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        pairs = list(zip(target.elts, value.elts, strict=False))
    made = [
        ast.unparse(one)
        for one, call in pairs
        if isinstance(call, ast.Call) and ast.unparse(call.func).endswith(function)
    ]
    return made[0] if len(made) == 1 and re.fullmatch(r"[\w.]+", made[0]) else ""


def _statement(source: str) -> ast.stmt | None:
    """Return the statement on a program line, None if it is a part of a longer one or not known."""
    try:
        (statement,) = ast.parse(code(source).partition("  ")[2]).body
    except (SyntaxError, ValueError):
        return None
    return statement
