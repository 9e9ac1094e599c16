"""What advice on a file promises, beside sums by hand: traces as torch.profiler writes them, times in µs."""

import pytest
from trace_files import BASE, call, copy, note, op, read_events, repeated, straggling, work

import loaderviz as lv
from loaderviz.analysis import what_if
from loaderviz.batches import LOADER_NEXT
from loaderviz.metrics import _rows, describe

US = 1_000
A100 = {"deviceProperties": [{"id": 0, "name": "NVIDIA A100-SXM4-40GB"}]}


def masked(period, operator="aten::nonzero", asked=10, count=10):
    """A kernel of 100 µs, then an operator that reads its result, and other work of the host up to the next one."""
    return repeated(
        count,
        period,
        lambda n, at: [
            call("cudaLaunchKernel", at, 5, 3 * n + 1),
            work("gemm", at + 5, 100, 3 * n + 1),
            op(operator, at + asked, 110 - asked),
            call("cudaMemcpyAsync", at + asked + 1, 2, 3 * n + 2),
            copy(at + 106, 2, 3 * n + 2, "Memcpy DtoH (Device -> Pageable)", nbytes=8),
            call("cudaStreamSynchronize", at + asked + 4, 106 - asked, 3 * n + 3),
        ],
    )


@pytest.mark.parametrize(
    ("period", "asked", "beside"),
    [
        (150, 10, 48),  # idle before the copy, 1, and from it to the next kernel, 47, which the wait of 100 could fill
        (200, 10, 98),
        (1_110, 10, 100),  # 1,008 idle: the host could be there no earlier than by its wait
        (400, 70, 40),
    ],
)
@pytest.mark.parametrize("operator", ["aten::nonzero", "aten::item"])
def test_a_wait_gains_no_more_than_the_idle_time_beside_it(tmp_path, period, asked, beside, operator):
    advice = lv.advise(read_events(tmp_path, *masked(period, operator, asked)))
    finding = next(each for each in advice if each.kind == "synchronizes-each-step")
    assert finding.expected_gain.ns == (9 * beside + 1 + 10 * 2) * US  # after the last one nothing is launched
    assert f"it waits longest in {operator} (" in finding.evidence
    assert ("(x * mask).sum() / mask.sum()" in finding.change) is (operator == "aten::nonzero")


@pytest.mark.parametrize(
    ("waits", "named"),
    [(5_000, "nonzero (5 ms a step)"), (100, "nonzero (100 µs a step) and aten::item (45 µs a step)")],
)
def test_the_operator_is_named_in_which_the_loop_waits_longest(tmp_path, waits, named):
    """Three items of 15 µs, and then one nonzero."""

    def step(n, at):
        events = [note(f"ProfilerStep#{n}", at, waits + 200), call("cudaLaunchKernel", at, 5, 10 * n + 1)]
        events.append(work("gemm", at + 5, waits + 155, 10 * n + 1))
        reads = [*[("aten::item", 20 + 40 * k, 15) for k in range(3)], ("aten::nonzero", 150, waits)]
        for k, (name, after, long) in enumerate(reads, 10 * n + 2):
            events += [op(name, at + after, long + 2), call("cudaMemcpyAsync", at + after + 1, long, k)]
            events += [copy(at + after + long - 1, 1, k, "Memcpy DtoH (Device -> Pageable)", stream=8, nbytes=8)]
        return events

    advice = lv.advise(read_events(tmp_path, *repeated(10, 2 * waits + 300, step)))
    finding = next(each for each in advice if each.kind == "synchronizes-each-step")
    assert f"it waits longest in aten::{named}" in finding.evidence and "(x * mask)" in finding.change


@pytest.mark.parametrize(("period", "asked"), [(5_000, 10), (5_000, 70), (1_000, 95)])
def test_a_wait_that_is_short_beside_what_the_host_does_is_not_told(tmp_path, period, asked):
    advice = lv.advise(read_events(tmp_path, *masked(period, asked=asked)))
    assert "synchronizes-each-step" not in [each.kind for each in advice]


