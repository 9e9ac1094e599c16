"""Predicted beside measured, operator by operator: is what the emulator charges true on this GPU?

From a trace of torch.profiler with `record_shapes=True`. A kernel is joined to the call that launched it, and that to
the outermost operator that the emulator would see; the same shapes are then priced by `emulator.kernels`. Left out are
kernels that ran beside another stream's, and operators that are not torch's own. Times in ns, rates in bytes a second.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from itertools import compress, zip_longest
from math import prod
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from loaderviz import intervals, words
from loaderviz.emulator.hardware import GPUS, Gpu, Host, Kernel, UnknownHardwareError
from loaderviz.emulator.kernels import BESIDE, CLASS, Array, Call, kernel_times, row_of
from loaderviz.errors import LoadervizError
from loaderviz.files import TooLargeError, readable, write
from loaderviz.timeline import Ids, gathered
from loaderviz.traces.kineto import Place, read_kineto
from loaderviz.traces.source import Document, TraceError
from loaderviz.vendors import ON_DEVICE, Role

COPIES = ("HtoD", "DtoH", "Host")
HALF = ("c10::Half", "c10::BFloat16")
TENSOR_CORES = re.compile(r"tf32|tensorop_s|s1688|s884|xmma.*f32f32_tf32", re.IGNORECASE)
# The name of a product's kernel: which operands lie transposed, torch's second one first, and whether rows are not
# 16-byte aligned. Kernels beside its own.
LAYOUT = re.compile(r"gemm_\w*?_([nt])([nt])(_align1)?(?:_|\b)")
BESIDE_PRODUCT = re.compile("emset|splitKreduce|epilogue")
IN_ORDER = re.compile(r"vectorized_elementwise|Memcpy DtoD")
LARGE, SMALL, ENOUGH = 2**20, 2**12, 3  # bytes of a copy that shows its rate, its latency; samples that a median needs
QUEUED = 3_000  # ns that a kernel must have been waiting before the one ahead of it ended
MOST = 2**48  # elements of a tensor: what a shape says beyond it is not so
JUDGED = 1_000_000  # ns of GPU work: a trace with less is shown, not judged
RATES = ("h2d", "d2h", "pageable", "pageable_d2h")


_ODD = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)


class ValidationError(LoadervizError, ValueError):
    """The trace does not hold what a comparison needs."""


# Reading


class Event(NamedTuple):
    """One event of a trace, as `EventTable` reads it; times in ns."""

    start: int
    end: int
    role: int
    correlation: int
    nbytes: int
    name: str
    place: Place
    arguments: Mapping[str, Any]

    @property
    def length(self) -> int:
        """How long it took, ns."""
        return self.end - self.start


class Measured(NamedTuple):
    """One operator of a trace: its call with shapes, and the ns of each kernel that it launched."""

    call: Call
    kernels: tuple[int, ...]


class Trace:
    """The events of a trace: `device` ("" if it does not say), its `operators` with shapes, and `numbers()`.

    Raises `ValidationError` for a file without kernels.
    """

    def __init__(self, path: str | Path) -> None:
        try:
            raw = read_kineto(Document(readable(path)), arguments=True)
        except TooLargeError as problem:
            raise ValidationError(f"{path}: {problem}") from problem
        except TraceError as problem:
            raise ValidationError(str(problem)) from problem
        self.name, self.device = Path(path).name, next(iter(raw.devices.values()), "")[:100]
        columns = (raw.columns[name].tolist() for name in ("start", "end", "role", "correlation", "nbytes"))
        names, places = (
            [table[number] for number in raw.columns[what].tolist()]
            for what, table in (("name", raw.names), ("place", raw.places))
        )
        self.events = list(map(Event, *columns, names, places, raw.arguments))
        self.work = gathered((event.correlation, event) for event in self.events if event.role in ON_DEVICE)
        if not self.work:
            raise ValidationError(f"{path} has no kernels; record it with torch.profiler on a machine with a GPU")
        self.operators = self._operators()

    def _operators(self) -> list[Measured]:
        crowded = _crowded([event for group in self.work.values() for event in group])
        groups: dict[int, tuple[list[Event], list[Event]]] = {}
        for path, kernels in _launched(self.events, self.work):
            operator = next((event for event in path if _is_seen(event.name)), None)
            if operator is not None and not any(copy in kernel.name for kernel in kernels for copy in COPIES):
                groups.setdefault(id(operator), (path, []))[1].extend(kernels)
        found = []
        for path, kernels in groups.values():
            try:
                if call := _call(path, kernels):
                    kernel_times(GPUS["a100"], call)
            except _ODD:  # arguments that are not as torch writes them
                call = None
            if call is not None and not any(id(kernel) in crowded for kernel in kernels):
                found.append(Measured(call, tuple(kernel.length for kernel in kernels)))
        return list(map(_seen_next, found, [*found[1:], found[-1]])) if found else []

    def numbers(self) -> dict[str, int]:
        """Return what the trace shows of `Gpu` and `Host` beside its kernels: medians in ns, best rates in bytes/s."""
        calls = {event.correlation: event for event in self.events if event.role == Role.CALL}
        samples: defaultdict[str, list[float]] = defaultdict(list)
        last: dict[Any, Event] = {}
        for event in sorted((event for group in self.work.values() for event in group), key=lambda event: event.start):
            call, stream = calls.get(event.correlation), event.place[3]
            before, last[stream] = last.get(stream), event
            if event.role == Role.MEMCPY:
                way = "h2d" if "HtoD" in event.name else "d2h" if "DtoH" in event.name else ""
                if way and event.nbytes >= LARGE and event.length:
                    staged = "pageable" if way == "h2d" else "pageable_d2h"
                    samples[way if "Pinned" in event.name else staged].append(event.nbytes * 1e9 / event.length)
                elif way and event.nbytes <= SMALL:
                    samples["copy_latency" if way == "h2d" else "d2h_latency"].append(event.length)
                if call is not None and "Pageable" not in event.name:  # that one may block
                    samples["memcpy_call"].append(call.length)
            elif call is not None and event.role == Role.KERNEL:
                over = before.end if before else 0
                if over < call.start:
                    samples["launch_latency"].append(event.start - call.end)
                elif before and before.role == event.role and over > call.end + QUEUED:
                    samples["queue_gap"].append(event.start - over)
        samples["launch"] = [call.length for call in calls.values() if call.name == "cudaLaunchKernel"]
        found = {name: _number(name, values) for name, values in samples.items()}
        return {name: number for name, number in found.items() if number > 0}


def _number(name: str, values: list[float]) -> int:
    """Return the best of rates, the median of enough times, else 0."""
    if name in RATES:
        return round(max(values))
    if name == "queue_gap":  # a longer one waits for something else
        values = [value for value in values if value < QUEUED]
    return round(median(values)) if len(values) >= ENOUGH else 0


def _launched(events: list[Event], work: Mapping[int, list[Event]]) -> Iterator[tuple[list[Event], list[Event]]]:
    """Give for each call that started work: the operators around it, the outermost first, and the work."""
    threads, around = Ids(), list[Event]()
    calls = [
        event
        for event in events
        if event.role == Role.OPERATOR or (event.role == Role.CALL and event.correlation in work)
    ]
    calls.sort(key=lambda event: (threads[event.place[:2]], event.start, event.role, -event.length))
    for event in calls:
        while around and (around[-1].place[:2] != event.place[:2] or around[-1].end <= event.start):
            around.pop()
        if event.role == Role.CALL:
            yield list(around), work[event.correlation]
        else:
            around.append(event)


def _crowded(work: list[Event]) -> set[int]:
    """Return the ids of kernels during which a kernel of another stream ran."""
    kernels = [event for event in work if event.role != Role.MEMCPY]
    start, end = np.array([(event.start, max(event.end, event.start + 1)) for event in kernels]).reshape(-1, 2).T
    streams, crowded = Ids(), np.zeros(len(kernels), bool)
    stream = np.array([streams[event.place[3]] for event in kernels])
    for mine in (stream == each for each in streams.values()):
        others = intervals.union(start[~mine], end[~mine])
        crowded[mine] = intervals.covered_within(others, start[mine], end[mine]) > 0
    return {id(event) for event in compress(kernels, crowded.tolist())}


def _is_seen(name: str) -> bool:
    base = name.removeprefix("aten::")
    return name.startswith("aten::") and (base in CLASS or base in BESIDE)


# Shapes


def _seen_next(this: Measured, following: Measured) -> Measured:
    """Take the size of a convolution's result from the operator that reads it, where the trace names no stride."""
    call = this.call
    if CLASS.get(call.op) != "convolution" or call.op.endswith("_backward") or not following.call.reads:
        return this
    result, read = call.writes[0], following.call.reads[0]
    if len(read.shape) != len(result.shape) or read.shape[:2] != result.shape[:2]:
        return this
    return this._replace(call=call._replace(writes=[result._replace(shape=read.shape)]))


