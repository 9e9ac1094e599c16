"""One way to feed a GPU as a handful of numbers, the PyTorch code that it means, and the timeline that comes of it.

The explorer's sliders set nothing else. No torch is needed: the loop is `emulator.replay`, which obeys the same rules
as PyTorch on the emulator. Times are integer nanoseconds, sizes bytes, rates bytes a second.
"""

from __future__ import annotations

import linecache
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import PurePath
from typing import Any

from loaderviz import words
from loaderviz.emulator.hardware import GB, GPUS, Gpu, Host, ceil_div
from loaderviz.emulator.replay import LIFETIMES, Batch, LoaderConfig, Replay, launch
from loaderviz.emulator.runtime import Runtime
from loaderviz.errors import LoadervizError
from loaderviz.timeline import Timeline

HOST = "workstation"
SAMPLES = 60_000  # of the data set, as many as MNIST has
_LIMITS = {  # smallest and largest value that makes sense
    "batch_size": (1, SAMPLES), "sample_bytes": (1, 100_000_000), "pinned_rate": (1_000_000, 10**13),
    "pageable_rate": (1_000_000, 10**13), "compute": (0, 10**10), "kernels": (1, 200), "fetch_per_sample": (0, 10**9),
    "workers": (0, 64), "depth": (0, 16), "steps": (1, 100),
}  # fmt: skip


class SettingsError(LoadervizError, ValueError):
    """A setting has a value that means nothing."""


@dataclass(frozen=True)
class Settings(LoaderConfig):
    """What the explorer shows. The defaults are the blocking loader of the first lesson.

    `compute` is the time of a batch's kernels [ns], spread over `kernels` launches; `fetch_per_sample` is what the data
    set's own work costs a worker [ns a sample]; `pinned_rate` and `pageable_rate` are the link's [bytes/s]. `depth`
    batches are copied ahead. `lifetime` says what protects a batch's memory when a side stream copies. With `resident`
    the data set lives on the GPU, and all that concerns loading and copying has no effect. `steps` are drawn.

    Raises `SettingsError` for a number out of range or an unknown choice.
    """

    batch_size: int = 8192
    sample_bytes: int = 784
    pinned_rate: int = 25 * GB
    pageable_rate: int = 10 * GB
    compute: int = 880_000
    kernels: int = 8
    fetch_per_sample: int = 0
    workers: int = 4
    gpu: str = "a100"
    steps: int = 6

    def __post_init__(self) -> None:
        for name, (least, most) in _LIMITS.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
                raise SettingsError(f"{name} is {value!r}; give a whole number from {least:,} to {most:,}")
        for name in ("pin", "non_blocking", "side_stream", "resident"):
            if not isinstance(getattr(self, name), bool):
                raise SettingsError(f"{name} is {getattr(self, name)!r}; give True or False")
        if self.lifetime not in LIFETIMES:
            raise SettingsError(f"lifetime is {self.lifetime!r}; choose from {', '.join(LIFETIMES)}")
        if self.gpu not in GPUS and not is_calibrated(self.gpu):
            raise SettingsError(
                f"gpu is {self.gpu!r}; choose from {', '.join(sorted(GPUS))}, or give a calibrated file"
            )

    @property
    def nbytes(self) -> int:
        """Bytes of a batch."""
        return self.batch_size * self.sample_bytes

    @property
    def fetch_time(self) -> int:
        """How long a worker, or the main thread, prepares a batch [ns]."""
        work = Host.preset(HOST).fetch_time(self.batch_size, self.nbytes, batched=True)
        return work + self.batch_size * self.fetch_per_sample

    def machine(self) -> Gpu:
        """Return the emulated GPU: the preset, with the link's rates of these settings."""
        return replace(
            Gpu.preset(self.gpu), h2d=self.pinned_rate, pageable=self.pageable_rate,
            sources={"h2d": "set by hand", "pageable": "set by hand"},
        )  # fmt: skip

    def words(self) -> str:
        """Return the state in one line, as the figure's title has it."""
        size = words.size(self.sample_bytes).replace("bytes", "B")
        parts = [f"{PurePath(self.gpu).stem.upper()}, {self.batch_size:,} × {size}"]
        if self.resident:
            return f"{parts[0]}, resident on the GPU"
        parts.append(f"{self.workers} worker{'' if self.workers == 1 else 's'}")
        parts.append("pinned" if self.pin else "pageable")
        parts += ["non_blocking"] if self.non_blocking else []
        policy = "" if self.lifetime == "consumer" else f" ({self.lifetime})"
        parts.append(f"side stream{policy}" if self.side_stream else "one stream")
        parts += [f"{self.depth} ahead"] if self.depth else []
        return ", ".join(parts)

    def change(self, **values: Any) -> Settings:
        """Return the settings with some values changed. Raises `SettingsError`, with the names that exist."""
        known = [entry.name for entry in fields(self)]
        if unknown := values.keys() - set(known):
            raise SettingsError(f"no setting {', '.join(sorted(unknown))}; there are {', '.join(known)}")
        return replace(self, **values)


