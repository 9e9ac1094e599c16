"""Who may use a batch's device memory again, and when: four policies for a copy on a side stream.

A batch copied on a side stream and read on the consumer's stream needs two orders. The first is the same for
all: the consumer waits for *ready*, one event per batch. The second is the subject of this module. When the user
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

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from .nested import leaves, map_nested, move, to_device

Transform = Callable[[Any], Any]


@dataclass(slots=True)
class Flight:
    """A batch whose copy has been issued."""

    batch: Any
    ready: torch.cuda.Event  # the copy (and the transform) are done
    consumer: torch.cuda.Stream  # the consumer's stream when the copy was issued: the memory may be from its pool
    inputs: Any  # what the transform reads: the side stream needs it until `ready`

    def land(self) -> Any:
        """Return the batch and let go of it."""
        batch, self.batch, self.inputs = self.batch, None, None
        return batch


class SideStream:
    """Copies on a side stream, made once, when it is first needed. A subclass is one lifetime policy."""

    def __init__(self, device: torch.device, depth: int, transform: Transform | None) -> None:
        self.device, self.depth, self.transform = device, depth, transform
        self._side: torch.cuda.Stream | None = None
        self._users: dict[torch.cuda.Stream, None] = {}  # streams that batches were handed out to, in order

    @property
    def side(self) -> torch.cuda.Stream:
        """The stream of the copies: one per loader, since each further stream has a memory pool of its own."""
        if self._side is None:
            self._side = torch.cuda.Stream(self.device)
        return self._side

    def issue(self, host: Any) -> Flight:
        """Queue the copy of `host` (and the transform) on the side stream; return without waiting."""
        consumer = torch.cuda.current_stream(self.device)
        copied = self.copy(host, consumer)
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
        if self.must_record() or stream != flight.consumer:
            record_on(flight.batch, stream)
        return flight.land()

    def follow(self, *more: torch.cuda.Stream) -> None:
        """Let the side stream wait for what is queued in all streams that were given a batch, and in `more`."""
        for stream in dict.fromkeys((*self._users, *more)):
            self.side.wait_stream(stream)

    def abandon(self, flight: Flight) -> None:
        """Drop a batch that nobody will get: its memory may be used again only after its copy."""
        flight.consumer.wait_event(flight.ready)
        flight.land()

    def release(self) -> None:
        """Let go of device memory that is kept from batch to batch; the stream stays."""

    def copy(self, host: Any, consumer: torch.cuda.Stream) -> Any:
        """Queue the copies of one batch and return the device batch."""
        raise NotImplementedError

    def must_record(self) -> bool:
        """Return whether the batch must be recorded on the consumer's stream."""
        # What a transform makes comes from the side stream's pool, whatever the policy does for the copies.
        return self.transform is not None


class RecordStream(SideStream):
    """Allocate on the side stream; tell the allocator that the consumer uses the batch too."""

    def copy(self, host: Any, consumer: torch.cuda.Stream) -> Any:
        """Queue the copies of one batch on the side stream and return the device batch."""
        for leaf in leaves(host):
            if not hasattr(leaf, "record_stream"):
                raise TypeError(
                    f"lifetime='record_stream' cannot protect a {type(leaf).__name__}: it moves itself by .to() but "
                    "has no record_stream(). Use lifetime='wait', which needs none"
                )
        with torch.cuda.stream(self.side):
            return to_device(host, self.device, non_blocking=True)

    def must_record(self) -> bool:
        """Return whether the batch must be recorded on the consumer's stream."""
        return True


class Wait(SideStream):
    """Allocate on the side stream; it waits for the consumer's work before each copy."""

    def copy(self, host: Any, consumer: torch.cuda.Stream) -> Any:
        """Queue the copies of one batch on the side stream and return the device batch."""
        self.follow()
        with torch.cuda.stream(self.side):
            return to_device(host, self.device, non_blocking=True)

    def must_record(self) -> bool:
        """Return whether the batch must be recorded on the consumer's stream."""
        return False  # the wait covers what the transform makes, too: it comes from the same pool