def _call(path: list[Event], kernels: list[Event]) -> Call | None:
    """Return the operator as `emulator.kernels` prices it; None without shapes."""
    place = next(place for place, event in enumerate(path) if _is_seen(event.name))
    operator, inner = path[place], path[-1]
    op = operator.name.removeprefix("aten::")
    kind = CLASS.get(op, "elementwise")
    forward = kind == "convolution" and not op.endswith("_backward")
    if inner.name == "aten::copy_" or (forward and "convolution" in inner.name):
        operator = inner  # it names both sides of a copy, and no composite's arguments
    arrays = _arrays(operator.arguments)
    names = " ".join(kernel.name for kernel in kernels)
    if not arrays or (kind == "gemm" and all(BESIDE_PRODUCT.search(kernel.name) for kernel in kernels)):
        return None  # its kernel was lost
    precision = _precision(arrays, names)
    if kind == "copy" and len(arrays) > 1:
        reads, writes = [arrays[1]], [arrays[0]]
    elif kind == "reduction" and "Backward" in path[0].name and len(arrays[0].shape) > 1:
        reads, writes = arrays, [Array(arrays[0].shape[1:], arrays[0].dtype)]  # the gradient of a bias
    else:
        reads, writes = _moves(op, arrays)
    if kind == "convolution" and not op.endswith("_backward"):
        writes = [_resized(writes[0], reads, operator)]
    if kind == "gemm" and (layout := LAYOUT.search(names)):
        reads = [*reads[:-2], *_laid_out(reads[-2:], layout)]
    if kind == "copy" and not reads[0].stride and len(reads[0].shape) > 1 and not IN_ORDER.search(names):
        reads = [reads[0]._replace(stride=tuple(2 * step for step in range(len(reads[0].shape))))]
    return Call(op, reads, writes, precision)


