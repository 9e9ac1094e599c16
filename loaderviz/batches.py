"""Batches: the names of the ranges that tell them, what a batch holds, and how they are numbered in a recording.

Torch is imported by the functions that look into a batch: traces, whose ranges have these names, are read without it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import torch

# A loader of loaderviz, the program ("batch 3"), or torch.profiler's schedule says at which step the loop is, and a
# prefetching loader which later batch the work in a range is for.
BATCH_RANGE = re.compile(r"batch (?P<number>\d+)(?:: (?P<samples>\d+) samples?)?$", re.IGNORECASE)
STEP_RANGE = re.compile(r"ProfilerStep#(?P<number>\d+)$")
PREFETCH_RANGE = re.compile(r"prefetch of batch (?P<number>\d+)$")
# How the loop's thread gets its next batch: torch's range around all of it, and the last part of it in a recording.
LOADER_NEXT = "enumerate(DataLoader)#"  # and the class of the iterator
HAND_OUT = "DataLoader hand-out"
NOT_HANDED_OUT = "fetch (not handed out)"  # it failed, found the end of a stream, or nobody took its batch
OPTIMIZER_STEP = re.compile(r"Optimizer\.step#")  # torch's own range around each
LIMIT = 200_000  # spans of a real run: of so many steps are kept
FIRST_BYTES = 1 << 16  # of a batch that is compared with another's
OFTEN_BEGUN = 4  # iterators of the loop's loaders: fewer are epochs
PARTS = re.compile(r"[/\\]")  # of a path
WORKER_START = re.compile(r"start \d+ workers?$")  # the main thread starts a DataLoader's processes
WORKER_END = re.compile(r"end \d+ workers?$")  # and waits until they have left


def batch_name(number: int, samples: int | None) -> str:
    """Return the name of the range of a batch, as `BATCH_RANGE` reads it; None or 0: its samples are not known.

    >>> batch_name(3, 64)
    'batch 3: 64 samples'
    """
    return f"batch {number}: {samples} samples" if samples else f"batch {number}"


def prefetch_name(number: int) -> str:
    """Return the name of a range in which the work is for the later batch `number`."""
    return f"prefetch of batch {number}"


def loading_lane(worker: int, loader: int = 0) -> tuple[str, Literal["host"], str, int]:
    """Return the `Lane` of a worker, or (-1) of the pin thread, of the DataLoader at work that has this number.

    >>> loading_lane(1, 2)
    ('worker 1 (loader 3)', 'host', 'worker', 2001)
    """
    name, role = (f"worker {worker}", "worker") if worker >= 0 else ("pin thread", "pin")
    return f"{name} (loader {loader + 1})" if loader else name, "host", role, max(worker, 0) + loader * 1_000


def numbers_of(names: Sequence[str], pattern: re.Pattern[str], told: bool | None = None) -> dict[int, int]:
    """Return the numbers in the names that `pattern` matches, by their places; `told`: with samples, or without.

    >>> numbers_of(["batch 7", "aten::add", "batch 8: 64 samples"], BATCH_RANGE)
    {0: 7, 2: 8}
    """
    found = {place: match.groupdict() for place, name in enumerate(names) if (match := pattern.match(name))}
    numbers = {
        place: int(groups["number"][:18])
        for place, groups in found.items()
        if told is None or told == (groups.get("samples") is not None)
    }
    return {place: number for place, number in numbers.items() if number < 2**31}


def tensors(data: Any) -> list[torch.Tensor]:
    """Return the tensors of a batch of any nesting. Quick, and calls nothing of the batch's own."""
    from torch import Tensor

    if isinstance(data, Tensor):
        return [data]
    if isinstance(data, dict):
        data = list(data.values())
    elif hasattr(data, "__dict__") and not isinstance(data, (str, bytes, type)):
        data = list(vars(data).values())
    if isinstance(data, (list, tuple)):
        return [tensor for entry in data for tensor in tensors(entry)]
    return []


def nbytes(data: Any) -> int:
    """Return the bytes of all dense tensors of a nested batch."""
    from torch import strided

    return sum(tensor.nbytes for tensor in tensors(data) if tensor.layout is strided)


MANY_VALUES = 8  # different ones: fewer are labels, or a mask


def holds_bytes(values: torch.Tensor) -> bool:
    """Tell whether these values would all fit into a byte, as they are or times 255: so pictures are given as floats.

    >>> holds_bytes(torch.arange(256) / 255), holds_bytes(torch.rand(256)), holds_bytes(torch.zeros(256))
    (True, False, False)
    """
    most = float(values.max())
    scaled = values.double() * (255 if most <= 1 else 1)
    near = bool((scaled - scaled.round()).abs().max() < 1e-3)
    return near and float(values.min()) >= 0 and most <= 255 and len(scaled.round().unique()) > MANY_VALUES


