"""Answers for lesson 7: exposed copies from intervals, and causes found in timelines."""

from __future__ import annotations

import numpy as np

import loaderviz as lv
from loaderviz import intervals
from loaderviz.timeline import Kind

# 7.1


def union(pairs):
    merged = []
    for start, end in sorted(pairs):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(end, merged[-1][1])
        else:
            merged.append([start, end])
    return merged


def overlap(one, other):
    return sum(max(0, min(a[1], b[1]) - max(a[0], b[0])) for a in one for b in other)


def length(pairs):
    return sum(end - start for start, end in pairs)


def merge_and_intersect(copies, kernels):
    copies, kernels = union(copies), union(kernels)
    return length(copies) - overlap(copies, kernels)


def sweep(copies, kernels):
    """Go through all starts and ends in order, counting what runs."""
    edges = [(time, kind, step) for kind, some in enumerate((copies, kernels)) for pair in some
             for time, step in zip(pair, (1, -1), strict=True)]  # fmt: skip
    total, before, runs = 0, 0, [0, 0]
    for time, kind, step in sorted(edges):
        total += (time - before) * (runs[0] > 0 and runs[1] == 0)
        runs[kind] += step
        before = time
    return total


def with_numpy(copies, kernels):
    copies, kernels = (intervals.union(*np.array(some).T) for some in (copies, kernels))
    return np.int64(intervals.length(intervals.subtract(copies, kernels)))


def everything(copies, kernels):
    return length(copies)


def all_copy_time(copies, kernels):
    return length(union(copies))


def hidden(copies, kernels):
    return overlap(union(copies), union(kernels))


def each_copy_alone(copies, kernels):
    kernels = union(kernels)
    return sum(end - start - overlap([(start, end)], kernels) for start, end in copies)


def each_kernel_alone(copies, kernels):
    copies = union(copies)
    return length(copies) - overlap(copies, kernels)


def only_in_order(copies, kernels):
    """Compares the n-th copy with the n-th kernel."""
    pairs = zip(copies, kernels, strict=False)
    return length(copies) - sum(overlap([one], [other]) for one, other in pairs)


def in_microseconds(copies, kernels):
    return merge_and_intersect(copies, kernels) / 1000


def as_text(copies, kernels):
    return str(merge_and_intersect(copies, kernels))


def zero(copies, kernels):
    return 0


# 7.2


def by_advice(timeline):
    names = {"waiting-for-data": "data", "pageable-copy": "pageable copy", "hidden-sync": "pageable copy",
             "copy-not-hidden": "one stream"}  # fmt: skip
    return names.get(lv.advise(timeline)[0].rule, "nothing")


def by_columns(timeline):
    copies = list(timeline.rows(Kind.COPY_H2D))
    kernels = {span.lane for span in timeline.rows(Kind.COMPUTE)}
    if any(span.pinned is False for span in copies):
        return "pageable copy"
    if any(span.lane in kernels for span in copies):
        return "one stream"
    busy = sum(span.end - span.start for span in timeline.rows(Kind.COMPUTE))
    return "nothing" if busy > 0.9 * timeline.duration else "data"


def by_largest_loss(timeline):
    summary = lv.summarize(timeline)
    lost = {part: time for part, time in summary.breakdown.items() if part != "compute"}
    largest = max(lost, key=lost.get)
    if lost[largest] < 0.05 * summary.window:
        return "nothing"
    staged = "staging" in summary.host_blocked
    return "data" if "data" in largest else "pageable copy" if staged else "one stream"


def any_wait_is_bad(timeline):
    summary = lv.summarize(timeline)
    if summary.host_blocked.get("waiting for data", 0) > summary.window / 4:
        return "data"
    return "pageable copy" if summary.host_blocked.get("staging") else "nothing"


def never_nothing(timeline):
    found = by_largest_loss(timeline)
    return "one stream" if found == "nothing" else found


def pinned_or_not(timeline):
    return "pageable copy" if by_columns(timeline) == "pageable copy" else "nothing"


def exposed_is_pageable(timeline):
    found = by_largest_loss(timeline)
    return "pageable copy" if found == "one stream" else found


def always_data(timeline):
    return "data"


def a_number(timeline):
    return 1


def another_word(timeline):
    return "slow loader"


RIGHT = {
    "7.1": [merge_and_intersect, sweep, with_numpy],
    "7.2": [by_advice, by_columns, by_largest_loss],
}
WRONG = {
    "7.1": [
        (everything, r"Yours is (the sum of all copies|all the time in which a copy runs), the hidden part as well"),
        (all_copy_time, r"Yours is .*the hidden part as well. The longest exposed stretch is from [\d,]+ µs to [\d,]+"),
        (hidden, r"You returned 0 ns; [\d,]+ ns are exposed. Yours is the hidden part"),
        (each_copy_alone, r"right for each copy alone, but where two copies run at once it counts twice"),
        (each_kernel_alone, r"right for each kernel alone, but where two kernels run at once"),
        (only_in_order, r"You returned [\d,]+ ns; [\d,]+ ns are exposed"),
        (in_microseconds, r"ns are exposed. The longest exposed stretch"),
        (as_text, r"Your function returned '\d+'. A number of ns is wanted"),
        (zero, r"You returned 0 ns"),
    ],
    "7.2": [
        (any_wait_is_bad, r"It is '.*but the GPU is (idle for [\d.]+ .s of it only|never idle)|It is 'one stream'"),
        (never_nothing, r"It is 'nothing'. The GPU computes .* of the time"),
        (pinned_or_not, r"It is '(data|one stream)'. The (loop waits for data and the GPU is idle|copy of batch)"),
        (exposed_is_pageable, r"It is 'one stream'. The copy of batch \d+ runs .* and so are the kernels.*R16"),
        (always_data, r"you said 'data'. It is '(pageable copy|one stream|nothing)'"),
        (a_number, r"returned 1; wanted is one of 'data', 'pageable copy'"),
        (another_word, r"returned 'slow loader'; wanted is one of"),
    ],
}  # fmt: skip
