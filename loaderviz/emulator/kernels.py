"""What an operator's kernels cost: how many it launches and how long each takes, by the class of the operator.

    array = Array((8192, 784), "float32")
    kernel_times(gpu, Call("mul", reads=[array, array], writes=[array]))   # (17_254,): ns of each kernel, in order
    memory_time(gpu, "fill", nbytes=4096)                                   # ns
    sm_share(gpu, elements=1024)                                            # thousandths of the GPU that it fills

A kernel takes a floor, and then its bytes at a share of the memory bandwidth, or its FLOPs at a share of the peak. The
shares and floors of each class are data of the GPU (`Gpu.kernels`); kernels.toml has them, with their sources, and says
to which class an operator belongs. This file says what it moves and computes, and how a product is cut into tiles.
Never imports torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import isqrt, prod
from typing import Any, Literal, NamedTuple

from loaderviz.emulator.hardware import FULL, SECOND, Gpu, ceil_div, table

Precision = Literal["fp32", "tf32", "fp16", "fp64"]
Times = tuple[int, ...]
Sides = tuple[int, int, int, int]  # batch, m, n and k of a product


class Array(NamedTuple):
    """A tensor as its kernel sees it. Without `stride` it is taken for dense and in the order of its dimensions."""

    shape: tuple[int, ...]
    dtype: str
    stride: tuple[int, ...] = ()

    @property
    def nbytes(self) -> int:
        """The bytes of its elements."""
        return prod(self.shape) * itemsize(self.dtype)

    @property
    def order(self) -> tuple[int, ...] | None:
        """The dimensions from the slowest to the fastest, those of size 1 left out; None where there are holes."""
        return _order(tuple(self.shape), tuple(self.stride or dense_stride(self.shape)))


class Call(NamedTuple):
    """An operator with what it reads and what it writes; `precision` that of its products."""

    op: str
    reads: Sequence[Array]
    writes: Sequence[Array]
    precision: Precision = "fp32"
    transposed: bool = False  # of a convolution


_TABLE = table("kernels")
_PRODUCTS = _TABLE["products"]
CLASS = {op: kind for kind, ops in _TABLE["classes"].items() for op in ops.split()}  # every other one is elementwise
BESIDE: dict[str, int] = _TABLE["beside"]
SIZES = {name: int(size) for size, names in _TABLE["sizes"].items() for name in names.split()}
PRODUCTS = frozenset(("gemm", "convolution", "attention"))
# torch/csrc ATen/native/cuda/MultiTensorApply.cuh: tensors and blocks that one launch can take, by lists of tensors.
FOREACH_TENSORS, FOREACH_BLOCKS, FOREACH_CHUNK = (110, 64, 48, 36, 30), 320, 65536
FUSED_LISTS = {"_fused_sgd_": (3, 3), "_fused_adam_": (4, 5), "_fused_adamw_": (4, 5), "_fused_adagrad_": (3, 4)}
TENSOR_TILES, TILES = (
    tuple(tuple(tile) for tile in tiles)
    for tiles in (_PRODUCTS["tensor_tiles"], _PRODUCTS["tensor_tiles"] + _PRODUCTS["tiles"])
)
PLANES: dict[str, Any] = _TABLE["planes"]
LARGE_TILE = 256 * 128  # takes a whole multiprocessor
ALIGNED = {"fp16": 8, "tf32": 4}  # elements of the 16 bytes that tensor cores are fed with
QUERIES, LONG_ROW = 128, 1024  # of one attention tile; elements of a softmax row that no block holds in registers


def kernel_times(gpu: Gpu, call: Call) -> Times:
    """Return the time [ns] of each kernel that an operator launches, the main one first."""
    kind = _class_of(call.op)
    if own := {"foreach": _foreach, "gemm": _gemm, "convolution": _convolution}.get(kind):
        return own(gpu, call)
    main: int = _attention(gpu, call) if kind == "attention" else memory_time(gpu, access(kind, call), moved(call))
    if kind.startswith("batch_norm"):
        main = max(main, _one_channel(gpu, access(kind, call), call))
    return (main, *(gpu.kernels["elementwise"].floor,) * BESIDE.get(call.op, 0))


def row_of(call: Call) -> str:
    """Return the row of `Gpu.kernels` that an operator's main kernel is priced by."""
    kind = _class_of(call.op)
    if kind == "gemm":
        return _gemm_class(call)
    if kind == "convolution":
        return _convolution_class(shape_of(call), call.precision, call.op.endswith("_backward"))
    return access(kind, call)  # which leaves "foreach" and "attention" as they are


