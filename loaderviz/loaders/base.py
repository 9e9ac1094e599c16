"""What all four loaders share: one iteration at a time, the place in the epoch, and the way to end early.

A subclass writes `_run`, a generator of batches. This class hands that generator out as an iterator that a newer
`iter()` cancels, counts epochs and batches *handed out*, and makes sure that nothing stays open behind a `break`.
"""

from __future__ import annotations

import inspect
import itertools
import operator
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch.profiler import record_function

from .nested import is_pageable, leaves, pin, samples_in, to_device

Batch = TypeVar("Batch")


# Marks that let a timeline know which batch a piece of work is for: from here on (`handing_out`), or ahead. A running
# `torch.profiler` gets ranges named "batch 3: 256 samples" and "prefetch of batch 5"; the hooks `on_batch` and
# `on_prefetch`, the emulator's, are told instead of it. When nobody listens, a call costs well under a microsecond.

on_batch: Callable[[int, int], None] | None = None
"""Called as `on_batch(index, samples)` when a loader hands out a batch; work after the call is for that batch."""

on_prefetch: Callable[[int], AbstractContextManager[object]] | None = None
"""Called as `on_prefetch(index)`; the loader enters what it returns around the copy of that later batch."""

_NOTHING: AbstractContextManager[object] = nullcontext()


def listening() -> bool:
    """Return whether a profiler runs or a hook is set, so that a mark would reach somebody."""
    return on_batch is not None or on_prefetch is not None or _profiling()


def handing_out(index: int, samples: int) -> AbstractContextManager[object]:
    """Mark that the work from here on is for batch `index`; the returned context goes around its preparation.

    `index` counts from 0 in each epoch; `samples` is the number of samples in the batch.
    """
    if on_batch is not None:
        on_batch(index, samples)
    elif _profiling():
        return record_function(f"batch {index}: {samples} samples")
    return _NOTHING


def prefetching(index: int) -> AbstractContextManager[object]:
    """Return the context to enter around the copy of batch `index`, issued before that batch is due."""
    if on_prefetch is not None:
        return on_prefetch(index)
    if _profiling():
        return record_function(f"prefetch of batch {index}")
    return _NOTHING


def _profiling() -> bool:
    return bool(torch.autograd._profiler_enabled())  # type: ignore[attr-defined]


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
        DeviceLoader.close(self)  # and not what a subclass also lets go of
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
        iteration = self._iteration() if self._iteration is not None else None
        if iteration is not None:
            iteration.cancel()
        self._iteration = None

    def _run(self) -> Generator[Batch, None, None]:
        raise NotImplementedError

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
        DeviceLoader.close(self)
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


# A source that cannot save its own place is replayed: a shuffling DataLoader draws its order when an epoch begins, from
# its `generator` or torch's default one, so it is started with the same random numbers, and what was used is skipped.


def generators_of(source: Any) -> list[torch.Generator]:
    """Return the random generators that `source` and its samplers own, each once."""
    sampler, batch_sampler = getattr(source, "sampler", None), getattr(source, "batch_sampler", None)
    owners = (source, sampler, batch_sampler, getattr(batch_sampler, "sampler", None))
    found = {id(g): g for o in owners if isinstance(g := getattr(o, "generator", None), torch.Generator)}
    return list(found.values())


def random_state(source: Any, with_default: bool) -> dict[str, Any]:
    """Return the states of the source's generators, and of torch's default CPU generator if `with_default`."""
    return {
        "default": torch.get_rng_state() if with_default else None,
        "generators": [generator.get_state() for generator in generators_of(source)],
    }


@contextmanager
def replaying(source: Any, state: Mapping[str, Any] | None) -> Iterator[None]:
    """Put `state` in place while the source starts and skips; afterwards the default generator is as before.

    The source's own generators stay where the replay leaves them, since that is where they would have been.
    Raises ValueError if the source does not own as many generators as when the state was saved.
    """
    if state is None:
        yield
        return
    owned = generators_of(source)
    if len(owned) != len(state["generators"]):
        raise ValueError(
            f"the state was saved with {len(state['generators'])} random generator(s) in the source, this source "
            f"has {len(owned)}: build it the same way (`DataLoader(generator=...)`) before load_state_dict"
        )
    for generator, saved in zip(owned, state["generators"], strict=True):
        generator.set_state(saved)
    with torch.random.fork_rng(devices=(), enabled=state["default"] is not None):
        if state["default"] is not None:
            torch.set_rng_state(state["default"])
        yield


