"""What is packed for the view is the timeline: every span once, every arrow, and exact totals where bars are merged."""

import json
from collections import Counter

import factory
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from unpack import tracks, unpack

from loaderviz import metrics
from loaderviz.timeline import COPIES, ArrowKind, Cause, Kind
from loaderviz.view.lanes import LANES, arrange, depths
from loaderviz.view.pack import MARKS, STATES, Bars, Part, first_view, merge, pack

FIELDS = ("start", "end", "style", "name", "batch", "nbytes", "cause", "pinned", "source", "hidden")


def spans_of(timeline):
    """All that the view knows of each span, with how often it occurs: FIELDS."""
    hidden = np.nan_to_num(metrics.hidden_shares(timeline) * 200, nan=255).round().astype(int)
    return Counter(
        (row.start - timeline.begin, row.end - timeline.begin, int(row.kind), row.name, row.batch, row.nbytes,
         row.cause.words if row.cause else "", {None: 0, False: 1, True: 2}[row.pinned], row.source, int(hidden[index]))
        for index, row in enumerate(timeline.rows())
    )  # fmt: skip


def bars_of(head, body, part=0):
    """The same of each bar of a part that is neither a state nor a mirror."""
    columns, tables = unpack(head, body), {"name": head["names"], "cause": head["causes"], "source": head["sources"]}
    mine = [rows for of, lane, track, rows in tracks(head) if of is head["parts"][part]
            and lane["kind"] != "strip" and not track["mirror"]]  # fmt: skip
    values = (columns[name][np.concatenate(mine or [np.zeros(0, int)])].tolist() for name in FIELDS)
    named = ([tables[name][each] for each in column] if name in tables else column
             for name, column in zip(FIELDS, values, strict=True))  # fmt: skip
    return Counter(zip(*named, strict=True))


def awkward():
    """Far from zero, gaps and lengths and sizes beyond 32 bits, spans of no length, names that hurt."""
    base, stream = 1_712_195_495_521_308_558, "stream 7"
    edge = base + 2**40
    return factory.made(
        (stream, base, base + 2**33, Kind.COMPUTE, {"name": "</script><b>&\u202e \U0001f600"}),
        (stream, edge, edge, Kind.MEMSET, {"name": "no length"}),
        (stream, edge, edge + 2**32 - 1, Kind.COPY_H2D, {"name": "just at the edge", "nbytes": 2**45}),
        ("main", base - 5, base + 2**41, Kind.WAIT, {"name": "", "cause": Cause.DATA, "batch": 2**31 - 2}),
        ("main", base + 7, base + 7, Kind.WAIT, {"name": "inside", "batch": 0}),
    ).self_check()


@pytest.mark.parametrize("timeline", [*(factory.loader(name) for name in factory.LOADERS), awkward(), factory.empty(),
                                      factory.many_spans(3_000, 40)])  # fmt: skip
def test_every_span_is_one_bar_with_all_that_is_known_of_it(timeline):
    head, body = pack([Part(timeline, operators=True)])
    assert bars_of(head, body) == spans_of(timeline)
    assert json.loads(json.dumps(head)) == head


@pytest.mark.parametrize("made", [awkward, lambda: factory.loader("prefetch"), lambda: factory.many_spans(3_000, 40)])
def test_the_picture_is_the_same_where_an_int_has_32_bits(made):
    """A copy of 3 GB was of -1 bytes there."""
    wanted = pack([Part(made(), utilization=True)]), pack([Part(made())], limit=500)
    with factory.int_of_32_bits():
        assert np.full(2, -1).dtype == np.arange(3).dtype == np.int32
        assert (pack([Part(made(), utilization=True)]), pack([Part(made())], limit=500)) == wanted


