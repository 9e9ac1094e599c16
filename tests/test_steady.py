"""The steady state: what is left out as the start, and the step against the marginal cost of a batch."""

import itertools
from functools import cache, lru_cache

import factory
import pytest
import torch
from torch.utils.data import DataLoader, RandomSampler

import loaderviz as lv
from loaderviz.experiment import Images, as_it_is
from loaderviz.loaders import BlockingLoader, PinnedLoader, PrefetchLoader, ResidentLoader
from loaderviz.metrics import describe, summarize
from loaderviz.timeline import Cause, Kind

FEW, MANY, EPOCH = 7, 23, 8  # batches; MANY - FEW are two whole epochs
BESIDE_WORKERS = 71  # where four are busy beside the copies: so many that the last batches, without them, weigh little
LOADERS = {"blocking": BlockingLoader, "pinned": PinnedLoader, "prefetch": PrefetchLoader}
LARGE = 8192


@lru_cache(maxsize=4)
def data(size):
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 255, (EPOCH * size, 28, 28), dtype=torch.uint8, generator=generator)
    return images, torch.randint(0, 10, (EPOCH * size,), generator=generator)


def feed(name, size, workers, batches):
    """Give so many batches, which are all that there are: a prefetcher has nothing to do in its last steps."""
    images, labels = data(size)
    if name == "resident":
        epochs = itertools.repeat(ResidentLoader((images, labels), size, seed=0))
        yield from itertools.islice(itertools.chain.from_iterable(epochs), batches)
        return
    order = RandomSampler(range(len(images)), num_samples=batches * size, generator=torch.Generator().manual_seed(0))
    options = {"sampler": order, "num_workers": workers, "collate_fn": as_it_is, "pin_memory": name != "blocking"}
    source = DataLoader(Images(images, labels), size, **options)
    yield from LOADERS[name](source) if name in LOADERS else ((x.to("cuda"), y.to("cuda")) for x, y in source)