def _laid_out(operands: list[Array], layout: re.Match[str]) -> list[Array]:
    """Return the operands of a product with the strides that its kernel's name tells, where the trace has none."""
    if any(array.stride or len(array.shape) < 2 for array in operands):
        return operands
    laid_out, (letters, odd) = [], (layout[2] + layout[1], bool(layout[3]))
    for array, letter in zip(operands, letters, strict=True):
        *outer, rows, columns = array.shape
        row = (rows if letter == "t" else columns) | odd  # where the shape is not odd, it is part of one that is
        strides = (1, row) if letter == "t" else (row, 1)
        laid_out.append(array._replace(stride=(*(rows * columns for _ in outer), *strides)))
    return laid_out


def _precision(arrays: list[Array], names: str) -> Any:
    if any(array.dtype in HALF for array in arrays):
        return "fp16"
    if any(array.dtype == "double" for array in arrays):
        return "fp64"
    return "tf32" if TENSOR_CORES.search(names) else "fp32"


def _resized(result: Array, reads: list[Array], operator: Event) -> Array:
    """Return the result of a convolution, whose size follows from the stride and padding that the trace names."""
    values = operator.arguments.get("Concrete Inputs") or ()
    lists = [json.loads(value) for value in values if value.startswith("[")]
    if len(lists) < 3:
        return result
    stride, padding = (lists[0], lists[1]) if operator.name == "aten::_convolution" else (lists[1], lists[0])
    sizes = [
        (size + 2 * pad - window) // step + 1
        for size, pad, window, step in zip(reads[0].shape[2:], padding, reads[1].shape[2:], stride, strict=True)
    ]
    return result._replace(shape=(*result.shape[:2], *sizes))


