"""Make docs/validation.md: what the emulator predicts, beside what was measured and published.

Run it from the repository's root, with the shared traces beside it (`--out -` prints only):

    python -m benchmarks.validate [--out docs/validation.md]

Kernel times of a whole step come from the model's operators on the meta device, priced as the emulated GPU prices them;
the host's time of a step from a recording of the same program with little data on a GPU that takes no time.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache, partial, update_wrapper
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import nn
from torch._prims_common import suggest_memory_format
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from torch.utils.data import DataLoader, Dataset

from loaderviz import read, record, summarize, validate
from loaderviz.analysis.validate import Trace
from loaderviz.emulator import Gpu, Host, Runtime
from loaderviz.emulator.hardware import FULL, GPUS, HOSTS, Kernel
from loaderviz.emulator.kernels import Call, kernel_times, row_of
from loaderviz.emulator.torch.operators import KernelCosts, Operator, _collected, _outputs
from loaderviz.imports import cured_imports

with cured_imports():
    import torchvision

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
# Functions that CUDA's autocast computes in half and in single precision, of those that the models below call.
LOWER, SINGLE = ("conv2d", "linear", "scaled_dot_product_attention"), ("layer_norm",)
DLE, TIMM = "DeepLearningExamples", "timm, channels_last"
# Model, preset, mode, source: batch = images a second.
PUBLISHED = """
resnet50 a100-sxm-80gb train    DLE  256=938
resnet50 a100-sxm-80gb train-amp DLE 256=2470 512=2600
resnet50 a100-sxm      train    xwang233 128=812
resnet50 v100          train    DLE  256=356
resnet50 v100          train-amp DLE 256=1156
resnet50 t4            infer    DLE  1=98 2=186 4=325 8=363 16=409 32=420 128=426
resnet50 t4            infer-amp DLE 1=79 8=652 16=1050 32=1128 128=1190
resnet50 v100          infer    DLE  1=96 8=709 32=1127 128=1229
resnet50 v100          infer-amp DLE 1=78 16=1178 64=2984 256=3382
resnet18 3090          train-amp timm 512=3481
resnet34 3090          train-amp timm 512=2036
resnet50 3090          train-amp timm 512=1218
resnet101 3090         train-amp timm 256=748
resnext50_32x4d 3090   train-amp timm 384=1001
densenet121 3090       train-amp timm 256=918
inception_v3 3090      train-amp timm 384=782
vgg11 3090             train-amp timm 512=954
vgg11_bn 3090          train-amp timm 512=832.7
mobilenet_v2 3090      train-amp timm 512=2313
mobilenet_v3_large 3090 train-amp timm 512=2732
mobilenet_v3_small 3090 train-amp timm 512=8035
mnasnet1_0 3090        train-amp timm 512=2929
efficientnet_b0 3090   train-amp timm 512=1752
convnext_tiny 3090     train-amp timm 256=819
vit_b_32 3090          train-amp timm 512=1708
regnet_x_400mf 3090    train-amp timm 512=1780.6
regnet_x_800mf 3090    train-amp timm 512=1034.7
regnet_x_1_6gf 3090    train-amp timm 512=682.7
regnet_x_3_2gf 3090    train-amp timm 384=308.9
regnet_x_16gf 3090     train-amp timm 192=107.6
regnet_y_400mf 3090    train-amp timm 512=2085.8
regnet_y_800mf 3090    train-amp timm 512=993.3
regnet_y_1_6gf 3090    train-amp timm 512=650.1
regnet_y_3_2gf 3090    train-amp timm 384=496.9
resnext101_32x8d 3090  train-amp timm 128=312.8
resnext101_64x4d 3090  train-amp timm 128=363.8
"""
HOSTED = "resnet50"  # the others have large batches, and hosts much faster than their GPU
FLAT, CLEAR = 1.2, 1.1  # a step that a larger batch lengthens by less is the host's; one longer by more is longer
OLD_HOST, OLD_CARDS = "server 2016", ("v100", "t4")  # DeepLearningExamples' servers of these cards
OLD_HOST_FITTED = (("t4", 1), ("t4", 2), ("t4", 4), ("v100", 1), ("v100", 8))  # its host sets these
REASONS: dict[str, str] = {}  # of a large miss, by model
MEDIAN, LARGE_MISS = 0.12, 0.4
FITTED_ON = ("train-amp", "infer-amp")  # their convolutions
# pytorch-gpu-benchmark: ms of forward and backward of 12 images, or of inference, with torch 1.7, in NCHW; no optimizer
# steps. What the host's numbers were fitted on.
HOST_BOUND = """
mnasnet0_5      a100-sxm train=25.25 infer=7.24 train-half=26.07 infer-half=5.88
resnet152       a100-sxm train=92.24 infer=26.61 train-half=80.79 infer-half=21.68
wide_resnet50_2 a100-sxm train-half=32.55 infer-half=8.59
densenet121     a100-sxm train=74.42 infer=22.07 train-half=73.28 infer-half=20.18
squeezenet1_1   a100-sxm train=12.34 infer=5.31 train-half=12.05 infer-half=3.40
mnasnet0_5      2080ti   train=30.50 infer=6.89 train-half=25.08 infer-half=5.99
resnet152       2080ti   train-half=91.04 infer-half=21.90
densenet121     2080ti   train=90.04 infer=18.84 train-half=74.92 infer-half=16.51
squeezenet1_1   2080ti   train=17.48 infer=4.57 train-half=14.16 infer-half=3.30
"""
IMAGES = 12
# SPDL's benchmark of a copy under a computation: ns of each alone, and of both at once, by the part of an A100, and how
# many eighths of its memory bandwidth that part has (NVIDIA's guide to MIG).
SPDL = {
    "a whole A100": (7_611_000, 5_700_000, 7_754_000, 8),
    "a slice of it (MIG 1g)": (9_800_000, 7_262_000, 11_852_000, 1),
}
SPDL_BYTES = 64 * 2**20
# ml-engineering, pin-memory-non-block-bench.py on an A100 80 GB PCIe: seconds an epoch beyond its sleeps.
FOUR_WAYS = {(True, True): 0.459, (True, False): 0.522, (False, True): 0.658, (False, False): 0.646}
# Measured on an AMD EPYC in a virtual machine, Linux 6.18: ns a page of 4 KiB for a worker to get and write shared
# memory, beyond writing it once more, and for the main process to read it, beyond reading it once more.
NEW_PAGE, FIRST_READ, PAGE_BYTES = 2_300, 390, 4096
FOUR_WAYS_MISSED = """
All four are beyond 40%. What the predictions leave out are new pages: each batch of a worker is new shared memory, and
each page of it costs {write:.1f} us when it is first written, and {read:.1f} when it is first read (measured, in a
virtual machine). The writes of the first batch and the reads of each batch that no other thread has read
(`pin_memory=False`) give the column "with new pages". What is then left, {least:.2f} to {most:.2f} s, hardly depends on
the way: it may be the start and the end of five workers, of which the forks alone, {start:.2f} s, are predicted. With
four workers, metatrain's pull request 1271 measured 0.36 s an epoch."""
# deepmd-kit, pull request 4463: ms of Adam's step before and after fused=True, of a model of unknown size.
FUSED = (22, 8)
# nanoGPT's README of 2022, "about 250 ms": GPT-2 of 124M parameters, batch 12 x 1024, bfloat16, attention by products.
GPT = {"layers": 12, "heads": 12, "width": 768, "words": 50304, "batch": 12, "length": 1024, "measured": 250.0}
# The tutorial "A guide on good usage of non_blocking and pin_memory()": us, and which number of a host says so.
TUTORIAL = {"cudaMemcpyAsync": 3.39, "cudaStreamSynchronize": 4.54, "pin_memory() of 4 MB": 112.0}


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
        copies = [event for events in trace.work.values() for event in events if "DtoD" in event["name"]]
        self.copied = max((event["args"]["bytes"], 2e6 * event["args"]["bytes"] / event["dur"]) for event in copies)
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
        total, kernels = gpu_time(model, gpu, batch)
        took, host = (total - kernels * Gpu.preset(gpu).queue_gap) / 1e6, host_time(model, "train", HOST) / 1e6
        bound = "GPU" if took > host else "host"
        ratio = f"{took:.1f} | {took / measured:.2f} | {kernels} | {host:.1f} | {bound}"
        yield f"| {model}, {batch} | {gpu} | {measured:.1f} | {ratio} |"
        if gpu in STEP_TRACES:
            whole = summarize(read(TRACES / f"{STEP_TRACES[gpu]}.json.gz"))
            seen.append(f"{gpu} {(whole.step or 0) / 1e6:.1f} ms, the GPU busy {whole.busy or 0:.0%} of it")
    yield f"\nThe steps of the traces: {'; '.join(seen)}.\n{INSTRUMENTED}"


