"""Prefetch: while the GPU computes on batch n, the next batches are copied on a side stream.

The order inside one step is the whole trick: let the consumer's stream wait for batch n, *issue the next copy*,
and only then hand batch n out. Issued later, the copy would queue behind the step it should run beside.

Who may use a batch's device memory again, and when, is a second question, with four answers (`lifetime`).

A batch copied on a side stream and read on the consumer's stream needs two orders. The first is the same for
all: the consumer waits for *ready*, one event per batch. The second is this: when the user
drops a batch, the host frees its block at once, while the GPU may still read it; the next copy must not write
there too early.

============= =============================== ========================================== =======================
policy        memory comes from               the next copy is safe since                it costs
============= =============================== ========================================== =======================
record_stream the side stream's pool          the allocator holds a freed block back     memory that comes back
                                              until the consumer's work is done          late, a poll per block
wait          the side stream's pool          the side stream waits for the work that    a pool of its own
                                              is queued wherever batches were used
consumer      the consumer's pool             the same wait; and a freed block goes      nothing; the model can
                                              back to the consumer, in stream order      use the memory as well
ring          2 x depth + 1 fixed buffers     the same wait; nothing is ever freed       a batch is overwritten
                                                                                         after depth more steps
============= =============================== ========================================== =======================

The consumer is whatever stream is current when a batch is asked for. It may be another one from batch to batch.

The waits are issued when the next copy is, that is, before the step that it shall run beside is launched: so the
copy waits for the step before, and overlaps this one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from .base import Batch, CopyingLoader, Drawn, checked_count, handing_out, listening, prefetching
from .nested import leaves, map_nested, move, samples_in, to_device

LIFETIMES = ("record_stream", "wait", "consumer", "ring")
Transform = Callable[[Any], Any]


class PrefetchLoader(CopyingLoader[Batch]):
    """Copy up to `depth` batches ahead on a side stream; hand each out when its copy is ordered before use.

    The side stream is made once per loader, when the first copy is issued. Each batch has one event. Device
    memory: `depth` batches in flight, the one handed out, and for a moment the one before.

    The source must be pinned (`DataLoader(pin_memory=True)`) for a copy to overlap anything: from pageable memory
    `non_blocking=True` may block the host, whatever the stream. `pageable_copies` counts such tensors. The source
    must not refill a pinned buffer that it has handed over: the host runs ahead of the copies, by no fixed number
    of batches, and nothing here waits for them.

    Args:
        loader: any iterable of batches; a batch is a tensor or any nesting of tensors.
        device: where the batches go. On a device that is not CUDA the batches are drawn ahead in the same way,
            and copied plainly.
        depth: how many batches are copied ahead, beyond the one handed out. 0 is the plain blocking loop, the
            reference for every other depth. 1 or 2 is enough unless the copy times vary a lot.
        lifetime: what protects a batch's memory once it is dropped: `"consumer"` (default), `"wait"`,
            `"record_stream"` or `"ring"`; see `loaderviz.loaders.prefetch`. With `"ring"` a batch is valid during
            its own step and `depth` further ones, then it is overwritten.
        transform: called with each device batch, on the side stream; its result is handed out.

    Objects with their own `.to`, tensor subclasses and sparse tensors allocate and copy in one call: their memory
    comes from the side stream's pool, and is protected as by `"wait"`; `"record_stream"` refuses them if it cannot.

    Errors of the source (and of copy and transform) come in their place: the batches before them first.

    Raises:
        ValueError: `depth` is negative or `lifetime` is not one of the four.
        TypeError: `loader` cannot be iterated, `depth` is no whole number or `transform` cannot be called.

    >>> source = DataLoader(dataset, 256, num_workers=4, pin_memory=True)
    >>> for images, labels in PrefetchLoader(source, "cuda", depth=2):
    ...     train_step(images, labels)
    """

    def __init__(
        self,
        loader: Iterable[Batch],
        device: torch.device | str = "cuda",
        depth: int = 2,
        lifetime: str = "consumer",
        transform: Transform | None = None,
    ) -> None:
        super().__init__(loader, device)
        self.depth = checked_count(depth, "depth", least=0)
        if lifetime not in LIFETIMES:
            raise ValueError(f"lifetime must be one of {', '.join(map(repr, LIFETIMES))}, got {lifetime!r}")
        if transform is not None and not callable(transform):
            raise TypeError(f"transform must be callable, got {type(transform).__name__}")
        self.lifetime = lifetime
        self.transform = transform
        self._copies: SideStream | None = None

    def close(self) -> None:
        """End a running iteration, and let go of the batches in flight and of the ring's buffers."""
        super().close()
        if self._copies is not None:
            self._copies.release()

    def _move(self, draws: Generator[Drawn, None, None]) -> Generator[Drawn, None, None]:
        if self.depth == 0:
            yield from super()._move(draws)
            return
        in_flight: deque[Drawn | Exception] = deque()
        try:
            self._issue(draws, in_flight, self.depth)
            while in_flight:
                due = in_flight.popleft()
                if isinstance(due, Exception):
                    try:
                        raise due
                    finally:
                        del due  # else error -> traceback -> this frame -> error, and the workers live on
                if isinstance(due.batch, Flight) and self._copies is not None:
                    due.batch = self._copies.hand_out(due.batch)
                self._issue(draws, in_flight, 1)  # before the batch goes out, and with it the next step
                if listening():
                    with handing_out(due.index, samples_in(due.batch)):
                        pass  # nothing is left to prepare
                yield due
        finally:
            while in_flight:
                left = in_flight.pop()
                if isinstance(left, Drawn) and isinstance(left.batch, Flight) and self._copies is not None:
                    self._copies.abandon(left.take())

    def _issue(self, draws: Generator[Drawn, None, None], in_flight: deque[Drawn | Exception], count: int) -> None:
        """Draw up to `count` batches and issue their copies; an error takes its place in the queue."""
        for _ in range(count):
            try:
                drawn = next(draws, None)
                if drawn is None:
                    return
                with prefetching(drawn.index):
                    if self.device.type != "cuda":
                        drawn.batch = self._copy(drawn.batch)
                    else:
                        self._count_pageable(drawn.batch)
                        if self._copies is None:
                            self._copies = SideStream(self.device, self.depth, self.lifetime, self.transform)
                        drawn.batch = self._copies.issue(drawn.batch)
                in_flight.append(drawn)
            except Exception as error:
                draws.close()  # nothing comes after an error
                in_flight.append(error)
                return

    def _copy(self, host: Any) -> Any:
        batch = super()._copy(host)
        return batch if self.transform is None else self.transform(batch)


