"""The devices on which the loaders are tested, and ways to make sources."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch


def recorder() -> Callable[..., AbstractContextManager[Any]]:
    """Return `loaderviz.record`, or skip the test while it cannot be imported."""
    try:
        import loaderviz

        record = loaderviz.record
    except (ImportError, AttributeError) as error:
        pytest.skip(f"no emulated CUDA device: loaderviz.record cannot be imported ({error})")
    if not callable(record):
        pytest.skip("no emulated CUDA device: loaderviz.record is not a function")
    return record


@pytest.fixture(params=["cpu", "emulated", pytest.param("gpu", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """The CPU, then an emulated GPU (the test runs inside the recording), then a real one."""
    if request.param == "cpu":
        yield torch.device("cpu")
    elif request.param == "emulated":
        with recorder()(on="a100") as recording:
            yield torch.device("cuda")
        assert recording.hazards == []
    else:
        if not torch.cuda.is_available():
            pytest.skip("needs a CUDA GPU: torch.cuda.is_available() is False")
        yield torch.device("cuda")


@pytest.fixture
def record() -> Callable[..., AbstractContextManager[Any]]:
    """`loaderviz.record`, to make a recording with `on="a100"`."""
    return recorder()


class Source:
    """Batches in memory; can fail at a batch, and knows how many iterators are open and how far it was drawn."""

    def __init__(self, count: int = 7, size: int = 4, fail_at: int | None = None, pinned: bool = False) -> None:
        self.count, self.size, self.fail_at, self.pinned = count, size, fail_at, pinned
        self.open = self.drawn = 0

    def __len__(self) -> int:
        return self.count

    def batch(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        first = torch.arange(self.size, dtype=torch.float32) + index * self.size
        parts = first, (first * 10).long()
        return tuple(part.pin_memory() for part in parts) if self.pinned else parts  # type: ignore[return-value]

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        self.open += 1
        self.drawn = 0
        try:
            for index in range(self.count):
                if index == self.fail_at:
                    raise ZeroDivisionError(f"batch {index} is broken")
                self.drawn += 1
                yield self.batch(index)
        finally:
            self.open -= 1