class Predicted(NamedTuple):
    """What is predicted for a case: ms of the GPU, and of the host (0: not worked out)."""

    case: Case
    gpu: float
    host: float

    @property
    def took(self) -> float:
        """The step: the longer of the two."""
        return max(self.gpu, self.host)

    @property
    def rate(self) -> float:
        """Images a second."""
        return self.case.batch / self.took * 1000

    @property
    def error(self) -> float:
        """As a share of what was measured."""
        return self.took / self.case.measured - 1

    @property
    def why(self) -> str:
        """The reason of a large miss."""
        return REASONS.get(self.case.model, "not known")


def predictions() -> Iterator[Predicted]:
    """Predict every case."""
    for case in cases():
        server = OLD_HOST if case.gpu in OLD_CARDS else HOST
        host = host_time(case.model, case.mode, server) / 1e6 if case.model == HOSTED else 0.0
        yield Predicted(case, gpu_time(case.model, case.gpu, case.batch, case.mode)[0] / 1e6, host)


def published() -> Iterator[str]:
    """Give the table of published step times, and what it comes to."""
    yield "| model | GPU | mode | batch | published ms | GPU ms | host ms | predicted | error | source |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    every = list[Predicted]()
    for each in predictions():
        every.append(each)
        case, limit = each.case, "host" if each.host > each.gpu else "GPU"
        shown = f"{each.host:.1f}" if each.host else ""
        numbers = f"{case.measured:.1f} | {each.gpu:.1f} | {shown} | {each.took:.1f} by the {limit} | {each.error:+.0%}"
        yield f"| {case.model} | {case.gpu} | {case.mode} | {case.batch} | {numbers} | {case.source} |"
    yield from judged(every)