# The four policies


class Flight(NamedTuple):
    """A batch whose copy has been issued."""

    batch: Any
    ready: torch.cuda.Event  # the copy (and the transform) are done
    consumer: torch.cuda.Stream  # the consumer's stream when the copy was issued: the memory may be from its pool
    inputs: Any  # what the transform reads: the side stream needs it until `ready`


class SideStream:
    """Copies on a side stream: one for each loader, since a stream has a memory pool of its own."""

    def __init__(self, device: torch.device, depth: int, lifetime: str, transform: Transform | None) -> None:
        self.device, self.lifetime, self.transform = device, lifetime, transform
        self.side = torch.cuda.Stream(device)
        self._users: dict[torch.cuda.Stream, None] = {}  # streams that batches were handed out to, in order
        self._ring: list[list[Tensor]] = [[] for _ in range(2 * depth + 1)]  # the buffers of each batch
        self._turn = 0

    def issue(self, host: Any) -> Flight:
        """Queue the copy of `host` (and the transform) on the side stream; return without waiting."""
        consumer = torch.cuda.current_stream(self.device)
        copied = self._copy(host, consumer)
        self._turn += 1
        ready = torch.cuda.Event()
        with torch.cuda.stream(self.side):
            batch = copied if self.transform is None else self.transform(copied)
            ready.record(self.side)
        return Flight(batch, ready, consumer, copied)

    def hand_out(self, flight: Flight) -> Any:
        """Let the current stream wait for the batch and return it."""
        stream = torch.cuda.current_stream(self.device)
        stream.wait_event(flight.ready)
        self._users[stream] = None
        if stream != flight.consumer:  # whose pool gets the memory back, and must not reuse it before the copy is over
            flight.consumer.wait_event(flight.ready)
        # What a transform made is of the side stream's pool; the waits of "wait" cover it.
        made = self.transform is not None and self.lifetime != "wait"
        if made or self.lifetime == "record_stream" or stream != flight.consumer:
            for leaf in leaves(flight.batch):
                if hasattr(leaf, "record_stream") and not (isinstance(leaf, Tensor) and not leaf.is_cuda):
                    leaf.record_stream(stream)
        return flight.batch

    def abandon(self, flight: Flight) -> None:
        """Drop a batch that nobody will get: its memory may be used again only after its copy."""
        flight.consumer.wait_event(flight.ready)
        self._turn -= 1  # so the batches handed out last stay whole for as long as promised

    def release(self) -> None:
        """Let go of device memory that is kept from batch to batch; the stream stays."""
        self._ring = [[] for _ in self._ring]

    def _follow(self, *more: torch.cuda.Stream) -> None:
        """Let the side stream wait for what is queued in all streams that were given a batch, and in `more`."""
        for stream in dict.fromkeys((*self._users, *more)):
            self.side.wait_stream(stream)

    def _copy(self, host: Any, consumer: torch.cuda.Stream) -> Any:
        """Queue the copies of one batch on the side stream; return the device batch."""
        if self.lifetime in ("consumer", "ring"):
            return self._copy_into(host, consumer)
        if self.lifetime == "wait":
            self._follow()
        elif unsafe := [type(leaf).__name__ for leaf in leaves(host) if not hasattr(leaf, "record_stream")]:
            raise TypeError(
                f"lifetime='record_stream' cannot protect a {unsafe[0]}: it moves itself by .to() but has no "
                "record_stream(). Use lifetime='wait', which needs none"
            )
        with torch.cuda.stream(self.side):  # into memory of its pool
            return to_device(host, self.device, non_blocking=True)

    def _copy_into(self, host: Any, consumer: torch.cuda.Stream) -> Any:
        """The same into memory of the consumer's pool, or of the ring.

        A thing that copies itself allocates and copies in one call: its memory is the side stream's, as with "wait".
        """
        pairs: list[tuple[Tensor, Tensor]] = []

        def copy_at_once(leaf: Any) -> Any:
            self._follow()
            with torch.cuda.stream(self.side):
                return move(leaf, self.device, non_blocking=True)

        def allocate(tensor: Tensor) -> Tensor:
            if not (type(tensor) is Tensor and tensor.layout == torch.strided and tensor.device.type == "cpu"):
                return cast(Tensor, copy_at_once(tensor))
            fixed = self.lifetime == "ring"
            target = self._buffer(len(pairs), tensor) if fixed else torch.empty_like(tensor, device=self.device)
            pairs.append((target, tensor))
            return target

        batch = map_nested(host, allocate, copy_at_once)
        if self.lifetime == "ring":  # nothing is freed, so no allocator knows who used a buffer
            self._follow(consumer)
        else:  # work that is still queued may use the memory just allocated (CUDA notes of PyTorch, "wait_stream")
            self.side.wait_stream(consumer)
        with torch.cuda.stream(self.side):
            for target, tensor in pairs:
                target.copy_(tensor, non_blocking=True)
        return batch

    def _buffer(self, leaf: int, tensor: Tensor) -> Tensor:
        """Return the ring's buffer for leaf number `leaf` of the batch whose turn it is.

        Copy n + 2 x depth + 1 is the first to write where batch n lies. It is issued when batch n + depth + 1 is asked
        for, so batch n is whole during its own step and `depth` more.
        """
        slot = self._ring[self._turn % len(self._ring)]
        if leaf == len(slot):
            slot.append(torch.empty_like(tensor, device=self.device))
        buffer = slot[leaf]
        fits = buffer.dtype == tensor.dtype and buffer.dim() == tensor.dim()
        if fits and buffer.shape == tensor.shape:
            return buffer
        if fits and tensor.dim() and buffer.shape[1:] == tensor.shape[1:] and len(tensor) < len(buffer):
            return buffer[: len(tensor)]
        raise ValueError(
            f"lifetime='ring' has fixed buffers: tensor {leaf} of this batch is {tuple(tensor.shape)} "
            f"{tensor.dtype}, its buffer {tuple(buffer.shape)} {buffer.dtype}. Only a shorter batch fits; use "
            "lifetime='consumer' for batches of changing shape"
        )
