"""What a replay needs to be told: how batches come to the GPU, and what is loaded and computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from loaderviz.emulator.runtime import Runtime
from loaderviz.timeline import Kind


class Feed(Protocol):
    """How batches come to the GPU: by `workers` processes, pinned or not, copied `depth` batches ahead or in place.

    `lifetime` protects a batch's memory when a side stream copies. With `resident` the data set lives on the GPU, and
    the rest has no effect.
    """

    @property
    def workers(self) -> int: ...  # noqa: D102
    @property
    def pin(self) -> bool: ...  # noqa: D102
    @property
    def non_blocking(self) -> bool: ...  # noqa: D102
    @property
    def side_stream(self) -> bool: ...  # noqa: D102
    @property
    def depth(self) -> int: ...  # noqa: D102
    @property
    def lifetime(self) -> str: ...  # noqa: D102
    @property
    def resident(self) -> bool: ...  # noqa: D102


class Work(Protocol):
    """What is loaded and computed. Batches are counted from 0, warm-up included; times in ns."""

    def tensors(self, number: int) -> Sequence[int]:
        """The bytes of each tensor of a batch."""

    def samples(self, number: int) -> int:
        """How many samples a batch has."""

    def fetch_time(self, number: int) -> int:
        """How long a worker, or the main thread, prepares a batch."""

    def draw_time(self, number: int) -> int:
        """How long the main thread draws the indices of a batch."""

    def resident_bytes(self) -> Sequence[int]:
        """The bytes that are moved to the GPU before the loop, if the data set lives there."""

    def train(self, runtime: Runtime, number: int) -> None:
        """Do a step's work on the default stream, from the host's calls to the kernels."""

    def source(self, does: str) -> str:
        """The "file:line" that does this ("copy", "loop", …), or ""."""


def launch(runtime: Runtime, name: str, time: int) -> None:
    """An operator of torch that launches one kernel of `time` ns on the default stream."""
    start = runtime.now
    runtime.now += runtime.host.dispatch
    runtime.launch(time, name=name)
    runtime.builder.span(
        start, runtime.now, runtime.main, Kind.OPERATOR, f"aten::{name}", batch=runtime.batch, source=runtime.source
    )