def judged(every: Sequence[Predicted]) -> Iterator[str]:
    """Say what the table comes to: errors, those of cases that nothing was fitted on apart, order and bottleneck."""
    for which, chosen in (("all", every), ("nothing fitted on", [each for each in every if not each.case.fitted])):
        errors = [abs(each.error) for each in chosen]
        middle, wanted = f"{statistics.median(errors):.0%}", f", at most {MEDIAN:.0%} wanted" if which == "all" else ""
        yield f"\nMedian of absolute errors, {which}: {middle}{wanted}; worst {max(errors):.0%}, {len(errors)} cases."
    missed = [f"{_named(each)}: {each.error:+.0%} ({each.why})" for each in every if abs(each.error) > LARGE_MISS]
    yield f"Beyond {LARGE_MISS:.0%}: {'; '.join(missed) or 'none'}."
    pairs = [(a, b) for a, b in combinations(every, 2) if alike(a.case, b.case)]
    wrong = [f"{_named(a)} and {_named(b)}" for a, b in pairs if (a.rate < b.rate) != (a.case.rate < b.case.rate)]
    yield f"\nOrder: {len(pairs)} pairs of one model differ in one of GPU, mode and batch, and by more than"
    yield f"{CLEAR - 1:.0%} in their images a second; in another order than published: {'; '.join(wrong) or 'none'}."
    by_host = [b for b in every if any(held(a.case, b.case) for a in every)]
    wrong = [_named(each) for each in by_host if each.host < each.gpu]
    yield f"\nBottleneck: {len(by_host)} steps hardly take longer than those of half their batch or less, so the host"
    yield f"sets them; predicted as the GPU's: {'; '.join(wrong) or 'none'}."


