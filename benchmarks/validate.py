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
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from loaderviz import record, validate
from loaderviz.emulator import Gpu, Host, Runtime
from loaderviz.emulator.hardware import Kernel
from loaderviz.emulator.torch.operators import KernelCosts, Operator, _outputs, _tensors
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
    ("two_ranks/rank-0", "a100-sxm", UNSEEN),
    ("two_ranks/rank-1", "a100-sxm", UNSEEN),
)
# Model, preset, batch, ms of kernels of a training step in float32 (TF32 where the card has it), by traces.
STEPS = (("resnet18", "2080ti", 128, 136.8), ("resnet50", "v100-32gb", 32, 93.6), ("resnet50", "a100-sxm", 32, 38.6))
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
"""
HOSTED, SMALL = "resnet50", 16  # up to this batch the published step does not grow with it: the host sets it
REASONS = {"regnet_x_400mf": "convolutions in groups of 16 channels have no class of their own"}
LARGE_MISS = 0.4
SPDL = {"compute": 7_611_000, "copy": 5_700_000, "both": 7_754_000, "nbytes": 64 * 2**20}  # ns on a whole A100


class Priced(TorchDispatchMode):
    """Adds up the kernel times [ns] of all operators that run inside."""

    def __init__(self, gpu: Gpu) -> None:
        super().__init__()
        self.gpu, self.costs, self.known, self.total, self.kernels = gpu, KernelCosts(gpu), {}, 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operator and price it."""
        result = func(*args, **(kwargs or {}))
        if (operator := self.known.get(func)) is None:
            operator = self.known[func] = Operator(func)
        if not (operator.is_free or operator.no_kernel):
            outputs = _outputs(result)
            if operator.base == "native_batch_norm" and not args[5]:  # on the meta device eval mode hides itself
                outputs = [outputs[0], torch.empty(0, device="meta")]
            tensors, _ = _tensors(args, kwargs)
            times, _ = self.costs.of(operator, args, tensors, outputs, operator.written(args, kwargs or {}))
            self.total += sum(times) + len(times) * self.gpu.queue_gap
            self.kernels += len(times)
        return result


class Case(NamedTuple):
    """One published number: ms of a step."""

    model: str
    gpu: str
    mode: str
    source: str
    batch: int
    measured: float


def build(name: str, device: str, mode: str) -> nn.Module:
    """Return a torchvision model on a device; with AMP in channels_last, its weights in half precision on meta."""
    plain = {"init_weights": False} if name.startswith(("vgg", "inception")) else {}
    with torch.device("cpu" if name.startswith("regnet") else device):  # its start values need real memory
        model = getattr(torchvision.models, name)(**plain)
    model = model.to(device)
    if "amp" in mode:
        model = model.to(memory_format=torch.channels_last)
        if device == "meta":
            for module in model.modules():
                for parameter in module.parameters(recurse=False):
                    if not isinstance(module, nn.modules.batchnorm._BatchNorm):
                        parameter.data = parameter.data.half()
    return model.train("train" in mode)


