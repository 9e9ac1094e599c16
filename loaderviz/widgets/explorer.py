"""The explorer: sliders and choices above one live timeline and, beside it, the code that the setting means.

lv.explore()                                       # begins with the blocking loader
lv.explore("prefetch", batch_size=256, workers=2)  # or with another lesson, or settings of your own

`Settings` are one way to feed a GPU as a handful of numbers; the sliders set nothing else. `program_of` gives the
PyTorch code that they mean, `simulate` the timeline that comes of it. No torch is needed: the loop is
`emulator.replay`, which obeys the same rules as PyTorch on the emulator. Times are integer nanoseconds, sizes bytes,
rates bytes a second.
"""

from __future__ import annotations

import linecache
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from html import escape
from pathlib import Path, PurePath
from typing import Any

from loaderviz import words
from loaderviz.emulator.hardware import GB, GPUS, Gpu, Host, Parcel, ceil_div
from loaderviz.emulator.memory import OutOfMemory
from loaderviz.emulator.replay import LIFETIMES, PRESETS, Batch, Lifetime, LoaderConfig, Replay, launch
from loaderviz.emulator.runtime import Runtime
from loaderviz.errors import LoadervizError
from loaderviz.metrics import Summary, finding, summarize
from loaderviz.timeline import Timeline
from loaderviz.widgets import cells
from loaderviz.widgets.cells import Interactive

HOST = "workstation"
SAMPLES = 60_000  # of the data set, as many as MNIST has
_LIMITS = {  # smallest and largest value that makes sense
    "batch_size": (1, SAMPLES),
    "sample_bytes": (1, 100_000_000),
    "pinned_rate": (1_000_000, 10**13),
    "pageable_rate": (1_000_000, 10**13),
    "compute": (0, 10**10),
    "kernels": (1, 200),
    "fetch_per_sample": (0, 10**9),
    "workers": (0, 64),
    "ranks_on_host": (1, 64),
    "depth": (0, 16),
    "steps": (1, 100),
}


class SettingsError(LoadervizError, ValueError):
    """A setting has a value that means nothing."""


@dataclass(frozen=True)
class Settings(LoaderConfig):
    """What the explorer shows. The defaults are the blocking loader of the first lesson.

    `compute` is the time of a batch's kernels [ns], spread over `kernels` launches; `fetch_per_sample` is what the data
    set's own work costs a worker [ns a sample]; `ranks_on_host` equal processes share the host; `pinned_rate` and
    `pageable_rate` are the link's [bytes/s]. `depth` batches are copied ahead. `lifetime` says what protects a batch's
    memory when a side stream copies. With `resident` the data set lives on the GPU, and all that concerns loading and
    copying has no effect. `steps` are drawn.

    Raises `SettingsError` for a number out of range or an unknown choice.
    """

    batch_size: int = 4096
    sample_bytes: int = 784
    pinned_rate: int = 25 * GB
    pageable_rate: int = 10 * GB
    compute: int = 880_000
    kernels: int = 8
    fetch_per_sample: int = 0
    workers: int = 4
    ranks_on_host: int = 1
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
        linked = Gpu.preset(self.gpu).behind(self.pinned_rate, self.pageable_rate)
        return replace(linked, sources={"h2d": "set by hand", "pageable": "set by hand"})

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
        parts += [f"1 of {self.ranks_on_host} ranks on the host"] if self.ranks_on_host > 1 else []
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
class Listing:
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
_PROGRAM = Path(__file__).with_name("program.txt").read_text(encoding="utf-8")


def program_of(settings: Settings) -> Listing:
    """Return the code for these settings."""
    loads, depth, policy = not settings.resident, settings.depth, LIFETIMES[settings.lifetime]
    side, ahead, slow = loads and settings.side_stream, loads and depth > 0, loads and settings.fetch_per_sample > 0
    ring = side and policy.ring
    true = {
        "loads": loads,
        "side": side,
        "ahead": ahead,
        "slow": slow,
        "ring": ring,
        "again": ahead or ring,
        "library": ahead or ring or slow,
        "own": side and policy.of_consumer,
        "waits": side and policy.waits,
        "records": side and policy.records,
    }
    code = _PROGRAM.format(
        **vars(settings),
        samples=SAMPLES,
        took=words.duration(settings.compute),
        inner="    " if ahead else "",
        seconds=settings.fetch_per_sample / 1e9,
        pinned=", pin_memory=True" if settings.pin else "",
        shape=f'{settings.batch_size}, {settings.sample_bytes}, dtype=torch.uint8, device="cuda"',
        buffers=depth + 1,
        how=", non_blocking=True" if settings.non_blocking else "",
        batches="batch" if depth == 1 else f"{depth} batches",
    )
    guarded = (line.split("|", 1) for line in code.splitlines())
    kept = [
        line for guard, line in guarded if all(true[word.lstrip("-")] != (word[0] == "-") for word in guard.split())
    ]
    parts = [line.partition("  #: ") for line in kept]
    numbers = {does: number for number, (_, _, does) in enumerate(parts, 1) if does}
    return Listing("".join(f"{text}\n" for text, _, _ in parts), numbers)