@given(st.integers(0, 10_000))
def test_a_chaotic_timeline_comes_back(seed):
    timeline = factory.random_timeline(seed, spans=30)
    left_out = Part(timeline, operators=True).arranged[1]
    found, wanted = bars_of(*pack([Part(timeline, operators=True)])), spans_of(timeline)
    assert not found - wanted
    assert (wanted - found).total() == left_out


def test_the_curve_of_utilisation_is_labelled_with_its_own_mean():
    """A collective is a kernel there, as nvidia-smi has it, and all of the timeline counts."""
    timeline = factory.made(
        *factory.us(
            [
                ("stream 7", 0, 300, Kind.COMPUTE),
                ("stream 9", 300, 750, Kind.COMMUNICATION),
                ("main", 0, 1_001, Kind.API),
            ]
        )
    )
    head, _ = pack([Part(timeline, utilization=True)])
    (strip,) = head["parts"][0]["strips"]
    assert (sum(strip["values"]) * strip["cell"], strip["text"]) == (pytest.approx(750_000, rel=0.01), "mean 75 %")


def test_copies_stand_in_their_engine_too_and_states_in_their_strip():
    timeline = factory.loader("prefetch")
    head, body = pack([Part(timeline)])
    columns = unpack(head, body)
    lanes = {lane["name"]: rows for _, lane, _, rows in tracks(head)}
    copies = np.flatnonzero(timeline.where(*COPIES))
    assert columns["start"][lanes["copy engine to GPU"]].tolist() == (timeline.start - timeline.begin)[copies].tolist()
    strip = lanes["what the GPU does"]
    for name, part in metrics.states(timeline).items():
        mine = strip[columns["style"][strip] == STATES[name]]
        found = np.stack([columns["start"][mine], columns["end"][mine]], axis=1)
        assert (found == part - timeline.begin).all()
    assert (columns["start"][strip][1:] == columns["end"][strip][:-1]).all()
    assert [head["styles"][style]["key"] for style in (0, 10, STATES["idle"])] == ["compute", "wait", "state:idle"]


def test_arrows_and_marks_point_at_the_bars_of_their_spans():
    timeline = factory.loader("prefetch")
    timeline = type(timeline)(**{**vars(timeline), "marks": ()})
    head, body = pack([Part(factory.loader("blocking")), Part(timeline)])
    columns = unpack(head, body)

    def said(row):
        return int(columns["start"][row]), int(columns["style"][row]), head["names"][columns["name"][row]]

    found = Counter((said(tail), said(to), kind) for tail, to, kind
                    in zip(columns["tail"], columns["head"], columns["arrow"].tolist(), strict=True))  # fmt: skip
    wanted = Counter()
    for each in (factory.loader("blocking"), timeline):
        for tail, to, kind in zip(*each.arrows.values(), strict=True):
            ends = (
                (row.start - each.begin, int(row.kind), row.name) for row in (each.row(int(tail)), each.row(int(to)))
            )
            wanted[(*ends, int(kind))] += 1
    assert found == wanted
    assert set(columns["arrow"].tolist()) == {ArrowKind.LAUNCH, ArrowKind.WAIT}
    spans = ("stream 9", 5, 9, Kind.COPY_H2D, {"name": "copy"}), ("stream 7", 6, 8, Kind.COMPUTE, {"name": "read"})
    early = 6, "stream 7", "early-read", "read too early; missing: main.wait_stream(side)", (0, 1)
    head, body = pack([Part(factory.made(*spans, marks=[early, (7, "stream 7", "other", "unknown")]))])
    columns, (race, other) = unpack(head, body), head["parts"][0]["marks"]
    assert [head["names"][columns["name"][bar]] for bar in race["bars"]] == ["copy", "read"]
    assert (race["text"], race["missing"], race["time"]) == ("read too early", "main.wait_stream(side)", 1)
    assert other["bars"] == [-1, -1]