def is_calibrated(gpu: object) -> bool:
    """Tell whether this names a file that `loaderviz calibrate` wrote, which stands where a preset's name does."""
    return str(gpu).endswith(".json")


def rates_of(gpu: str) -> dict[str, int]:
    """Return the link's rates of a GPU preset [bytes/s], as settings."""
    preset = Gpu.preset(gpu)
    return {"pinned_rate": preset.h2d, "pageable_rate": preset.pageable}


# The code


@dataclass(frozen=True)
class Program:
    """Source text, and the numbers of the lines that do something on the timeline (from 1)."""

    text: str
    lines: dict[str, int]

    @cached_property
    def file(self) -> str:
        """A name for the text, as tracebacks have one for code that lies in no file."""
        return f"<explorer {zlib.crc32(self.text.encode()) & 0xFFFF:04x}>"

    def source(self, does: str) -> str:
        """Return "file:line" of the line that does this; "" if no line does."""
        return f"{self.file}:{self.lines[does]}" if does in self.lines else ""

    def remember(self) -> None:
        """Let Python's `linecache` know the text, so that whoever asks for the file's lines gets them."""
        linecache.cache[self.file] = (len(self.text), None, self.text.splitlines(keepends=True), self.file)


# A line is in the program if all words before its bar are true (with "-": false); behind "#:" is what it does.
_PROGRAM = """\
again      |import itertools
slow       |import time
ahead      |from collections import deque
library    |
           |import torch
loads      |from torch.utils.data import DataLoader, Dataset, default_convert
           |
           |model = torch.nn.Linear({sample_bytes}, 10, device="cuda")  # stands for your model
           |optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
           |
           |
           |def train_step(x):  # in the picture: {kernels} kernels, {took}
           |    loss = model(x.float() / 255).square().mean()  #: forward
           |    loss.backward()  #: backward
           |    optimizer.step()  #: optimizer
           |    optimizer.zero_grad()
           |
           |
-loads     |data = torch.zeros({samples}, {sample_bytes}, dtype=torch.uint8)  # stands for your data set
-loads     |data = data.to("cuda")  # once  #: move
-loads     |order = torch.randperm(len(data)).to("cuda")  # once per epoch  #: order
-loads     |for indices in order.split({batch_size}):  #: loop
-loads     |    train_step(data.index_select(0, indices))  #: gather
loads      |class Samples(Dataset):  # stands for your data set
loads      |    def __len__(self):
loads      |        return {samples}
loads      |
loads      |    def __getitems__(self, indices):  # a whole batch at once
slow       |        time.sleep(len(indices) * {seconds:g})  # what your transforms cost
loads      |        return torch.zeros(len(indices), {sample_bytes}, dtype=torch.uint8)  #: fetch
loads      |
loads      |
loads      |loader = DataLoader(
loads      |    Samples(), {batch_size}, shuffle=True, drop_last=True, num_workers={workers}{pinned},
loads      |    collate_fn=default_convert,  # a batch is whole already
loads      |)  #: loader
side       |main, side = torch.cuda.current_stream(), torch.cuda.Stream()  #: streams
ring       |ring = itertools.cycle([torch.empty({shape}) for _ in range({buffers})])  #: ring
ahead      |
ahead      |
ahead      |def copies():
loads      |{inner}for batch in loader:  #: loop
loads -side|{inner}    x = batch.to("cuda"{how})  #: copy
ring       |{inner}    x = next(ring)  #: allocate
own -ring  |{inner}    x = torch.empty_like(batch, device="cuda")  #: allocate
waits      |{inner}    side.wait_stream(main)  # the memory may still be in use  #: protect
side       |{inner}    with torch.cuda.stream(side):
own        |{inner}        x.copy_(batch{how})  #: copy
side -own  |{inner}        x = batch.to("cuda"{how})  #: copy
ahead side |        yield x, side.record_event()  #: event
ahead -side|        yield x  #: event
ahead      |
ahead      |
ahead      |ahead = copies()
ahead      |queue = deque(itertools.islice(ahead, {depth}))  # the first {batches}
ahead      |while queue:
ahead side |    x, copied = queue.popleft()  #: drop
ahead -side|    x = queue.popleft()  #: drop
ahead side |    main.wait_event(copied)  #: hand over
side -ahead|    main.wait_stream(side)  #: hand over
records    |    x.record_stream(main)  #: record_stream
ahead      |    queue.extend(itertools.islice(ahead, 1))  # the next copy, before this step
loads      |    train_step(x)  #: step
           |torch.cuda.synchronize()  #: synchronize
"""