def _arrays(arguments: Mapping[str, Any]) -> list[Array]:
    """Return the tensors among an operator's arguments."""
    shapes, types = arguments.get("Input Dims"), arguments.get("Input type")
    if not shapes or not types:
        return []
    strides = arguments.get("Input Strides") or [()] * len(shapes)
    if any(
        kind == "TensorList" and not (shape and isinstance(shape[0], list))
        for shape, kind in zip(shapes, types, strict=False)
    ):
        return []  # a list without its shapes
    arrays = []
    for shape, kind, stride in zip(shapes, types, strides, strict=False):
        if shape and isinstance(shape[0], list):  # a list of tensors
            arrays += [Array(tuple(each), "float") for each in shape if each]
        elif kind and kind not in ("Scalar", "ScalarList", "Device", "TensorList", "GenericList") and shape:
            arrays.append(Array(tuple(shape), kind.replace(" ", "_"), tuple(stride)))
    for array in arrays:
        if not all(type(size) is int and 0 <= size < MOST for size in (*array.shape, *array.stride)):
            raise ValueError("a size that no tensor has")
    return arrays


def _moves(op: str, arrays: list[Array]) -> tuple[list[Array], list[Array]]:
    """Return what an operator reads and writes: a trace does not tell the shapes of results."""
    kind = CLASS.get(op, "elementwise")
    if kind == "convolution":
        return _convolution(op, arrays)
    if op.startswith("_foreach_") and kind == "elementwise":
        return arrays, arrays[: max(1, len(arrays) // 2)]
    reads, writes = _READS.get(kind), _WRITES.get(kind)
    return reads(op, arrays) if reads else arrays, writes(op, arrays) if writes else arrays[:1]


def _broadcast(op: str, arrays: list[Array]) -> list[Array]:
    sizes = zip_longest(*(array.shape[::-1] for array in arrays), fillvalue=0)  # from the last one on
    shape = tuple(map(max, sizes))[::-1]
    return [Array(shape, arrays[0].dtype, next((a.stride for a in arrays if a.shape == shape), ()))]


def _gathered(op: str, arrays: list[Array]) -> list[Array]:
    row = prod(arrays[0].shape[1:]) if op in ("index_select", "embedding", "index") else 1
    return [Array((prod(arrays[1].shape) if len(arrays) > 1 else 1, row), arrays[0].dtype)]


def _convolution(op: str, arrays: list[Array]) -> tuple[list[Array], list[Array]]:
    shaped = [array for array in arrays if len(array.shape) >= 3]
    if op.endswith("_backward"):
        if op != "convolution_backward":  # up to torch 1.10 the input came first
            shaped[:2] = reversed(shaped[:2])
        return shaped, shaped[1:3]
    source, weight = shaped[:2]
    return arrays, [Array((source.shape[0], weight.shape[0], *source.shape[2:]), source.dtype)]


# What an operator of a class reads of its arrays, if not all of them, and writes, if not what is like the first one
_Moves = Callable[[str, list[Array]], list[Array]]
_NORMS = ("layer_norm", "batch_norm", "batch_norm_grad")
_READS: dict[str, _Moves] = {
    "fill": lambda op, arrays: [],
    "copy": lambda op, arrays: arrays[-1:],
    **dict.fromkeys(_NORMS, lambda op, arrays: arrays[: 2 if op.endswith("backward") else 1]),
}
_WRITES: dict[str, _Moves] = {
    "copy": lambda op, arrays: [arrays[0] if op == "copy_" else Array(arrays[-1].shape, arrays[-1].dtype)],
    "cat": lambda op, arrays: [Array((sum(prod(array.shape) for array in arrays),), arrays[0].dtype)],
    "reduction": lambda op, arrays: [],
    "gemm": lambda op, arrays: [Array((*arrays[-2].shape[:-1], arrays[-1].shape[-1]), arrays[0].dtype)],
    "gather": _gathered,
    "pooling": lambda op, arrays: (
        arrays[:1] if op.endswith("backward") else [Array((prod(arrays[0].shape) // 4,), arrays[0].dtype)]
    ),
    "elementwise": _broadcast,
}


# Judging


class OperatorClass(NamedTuple):
    """One class of operators: how many, ns measured and predicted, and the sum of the absolute differences."""

    kind: str
    operators: int
    measured: int
    predicted: int
    difference: int


@dataclass(frozen=True)
class Validation:
    """A trace beside its prediction. Print it for the tables."""

    trace: str
    gpu: Gpu
    rows: list[OperatorClass]
    numbers: dict[str, int]  # of Gpu and Host, as the trace shows them

    @property
    def measured(self) -> int:
        """The ns of GPU work that was compared."""
        return sum(row.measured for row in self.rows)

    @property
    def error(self) -> float:
        """The sum of |predicted - measured| over the sum of measured, operator by operator."""
        return sum(row.difference for row in self.rows) / max(1, self.measured)

    @property
    def ratio(self) -> float:
        """Predicted over measured, in all."""
        return sum(row.predicted for row in self.rows) / max(1, self.measured)

    def totals(self) -> dict[str, Any]:
        """Return the totals, for JSON."""
        return {
            "trace": self.trace,
            "gpu": self.gpu.name,
            "operators": sum(row.operators for row in self.rows),
            "gpu_ms": round(self.measured / 1e6, 3),
            "ratio": round(self.ratio, 3),
            "error": round(self.error, 3),
        }

    def __str__(self) -> str:
        """Return the tables: operators by class, then the host's and the device's latencies."""
        lines = [
            f"{self.trace}: {words.duration(self.measured)} of GPU work with shapes, as {self.gpu.name}",
            "",
            f"{'class':<18}{'operators':>10}{'share':>8}{'predicted / measured':>22}{'error':>8}",
        ]
        predicted, difference = sum(row.predicted for row in self.rows), sum(row.difference for row in self.rows)
        total = OperatorClass("all", sum(row.operators for row in self.rows), self.measured, predicted, difference)
        for row in (*sorted(self.rows, key=lambda row: -row.measured), total):
            ratio = row.predicted / max(1, row.measured)
            share, error = (
                words.share(each / max(1, whole))
                for each, whole in ((row.measured, self.measured), (row.difference, row.measured))
            )
            lines.append(f"{row.kind:<18}{row.operators:>10}{share:>8}{words.times(ratio):>22}{error:>8}")
        lines.append("")
        host = Host.preset("workstation")
        for name, value in self.numbers.items():
            preset = getattr(self.gpu, name) if hasattr(self.gpu, name) else getattr(host, name)
            preset = self.gpu.pageable if name == "pageable_d2h" and not preset else preset
            said, usual = (
                f"{words.size(each)}/s" if name in RATES else words.duration(each) for each in (value, preset)
            )
            lines.append(f"{name:<18}{said:>14} measured, {usual} in the preset")
        return "\n".join(lines)


def validate(trace: str | Path, on: str | Gpu | None = None) -> Validation:
    """Compare a trace of torch.profiler with what the emulator would charge for the same operators.

    `on` is a preset (default: found by the name in the trace). Raises `ValidationError` for a trace without kernels or
    shapes, `UnknownHardwareError` where no preset fits.
    """
    found = Trace(trace)
    try:
        gpu = on if isinstance(on, Gpu) else Gpu.preset(on) if on else Gpu.named(found.device)
    except UnknownHardwareError as problem:
        raise problem if on else UnknownHardwareError(f"{trace}: {problem}") from None
    if not found.operators:
        raise ValidationError(f"{trace} has no shapes; record it with torch.profiler.profile(record_shapes=True)")
    return Validation(found.name, gpu, _rows(found, gpu), found.numbers())


def _rows(trace: Trace, gpu: Gpu) -> list[OperatorClass]:
    times = ((row_of(call), sum(kernels), sum(kernel_times(gpu, call))) for call, kernels in trace.operators)
    each = ((kind, (1, measured, predicted, abs(predicted - measured))) for kind, measured, predicted in times)
    return [OperatorClass(kind, *map(sum, zip(*rows, strict=True))) for kind, rows in gathered(each).items()]


# Calibrating


@dataclass(frozen=True)
class Calibration:
    """A machine as its trace shows it; `kept` names the numbers that the trace does not show, taken from `presets`."""

    trace: str
    presets: str
    gpu: dict[str, Any]
    host: dict[str, Any]
    kept: list[str]

    def save(self, path: str | Path) -> None:
        """Write it as JSON, for `record(on=path, host=path)` and wherever a preset's name may stand.

        Raises `NoFolderError` for a missing folder.
        """
        write(path, json.dumps({"trace": self.trace, "gpu": self.gpu, "host": self.host}, indent=1) + "\n")

    def __str__(self) -> str:
        """Say what was measured and what was kept."""
        shown = [f"{name} {value}" for name, value in (self.gpu | self.host).items() if isinstance(value, int)]
        kinds = ", ".join(sorted(self.gpu["kernels"]))
        return (
            f"{self.gpu['name']}, from {self.trace}\nmeasured: {', '.join(shown)}\nkernels of: {kinds}\n"
            f"kept from {self.presets}: {', '.join(self.kept)}"
        )


def calibrate(trace: str | Path, on: str | None = None, host: str = "workstation") -> Calibration:
    """Make a GPU and a host of one's own trace: its kernels class by class, its launches, its copies.

    `on` and `host` are the presets of what the trace does not show (default: the card that it names, else "a100").
    Raises `ValidationError` for a trace without kernels.
    """
    found = Trace(trace)
    try:
        base = Gpu.preset(on) if on else Gpu.named(found.device)
    except UnknownHardwareError:
        if on:
            raise
        base = Gpu.preset("a100")
    numbers, kernels = found.numbers(), {}
    for row in _rows(found, base):
        if row.operators >= ENOUGH and row.kind in base.kernels and row.measured:
            factor, known = row.measured / max(1, row.predicted), base.kernels[row.kind]
            kernels[row.kind] = Kernel(*(round(n) for n in (known.floor * factor, *(n / factor for n in known[1:]))))
    gpu_names, host_names = ({entry.name for entry in fields(kind)} for kind in (Gpu, Host))
    gpu = {name: value for name, value in numbers.items() if name in gpu_names}
    costs = {name: value for name, value in numbers.items() if name in host_names}
    kept = sorted((gpu_names | host_names) - set(gpu) - set(costs) - {"kernels", "name", "sources"})
    kept += [f"kernels of {kind}" for kind in sorted(set(base.kernels) - set(kernels))]
    key = next(key for key, card in GPUS.items() if card is base)
    card = {"preset": key, "name": f"{found.device or base.name}, calibrated", **gpu, "kernels": kernels}
    computer = {"preset": host, "name": f"{host}, calibrated", **costs}
    return Calibration(found.name, f"{key} and {host}", card, computer, kept)