def test_the_batch_of_each_bar():
    part = Part(
        factory.made(*(("stream 7", 10 * batch, 10 * batch + 5, Kind.COMPUTE, {"batch": batch}) for batch in range(3)))
    )
    batches = part.batches(part.bars)
    assert batches[part.bars.span >= 0].tolist() == [0, 1, 2] and set(batches[part.bars.span < 0].tolist()) == {-1}


@pytest.mark.parametrize("backwards", [False, True])
def test_the_bar_of_a_span_is_never_the_one_in_the_engine_nor_a_merged_one(backwards):
    part = Part(factory.loader("prefetch"))
    bars = part.bars.at(np.arange(len(part.bars.span))[:: -1 if backwards else 1])
    place, mirrors = part.bar_of(bars), np.array([row.mirror for row in part.tracks])[bars.track]
    assert (bars.span[place[place >= 0]] == np.flatnonzero(place >= 0)).all() and place[-1] == -1
    assert mirrors.sum() == 6 and not mirrors[place].any()
    merged = part.thinned(bars, np.zeros(len(bars.span), bool), 20)
    assert (merged.count[(found := part.bar_of(merged))[found >= 0]] == 1).all() and (merged.count > 1).any()


@pytest.mark.parametrize("more", [0, 1, 500])
def test_of_very_many_hazards_the_first_are_drawn(more):
    marks = [(3, "stream 7", "early-read", "x", (0, -1))] * (MARKS + more)
    head, _ = pack([Part(factory.made(("stream 7", 0, 9, Kind.COMPUTE), marks=marks), name="it")])
    assert len(head["parts"][0]["marks"]) == MARKS
    told = [f"it: {more} hazard{'' if more == 1 else 's'} after the first 1,000 not drawn"]
    assert head["notes"] == (told if more else [])


def test_arrows_of_one_bar_come_in_the_order_of_their_heads():
    late, early = (("stream 7", start, start + 4, Kind.COMPUTE, {"by": by}) for start, by in ((20, -1), (5, -2)))
    heads = unpack(*pack([Part(factory.made(("main", 0, 1, Kind.API), late, early))]))["head"].tolist()
    assert len(heads) == 2 and heads == sorted(heads)


def test_a_long_run_is_first_seen_where_its_gpu_works():
    """Ten kernels amid 300 calls: half of the bars that may be drawn one by one would reach far beyond them."""
    calls = [("main", 5_000 * n, 5_000 * n + 50, Kind.API) for n in range(300)]
    kernels = [("stream 7", at, at + 900, Kind.COMPUTE) for at in range(500_000, 510_000, 1_000)]
    head, _ = pack([Part(factory.made(*calls, *kernels))], limit=100)
    assert 499_000 < head["window"][0] <= 500_000 and 509_900 <= head["window"][1] < 511_000


@pytest.mark.parametrize("limit", [200, 2_000, 10_000])
def test_a_long_run_is_thinned_and_its_totals_stay_exact(limit):
    timeline = factory.many_spans(20_000)
    head, body = pack([Part(timeline)], limit=limit)
    columns = unpack(head, body)
    assert limit / 5 < head["rows"] <= limit
    strip = STATES["compute"]
    for _, lane, _, rows in tracks(head):
        length, style = (columns["end"] - columns["start"])[rows], columns["style"][rows]
        if lane["kind"] == "strip":
            states = metrics.states(timeline)
            assert {key: int(length[style == number].sum()) for key, number in STATES.items()} == {
                key: int((part[:, 1] - part[:, 0]).sum()) for key, part in states.items()
            }
            continue
        mine = timeline.lane == lane["of"]
        assert columns["count"][rows].sum() == mine.sum()
        assert length.sum() == (timeline.end - timeline.start)[mine].sum()
        assert (columns["start"][rows][1:] >= columns["end"][rows][:-1]).all(), "bars overlap"
    (begin, end), kept = head["parts"][0]["whole"], head["window"]
    assert [begin, end] == kept
    start, stop = timeline.start - timeline.begin, timeline.end - timeline.begin
    here = (stop >= begin) & (start <= end)
    inside = Counter(zip(start[here].tolist(), stop[here].tolist(), strict=True))
    single = np.flatnonzero((columns["count"] == 1) & (columns["style"] < strip))
    assert not inside - Counter(zip(columns["start"][single].tolist(), columns["end"][single].tolist(), strict=True))
    assert "20,000 spans are too many" in head["notes"][0]


