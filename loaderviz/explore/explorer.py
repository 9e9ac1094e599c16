"""The explorer: sliders and choices beside one live timeline, its numbers, and the code that the setting means.

lv.explore()                                       # begins with the blocking loader
lv.explore("prefetch", batch_size=256, workers=2)  # or with another lesson, or settings of your own
"""

from __future__ import annotations

from html import escape
from typing import Any

import plotly.graph_objects as go

from loaderviz import words
from loaderviz.emulator.blocks import OutOfMemory
from loaderviz.explore import panels
from loaderviz.explore.cells import Interactive, live_here
from loaderviz.explore.live import LiveFigure, figure_of, picture
from loaderviz.explore.pipeline import simulate
from loaderviz.explore.program import Program, program_of
from loaderviz.explore.settings import PRESETS, Settings, SettingsError, rates_of
from loaderviz.metrics import Summary, summarize
from loaderviz.timeline import Timeline

WORTH_HIDING = 0.05  # with a copy below this share of the step, overlap cannot pay (Amdahl)


def explore(preset: str = "blocking", *, name: str | None = None, **settings: Any) -> Explorer:
    """Return the explorer; displaying it in a notebook shows it.

    `preset` is the lesson to begin with: "blocking", "pinned", "prefetch" or "resident"; `settings` are those of
    `loaderviz.explore.settings.Settings`, such as `batch_size=256` or `gpu="t4"`. A cell that runs again closes its
    former explorer; `name` tells several in one cell apart. Raises `SettingsError` for a name or value that means
    nothing. Where widgets do not work, it shows its first frame.
    """
    if preset not in PRESETS:
        raise SettingsError(f"no preset {preset!r}; choose from {', '.join(PRESETS)}")
    rates = rates_of(settings["gpu"]) if settings.get("gpu") in known_gpus() else {}
    return Explorer(Settings().change(**(PRESETS[preset] | rates | settings)), name)


def known_gpus() -> tuple[str, ...]:
    """Return the names of the presets."""
    from loaderviz.emulator.hardware import GPUS

    return tuple(GPUS)


class Explorer(Interactive):
    """Controls, one live figure, numbers, code. `settings` and `timeline` are the present ones."""

    def __init__(self, settings: Settings, name: str | None = None) -> None:
        super().__init__("explorer", name)
        self._view(settings)
        if live_here():
            self._build()

    def set(self, **settings: Any) -> None:
        """Change settings by name, as a slider does. Raises `SettingsError`."""
        changed = self.settings.change(**settings)
        if self.widget is None:
            self._view(changed)
        else:
            self.controls.set(changed)

    @property
    def figure(self) -> go.Figure:
        """The picture as it is now."""
        return figure_of(*picture(self.timeline, self.settings.words(), finding(self.summary)))

    def text(self) -> str:
        """Return the picture in words."""
        return f"{self.settings.words()}: {finding(self.summary)}. {advice(self.settings, self.summary)}"

    def static_html(self) -> str:
        """Return state, numbers and code, for a place without widgets."""
        return (
            panels.paragraph(self.text()) + panels.numbers(self.summary)
            + f"<pre>{escape(self.program.text)}</pre>"
            + panels.paragraph("The sliders need a running kernel: open the notebook in JupyterLab and run the cell.")
        )  # fmt: skip

    def _view(self, settings: Settings) -> None:
        """Work out timeline and numbers. Raises `OutOfMemory`; then nothing has changed."""
        program = program_of(settings)
        timeline = simulate(settings, program)
        self.settings: Settings = settings
        self.program: Program = program
        self.timeline: Timeline = timeline
        self.summary: Summary = summarize(timeline)
        program.remember()

    def _build(self) -> None:
        import ipywidgets as widgets

        from loaderviz.explore.controls import Controls

        self._live = LiveFigure(*picture(self.timeline, self.settings.words(), finding(self.summary)))
        self._numbers, self._words, self._code = widgets.HTML(), widgets.HTML(), widgets.HTML()
        self.controls = Controls(self.settings, self._changed)
        parts = [self._numbers, self._live.widget, self._words]
        right = widgets.VBox(parts, layout={"flex": "1 1 560px", "min_width": "0"})
        top = widgets.HBox([self.controls.box, right], layout={"flex_flow": "row wrap", "grid_gap": "12px"})
        self.widget = widgets.VBox([top, self._code, widgets.HTML(panels.fit(), layout=panels.UNSEEN)])
        self._write()

    def _changed(self, settings: Settings) -> None:
        try:
            self._view(settings)
        except (OutOfMemory, SettingsError) as error:
            self._words.value = panels.problem(f"{error} The picture still shows the settings before.")
            return
        self._live.become(*picture(self.timeline, settings.words(), finding(self.summary)))
        self._write()

    def _write(self) -> None:
        self._numbers.value = panels.numbers(self.summary)
        self._words.value = panels.paragraph(self.text(), "In words:", live=True)
        self._code.value = panels.code(self.program.text, "The code that this means")


def finding(summary: Summary) -> str:
    """Return the finding in words, as `metrics.describe` has it, from a summary that is there already."""
    hidden = "no copies" if summary.overlap is None else f"{words.share(summary.overlap)} of the copy is hidden"
    limit = summary.headroom
    far = "" if limit is None else ", at the limit" if limit < 1.005 else f", {words.times(limit)} the limit"
    return f"GPU computes {words.share(summary.compute_share)} of the time, {hidden}{far}"


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
        return _loading_remedy(settings)
    return ""


def _loading_remedy(settings: Settings) -> str:
    from loaderviz.emulator import costs
    from loaderviz.emulator.hardware import Host
    from loaderviz.explore.pipeline import HOST

    host = Host.preset(HOST)
    fetch = costs.fetch_time(host, settings.batch_size, settings.nbytes, batched=True)
    fetch += settings.batch_size * settings.fetch_per_sample
    pinning = costs.host_time(host, 2 * settings.nbytes) if settings.pin else 0
    if fetch / max(1, settings.workers) >= pinning:
        return f"More workers would help: a batch takes one of them {words.duration(fetch)}."
    return f"The one pin thread is the limit: {words.duration(pinning)} a batch. Smaller samples would help (uint8)."
