"""The resident loader: orders, shares of the ranks, views, memory, state."""

from collections import Counter, namedtuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DistributedSampler, TensorDataset

from loaderviz.loaders import ResidentLoader

ORDERS = ("samples", "blocks", "batches", None)
METHODS = ("gather", "permute")
Pair = namedtuple("Pair", "image label")


def epoch_of(loader):
    return [batch.tolist() for batch in loader]


def flat(batches):
    return [sample for batch in batches for sample in batch]


few = settings(max_examples=60, deadline=None)


@few
@given(
    samples=st.integers(0, 40),
    batch_size=st.integers(1, 12),
    shuffle=st.sampled_from(ORDERS),
    method=st.sampled_from(METHODS),
    drop_last=st.booleans(),
    block_size=st.integers(1, 7),
)
def test_every_sample_once_and_as_many_batches_as_len_says(samples, batch_size, shuffle, method, drop_last, block_size):
    loader = ResidentLoader(
        torch.arange(samples), batch_size, shuffle, drop_last, device="cpu", method=method, block_size=block_size
    )
    whole, rest = divmod(samples, batch_size)
    for _ in range(3):
        batches = epoch_of(loader)
        assert len(batches) == len(loader) == whole + (rest > 0 and not drop_last)
        sizes = Counter(map(len, batches))
        assert sizes == Counter({batch_size: whole}) + Counter({rest: int(rest > 0 and not drop_last)})
        assert len(set(flat(batches))) == len(flat(batches))
        if not drop_last:
            assert sorted(flat(batches)) == list(range(samples))


@few
@given(
    samples=st.integers(1, 40),
    batch_size=st.integers(1, 9),
    world_size=st.integers(1, 5),
    seed=st.integers(0, 5),
    epoch=st.integers(0, 3),
    drop_last=st.booleans(),
    shuffle=st.booleans(),
    method=st.sampled_from(METHODS),
)
def test_the_share_of_each_rank_is_the_one_of_distributed_sampler(
    samples, batch_size, world_size, seed, epoch, drop_last, shuffle, method
):
    data = torch.arange(samples)
    for rank in range(world_size):
        drop = drop_last and samples >= world_size
        sampler = DistributedSampler(data, world_size, rank, shuffle=shuffle, seed=seed, drop_last=drop)
        sampler.set_epoch(epoch)
        expected = [] if drop_last and not drop else list(BatchSampler(sampler, batch_size, drop_last))
        share = {"seed": seed, "rank": rank, "world_size": world_size, "method": method}
        loader = ResidentLoader(data, batch_size, shuffle, drop_last, device="cpu", **share)
        loader.set_epoch(epoch)
        assert epoch_of(loader) == expected
        assert len(loader) == len(expected)


@few
@given(samples=st.integers(1, 60), batch_size=st.integers(1, 9), world=st.integers(1, 5), drop=st.booleans())
def test_by_batches_the_ranks_share_out_whole_batches(samples, batch_size, world, drop):
    every = [list(range(i, min(i + batch_size, samples))) for i in range(0, samples, batch_size)]
    shares = []
    for rank in range(world):
        loader = ResidentLoader(
            torch.arange(samples), batch_size, "batches", drop, rank=rank, world_size=world, device="cpu"
        )
        shares.append(epoch_of(loader))
        assert len(shares[-1]) == len(loader)
    assert len({len(one) for one in shares}) == 1, "every rank makes as many steps"
    handed_out = [batch for one in shares for batch in one]
    assert all(batch in every for batch in handed_out)
    if not drop:
        assert {tuple(batch) for batch in handed_out} == {tuple(batch) for batch in every}


def test_the_order_is_a_function_of_seed_and_epoch_only(device):
    data = torch.arange(50)
    for shuffle in ("samples", "blocks", "batches"):
        on_cpu = ResidentLoader(data, 8, shuffle, seed=4, device="cpu")
        expected = [epoch_of(on_cpu) for _ in range(3)]
        torch.rand(9)
        on_device = ResidentLoader(data, 8, shuffle, seed=4, device=device)
        assert [epoch_of(on_device) for _ in range(3)] == expected
        assert len({str(epoch) for epoch in expected}) == 3, "each epoch has another order"
        on_device.set_epoch(1)
        assert epoch_of(on_device) == expected[1]