@given(st.lists(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 50), st.integers(0, 3)), max_size=30), min_size=1,
                max_size=4), st.integers(1, 40))  # fmt: skip
def test_merged_bars_keep_the_time_of_each_category_and_overlap_nothing(found, limit):
    rows = []
    for number, spans in enumerate(found):
        clock = 0
        for gap, length, category in spans:
            rows.append((number, clock + gap, clock + gap + length, category))
            clock += gap + length
    track, start, end, category = np.array(rows, np.int64).reshape(-1, 4).T
    bars = Bars(track, start, end, category, np.arange(len(track)), np.ones(len(track), np.int64))
    merged = merge(bars, category, np.zeros(len(track), bool), limit)
    assert len(merged.span) <= max(limit, len({*zip(track.tolist(), category.tolist(), strict=True)}))
    assert merged.count.sum() == len(track)
    for number in range(len(found)):
        for each in range(4):
            mine, whole = (merged.track == number) & (merged.style == each), (track == number) & (category == each)
            assert (merged.end - merged.start)[mine].sum() == (end - start)[whole].sum()
        here = merged.track == number
        assert (merged.start[here][1:] >= merged.end[here][:-1]).all()
        if here.any():
            assert merged.start[here].min() >= start[track == number].min()
            assert merged.end[here].max() <= end[track == number].max()


def test_a_window_of_ones_own_and_timelines_without_a_first_view():
    assert first_view(factory.loader("blocking")) is first_view(factory.empty()) is None
    assert pack([Part(factory.loader("blocking"))], window=(1, 2))[0]["window"] == [1, 2]


@pytest.mark.parametrize(
    ("start", "end", "view"), [(800, 900, (795, 905)), (400, 899, (376, 923)), (400, 900, None), (400, 1_000, None)]
)
def test_the_gpu_is_looked_at_where_it_works_for_less_than_half_of_the_time(start, end, view):
    spans = ("main", 0, 1_000, Kind.OPERATOR), ("stream 7", start, end, Kind.COMPUTE)
    assert first_view(factory.made(*spans)) == view


@pytest.mark.parametrize(("devices", "folded"), [(1, None), (2, False), (4, False), (5, True)])
def test_of_more_than_four_devices_each_is_folded_to_what_it_does(devices, folded):
    timeline = factory.made(*((f"stream 7@{device}", 0, 10 + device, Kind.COPY_D2H) for device in range(devices)))
    (part,) = pack([Part(timeline)])[0]["parts"]
    groups = [] if folded is None else [(f"GPU {device}", folded) for device in range(devices)]
    assert [(group["name"], group["folded"]) for group in part["groups"]] == groups
    assert all(part["lanes"][group["lane"]]["kind"] == "strip" for group in part["groups"])
    expected = [-1] * 3 if folded is None else [device for device in range(devices) for _ in range(3)]
    assert [lane["group"] for lane in part["lanes"]] == expected


def test_a_short_body_is_not_compressed():
    parts = [Part(factory.loader("pinned"))]
    raw = pack(parts, small=10**9)[1]
    assert [pack(parts, small=len(raw) + more)[0]["codec"] for more in (0, 1)] == ["gzip", "raw"]


def test_a_part_may_begin_later():
    timeline = factory.loader("pinned")
    bars, later = Part(timeline).bars, Part(timeline, shift=70).bars
    assert bars.start.min() == 0 and bars.end.max() == timeline.duration
    assert (later.start - bars.start == 70).all() and (later.end - bars.end == 70).all()


