"""What the host's part of torch costs: closed forms in the fields of a `Host`, each a power of ten of its own."""

import io
import tarfile
import time
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from factory import Samples
from torch.utils.data import DataLoader

import loaderviz as lv
from loaderviz.emulator import Host
from loaderviz.emulator.torch.session import Session
from loaderviz.imports import import_torchvision
from loaderviz.timeline import Kind
from loaderviz.workshop import articles

FREE = Host(
    "free",
    **dict.fromkeys({entry.name for entry in fields(Host)} - {"name", "sources"}, 0)
    | {"memory_bandwidth": 10**15, "siblings": 1, "ranks_on_host": 1},
)
PRICES = {
    "dispatch": 10**3, "python": 10**5, "module": 10**7, "composite": 10**9, "node": 10**11, "convolution": 10**13,
}  # fmt: skip
PRICED = replace(FREE, **PRICES)
LAPTOP, FAST = Host.preset("laptop"), {"memory_bandwidth": 10**15}
ROUNDED = 4  # ns: what bytes take is rounded up, for each operator of two samples


def host_time(program, host=PRICED):
    """Return what the host pays for `program(x)`, with a tensor on the device, after a first time that warms up."""
    times = []
    with lv.record(on="a100", host=host):
        x = torch.ones(4, 4, device="cuda", requires_grad=True)
        for _ in range(2):
            torch.cuda.synchronize()
            start = Session.active.runtime.now
            program(x)
            times.append(Session.active.runtime.now - start)
    return times[1]


def cost(**counts):
    return sum(PRICES[name] * count for name, count in counts.items())


