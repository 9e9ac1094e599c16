"""Public ways of prefetching run unmodified: right data, copies where they belong, and each bug flagged by its line."""

import linecache
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from prefetchers import PREFETCHERS
from torch import nn

import loaderviz as lv
from loaderviz.emulator.hazards import UNSEEN, HazardWarning, RaceError
from loaderviz.recording import NotRecordedError
from loaderviz.timeline import COPIES, Kind

BATCHES, ROWS, COLUMNS = 30, 64, 1024  # the host never waits: it is far ahead of the device


def watched(run, **options):
    """Run something in a recording; return (what it returns, the recording)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HazardWarning)
        with lv.record(on="a100", **options) as record:
            result = run()
    return result, record


def line(source):
    file, _, number = source.rpartition(":")
    return linecache.getline(file, int(number)).strip()


def batches(pin=True):
    generator = torch.Generator().manual_seed(3)
    for _ in range(BATCHES):
        batch = torch.rand(ROWS, COLUMNS, generator=generator), torch.randint(0, 9, (ROWS,), generator=generator)
        yield tuple(entry.pin_memory() for entry in batch) if pin else batch


def numbers(images, labels):
    return torch.stack((images.sum(), images.amax(), labels.sum().float()))


def consume(prefetcher):
    """Read each batch after a long kernel, without waiting for the GPU."""
    seen = []
    for images, labels in prefetcher:
        torch.cuda._sleep(450_000)  # 0.3 ms, longer than a copy
        seen.append(numbers(images, labels))
    return torch.stack(seen).cpu()


def hidden(timeline):
    """Return how many of the image copies run while a kernel runs."""
    kernels = [(span.start, span.end) for span in timeline.rows(Kind.COMPUTE)]
    large = [span for span in timeline.rows(*COPIES) if span.nbytes == ROWS * COLUMNS * 4]
    return sum(any(start < copy.end and copy.start < end for start, end in kernels) for copy in large)


WRITERS = "entry.to(", ".copy_(entry", "entry * 1"


@pytest.mark.parametrize("name", PREFETCHERS)
def test_every_prefetcher_gives_its_data_and_its_overlap_and_is_judged_rightly(name):
    prefetcher = PREFETCHERS[name]

    def run():
        source = list(batches())  # in memory and pinned before the loop begins
        torch.cuda.synchronize()
        return consume(prefetcher.make(iter(source)))

    seen, record = watched(run)
    assert torch.equal(seen, torch.stack([numbers(*batch) for batch in batches(False)])) == prefetcher.right
    assert seen[:, 0].isnan().all() or name != "never waits"
    # the first copies meet cold pools, which synchronise (R13), so not all of them can be hidden
    assert hidden(record.timeline) >= 2 if prefetcher.overlaps else hidden(record.timeline) == 0
    assert {hazard.kind for hazard in record.hazards} == prefetcher.races
    for hazard in record.hazards:
        reader, writer = (hazard.second, hazard.first) if hazard.kind == "early-read" else (hazard.first, hazard.second)
        if hazard.kind == "early-refill":
            assert line(writer.source).endswith("# refill here") and writer.stream is None
            assert "entry.to(" in line(reader.source) and reader.stream != 7
        else:
            assert "images.sum()" in line(reader.source) and reader.stream == 7
            assert any(words in line(writer.source) for words in WRITERS) and writer.stream != 7
            if "record_stream(" in hazard.edge + hazard.fix and "does not help" not in hazard.fix:
                current = "`tensor.record_stream(torch.cuda.current_stream())`"
                assert f"add {current} for each tensor;" in hazard.fix
        assert hazard.second.batch == -1 or hazard.batches
    counts = [hazard.count for hazard in record.hazards]
    # All but the first few batches, or as often as memory comes back; of the two tensors of a batch one is told.
    assert not counts or sum(counts) > BATCHES // 4


# Pinned memory


def refilled(write, waits):
    """One pinned buffer for all batches; the copy is queued behind long work, and the buffer is refilled at once."""
    buffer, sums = torch.empty(64).pin_memory(), []
    copied = torch.cuda.Event()
    for k in range(BATCHES):
        if waits:
            copied.synchronize()
        write(buffer, k)  # refill
        torch.cuda._sleep(450_000)
        batch = buffer.to("cuda", non_blocking=True)
        copied.record()
        sums.append(batch)
    return [float(batch.mean().item()) for batch in sums]


WRITES = {
    "torch": lambda buffer, k: buffer.fill_(k),
    "copy": lambda buffer, k: buffer.copy_(torch.full((64,), float(k))),
    "view": lambda buffer, k: (buffer[:32].fill_(k), buffer[32:].fill_(k)),
    "out": lambda buffer, k: torch.full((64,), float(k), out=buffer),
    "numpy": lambda buffer, k: np.copyto(buffer.numpy(), k),
}


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("way", WRITES)
def test_a_pinned_buffer_refilled_too_early_gives_wrong_numbers_and_is_reported(way, waits):
    values, record = watched(lambda: refilled(WRITES[way], waits))
    assert (values == list(range(BATCHES))) == waits and values[-1] == BATCHES - 1
    assert {hazard.kind for hazard in record.hazards} == (set() if waits else {"early-refill"})
    for hazard in record.hazards:
        assert "buffer.to(" in line(hazard.first.source)
        assert hazard.second.place == "the host" and hazard.second.writes
        assert (hazard.second.operator == UNSEEN) == (way == "numpy")
        assert hazard.count >= BATCHES - 2  # the first buffer full is not a refill; a view is half of one


USES = {
    "the same copy": lambda buffer: buffer[:32].to("cuda", non_blocking=True),
    "other bytes change": lambda buffer: buffer[40:].fill_(1),
}


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("use", USES)
def test_what_numpy_wrote_is_found_although_the_buffer_is_used_again_before_anybody_waits(use, written):
    def run():
        buffer = torch.zeros(64).pin_memory()
        torch.cuda._sleep(450_000)
        batch = buffer[:32].to("cuda", non_blocking=True)
        if written:
            buffer.numpy()[3] = 1
        return batch, USES[use](buffer)

    assert [hazard.second.operator for hazard in watched(run)[1].hazards] == [UNSEEN] * written


# Results on the host

READS = {
    "print": lambda tensor: 7 * ("nan" not in repr(tensor)),
    "item": lambda tensor: tensor.mean().item(),
    "tolist": lambda tensor: tensor.tolist()[0],
    "add": lambda tensor: float((tensor + 0)[3]),
    "view": lambda tensor: float(tensor[3].clone()),
}


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("way", READS)
def test_a_result_read_before_it_is_there(way, waits):
    def run():
        torch.cuda._sleep(450_000)
        result = torch.full((64,), 7.0, device="cuda").to("cpu", non_blocking=True)
        if waits:
            torch.cuda.synchronize()
        return READS[way](result)  # read here

    value, record = watched(run)
    assert (value == 7) == waits
    assert [hazard.kind for hazard in record.hazards] == ["early-host-read"] * (not waits)
    for hazard in record.hazards:
        assert hazard.first.operator == "Memcpy DtoH (Device -> Pinned)" and hazard.first.writes


# Views, streams, backward


@pytest.mark.parametrize(("part", "kinds"), [(slice(0, 32), {"early-read"}), (slice(32, 64), set())])
def test_a_slice_races_by_its_bytes(part, kinds):
    def run():
        data, side = torch.zeros(64, 8, device="cuda"), torch.cuda.Stream()
        source = torch.ones(32, 8).pin_memory()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            data[:32].copy_(source, non_blocking=True)
        return data[part].sum()

    assert {hazard.kind for hazard in watched(run)[1].hazards} == kinds


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("back", [False, True])
def test_each_missing_edge_of_a_step_on_another_stream_is_one_report_however_many_tensors_race(waits, back):
    """And the line to add has the program's own name for its stream."""

    def run():
        model, copies = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).to("cuda"), torch.cuda.Stream()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for _ in range(4):
            loss = model(torch.ones(2, 8, device="cuda")).sum()  # forward
            optimizer.zero_grad()
            loss.backward()
            if waits:
                copies.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(copies):
                optimizer.step()
            if back:
                torch.cuda.current_stream().wait_stream(copies)

    record = watched(run)[1]
    edges = {(hazard.first.stream, hazard.second.stream): hazard for hazard in record.hazards}
    assert list(edges) == [(7, 13)] * (not waits) + [(13, 7)] * (not back) and len(record.hazards) == len(edges)
    assert record.lints == []
    if not waits:
        before = edges[7, 13]
        assert line(before.second.source) == "optimizer.step()" and "`copies.wait_event(ready)`" in before.fix
        assert "accesses race for want of it, too" in before.missing
    if not back:
        after = edges[13, 7]
        assert line(after.second.source).endswith("# forward") and "`ready = copies.record_event()`" in after.fix


