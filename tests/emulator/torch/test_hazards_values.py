"""Random PyTorch programs: without a hazard the values are right, however late the bytes come; and what covers what."""

import copy
import io
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from random_programs import BACK, EVEN, FRONT, MIDDLE, OFTEN, OPERATIONS, WHOLE, Program, guarded, run

import loaderviz as lv
from loaderviz.emulator.torch.tracking import ROWS, checksum, ranges
from loaderviz.emulator.torch.tracking import WHOLE as WHOLE_CHECKSUM

# Many programs share a recording, since to begin one takes long: to shrink them would take minutes.
QUICK = {"deadline": None, "phases": [Phase.generate], "suppress_health_check": list(HealthCheck)}
operations = st.sampled_from([*OPERATIONS, *OFTEN]).flatmap(
    lambda name: st.tuples(st.just(name), *map(st.sampled_from, OPERATIONS[name]))
)
programs = st.lists(operations, min_size=4, max_size=25)


def both(programs):
    """Run programs with late bytes, and with bytes that come at once; return two lists of (values, hazard?)."""
    return run(programs), run(programs, copies="eager", hazards="off")


@pytest.mark.slow
@settings(max_examples=8, **QUICK)
@given(st.lists(programs, min_size=15, max_size=15))
def test_without_a_hazard_late_bytes_make_no_difference(programs):
    for program, (values, hazard), (right, _) in zip(programs, *both(programs), strict=True):
        assert hazard or values == right, program


@settings(max_examples=3, **QUICK)
@given(st.lists(programs, min_size=10, max_size=10))
def test_a_program_that_waits_after_everything_has_no_hazard_and_the_right_values(programs):
    late, at_once = both([guarded(program) for program in programs])
    assert not any(hazard for _, hazard in late) and late == at_once


# Found by a long search with random programs (LOADERVIZ_SEED): what each must say, hazard or right values.
RACES = {
    "numpy writes after torch wrote beside the copy": [
        ("upload", 2, 0, 0, FRONT), ("write", 0, BACK, 7.5), ("numpy", 0, WHOLE, 3.0),
    ],
    "numpy writes before torch writes beside the copy": [
        ("upload", 2, 1, 1, BACK), ("numpy", 1, BACK, -1.0), ("write", 1, FRONT, -1.0),
    ],
    "numpy writes after a result came beside the copy": [
        ("upload", 1, 0, 0, FRONT), ("download", 2, 1, 0, BACK), ("synchronize", 2), ("numpy", 0, FRONT, 7.5),
    ],
    "numpy writes to a buffer whose result was under way when the copy was queued": [
        ("download", 1, 0, 0, FRONT), ("upload", 2, 0, 0, BACK), ("synchronize", 1), ("numpy", 0, BACK, 7.5),
    ],
    "numpy writes beside a result, before that arrives": [
        ("download", 1, 0, 0, FRONT), ("upload", 2, 0, 0, BACK), ("numpy", 0, BACK, 7.5), ("synchronize", 1),
    ],
    "numpy writes, then a result comes beside the copy": [
        ("upload", 1, 0, 0, FRONT), ("numpy", 0, FRONT, 7.5), ("download", 2, 1, 0, BACK),
    ],
    "numpy writes, then a result is spread out beside the copy": [
        ("upload", 1, 0, 0, FRONT), ("numpy", 0, FRONT, 7.5), ("download", 2, 1, 0, slice(5, 8, 2)),
    ],
    "a blocking copy to another dtype converts on the host": [
        ("download", 2, 0, 0, WHOLE), ("renew", 2, 0, 0, WHOLE, torch.float64, False),
    ],
    "a copy of every second element is made dense on the host": [
        ("download", 2, 0, 0, WHOLE), ("upload", 2, 0, 0, EVEN),
    ],
    "a result is spread out on the host": [("upload", 1, 0, 0, WHOLE), ("download", 2, 1, 0, EVEN)],
}  # fmt: skip
RIGHT = {
    "a blocking copy up after one down": [("download", 1, 0, 0, WHOLE), ("upload", 1, 0, 0, WHOLE, False)],
    "the same of a part": [("download", 0, 1, 1, FRONT), ("upload", 0, 1, 1, MIDDLE, False)],
    "a new tensor by a blocking copy": [
        ("download", 2, 1, 0, WHOLE), ("order", 1, 2), ("renew", 1, 0, 0, WHOLE, torch.float32, False),
    ],
    "a blocking copy up after another": [("upload", 1, 0, 0, WHOLE), ("upload", 1, 0, 1, WHOLE, False)],
    "a blocking copy down after another": [("download", 1, 0, 0, WHOLE), ("download", 1, 1, 0, FRONT, False)],
    "a copy that a kernel spreads out, after another": [("upload", 1, 0, 0, WHOLE), ("upload", 1, 0, 1, EVEN)],
    "a result arrives while a copy of it waits": [
        ("download", 1, 0, 0, WHOLE), ("order", 2, 1), ("upload", 2, 1, 0, WHOLE), ("synchronize", 1),
    ],
    "a deep copy": [("upload", 1, 0, 0, WHOLE), ("duplicate", 1, 1, 0)],
}  # fmt: skip


