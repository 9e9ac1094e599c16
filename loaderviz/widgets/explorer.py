"""The explorer: sliders and choices above one live timeline and, beside it, the code that the setting means.

lv.explore()                                       # begins with the blocking loader
lv.explore("prefetch", batch_size=256, workers=2)  # or with another lesson, or settings of your own

`Settings` are one way to feed a GPU as a handful of numbers; the sliders set nothing else. `program_of` gives the
PyTorch code that they mean, `simulate` the timeline that comes of it. No torch is needed: the loop is
`emulator.replay`, which obeys the same rules as PyTorch on the emulator. Times are integer nanoseconds, sizes bytes,
rates bytes a second.

What one touches is `view/explorer.js`, which needs no kernel: it works the same out once more, from the `tables`
here. A kernel hears of the settings and has their timeline.
"""

from __future__ import annotations

import linecache
import tomllib
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cache, cached_property
from html import escape
from pathlib import Path, PurePath
from typing import Any

from loaderviz import words
from loaderviz.emulator.hardware import GB, GPUS, Gpu, Host, Parcel, ceil_div
from loaderviz.emulator.host import PREFETCH_FACTOR
from loaderviz.emulator.replay import LIFETIMES, PRESETS, Batch, Lifetime, LoaderConfig, Replay, launch
from loaderviz.emulator.runtime import Runtime
from loaderviz.errors import LoadervizError
from loaderviz.export import page
from loaderviz.files import writable, write
from loaderviz.metrics import AT_THE_LIMIT, Summary, finding, summarize
from loaderviz.timeline import Cause, Timeline
from loaderviz.view.pack import looks
from loaderviz.view.picture import EXPLORER, live_element, loader
from loaderviz.view.spoken import words_in
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
    "python": (0, 1000),
    "ranks_on_host": (1, 64),
    "depth": (0, 16),
    "steps": (1, 100),
}


WORTH_HIDING = 0.05  # with a copy below this share of the step, overlap cannot pay (Amdahl)
BUSY = 0.97  # of the time the GPU computes: then nothing else can help


@cache
def _texts(language: str) -> dict[str, dict[str, str]]:
    """Return the tables of texts.toml in a language; what it lacks is English, or the picture's own word."""
    told = tomllib.loads(Path(__file__).with_name("texts.toml").read_text(encoding="utf-8"))
    both = {table: {key: each.get(language, each["en"]) for key, each in told[table].items()} for table in told}
    return both | {"picture": words_in(language)}


TEXTS = _texts("en")["texts"]


class SettingsError(LoadervizError, ValueError):
    """A setting has a value that means nothing."""


@dataclass(frozen=True)
class Settings(LoaderConfig):
    """What the explorer shows. The defaults are the blocking loader of the first lesson.

    `compute` is the time of a batch's kernels [ns], spread over `kernels` launches; `fetch_per_sample` is what the data
    set's own work costs a worker [ns a sample]; `ranks_on_host` equal processes share the host; `pinned_rate` and
    `pageable_rate` are the link's [bytes/s]. With `threads` the workers are threads of the loop's process, and `python`
    thousandths of a fetch hold the interpreter's lock. `depth` batches are copied ahead. `lifetime` says what protects
    a batch's memory when a side stream copies. With `resident` the data set lives on the GPU, and all that concerns
    loading and copying has no effect. `steps` are drawn.

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
                given = {"name": name, "value": repr(value), "least": f"{least:,}", "most": f"{most:,}"}
                raise SettingsError(TEXTS["number"].format(**given))
        for name in ("pin", "non_blocking", "side_stream", "resident", "threads"):
            if not isinstance(getattr(self, name), bool):
                raise SettingsError(TEXTS["truth"].format(name=name, value=repr(getattr(self, name))))
        if self.lifetime not in LIFETIMES:
            given = {"name": "lifetime", "value": repr(self.lifetime), "names": ", ".join(LIFETIMES)}
            raise SettingsError(TEXTS["choice"].format(**given))
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

    @property
    def held(self) -> str:
        """The part of a fetch in which a thread has Python's lock, in words."""
        return words.share(self.python / 1000)

    def machine(self) -> Gpu:
        """Return the emulated GPU: the preset, with the link's rates of these settings."""
        linked = Gpu.preset(self.gpu).behind(self.pinned_rate, self.pageable_rate)
        return replace(linked, sources={"h2d": "set by hand", "pageable": "set by hand"})

    def words(self) -> str:
        """Return the state in one line, as the figure's title has it."""
        size = words.size(self.sample_bytes).replace("bytes", "B")
        parts = [f"{_short(self.gpu)}, {self.batch_size:,} × {size}"]
        if self.resident:
            return f"{parts[0]}, {TEXTS['resident']}"
        kind = "thread" if self.in_threads else "worker"
        told = [kind + "s" * (self.workers != 1), "pinned" if self.pin else "pageable"]
        told += ["non_blocking"] * self.non_blocking + ["side" if self.side_stream else "one_stream"]
        told += ["ahead"] * (self.depth > 0) + ["ranks"] * (self.ranks_on_host > 1)
        policy = "" if self.lifetime == "consumer" else f" ({self.lifetime})"
        return ", ".join([*parts, *(TEXTS[name].format(policy=policy, held=self.held, **vars(self)) for name in told)])

    def change(self, **values: Any) -> Settings:
        """Return the settings with some values changed. Raises `SettingsError`, with the names that exist."""
        known = [entry.name for entry in fields(self)]
        if unknown := values.keys() - set(known):
            raise SettingsError(TEXTS["no_setting"].format(name=", ".join(sorted(unknown)), names=", ".join(known)))
        return replace(self, **values)