# The timeline


def simulate(settings: Settings, program: Listing | None = None, host: Host | None = None) -> Timeline:
    """Return `settings.steps` steps of the loop, after a warm-up in which memory is allocated and queues fill.

    `program` is `program_of(settings)`, if it was made before; its lines are the sources of the spans. `host` is the
    computer around the GPU, "workstation" if none is given. Raises `OutOfMemory` if the batches (or the resident data
    set) do not fit into the GPU's memory.
    """
    runtime = Runtime(settings.machine(), replace(host or Host.preset(HOST), ranks_on_host=settings.ranks_on_host))
    work = _Work(settings, program or program_of(settings), runtime)
    return Replay(settings, work, runtime).run(settings.warmup, settings.steps)


class _Work:
    """What the settings say about a batch and a step, statement by statement of a `Listing`."""

    def __init__(self, settings: Settings, program: Listing, runtime: Runtime) -> None:
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


# The explorer

# px of the view's lanes, however many there are, so that nothing jumps; more where the window has more than is beside
LOOKS = {"compact": True, "height": 260, "beside": 560}
WORTH_HIDING = 0.05  # with a copy below this share of the step, overlap cannot pay (Amdahl)


def explore(
    preset: str = "blocking",
    *,
    gpu: str | None = None,
    batch_size: int | None = None,
    sample_bytes: int | None = None,
    workers: int | None = None,
    ranks_on_host: int | None = None,
    pin: bool | None = None,
    non_blocking: bool | None = None,
    side_stream: bool | None = None,
    depth: int | None = None,
    lifetime: Lifetime | None = None,
    resident: bool | None = None,
    compute: int | None = None,
    kernels: int | None = None,
    fetch_per_sample: int | None = None,
    pinned_rate: int | None = None,
    pageable_rate: int | None = None,
    steps: int | None = None,
    name: str | None = None,
) -> Explorer:
    """Return the explorer; displaying it in a notebook shows it.

    `preset` is the lesson to begin with: "blocking", "pinned", "prefetch" or "resident"; all else but `name` is a
    setting, with its meaning, unit and default in `loaderviz.widgets.Settings`. A cell that runs again closes its
    former explorer; `name` tells several in one cell apart. Raises `SettingsError` for a value that means nothing.
    Where widgets do not work, it shows its first frame.

    >>> loaderviz.summarize(loaderviz.explore("prefetch", batch_size=256).timeline).step  # ns
    887700.0
    """
    settings = {each.name for each in fields(Settings)}
    given = {each: value for each, value in locals().items() if each in settings and value is not None}
    if preset not in PRESETS:
        raise SettingsError(f"no preset {preset!r}; choose from {', '.join(PRESETS)}")
    rates = rates_of(gpu) if gpu and (gpu in GPUS or is_calibrated(gpu)) else {}
    return Explorer(replace(Settings(), **(PRESETS[preset] | rates | given)), name)


