"""What kernels cost, against closed forms on a GPU of round numbers: bytes, tiles, passes, launches."""

import csv
import statistics
from collections import defaultdict
from dataclasses import replace
from math import isqrt, prod
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loaderviz.emulator import Gpu
from loaderviz.emulator.hardware import GPUS, KERNELS, Kernel
from loaderviz.emulator.kernels import (
    Array,
    Call,
    access,
    channels_last,
    dense_stride,
    kernel_times,
    memory_share,
    memory_time,
    moved,
    row_of,
    sm_share,
)

FLOOR = 100
ROUND = replace(
    Gpu.preset("a100"), memory_bandwidth=10**15, fp32=10**12, tf32=10**12, fp16=10**12, sms=100,
    kernels=dict.fromkeys(KERNELS["ampere"], Kernel(FLOOR, 1000, 1000)),
)  # fmt: skip
each_gpu = pytest.mark.parametrize("gpu", GPUS.values(), ids=list(GPUS))
sizes = st.integers(1, 5000)


def array(*shape, dtype="float32", order=None):
    """An array whose dimensions lie in memory in this order, the slowest first."""
    order = order or range(len(shape))
    strides = dict(zip(order, dense_stride([shape[place] for place in order]), strict=True))
    return Array(shape, dtype, tuple(strides[place] for place in range(len(shape))))


def call(op, *reads, writes=(), **more):
    return Call(op, list(reads), list(writes), **more)


@each_gpu
@settings(deadline=None)
@given(nbytes=st.integers(0, 10**11), data=st.data())
def test_a_kernel_takes_its_floor_and_its_bytes(gpu, nbytes, data):
    kind = data.draw(st.sampled_from(sorted(gpu.kernels)))
    floor, share, _ = gpu.kernels[kind]
    near = min(nbytes, max(0, 2 * gpu.l2 - nbytes))
    exact = (nbytes - near) * 10**12 / (gpu.memory_bandwidth * share) + (near and near * 10**9 / gpu.l2_bandwidth)
    assert exact * (1 - 1e-9) <= memory_time(gpu, kind, nbytes) - floor <= exact * (1 + 1e-9) + 2