def alike(one: Case, other: Case) -> bool:
    """Tell whether two cases can be compared, and differ clearly."""
    differ = sum((one.gpu != other.gpu, one.mode != other.mode, one.batch != other.batch))
    least, most = sorted((one.rate, other.rate))
    return one.model == other.model and differ == 1 and most > CLEAR * least


def held(one: Case, other: Case) -> bool:
    """Tell whether the second of two cases, of at least twice the batch, hardly took longer: the host's time."""
    same = (one.model, one.gpu, one.mode) == (other.model, other.gpu, other.mode)
    return same and other.batch >= 2 * one.batch and other.measured < FLAT * one.measured


def _named(each: Predicted) -> str:
    return f"{each.case.model} {each.case.mode} on {each.case.gpu}, batch {each.case.batch}"


def gpt() -> Iterator[str]:
    """Give nanoGPT's step, whose set-up is told loosely: judged apart."""
    layers, heads, width, words, batch, length, measured = GPT.values()
    with torch.device("meta"):
        embed, head = nn.Embedding(words, width), nn.Linear(width, words, bias=False).bfloat16()
        into = [nn.Linear(width, 3 * width).bfloat16() for _ in range(layers)]
        out = [nn.Linear(width, width).bfloat16() for _ in range(layers)]
        wide = [nn.Linear(width, 4 * width).bfloat16() for _ in range(layers)]
        back = [nn.Linear(4 * width, width).bfloat16() for _ in range(layers)]
        norms = [nn.LayerNorm(width) for _ in range(2 * layers + 1)]
        mask = torch.ones(length, length, dtype=torch.bool)
        tokens = torch.zeros(batch, length, dtype=torch.long)
    parameters = [p for part in (embed, head, *into, *out, *wide, *back, *norms) for p in part.parameters()]
    optimizer = torch.optim.AdamW(parameters, foreach=True)

    def step() -> None:
        x = embed(tokens)
        for layer in range(layers):
            q, k, v = into[layer](norms[2 * layer](x).bfloat16()).split(width, 2)
            q, k, v = (part.view(batch, length, heads, -1).transpose(1, 2) for part in (q, k, v))
            scores = (q @ k.transpose(-2, -1) * width**-0.5).masked_fill(mask, float("-inf"))
            mixed = nn.functional.dropout(scores.float().softmax(-1), 0.1).bfloat16() @ v
            x = x + out[layer](mixed.transpose(1, 2).reshape(batch, length, width))
            x = x + back[layer](nn.functional.gelu(wide[layer](norms[2 * layer + 1](x).bfloat16())))
        logits = head(norms[-1](x).bfloat16())
        nn.functional.cross_entropy(logits.float().view(-1, words), tokens.view(-1)).backward()
        optimizer.step()
        optimizer.zero_grad()

    step()  # the optimizer makes its buffers
    with Priced(Gpu.preset("a100-sxm")) as priced:
        step()
    took = priced.total / 1e6
    yield "| | published ms | predicted | error |\n|---|---|---|---|"
    yield f"| nanoGPT 124M, batch {batch} x {length} | {measured:.0f} | {took:.0f} | {took / measured - 1:+.0%} |"


