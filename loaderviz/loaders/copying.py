"""What the three copying loaders share: drawing from a source in order, and resuming it.

A subclass writes `_move`: it gets the batches drawn from the source and yields them with their device copy in
place. Everything else (errors in their place, state, closing the source) happens here.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterator, Mapping
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from typing import Any, cast

import torch

from . import marks
from .base import Batch, BatchSource, DeviceLoader, place_in
from .nested import count_pageable, samples_in
from .replay import completed, random_state, replaying

_END = object()


@dataclass(slots=True)
class Drawn:
    """A batch on its way: its number in the epoch, the batch, and where the source was after drawing it."""

    index: int
    batch: Any
    source_state: Any = None

    def take(self) -> Any:
        """Return the batch and forget it, so that its memory is free as soon as the user drops it."""
        batch, self.batch = self.batch, None
        return batch


class CopyingLoader(DeviceLoader[Batch]):
    """Base of the loaders that copy each batch of a source to a device.

    State: `state_dict()` counts batches handed out. A source with its own `state_dict` / `load_state_dict` is
    asked for its state after every draw, and the state that belongs to the last batch *handed out* is saved. Any
    other source is replayed: it is started with the random generators as they were at the start of the epoch
    (its own `generator`, else torch's default CPU generator), and the batches already used are drawn and thrown
    away. So a shuffling `DataLoader` resumes with the very batches that were left. Not promised: sources that
    draw from other random generators (`random`, numpy), random augmentation in the main process
    (`num_workers=0`), and, between two epochs, the default generator, which is yours to save.
    """

    def __init__(self, loader: BatchSource[Batch], device: torch.device | str = "cuda") -> None:
        super().__init__(device)
        if not hasattr(loader, "__iter__") and not hasattr(loader, "__getitem__"):
            raise TypeError(
                f"loader must be iterable, got {type(loader).__name__}: pass a DataLoader, a list of batches or "
                "any object with __iter__"
            )
        self.loader = loader
        self._source_state: Any = None  # of the source, after the last batch handed out
        self._random: dict[str, Any] | None = None  # at the start of this epoch
        self._pageable_copies = 0

    @property
    def pageable_copies(self) -> int:
        """How many tensors came in pageable host memory so far; such a copy cannot run beside the host's work."""
        return self._pageable_copies

    def __len__(self) -> int:
        """Return the source's number of batches; raise TypeError if it has no length."""
        return len(self.loader)  # type: ignore[arg-type]

    def state_dict(self) -> dict[str, Any]:
        """Return the place after the last batch handed out: epoch, batches, and the source's own state."""
        random = self._random if self._begun else random_state(self.loader, with_default=False)
        source = self._source_state
        if self._has_state() and not self._begun:
            source = cast(Any, self.loader).state_dict()
        return {"epoch": self._epoch, "batches": self._batches, "random": random, "source": source}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state` was saved, in the next iteration; a running iteration is cancelled.

        Raises ValueError if the state does not fit this loader's source.
        """
        epoch, batches = place_in(state)
        source = state.get("source")
        if self._has_state() != (source is not None):
            keeps, has = ("no", "one") if source is not None else ("a", "none")
            raise ValueError(
                f"the source, a {type(self.loader).__name__}, keeps {keeps} state of its own, but the state has {has} "
                "for it: wrap the same kind of source as when the state was saved"
            )
        self._set_place(epoch, batches)
        if self._has_state():
            cast(Any, self.loader).load_state_dict(source)
        self._source_state, self._random = source, state.get("random")

    def _has_state(self) -> bool:
        return hasattr(self.loader, "state_dict") and hasattr(self.loader, "load_state_dict")

    def _run(self) -> Generator[Batch, None, None]:
        with closing(self._draw()) as draws, closing(self._move(draws)) as moved:
            for drawn in moved:
                self._batches, self._source_state = drawn.index + 1, drawn.source_state
                yield drawn.take()
        self._source_state = self._random = None
        self._end_epoch()

    def _move(self, draws: Generator[Drawn, None, None]) -> Generator[Drawn, None, None]:
        """Yield each drawn batch, in order, with its batch replaced by the copy on the device."""
        raise NotImplementedError

    def _count_pageable(self, batch: Any) -> None:
        if self.device.type == "cuda":
            self._pageable_copies += count_pageable(batch)

    def _handing_out(self, drawn: Drawn) -> AbstractContextManager[object]:
        return marks.handing_out(drawn.index, samples_in(drawn.batch) if marks.listening() else 0)

    def _draw(self) -> Generator[Drawn, None, None]:
        """Start or resume the source, then yield its batches with their numbers."""
        resuming = self._resuming
        self._begin_epoch()
        first = self._batches
        if not resuming:
            self._random = None if self._has_state() else random_state(self.loader, with_default=True)
            self._source_state = cast(Any, self.loader).state_dict() if self._has_state() else None
        if resuming and not self._has_state():
            saved, self._random = self._random, completed(self._random)
            # A shuffling source may draw its order with its first batch only, so that one belongs to the replay.
            with replaying(self.loader, saved):
                iterator = iter(self.loader)
                self._skip(iterator, first)
                batch = next(iterator, _END)
        else:
            iterator = iter(self.loader)
            batch = next(iterator, _END)
        try:
            for index in itertools.count(first):
                if batch is _END:
                    return
                drawn = Drawn(index, batch, cast(Any, self.loader).state_dict() if self._has_state() else None)
                batch = None  # the one reference left is the consumer's
                yield drawn
                batch = next(iterator, _END)
        finally:
            if iterator is not self.loader and callable(close := getattr(iterator, "close", None)):
                close()

    def _skip(self, iterator: Iterator[Batch], count: int) -> None:
        for done in range(count):
            if next(iterator, _END) is _END:
                raise RuntimeError(
                    f"the state was saved after {count} batches, but the source ended after {done}: is it the same "
                    "data set with the same batch size?"
                )