def test_torchs_own_waits_in_backward_are_enough():
    """Forward on a side stream, backward called on the default one: autograd waits both ways (R17)."""

    def run():
        weight, side = torch.rand(8, 8, device="cuda", requires_grad=True), torch.cuda.Stream()
        for _ in range(5):
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                hidden = weight * 2
                loss = hidden.sum()
            loss.backward()
            hidden.record_stream(torch.cuda.current_stream())
            with torch.no_grad():
                weight.sub_(weight.grad)

    _, record = watched(run)
    assert record.hazards == [] and record.lints == []


# record(hazards=...)


def racy():
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        images = torch.ones(64).pin_memory().to("cuda", non_blocking=True)
    return images.sum()


def test_a_race_warns_at_the_end_in_one_line():
    message = r"1 hazard found.*early-read at test_hazards_planted"
    with pytest.warns(HazardWarning, match=message) as caught, lv.record(on="a100"):
        racy()
    (warning,) = caught
    assert warning.filename == Path(__file__).name and "\n" not in str(warning.message)


def test_a_race_can_raise_at_the_racing_call():
    with pytest.raises(RaceError, match="early-read") as error, lv.record(on="a100", hazards="raise"):
        racy()
        pytest.fail("the racing call comes before")
    assert error.value.hazard.kind.startswith("early-")
    assert torch.ones(1).sum() == 1  # everything is as before


def test_hazards_are_there_after_the_block_and_can_be_left_alone():
    with lv.record(on="a100", hazards="off") as record, pytest.raises(NotRecordedError):
        racy()
        record.hazards
    assert record.hazards == [] and record.lints == []
    with pytest.raises(ValueError, match="hazards='no': choose 'warn', 'raise' or 'off'"):
        lv.record(on="a100", hazards="no")