def test_what_the_profiler_waits_for_as_it_begins_and_ends_is_no_wait_of_the_loop(tmp_path):
    events = [note("ProfilerStep#6", BASE, 2_000), call("cudaDeviceSynchronize", BASE + 5, 300, 90)]
    events += [call("cudaLaunchKernel", BASE + 500 + 150 * n, 5, n + 1) for n in range(10)]
    events += [work("gemm", BASE + 505 + 150 * n, 50, n + 1) for n in range(10)]
    advice = lv.advise(read_events(tmp_path, *events, call("cudaDeviceSynchronize", BASE + 1_990, 9, 91)))
    assert "synchronizes-each-step" not in [each.kind for each in advice]


@pytest.mark.parametrize("early", [0, 1, 2, 3])
def test_a_gain_is_a_part_of_the_step_where_the_device_works_on_earlier_ones(tmp_path, early):
    """Steps of 100 µs on the GPU, of which 40 are an exposed collective; those before the first mark have no launch."""
    events = []
    for n in range(early + 3):
        at, number = BASE + 100 * n, 2 * n + 1
        events += [work("gemm", at + 5, 60, number), work("ncclDevKernel_AllReduce", at + 65, 40, number + 1, stream=9)]
        if n >= early:
            begin = BASE + 100 * (n - early)
            events += [note(f"ProfilerStep#{n}", begin, 100)]
            events += [call("cudaLaunchKernel", begin + 1 + k, 1, number + k) for k in (0, 1)]
            events += [call("cudaEventSynchronize", begin + 4, 95, 1_000 + n)]
    advice = lv.advise(read_events(tmp_path, *events))
    gain = next(each.expected_gain for each in advice if each.kind == "communication-exposed")
    assert gain.ns == 40 * US * (early + 3)
    assert gain.per_step == pytest.approx(40 * US, rel=0.02)  # the window begins 5 µs before the work
    assert "steps that were launched before" in advice.judged if early else "launched before" not in advice.judged


def pageable(nbytes):
    return repeated(
        6,
        1_000,
        lambda n, at: [
            note(f"ProfilerStep#{n + 3}", at, 1_000),
            call("cudaMemcpyAsync", at + 1, 500, 3 * n + 1),
            copy(at + 2, 500, 3 * n + 1, "Memcpy HtoD (Pageable -> Device)", nbytes=nbytes),
            call("cudaLaunchKernel", at + 505, 5, 3 * n + 2),
            work("gemm", at + 511, 400, 3 * n + 2),
        ],
    )


@pytest.mark.parametrize(
    ("nbytes", "outer", "left", "told"),
    [
        (2_500_000, A100, 100, "the link of such a card is taken to reach 25 GB/s"),
        (5_000_000, A100, 200, "the link of such a card is taken to reach 25 GB/s"),
        (25_000_000, A100, 500, ""),  # as fast as the link already: nothing to gain
        (2_500_000, {}, 0, "how fast this GPU's link is, is not known"),
    ],
)
def test_pinned_copies_take_what_the_card_s_link_allows(tmp_path, nbytes, outer, left, told):
    found = {each.kind: each for each in lv.advise(read_events(tmp_path, *pageable(nbytes), **outer), device=0)}
    finding = found.get("pageable-copy") or found.get("hidden-sync")
    if not told:
        assert finding is None
        return
    assert told in finding.evidence
    assert finding.expected_gain.per_step == pytest.approx((501 - left) * US, rel=0.03)


@pytest.mark.parametrize("launches", [1, 2, 20])
def test_a_first_launch_of_seconds_is_a_warm_up_and_told_first(tmp_path, launches):
    events, at = [call("cudaMalloc", BASE, 20, 99)], BASE + 30
    for n in range(launches):
        takes = 10 if n else 5_900_000
        events += [call("cudaLaunchKernel", at, takes, n + 1), work("gemm", at + takes + 1, 30, n + 1)]
        at += takes + 100
    advice = lv.advise(read_events(tmp_path, work("memset", BASE + 21, 2, 0, cat="gpu_memset"), *events))
    assert advice[0].kind == "warm-up" and advice[0].expected_gain.ns == 0
    assert "cudaLaunchKernel" in advice[0].evidence