@pytest.mark.parametrize("blocking", ["0", "1"])
def test_programs_that_once_were_judged_wrongly(blocking, monkeypatch):
    """With CUDA_LAUNCH_BLOCKING every call waits, so that nothing races."""
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", blocking)
    named = RACES | RIGHT
    for name, (values, hazard), (right, _) in zip(named, *both(list(named.values())), strict=True):
        assert hazard == (name in RACES and blocking == "0"), name
        assert hazard or values == right, name


@pytest.mark.filterwarnings("ignore::loaderviz.HazardWarning")
def test_a_result_that_is_spread_out_on_the_host_is_no_unseen_write():
    with lv.record(on="a100") as recording:
        Program().run(RACES["a result is spread out on the host"])
    assert [hazard.second.operator for hazard in recording.hazards] == ["aten::copy_"]


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.filterwarnings("ignore::loaderviz.HazardWarning")
def test_a_checkpoint_of_results_that_are_under_way(waits):
    with lv.record(on="a100") as recording:
        state = {"weight": torch.full((4,), 3.0, device="cuda").to("cpu", non_blocking=True)}
        if waits:
            torch.cuda.synchronize()
        torch.save(state, file := io.BytesIO())
    assert [hazard.kind for hazard in recording.hazards] == ["early-host-read"] * (not waits)
    assert [hazard.second.operator for hazard in recording.hazards] == ["torch.save"] * (not waits)
    file.seek(0)
    assert torch.equal(torch.load(file)["weight"], torch.full((4,), 3.0)) == waits


def test_a_deep_copy_stays_on_the_device_and_waits_for_nothing():
    with lv.record(on="a100") as recording:
        there = torch.full((4,), 3.0).pin_memory().to("cuda", non_blocking=True)
        twin = copy.deepcopy(there)
    names = [span.name for span in recording.timeline.rows() if span.lane.group == "device"]
    assert names == ["Memcpy HtoD (Pinned -> Device)", "Memcpy DtoD (Device -> Device)"]
    assert twin.tolist() == [3.0] * 4


def test_saving_a_device_tensor_waits_for_its_stream():
    with lv.record(on="a100") as recording:
        there = torch.full((4,), 3.0, device="cuda")
        result = there.to("cpu", non_blocking=True)
        torch.save(there, file := io.BytesIO())
        assert result.tolist() == [3.0] * 4
        result = copy.deepcopy(there).to("cpu", non_blocking=True)
        file.seek(0)
        torch.load(file)
        assert result.tolist() == [3.0] * 4
    assert recording.hazards == []


# Which bytes a view covers


def covered(tensor):
    """Every element, one by one."""
    return {
        sum(place * stride for place, stride in zip(places, tensor.stride(), strict=True))
        for places in product(*map(range, tensor.shape))
    }


slices = st.tuples(st.integers(0, 5), st.integers(0, 6), st.integers(1, 3)).map(lambda s: slice(*s))


@given(slices, slices, slices, st.permutations(range(3)), st.booleans())
def test_a_view_covers_its_own_elements(first, second, third, order, expanded):
    view = torch.empty(5, 6, 7)[first, second, third].permute(*order)
    if expanded:
        view = view[None].expand(3, *view.shape)
    found = {element for start, end in ranges(view.shape, view.stride()) for element in range(start, end)}
    assert found == covered(view)
    assert len(ranges(view.shape, view.stride())) <= ROWS


def test_a_view_of_many_rows_covers_the_space_between_them():
    view = torch.empty(ROWS + 1, 8)[:, :3]
    assert ranges(view.shape, view.stride()) == ((0, 8 * ROWS + 3),)
    assert len(ranges(view[:ROWS].shape, view.stride())) == ROWS


@given(st.integers(1, 3 * WHOLE_CHECKSUM), st.data())
def test_a_checksum_tells_every_changed_byte(size, data):
    before = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    after = before.copy()
    after[data.draw(st.integers(0, size - 1))] ^= data.draw(st.integers(1, 255))
    assert checksum(before.data) != checksum(after.data) and checksum(before.data) == checksum(before.copy().data)


def test_a_checksum_tells_another_order():
    labels = np.random.default_rng(0).integers(0, 10, 4 * WHOLE_CHECKSUM).astype(np.int64)
    assert checksum(labels.view(np.uint8).data) != checksum(np.sort(labels).view(np.uint8).data)
