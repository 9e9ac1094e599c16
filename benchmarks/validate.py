"""Make docs/validation.md, its picture and its table: what the emulator predicts, beside what was measured.

Run it from the repository's root, with the shared traces beside it (`--out -` prints only):

    python -m benchmarks.validate [--out docs/validation.md]

The measurements are rows of published.csv and held_out.csv (`benchmarks.published`). Kernel times of a step come from
the model's operators on the meta device, priced as the emulated GPU prices them; the host's time of a step from a
recording of the same program with little data on a GPU that takes no time; a loader's from a recording of the loader.
"""

from __future__ import annotations

import argparse
import csv
import math
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import plotly.graph_objects as go
import torch
from plotly.subplots import make_subplots

from benchmarks.gil import judged
from benchmarks.orders import table
from benchmarks.published import HELD_OUT, OLD_CARDS, Row, card, is_frozen, predict, rows, setup_of
from benchmarks.steps import Setup, gpu_time, host_time
from loaderviz import advise, read, record, summarize, validate, words
from loaderviz.analysis.ranks import rank_table
from loaderviz.analysis.validate import Trace
from loaderviz.emulator import Gpu
from loaderviz.emulator.hardware import GPUS, Kernel
from loaderviz.emulator.kernels import Call, kernel_times, row_of

TRACES = Path(__file__).resolve().parents[2] / "shared" / "traces"
HOST = "server 2023"
FITTED, SEEN, UNSEEN = "fitted on", "seen while fitting", "never fitted on"
TRACE_TABLE = (
    ("measured/h100_qwen_bf16_2025", "", FITTED),
    ("measured/h100_timesformer_bf16_2025", "", FITTED),
    ("measured/a100_dlrm_tf32_2022", "", FITTED),
    ("resnet50_workers0_2021", "", FITTED),
    ("ab/resnet50_workers0_2021_b", "", "the fitted program once more"),
    ("judged/h100_bert_small_2025", "", SEEN),
    ("measured/v100_dlrm_2023", "", UNSEEN),
    ("two_ranks/rank-0", "a100-sxm-80gb", UNSEEN),
    ("two_ranks/rank-1", "a100-sxm-80gb", UNSEEN),
)
# What is read in a trace without loaderviz: sums of its events, in the steps where they are marked.
BY_HAND = {
    "ab/resnet50_workers0_2021_b": "its loop fetches for 272.8 of 929.5 ms, and the GPU is idle for 213 ms of that",
    "alexnet_pageable_2023": "in 43.35 s, three calls of 29.9, 6 and 3.1 s that come once; the GPU works for 66 ms",
    "cpu_only_2023": "no kernel, no copy, and no call that launches one",
    "event_sync_2023": "no kernel in the first 2.81 of 3.15 ms, 2.24 ms of which are the first aten::ones",
    "judged/a100_sam_fast_2023": "idle for 131.8 of 646.9 ms, and for 86.1 ms of that the host makes no call at all",
    "judged/a100_zoology_no_kernels_2023": "236 launches of kernels, eight A100s named, and no event of a GPU",
    "judged/h100_bert_small_2025": "60 kernels, and the GPU is idle for 4.12 of 4.43 ms",
    "judged/mi300_resnet_act_checkpoint": "collectives run for 71.5 of 86.6 ms, and for 55.6 ms no other kernel does",
    "measured/a100_dlrm_tf32_2022": "collectives run alone for 87.9 of 465.2 ms, and the GPU is idle for 76.6 ms",
    "measured/a100_resnet50_2024": "idle for 509.7 of 667.2 ms, 434.6 ms of that in operators and calls of CUDA",
    "measured/h100_qwen_bf16_2025": "kernels run for 45.2 of 49.4 ms",
    "measured/h100_timesformer_bf16_2025": "the GPU's first work comes after 218.1 ms of the step of 382.5 ms",
    "measured/v100_dlrm_2023": "idle for 7.87 of 14.46 ms, 1.1 ms of that in the loader; collectives alone 5.54 ms",
    "measured/v100_resnet50_2024": "kernels run for 468 of 483.5 ms",
    "ranks8_nanogpt_2025": "see below",
    "resnet50_workers0_2021": "its loop fetches for 415.8 of 1,065.6 ms, and the GPU is idle for 355.6 ms of that",
    "two_ranks": "rank 1 is idle for 658.5 of 1,238.6 ms, and its collectives run alone for 303.5 ms",
}
# Model, preset, batch, ms of kernels of a training step in float32 (TF32 where the card has it), by traces.
STEPS = (("resnet18", "2080ti", 128, 136.8), ("resnet50", "v100-32gb", 32, 93.6), ("resnet50", "a100-sxm", 32, 38.6))
LIMIT = 0.25
SMALL_MODEL = "Of the V100's small model each kernel takes a few us, read in whole us."
# Products in TF32, fitted on one trace and judged on the others: who has the numbers, and the steps of the search.
A100S = {"a100_dlrm_tf32_2022": ["measured/a100_dlrm_tf32_2022"], "two_ranks": ["two_ranks/rank-0", "two_ranks/rank-1"]}
FITTING, FIRST = ((80, 40, 800), (20, 10, 200), (10, 10, 100)), (800, 400, 8000)
PRODUCTS = """
Products in TF32 have three numbers: which share of the peak they reach where rows are 16-byte aligned, which where
they are not, and how fast a multiprocessor then reads. Fitted on one of the A100s' traces and judged on the other, both
ways; the tiles, whose rates kernels.toml has, were written with both in view. Errors of whole traces:
"""
CARD = """
The two ranks do not name their card. Their largest copy within its memory, read and written, would take {ranks:.0%} of
the bandwidth of a 40 GB card, and that of the other trace takes {other:.0%}: so it is one of 80 GB. Strides are not in
these traces: that operands lie transposed, or are parts of odd rows, is read from kernels' names."""
STEP_TRACES = {"v100-32gb": "measured/v100_resnet50_2024", "a100-sxm": "measured/a100_resnet50_2024"}
INSTRUMENTED = """\
So the V100's is bound by its GPU, as predicted. The A100's is bound by its host in that trace, not as predicted: a
profiler that slows every call several times made it so (from launch to launch it takes the longest of all traces at
hand); published steps of this model on A100s, below, are bound by the GPU."""
FLAT, CLEAR = 1.2, 1.1  # a step that a larger batch lengthens by less is the host's; one longer by more is longer
# deepmd-kit, pull request 4463: ms of Adam's step before and after fused=True, of a model of unknown size.
FUSED = (22, 8)
COLORS = {"fitted": "#9aa0a6", "same": "#5b8def", "unseen": "#e8710a", "held out": "#c5221f"}
MEANS = {
    "fitted": "a number of a preset was fitted on it",
    "same": "another size of what was fitted",
    "unseen": "nothing was fitted on it, but it was seen",
    "held out": "nothing is fitted on it; the file is frozen, its loaders were before anybody read them",
}
PANELS = {"loader": "Loaders", "host": "Steps and calls that the host sets", "copy": "Copies", "kernel": "Kernels"}
MISSED, WORST = 1.5, 15  # from this factor on a row is told apart, at most so many
SHARES = [round(0.5 * 1.05**step, 4) for step in range(31)]  # of what kernels.toml has, tried when one is fitted anew
PART, MODELS = 0.15, 3  # of a step's kernels that a class has at least, and of models, where its share is fitted anew
LARGE = 8  # images from which a step is the GPU's
CLASSES = ("conv_fp16", "conv_tf32", "conv_groups", "conv_depthwise", "conv_3x3_fp32", "gemm_fp16", "elementwise")