def overlap() -> Iterator[str]:
    """Give SPDL's measurements of a copy under a computation."""
    yield "| | | measured ms | predicted |\n|---|---|---|---|"
    for where, (compute, copy, both, eighths) in SPDL.items():
        whole = Gpu.preset("a100")
        bandwidth = whole.memory_bandwidth * eighths // 8
        gpu = replace(whole, h2d=round(SPDL_BYTES / copy * 1e9), memory_bandwidth=bandwidth)
        times = []
        for beside in (False, True):
            runtime = Runtime(gpu, Host.preset(HOST))
            runtime.launch(compute, traffic=FULL)  # what it computes is not told: the most that it can lose
            runtime.memcpy(SPDL_BYTES, "h2d", runtime.stream() if beside else None)
            runtime.synchronize()
            times.append(runtime.now / 1e6)
        serial = (compute + copy) / 1e6
        yield f"| {where} | one after the other | {serial:.3f} | {times[0]:.3f} |"
        yield f"| | at once | {both / 1e6:.3f} | {times[1]:.3f} |"
        yield f"| | how much faster | {serial / both * 1e6:.3f}x | {times[0] / times[1]:.3f}x |"


class Ones(Dataset[torch.Tensor]):
    """The data set of that benchmark: 1 MiB, a thousand times the same."""

    def __init__(self) -> None:
        self.tensor = torch.ones(2**18)

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.tensor