@pytest.mark.parametrize("method", METHODS)
def test_values_and_dtypes_on_the_device(device, method):
    images = torch.arange(20 * 6, dtype=torch.uint8).reshape(20, 2, 3)
    labels = torch.arange(20)
    loader = ResidentLoader((images, labels), 8, device=device, method=method, transform=lambda pair: pair[::-1])
    for y, x in list(loader):  # kept to the end of the epoch
        assert (x.dtype, y.dtype) == (torch.uint8, torch.int64)
        assert x.device.type == y.device.type == device.type
        assert torch.equal(x.cpu(), images[y.cpu()])


def test_the_global_generator_is_neither_read_nor_moved(device):
    before = torch.get_rng_state()
    loader = ResidentLoader(torch.arange(50), 8, device=device)
    first = epoch_of(loader)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(123)
    assert epoch_of(ResidentLoader(torch.arange(50), 8, device=device)) == first
    one, two, again = (
        epoch_of(ResidentLoader(torch.arange(50), 8, generator=torch.Generator().manual_seed(seed), device=device))
        for seed in (1, 2, 1)
    )
    assert len({str(order) for order in (first, one, two)}) == 3 and one == again


def test_blocks_keep_neighbours_together():
    loader = ResidentLoader(torch.arange(64), 16, "blocks", block_size=4, device="cpu")
    for _ in range(3):
        for batch in epoch_of(loader):
            blocks = [batch[i : i + 4] for i in range(0, 16, 4)]
            assert all(block == list(range(block[0], block[0] + 4)) and block[0] % 4 == 0 for block in blocks)


@pytest.mark.parametrize("shuffle", ["batches", None])
def test_slices_are_views_and_an_in_place_change_is_detected(device, shuffle):
    loader = ResidentLoader({"x": torch.arange(10.0)}, 4, shuffle, device=device)
    running = iter(loader)
    next(running)["x"].sub_(1)
    with pytest.raises(RuntimeError, match=r"changed in place.*copy=True"):
        next(running)
    with pytest.raises(RuntimeError, match="Build the loader again"):
        next(iter(loader))
    with pytest.raises(RuntimeError, match="changed in place"):  # of the last batch, at the end of the epoch
        for batch in ResidentLoader(torch.arange(4.0), 4, None, device=device):
            batch += 1


@pytest.mark.parametrize(
    "arguments",
    [
        {"shuffle": None, "copy": True},
        {"shuffle": "batches", "copy": True},
        {"shuffle": "samples", "method": "gather"},
        {"shuffle": "samples", "method": "permute"},
    ],
)
def test_where_batches_are_no_views_they_may_be_changed_in_place(device, arguments):
    data = torch.arange(10.0)
    loader = ResidentLoader(data, 4, device=device, **arguments)
    for _ in range(2):
        seen = []
        for batch in loader:
            seen += batch.tolist()
            batch.zero_()
        assert sorted(seen) == list(range(10))
    assert data.tolist() == list(range(10))


def test_nested_data_and_data_sets():
    x, y = torch.arange(6), torch.arange(6) * 2
    batch = next(iter(ResidentLoader(Pair(x, y), 3, None, device="cpu")))
    assert type(batch) is Pair and batch.label.tolist() == [0, 2, 4]
    batch = next(iter(ResidentLoader({"a": [x, (y,)], "name": "data"}, 3, device="cpu")))
    assert batch["name"] == "data" and torch.equal(batch["a"][0] * 2, batch["a"][1][0])
    batch = next(iter(ResidentLoader(TensorDataset(x, y), 3, None, device="cpu")))
    assert type(batch) is tuple and batch[1].tolist() == [0, 2, 4]

    class InMemory:
        data, targets, transform = x.numpy(), y.tolist(), None

    batch = next(iter(ResidentLoader(InMemory(), 3, None, device="cpu")))
    assert batch[0].tolist() == [0, 1, 2] and batch[1].tolist() == [0, 2, 4]
    InMemory.transform = abs
    with pytest.raises(ValueError, match=r"has a transform.*\(dataset.data, dataset.targets\)"):
        ResidentLoader(InMemory(), 3, device="cpu")