def given_twice(firsts: dict[int, bytes], worker: int, data: Any) -> bool:
    """Note what a worker gave first in `firsts`; tell whether another had given just the same."""
    if worker in firsts:
        return False
    parts = [tensor.detach().contiguous().flatten() for tensor in tensors(data)]
    told = b"".join(part.numpy().tobytes() for part in parts if part.device.type == "cpu")[:FIRST_BYTES]
    twice = told != b"" and told in firsts.values() and len(set(told)) > 1
    firsts[worker] = told
    return twice


def sample_count(indices: Any, data: Any) -> int:
    """Return how many samples a batch has: by its index list, else by its first tensor, else 1."""
    if isinstance(indices, Sequence) and indices and indices[0] is not None:
        return len(indices)
    first = next(iter(tensors(data)), None)
    return first.shape[0] if first is not None and first.dim() else 1


def batches_of(iterator: Any) -> int:
    """Return how many batches an epoch of a DataLoader's iterator has; 0: not known."""
    try:
        return len(iterator._index_sampler)
    except Exception:  # a stream has no length, and a sampler of the program's may do anything
        return 0


class Numbering:
    """Numbers batches through a whole recording, the same in an emulated and a real one: epochs go on counting.

    A DataLoader's n-th batch gets the number of its iterator's first batch + n. loaderviz's loaders count from 0 in
    each epoch, ahead of the hand-out where they prefetch; a smaller number than before says that a new epoch has begun.
    A loop without a loader takes slices of tensors: there an optimizer's steps are counted, see `stepped`.
    """

    def __init__(self) -> None:
        self._next = 0  # the first number not in use
        self._base = 0  # of the loader that marks
        self._iterator_base = -1  # of a DataLoader iterator that began since the marks' last epoch
        self._last = {"batch": -1, "prefetch": -1}
        self._fed = False  # a batch, since an optimizer's last step
        self._turn: set[int] = set()  # the optimizers that made theirs in the step that the loop is at
        self._step = -1  # that step
        self._alone = 0  # steps of the loop for which no batch was handed out, less all batches
        self._begun = self._given = self._whole = 0  # iterators, their batches, and how many those would be if all came
        self._line = ""  # of the iterator that began last

    def new_iterator(self, batches: int = 0, line: str = "") -> int:
        """A DataLoader iterator begins: return the number of its first batch.

        Its epoch has so many `batches` (0: not known, or none of the loop's), and it begins in this line, "file:line".
        """
        if batches:
            self._begun, self._whole, self._line = self._begun + 1, self._whole + batches, line
        self._iterator_base = self._next
        return self._next

    @property
    def faults(self) -> tuple[str, ...]:
        """What is wrong with the iterators: each is left after a batch or two, of which it has many more."""
        often = self._begun >= OFTEN_BEGUN and self._given <= 2 * self._begun
        left = often and 2 * self._given < self._whole
        return (f"restarts-iterator {re.split(PARTS, self._line)[-1]}".strip(),) if left else ()

    @property
    def usage(self) -> dict[str, int]:
        """How many batches an epoch of the loop's iterators has, as in a timeline's context; nothing if not known."""
        return {"epoch": self._whole // self._begun} if self._begun else {}

    def used(self, batch: int, *, mine: bool = True) -> None:
        """Batch `batch` of a DataLoader is handed out; it is not `mine` if another thread than the loop's takes it."""
        self._next = max(self._next, batch + 1)
        if mine:
            self._given += 1
            self._feed()

    def number_of(self, index: int, what: str) -> int:
        """Return the number of a loader's batch `index` in its epoch; `what` is "batch" (hand-out) or "prefetch"."""
        if index <= self._last[what] or max(self._last.values()) < 0:  # a new epoch
            self._base = self._iterator_base if self._iterator_base >= 0 else self._next
            self._iterator_base = -1
            self._last = {"batch": -1, "prefetch": -1}
        self._last[what] = index
        if what == "batch":
            self._feed()
        self._next = max(self._next, self._base + index + 1)
        return self._base + index

    def _feed(self) -> None:
        self._alone -= self._fed  # nothing stepped for the one before: a CUDA graph does, unseen
        self._fed = True

    def stepped(self, optimizer: int) -> int:
        """An optimizer (its `id`) stepped: return the loop's step. Several in turn (a GAN's two) are in one step."""
        if not self._turn or optimizer in self._turn:
            self._turn.clear()
            self._step += 1
            self._alone += -1 if self._fed else 1
            self._fed = False
        self._turn.add(optimizer)
        return self._step

    @property
    def by_optimizer(self) -> bool:
        """Whether optimizers say what a step of the loop is: before most of their steps no batch was handed out."""
        return self._alone > 0