@pytest.mark.parametrize(("nbytes", "near"), [(0, 0), (10, 10), (100, 100), (150, 50), (199, 1), (200, 0), (1000, 0)])
def test_what_fits_into_the_cache_is_read_at_its_speed(nbytes, near):
    gpu = replace(ROUND, memory_bandwidth=10**9, l2=100, l2_bandwidth=10**10)  # 1 and 10 bytes a ns
    assert memory_time(gpu, "elementwise", nbytes) == FLOOR + nbytes - near - (-near // 10)
    assert memory_time(replace(gpu, l2=0, l2_bandwidth=0), "elementwise", nbytes) == FLOOR + nbytes


@each_gpu
def test_the_share_of_the_gpu_grows_with_the_elements(gpu):
    full = gpu.sms * gpu.threads_per_sm
    assert sm_share(gpu, 0) == sm_share(gpu, 1) == 1
    assert sm_share(gpu, full // 2) in (500, 501)
    assert sm_share(gpu, full) == sm_share(gpu, 100 * full) == 1000


@each_gpu
@pytest.mark.parametrize("op", ["add", "mm", "_foreach_add_"])
def test_what_part_of_the_memory_bandwidth_an_operator_takes(gpu, op):
    large, small = (call(op, *[array(n, n)] * 2, writes=[array(n, n)]) for n in (4096, 1))
    took = sum(kernel_times(gpu, large))
    exact = 3 * 4 * 4096**2 / took * 1e9 / gpu.memory_bandwidth * 1000
    assert memory_share(gpu, moved(large), took) == int(exact)
    assert memory_share(gpu, moved(small), sum(kernel_times(gpu, small))) == 0 == memory_share(gpu, 0, 0)
    assert memory_share(gpu, moved(large), 1) == 1000  # never more than there is


BATCH, ROW, PLANES = array(64, 100), array(100), array(8, 3, 9, 9)
CHANNELS_LAST = array(8, 3, 9, 9, order=(0, 2, 3, 1))
AS_FLOAT = array(64, 100, dtype="float64")


@pytest.mark.parametrize(
    ("kind", "reads", "writes", "way"),
    [
        ("elementwise", [BATCH, BATCH], [BATCH], "elementwise"),
        ("elementwise", [BATCH, ROW], [BATCH], "strided"),  # broadcast
        ("elementwise", [BATCH, array(1)], [BATCH], "elementwise"),  # one value
        ("elementwise", [PLANES, CHANNELS_LAST], [PLANES], "strided"),
        ("elementwise", [CHANNELS_LAST], [CHANNELS_LAST], "elementwise"),
        ("elementwise", [Array((64, 50), "float32", (100, 2))], [array(64, 50)], "strided"),
        ("copy", [BATCH], [BATCH], "memcpy"),
        ("copy", [BATCH], [AS_FLOAT], "elementwise"),
        ("copy", [PLANES], [CHANNELS_LAST], "strided"),
        ("softmax", [array(9, 5000)], [array(9, 5000)], "softmax"),
        ("softmax", [array(9, 5001)], [array(9, 5001)], "softmax_unaligned"),
        ("softmax", [array(9, 101)], [array(9, 101)], "softmax"),  # a block holds the row
        ("reduction", [BATCH], [ROW], "reduction_columns"),
        ("reduction", [BATCH], [array(64)], "reduction"),
        ("batch_norm", [PLANES], [PLANES, array(3), array(3)], "batch_norm"),
        ("batch_norm", [PLANES], [PLANES, array(0), array(0)], "elementwise"),  # in eval mode
    ],
)
def test_the_way_of_access(kind, reads, writes, way):
    assert access(kind, Call(kind, reads, writes)) == way


@pytest.mark.parametrize(
    ("m", "n", "at_once", "tiles"),  # tiles of 128 x 128 for which a multiprocessor of 100 takes as long
    [
        (1280, 1280, 1, 1),
        (1280, 2560, 1, 2),
        (1280, 640, 1, 0.5 / 0.85),  # 100 tiles of 128 x 64, at 85 % of the rate
        (640, 640, 1, 0.25 / 0.7),  # 100 of 64 x 64
        (1280, 1280, 2, 2 * 0.5 / 0.85),  # 200 of 128 x 64, each at half of the rate
        (1280, 2560, 2, 2),  # 200 of 128 x 128, or 100 of 256 x 128
        (1280, 640, 2, 2 * 0.25 / 0.7),  # 200 of 64 x 64
    ],
)
@pytest.mark.parametrize(("precision", "edge"), [("fp32", 8), ("tf32", 64)])
def test_a_product_is_waves_of_tiles(m, n, at_once, tiles, precision, edge):
    k = 200
    operands, result = (array(m, k), array(k, n)), array(m, n)
    (time,) = kernel_times(replace(ROUND, tiles=at_once), call("mm", *operands, writes=[result], precision=precision))
    math = tiles * 2 * 128 * 128 * (k + edge) * 100 / 1000  # ns at 1 TFLOP/s
    memory = 4 * (m * k + k * n + m * n) / 10**6
    assert time == pytest.approx(FLOOR + math + memory / 5, rel=1e-3)


def test_a_small_product_is_split_along_k():
    k = 128_000  # one tile of 64 x 64 becomes 100 parts of it, added by a kernel of its own
    times = kernel_times(replace(ROUND, tiles=1), call("mm", array(64, k), array(k, 64), writes=[array(64, 64)]))
    math, memory = 2 * 64 * 64 * (k // 100 + 8) * 100 / 700, 4 * 2 * 64 * k / 10**6
    assert times == (pytest.approx(FLOOR + math + memory / 5, rel=1e-3), FLOOR + 4 * 64 * 64 * 201 // 10**6 + 1)


def test_rows_that_are_not_16_byte_aligned_are_read_word_by_word():
    gpu, m, n, k = replace(ROUND, word_rate=10**8, tf32=10**15), 2048, 4096, 20  # 100 multiprocessors: 10 GB/s
    wide, odd = array(m, k), Array((m, k), "float32", (k + 1, 1))
    nbytes = 4 * (m * k + k * n + m * n)

    def time(first):
        operation = call("mm", first, array(k, n), writes=[array(m, n)], precision="tf32")
        return kernel_times(gpu, operation)[0]

    assert FLOOR + nbytes // 10 <= time(odd) < 1.01 * (FLOOR + nbytes // 10)
    assert time(wide) < time(odd) / 100


@pytest.mark.parametrize("transposed", [False, True])
def test_alignment_is_that_of_the_rows_that_lie_in_memory(transposed):
    # The gradient of a weight: (columns x batch) times (batch x rows), where the first operand lies transposed.
    first = array(33, 64, order=(1, 0) if transposed else (0, 1))
    kind = row_of(call("mm", first, array(64, 128), writes=[array(33, 128)], precision="tf32"))
    assert kind == ("gemm_tf32_align1" if transposed else "gemm_tf32")


@settings(deadline=None)
@given(m=sizes, n=sizes, k=sizes, precision=st.sampled_from(["fp32", "tf32", "fp16"]))
def test_a_product_is_never_faster_than_its_arithmetic_or_its_bytes(m, n, k, precision):
    left, right, result = array(m, k), array(k, n), array(m, n)
    times = kernel_times(ROUND, call("mm", left, right, writes=[result], precision=precision))
    assert times[0] >= FLOOR + 4 * (m * k + k * n + m * n) // 10**6
    if min(m, n) > 1:
        assert times[0] >= FLOOR + 2 * m * n * k // 1000
    assert len(times) == 1 or k >= 256  # split along k: a second kernel adds the parts


def test_rows_that_tensor_cores_cannot_be_fed_with_are_slower():
    gpu = Gpu.preset("h100-sxm")

    def time(n, precision):
        operands = array(4096, 1024, dtype="float16"), array(1024, n, dtype="float16")
        return sum(kernel_times(gpu, call("mm", *operands, writes=[array(4096, n)], precision=precision)))

    assert time(4096, "fp16") < time(4094, "fp16") < time(4093, "fp16")
    assert time(4096, "tf32") < time(4094, "tf32")
    assert time(4095, "fp32") <= time(4096, "fp32")


@pytest.mark.parametrize("length", [128, 129, 1000])
def test_attention_computes_whole_tiles_of_queries_and_keys(length):
    query = array(5, 20, length, 64, dtype="float16")  # 100 heads: one tile each fills the GPU
    (time,) = kernel_times(
        ROUND, call("_scaled_dot_product_flash_attention", query, query, query, writes=[query], precision="fp16")
    )
    work = 4 * 128 * 128 * 64 * (-(-length // 128)) ** 2 * 100  # FLOPs: two products of each tile with each
    assert time == FLOOR - (-work // 1000)
    reads = [query] * 6
    for op in ("_scaled_dot_product_flash_attention_backward", "_flash_attention_backward"):
        asked = call(op, *reads, writes=[query] * 3, precision="fp16")
        if op.startswith("_flash"):  # batch, sequence, heads, depth
            asked = asked._replace(reads=[array(5, length, 20, 64, dtype="float16")] * 6)
        assert kernel_times(ROUND, asked)[0] == FLOOR - (-work * 5 // 2 // 1000)  # five products for two


def test_small_attention_takes_the_time_of_its_bytes():
    gpu, query = replace(ROUND, memory_bandwidth=10**9, l2=0, fp16=10**15), array(1, 1, 128, 64, dtype="float16")
    asked = call("_scaled_dot_product_flash_attention", query, query, query, writes=[query], precision="fp16")
    assert kernel_times(gpu, asked) == (FLOOR + 4 * query.nbytes,)  # a byte a ns


@pytest.mark.parametrize("groups", [1, 2, 8])
@pytest.mark.parametrize("backward", [False, True])
def test_a_convolution_costs_its_multiply_adds_once_for_each_pass(groups, backward):
    source, weight, result = array(4, 16, 10, 10), array(32, 16 // groups, 5, 5), array(4, 32, 6, 6)
    if backward:
        asked = call("convolution_backward", result, source, weight, writes=[source, weight])
    else:
        asked = call("convolution", source, weight, writes=[result])
    work = 2 * prod(result.shape) * 16 // groups * 25 // 1000
    times = kernel_times(ROUND, asked)
    assert sum(times) == pytest.approx((FLOOR + work) * (2 if backward else 1), abs=2)
    assert len(times) == (4 if backward else 2)  # each pass and its change of layout


@pytest.mark.parametrize(("window", "beside"), [(1, 1), (3, 2)])
@pytest.mark.parametrize("channels", [1, 500, 15_000, 45_000, 60_000, 500_000])
def test_transforms_take_at_most_half_of_the_time_of_a_convolution(window, beside, channels):
    """The operator was measured as a whole: its kernels sum to its time, as far as it is long enough for them."""
    asked = call(
        "convolution", array(1, 1, 1, 1), array(channels, 1, window, window), writes=[array(1, channels, 1, 1)]
    )
    whole = FLOOR - (-2 * channels * window**2 // 1000)
    main, *transforms = kernel_times(replace(ROUND, l2=0, memory_bandwidth=10**18), asked)
    assert transforms == [FLOOR] * beside
    assert main == whole - min(beside * FLOOR, whole // 2)


def images(*shape, dtype="float16", last=True):
    return array(*shape, dtype=dtype, order=(0, 2, 3, 1) if last else None)


def convolved(backward=False, last=True, size=9, groups=1, window=3, precision="fp16"):
    """A convolution of 64 channels into 128, with as many places after it as before."""
    dtype = "float16" if precision == "fp16" else "float32"
    source, result = (images(50, channels, size, size, dtype=dtype, last=last) for channels in (64, 128))
    weight = images(128, 64 // groups, window, window, dtype=dtype, last=last)
    if backward:
        return call(
            "convolution_backward", result, source, weight, writes=[source, weight, array(128)], precision=precision
        )
    return call("convolution", source, weight, writes=[result], precision=precision)


@pytest.mark.parametrize("groups", [1, 32])
@pytest.mark.parametrize("precision", ["fp16", "tf32"])
def test_a_convolution_on_tensor_cores_is_a_product_for_each_pass(groups, precision):
    def product(rows, columns, length):
        sides = array(rows, length, dtype="float16"), array(length, columns, dtype="float16")
        return sum(kernel_times(ROUND, call("mm", *sides, writes=[array(rows, columns)], precision=precision)))

    places, window = 50 * 9 * 9, 9 // groups if groups == 1 else 9
    forward, backward = (
        sum(kernel_times(ROUND, convolved(way, groups=groups, precision=precision))) for way in (False, True)
    )
    length = 64 // groups * window
    assert forward == pytest.approx(product(places, 128, length), rel=0.01)
    of_images, of_weight = product(places, 64, 128 // groups * window), product(128, length, places)
    assert backward == pytest.approx(of_images + of_weight, rel=0.01)


@pytest.mark.parametrize("size", [1, 9])
@pytest.mark.parametrize(("precision", "window", "changes"), [("fp16", 1, 1), ("fp16", 3, 1), ("tf32", 3, 1),
                                                              ("tf32", 1, 0), ("fp32", 3, 0)])  # fmt: skip
def test_tensor_cores_take_images_in_another_order_only_after_a_change_of_layout(precision, window, changes, size):
    gpu = replace(ROUND, memory_bandwidth=10**12)
    for backward, passes in ((False, 1), (True, 2)):
        apart, side = (convolved(backward, last, size, window=window, precision=precision) for last in (False, True))
        source, result = (apart.reads[1], apart.reads[0]) if backward else (apart.reads[0], apart.writes[0])
        expected = passes * changes * sum(memory_time(gpu, "layout", 2 * each.nbytes) for each in (source, result))
        assert sum(kernel_times(gpu, apart)) - sum(kernel_times(gpu, side)) == expected


def test_a_weight_alone_tells_the_layout_as_in_torch():
    side = convolved()
    loose = side._replace(reads=[images(50, 64, 9, 9, last=False), side.reads[1]])
    assert kernel_times(ROUND, loose) == kernel_times(ROUND, side)
    single = array(128, 64, 1, 1, order=(0, 2, 3, 1)), array(128, 64, 1, 1)
    assert [channels_last(weight) for weight in single] == [True, False]


@pytest.mark.parametrize(("groups", "width", "rate"), [(10, 16, 4), (31, 9, 3)])
def test_other_groups_of_channels_reach_a_rate_of_their_own(groups, width, rate):
    source, weight = images(2, groups * width, 9, 9), images(groups * width, width, 3, 3)
    times = kernel_times(ROUND, call("convolution", source, weight, writes=[source], precision="fp16"))
    work = 2 * prod(source.shape) * width * 9 // 1000  # ns at 1 TFLOP/s
    assert sum(times) == pytest.approx(FLOOR + work / rate, abs=2)  # the rate of the table, times the root of the width


@pytest.mark.parametrize("asked", [1, 2])
def test_of_channels_in_such_groups_the_gradient_of_the_weight_takes_twice_as_long(asked):
    source, weight = images(2, 160, 9, 9), images(160, 16, 3, 3)
    (forward,) = kernel_times(ROUND, call("convolution", source, weight, writes=[source], precision="fp16"))
    writes = [source, weight][-asked:]
    times = kernel_times(ROUND, call("convolution_backward", source, source, weight, writes=writes, precision="fp16"))
    assert times == (*[forward] * (asked - 1), pytest.approx(2 * forward - FLOOR, abs=1))


@pytest.mark.parametrize(
    ("precision", "channels", "groups", "window", "stride", "row"),
    [
        ("fp32", 64, 1, 1, 1, "conv_1x1_fp32"),
        ("fp32", 64, 1, 1, 2, "conv_1x1_fp32"),
        ("fp32", 64, 1, 3, 1, "conv_3x3_fp32"),
        ("fp32", 64, 1, 3, 2, "conv_fp32"),  # Winograd takes steps of one
        ("fp32", 64, 1, 5, 1, "conv_fp32"),
        ("fp32", 64, 2, 3, 1, "conv_3x3_fp32"),
        ("fp16", 7, 1, 3, 1, "conv_few_channels"),
        ("fp16", 8, 1, 3, 1, "conv_fp16"),
        ("tf32", 3, 1, 3, 1, "conv_tf32"),
        ("fp16", 64, 2, 3, 1, "conv_groups"),
        ("fp16", 62, 31, 3, 1, "conv_groups"),
        ("fp16", 64, 32, 3, 1, "conv_fp16"),
        ("fp16", 66, 33, 3, 1, "conv_groups"),
        ("fp16", 128, 64, 3, 1, "conv_fp16"),
        ("tf32", 66, 33, 3, 1, "conv_tf32"),
        ("fp64", 64, 1, 3, 1, "conv_fp64"),
        ("fp16", 64, 64, 3, 1, "conv_depthwise"),
        ("fp32", 64, 64, 3, 1, "conv_depthwise"),
    ],
)
def test_the_row_of_a_convolution(precision, channels, groups, window, stride, row):
    source, weight = array(2, channels, 12, 12), array(2 * channels, channels // groups, window, window)
    result = array(2, 2 * channels, 12 // stride, 12 // stride)
    assert row_of(call("convolution", source, weight, writes=[result], precision=precision)) == row
    gradient = call("convolution_backward", result, source, weight, writes=[source, weight], precision=precision)
    assert row_of(gradient) == (row + "_grad" if groups == channels else row)
    single = call("convolution", array(2, 1, 12, 12), array(8, 1, 3, 3), writes=[array(2, 8, 12, 12)])
    assert row_of(single) == "conv_3x3_fp32"  # one channel is no group of its own


@pytest.mark.parametrize(
    ("rows", "row"),  # elements from one row to the next, of the first and of the second operand
    [
        ((64, 64), ""), ((8, 8), ""), ((66, 64), "_align2"), ((64, 66), "_align2"), ((66, 65), "_align1"),
        ((65, 64), "_align1"), ((4, 64), "_align2"),
    ],
)  # fmt: skip
def test_tensor_cores_are_fed_with_whole_rows_of_16_bytes(rows, row):
    first, second = Array((16, 4), "float16", (rows[0], 1)), Array((4, 64), "float16", (rows[1], 1))
    half = call("mm", first, second, writes=[array(16, 64)], precision="fp16")
    assert row_of(half) == f"gemm_fp16{row}"
    whole = "_align1" if any(each % 4 for each in rows) else ""
    assert row_of(half._replace(precision="tf32")) == f"gemm_tf32{whole}"
    assert row_of(half._replace(precision="fp32")) == "gemm_fp32"


def test_a_bias_comes_first_and_products_side_by_side_are_rows_of_one():
    gpu, k = replace(ROUND, memory_bandwidth=10**18), 200  # too short to be split
    left, right, result = array(2048, k), array(k, 512), array(2048, 512)
    alone = kernel_times(gpu, call("mm", left, right, writes=[result]))
    assert kernel_times(gpu, call("addmm", array(512), left, right, writes=[result])) == alone
    batches = array(4, 512, k), array(4, k, 512)
    assert kernel_times(gpu, call("bmm", *batches, writes=[array(4, 512, 512)])) == alone


@pytest.mark.parametrize(
    "reads", [[array(300, 200), array(200)], [array(200), array(200, 100)], [array(1, 200), array(200, 100)]]
)
def test_a_product_with_a_vector_takes_the_time_of_its_bytes(reads):
    asked = call("mm", *reads, writes=[array(300)])
    assert row_of(asked) == "gemv"
    assert kernel_times(ROUND, asked) == (memory_time(ROUND, "gemv", moved(asked)),)


@pytest.mark.parametrize("backward", [False, True])
def test_a_depthwise_convolution_has_no_tensor_cores(backward):
    gpu, source, weight = replace(ROUND, fp16=10**15), images(50, 64, 9, 9), images(64, 1, 3, 3)
    op, reads, writes = (
        ("convolution_backward", [source] * 2, [source, weight]) if backward else ("convolution", [source], [source])
    )
    asked = call(op, *reads, weight, writes=writes, precision="fp16")
    assert row_of(asked) == ("conv_depthwise_grad" if backward else "conv_depthwise")
    work = 2 * prod(source.shape) * 9 // 1000  # ns at the 1 TFLOP/s of fp32
    assert kernel_times(gpu, asked) == (pytest.approx(FLOOR + work, abs=2),) * (2 if backward else 1)


def test_a_transposed_convolution_meets_the_kernel_at_each_element_of_its_input():
    source, weight, result = array(4, 16, 6, 6), array(16, 32, 5, 5), array(4, 32, 10, 10)
    times = kernel_times(ROUND, call("convolution", source, weight, writes=[result], transposed=True))
    assert sum(times) == pytest.approx(FLOOR + 2 * prod(source.shape) * 32 * 25 // 1000, abs=2)


@pytest.mark.parametrize(
    ("op", "lists", "tensors", "launches"),
    [
        ("_foreach_zero_", 1, 110, 1),
        ("_foreach_zero_", 1, 111, 2),
        ("_foreach_add_", 2, 161, 3),
        ("_fused_adam_", 5, 161, 5),  # with a counter of steps for each parameter
    ],
)
def test_a_foreach_operator_has_the_launches_of_multi_tensor_apply(op, lists, tensors, launches):
    """At most 110, 64, 48, 36 tensors a launch for 1 to 4 lists; 3 launches for 161 tensors were seen in a trace."""
    row = array(1000)
    reads = [] if op == "_foreach_zero_" else [row] * lists * tensors
    times = kernel_times(ROUND, call(op, *reads, writes=[row] * tensors))
    assert len(times) == launches


def test_blocks_bound_a_launch_too():
    """320 blocks of 65536 elements are one launch."""
    one, two = (kernel_times(ROUND, call("_foreach_zero_", writes=[array(blocks * 65536)])) for blocks in (320, 321))
    assert (len(one), len(two)) == (1, 2)
    norms = [call("_foreach_norm", array(size), writes=[array(1)]) for size in (320 * 65536, 320 * 65536 + 1)]
    assert [len(kernel_times(ROUND, norm)) for norm in norms] == [1, 2]  # what they read counts
    for blocks, launches in ((160, 1), (161, 2)):  # of one list of two tensors, not of both
        rows = [array(blocks * 65536)] * 2
        assert len(kernel_times(ROUND, call("_foreach_add_", *rows, *rows, writes=rows))) == launches


def test_a_foreach_operator_moves_all_its_bytes_in_equal_launches():
    gpu, rows = replace(ROUND, memory_bandwidth=10**9, l2=0), [array(1000)] * 130
    times = kernel_times(gpu, call("_foreach_add_", *rows, *rows, writes=rows))  # 64 of two lists a launch
    assert times == (FLOOR + 4 * 1000 * 130 * 3 // 3,) * 3


@pytest.mark.parametrize(
    ("op", "kernels"),
    [
        ("native_layer_norm", 1),
        ("native_layer_norm_backward", 2),
        ("max_pool2d_with_indices_backward", 2),
        ("index_put_", 6),
        ("relu", 1),
    ],
)
def test_operators_of_several_kernels(op, kernels):
    assert len(kernel_times(ROUND, call(op, BATCH, BATCH, writes=[BATCH]))) == kernels


# What a Hopper takes for images whose channels do not lie side by side: one block a channel, and PyTorch's own kernels

H200 = Gpu.preset("h200")
MEASURED = Path(__file__).parents[2] / "benchmarks" / "h200.csv"


def planes(op, channels, size, window, layout=None):
    """A pass over images of a batch of 128, as the table of benchmarks/h200.csv has it."""
    order = (0, 2, 3, 1) if layout == "nhwc" else None
    images, of_each = array(128, channels, size, size, order=order), array(channels)
    weight = array(channels, 1, window, window, order=order)
    return {
        "batch_norm": call("cudnn_batch_norm", images, *[of_each] * 4, writes=[images, of_each, of_each]),
        "batch_norm_grad": call("cudnn_batch_norm_backward", images, images, of_each, writes=[images, of_each]),
        "depthwise": call("_conv_depthwise2d", images, weight, writes=[images]),
        "depthwise_images": call("convolution_backward", images, images, weight, writes=[images]),
        "depthwise_weight": call("convolution_backward", images, images, weight, writes=[weight]),
    }[op]


def test_batch_norm_and_depthwise_convolutions_of_planes_take_what_was_measured():
    with MEASURED.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    factors = defaultdict(list)
    for row in rows:
        channels, size, window = int(row["channels"]), int(row["size"]), isqrt(int(row["window"] or 1))
        ns = sum(kernel_times(H200, planes(row["pass"], channels, size, window)))
        if float(row["us"]) > 50:
            factors[row["pass"]].append(ns / 1000 / float(row["us"]))
    assert {name: len(each) for name, each in factors.items()}.keys() == {
        "batch_norm", "batch_norm_grad", "depthwise", "depthwise_images", "depthwise_weight",
    }  # fmt: skip
    for name, each in factors.items():
        assert 0.75 < statistics.median(each) < 1.1, name
        assert min(each) > 0.25 and max(each) < 2.2, name


@pytest.mark.parametrize("op", ["batch_norm", "batch_norm_grad", "depthwise", "depthwise_images", "depthwise_weight"])
def test_a_plane_costs_as_often_as_it_has_elements_and_channels_side_by_side_cost_none_of_it(op):
    few, more = (sum(kernel_times(H200, planes(op, 32, size, 3))) for size in (56, 112))
    assert 3.5 < more / few < 4.1
    beside = sum(kernel_times(H200, planes(op, 32, 112, 3, "nhwc")))
    assert beside < more / 2 or op == "depthwise_images"
    if op.startswith("batch_norm"):  # one block a channel: few channels take as long as many
        assert sum(kernel_times(H200, planes(op, 8, 112, 3))) == more


def test_of_other_architectures_no_plane_is_known():
    for gpu in (Gpu.preset("a100"), Gpu.preset("b200")):
        took = [sum(kernel_times(gpu, planes("batch_norm", channels, 112, 1))) for channels in (16, 64)]
        assert 3.5 < took[1] / took[0] < 4.1


def test_batch_norm_in_eval_mode_gathers_nothing_of_a_channel():
    images, each = array(128, 16, 112, 112), array(16)
    evaluated = call("native_batch_norm", images, *[each] * 4, writes=[images, array(0), array(0)])
    assert sum(kernel_times(H200, evaluated)) < sum(kernel_times(H200, planes("batch_norm", 16, 112, 1))) / 4


def test_what_is_no_depthwise_convolution_of_planes_is_not_priced_as_one():
    images, few = array(8, 512, 28, 28), array(8, 1, 56, 56)
    to_one = call("convolution", images, array(512, 1, 4, 4), writes=[few], transposed=True)
    assert sum(kernel_times(H200, to_one)) > memory_time(H200, "elementwise", images.nbytes) / 2
    own = call("convolution", images, array(512, 1, 4, 4), writes=[array(8, 512, 56, 56)], transposed=True)
    assert kernel_times(H200, own)[0] > H200.kernels["conv_depthwise"].floor  # of transposed ones nothing was measured


def test_a_gradient_in_another_layout_than_its_images_is_no_plane():
    """`.mean((2, 3))` gives a gradient whose channels do not lie side by side."""
    images, gradient, each = array(128, 32, 56, 56, order=(0, 2, 3, 1)), array(128, 32, 56, 56), array(32)
    mixed = call("native_batch_norm_backward", gradient, images, each, writes=[images, each, each])
    side_by_side = call("native_batch_norm_backward", images, images, each, writes=[images, each, each])
    assert kernel_times(H200, mixed) == kernel_times(H200, side_by_side)


def test_a_gradient_of_the_bias_alone_is_one_kernel():
    images = array(8, 32, 28, 28)
    assert (
        len(kernel_times(H200, call("convolution_backward", images, images, array(32, 1, 3, 3), writes=[array(32)])))
        == 1
    )