# Drawing from a source in order, and resuming it


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

    def __init__(self, loader: Iterable[Batch], device: torch.device | str = "cuda") -> None:
        super().__init__(device)
        if not hasattr(loader, "__iter__") and not hasattr(loader, "__getitem__"):
            raise TypeError(
                f"loader must be iterable, got {type(loader).__name__}: pass a DataLoader, a list of batches or "
                "any object with __iter__"
            )
        self.loader: Any = loader
        self._source_state: Any = None  # of the source, after the last batch handed out
        self._random: dict[str, Any] | None = None  # at the start of this epoch
        self._pageable_copies = 0

    @property
    def pageable_copies(self) -> int:
        """How many tensors came in pageable host memory so far; such a copy cannot run beside the host's work."""
        return self._pageable_copies

    def __len__(self) -> int:
        """Return the source's number of batches; raise TypeError if it has no length."""
        return len(self.loader)

    def state_dict(self) -> dict[str, Any]:
        """Return the place after the last batch handed out: epoch, batches, and the source's own state."""
        random = self._random if self._begun else random_state(self.loader, with_default=False)
        source = self._source_state if self._begun else self._state_now()
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
            self.loader.load_state_dict(source)
        self._source_state, self._random = source, state.get("random")

    def _has_state(self) -> bool:
        return hasattr(self.loader, "state_dict") and hasattr(self.loader, "load_state_dict")

    def _state_now(self) -> Any:
        return self.loader.state_dict() if self._has_state() else None

    def _run(self) -> Generator[Batch, None, None]:
        with closing(self._draw()) as draws, closing(self._move(draws)) as moved:
            for drawn in moved:
                self._batches, self._source_state = drawn.index + 1, drawn.source_state
                yield drawn.take()
        self._source_state = self._random = None
        self._end_epoch()

    def _move(self, draws: Generator[Drawn, None, None]) -> Generator[Drawn, None, None]:
        """Yield each drawn batch, in order, with its batch replaced by the copy on the device: here a blocking one."""
        for drawn in draws:
            with handing_out(drawn.index, samples_in(drawn.batch) if listening() else 0):
                self._count_pageable(drawn.batch)
                drawn.batch = self._copy(drawn.batch)
            yield drawn

    def _copy(self, host: Any) -> Any:
        return to_device(host, self.device)

    def _count_pageable(self, batch: Any) -> None:
        if self.device.type == "cuda":
            self._pageable_copies += sum(map(is_pageable, leaves(batch)))

    def _draw(self) -> Generator[Drawn, None, None]:
        """Start or resume the source, then yield its batches with their numbers."""
        resuming = self._resuming
        self._begin_epoch()
        first = self._batches
        if not resuming:
            self._random = None if self._has_state() else random_state(self.loader, with_default=True)
            self._source_state = self._state_now()
        replays = resuming and not self._has_state()
        saved = self._random if replays else None
        if saved is not None and saved["default"] is None:  # it was saved between two epochs
            self._random = {**saved, "default": torch.get_rng_state()}
        # A shuffling source may draw its order with its first batch only, so that one belongs to the replay.
        with replaying(self.loader, saved):
            iterator = iter(self.loader)
            for done in range(first if replays else 0):
                if next(iterator, _END) is _END:
                    raise RuntimeError(
                        f"the state was saved after {first} batches, but the source ended after {done}: is it the "
                        "same data set with the same batch size?"
                    )
            batch = next(iterator, _END)
        try:
            for index in itertools.count(first):
                if batch is _END:
                    return
                drawn = Drawn(index, batch, self._state_now())
                batch = None  # the one reference left is the consumer's
                yield drawn
                batch = next(iterator, _END)
        finally:
            if iterator is not self.loader and callable(close := getattr(iterator, "close", None)):
                close()


# The two loaders that overlap nothing. With a blocking copy the GPU has nothing to compute, and the host launches
# nothing: the copy adds to every step. From pinned memory with `non_blocking=True` the host runs on, but the copy sits
# in the same stream as the kernels and still runs between two steps. Overlap needs a second stream (`PrefetchLoader`).


class BlockingLoader(CopyingLoader[Batch]):
    """Copy each batch with a blocking `.to(device)`.

    Args:
        loader: any iterable of batches; a batch is a tensor or any nesting of tensors.
        device: where the batches go.

    >>> for images, labels in BlockingLoader(loader, "cuda"):
    ...     train_step(images, labels)
    """


class PinnedLoader(CopyingLoader[Batch]):
    """Copy each batch from page-locked memory with `non_blocking=True`, on the consumer's own stream.

    The source should pin (`DataLoader(pin_memory=True)`, which does it in a thread). What arrives pageable is
    pinned here, in the calling thread: one more host copy per tensor, which can cost more than it gains.
    `pageable_copies` counts those tensors, so that it does not go unnoticed.

    The pinned buffer may be dropped while its copy runs, PyTorch keeps it until then; but a source that refills
    a buffer it has handed out changes a copy under way, and nothing here can see that.

    Args:
        loader: any iterable of batches, best pinned already.
        device: where the batches go. On a device that is not CUDA this is a plain copy.

    >>> source = DataLoader(dataset, 256, num_workers=4, pin_memory=True)
    >>> for images, labels in PinnedLoader(source, "cuda"):
    ...     train_step(images, labels)
    """

    def _copy(self, host: Any) -> Any:
        on_cuda = self.device.type == "cuda"
        return to_device(pin(host) if on_cuda else host, self.device, non_blocking=on_cuda)