def test_the_strip_of_utilisation_has_200_cells_and_says_the_mean():
    spans = ("main", 0, 1_400, Kind.OPERATOR), ("stream 7", 66, 70, Kind.COMPUTE), ("stream 7", 350, 696, Kind.COMPUTE)
    (strip,) = pack([Part(factory.made(*spans), utilization=True)])[0]["parts"][0]["strips"]
    assert (strip["cell"], strip["text"]) == (7, "mean 25 %")
    assert strip["values"] == [{9: 0.571, 99: 0.429}.get(cell, float(50 <= cell < 99)) for cell in range(200)]
    assert pack([Part(factory.made(*spans))])[0]["parts"][0]["strips"] == []
    assert pack([Part(factory.empty(), utilization=True)])[0]["parts"][0]["strips"] == []
    short = factory.made(("stream 7", 0, 3, Kind.COMPUTE))
    assert pack([Part(short, utilization=True)])[0]["parts"][0]["strips"][0]["cell"] == 1


def test_the_numbers_beside_a_part_stand_at_the_strip_of_its_busiest_device():
    spans = [(f"stream 7@{device}", 0, 10 * (device == 1) + 5, Kind.COMPUTE) for device in range(3)]
    (part,) = pack([Part(factory.made(*spans), hero={"text": "x"})])[0]["parts"]
    lane = part["lanes"][part["hero"]["lane"]]
    assert (lane["kind"], lane["group"], part["hero"]["text"]) == ("strip", 1, "x")
    assert pack([Part(factory.made(*spans))])[0]["parts"][0]["hero"] is None
    host = factory.made(("main", 0, 10, Kind.OPERATOR))
    assert pack([Part(host, hero={"text": "x"})])[0]["parts"][0]["hero"] is None  # without a device there is none


def test_where_a_step_goes_sums_to_the_step():
    summary = metrics.summarize(timeline := factory.loader("blocking", 12))
    (part,) = pack([Part(timeline)])[0]["parts"]
    assert sum(row["ns"] for row in part["where"]) == pytest.approx(summary.step, abs=len(part["where"]))
    keys = {row["name"]: row["key"] for row in part["where"]}
    assert keys["GPU computes"] == "state:compute" and keys["copy exposed"] == "state:copy exposed"
    assert {key for name, key in keys.items() if name.startswith("idle: host blocked")} <= {"wait"}
    assert {key for name, key in keys.items() if name.startswith("idle: host in")} == {"state:idle"}
    assert part["where_title"].startswith("a step, 275 µs")
    (whole,) = pack([Part(factory.made(("main", 0, 1_000, Kind.OPERATOR)))])[0]["parts"]
    assert (whole["where_title"], [row["ns"] for row in whole["where"]]) == ("all of it, 1 µs", [1_000])
    assert pack([Part(factory.empty())])[0]["parts"][0]["where_title"] == ""


def test_a_merged_bar_hides_nothing_and_belongs_to_its_batch():
    timeline = factory.loader("prefetch", 300)
    head, body = pack([Part(timeline)], limit=120)
    columns = unpack(head, body)
    merged = columns["count"] > 1
    assert merged.any() and (columns["hidden"][merged] == 255).all()
    alone = factory.made(("stream 7", 0, 100, Kind.COPY_H2D), ("stream 8", 25, 100, Kind.COMPUTE))
    hidden = unpack(*pack([Part(alone)]))["hidden"]
    assert sorted(set(hidden.tolist())) == [150, 255]  # in half per cent


# Where spans go: the order of the lanes, and tracks without overlaps


TRACKS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 20)), max_size=20)


def names(timeline, **options):
    return [row.name for row in arrange(timeline, **options)[0]]


