"""The devices on which the loaders are tested, and ways to make sources."""

import pytest
import torch

import loaderviz

GPU = pytest.param("gpu", marks=pytest.mark.gpu)


@pytest.fixture(params=["cpu", "emulated", GPU])
def device(request):
    """The CPU, then an emulated GPU (the test runs inside the recording, and races with nothing), then a real one."""
    if request.param == "emulated":
        with loaderviz.record(on="a100") as recording:
            yield torch.device("cuda")
        assert recording.hazards == []
        return
    if request.param == "gpu" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA GPU: torch.cuda.is_available() is False")
    yield torch.device("cpu" if request.param == "cpu" else "cuda")


class Source:
    """Batches in memory; can fail at a batch, and knows how many iterators are open and how far it was drawn."""

    def __init__(self, count=7, size=4, fail_at=None, pinned=False):
        self.count, self.size, self.fail_at, self.pinned = count, size, fail_at, pinned
        self.open = self.drawn = 0

    def __len__(self):
        return self.count

    def batch(self, index):
        first = torch.arange(self.size, dtype=torch.float32) + index * self.size
        parts = first, (first * 10).long()
        return tuple(part.pin_memory() for part in parts) if self.pinned else parts

    def __iter__(self):
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