def traces() -> Iterator[str]:
    """Give the table of real traces, and of those beyond the limit which classes of kernels are the cause."""
    yield "| trace | GPU | ms with shapes | predicted / measured | error | |\n|---|---|---|---|---|---|"
    beyond = []
    for name, on, role in TRACE_TABLE:
        found = validate(TRACES / f"{name}.json.gz", on or None)
        yield (f"| {name} | {found.gpu.name} | {found.measured / 1e6:.2f} | {found.ratio:.2f} | "
               f"{found.error:.0%} | {role} |")  # fmt: skip
        if found.error > LIMIT:
            worst = sorted(found.rows, key=lambda row: -row.difference)[:3]
            parts = ", ".join(f"{row.kind} {row.difference / found.measured:.0%}" for row in worst)
            beyond.append(f"{name}: {parts}, of {found.error:.0%} in all")
    yield f"\nBeyond {LIMIT:.0%}: {'; '.join(beyond) or 'none'}. {SMALL_MODEL}"
    yield from products()


def findings() -> Iterator[str]:
    """Give the first finding of each real trace, and what is read in it by hand."""
    yield "| trace | first finding | at most | read by hand |\n|---|---|---|---|"
    for name, told in BY_HAND.items():
        path = TRACES / name
        first = advise(read(path if path.is_dir() else path.with_name(f"{path.name}.json.gz")))[0]
        yield f"| {name} | {first.kind} | {words.share(first.expected_gain.share)} | {told} |"