def is_calibrated(gpu: object) -> bool:
    """Tell whether this names a file that `loaderviz calibrate` wrote, which stands where a preset's name does."""
    return str(gpu).endswith(".json")


def rates_of(gpu: str) -> dict[str, int]:
    """Return the link's rates of a GPU preset [bytes/s], as settings."""
    preset = Gpu.preset(gpu)
    return {"pinned_rate": preset.h2d, "pageable_rate": preset.pageable}


def tables(*gpus: str, language: str = "en") -> dict[str, Any]:
    """Return what the explorer's page takes from Python, for JSON: machines, presets, limits, looks, texts.

    The GPUs are all presets, and these calibrated files. `language` is "en" or "zh".

    >>> tables()["gpus"]["t4"]["memory"]  # bytes
    16000000000
    """
    machines = {name: Gpu.preset(name) for name in sorted({*GPUS, *gpus})}
    return {
        "gpus": {name: _plain(gpu) | {"short": _short(name)} for name, gpu in machines.items()},
        "host": _plain(Host.preset(HOST)),
        "causes": ["", *(cause.words for cause in list(Cause)[1:])],
        "lifetimes": {name: policy._asdict() for name, policy in LIFETIMES.items()},
        "presets": PRESETS,
        "settings": asdict(Settings()),
        "limits": _LIMITS,
        "samples": SAMPLES,
        "program": _PROGRAM,
        **_texts(language),
        "busy": BUSY,
        "worth_hiding": WORTH_HIDING,
        "at_the_limit": AT_THE_LIMIT,
        "looks": looks(),
        "frame": FRAME,
    }


def _plain(machine: Gpu | Host) -> dict[str, Any]:
    """Return the numbers of a machine, and of two classes of kernels what the smallest takes, and their bandwidth."""
    kinds = {kind: machine.kernels[kind][:2] for kind in ("elementwise", "gather")} if isinstance(machine, Gpu) else {}
    numbers = {name: value for name, value in vars(machine).items() if isinstance(value, int) or name == "name"}
    return numbers | ({"kernels": kinds} if kinds else {})


