"""Python's interpreter lock in virtual time (R53): one thread runs Python, others run C, wait, or wait for the lock."""

from __future__ import annotations

from types import CodeType
from typing import TYPE_CHECKING, Any

from loaderviz.timeline import Cause

if TYPE_CHECKING:
    from loaderviz.emulator.threads import Scheduler, Turn

CALL = "interpreter lock"
SPREAD, STEP = 1000, 618  # thousandths of a wake-up, half of them to each side; from one to the next (the golden ratio)


class Line(list["Turn"]):
    """Who waits for the same, in their order."""

    told: Any = None  # by who let one of them go last
    owner: Turn | None = None  # who has it: a lock, or a thread its own end. None: the only thread, if it was `taken`
    taken: tuple[CodeType, int] | None = None  # where that took the lock: a line of this function


class Gil:
    """Who has the lock of an interpreter, and who stands in line for it. Without a switch interval there is none.

    No two wake-ups take equally long here, as on any machine: else who wakes would find the lock taken for ever, where
    others take it just as often as it wakes.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler, self.interval = scheduler, scheduler.runtime.host.switch_interval
        self._holder: Turn | None = None
        self._line = Line()
        self._wakes = 0
        self._since = 0  # when the one that has it got it, or the first in line began to wait, whichever is later

    def take(self) -> None:
        """The thread that runs goes on with Python: it waits until it has the lock."""
        scheduler, again = self._scheduler, False
        while self.interval and (turn := scheduler.here()) not in (None, self._holder):
            if self._holder is None:
                self._holder, self._since = turn, scheduler.runtime.now
                return
            if not self._line:
                self._since = max(self._since, scheduler.runtime.now)
            scheduler.stand(self._line, (CALL, ""), cause=Cause.GIL, first=again)
            again = True

    def drop(self) -> None:
        """The thread that runs waits, or runs C: the first in line wakes up, and finds the lock free or taken back."""
        if self._holder and self._holder is self._scheduler.here():
            self._holder = None
            self._wake()

    def share(self) -> None:
        """The thread that runs has come to a point: it hands the lock over if the first in line has waited for long."""
        turn, now = self._scheduler.running, self._scheduler.runtime.now
        if self._line and self._holder is turn and now >= self._since + self.interval:
            self._holder = self._wake()
            self.take()

    def piece(self, left: int) -> int:
        """Return how much of so many ns of Python passes before it may have to be handed over."""
        due = self._since + self.interval - self._scheduler.runtime.now if self._line else self.interval
        return min(left, max(1, due))

    def _wake(self) -> Turn | None:
        self._since = self._scheduler.runtime.now
        if not self._line:
            return None
        self._wakes += 1
        return self._scheduler.wake(self._line, spread=self._wakes * STEP % SPREAD - SPREAD // 2)
