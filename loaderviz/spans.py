"""Spans, lanes, arrows and marks: the words in which a timeline tells what happened.

The names are the field's own: what a profiler calls a kernel, a copy, a stream is called so here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Literal, NamedTuple


class Kind(IntEnum):
    """What a span is. The order is the order of the legend."""

    COMPUTE = 0  # a kernel
    COMMUNICATION = 1  # a collective's kernel (nccl, rccl)
    COPY_H2D = 2
    COPY_D2H = 3
    COPY_D2D = 4
    MEMSET = 5
    API = 6  # a CUDA runtime call on the host
    OPERATOR = 7  # aten::… on the host
    FETCH = 8  # a worker (or the main thread) prepares a batch
    PIN = 9  # a batch is copied into page-locked memory
    WAIT = 10  # the host is blocked; `cause` says by what
    RANGE = 11  # an annotation, such as "batch 3"


KERNELS = (Kind.COMPUTE, Kind.COMMUNICATION)
COPIES = (Kind.COPY_H2D, Kind.COPY_D2H)  # host-device copies; D2D is work on the device
DEVICE_KINDS = (*KERNELS, *COPIES, Kind.COPY_D2D, Kind.MEMSET)


class Cause(IntEnum):
    """Why the host waits."""

    NONE = 0
    STAGING = 1  # a pageable copy goes through the driver's staging buffer (R1, R7)
    SYNCHRONIZE = 2  # a stream, event or device synchronise, `.item()` among them (R25)
    QUEUE_FULL = 3  # the launch queue has no free place (R24)
    PAGE_LOCKING = 4  # new page-locked memory (R13, R44)
    ALLOCATION = 5  # cudaMalloc or cudaFree (R13)
    DATA = 6  # the next batch is not ready

    @property
    def words(self) -> str:
        """The cause as a reader sees it, such as "queue full"."""
        return {Cause.DATA: "waiting for data", Cause.PAGE_LOCKING: "page-locking"}.get(
            self, self.name.lower().replace("_", " ")
        )


class ArrowKind(IntEnum):
    """What an arrow between two spans says."""

    LAUNCH = 0  # the host call -> the work it put on the device
    WAIT = 1  # the work that an event stands for -> the first work that waited for it


@dataclass(frozen=True)
class Lane:
    """One row of the picture: a host thread or a device stream.

    `number` is the stream id or thread number; `role` is "worker", "pin", "main", "thread" or "stream".
    """

    name: str
    group: Literal["host", "device"]
    role: str = "stream"
    number: int = 0
    device: int = 0


@dataclass(frozen=True)
class Context:
    """Where a timeline comes from; all of it is shown to the reader.

    `origin` is "emulated", "recorded" or "file"; `samples` counts the samples of all batches handed out (None: not
    known); `host` says whose host costs are in it; `notes` lists what was thinned, dropped or assumed.
    """

    device: str = "unknown device"
    origin: str = "file"
    host: str = ""
    clock: str = "ns"
    samples: int | None = None
    versions: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Mark:
    """A point of interest, such as a hazard: when, in which lane, what, and the two spans it joins (-1: none)."""

    time: int
    lane: int
    kind: str
    text: str
    spans: tuple[int, int] = (-1, -1)


class Span(NamedTuple):
    """One row of the table, with its ids looked up. Times in ns; `pinned` is True, False or None (no host side)."""

    start: int
    end: int
    lane: Lane
    kind: Kind
    name: str
    batch: int
    nbytes: int
    correlation: int
    pinned: bool | None
    cause: Cause
    source: str

    @property
    def duration(self) -> int:
        """Length in ns."""
        return self.end - self.start