def _class_of(op: str) -> str:
    return "foreach" if op.startswith(("_foreach_", "_fused_")) else CLASS.get(op, "elementwise")


def memory_time(gpu: Gpu, kind: str, nbytes: int) -> int:
    """Return the time [ns] of a kernel of this class that moves `nbytes` (each read and each write counted once)."""
    kernel = gpu.kernels[kind]
    return kernel.floor + traffic(gpu, nbytes, kernel.bandwidth)


def traffic(gpu: Gpu, nbytes: int, share: int) -> int:
    """Return the ns in which `nbytes` are moved at this share [thousandths] of the memory bandwidth, or of that of L2.

    What fits into an L2 cache of known speed stays there for the next kernel: all of an operator's bytes up to its
    size, then less and less of them, none from twice its size on.
    """
    near = min(nbytes, max(0, 2 * gpu.l2 - nbytes))
    cached = ceil_div(near * SECOND, gpu.l2_bandwidth) if near else 0
    return cached + ceil_div((nbytes - near) * SECOND * FULL, gpu.memory_bandwidth * share)


def sm_share(gpu: Gpu, elements: int) -> int:
    """Return the share of the GPU, in thousandths (1..1000), that a kernel over `elements` outputs fills (R19).

    One thread an element, as PyTorch's elementwise kernels come close to; a kernel that fills the GPU leaves no room
    for a second one.
    """
    return min(FULL, max(1, ceil_div(elements * FULL, gpu.sms * gpu.threads_per_sm)))