def _short(gpu: str) -> str:
    return PurePath(gpu).stem.upper()


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
    ring, pool = side and policy.ring, loads and settings.in_threads
    true = {
        "loads": loads,
        "side": side,
        "ahead": ahead,
        "slow": slow,
        "ring": ring,
        "pool": pool,
        "pins": settings.pin,
        "queue": ahead or pool,
        "again": ahead or ring or pool,
        "library": ahead or ring or pool or slow,
        "own": side and policy.of_consumer,
        "waits": side and policy.waits,
        "records": side and policy.records,
    }
    code = _PROGRAM.format(
        **vars(settings),
        samples=SAMPLES,
        took=words.duration(settings.compute),
        inner="    " if ahead else "",
        seconds=f"{settings.fetch_per_sample / 1e9:g}",
        pinned=", pin_memory=True" if settings.pin else "",
        shape=f'{settings.batch_size}, {settings.sample_bytes}, dtype=torch.uint8, device="cuda"',
        buffers=depth + 1,
        held=settings.held,
        ordered=PREFETCH_FACTOR * settings.workers,
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
FRAME = {"compact": True, "height": 260, "beside": 560}


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
    threads: bool | None = None,
    python: int | None = None,
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
    Where widgets do not work, as in Colab, the sliders still move in the page, but Python does not hear of it, and
    `settings` and `timeline` stay as they were made. Where no script runs, there is a still picture, words and code.

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
    """Controls, one live view, numbers, code. `settings` and `timeline` are the present ones.

    The page works out by itself what it shows; `widget`, where there is one, tells of the settings.
    """

    def __init__(self, settings: Settings, name: str | None = None) -> None:
        super().__init__("explorer", name)
        self._work_out(settings)
        self._build()

    def set(self, **settings: Any) -> None:
        """Change settings by name, as a slider does. Raises `SettingsError` and `OutOfMemory`; then nothing changes."""
        self._work_out(self.settings.change(**settings))
        if self.widget is not None:
            with self.widget.hold_sync():
                self.widget.tables = tables(self.settings.gpu)
                self.widget.settings = asdict(self.settings)

    def to_html(self, path: str | Path) -> Path:
        """Write the explorer as one page, which needs neither kernel nor network; return its path.

        Raises `NoFolderError` when the folder does not exist.
        """
        return write(writable(path), page(self._element(self.view.svg()), "loaderviz: the explorer", *EXPLORER))

    def text(self) -> str:
        """Return the picture in words."""
        return f"{self.settings.words()}: {finding(self.summary)}. {advice(self.settings, self.summary)}"

    def static_html(self) -> str:
        """Return state, numbers and code, for a place without scripts."""
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
        return {}

    def _element(self, picture: str) -> str:
        """Return the explorer as HTML: a still picture, words and code, until its script takes their place."""
        return live_element(
            self._given(), picture, self.view.heading, self.static_html(), stands=self.widget is not None
        )

    def _given(self) -> dict[str, Any]:
        """Return what the page begins with, in the reader's language."""
        return {"tables": tables(self.settings.gpu, language=words.language()), "settings": asdict(self.settings)}

    def _cell(self, picture: str) -> str:
        return self._element(picture) + loader(*EXPLORER)

    def _display_(self) -> Any:
        """Return what marimo shows: it runs no script of an output, but widgets."""
        return self.widget or self.view

    def _assembled(self) -> Any:
        from loaderviz.widgets.controls import LiveExplorer

        widget = LiveExplorer(**self._given())
        widget.observe(lambda change: self._changed(change["new"]), "settings")
        return widget

    def _changed(self, values: dict[str, Any]) -> None:
        """The page has other settings, of which it has worked out that they fit."""
        if (settings := Settings(**values)) != self.settings:
            self._work_out(settings)


def advice(settings: Settings, summary: Summary, language: str = "en") -> str:
    """Say in one sentence what the loop waits for, and what would change it; from the numbers of the timeline."""
    told = _texts(language)
    if (summary.compute_share or 0) >= BUSY:
        return told["texts"]["busy"]
    causes = {name: time for name, time in summary.breakdown.items() if name != "compute"}
    if not causes:
        return ""
    cause = max(causes, key=lambda name: causes[name])
    share = words.share(causes[cause] / summary.window)
    remedy = _remedy(cause, settings, summary, told)
    return told["texts"]["rest"].format(share=share, what=told["rests"].get(cause, cause), remedy=remedy).rstrip()


def _remedy(cause: str, settings: Settings, summary: Summary, told: dict[str, dict[str, str]]) -> str:
    texts = told["texts"]
    if cause == "copy exposed":
        if (summary.copy_share or 0) < WORTH_HIDING:
            return texts["small_copy"]
        missing = [words for name, words in told["ways"].items() if not getattr(settings, name)]
        return texts["hide"].format(missing=texts["comma"].join(missing)) if missing else texts["long_copy"]
    if cause.startswith("idle: host in"):
        return texts["launching"]
    if cause.endswith((Cause.DATA.words, Cause.GIL.words)):
        host, parcel, threads = Host.preset(HOST), Parcel(1, settings.nbytes), settings.in_threads
        sending, receiving = (0, 0) if threads else (host.sending(parcel), host.receiving(parcel))
        pinning = receiving + (host.pinning(settings.nbytes) if settings.pin else 0)
        fetching, held = settings.fetch_time + sending, settings.fetch_time * settings.python // 1000 * threads
        each = fetching / max(1, settings.workers)
        limits = ("lock", held, held), ("more_workers", each, fetching), ("pin_thread", pinning, pinning)
        name, _, time = max(limits, key=lambda limit: limit[1])
        return texts[name].format(time=words.duration(time))
    return ""
