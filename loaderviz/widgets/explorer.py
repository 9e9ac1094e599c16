"""The explorer: sliders and choices above one live timeline and, beside it, the code that the setting means.

lv.explore()                                       # begins with the blocking loader
lv.explore("prefetch", batch_size=256, workers=2)  # or with another lesson, or settings of your own
"""

from __future__ import annotations

from dataclasses import fields, replace
from html import escape
from typing import Any

from loaderviz import words
from loaderviz.emulator.hardware import GPUS, Host
from loaderviz.emulator.memory import OutOfMemory
from loaderviz.emulator.replay import PRESETS, Lifetime
from loaderviz.metrics import Summary, finding, summarize
from loaderviz.timeline import Timeline
from loaderviz.widgets import cells
from loaderviz.widgets.cells import Interactive
from loaderviz.widgets.settings import (
    HOST,
    Program,
    Settings,
    SettingsError,
    is_calibrated,
    program_of,
    rates_of,
    simulate,
)

# px of the view's lanes, however many there are, so that nothing jumps; more where the window has more than is beside
LOOKS = {"compact": True, "height": 260, "beside": 560}
WORTH_HIDING = 0.05  # with a copy below this share of the step, overlap cannot pay (Amdahl)


def explore(
    preset: str = "blocking", *, gpu: str | None = None, batch_size: int | None = None, sample_bytes: int | None = None,
    workers: int | None = None, pin: bool | None = None, non_blocking: bool | None = None,
    side_stream: bool | None = None, depth: int | None = None, lifetime: Lifetime | None = None,
    resident: bool | None = None, compute: int | None = None, kernels: int | None = None,
    fetch_per_sample: int | None = None, pinned_rate: int | None = None, pageable_rate: int | None = None,
    steps: int | None = None, name: str | None = None,
) -> Explorer:  # fmt: skip
    """Return the explorer; displaying it in a notebook shows it.

    `preset` is the lesson to begin with: "blocking", "pinned", "prefetch" or "resident"; all else but `name` is a
    setting, with its meaning, unit and default in `loaderviz.widgets.Settings`. A cell that runs again closes its
    former explorer; `name` tells several in one cell apart. Raises `SettingsError` for a value that means nothing.
    Where widgets do not work, it shows its first frame.
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
        self.program: Program = program
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

        from loaderviz.widgets.live import Controls, LiveView

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
    change = "as fast as before" if 0.995 < faster < 1.005 else (
        f"{words.times(faster)} as fast" if faster > 1 else f"{words.times(1 / faster)} slower"
    )  # fmt: skip
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
            what for has, what in (
                (settings.pin, "pinned memory"), (settings.non_blocking, "non_blocking"),
                (settings.side_stream, "a side stream"), (settings.depth > 0, "a batch copied ahead"),
            ) if not has
        ]  # fmt: skip
        return f"To hide it: {', '.join(missing)}." if missing else "The copy takes longer than the computation."
    if cause.startswith("idle: host in"):
        return "Larger batches or fewer kernels would help; a faster copy would not."
    if cause.endswith("waiting for data"):
        pinning = Host.preset(HOST).work_time(2 * settings.nbytes) if settings.pin else 0
        if settings.fetch_time / max(1, settings.workers) >= pinning:
            return f"More workers would help: a batch takes one of them {words.duration(settings.fetch_time)}."
        return (
            f"The one pin thread is the limit: {words.duration(pinning)} a batch. Smaller samples would help (uint8)."
        )
    return ""