def stepper(model: nn.Module, images: torch.Tensor, labels: torch.Tensor, mode: str) -> Callable[[], None]:
    """Return a function that makes one step: SGD with momentum, or inference."""
    if "train" not in mode:
        return torch.no_grad()(lambda: model(images))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, foreach=True)

    def step() -> None:
        with torch.autocast("cuda", torch.float16, enabled="amp" in mode and images.device.type == "cuda"):
            result = model(images)
            logits = result if isinstance(result, torch.Tensor) else result.logits + result.aux_logits
        nn.functional.cross_entropy(logits.float(), labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def size_of(name: str) -> int:
    """Return the side of a picture."""
    return 299 if name.startswith("inception") else 224


def gpu_time(name: str, gpu: str, batch: int, mode: str = "train") -> tuple[int, int]:
    """Return ns of kernels, gaps included, and the number of kernels of one step."""
    model, size = build(name, "meta", mode), size_of(name)
    images = torch.empty(batch, 3, size, size, device="meta", dtype=torch.half if "amp" in mode else torch.float)
    if "amp" in mode:
        images = images.to(memory_format=torch.channels_last)
    step = stepper(model, images, torch.empty(batch, dtype=torch.long, device="meta"), mode)
    if "train" in mode:
        step()  # the optimizer makes its buffers
    with Priced(Gpu.preset(gpu)) as priced:
        step()
    return priced.total, priced.kernels


@contextmanager
def free_gpu(gpu: str) -> Iterator[None]:
    """Record on this GPU with kernels of no time, so that only the host counts."""
    card = Gpu.preset(gpu)
    none = dict.fromkeys(card.kernels, Kernel(0, 10**6, 10**6))
    with record(on=replace(card, kernels=none, queue_gap=0, memory=10**12), host=HOST, hazards="off"):
        yield


@lru_cache(None)
def host_time(name: str, mode: str) -> int:
    """Return the host's ns of one step; it does not depend on the size of the data."""
    batch, size = 2, 32
    with free_gpu("a100"):
        images = torch.zeros(batch, 3, size, size).to("cuda")
        step = stepper(build(name, "cuda", mode), images, torch.zeros(batch, dtype=torch.long).to("cuda"), mode)
        with torch.autocast("cuda", torch.float16, enabled="amp" in mode):
            step()
            start = time.perf_counter_ns()  # a recording's own clock
            step()
            return time.perf_counter_ns() - start


def cases() -> list[Case]:
    """Return what was published, one case a batch size."""
    found = []
    for line in PUBLISHED.strip().splitlines():
        model, gpu, mode, source, *rates = line.split()
        for rate in rates:
            batch, images = rate.split("=")
            found.append(Case(model, gpu, mode, source, int(batch), int(batch) / float(images) * 1000))
    return found


def traces() -> Iterator[str]:
    """Give the table of real traces."""
    yield "| trace | GPU | ms with shapes | predicted / measured | error | |\n|---|---|---|---|---|---|"
    for name, on, role in TRACE_TABLE:
        found = validate(TRACES / f"{name}.json.gz", on or None)
        yield (f"| {name} | {found.gpu.name} | {found.measured / 1e6:.2f} | {found.ratio:.2f} | "
               f"{found.error:.0%} | {role} |")  # fmt: skip


def steps() -> Iterator[str]:
    """Give the table of whole steps."""
    yield "| model, batch | GPU | kernels, ms measured | predicted | ratio | kernels launched |"
    yield "|---|---|---|---|---|---|"
    for model, gpu, batch, measured in STEPS:
        total, kernels = gpu_time(model, gpu, batch)
        took = (total - kernels * Gpu.preset(gpu).queue_gap) / 1e6
        yield f"| {model}, {batch} | {gpu} | {measured:.1f} | {took:.1f} | {took / measured:.2f} | {kernels} |"


def published() -> Iterator[str]:
    """Give the table of published step times, and what it comes to."""
    yield "| model | GPU | mode | batch | published ms | GPU ms | host ms | predicted | error | source |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    errors, missed = [], []
    for case in cases():
        gpu = gpu_time(case.model, case.gpu, case.batch, case.mode)[0] / 1e6
        hosted = case.model == HOSTED  # the others have large batches, and hosts much faster than their GPU
        host = host_time(case.model, case.mode) / 1e6 if hosted else 0
        took = max(gpu, host)
        error = took / case.measured - 1
        errors.append(abs(error))
        if abs(error) > LARGE_MISS:
            why = "the host's time a step" if case.batch <= SMALL else REASONS.get(case.model, "not known")
            missed.append(f"{case.model} {case.mode}, {case.gpu}, batch {case.batch}: {error:+.0%} ({why})")
        shown, limit = f"{host:.1f}" if hosted else "", "host" if host > gpu else "GPU"
        numbers = f"{case.measured:.1f} | {gpu:.1f} | {shown} | {took:.1f} by the {limit} | {error:+.0%}"
        yield f"| {case.model} | {case.gpu} | {case.mode} | {case.batch} | {numbers} | {case.source} |"
    middle, worst = statistics.median(errors), max(errors)
    yield f"\nMedian of the absolute error {middle:.0%}, worst {worst:.0%}, {len(errors)} cases."
    yield f"Beyond {LARGE_MISS:.0%}: {'; '.join(missed) or 'none'}."


def overlap() -> Iterator[str]:
    """Give SPDL's measurement of a copy under a computation."""
    gpu = replace(Gpu.preset("a100"), h2d=round(SPDL["nbytes"] / SPDL["copy"] * 1e9))

    def run(*, beside: bool) -> float:
        runtime = Runtime(gpu, Host.preset(HOST))
        runtime.launch(SPDL["compute"])
        runtime.memcpy(SPDL["nbytes"], "h2d", runtime.stream() if beside else None)
        runtime.synchronize()
        return runtime.now / 1e6

    serial, both = run(beside=False), run(beside=True)
    measured = (SPDL["compute"] + SPDL["copy"]) / SPDL["both"]
    yield "| | measured ms | predicted |\n|---|---|---|"
    yield f"| one after the other | {(SPDL['compute'] + SPDL['copy']) / 1e6:.3f} | {serial:.3f} |"
    yield f"| at once | {SPDL['both'] / 1e6:.3f} | {both:.3f} |"
    yield f"| how much faster | {measured:.3f}x | {serial / both:.3f}x |"


PAGE = """# Predicted beside measured

Made by `python -m benchmarks.validate`; no number here is typed.

## Kernels of real traces

The error is the sum of the absolute differences, operator by operator, over the sum measured; `loaderviz validate`
shows it by class. Operators that ran beside another stream's, and those that are not torch's, are left out.

{traces}

## Kernel time of whole training steps, never fitted on as wholes

{steps}

## Published step times

A step takes the longer of its kernels' time and of the host's (preset "{host}"); data are synthetic. Shares of
half-precision convolutions and of GeForce cards were fitted on this table, all others on traces.

{published}

## A copy under a computation (SPDL, a whole A100)

{overlap}

## Not modelled

Copies and kernels take no memory bandwidth from each other (hence the difference in the last table); no GPU is slowed
down by heat or power; what torch.compile, fbgemm or NCCL launch has no price of its own; fp8 products count as
elementwise kernels; vendors other than NVIDIA have no presets.
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="docs/validation.md")
    options = parser.parse_args(arguments)
    parts: dict[str, str] = {"host": HOST}
    for part in (traces, steps, overlap, published):
        lines = []
        for line in part():
            print(line, flush=True)
            lines.append(line)
        parts[part.__name__] = "\n".join(lines)
    if options.out != "-":
        Path(options.out).write_text(PAGE.format(**parts), encoding="utf-8")


if __name__ == "__main__":
    main()