def test_a_wait_that_gains_little_does_not_come_before_what_the_host_does(tmp_path):
    """Without the wait the host would be as late: it works outside torch, and no CUDA graph shortens that."""
    advice = lv.advise(read_events(tmp_path, *masked(1_110)))
    assert [each.kind for each in advice][:2] == ["host-bound", "synchronizes-each-step"]
    assert advice[0].expected_gain.ns > 8 * advice[1].expected_gain.ns


def test_the_long_name_of_a_kernel_is_looked_through_once(tmp_path, monkeypatch):
    """Names of templates have thousands of letters, and a replay asks of each launch what its kernel is."""

    class Pattern:
        def search(self, name):
            asked.append(name)

    asked = []
    monkeypatch.setattr(what_if, "_UNSCALED", Pattern())
    events = repeated(
        10,
        1_000,
        lambda n, at: [
            note(f"batch {n}: 8 samples", at, 1_000),
            op(f"{LOADER_NEXT}SingleProcessDataLoaderIter.__next__", at, 500),
            call("cudaLaunchKernel", at + 510, 5, n + 1),
            work("a_kernel_of_this_test_alone", at + 520, 300, n + 1),
        ],
    )
    timeline = read_events(tmp_path, *events)
    for size in 2, 4:
        what_if.what_if(timeline, batch_size=size)
    assert asked == ["a_kernel_of_this_test_alone"]


def first_slow(pause, how="host", count=8, slow=(0,)):
    """Steps of 1 ms with a kernel of 700 µs, read in each; those that are `slow` have a pause before it."""
    events, now = [], BASE
    for n in range(count):
        late = pause if n in slow else 0
        copied, asked = (10 + late, 0) if how == "copy" else (10, late if how == "loader" else 0)
        at = now + 60 + asked + (late if how == "host" else 0)
        first, long = at + copied + 20, 700 + (late if how == "kernel" else 0)
        end = first + long + 200
        events += [
            note(f"ProfilerStep#{n + 5}", now, end - now),
            op(f"{LOADER_NEXT}_MultiProcessingDataLoaderIter.__next__", now, 50 + asked),
            op("aten::copy_", at, copied + 5),
            call("cudaMemcpyAsync", at + 1, copied + 3, 10 * n + 1),
            copy(at + 2, copied, 10 * n + 1, "Memcpy HtoD (Pageable -> Device)", nbytes=100_000),
            call("cudaLaunchKernel", at + copied + 10, 5, 10 * n + 2),
            work("gemm", first, long, 10 * n + 2),
            call("cudaDeviceSynchronize", first + 5, long + 5, 10 * n + 3),
        ]
        now = end
    return events


@pytest.mark.parametrize("how", ["host", "loader", "copy"])
def test_a_slow_first_step_is_a_warm_up_and_no_part_of_the_others(tmp_path, how):
    timeline = read_events(tmp_path, *first_slow(10_000, how))
    advice, summary = lv.advise(timeline), lv.summarize(timeline)
    warm = next(each for each in advice if each.kind == "warm-up")
    assert not warm.expected_gain.ns and "the first step takes 10.99 ms, and most of it is" in warm.evidence
    named = {"host": "outside torch", "loader": "__next__, 10.05 ms", "copy": "aten::copy_, 10.02 ms"}[how]
    assert named in warm.evidence and "in the 7 later steps" in warm.evidence
    assert (summary.step, summary.batches, summary.limit) == (990 * US, 7, 7 * 700 * US)
    assert summary.start_up == 10_990 * US
    usual = lv.advise(read_events(tmp_path, *first_slow(0)))
    assert max(each.expected_gain.ns for each in advice) <= max(each.expected_gain.ns for each in usual)