def ranks(run: Path = TRACES / "ranks8_nanogpt_2025") -> Iterator[str]:
    """Give the table of the ranks of a run, with the reading by hand beside it."""
    timeline = read(run)
    if (table := rank_table(timeline)) is None:
        return
    found, (worst, *_) = table.lateness, table.late
    last = found.device[np.r_[np.flatnonzero(np.diff(found.group)), len(found.group) - 1]]
    others = [row.waits for row in table.rows if row != worst.row]
    summary = summarize(timeline, window=found.window, device=worst.row.device)
    cost, whole = words.duration(found.cost), words.duration(summary.window)
    yield "| what | by hand | loaderviz |\n|---|---|---|"
    yield f"| collectives of several ranks | 84 | {table.shared} |"
    yield f"| of these, rank 1 comes last to | 17 | {np.count_nonzero(last == worst.row.device)} |"
    yield f"| the rank to blame | 1 | {worst.row.rank} |"
    waits = "the others wait for it, of all lateness | 27.4 ms, of which they compute for 1.5 ms, 84 %"
    yield f"| {waits} | {cost}, {words.share(found.share)} |"
    yield f"| it waits for others | 6 ms | {words.duration(worst.row.waits)} |"
    yield f"| each of the others waits | 31 to 41 ms | {words.duration(min(others))} to {words.duration(max(others))} |"
    yield f"| its GPU is idle | 56.7 of 207 ms | {words.duration(summary.idle)} of {whole} |"


def products() -> Iterator[str]:
    """Give what products in TF32 come to when their numbers are fitted on one trace and judged on the other."""
    traces = {name: (Gpu.preset(on) if on else None) for name, on, _ in TRACE_TABLE}
    judged = {name: Judged(name, traces[name]) for names in A100S.values() for name in names}
    yield PRODUCTS
    yield f"| fitted on | aligned | not aligned | GB/s | {' | '.join(judged)} |"
    yield f"|---|---|---|---|{'---|' * len(judged)}"
    for role, names in A100S.items():
        numbers = fitted([judged[name] for name in names])
        errors = " | ".join(f"{each.error(numbers):.0%}" for each in judged.values())
        yield f"| {role} | {numbers[0] / 1000:.2f} | {numbers[1] / 1000:.2f} | {numbers[2] / 1000:.1f} | {errors} |"
    ranks, other = (max(judged[name].copied for name in names) for names in reversed(A100S.values()))
    sheet = Gpu.preset("a100-sxm").memory_bandwidth
    yield CARD.format(ranks=ranks[1] / sheet, other=other[1] / sheet)


class Judged:
    """A trace's operators, and the error of the whole with other numbers of its products in TF32."""

    def __init__(self, name: str, gpu: Gpu | None) -> None:
        trace = Trace(TRACES / f"{name}.json.gz")
        self.gpu, self.measured = gpu or Gpu.named(trace.device), sum(sum(kernels) for _, kernels in trace.operators)
        copies = [event for events in trace.work.values() for event in events if "DtoD" in event.name]
        self.copied = max((event.nbytes, 2e9 * event.nbytes / event.length) for event in copies)
        self.products, self.others = list[tuple[Call, list[int]]](), 0
        places = dict[str, int]()
        for call, kernels in trace.operators:
            if not row_of(call).startswith("gemm_tf32"):
                self.others += abs(sum(kernels) - sum(kernel_times(self.gpu, call)))
                continue
            place = places.setdefault(str(call), len(self.products))
            if place == len(self.products):
                self.products.append((call, []))
            self.products[place][1].append(sum(kernels))

    def error(self, numbers: Sequence[int]) -> float:
        """Return the error with these numbers: thousandths of the peak, aligned and not, and MB/s."""
        kernels = dict(self.gpu.kernels)
        for kind, peak in zip(("gemm_tf32", "gemm_tf32_align1"), numbers, strict=False):
            kernels[kind] = kernels[kind]._replace(peak=peak)
        gpu, missed = replace(self.gpu, kernels=kernels, word_rate=numbers[2] * 10**6), self.others
        for call, times in self.products:
            predicted = sum(kernel_times(gpu, call))
            missed += sum(abs(time - predicted) for time in times)
        return missed / self.measured


def fitted(traces: Sequence[Judged]) -> tuple[int, ...]:
    """Return the numbers with the smallest sum of errors, found by going downhill in ever smaller steps."""

    def missed(numbers: Sequence[int]) -> float:
        return sum(trace.error(numbers) for trace in traces)

    best: tuple[int, ...] = FIRST
    for steps in FITTING:
        better = best
        while better:
            best = better
            around = [
                tuple(number + way * steps[place] * (place == other) for other, number in enumerate(best))
                for place in range(3)
                for way in (-1, 1)
            ]
            nearest = min(around, key=missed)
            better = nearest if missed(nearest) < missed(best) else ()
    return best


