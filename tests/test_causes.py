"""Loops whose slow part is known, on hosts by name: advice names it, its change is made, and gains what was said.

`python -m benchmarks.causes` has all of them, and those of this machine.
"""

from types import SimpleNamespace

import pytest
from factory import slow

from benchmarks import causes
from benchmarks.loops import own, strangers


@pytest.mark.parametrize(
    ("author", "name", "host"),
    [
        slow(own, "reads_the_loss", "workstation"),  # before the graph, which cannot hold a wait
        slow(own, "empties_the_cache", "laptop"),
        slow(own, "moves_each_sample", "laptop"),  # a replay of the loop as it is takes 1.4 times as long
        slow(own, "launches", "laptop"),  # the gaps in its graph are not the host's
        slow(own, "short_epochs", "workstation"),  # the start of workers is no other work
        slow(own, "far_away_two_workers", "workstation"),
        slow(own, "features_in_columns", "laptop"),  # whose sending is in the time of a fetch
        slow(own, "every_other_batch_of_one_worker_is_far", "workstation"),  # by the mean: its median is of the others
        (own, "bags_of_words", "workstation"),  # less what a sparse optimizer launches besides
        slow(strangers, "norm_of_each_layer", "workstation"),  # with the norm, which stands in the same line
        (strangers, "bytes_sent_as_floats", "laptop"),  # pinned before the loop
        slow(strangers, "right_of_each_class", "laptop"),  # whose line launches most kernels of a step
        slow(strangers, "average_of_weights", "laptop"),  # before the graph, which gains more and is more work
        slow(strangers, "blurred_on_the_host", "laptop"),  # a new tensor, whichever operator made it
        slow(strangers, "boxes_one_by_one", "laptop"),  # packed, they need not be stacked
    ],
)
def test_the_first_finding_is_the_cause_and_its_change_gains_what_was_predicted(author, name, host):
    (case,) = (case for case in author.CASES if case.name == name)
    row = causes.tried(case, author.__name__, host)
    assert (row.problem, row.is_right) == ("", True)
    gain = row.first.expected_gain
    assert row.step >= causes.REAL_GAIN * row.after
    assert row.gained == pytest.approx(gain.predicted, rel=causes.WITHIN)
    assert row.gained <= causes.SLACK * gain.per_step
    assert row.again != row.first.kind


@pytest.mark.parametrize(
    ("name", "host"),
    [
        slow("each_worker_reads_all", "workstation"),
        slow("keeps_its_outputs", "workstation"),
        ("one_long_batch_in_ten", "laptop"),
    ],
)
def test_what_no_step_gains_by_is_told_and_is_gone_once_it_is_changed(name, host):
    (case,) = (case for case in own.CASES if case.name == name)
    row = causes.tried(case, own.__name__, host)
    assert (row.problem, row.is_right) == ("", True)
    assert row.again != row.first.kind and not row.first.expected_gain.predicted


@pytest.mark.parametrize("name", [slow("maps_its_file"), slow("saves_seldom"), "a_graph_of_a_step"])
def test_of_a_loop_that_is_right_nothing_is_told(name):
    (case,) = (case for case in own.CASES if case.name == name)
    row = causes.tried(case, own.__name__, "laptop")
    assert (row.problem, row.is_right, row.is_nothing) == ("", True, True)


def test_a_cause_that_is_told_beside_the_others_is_looked_for_there():
    found = [SimpleNamespace(kind=kind) for kind in ("cores-taken", "waiting-for-data", "cold-cache")]
    assert causes.first_of(found).kind == "waiting-for-data"
    assert causes.first_of(found, ("cold-cache",)).kind == "cold-cache"
    assert causes.first_of(found, ("swaps",)) is None


@pytest.mark.parametrize(
    ("kinds", "busy", "steps", "changes", "by_host"),
    [
        (("nothing-to-gain",), 0.2, [], [], True),  # what its author hid is not what takes the time
        (("nothing-to-gain",), 0.9, [], [], False),
        (("synchronizes-each-step",), 0.2, [0.95], [{"repaired": True}], True),  # the repair gains 5 %
        (("synchronizes-each-step",), 0.2, [0.8], [{"repaired": True}], False),
        (("copy-not-hidden",), 0.2, [1.1], [{"prefetch": 2}], True),  # a loop without a repair of its own
        (("host-bound",), 0.2, [], [], False),
    ],
)
def test_a_real_loop_is_its_hosts_where_the_gpu_rests_and_the_known_repair_gains_little(
    monkeypatch, kinds, busy, steps, changes, by_host
):
    asked = []
    monkeypatch.setattr(causes.lv, "summarize", lambda found: SimpleNamespace(**found))

    def usual(case, host, **change):
        asked.append(change)
        return {"step": steps[len(asked) - 1] * 1e6}

    monkeypatch.setattr(causes, "usual", usual)
    run = (lambda repaired=False: None) if {"repaired": True} in changes else (lambda prefetch=0: None)
    case = SimpleNamespace(kinds=kinds, run=run)
    assert causes.is_by_host(case, {"step": 1e6, "busy": busy}) is by_host
    assert asked == changes
