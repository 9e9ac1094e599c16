"""How far work is that takes more than 2 s, on standard error: one line that changes, or a few lines in a file.

    for file in told(map(read, files), files, "reading {} files"):   # tells "reading 300 files: 40 are done"
        ...
    with lasting("making the timeline"):              # tells "making the timeline: 4 s"
        ...

A notebook has its cell's star for that. The clock and the threads are those of the system, also inside a recording.
"""

from __future__ import annotations

import sys
from _thread import start_new_thread
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager, suppress
from time import monotonic, sleep
from typing import TextIO, TypeVar

AFTER = 2.0  # s until the first word
EVERY = 0.2  # s between two looks at a terminal; in a file each wait is twice the one before
Item = TypeVar("Item")


class Progress:
    """The line, of work that began when this was made. What cannot be told disturbs nobody."""

    def __init__(self, stream: TextIO | None = None, clock: Callable[[], float] = monotonic) -> None:
        self._stream, self._clock = sys.stderr if stream is None else stream, clock
        self._begin = clock()
        self._next, self._shown = self._begin + AFTER, 0
        shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
        self._silent = self._stream is None or hasattr(shell, "kernel")
        with suppress(Exception):
            self._changes = False
            self._changes = self._stream.isatty()

    def look(self, doing: str) -> None:
        """Say what is being done, where it is time to say something."""
        now = self._clock()
        if self._silent or now < self._next:
            return
        took = now - self._begin
        self._next = now + (EVERY if self._changes else took)
        text = f"loaderviz: {doing}, after {took:.0f} s"
        self._write("\r" + text.ljust(self._shown) if self._changes else text + "\n")
        self._shown = len(text)

    def close(self) -> None:
        """Clear the line of a terminal."""
        if self._changes and self._shown and not self._silent:
            self._write("\r" + " " * self._shown + "\r")
        self._silent = True

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # a full disk, a closed stream
            self._silent = True


def told(items: Iterable[Item], of: Sized, doing: str, progress: Progress | None = None) -> Iterator[Item]:
    """Give the items, one for each `of`, and tell how many are done; `doing` has a place for how many there are."""
    progress = progress or Progress()
    title = doing.format(f"{len(of):,}")
    try:
        for done, item in enumerate(items, 1):
            yield item
            progress.look(f"{title}: {done:,} {'is' if done == 1 else 'are'} done")
    finally:
        progress.close()


@contextmanager
def lasting(doing: str, progress: Progress | None = None, pause: Callable[[float], None] = sleep) -> Iterator[None]:
    """Tell how long the block takes, by a thread that ends soon after it."""
    progress = progress or Progress()

    def tell() -> None:
        while not over:
            pause(EVERY)
            if not over:
                progress.look(doing)

    over = list[bool]()
    with suppress(RuntimeError):  # no thread to be had
        start_new_thread(tell, ())
    try:
        yield
    finally:
        over.append(True)
        progress.close()