def steps() -> Iterator[str]:
    """Give the table of whole steps, and who set the length of a step where its trace is at hand."""
    yield "| model, batch | GPU | kernels, ms measured | predicted | ratio | kernels launched | host ms | bound by |"
    yield "|---|---|---|---|---|---|---|---|"
    seen = []
    for model, gpu, batch, measured in STEPS:
        total, kernels = gpu_time(Setup(model, batch, "train"), Gpu.preset(gpu))
        took = (total - kernels * Gpu.preset(gpu).queue_gap) / 1e6
        host = host_time(Setup(model, 0, "train"), HOST) / 1e6
        bound = "GPU" if took > host else "host"
        ratio = f"{took:.1f} | {took / measured:.2f} | {kernels} | {host:.1f} | {bound}"
        yield f"| {model}, {batch} | {gpu} | {measured:.1f} | {ratio} |"
        if gpu in STEP_TRACES:
            whole = summarize(read(TRACES / f"{STEP_TRACES[gpu]}.json.gz"))
            seen.append(f"{gpu} {(whole.step or 0) / 1e6:.1f} ms, the GPU busy {whole.busy or 0:.0%} of it")
    yield f"\nThe steps of the traces: {'; '.join(seen)}.\n{INSTRUMENTED}"


class Found(NamedTuple):
    """A row and what is predicted for it, in the row's unit."""

    row: Row
    predicted: float

    @property
    def error(self) -> float:
        """As a share of what was measured."""
        return self.predicted / self.row.measured - 1

    @property
    def factor(self) -> float:
        """How many times too long or too short, at least 1."""
        return max(self.predicted / self.row.measured, self.row.measured / self.predicted)


def found() -> list[Found]:
    """Predict every row."""
    every = []
    for row in rows():
        every.append(Found(row, predict(row)))
        print(f"{row.part:7} {row.item[:60]:60} {row.measured:9.4g} {every[-1].predicted:9.4g}", file=sys.stderr)
    return every