def four_ways() -> Iterator[str]:
    """Give the four ways to copy 10 batches of 100 MiB from 5 workers."""
    predicted, best = dict[tuple[bool, bool], float](), min(FOUR_WAYS.values())
    for pin, non_blocking in FOUR_WAYS:
        with record(on="a100-80gb", host=HOST, hazards="off"):
            source = DataLoader(Ones(), 100, pin_memory=pin, num_workers=5)
            for _ in range(2):  # in the first the pinned memory is taken
                start = time.perf_counter()
                for batch in source:
                    batch.to("cuda", non_blocking=non_blocking)
                    time.sleep(0.2)
                torch.cuda.synchronize()
                took = time.perf_counter() - start - 10 * 0.2
        predicted[pin, non_blocking] = took
    least, pages = min(predicted.values()), -(-Ones().tensor.nbytes * 100 // PAGE_BYTES)
    head = "| pin_memory | non_blocking | measured s | predicted | beyond the best, measured | predicted |"
    yield f"{head} with new pages | left |"
    yield "|---|---|---|---|---|---|---|---|"
    rest = []
    for (pin, non_blocking), took in predicted.items():
        measured = FOUR_WAYS[pin, non_blocking]
        whole = took + pages * (NEW_PAGE + FIRST_READ * (1 if pin else 10)) / 1e9
        rest.append(measured - whole)
        more = f"{measured - best:.3f} | {took - least:.3f} | {whole:.3f} | {rest[-1]:.3f}"
        yield f"| {pin} | {non_blocking} | {measured:.3f} | {took:.3f} | {more} |"
    yield f"\nBest by both: {predicted[True, True] == least and FOUR_WAYS[True, True] == best}."
    start = 5 * Host.preset(HOST).worker_start / 1e9
    shown = {"write": NEW_PAGE / 1000, "read": FIRST_READ / 1000, "least": min(rest), "most": max(rest), "start": start}
    yield FOUR_WAYS_MISSED.format(**shown)


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


def tutorial() -> Iterator[str]:
    """Give PyTorch's tutorial on pinned memory; its calls are where the numbers of two hosts come from."""
    yield "| | tutorial us |" + "".join(f" {name} |" for name in HOSTS) + "\n|---|---|" + "---|" * len(HOSTS)
    for (call, measured), cost in zip(
        TUTORIAL.items(),
        (lambda host: host.memcpy_call, lambda host: host.synchronize, lambda host: host.pin_time(4_000_000)),
        strict=True,
    ):
        yield f"| {call} | {measured:.2f} |" + "".join(f" {cost(host) / 1000:.2f} |" for host in HOSTS.values())


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
    """Give the table of what was wrong. Raises `LookupError` for a test that is not there."""
    text = "".join(path.read_text(encoding="utf-8") for path in Path("tests").rglob("test_*.py"))
    yield "| wrong once | held now by |\n|---|---|"
    for wrong, test in MENDED:
        if f"def {test}(" not in text:
            raise LookupError(f"no test is called {test}")
        yield f"| {wrong} | `{test}` |"


PAGE = """# Predicted beside measured

Made by `python -m benchmarks.validate`; no number here is typed. What five articles' programs cost, by default and
measured, is in [claims](claims.md).

## Kernels of real traces

The error is the sum of the absolute differences, operator by operator, over the sum measured; `loaderviz validate`
shows it by class. Operators that ran beside another stream's, and those that are not torch's, are left out.

{traces}

## Kernel time of whole training steps, never fitted on as wholes

{steps}

## Published step times

A step takes the longer of its kernels' time and of the host's (preset "{host}"; "{old}" for the V100 and T4 servers of
DeepLearningExamples); data are synthetic. Shares of half-precision convolutions and of GeForce cards, and one factor of
"{old}" (its steps that the host sets), were fitted on this table, the rest on traces and on the next table. Of
convolutions in groups, whose number is no multiple of 32, the one share was fitted on RegNet X, and not on RegNet Y.

{published}

## Steps that the host sets (pytorch-gpu-benchmark), fitted on

Preset "{host}" for both: the server of the A100 and the workstation of the RTX 2080 Ti, of 2020. {zeroed}

{host_bound}

## nanoGPT, judged apart: its README tells little of the set-up

{gpt}

## A copy under a computation (SPDL)

{overlap}

## Four ways to the GPU (ml-engineering, A100 80 GB PCIe)

Ten batches of 100 MiB from five workers, seconds an epoch, 0.2 s of sleep after each batch taken off.

{four_ways}

## A fused optimizer (deepmd-kit, pull request 4463)

No trace at hand has one: it is priced at the bandwidth of a foreach one, for each byte that it reads or writes once.

{fused}

## Calls of PyTorch's tutorial on pinned memory

{tutorial}

## Not modelled

A copy takes its part of the memory's bandwidth from the kernels beside it (R49), at most {bandwidth}: that is {spdl} of
the {lost} that the computation above lost on a whole A100, and less of what it lost on a slice of one. Another cause
is at work, too, which has no model. No GPU is slowed down by heat or power; what
torch.compile, fbgemm or NCCL launch has no price of its own; fp8 products count as elementwise kernels. Vendors other
than NVIDIA have no presets: the one trace of an MI300X at hand, ResNet-18 at batch 10, shows how long its smallest
kernels take and no bandwidth. Workers start as forks, and their end takes no time: a spawned one imports torch first,
for seconds. Without a model are WDDM's queue on Windows, HDF5's lock, and what very large batches lose in speed.

## Wrong once

{mended}
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="docs/validation.md")
    words = "forget gradients, as torch 2 does, in the steps that the host sets; else set them to zero, as torch 1.7"
    parser.add_argument("--to-none", action="store_true", help=words)
    options = parser.parse_args(arguments)
    share = {name: (gpu.h2d + gpu.d2h) / gpu.memory_bandwidth for name, gpu in GPUS.items()}
    most = max(share, key=lambda name: share[name])
    spdl = SPDL["a whole A100"]
    parts: dict[str, str] = {
        "host": HOST,
        "zeroed": f"Gradients are {'forgotten' if options.to_none else 'set to zero'} before each.",
        "old": OLD_HOST,
        "bandwidth": f"{share[most]:.0%} ({most}, both ways at once)",
        "spdl": f"{SPDL_BYTES / Gpu.preset('a100').memory_bandwidth * 1000:.3f} ms",
        "lost": f"{(spdl[2] - spdl[0]) / 1e6:.3f} ms",
    }
    bound = update_wrapper(partial(host_bound, to_none=options.to_none), host_bound)
    for part in (traces, steps, overlap, four_ways, fused, tutorial, mended, gpt, published, bound):
        lines = []
        for line in part():
            print(line, flush=True)
            lines.append(line)
        parts[part.__name__] = "\n".join(lines)
    if options.out != "-":
        Path(options.out).write_text(PAGE.format(**parts), encoding="utf-8")


if __name__ == "__main__":
    main()