def test_lanes_go_the_way_of_a_batch_in_the_words_of_the_reader():
    assert names(factory.loader("prefetch")) == [
        "worker 0", "worker 1", "pin thread", "main thread: batches", "main thread: CUDA calls", "main thread waits",
        "copy engine to GPU", "default stream", "side stream", "what the GPU does",
    ]  # fmt: skip
    assert "main thread: operators" in names(factory.loader("prefetch"), operators=True)
    assert names(factory.empty()) == []


@pytest.mark.parametrize(
    ("streams", "rows"),
    [
        (["stream 7"], ["default stream"]),
        (["stream 7", "stream 13"], ["default stream", "side stream"]),
        (["stream 7", "stream 13", "stream 20"], ["default stream", "side stream 13", "side stream 20"]),
        (["stream 13"], ["stream 13"]),  # none is known to be the default one
        (["stream 13", "stream 20"], ["stream 13", "stream 20"]),
        (["stream 7@0", "stream 13@0", "stream 7@1"], ["default stream", "side stream", "default stream"]),
        (["stream 0", "stream 7"], ["default stream", "side stream"]),
    ],
)
def test_a_number_tells_side_streams_apart_and_where_there_is_one_it_has_none(streams, rows):
    timeline = factory.made(*((name, at, at + 5, Kind.COMPUTE) for at, name in enumerate(streams)))
    assert [row.name for row in arrange(timeline)[0] if row.kind == "stream"] == rows


def test_every_span_is_in_one_track_and_copies_in_that_of_their_engine_too():
    timeline = factory.loader("prefetch")
    rows, left_out = arrange(timeline, operators=True)
    times = np.bincount(np.concatenate([track for row in rows for track in row.tracks]), minlength=len(timeline))
    assert (times == np.where(timeline.where(Kind.COPY_H2D), 2, 1)).all()
    assert [row.kind for row in rows if row.mirror] == ["engine"] and left_out == 0


@given(TRACKS)
def test_tracks_hold_no_overlap(spans):
    start = np.array([start for start, _ in spans], np.int64)
    end = start + np.array([length for _, length in spans], np.int64)
    depth = depths(start, end)
    for one in range(len(spans)):
        for other in range(one):
            if depth[one] == depth[other] and end[one] > start[one] and end[other] > start[other]:
                assert end[one] <= start[other] or end[other] <= start[one]


def test_nested_spans_go_down_one_track_a_level():
    #         outer      child     grandchild  child     apart
    start = np.array([0, 10, 20, 60, 100])
    end = np.array([100, 50, 30, 90, 110])
    assert depths(start, end).tolist() == [0, 1, 2, 1, 0]
    assert depths(start[::-1], end[::-1]).tolist() == [0, 1, 2, 1, 0][::-1]
    points = depths(np.array([0, 10, 10, 20]), np.array([10, 10, 20, 20]))  # a stream needs one track even with them
    assert points.tolist() == [0, 0, 0, 0]


def test_a_long_operator_is_drawn_where_the_host_would_seem_to_do_nothing():
    timeline = factory.made(
        ("main", 0, 500, Kind.OPERATOR),
        ("main", 10, 400, Kind.OPERATOR),  # inside of it
        ("main", 450, 460, Kind.API),
        ("main", 500, 510, Kind.OPERATOR),  # a short one
        ("main", 600, 900, Kind.OPERATOR),  # around a call
        ("main", 610, 890, Kind.API),
    )
    operators, calls = arrange(timeline)[0]
    assert (operators.name, calls.name) == ("main thread: operators", "main thread: CUDA calls")
    assert operators.tracks[0].tolist() == [0]


def test_each_gpu_has_its_own_lanes_and_strip():
    rows, _ = arrange(factory.made(*((f"stream 7@{device}", 0, 10, Kind.COPY_D2H) for device in (1, 0))))
    assert [(row.device, row.name) for row in rows] == [
        (gpu, name) for gpu in (0, 1) for name in ("copy engine from GPU", "default stream", "what the GPU does")
    ]