class Explorer(Interactive):
    """Controls, one live view, numbers, code. `settings` and `timeline` are the present ones."""

    def __init__(self, settings: Settings, name: str | None = None) -> None:
        super().__init__("explorer", name)
        self._work_out(settings)
        self._build()

    def set(self, **settings: Any) -> None:
        """Change settings by name, as a slider does. Raises `SettingsError`."""
        changed = self.settings.change(**settings)
        if self.widget is None:
            self._work_out(changed)
        else:
            self.controls.set(changed)

    def text(self) -> str:
        """Return the picture in words."""
        return f"{self.settings.words()}: {finding(self.summary)}. {advice(self.settings, self.summary)}"

    def static_html(self) -> str:
        """Return state, numbers and code, for a place without widgets."""
        numbers = cells.numbers(self.summary)
        return f"{cells.paragraph(self.text())}{numbers}<pre>{escape(self.program.text)}</pre>"

    def _work_out(self, settings: Settings) -> None:
        """Work out timeline and numbers. Raises `OutOfMemory`; then nothing has changed."""
        program = program_of(settings)
        timeline = simulate(settings, program)
        self.settings: Settings = settings
        self.program: Listing = program
        self.timeline: Timeline = timeline
        self.summary: Summary = summarize(timeline)
        self.view = timeline.view(title=f"{settings.words()}: {finding(self.summary)}")
        program.remember()

    def _html(self) -> dict[str, str]:
        return {
            "numbers": cells.numbers(self.summary),
            "code": cells.code(self.program.text, "The code that this means"),
            "words": cells.paragraph(self.text(), "In words:", live=True),
        }

    def _assembled(self) -> Any:
        import ipywidgets as widgets

        from loaderviz.widgets.controls import Controls, LiveView

        self._axis = self.timeline.duration
        self._live = LiveView(self.view, axis=self._axis, **LOOKS)
        self.controls = Controls(self.settings, self._changed)
        self._live.options = {"difference": "A setting that you change leaves the picture before as an outline."}
        numbers, code, text = self._panels.values()
        self._live.layout = {"flex": "5 1 420px", "min_width": "0"}
        code.layout = {"flex": "3 1 320px", "min_width": "0"}
        row = widgets.HBox([self._live, code], layout={"flex_flow": "row wrap", "grid_gap": "0 12px"})
        return widgets.VBox([self.controls.box, numbers, row, text])

    def _changed(self, settings: Settings) -> None:
        former = self.summary
        try:
            self._work_out(settings)
        except (OutOfMemory, SettingsError) as error:
            self._panels["words"].value = cells.problem(f"{error} The picture still shows the settings before.")
            return
        self._axis = max(self._axis, self.timeline.duration)  # fixed, so that lengths can be compared
        self._live.become(self.view, difference(former, self.summary), axis=self._axis, **LOOKS)
        self._write()


def difference(former: Summary, summary: Summary) -> str:
    """Say how the step has changed, for the outline of the former picture."""
    if not former.step or not summary.step:
        return ""
    faster = former.step / summary.step
    change = f"{words.times(faster)} as fast" if faster > 1 else f"{words.times(1 / faster)} slower"
    if 0.995 < faster < 1.005:
        change = "as fast as before"
    return f"{words.duration(summary.step)} a step instead of {words.duration(former.step)}: {change}"


def advice(settings: Settings, summary: Summary) -> str:
    """Say in one sentence what the loop waits for, and what would change it; from the numbers of the timeline."""
    if (summary.compute_share or 0) >= 0.97:
        return "The GPU computes all the time: only a faster GPU or less work would help."
    causes = {name: time for name, time in summary.breakdown.items() if name != "compute"}
    if not causes:
        return ""
    cause = max(causes, key=lambda name: causes[name])
    share = words.share(causes[cause] / summary.window)
    return f"Most of the rest, {share}, is {_WORDS.get(cause, cause)}. {_remedy(cause, settings, summary)}".rstrip()


_WORDS = {
    "copy exposed": "copying while nothing computes",
    "idle: host blocked, waiting for data": "waiting for the next batch",
    "idle: host blocked, staging": "the driver's staging of pageable memory",
    "idle: host blocked, synchronize": "waiting for a copy or the GPU",
    "idle: host in operators": "launching: the host is slower than the GPU",
    "idle: host in CUDA calls": "launching: the host is slower than the GPU",
    "idle: host fetches a batch": "the main thread fetching the next batch",
    "idle: host pins a batch": "the main thread pinning the next batch",
}


def _remedy(cause: str, settings: Settings, summary: Summary) -> str:
    if cause == "copy exposed":
        if (summary.copy_share or 0) < WORTH_HIDING:
            return "The copy is too small a part for overlap to pay."
        missing = [
            what
            for has, what in (
                (settings.pin, "pinned memory"),
                (settings.non_blocking, "non_blocking"),
                (settings.side_stream, "a side stream"),
                (settings.depth > 0, "a batch copied ahead"),
            )
            if not has
        ]
        return f"To hide it: {', '.join(missing)}." if missing else "The copy takes longer than the computation."
    if cause.startswith("idle: host in"):
        return "Larger batches or fewer kernels would help; a faster copy would not."
    if cause.endswith("waiting for data"):
        host, parcel = Host.preset(HOST), Parcel(1, settings.nbytes)
        pinning = host.receiving(parcel) + (host.pinning(settings.nbytes) if settings.pin else 0)
        fetching = settings.fetch_time + host.sending(parcel)
        if fetching / max(1, settings.workers) >= pinning:
            return f"More workers would help: a batch takes one of them {words.duration(fetching)}."
        return (
            f"The one pin thread is the limit: {words.duration(pinning)} a batch. Smaller samples would help (uint8)."
        )
    return ""
