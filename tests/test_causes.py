"""Loops whose slow part is known, on hosts by name: advice names it, its change is made, and gains what was said.

`python -m benchmarks.causes` has all of them, and those of this machine.
"""

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