PROGRAMS = {
    "an operator": (lambda x: x + x, cost(dispatch=1, python=1)),
    "a view": (lambda x: x.view(16), cost(python=1)),
    "a product by name": (lambda x: x @ x, cost(dispatch=1, python=1, composite=1)),
    "a composite call": (lambda x: torch.nn.functional.linear(x, x), cost(dispatch=1, python=1, composite=1)),
    "a norm": (
        lambda x: torch.nn.functional.batch_norm(x, None, None, training=True),
        cost(dispatch=1, python=1, composite=1),
    ),
    "a convolution": (
        lambda x: torch.conv2d(x.view(1, 1, 4, 4), x.view(4, 1, 2, 2)),
        cost(dispatch=1, python=3, composite=1, convolution=1),  # views are calls of torch, too
    ),
    "a depthwise one, which cuDNN does not see": (
        lambda x: torch.conv2d(x.view(1, 4, 2, 2), x.view(4, 1, 2, 2), groups=4),
        cost(dispatch=1, python=3, composite=1),
    ),
    "a module": (torch.nn.ReLU(), cost(dispatch=1, python=1, module=1)),
    "modules in a module": (
        torch.nn.Sequential(torch.nn.ReLU(), torch.nn.ReLU()), cost(dispatch=2, python=2, module=3),
    ),
    "no call of torch": (lambda x: sum(range(1000)), 0),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_forward_pass_costs_its_calls_modules_and_operators(name):
    program, expected = PROGRAMS[name]
    assert host_time(program) == expected


def test_the_backward_pass_costs_its_nodes_and_their_kernels():
    """Of (x @ x).relu(): the node of relu with one kernel, that of the product with two, and their sum."""

    def program(x):
        x.grad = None
        (x @ x).relu().backward(torch.ones_like(x))

    forward = cost(python=3, dispatch=3, composite=1)  # ones_like is an operator, too
    backward = cost(python=1, node=2, dispatch=4, composite=2)
    assert host_time(program) == forward + backward


@pytest.mark.parametrize(
    ("groups", "of_images", "convolution", "calls"),
    [(1, True, torch.conv2d, 2), (1, False, torch.conv2d, 1), (2, True, torch.conv2d, 2), (4, True, torch.conv2d, 0),
     (1, True, torch.conv_transpose2d, 2)],
)  # fmt: skip
def test_the_backward_of_a_convolution_calls_cudnn_once_for_each_gradient(groups, of_images, convolution, calls):
    """That of the bias is none of them; depthwise, torch computes both by itself."""
    with lv.record(on="a100", host=PRICED):
        images = torch.ones(1, 4, 3, 3, device="cuda", requires_grad=of_images)
        weight = torch.ones(4, 4 // groups, 3, 3, device="cuda", requires_grad=True)
        bias = torch.ones(4, device="cuda", requires_grad=True)
        result = convolution(images, weight, bias, padding=1, groups=groups)
        start, ones = Session.active.runtime.now, torch.ones_like(result)
        torch.autograd.backward(result, ones)
        took = Session.active.runtime.now - start
    # ones_like is an operator; leaves take their gradients as they are, and cost nothing
    assert took == cost(python=2, dispatch=2, node=1, composite=1, convolution=calls)


@pytest.mark.parametrize(("foreach", "operators"), [(True, 1), (False, 3)])
def test_an_optimizer_costs_its_step_its_parameters_and_its_operators(foreach, operators):
    parameters = [torch.nn.Parameter(torch.ones(2)) for _ in range(3)]
    host = replace(FREE, optimizer=10**9, parameter=10**6, dispatch=1)
    with lv.record(on="a100", host=host) as recording:
        with torch.no_grad():
            parameters = [torch.nn.Parameter(parameter.to("cuda")) for parameter in parameters]
        for parameter in parameters:
            parameter.grad = torch.zeros(2, device="cuda")
        optimizer = torch.optim.SGD(parameters, lr=1.0, foreach=foreach)
        start = Session.active.runtime.now
        optimizer.step()
        took = Session.active.runtime.now - start
    assert took == 10**9 + 3 * 10**6 + operators
    assert recording.timeline.where(Kind.COMPUTE).sum() >= operators


# Data sets


ONE = torch.zeros(1)


def burnt(seconds):
    """Keep the processor busy."""
    end = time.thread_time_ns() + seconds * 10**9
    while time.thread_time_ns() < end:
        pass
    return ONE


def declared(sample):
    with lv.costs(3e-3):
        burnt(1e-3)
    return sample


def fetches(work, sample, workers=0, **fields):
    """Return what the fetches of two batches of two samples cost, beyond what they cost without the work."""
    host = replace(FREE, fetch_base=7, **fields)
    with lv.record(on="a100", host=host) as recording:
        list(DataLoader(Samples(lambda index: work(sample)), 2, num_workers=workers))
    return [span.duration - 7 for span in recording.timeline.rows(Kind.FETCH)], recording


each_number = pytest.mark.parametrize("workers", [0, 1])


@each_number
def test_the_operators_of_a_data_set_cost_dispatch_bytes_and_flops(workers):
    """roll and mul read and write 400 bytes each; taking the sample and stacking it is in the `fetch_` numbers."""
    rolled, _ = fetches(lambda x: x.roll(1) * 2, torch.zeros(100), workers, dispatch=1000, memory_bandwidth=10**9)
    assert rolled == [2 * 2 * (1000 + 800)] * 2
    product, _ = fetches(lambda x: x @ x, torch.zeros(10, 10), workers, flops=10**9)
    assert product == [2 * 2 * 10**3] * 2
    taken, _ = fetches(lambda x: x[3], torch.zeros(10, 10), workers, dispatch=1000)
    assert taken == [0, 0]


@each_number
def test_time_that_nothing_prices_is_left_out_and_said(workers):
    took, recording = fetches(lambda _: burnt(4e-3), None, workers)
    assert took == [0, 0]
    assert recording.unpriced["data set"] >= 16e-3
    assert ["loaderviz.costs" in note for note in recording.timeline.context.notes] == [True]


@pytest.mark.parametrize(("seconds", "declared", "said"), [(2e-4, 0, True), (1e-5, 0, False), (2e-4, 1e-4, False)])
def test_a_small_batch_that_is_nearly_all_without_a_price_is_said(seconds, declared, said):
    """Eight samples of 0.2 ms, of which nothing is charged, or 0.1 ms each; and 0.3 ms in all."""

    def sample(_):
        with lv.costs(declared):
            pass
        return burnt(seconds)

    host = replace(FREE, fetch_base=7)
    with lv.record(on="a100", host=host) as recording:
        list(DataLoader(Samples(sample, 80), 8))
    assert recording.timeline.context.unpriced == ("data set",) * said


@each_number
def test_a_file_costs_the_disk_in_the_first_epoch_and_the_page_cache_in_the_second(tmp_path, workers):
    """Four files of 1 kB at 1 MB/s, and their bytes read and written by the processor each time."""
    paths = [tmp_path / str(number) for number in range(4)]
    for path in paths:
        path.write_bytes(bytes(1000))

    def read(number):
        if number % 2:
            return len(paths[number].read_bytes())
        with open(paths[number], "rb") as file:
            return len(file.read())

    host = replace(FREE, disk=10**6, disk_latency=10, memory_bandwidth=10**9)
    with lv.record(on="a100", host=host) as recording:
        loader = DataLoader(Samples(read), 2, num_workers=workers, persistent_workers=bool(workers))
        for _ in range(2):
            list(loader)
    took = [span.duration for span in recording.timeline.rows(Kind.FETCH)]
    cached = 2 * 2 * 1000
    assert took == [cached + 2 * (10**6 + 10)] * 2 + [cached] * 2
    assert (recording.timeline.context.measured, recording.timeline.context.unpriced) == ((), ())


def test_declared_time_on_the_main_thread_is_a_span():
    assert host_time(declared) == 3_000_000
    with pytest.raises(lv.LoadervizError, match="seconds"):
        lv.costs(-1)
    with lv.costs(1e5):  # outside a recording nothing happens
        pass


def test_a_named_host_prices_pictures_by_the_table():
    """Making pictures of 100 bytes in two ways, to_tensor, and nothing of what they call."""
    functional = import_torchvision().transforms.functional
    from PIL import Image

    def fetch(picture):
        Image.frombuffer("L", picture.shape, picture, "raw", "L", 0, 1)
        return functional.to_tensor(Image.fromarray(picture))

    took, _ = fetches(fetch, np.zeros((10, 10), np.uint8), dispatch=10**6, transforms=2000)
    assert took == [2 * 2 * (4_000 + 2_600 + 2 * (150 * 100 // 1000) + 14_000 + 200 * 400 // 1000)] * 2


def test_a_named_host_prices_torchvisions_own_mnist():
    """A picture of 784 bytes and a tensor of four times as many; Pillow's buffer is what torchvision 0.28 takes."""
    digits = articles.digits(1, 4)
    took, _ = fetches(lambda number: digits[number], 3, transforms=1000)
    label = 1  # reading its 8 bytes
    assert took == [2 * (2_600 + 150 * 784 // 1000 + 14_000 + 200 * 4 * 784 // 1000 + label)] * 2


def test_arithmetic_of_the_processor_takes_time():
    """A product of 1024 x 1024 is slower on the processor than on the GPU, with both copies."""

    def here(x):
        return x @ x

    def there(x):
        return (x.cuda() @ x.cuda()).cpu()

    x, host = torch.ones(1024, 1024), Host.preset("laptop")
    assert host_time(lambda _: here(x), host) >= 2 * 1024**3 * 10**9 // (host.flops * host.cores)
    assert host_time(lambda _: here(x), host) > host_time(lambda _: there(x), host)


PART = 100_000  # bytes in the middle of a file of a hundred times as many


def seeks(path):
    with open(path, "rb") as file:
        file.seek(10 * PART)
        return len(file.read(PART))


def seeks_without_a_buffer(path):
    with path.open("rb", buffering=0) as file:
        file.seek(10 * PART)
        return file.readinto(bytearray(PART))


def reads_lines(path):
    with open(path, encoding="ascii") as file:
        return sum(len(line) for line, _ in zip(file, range(PART // 100), strict=False))


def takes_a_member(path):
    with tarfile.open(path) as archive:
        return len(archive.extractfile("middle").read())


def maps(path):
    return np.memmap(path, np.uint8, "r")[10 * PART : 11 * PART].copy().nbytes


def reads_by_number(path):
    return np.fromfile(path, np.uint8).nbytes


@each_number
def test_a_file_whose_number_is_taken_is_read_as_often_as_it_is_opened(tmp_path, workers):
    path, host = tmp_path / "one", replace(FREE, disk=10**9, memory_bandwidth=2 * 10**9)
    path.write_bytes(bytes(PART))
    with lv.record(on="a100", host=host, hazards="off") as recording:
        list(DataLoader(Samples(lambda index: reads_by_number(path)), 2, num_workers=workers))
    first, second = [span.duration for span in recording.timeline.rows(Kind.FETCH)]
    assert (first, second) == (3 * PART, 2 * PART)  # the disk reads it once
    assert recording.timeline.context.usage["read"] == 2 * PART


@each_number
@pytest.mark.parametrize(
    ("read", "least", "most"),
    [
        (seeks, PART, PART + 2**18),  # buffers are read whole
        (seeks_without_a_buffer, PART, PART),
        (reads_lines, PART, PART + 2**18),
        (takes_a_member, PART, PART + 2**18),
        (maps, 0, 0),  # which pages come, nobody is told
        (reads_by_number, 100 * PART, 100 * PART + 10_240),
    ],
)
def test_of_a_large_file_only_what_is_read_costs(tmp_path, read, least, most, workers):
    path = tmp_path / "large"
    with tarfile.open(path, "w") as archive:
        for name, size in ("before", 10 * PART), ("middle", PART), ("after", 89 * PART):
            info = tarfile.TarInfo(name)
            info.size = size
            archive.addfile(info, io.BytesIO((b"a" * 99 + b"\n") * (size // 100)))
    expected, size = read(path), path.stat().st_size
    host = replace(FREE, disk=10**9, memory_bandwidth=2 * 10**9)  # disk and page cache: a ns a byte each
    with lv.record(on="a100", host=host, hazards="off") as recording:
        found = [int(each) for each in DataLoader(Samples(lambda index: read(path)), None, num_workers=workers)]
    assert found == [expected] * 4
    first, second, *_ = [span.duration for span in recording.timeline.rows(Kind.FETCH)] or [0, 0]
    count = first // 2
    assert first == 2 * count and least <= count <= most
    assert second == count + min(count, size - count)  # the disk, until as much as the file has is in the cache


@pytest.mark.parametrize(
    ("mode", "options"),
    [
        ("r", {"encoding": "utf-8"}),
        ("rt", {"encoding": "utf-8", "newline": ""}),
        ("r", {"encoding": "ascii", "errors": "replace", "buffering": 1}),
        ("rb", {}),
        ("rb", {"buffering": 0}),
        ("rb", {"buffering": 100}),
        ("r+b", {}),
        ("rb", {"encoding": "utf-8"}),
        ("r", {"buffering": 0}),
        ("q", {}),
    ],
)
def test_a_file_that_is_opened_in_a_fetch_is_what_open_gives(tmp_path, mode, options):
    path = tmp_path / "text"
    path.write_bytes("one\r\ntwö\nthree".encode())

    def look(_):
        try:
            file = open(path, mode, **options)  # noqa: SIM115
        except ValueError as error:
            return str(error)
        with file:
            kind = "raw" if isinstance(file, io.FileIO) else type(file)
            buffer = getattr(file, "buffer", file)
            told = kind, file.mode, file.name, getattr(file, "encoding", 0), getattr(file, "line_buffering", 0)
            return *told, type(buffer) is kind, file.readline(), file.tell(), file.read(), file.readable()

    plain, found = look(0), []
    with lv.record(on="a100", host="laptop", hazards="off"):
        found.extend(DataLoader(Samples(lambda index: look(0)), None, collate_fn=lambda each: each))
    assert found == [plain] * 4


@pytest.mark.parametrize(("on", "mib", "noted"), [("a100", 4, True), ("a100", 1, False), ("4090", 4, False)])
def test_a_copy_to_pageable_memory_at_an_assumed_rate_is_noted(on, mib, noted):
    with lv.record(on=on, host="laptop", hazards="off") as recording:
        torch.zeros(mib * 2**18, device="cuda").cpu()
    assert any("to pageable memory" in note for note in recording.timeline.context.notes) is noted


@pytest.mark.parametrize(
    ("weights", "draws", "replacement", "ns"),
    [
        (1000, 10, True, 0.9 * 1000 + 7 * 10 * 10),  # a draw halves the sums of the weights ten times
        (60_000, 60_000, True, 0.9 * 60_000 + 7 * 16 * 60_000),
        (60_000, 10, False, (14 + 5) * 60_000 + 47 * 10),  # a random number for each, of which the largest are sorted
        (60_000, 60_000, False, (14 + 5 + 47) * 60_000),
    ],
)
def test_a_draw_by_weights_halves_their_sums_or_sorts_random_numbers(weights, draws, replacement, ns):
    times = [
        host_time(lambda _: torch.multinomial(torch.ones(weights), draws, replacement), replace(LAPTOP, **fields))
        for fields in (FAST | {"transforms": 1000}, FAST | {"transforms": 0})
    ]
    assert times[0] - times[1] == pytest.approx(ns, abs=ROUNDED)


TABLE = torch.arange(64 * 48.0).view(64, 48)
TAKEN = {  # by name: of a sample of so many views and copies, so many parts are stacked
    "one": (lambda index: TABLE[index], 1, 1),
    "a pair": (lambda index: (TABLE[index], TABLE[index]), 2, 2),
    "five of a kind": (lambda index: [TABLE[index] for _ in range(5)], 5, 5),
    "columns": (lambda index: torch.stack([TABLE[index, column] for column in range(48)]), 2 * 48, 48 + 1),
    "views of views": (lambda index: TABLE.t().t()[index].view(6, 8).flatten(), 5, 1),
    "copies": (lambda index: TABLE[index].clone().clone().clone(), 4, 1),
    "joined": (lambda index: torch.cat([TABLE[index]] * 3), 1, 3 + 1),
    "shapes alone": (lambda index: float(sum(TABLE.shape) + TABLE.stride(0) + TABLE.dim()), 0, 0),
}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", TAKEN)
def test_what_a_data_set_takes_and_stacks_beyond_two_tensors_a_sample_has_a_price(name, workers):
    """A view takes a third of the price of a sample, a part of a batch a sixth, as they do on a real machine."""
    sample, taken, stacked = TAKEN[name]
    host = replace(FREE, fetch_per_sample=6 * 10**5)
    with lv.record(on="a100", host=host) as recording:
        list(DataLoader(Samples(sample, 16), 8, num_workers=workers))
    more = max(0, 8 * (taken - 2)) * 2 * 10**5 + max(0, 8 * (stacked - 2)) * 10**5
    assert [span.duration for span in recording.timeline.rows(Kind.FETCH)] == 2 * [8 * 6 * 10**5 + more]


LISTS = {
    "tensor": lambda: torch.tensor([[0.5] * 100] * 3),
    "as_tensor": lambda: torch.as_tensor(tuple(range(300))),
    "keyword": lambda: torch.tensor(data=[True] * 300),
    "asarray": lambda: torch.asarray([1.0] * 300),
}
NO_LISTS = {
    "numbers": lambda: torch.tensor(0.5),
    "array": lambda: torch.as_tensor(np.zeros(300)),
    "tensor": lambda: torch.as_tensor(torch.zeros(300)),
}


@pytest.mark.parametrize(("make", "lists"), [*((f, 1) for f in LISTS.values()), *((f, 0) for f in NO_LISTS.values())])
def test_what_is_read_out_of_lists_costs_each_number_in_a_fetch_and_in_the_loop(make, lists):
    price = (2_000 + 85 * 300) * lists
    took, _ = fetches(lambda _: make(), 3, transforms=1000)
    less, _ = fetches(lambda _: make(), 3, transforms=0)
    assert [a - b for a, b in zip(took, less, strict=True)] == [2 * price] * 2
    host = replace(Host.preset("workstation"), transforms=1000)
    with lv.record(on="a100", host=host) as recording:
        make()
        torch.ones(1, device="cuda")
    spans = [row.duration for row in recording.timeline.rows() if row.name.startswith("torch.")]
    assert spans == [price] * (price > 0)


def test_labels_that_torch_collates_are_no_list_of_the_data_set():
    took, _ = fetches(lambda number: number, 3, transforms=1000)
    assert took == fetches(lambda number: number, 3, transforms=0)[0]


SLOW_ONES = {
    "sort": (lambda x: x.sort(), 47),
    "random numbers": (lambda x: torch.rand(1000), 3.6),
    "like others": (lambda x: torch.rand_like(x), 3.6),
    "an order": (lambda x: torch.randperm(1000), 5),
    "classes": (lambda x: torch.unique(x, return_inverse=True), 43),
    "a mask": (lambda x: torch.where(MASK, x, 0.0), 2.8),
    "the largest, sorted": (lambda x: x.topk(500), 5 + 47 / 2),
    "noise": (lambda x: x.clone().normal_(), 2.7),
    "what a mask covers": (lambda x: x.masked_fill(MASK, 0.0), 3.5),
    "numbers at random": (lambda x: x.take(ORDER), 2.5),
    "rows at random": (lambda x: x.view(10, 100)[ORDER[ORDER < 10]], 3.5 * 1.01 + 0.5),
    "places in a table": (lambda x: torch.searchsorted(SORTED, x), 7 * 7),
    "one of a table": (lambda x: torch.searchsorted(SORTED, 0.5), 7 * 7 / 1000),
    "in bins": (lambda x: torch.bucketize(x, SORTED[:3]), 2 * 7),
    "one of a few": (lambda x: torch.isin(x, x[:7]), 62 / 8),
    "one of many": (lambda x: torch.isin(x, x[:100]), 62),
    "spread": (lambda x: x.std(), 0.9),
    "spread of rows": (lambda x: x.view(10, 100).std(0), 6.5),
    "the largest of rows": (lambda x: x.view(10, 100).max(1), 1.1),
    "the largest": (lambda x: x.max(), 0),
    "a power": (lambda x: x**0.45, 2.7),
    "a square": (lambda x: x**2, 0),
    "short transforms": (lambda x: torch.fft.rfft(x.view(10, 100)), 0.9 * (1 + 1.1)),
    "a long transform": (lambda x: torch.fft.rfft(x), 0.9 * 12),
    "bytes": (lambda x: x.byte(), 0.25),
    "of a mask": (lambda x: MASK.float(), 0.6),
}
MASK, ORDER, SORTED = torch.arange(1000) > 500, torch.arange(1000), torch.linspace(0, 1, 100)


@pytest.mark.parametrize("name", SLOW_ONES)
def test_an_operator_that_takes_longer_than_its_bytes_has_a_price_a_number_in_a_fetch_and_in_the_loop(name):
    work, each = SLOW_ONES[name]
    priced, free = (fetches(work, torch.arange(1000.0), transforms=number)[0] for number in (1000, 0))
    assert [a - b for a, b in zip(priced, free, strict=True)] == pytest.approx([2 * each * 1000] * 2, abs=ROUNDED)
    loops = [
        host_time(lambda _: work(torch.arange(1000.0)), replace(LAPTOP, **FAST, transforms=number))
        for number in (1000, 0)
    ]
    arange = 0.37 * 1000
    assert loops[0] - loops[1] == pytest.approx(each * 1000 + arange, abs=ROUNDED)


def test_many_small_tensors_cost_each_in_the_loop_whether_joined_or_taken():
    parts = [torch.zeros(2) for _ in range(100)]
    for join in torch.stack, torch.cat:
        times = [host_time(lambda _: join(parts), replace(LAPTOP, **FAST, transforms=by)) for by in (1000, 0)]  # noqa: B023
        assert times[0] - times[1] == pytest.approx(110 * 100, abs=ROUNDED)
    x = torch.zeros(101)
    assert host_time(lambda _: list(x)) == cost(python=1 + 100 / 2)  # a view of many takes half as long as a call
    assert host_time(lambda _: x[:100].split(10)) == cost(python=2 + 9 / 2)


@each_number
def test_a_list_of_a_tensors_numbers_costs_each_in_a_fetch_and_in_the_loop(workers):
    lists = [fetches(lambda x: x.tolist() and 0, torch.arange(1000), workers, transforms=by)[0] for by in (1000, 0)]
    assert [a - b for a, b in zip(*lists, strict=True)] == [2 * 13 * 1000] * 2
    times = [host_time(lambda _: ORDER.tolist(), replace(LAPTOP, transforms=by)) for by in (1000, 0)]
    assert times[0] - times[1] == 13 * 1000


def test_the_order_of_an_epoch_is_in_the_price_of_fetching_and_an_order_of_ones_own_is_not():
    def epoch(by, sampler=None):
        host = replace(FREE, transforms=by)
        with lv.record(on="a100", host=host) as recording:
            list(DataLoader(Samples(lambda _: 0, 1000), 500, shuffle=sampler is None, sampler=sampler))
        return recording.timeline.duration

    class Own(torch.utils.data.Sampler):
        def __iter__(self):
            return iter(torch.randperm(1000).tolist())

    seeds = 10  # ns
    assert epoch(1000) - epoch(0) < seeds
    assert epoch(1000, Own()) - epoch(0, Own()) == pytest.approx((5 + 13) * 1000, abs=seeds)


def test_a_list_of_indices_and_an_array_of_numpy_cost_the_loop_what_torch_does_with_them():
    x, places = torch.zeros(1000), list(range(100))
    times = [host_time(lambda _: x[places], replace(LAPTOP, **FAST, transforms=by)) for by in (1000, 0)]
    assert times[0] - times[1] == pytest.approx(2_000 + (85 + 3.5) * 100, abs=ROUNDED)
    host = replace(FREE, dispatch=10**3, memory_bandwidth=10**9)
    array = np.zeros(300, np.float32)
    assert host_time(lambda _: torch.tensor(array), host) == 10**3 + 2 * 1200
    assert host_time(lambda _: torch.as_tensor(array), host) == 0  # which shares its memory