class Consumer(SideStream):
    """Allocate on the consumer's stream, copy on the side stream.

    A thing that copies itself allocates and copies in one call: its memory comes from the side stream, as with `Wait`.
    """

    def copy(self, host: Any, consumer: torch.cuda.Stream) -> Any:
        """Queue the copies of one batch on the side stream and return the device batch."""
        pairs: list[tuple[Tensor, Tensor]] = []

        def copy_at_once(leaf: Any) -> Any:
            self.follow()
            with torch.cuda.stream(self.side):
                return move(leaf, self.device, non_blocking=True)

        def allocate(tensor: Tensor) -> Tensor:
            if not is_plain(tensor):
                return cast(Tensor, copy_at_once(tensor))
            pairs.append((self.target(len(pairs), tensor), tensor))
            return pairs[-1][0]

        batch = map_nested(host, allocate, copy_at_once)
        self.before_writing(consumer)
        with torch.cuda.stream(self.side):
            for target, tensor in pairs:
                target.copy_(tensor, non_blocking=True)
        return batch

    def before_writing(self, consumer: torch.cuda.Stream) -> None:
        """Let the side stream wait for all that may still use the targets."""
        # Work that is still queued may use the memory just allocated (CUDA notes of PyTorch, "wait_stream").
        self.side.wait_stream(consumer)

    def target(self, leaf: int, tensor: Tensor) -> Tensor:
        """Return device memory for `tensor`, the leaf number `leaf` of its batch."""
        return torch.empty_like(tensor, device=self.device)


class Ring(Consumer):
    """Copy into fixed buffers, 2 x depth + 1 of them, in turn.

    Copy n + 2 x depth + 1 is the first to write where batch n lies. It is issued when batch n + depth + 1 is
    asked for, so batch n is whole during its own step and `depth` more.
    """

    def __init__(self, device: torch.device, depth: int, transform: Transform | None) -> None:
        super().__init__(device, depth, transform)
        self._slots: list[list[Tensor]] = [[] for _ in range(2 * depth + 1)]
        self._turn = 0

    def copy(self, host: Any, consumer: torch.cuda.Stream) -> Any:
        """Queue the copies of one batch on the side stream and return the device batch."""
        batch = super().copy(host, consumer)
        self._turn += 1
        return batch

    def before_writing(self, consumer: torch.cuda.Stream) -> None:
        """Let the side stream wait for all that may still use the targets."""
        self.follow(consumer)  # nothing is freed, so no allocator knows who used a buffer

    def abandon(self, flight: Flight) -> None:
        """Drop a batch that nobody will get; its slot is the next one again."""
        super().abandon(flight)
        self._turn -= 1  # so the batches handed out last stay whole for as long as promised

    def release(self) -> None:
        """Let go of the buffers."""
        self._slots = [[] for _ in self._slots]

    def target(self, leaf: int, tensor: Tensor) -> Tensor:
        """Return the buffer for leaf number `leaf` in the slot whose turn it is."""
        slot = self._slots[self._turn % len(self._slots)]
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


POLICIES: dict[str, type[SideStream]] = {
    "record_stream": RecordStream,
    "wait": Wait,
    "consumer": Consumer,
    "ring": Ring,
}
LIFETIMES = tuple(POLICIES)


def is_plain(tensor: Tensor) -> bool:
    """Return whether `tensor` is an ordinary strided CPU tensor, so that `empty_like` and `copy_` move it whole."""
    return type(tensor) is Tensor and tensor.layout == torch.strided and tensor.device.type == "cpu"


def record_on(batch: Any, stream: torch.cuda.Stream) -> None:
    """Tell the allocator that `stream` uses the tensors of `batch`: their blocks stay taken until it is done."""
    for leaf in leaves(batch):
        if isinstance(leaf, Tensor) and not leaf.is_cuda:
            continue
        if hasattr(leaf, "record_stream"):
            leaf.record_stream(stream)