def memory_share(gpu: Gpu, nbytes: int, time: int) -> int:
    """Return what part of the memory bandwidth [thousandths] is taken by who moves so many bytes in `time` ns (R49)."""
    return min(FULL, nbytes * SECOND * FULL // (max(1, time) * gpu.memory_bandwidth))


def moved(call: Call) -> int:
    """Return the bytes that an operator reads and writes; a gather reads as much of its source as it hands out."""
    written = sum(array.nbytes for array in call.writes)
    if _class_of(call.op) == "gather" and call.reads:
        return 2 * written + sum(array.nbytes for array in call.reads[1:])
    return written + sum(array.nbytes for array in call.reads)


def access(kind: str, call: Call) -> str:
    """Return the class by the way in which the arrays are read: in order, broadcast or strided, transposed."""
    if kind == "copy":
        source, target = (*call.writes, *call.reads)[-1], call.writes[0]  # a copy onto itself reads what it writes
        if source.order is None or source.order != target.order:
            return "strided"
        return "memcpy" if source.dtype == target.dtype else "elementwise"
    if kind == "elementwise":
        arrays = [array for array in (*call.reads, *call.writes) if prod(array.shape) > 1]
        orders = {(array.shape, array.order) for array in arrays}
        return "elementwise" if len(orders) < 2 and all(order for _, order in orders) else "strided"
    if kind == "batch_norm" and any(not prod(array.shape) for array in call.writes):
        return "elementwise"  # in eval mode nothing is gathered first
    ending = ""
    if kind == "softmax":
        row = call.writes[0].shape[-1] if call.writes and call.writes[0].shape else 1
        ending = "_unaligned" if row > LONG_ROW and row * itemsize(call.writes[0].dtype) % 16 else ""
    elif kind == "reduction" and call.writes and call.reads:
        kept = tuple(call.writes[0].shape)  # the sum over the first dimensions is one of columns
        ending = "_columns" if prod(kept) > 1 and tuple(call.reads[0].shape[-len(kept) :]) == kept else ""
    return kind + ending


def _one_channel(gpu: Gpu, kind: str, call: Call) -> int:
    """Return how long batch norm takes one channel of images, where each has one block [ns]; 0 where it has several."""
    images = [array for array in call.reads if len(array.shape) > 2]
    if not images or any(map(channels_last, images)) or kind not in PLANES.get(gpu.architecture, {}):
        return 0
    planes, elements = PLANES[gpu.architecture], images[0].shape[0] * prod(images[0].shape[2:])
    return ceil_div(elements * 1000, planes[kind][elements > planes["many"]])


# Products


def _sides(call: Call) -> Sides:
    """Return batch, m, n and k of a product; a vector has m or n of 1."""
    first, second = [array for array in call.reads if len(array.shape) in (1, 2, 3)][-2:]
    batch = first.shape[0] if len(first.shape) == 3 else 1
    m, k = (first.shape if len(first.shape) > 1 else (1, *first.shape))[-2:]
    return batch, m, second.shape[-1] if len(second.shape) > 1 else 1, k


def _leading(array: Array, row: int) -> int:
    """Return the elements from one row (or column) of a matrix to the next: `row`, where its strides are not known."""
    steps = array.stride[-2:]
    if len(steps) < 2:
        return row
    return steps[0] if steps[1] == 1 else steps[1] if steps[0] == 1 else row


def _gemm_class(call: Call) -> str:
    _, m, n, k = _sides(call)
    if min(m, n) <= 1:
        return "gemv"
    first, second = [array for array in call.reads if len(array.shape) in (1, 2, 3)][-2:]
    rows, whole = (_leading(first, k), _leading(second, n), n), ALIGNED.get(call.precision, 1)
    if not any(row % whole for row in rows):  # each has whole 16 bytes
        return f"gemm_{call.precision}"
    words = call.precision == "fp16" and not any(row % 2 for row in rows)
    return f"gemm_{call.precision}{'_align2' if words else '_align1'}"


def _gemm(gpu: Gpu, call: Call) -> Times:
    """A product in waves of tiles, split along k where that is faster; vectors and odd rows by what they read."""
    kind, (batch, m, n, k) = _gemm_class(call), _sides(call)
    if kind == "gemv":
        return (memory_time(gpu, kind, moved(call)),)
    result, exposed = m * n * itemsize(call.reads[-1].dtype), _PRODUCTS["exposed"]
    return _product(gpu, kind, (batch, m, n, k), call.precision, moved(call), result, exposed)


def _product(
    gpu: Gpu, kind: str, sides: Sides, precision: Precision, nbytes: int, result: int, exposed: int = 0
) -> Times:
    """Return the times [ns] of a product that moves `nbytes`, `result` of them its own: in one part or in several.

    `exposed`: which thousandths of the shorter of arithmetic and memory traffic are not hidden under the longer.
    """
    kernel, best = gpu.kernels[kind], Times()
    memory = traffic(gpu, nbytes, kernel.bandwidth)
    if kind.endswith("_align1"):  # word by word
        memory = max(memory, ceil_div(nbytes * SECOND, gpu.word_rate * gpu.sms))
    peak = getattr(gpu, precision) * kernel.peak // FULL
    for math, parts in tiled(sides, gpu.sms, gpu.tiles, peak, precision in ALIGNED):
        times: Times = (kernel.floor + max(math, memory) + min(math, memory) * exposed // FULL,)
        if parts > 1:  # another kernel adds them
            times += (memory_time(gpu, "elementwise", (2 * parts + 1) * result),)
        if not best or sum(times) < sum(best):
            best = times
    return best


@lru_cache(4096)
def tiled(sides: Sides, sms: int, at_once: int, peak: int, tensor_cores: bool) -> tuple[tuple[int, int], ...]:
    """Return ns and parts along k of the fastest ways to cut a product into tiles: in one part, and in several.

    A multiprocessor works on so many tiles `at_once`, each with an equal part of its rate, even where it is alone.
    """
    (batch, m, n, k), best = sides, dict[bool, tuple[int, int]]()
    edge = _PRODUCTS["tensor_edge" if tensor_cores else "edge"]
    for rows, columns, rate in TENSOR_TILES if tensor_cores else TILES:
        places = sms * (1 if rows * columns == LARGE_TILE else at_once)
        tiles = batch * ceil_div(m, rows) * ceil_div(n, columns)
        most = min(k // _PRODUCTS["split"], places // tiles) if batch == 1 else 1
        for parts in {1, max(1, most)}:
            work = ceil_div(tiles * parts, places) * 2 * rows * columns * (ceil_div(k, parts) + edge)
            time = ceil_div(work * places * SECOND * FULL, peak * rate)
            if (parts > 1) not in best or time < best[parts > 1][0]:
                best[parts > 1] = time, parts
    return tuple(best.values())


def _attention(gpu: Gpu, call: Call) -> int:
    """Flash attention: tiles of 128 queries, each over all keys; the backward computes 2.5 times as much."""
    backward = call.op.endswith(("_backward", "_backward_for_cpu"))
    query, key = (call.reads[1], call.reads[2]) if backward else (call.reads[0], call.reads[1])
    *outer, length, depth = query.shape
    if call.op.startswith("_flash_attention"):  # batch, sequence, heads, depth
        batch, length, heads, depth = query.shape
        outer, keys = [batch, heads], key.shape[1]
    else:
        keys = key.shape[-2]
    waves = ceil_div(prod(outer) * ceil_div(length, QUERIES), gpu.sms)
    work = waves * 4 * QUERIES * ceil_div(keys, QUERIES) * QUERIES * depth * gpu.sms
    kernel = gpu.kernels["attention"]
    math = ceil_div(work * (5 if backward else 2) * SECOND * FULL, 2 * getattr(gpu, call.precision) * kernel.peak)
    return kernel.floor + max(math, memory_time(gpu, "attention", moved(call)) - kernel.floor)


# Convolutions


class Convolution(NamedTuple):
    """The shapes of a convolution: numbers of multiply-adds, and what its kernel is like."""

    window: int  # elements of the kernel in one channel
    stride: int
    depthwise: bool
    channels: int  # of the input
    groups: int
    flops: int  # of one pass


def shape_of(call: Call) -> Convolution:
    """Return what matters of a convolution's shapes; of a backward the first array is the gradient of the result."""
    backward = call.op.endswith("_backward")
    shaped = [array for array in call.reads if len(array.shape) >= 3]
    if backward:
        output, source, weight = shaped[:3]
    else:
        source, weight = shaped[:2]
        output = call.writes[0]
    window = prod(weight.shape[2:])
    inner = source if call.transposed else output  # each element of it meets the whole kernel
    flops = 2 * prod(inner.shape) * prod(weight.shape[1:])
    large, small = (output, source) if call.transposed else (source, output)
    stride = max(1, round(large.shape[-1] / max(1, small.shape[-1])))
    channels, groups = source.shape[1], max(1, (output if call.transposed else source).shape[1] // weight.shape[1])
    return Convolution(window, stride, weight.shape[1] == 1 and groups == channels > 1, channels, groups, flops)


def _convolution(gpu: Gpu, call: Call) -> Times:
    """Each pass by FLOPs or bytes; layouts and transforms of Winograd are kernels of their own within that time."""
    shape, backward = shape_of(call), call.op.endswith("_backward")
    kind = _convolution_class(shape, call.precision, backward)
    if kind in ("conv_fp16", "conv_tf32"):
        return _implicit_product(gpu, call, kind, shape)
    side_by_side = call.transposed or any(map(channels_last, call.reads[:3]))
    if shape.depthwise and gpu.architecture in PLANES and not side_by_side:
        return _depthwise(gpu, call, shape.window)
    kernel = gpu.kernels[kind]
    # Few channels have no tensor cores: in traces about a third of fp32's rate, whatever the precision.
    peak = getattr(gpu, "fp32" if kind.startswith(("conv_few", "conv_depthwise")) else call.precision) * kernel.peak
    if kind == "conv_groups":
        peak = peak * isqrt(100 * (shape.channels // shape.groups)) // 10
    written = [array.shape for array in call.writes if len(array.shape) >= 3]
    passes = max(1, len(written)) if backward else 1
    math = ceil_div(shape.flops * SECOND * FULL, peak) if peak else 0
    big = sum(array.nbytes for array in (call.reads if backward else (*call.reads, *call.writes)))
    memory = traffic(gpu, big, kernel.bandwidth)
    each = kernel.floor + max(math, memory)
    small = gpu.kernels["elementwise"].floor
    beside = BESIDE_CONVOLUTION.get(kind, 0) * passes
    hidden = min(beside * small, each * passes // 2)  # they are part of the measured time of the whole operator
    mains = [each - ceil_div(hidden, passes)] * passes
    if kind == "conv_groups" and backward and call.reads[2].shape in written:
        mains[-1] += math  # the gradient of the weight takes twice as long as the convolution
    return (*mains, *(small,) * beside)


def _depthwise(gpu: Gpu, call: Call, window: int) -> Times:
    """A depthwise convolution of images whose channels do not lie side by side, by the elements of each pass."""
    planes, floor = PLANES[gpu.architecture], gpu.kernels["elementwise"].floor
    arrays = [array for array in call.reads if len(array.shape) > 2]
    backward = call.op.endswith("_backward")
    result, weight = (arrays[0], arrays[2]) if backward else (call.writes[0], arrays[1])
    times = Times()
    for written in [array for array in call.writes if len(array.shape) > 2][: None if backward else 1]:
        of_weight = written.shape == weight.shape
        base, each = planes["depthwise_weight" if of_weight else "depthwise_images" if backward else "depthwise"]
        elements = prod((result if of_weight else written).shape)
        time = elements * (base + each * window) * planes["sms"] // (gpu.sms * 10**6)
        one = elements // max(1, result.shape[1]) * 1000 // planes["depthwise_channel"] if of_weight else 0
        times += (floor + max(time, one),)
    return times or (floor,)  # of the bias alone


def _implicit_product(gpu: Gpu, call: Call, kind: str, shape: Convolution) -> Times:
    """A convolution on tensor cores: each pass is a product in tiles, between changes of layout unless channels last.

    The rows of the product are the places of what it writes (images) or its first dimension (a weight), the columns the
    channels or the rest, and its length follows from the FLOPs.
    """
    backward = call.op.endswith("_backward")
    arrays = [array for array in (*call.reads, *call.writes) if len(array.shape) >= 3]
    images, weight = ((arrays[1], arrays[0]), arrays[2]) if backward else ((arrays[0], call.writes[0]), arrays[1])
    times, changes = Times(), call.precision == "fp16" or shape.window * shape.stride > 1  # TF32 takes 1 x 1 as it is
    for written in [array for array in call.writes if len(array.shape) >= 3] if backward else call.writes[:1]:
        rows = written.shape[0] if written.shape == weight.shape else prod(written.shape) // max(1, written.shape[1])
        columns = prod(written.shape) // max(1, rows)
        length = ceil_div(shape.flops, 2 * max(1, rows * columns))
        nbytes = weight.nbytes + sum(array.nbytes for array in images)
        times += _product(gpu, kind, (1, rows, columns, length), call.precision, nbytes, written.nbytes)
        if changes and not (channels_last(images[0]) or channels_last(weight)):
            times += tuple(memory_time(gpu, "layout", 2 * array.nbytes) for array in images)
    return times


def channels_last(array: Array) -> bool:
    """Tell whether the channels of images, or of a weight, lie side by side, as torch tells it from the strides."""
    return len(array.stride) > 2 and array.stride[1] < array.stride[-1]


# Multiples of so many groups are as fast as none: cuDNN has kernels for them (ResNeXt has 32 and 64). For other numbers
# the rate grows with the root of a group's channels.
GROUPS = 32
# Layouts and transforms for each pass: real-costs 3.7.
BESIDE_CONVOLUTION = {"conv_1x1_fp32": 1, "conv_3x3_fp32": 2, "conv_fp32": 1}


def _convolution_class(shape: Convolution, precision: Precision, backward: bool) -> str:
    if shape.depthwise:
        return "conv_depthwise_grad" if backward else "conv_depthwise"
    if precision == "fp16" and shape.channels < ALIGNED["fp16"]:
        return "conv_few_channels"
    if precision == "fp16" and shape.groups % GROUPS and shape.groups > 1:
        return "conv_groups"
    if precision == "fp32":
        if shape.window == 1:
            return "conv_1x1_fp32"
        if shape.window == 9 and shape.stride == 1:
            return "conv_3x3_fp32"
    return f"conv_{precision}"


def _foreach(gpu: Gpu, call: Call) -> Times:
    """One operator over many tensors: as many launches as MultiTensorApply makes, each an equal share of the bytes."""
    lists = max(1, round(len(call.reads) / max(1, len(call.writes))))
    lists, each = FUSED_LISTS.get(call.op, (lists, lists))  # each: with the counters of steps
    tensors = max(1, ceil_div(len(call.reads or call.writes), each))
    blocks = sum(ceil_div(prod(array.shape), FOREACH_CHUNK) for array in (call.reads or call.writes)[:tensors])
    launches = max(ceil_div(tensors, FOREACH_TENSORS[min(lists, 5) - 1]), ceil_div(blocks, FOREACH_BLOCKS))
    nbytes = sum(array.nbytes for array in (*call.reads, *call.writes))
    return (memory_time(gpu, "foreach", ceil_div(nbytes, launches)),) * launches


# Arrays


@lru_cache(4096)
def _order(shape: tuple[int, ...], stride: tuple[int, ...]) -> tuple[int, ...] | None:
    known = sorted((-step, place) for place, (size, step) in enumerate(zip(shape, stride, strict=True)) if size != 1)
    expected = 1
    for step, place in reversed(known):
        if -step != expected:
            return None
        expected *= shape[place]
    return tuple(place for _, place in known)


def dense_stride(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of an array of this shape without holes, in the order of its dimensions."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def itemsize(dtype: str) -> int:
    """Return the bytes of an element, by torch's name of its dtype or the one of a profiler's trace."""
    return SIZES.get(dtype, 4)