@cache
def run(name, size, workers, batches):
    """Train on so many batches on an emulated A100."""
    data(size)  # made before the clock runs
    with lv.record(on="a100", host="workstation") as recording:
        torch.manual_seed(0)
        hidden = 384 if size < LARGE else 16  # a large layer takes this machine too long
        layers = torch.nn.Flatten(), torch.nn.Linear(784, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, 10)
        model = torch.nn.Sequential(*layers).to("cuda")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for images, labels in feed(name, size, workers, batches):
            loss = torch.nn.functional.cross_entropy(model(images.float() / 255), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        torch.cuda.synchronize()
    return recording.timeline


LOOPS = [  # each two of name, workers and size meet
    *((name, 2 * w, (64, LARGE)[(n + w) % 2]) for n, name in enumerate(("plain", *LOADERS)) for w in range(3)),
    *(("resident", 0, size) for size in (64, LARGE)),
]


@pytest.mark.slow
@pytest.mark.parametrize("name, workers, size", LOOPS)
def test_a_step_is_what_a_further_batch_costs(name, workers, size):
    most = BESIDE_WORKERS if workers == 4 and size == LARGE else MANY
    few, many = (run(name, size, workers, batches) for batches in (FEW, most))
    marginal = (many.duration - few.duration) / (most - FEW)
    for timeline in (many, many.from_batch(3), many.from_batch(FEW)):
        summary = summarize(timeline)
        assert summary.step == pytest.approx(marginal, rel=0.02)
        assert summary.samples_per_second == pytest.approx(size / marginal * 1e9, rel=0.021)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plain", "prefetch"])
def test_batches_that_were_ready_when_the_loop_began_do_not_make_it_look_fast(name):
    marginal = (run(name, 512, 2, MANY).duration - run(name, 512, 2, FEW).duration) / (MANY - FEW)
    for batches, within in ((8, 0.05), (10, 0.05), (MANY, 0.02)):  # of short runs a batch more or less counts
        assert summarize(run(name, 512, 2, batches)).step == pytest.approx(marginal, rel=within)


def test_workers_do_not_look_slow_because_they_must_be_started():
    without, with_two = (run("plain", 64, workers, MANY) for workers in (0, 2))
    one, two = summarize(without), summarize(with_two)
    assert two.step == pytest.approx(one.step, rel=0.1)  # what they fetch is as little as what taking it costs
    assert two.start_up > 2 * 15_000_000 > one.start_up  # two processes are started, 15 ms each
    table = lv.compare({"without": without, "with two": with_two}).table()
    assert table["speed-up"].tolist() == pytest.approx([1, one.step / two.step], rel=1e-9)
    assert table.loc["with two", "start-up [ms]"] == two.start_up / 1e6
    assert two.breakdown.get("idle: host in operators", 0) < two.window / 2
    assert not any("start" in part for part in two.breakdown)
    advice = lv.advise(with_two)
    assert (advice.window[0], advice[-1].kind) == (with_two.begin + two.start_up, "start-up")
    whole = summarize(with_two, (with_two.begin, with_two.begin + with_two.duration))
    assert whole.start_up == 0  # a window is taken as it is, and the start is no operator
    assert whole.breakdown["idle: host starts workers"] == 30_000_000
    assert whole.breakdown["idle: host in operators"] < 5_000_000


def test_workers_that_are_started_in_each_epoch_stay_in_and_have_a_name():
    with lv.record(on="a100", host="workstation") as recording:
        source = DataLoader(Images(*data(64)), 64, num_workers=1, collate_fn=as_it_is)
        for _ in range(3):
            for images, _ in source:
                images.to("cuda").float().sum()
    summary = summarize(recording.timeline)
    assert summary.batches == 3 * EPOCH - 1
    assert summary.breakdown["idle: host starts workers"] == pytest.approx(30_000_000, rel=0.001)  # not the first


def loop(batches, first=0, prepared=500, cold=()):
    """A loop of steps of 100 ns, in batches of `cold` after 50 ns more in which memory is taken."""
    spans, now = [("main", 0, prepared, Kind.OPERATOR, {"name": "start 2 workers"})] * (prepared > 0), prepared
    for batch in range(first, first + batches):
        start, now, of = now, now + 50 * (batch in cold), {"batch": batch}
        spans += [("main", start, now, Kind.WAIT, {"cause": Cause.ALLOCATION} | of)] * (now > start)
        spans += [("stream 7", now, now + 80, Kind.COMPUTE, of),
                  ("main", start, now + 100, Kind.RANGE, {"name": f"batch {batch}: 8 samples"} | of)]  # fmt: skip
        now += 100
    return factory.made(*spans).self_check()


def numbers(timeline):
    summary = summarize(timeline)
    return summary.start_up, summary.window, summary.batches, summary.step


@pytest.mark.parametrize(
    "timeline, expected",
    [
        (loop(0), (0, 500, None, None)),  # only the start: nothing is left out
        (loop(1), (500, 100, 1, 100)),
        (loop(2, cold=(0,)), (500, 250, 2, 100)),
        (loop(3), (600, 200, 2, 100)),  # two steps remain
        (loop(9), (600, 800, 8, 100)),
        (loop(9, cold=(0, 1, 2)), (950, 600, 6, 100)),
        (loop(9, cold=(0, 2)), (900, 600, 6, 100)),  # what is taken before the first kernel of batch 2 lengthens step 1
        (loop(5, cold=(0, 1)), (800, 300, 3, 100)),  # what goes on for less than half of the steps is a start
        (loop(4, cold=(0, 1)), (650, 350, 3, 100)),
        (loop(6, cold=(0, 1, 2)), (650, 600, 5, 450 / 4)),
        (loop(7, cold=(0, 1, 2)), (950, 400, 4, 100)),
        (loop(9, cold=(0, 7)), (650, 850, 8, 750 / 7)),  # what comes later is no start
        (loop(9, cold=range(9)), (650, 1200, 8, 150)),  # what does not end is no start
        (loop(9, prepared=0), (0, 900, 9, 100)),  # nothing was prepared
        (loop(9, first=4), (0, 1400, 9, 100)),  # of a later part of a run
    ],
)
def test_what_is_left_out(timeline, expected):
    assert numbers(timeline) == expected


def test_without_kernels_a_step_is_from_hand_out_to_hand_out():
    timeline = loop(6)
    assert numbers(timeline.only(~timeline.where(Kind.COMPUTE))) == (600, 500, 5, 100)
    assert summarize(loop(0)).breakdown == {"idle: host starts workers": 500}  # only a start says so
    assert describe(loop(0)) == "500 ns on the host, no work on the GPU"


def test_the_step_of_each_device_is_its_own():
    spans = [(f"main@{rank}", 0, 500, Kind.OPERATOR) for rank in (0, 1)]
    for (rank, length), batch in itertools.product(((0, 100), (1, 70)), range(5)):
        start = 500 + batch * length
        spans += [
            (f"stream 7@{rank}", start, start + 60, Kind.COMPUTE, {"batch": batch}),
            (f"main@{rank}", start, start + length, Kind.RANGE, {"name": f"batch {batch}", "batch": batch}),
        ]
    timeline = factory.made(*spans).self_check()
    assert [summarize(timeline, device=rank).step for rank in (0, 1)] == [100, 70]
    assert [summarize(timeline, device=rank).start_up for rank in (0, 1)] == [600, 570]


def test_batches_that_a_prefetcher_copied_before_the_first_step_tell_no_step():
    for batches in (3, 4):
        summary = summarize(run("prefetch", 64, 0, batches))
        assert (summary.step, summary.samples_per_second) == (None, None)