def program_of(settings: Settings) -> Program:
    """Return the code for these settings."""
    loads, depth, policy = not settings.resident, settings.depth, LIFETIMES[settings.lifetime]
    side, ahead, slow = loads and settings.side_stream, loads and depth > 0, loads and settings.fetch_per_sample > 0
    ring = side and policy.ring
    true = {
        "loads": loads, "side": side, "ahead": ahead, "slow": slow, "ring": ring, "again": ahead or ring,
        "library": ahead or ring or slow, "own": side and policy.of_consumer, "waits": side and policy.waits,
        "records": side and policy.records,
    }  # fmt: skip
    code = _PROGRAM.format(
        **vars(settings), samples=SAMPLES, took=words.duration(settings.compute), inner="    " if ahead else "",
        seconds=settings.fetch_per_sample / 1e9, pinned=", pin_memory=True" if settings.pin else "",
        shape=f'{settings.batch_size}, {settings.sample_bytes}, dtype=torch.uint8, device="cuda"', buffers=depth + 1,
        how=", non_blocking=True" if settings.non_blocking else "",
        batches="batch" if depth == 1 else f"{depth} batches",
    )  # fmt: skip
    guarded = (line.split("|", 1) for line in code.splitlines())
    kept = [
        line for guard, line in guarded if all(true[word.lstrip("-")] != (word[0] == "-") for word in guard.split())
    ]
    parts = [line.partition("  #: ") for line in kept]
    numbers = {does: number for number, (_, _, does) in enumerate(parts, 1) if does}
    return Program("".join(f"{text}\n" for text, _, _ in parts), numbers)


# The timeline


def simulate(settings: Settings, program: Program | None = None, host: Host | None = None) -> Timeline:
    """Return `settings.steps` steps of the loop, after a warm-up in which memory is allocated and queues fill.

    `program` is `program_of(settings)`, if it was made before; its lines are the sources of the spans. `host` is the
    computer around the GPU, "workstation" if none is given. Raises `OutOfMemory` if the batches (or the resident data
    set) do not fit into the GPU's memory.
    """
    runtime = Runtime(settings.machine(), host or Host.preset(HOST))
    work = _Work(settings, program or program_of(settings), runtime)
    return Replay(settings, work, runtime).run(settings.warmup, settings.steps)


class _Work:
    """What the settings say about a batch and a step, statement by statement of a `Program`."""

    def __init__(self, settings: Settings, program: Program, runtime: Runtime) -> None:
        self.settings, self.source = settings, program.source
        self._batch = Batch([settings.nbytes], settings.batch_size, settings.fetch_time)
        self.resident_bytes: Sequence[int] = (SAMPLES * settings.sample_bytes, 8 * SAMPLES)
        self.kernel = max(runtime.gpu.kernels["elementwise"].floor, ceil_div(settings.compute, settings.kernels))

    def batch(self, number: int) -> Batch:
        return self._batch

    def train(self, runtime: Runtime, number: int) -> None:
        """Launch the kernels of a step: a third forward, the last one the optimizer's, the rest backward."""
        kernels = self.settings.kernels
        forward = max(1, kernels // 3)
        for kernel in range(kernels):
            name = "forward" if kernel < forward else "optimizer" if kernel == kernels - 1 else "backward"
            runtime.source = self.source(name)
            launch(runtime, name, self.kernel)
