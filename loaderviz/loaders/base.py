"""What all four loaders share: one iteration at a time, the place in the epoch, and the way to end early.

A subclass writes `_run`, a generator of batches. This class hands that generator out as an iterator that a newer
`iter()` cancels, counts epochs and batches *handed out*, and makes sure that nothing stays open behind a `break`.
"""

from __future__ import annotations

import inspect
import operator
import weakref
from collections.abc import Generator, Iterator, Mapping
from typing import Any, Generic, Protocol, TypeVar

import torch

Batch = TypeVar("Batch")
BatchOut = TypeVar("BatchOut", covariant=True)


class BatchSource(Protocol[BatchOut]):
    """Anything that can be iterated for batches: a `DataLoader`, a list, another loader.

    `len()`, `state_dict()` and `load_state_dict()` are used where the source has them.
    """

    def __iter__(self) -> Iterator[BatchOut]:
        """Start an epoch."""
        ...


class Iteration(Iterator[Batch]):
    """One pass over a loader. Dropping it closes it; a newer pass over the same loader cancels it."""

    def __init__(self, batches: Generator[Batch, None, None]) -> None:
        self._batches = batches
        self._cancelled = False

    def __next__(self) -> Batch:
        if self._cancelled:
            raise RuntimeError(
                "this iterator was cancelled: its loader was closed, reloaded or iterated again since. A loader "
                "has one running iterator; make a second loader to iterate twice at the same time"
            )
        return next(self._batches)

    def cancel(self) -> None:
        """Close the generator behind; a pass that has already reached its end just stays ended."""
        if inspect.getgeneratorstate(self._batches) != inspect.GEN_CLOSED:
            self._cancelled = True
            self._batches.close()


class DeviceLoader(Generic[Batch]):
    """Base of the loaders: iteration, cancelling, and the place (epoch, batches handed out)."""

    def __init__(self, device: torch.device | str) -> None:
        self.device = torch.device(device)
        self._epoch = 0  # the epoch that runs, or the next one if none runs
        self._batches = 0  # handed out in it
        self._begun = False  # it has begun, and has not reached its end
        self._resuming = False  # the next iteration goes on in it
        self._iteration: weakref.ref[Iteration[Batch]] | None = None

    def __iter__(self) -> Iterator[Batch]:
        self._cancel()
        iteration = Iteration(self._run())
        # Only a weak reference: after a `break` nobody else holds the iteration, so it closes at once.
        self._iteration = weakref.ref(iteration)
        return iteration

    @property
    def epoch(self) -> int:
        """The epoch that runs, from 0; between two epochs, the next one."""
        return self._epoch

    @property
    def batches_handed_out(self) -> int:
        """How many batches of this epoch have been handed out; batches prefetched do not count."""
        return self._batches

    def close(self) -> None:
        """End a running iteration and let go of everything it holds. The loader can be iterated again."""
        self._cancel()

    def _run(self) -> Generator[Batch, None, None]:
        raise NotImplementedError

    def _cancel(self) -> None:
        iteration = self._iteration() if self._iteration is not None else None
        if iteration is not None:
            iteration.cancel()
        self._iteration = None

    def _begin_epoch(self) -> None:
        """Move to the next epoch if the last one was left by a `break`; stay where a loaded state says."""
        require_device(self.device)
        if self._begun and not self._resuming:
            self._epoch, self._batches = self._epoch + 1, 0
        self._begun, self._resuming = True, False

    def _end_epoch(self) -> None:
        self._epoch, self._batches, self._begun = self._epoch + 1, 0, False

    def _set_place(self, epoch: int, batches: int) -> None:
        """Let the next iteration go on in `epoch` after `batches` batches."""
        self._cancel()
        self._epoch, self._batches = epoch, batches
        self._begun = self._resuming = True


def require_device(device: torch.device) -> None:
    """Raise RuntimeError if `device` is a CUDA device and torch sees none."""
    if device.type == "cuda" and not torch.cuda.is_available():
        raise RuntimeError(
            f"device {str(device)!r} was asked for, but torch sees no CUDA device here. Pass device='cpu', or run "
            "the loop inside `with loaderviz.record(on='a100'):` to use an emulated GPU"
        )


def place_in(state: Mapping[str, Any]) -> tuple[int, int]:
    """Return (epoch, batches) of a saved state; raise ValueError if they are missing or not counts."""
    found = []
    for key in ("epoch", "batches"):
        if key not in state:
            raise ValueError(f"the state has no {key!r} (it has {sorted(state)}): load what state_dict() returned")
        found.append(checked_count(state[key], f"{key!r} in the state", least=0))
    return found[0], found[1]


def checked_count(value: Any, what: str, least: int) -> int:
    """Return `value` as an int; raise TypeError or ValueError unless it is a whole number >= `least`."""
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{what} must be a whole number, got {value!r} of type {type(value).__name__}") from None
    if number < least:
        raise ValueError(f"{what} must be at least {least}, got {number}")
    return number