@pytest.mark.parametrize(
    ("pause", "options"),
    [
        (2_000, {}),  # hardly longer than some steps
        (10_000, {"slow": (0, 5)}),  # it comes back
        (10_000, {"count": 2}),  # nothing tells what is usual
        (10_000, {"how": "kernel"}),
    ],
)
def test_a_first_step_that_tells_something_is_judged(tmp_path, pause, options):
    timeline = read_events(tmp_path, *first_slow(pause, **options))
    assert "warm-up" not in [each.kind for each in lv.advise(timeline)]
    assert lv.summarize(timeline).batches == options.get("count", 8) and not lv.summarize(timeline).start_up


@pytest.mark.parametrize(("early", "told"), [(150, None), (1_150, "work on 0.55 steps that were launched before")])
def test_no_negative_number_of_steps_was_launched_before_the_window(tmp_path, early, told):
    """Of three steps of 1 ms the last is cut after 300 µs."""
    events = [work("gemm", BASE, early - 20, -1)]
    for n in range(3):
        at = BASE + early + 1_000 * n
        events += [note(f"ProfilerStep#{n + 5}", at, 1_000 if n < 2 else 400), call("cudaLaunchKernel", at + 5, 5, n)]
        events += [work("gemm", at + 50, 300, n)]
    judged = lv.advise(read_events(tmp_path, *events)).judged
    assert "3 steps of 1 ms" in judged and "work on -" not in judged
    assert (told or "3 steps of 1 ms") in judged and bool(told) is ("launched before" in judged)


def test_a_device_is_one_of_those_that_are_read(tmp_path):
    straggling(tmp_path, 6, count=8)
    timeline = lv.read(tmp_path, ranks=[1, 4, 6])
    assert lv.advise(timeline).judged.startswith("Judged: device 6, one of 3, ")
    assert "; GPU 6 (one of 3) computes " in describe(timeline)
    assert ("window", "device 6, one of 3") in [(what, told) for what, _, told in _rows(lv.summarize(timeline))]


@pytest.mark.parametrize(
    ("lost", "name", "kind"),
    [
        (0, "cudaLaunchKernel", "nothing-to-gain"),
        (2, "cudaLaunchKernel", "nothing-to-gain"),
        (3, "cudaLaunchKernel", "work-not-seen"),
        (3, "cudaMemsetAsync", "nothing-to-gain"),  # of which not each is told
    ],
)
def test_nothing_is_to_gain_only_where_the_work_of_nearly_all_launches_is_seen(tmp_path, lost, name, kind):
    """Of 40 launches some have no work in the file."""
    events = repeated(
        20,
        1_000,
        lambda n, at: [
            note(f"ProfilerStep#{n + 5}", at, 1_000),
            call("cudaLaunchKernel", at + 5, 5, 2 * n + 1),
            work("gemm", at + 20, 975, 2 * n + 1),
            call(name, at + 15, 5, 2 * n + 2),
            *[work("relu", at + 995, 2, 2 * n + 2)] * (n % 5 > 0 or n // 5 >= lost),
        ],
    )
    advice = lv.advise(read_events(tmp_path, *events))
    assert [each.kind for each in advice] == [kind]
    assert (f"{lost} of 40 launches of the loop have no work" in advice[0].evidence) is (kind == "work-not-seen")


def test_a_file_without_correlation_ids_is_told_as_such(tmp_path):
    events = [each | {"args": {}} for each in masked(150, count=100)]
    told = lv.advise(read_events(tmp_path, *events, op("aten::mm", BASE + 30_000, 100)))
    assert "launches put on the GPU: no event has a correlation id" in told[0].evidence
    assert "captured" not in str(told)


def test_a_pause_inside_a_marked_step_is_not_said_to_belong_to_no_step(tmp_path):
    judged = lv.advise(read_events(tmp_path, *first_slow(10_000, slow=(4,)))).judged
    assert ", without 10.04 ms that no usual step has;" in judged