def draw(every: Sequence[Found]) -> go.Figure:
    """Draw predicted over measured, with the band in which they differ by no more than twice."""
    figure = make_subplots(2, 2, subplot_titles=list(PANELS.values()), vertical_spacing=0.14, horizontal_spacing=0.1)
    for place, part in enumerate(PANELS):
        where: Any = {"row": place // 2 + 1, "col": place % 2 + 1}
        mine = [each for each in every if each.row.part == part]
        numbers = [number for each in mine for number in (each.row.measured, each.predicted)]
        ends = [min(numbers) / 2, max(numbers) * 2]
        band = ends + ends[::-1], [ends[0] * 2, ends[1] * 2, ends[1] / 2, ends[0] / 2]
        shape = {"x": band[0], "y": band[1], "fill": "toself", "fillcolor": "rgba(0,0,0,.06)", "showlegend": False}
        figure.add_scatter(mode="none", hoverinfo="skip", **shape, **where)
        line = {"color": "#888", "width": 1}
        figure.add_scatter(x=ends, y=ends, mode="lines", line=line, showlegend=False, **where)
        for used, color in COLORS.items():
            some = [each for each in mine if each.row.used == used]
            figure.add_scatter(
                x=[each.row.measured for each in some], y=[each.predicted for each in some], mode="markers", name=used,
                marker={"color": color, "size": 6, "opacity": 0.8}, legendgroup=used,
                showlegend=part == "kernel", **where,
            )  # fmt: skip
        span = [math.log10(end) for end in ends]
        figure.update_xaxes(type="log", dtick=1, range=span, title="measured, ms", **where)
        figure.update_yaxes(type="log", dtick=1, range=span, title="predicted, ms", **where)
    legend = {"orientation": "h", "y": -0.1, "x": 0.5, "xanchor": "center"}
    return figure.update_layout(template="simple_white", height=760, legend=legend, margin={"t": 40, "r": 20})


def misses(every: Sequence[Found]) -> Iterator[str]:
    """Give the rows that are furthest off, worst first."""
    far = sorted((each for each in every if each.factor >= MISSED), key=lambda each: -each.factor)
    yield f"{len(far)} of {len(every)} predictions are off by {MISSED:g} times or more; the worst of them are:\n"
    yield "| what | source | measured ms | predicted ms | error | used |\n|---|---|--:|--:|--:|---|"
    for each in far[:WORST]:
        row = each.row
        numbers = f"{row.measured:.4g} | {each.predicted:.4g} | {each.error:+.0%}"
        yield f"| {row.part}: {row.item} ({row.machine}) | {row.source} | {numbers} | {row.used} |"


QUESTIONS: dict[str, Callable[[Row], bool]] = {
    "how long one process decodes a picture": lambda row: "decode" in row.setup and row.setup["workers"] == "0",
    "how a loader that decodes scales with workers": lambda row: "decode" in row.setup and row.setup["workers"] != "0",
    "how workers scale where the time of a sample is given": lambda row: "sample" in row.setup,
    "small samples in memory, and sending from process to process": lambda row: (
        row.part == "loader" and ("crosses" in row.setup or row.setup.get("epoch") in ("rows", "numbers", "cifar"))
    ),
    "the four ways to the GPU": lambda row: row.setup.get("epoch") == "10",
    "transforms of tensors": lambda row: "transform" in row.setup,
    "a step that the host sets": lambda row: row.part == "host" and "model" in row.setup,
    "a call of torch or CUDA": lambda row: row.part == "host" and "model" not in row.setup,
    "a copy alone, beside another one, or under a computation": lambda row: row.part == "copy",
    "the kernels of a training step": lambda row: row.part == "kernel" and row.setup.get("mode") == "train",
    "the kernels of inference": lambda row: row.part == "kernel" and row.setup.get("mode") == "infer",
    "one product, attention or elementwise kernel": lambda row: row.part == "kernel" and "model" not in row.setup,
}


def trust(every: Sequence[Found]) -> Iterator[str]:
    """Give for each question the median and the worst factor, by how a row was used."""
    yield f"| may I trust it for … | {' | '.join(COLORS)} |\n|---|{'---|' * len(COLORS)}"
    for question, belongs in QUESTIONS.items():
        cells = []
        for used in COLORS:
            factors = [each.factor for each in every if each.row.used == used and belongs(each.row)]
            told = f"{statistics.median(factors):.2f}, worst {max(factors):.2f} ({len(factors)})" if factors else ""
            cells.append(told)
        yield f"| {question} | {' | '.join(cells)} |"


# Shares fitted anew


@lru_cache(None)
def scaled(kind: str, share: float, setup: Setup, machine: str) -> float:
    """Return ms of the kernels of a step where one class has so many times its share of the peak and the bandwidth."""
    gpu = card(machine)
    floor, bandwidth, peak = gpu.kernels[kind]
    kernel = Kernel(floor, max(1, round(bandwidth * share)), round(peak * share))
    return gpu_time(setup, replace(gpu, kernels={**gpu.kernels, kind: kernel}))[0] / 1e6


class Refit(NamedTuple):
    """The rows of one architecture whose steps a class of kernels has a good part of."""

    kind: str
    architecture: str
    mine: list[Row]

    @property
    def models(self) -> list[str]:
        """The models that its rows are of."""
        return sorted({row.setup["model"] for row in self.mine})

    def took(self, row: Row, share: float) -> float:
        """Return ms of a row's kernels with this times the class's share of the peak and of the bandwidth."""
        return scaled(self.kind, share, setup_of(row.setup), row.machine)

    def best(self, some: Sequence[Row]) -> float:
        """Return the share at which the median error of these rows is least; of equal ones the nearest to 1."""
        times = {share: [abs(math.log(self.took(row, share) / row.measured)) for row in some] for share in SHARES}
        return min(SHARES, key=lambda share: (round(statistics.median(times[share]), 4), abs(math.log(share))))

    def errors(self, share: Callable[[Row], float]) -> str:
        """Return median and worst error of the rows, each with its own share."""
        errors = [abs(self.took(row, share(row)) / row.measured - 1) for row in self.mine]
        return f"{statistics.median(errors):.0%}, worst {max(errors):.0%}"


def refits() -> Iterator[Refit]:
    """Give classes and architectures, with the rows of published models whose steps they have a good part of."""
    kernels = [
        row
        for row in rows("published")
        if row.part == "kernel" and "layout" in row.setup and int(row.setup["batch"]) >= LARGE
    ]
    known = {row.machine: card(row.machine) for row in kernels}
    for kind in CLASSES:
        for architecture in dict.fromkeys(gpu.architecture for gpu in known.values()):
            mine = [
                row for row in kernels if known[row.machine].architecture == architecture and part(row, kind) > PART
            ]
            yield Refit(kind, architecture, mine)


def part(row: Row, kind: str) -> float:
    """Return which share of a step's kernel time a class has."""
    gpu = card(row.machine)
    whole = gpu_time(setup_of(row.setup), gpu)[0]
    fast = gpu.kernels[kind]._replace(bandwidth=10**6, peak=10**6)
    return 1 - gpu_time(setup_of(row.setup), replace(gpu, kernels={**gpu.kernels, kind: fast}))[0] / whole


def left_out() -> Iterator[str]:
    """Give what a share of kernels.toml is worth for a model, and for a card, that it was not fitted on."""
    yield "| class | architecture | rows, models | as it is | without the model | of the other cards |"
    yield "|---|---|--:|--:|--:|--:|"
    every = list(refits())
    for refit in every:
        if len(models := refit.models) < MODELS:
            continue
        others = {model: [row for row in refit.mine if row.setup["model"] != model] for model in models}
        shares = {model: refit.best(rest) for model, rest in others.items()}
        peers = [GPUS[key].kernels[refit.kind] for key in CARDS_OF if CARDS_OF[key] != refit.architecture]
        mine, cells = card(refit.mine[0].machine).kernels[refit.kind], refit.errors(lambda row: 1.0)
        foreign = statistics.median(peer.peak or peer.bandwidth for peer in peers) / (mine.peak or mine.bandwidth)
        without = refit.errors(lambda row, of=shares: of[row.setup["model"]])  # type: ignore[misc]
        numbers = f"{len(refit.mine)}, {len(models)} | {cells} | {without} | {refit.errors(lambda row, of=foreign: of)}"
        yield f"| {refit.kind} | {refit.architecture} | {numbers} |"
    few = dict[str, list[str]]()
    for refit in every:
        if len(refit.models) < MODELS:
            few.setdefault(refit.kind, []).append(f"{refit.architecture} {len(refit.models)}")
    yield f"\nOf these shares fewer than {MODELS} models were published, so none can be left out (how many there are):"
    yield "; ".join(f"{kind}: {', '.join(counts)}" for kind, counts in few.items()) + "."


CARDS_OF = {"v100": "volta", "2080ti": "turing", "a100": "ampere", "3090": "ga10x"}  # one of each that rows are of


def order(every: Sequence[Found]) -> Iterator[str]:
    """Say whether steps of one model come in the order that was published, and whether the host's are the host's."""
    mine = [each for each in every if each.row.part == "kernel" and each.row.setup.get("as", "") == ""]
    mine = [each for each in mine if "model" in each.row.setup and "batch" in each.row.setup]
    pairs = [(a, b) for a, b in combinations(mine, 2) if alike(a.row, b.row)]
    wrong = [f"{a.row.item} on {a.row.machine} and {b.row.item} on {b.row.machine}" for a, b in pairs if swapped(a, b)]
    yield f"{len(pairs)} pairs of steps of one model differ in one of GPU, mode, layout and batch, and by more than"
    yield f"{CLEAR - 1:.0%} in their images a second. In another order than published: {'; '.join(wrong) or 'none'}."
    by_host = [b for b in mine if any(held(a.row, b.row) for a in mine)]
    wrong = [each.row.item for each in by_host if gpu_time(setup_of(each.row.setup), card(each.row.machine))[0] / 1e6
             >= each.predicted]  # fmt: skip
    yield f"\n{len(by_host)} steps hardly take longer than those of half their batch or less, so the host sets them."
    yield f"Predicted as the GPU's: {'; '.join(wrong) or 'none'}."


def rate(row: Row, took: float) -> float:
    """Return images a second."""
    return int(row.setup["batch"]) / took * 1000


def alike(one: Row, other: Row) -> bool:
    """Tell whether two rows can be compared, and differ clearly."""
    names = ("mode", "batch", "layout", "precision")
    differ = sum(one.setup[name] != other.setup[name] for name in names) + (one.machine != other.machine)
    least, most = sorted((rate(one, one.measured), rate(other, other.measured)))
    same = one.setup["model"] == other.setup["model"] and one.source == other.source
    return same and differ == 1 and most > CLEAR * least


def swapped(a: Found, b: Found) -> bool:
    """Tell whether the faster of two is predicted as the slower."""
    return (rate(a.row, a.predicted) < rate(b.row, b.predicted)) != (
        rate(a.row, a.row.measured) < rate(b.row, b.row.measured)
    )


def held(one: Row, other: Row) -> bool:
    """Tell whether the second of two rows, of at least twice the batch, hardly took longer: the host's time."""
    names = ("model", "mode", "precision")
    same = one.machine == other.machine and all(one.setup[name] == other.setup[name] for name in names)
    twice = same and int(other.setup["batch"]) >= 2 * int(one.setup["batch"])
    return twice and one.machine in OLD_CARDS and other.measured < FLAT * one.measured


def headline(every: Sequence[Found]) -> Iterator[str]:
    """Say in one sentence for each use what all rows come to; docs/emulator.md quotes it."""
    for used, means in MEANS.items():
        factors = [each.factor for each in every if each.row.used == used]
        yield (f"* **{used}** ({means}): {len(factors)} rows, median factor {statistics.median(factors):.2f}, "
               f"worst {max(factors):.2f}.")  # fmt: skip


NOT_TOLD = "not told"
ORIGINS = {"commit": r"\b(?=[a-f]*\d)[0-9a-f]{7,40}\b", "date": r"\b20\d\d(?:-\d\d){0,2}\b"}  # in what names a source


def origin(row: Row) -> tuple[str, str, str]:
    """Return the commit and the date of a row's source, and the processor of its machine, as far as they are told."""
    told = [re.search(pattern, f"{row.version} {row.source}") for pattern in ORIGINS.values()]
    known = row.part == "loader" and row.machine not in GPUS
    commit, date = (found[0] if found else NOT_TOLD for found in told)
    return commit, date, row.machine if known else NOT_TOLD


def save_table(every: Sequence[Found], path: Path) -> None:
    """Write all rows with what is predicted."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*Row._fields, *ORIGINS, "cpu", "predicted", "error"])
        for each in every:
            setup = " ".join(f"{name}={value}" for name, value in each.row.setup.items())
            row = (value or NOT_TOLD for value in each.row._replace(setup=setup))  # type: ignore[arg-type]
            writer.writerow([*row, *origin(each.row), f"{each.predicted:.6g}", f"{each.error:+.3f}"])


def fused() -> Iterator[str]:
    """Give a fused optimizer beside a foreach one: the GPU's time of a step of Adam on large parameters."""
    took = []
    for way in ("foreach", "fused"):
        with record(on="a100", host=HOST, hazards="off"):
            parameters = [torch.zeros(2**22, device="cuda", requires_grad=True) for _ in range(16)]
            for parameter in parameters:
                parameter.grad = torch.zeros_like(parameter)
            optimizer: Any = torch.optim.Adam(parameters, **{way: True})  # type: ignore[arg-type]
            optimizer.step()
            torch.cuda.synchronize()
            start = time.perf_counter()
            optimizer.step()
            torch.cuda.synchronize()
            took.append(time.perf_counter() - start)
    yield "| Adam | published ms | predicted |\n|---|---|---|"
    yield f"| foreach over fused | {FUSED[0]} / {FUSED[1]}: {FUSED[0] / FUSED[1]:.2f}x | {took[0] / took[1]:.2f}x |"


# What was wrong once, and the test that holds what is right.
MENDED = (
    (
        "`images[rows]` with `rows` in host memory was free (R46)",
        "test_r46_an_index_from_the_host_is_moved_by_a_blocking_copy",
    ),
    ("`v[mask] = 0.0` waited for the GPU (R47)", "test_r47_a_number_into_a_mask_is_a_fill_forward_and_backward"),
    ("what is only written was read, too (R48)", "test_r48_what_is_only_written_counts_once"),
    (
        "the FLOPs of a grouped convolution's gradients",
        "test_r48_the_gradients_of_a_grouped_convolution_have_twice_the_flops_of_the_convolution",
    ),
    ("cudaMalloc waited for running work (R13)", "test_r13_malloc_costs_host_time_and_waits_for_nobody"),
    ("arithmetic on the processor took no time", "test_arithmetic_of_the_processor_takes_time"),
    ("the work of a data set took no time", "test_the_operators_of_a_data_set_cost_dispatch_bytes_and_flops"),
    ("a step after `from_batch(k)` had the backlog in it", "test_a_step_is_what_a_further_batch_costs"),
    (
        "other programs' time was measured; a fetch counted twice",
        "test_a_measured_fetch_counts_once_with_what_it_burnt_and_slept",
    ),
    ("`pin_memory()` of 4 MB cost 0.40 ms; the pin thread was slower than staging", "test_host_costs"),
    ("TF32 and fp16 of GeForce cards were twice theirs", "test_the_cards_are_plausible"),
    ("every A100 and H100 was the PCIe card", "test_a_card_is_found_by_the_name_that_it_reports"),
    (
        "more workers than cores did not take turns, or did so twice",
        "test_the_cores_of_an_emulated_host_cap_the_workers",
    ),
    ("a blocked host went on at once", "test_runtime_agrees_with_the_naive_scheduler"),
)


def mended() -> Iterator[str]:
    """Give the table of what was wrong."""
    yield "| wrong once | held now by |\n|---|---|"
    yield from (f"| {wrong} | `{test}` |" for wrong, test in MENDED)


PAGE = """# Predicted beside measured

![Predicted over measured times, a point for each published measurement](validation.png)

Each point is a measurement that somebody published, and what loaderviz predicts for it. Inside the grey band the two
differ by less than twice. The colours say how the measurement was used:

{headline}

Made by `python -m benchmarks.validate`: predictions and errors are computed, words that explain them are not.
[validation.csv](validation.csv) has every row, with its source, version, commit, date, machine, processor,
version of torch and set-up, as far as the source tells them. The held-out rows are
`benchmarks/held_out.csv`; a test holds its SHA-256,
`{hash}`. Where a source names no processor, the set-up says which preset stands for it. What five articles'
programs cost, by default and measured, is in [claims](claims.md).

## What it gets most wrong

{misses}

Causes that are known: OpenCV of 2022 decodes without SIMD, which other sources price. A laptop of 2019 takes 1.25 and
1.31 times as long as the preset with libjpeg-turbo itself (the same issue), that of torchcodec 1.37 times less in the
middle: the preset stands between them. SPDL's chart tells neither its machine nor how long a run lasts. A tensor's way
to the main process, 0.25 to 0.28 ms with 16 workers elsewhere (rf-detr, pull request 1399), is no cause of 2 to 5 ms a
picture; ImageNet's 1.2 million paths may be, which each worker gets as it starts (20 s and more: SPDL, pull request
1594). The rest is open.

How much longer a PNG takes than its JPEG (quality 75 to 95) depends on the picture. Measured by us on one processor,
375 x 500 pixels: noise takes 1.4 to 1.8 times as long, and predicted are 1.5 to 2.5. Pictures like photographs, whose
detail falls off as 1/f to 1/f^1.8, take 4 to 14 times as long, and predicted are 4 to 11. A smooth gradient takes 2.7
to 3.7 times as long, and predicted are 2.6 to 3.0. Three kinds are predicted too dear: a PNG of a gradient with noise
2.0 times, with alpha 2.2 times, and with a palette 1.6 times.

## May I trust it?

Each cell has the median and the worst factor between predicted and measured time, and in brackets how many rows.

{trust}

## What was fitted on what

| numbers | fitted on |
|---|---|
| kernels of the V100, A100 and H100, but for the rows below | traces of torch.profiler, in the table of traces below |
| half-precision and TF32 convolutions, groups, depthwise; GeForce cards; attention | rows "fitted" of the part kernel |
| host: operators, modules, composite calls, nodes, convolutions; "server 2016" | rows "fitted" of the part host |
| decoding a JPEG; pickled bytes, pages and workers' start of servers | rows "fitted" of the part loader |
| pageable copies of an H100, both ways at once on an A100 | rows "fitted" of the part copy |
| PNG, WebP, GIF, BMP, transforms, OpenCV; processes on a laptop | measured by us on one processor, or assumed |

A share of kernels.toml that was fitted on several models is fitted anew here without each of them in turn, and judged
on the one that was left out. The last column takes the share of the other architectures instead. Errors of whole steps:

{left_out}

Order and bottleneck: {order}

## Kernels of real traces

The error is the sum of the absolute differences, operator by operator, over the sum measured; `loaderviz validate`
shows it by class. Operators that ran beside another stream's, and those that are not torch's, are left out.

{traces}

## Advice on real traces

The first finding, and the share of the time that its change gains at most. By hand: what its events come to.

{findings}

Eight ranks of one run, ranks8_nanogpt_2025, of which one holds up the others:

{ranks}

## Kernel time of whole training steps, never fitted on as wholes

{steps}

## A fused optimizer (deepmd-kit, pull request 4463)

No trace at hand has one: it is priced at the bandwidth of a foreach one, for each byte that it reads or writes once.

{fused}

## Threads

One thread at a time has the interpreter's lock (R53). What a piece of Python and a call of C take was measured in one
thread; beside others, that is predicted, and nothing is fitted. The figures are each thread's pieces beside the others,
over those that it does alone (`python -m benchmarks.gil`, two cores that nobody else used, SCHED_RR, Python 3.11). The
rule was changed after first runs of this table, so it is no held-out test. Two threads of C beside two of Python were
left out after they had missed by far: they need a third core. Rows with next to none on both sides are not counted:

{judged}

The order of three published figures, all seen before the rule was written, none held out (`python -m
benchmarks.orders`; what they leave out is assumed there). Only their order is to come out, as nobody tells how much of
a fetch is Python. With processes SPDL's loop was twice as fast as with threads beside it, so more than a tenth was:

{table}

## Not modelled

A copy takes its part of the memory's bandwidth from the kernels beside it (R49), at most {bandwidth}. The slice of an
A100 in the picture loses more than that; the other cause has no model. No GPU is slowed down by heat or power; what
torch.compile, fbgemm or NCCL launch has no price of its own; fp8 products count as elementwise kernels. Vendors other
than NVIDIA have no presets: the one trace of an MI300X at hand, ResNet-18 at batch 10, shows how long its smallest
kernels take and no bandwidth. Workers start as forks, and their end takes no time: a spawned one imports torch first,
for seconds. Without a model are WDDM's queue on Windows, HDF5's lock, and what very large batches lose in speed.

## Wrong once

{mended}
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the page, its picture and its table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="docs/validation.md")
    options = parser.parse_args(arguments)
    if not is_frozen():
        raise SystemExit("held_out.csv is not what was frozen: nobody may fit on it, or change it")
    share = {name: (gpu.h2d + gpu.d2h) / gpu.memory_bandwidth for name, gpu in GPUS.items()}
    most, every = max(share, key=lambda name: share[name]), found()
    parts = {"hash": HELD_OUT, "bandwidth": f"{share[most]:.0%} ({most}, both ways at once)"}
    for part in (headline, misses, trust, order):
        parts[part.__name__] = "\n".join(part(every))
    for part in (left_out, traces, findings, ranks, steps, fused, judged, table, mended):
        parts[part.__name__] = "\n".join(part())
    page = PAGE.format(**parts)
    print(page)
    if options.out != "-":
        from notebooks.stills import Camera

        path = Path(options.out)
        path.write_text(page, encoding="utf-8")
        save_table(every, path.with_suffix(".csv"))
        with Camera() as camera:
            path.with_suffix(".png").write_bytes(camera.figure(draw(every)))


if __name__ == "__main__":
    main()