@pytest.mark.parametrize("shuffle", ORDERS)
@pytest.mark.parametrize("method", METHODS)
def test_resuming_at_any_batch_equals_the_uninterrupted_run(device, shuffle, method):
    def make(seed):
        return ResidentLoader(torch.arange(23), 4, shuffle, seed=seed, device=device, method=method)

    loader, expected, states = make(3), [], []
    states.append(loader.state_dict())
    for _ in range(2):
        for batch in loader:
            expected.append(batch.tolist())
            states.append(loader.state_dict())
    for done, state in enumerate(states):
        resumed = make(0)
        resumed.load_state_dict(state)
        rest = [batch for _ in range(2 - state["epoch"]) for batch in epoch_of(resumed)]
        assert rest == expected[done:]


def test_a_state_of_other_settings_is_refused():
    state = ResidentLoader(torch.arange(20), 4, device="cpu").state_dict()
    other = ResidentLoader(torch.arange(20), 5, device="cpu")
    with pytest.raises(ValueError, match="saved with batch_size=4, this loader has 5"):
        other.load_state_dict(state)


@pytest.fixture
def small_gpu(monkeypatch):
    """A GPU with so much memory free, of which nobody can move anything to."""
    free = [1_000_000]
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=None: (free[0], 2_000_000))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.Tensor, "to", lambda *_, **__: pytest.fail("moved before the check"))
    return free


@pytest.mark.parametrize(
    ("arguments", "needed"),
    [
        ({"shuffle": None}, 1_000_000),
        ({"shuffle": "batches", "method": "permute"}, 1_000_000),
        ({}, 1_000_000 + 8 * 1000),
        ({"method": "permute"}, 2_000_000 + 8 * 1000),
        ({"method": "permute", "rank": 1, "world_size": 4}, 1_250_000 + 8 * 250),
    ],
)
def test_exactly_what_is_needed_is_enough(small_gpu, arguments, needed):
    data = torch.zeros(1000, 1000, dtype=torch.uint8)
    small_gpu[0] = needed - 1
    with pytest.raises(MemoryError, match=r"needs 1\.0 MB|needs 2\.0 MB|needs 1\.3 MB") as refused:
        ResidentLoader(data, 10, **arguments)
    assert "2.0 MB are free" in str(refused.value) and "PrefetchLoader" in str(refused.value)
    assert ("use method='gather'" in str(refused.value)) == (needed > 1_200_000)  # only where that needs less
    small_gpu[0] = needed
    with pytest.raises(pytest.fail.Exception, match="moved"):
        ResidentLoader(data, 10, **arguments)


@pytest.mark.parametrize(
    ("data", "arguments", "error", "match"),
    [
        (torch.arange(3), {"batch_size": 0}, ValueError, "batch_size must be at least 1, got 0"),
        (torch.arange(3), {"batch_size": 2.0}, TypeError, "batch_size must be a whole number, got 2.0"),
        (torch.arange(3), {"shuffle": "rows"}, ValueError, "shuffle must be one of .* got 'rows'"),
        (torch.arange(3), {"method": "copy"}, ValueError, "method must be one of .* got 'copy'"),
        (torch.arange(3), {"rank": 2, "world_size": 2}, ValueError, "rank must be below world_size 2, got 2"),
        (torch.arange(3), {"block_size": 0}, ValueError, "block_size must be at least 1"),
        (torch.arange(3), {"seed": 1, "generator": torch.Generator()}, ValueError, "either seed or generator"),
        (torch.arange(3), {"seed": -1}, ValueError, "seed must be at least 0"),
        ((torch.arange(3), torch.arange(4)), {}, ValueError, r"shapes: \(3,\), \(4,\)"),
        (torch.tensor(3), {}, ValueError, "same first dimension"),
        ([1, 2, 3], {}, TypeError, "a list without tensors was given"),
        ("mnist", {}, TypeError, "a str without tensors"),
    ],
)
def test_bad_arguments_are_named(data, arguments, error, match):
    with pytest.raises(error, match=match):
        ResidentLoader(data, **{"batch_size": 2, "device": "cpu", **arguments})


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype:UserWarning")
def test_nothing_waits_for_the_device_in_steady_state():
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA GPU: torch.cuda.is_available() is False")
    loaders = [ResidentLoader(torch.arange(1000), 64, shuffle, method=m) for shuffle in ORDERS for m in METHODS]
    for loader in loaders:
        list(loader)
        torch.cuda.set_sync_debug_mode("error")
        try:
            list(loader)
        finally:
            torch.cuda.set_sync_debug_mode("default")