@pytest.mark.parametrize("depth", [4, 6])
def test_spans_nested_too_deeply_are_counted(depth):
    rows, left_out = arrange(factory.made(*(("thread 5", level, 100 - level, Kind.RANGE) for level in range(depth))))
    assert (len(rows[0].tracks), left_out) == (4, depth - 4)


@pytest.mark.parametrize("devices", [1, 3 * LANES])
def test_of_very_many_lanes_the_busiest_are_drawn_and_a_line_says_how_many_are_not(devices):
    streams = ((f"stream {n + 8}@{n % devices}", n, n + 10 + n % 999, Kind.COMPUTE) for n in range(3 * LANES))
    threads = ((f"thread {n}", n, n + 10 + n % 777, Kind.API) for n in range(2 * LANES))
    timeline = factory.made(("main", 0, 5, Kind.API), ("stream 7", 0, 1, Kind.COPY_H2D), *threads, *streams)
    rows, left_out = arrange(timeline)
    drawn = {group: [row for row in rows if row.kind == group and row.of >= 0] for group in ("host", "stream")}
    assert [row.name for row in rows[-2:]] == ["and 251 more threads", "and 501 more streams"]
    assert (len(drawn["host"]), len(drawn["stream"]), left_out) == (LANES, LANES, 0)
    assert drawn["host"][0].name == "main thread: CUDA calls"  # although it is seldom busy
    busy = {
        lane: int((timeline.end - timeline.start)[timeline.lane == lane].sum()) for lane in range(len(timeline.lanes))
    }
    shown = sorted(busy[row.of] for row in drawn["stream"])
    assert shown == sorted(busy[n] for n, lane in enumerate(timeline.lanes) if lane.role == "stream")[-LANES:]
    head, _ = timeline.view().packed()
    assert head["parts"][0]["lanes"][-1]["tracks"] == [{"count": 0, "mirror": False}]
    said = "501 more streams are not drawn: they are busy for a shorter time than those in the picture"
    assert head["parts"][0]["lanes"][-1]["title"] == said == head["notes"][-1]
    assert head["parts"][0]["lanes"][-1]["group"] == -1
    assert ">and 501 more streams<" in timeline.view().svg()


@pytest.mark.parametrize("marked", [False, True])
def test_the_steps_that_are_judged_are_looked_at_although_the_gpu_works_at_their_end_alone(marked):
    steps = [("main", 250 * n, 250 * n + 250, Kind.RANGE, {"name": f"batch {n}", "batch": n}) for n in range(4)]
    spans = steps if marked else []
    timeline = factory.made(*spans, ("main", 0, 1_000, Kind.OPERATOR), ("stream 7", 800, 900, Kind.COMPUTE))
    assert first_view(timeline) == (None if marked else (795, 905))


@pytest.mark.parametrize("seen", [False, True])
def test_without_work_of_the_gpu_nothing_says_that_it_is_idle(seen):
    spans = [("main", 0, 400, Kind.OPERATOR), *([("stream 7", 500, 600, Kind.COMPUTE)] if seen else [])]
    head = pack([Part(factory.made(*spans), utilization=True)])[0]["parts"][0]
    assert any(each["name"].startswith("idle") for each in head["where"]) is seen
    assert {"host in operators", "idle: host in operators"} & {each["name"] for each in head["where"]}
    assert bool(head["strips"]) is seen


@pytest.mark.parametrize(
    ("language", "lane"), [("zh", "默认流"), ("en", None), ("", None), ("../zh", None), ("xx", None)]
)
def test_the_picture_is_written_in_the_language_of_the_lessons(monkeypatch, language, lane):
    """Lanes, legend and states of a picture in a Chinese notebook; what is no language is English."""
    monkeypatch.setenv("LOADERVIZ_LANGUAGE", language)
    head, _ = pack([Part(factory.made(("main", 0, 10, Kind.API)))])
    assert head.get("words", {}).get("default stream") == lane
    assert "words" in head if lane else "words" not in head
