"""What needs ipywidgets and anywidget: the view as a widget, and the explorer's sliders and choices.

Every control has its name and unit as visible text before it, answers to the arrow keys, and shows its value as text.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from importlib.resources import files
from typing import Any

import anywidget
import ipywidgets as widgets
import traitlets

from loaderviz import words
from loaderviz.emulator.hardware import GB, GPUS
from loaderviz.emulator.replay import LIFETIMES, PRESETS
from loaderviz.view.picture import View, module
from loaderviz.widgets.cells import problem
from loaderviz.widgets.explorer import Settings, rates_of

MOST = 300_000  # bars that are sent at once; further ones when the window has come near them
SMALL = 64_000  # bytes that are sent as they are: the browser unpacks with several turns of its event loop


class LiveView(anywidget.AnyWidget):
    """A view in a notebook cell. `window` [ns], `selection` (a bar) and `time` [ns] change there and here.

    Times are from the begin of the timeline on. `playing` runs the time cursor.
    """

    _esm = module()
    head = traitlets.Dict().tag(sync=True)
    body = traitlets.Bytes().tag(sync=True)
    options = traitlets.Dict().tag(sync=True)
    window: traitlets.List[float] = traitlets.List().tag(sync=True)
    selection = traitlets.Int(-1).tag(sync=True)
    time = traitlets.Float(-1.0).tag(sync=True)
    playing = traitlets.Bool(False).tag(sync=True)
    speed = traitlets.Float(0.0).tag(sync=True)

    def __init__(self, view: View, **looks: Any) -> None:
        self.view, self._looks = view, looks
        head, body = view.packed(MOST)
        super().__init__(head=head | looks, body=body)
        self.on_msg(self._asked)

    def become(self, view: View, difference: str = "", **looks: Any) -> None:
        """Show another view in place; with `difference`, in words, the former one stays as a pale outline."""
        self.view, self._looks = view, looks
        head, body = view.packed(MOST, small=SMALL)
        with self.hold_sync():
            self.body, self.head = body, head | looks
            self.options = {"keep": bool(difference), "difference": difference}
            self.selection = -1

    def _asked(self, _: Any, content: Any, __: Any) -> None:
        """The window has left the part that was sent in full: send that around it."""
        if isinstance(content, dict) and "need" in content:
            start, end = (round(float(edge)) for edge in list(content["need"]))
            head, body = self.view.around(start, end, MOST)
            with self.hold_sync():
                self.body, self.head = body, head | self._looks


class Choices(anywidget.AnyWidget):
    """A question and its choices, as HTML; `choice` is the number of the chosen one, -1 for none, `said` a line below.

    It answers to the arrow keys in JupyterLab, too, where those of ipywidgets are no group and move to the next cell.
    """

    _esm = files("loaderviz.widgets").joinpath("choices.js").read_text(encoding="utf-8")
    question = traitlets.Unicode().tag(sync=True)
    choices: traitlets.List[str] = traitlets.List(traitlets.Unicode()).tag(sync=True)
    choice = traitlets.Int(-1).tag(sync=True)
    said = traitlets.Unicode().tag(sync=True)


# The sliders and choices, and the Settings that they stand for


_TEXT = {"description_width": "132px"}
_TITLE = "<b style='color:var(--jp-ui-font-color1,#222)'>{}</b>"
_ROW = {"width": "auto", "height": "26px", "margin": "0 2px"}
_RATES = [rate * GB for rate in (1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 25, 32, 40, 55, 80, 97, 150, 300)]
_HELP = {
    "sample_bytes": "784: MNIST as uint8; 3,136: as float32; 150,528: a picture of 224×224, uint8; 602,112: float32",
    "gpu": "GPU to emulate; it sets the two copy rates",
    "compute": "compute per batch; it grows with the batch size",
}


def _bytes(value: int) -> str:
    return words.size(value).replace("bytes", "B")


def _rate(value: int) -> str:
    return f"{words.size(value)}/s"


def _time(value: int) -> str:
    return words.duration(value) if value else "nothing"


_number = "{:,}".format
_SLIDERS: dict[str, tuple[str, Sequence[int], Callable[[int], str]]] = {  # label, what is offered, how it is written
    "batch_size": ("batch size", [2**power for power in range(3, 16)], _number),
    "sample_bytes": ("bytes per sample",
                     (100, 400, 784, 1_500, 3_136, 6_000, 12_288, 30_000, 60_000, 150_528, 602_112), _bytes),
    "compute": ("compute per batch", [round(base * 10**power) for power in range(3, 9)
                                      for base in (1, 1.5, 2, 3, 4.4, 6, 8.8)], _time),
    "kernels": ("kernels per batch", (1, 2, 4, 8, 12, 17, 24, 32, 48, 64), _number),
    "workers": ("workers", range(13), _number),
    "ranks_on_host": ("ranks on the host", (1, 2, 4, 8, 16), _number),
    "fetch_per_sample": ("CPU work a sample", [1_000 * time for time in (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)],
                         _time),
    "depth": ("batches ahead", range(9), _number),
    "pinned_rate": ("pinned copy rate", _RATES, _rate),
    "pageable_rate": ("pageable copy rate", _RATES, _rate),
}  # fmt: skip


def offered(name: str, value: int) -> list[tuple[str, int]]:
    """Return the choices of a slider as (text, value), with `value` among them."""
    _, values, written = _SLIDERS[name]
    return [(written(each), each) for each in sorted({*values, value})]


_CHECKS = {"pin": "pin_memory=True", "non_blocking": "non_blocking=True", "side_stream": "copy on a side stream"}
_LOADING = ("workers", "ranks_on_host", "fetch_per_sample", "pin", "non_blocking", "side_stream", "depth", "lifetime")
_COLUMNS: tuple[dict[str, tuple[str, ...]], ...] = (
    {"The four loaders": ("buttons",), "The machine": ("gpu", "pinned_rate", "pageable_rate")},
    {"The work": ("resident", "batch_size", "sample_bytes", "compute", "kernels", "typed", "refused")},
    {"Loading and copying": _LOADING},
)


class Controls:
    """The widgets, by the name of the setting; `on_change` is called with the new Settings, once per change."""

    def __init__(self, settings: Settings, on_change: Callable[[Settings], None]) -> None:
        self.settings, self._on_change = settings, on_change
        self._quiet = False  # while other settings are shown
        self.widgets: dict[str, Any] = {name: _slider(name, getattr(settings, name)) for name in _SLIDERS}
        self.widgets |= {name: _check(label, getattr(settings, name)) for name, label in _CHECKS.items()}
        self.widgets["gpu"] = _dropdown("GPU", sorted({*GPUS, settings.gpu}), settings.gpu)
        self.widgets["lifetime"] = _dropdown("memory kept by", list(LIFETIMES), settings.lifetime)
        where = [("host memory", False), ("GPU memory", True)]
        self.widgets["resident"] = _dropdown("the data set is in", where, settings.resident)
        for name, widget in self.widgets.items():
            widget.observe(lambda change, name=name: self._moved(name, change), names="value")
        self.buttons = {name: self._button(name) for name in PRESETS}
        hint = "workers=3, batch_size=1000"
        self.typed = widgets.Text(
            placeholder=hint,
            description="or type values",
            style=_TEXT,
            layout=_ROW,
            continuous_update=False,
            tooltip="any values, with the names and units of lv.explore(): bytes, ns, bytes/s",
        )
        self.refused = widgets.HTML()
        self.typed.observe(lambda change: self._read(change["new"]), names="value")
        self._show_what_counts()
        self.box = self._laid_out()

    def __getitem__(self, name: str) -> Any:
        return self.widgets[name]

    def set(self, settings: Settings) -> None:
        """Show other settings; `on_change` is called once, and first: the picture is on its way meanwhile."""
        self.settings = settings
        self._on_change(settings)
        self._show_what_counts()
        self._quiet = True
        try:
            for name, widget in self.widgets.items():
                value = getattr(settings, name)
                if name in _SLIDERS and value not in [each for _, each in widget.options]:
                    widget.options = offered(name, value)
                if name == "gpu" and value not in widget.options:
                    widget.options = (*widget.options, value)
                widget.value = value
        finally:
            self._quiet = False

    def _read(self, text: str) -> None:
        """Take typed settings, also values that no slider offers; say what is wrong with them."""
        if not text:
            return
        self.refused.value = ""
        try:
            call = ast.parse(f"dict({text})", mode="eval").body
            values = {str(each.arg): ast.literal_eval(each.value) for each in getattr(call, "keywords", [])}
            if not values:
                raise ValueError(f"{text!r} sets nothing")
            settings = self.settings.change(**values)
        except (SyntaxError, ValueError, TypeError) as error:  # a SettingsError is a ValueError
            self.refused.value = problem(f"{error}. Type such as: {self.typed.placeholder}")
            return
        self.typed.value = ""
        self.set(settings)

    def _moved(self, name: str, change: dict[str, Any]) -> None:
        if self._quiet:
            return
        values = {name: change["new"]}
        if name == "gpu":
            values |= rates_of(change["new"])
        if name == "batch_size":  # a larger batch is more work: the time per sample stays
            values["compute"] = max(1, round(self.settings.compute * change["new"] / change["old"]))
        self.set(self.settings.change(**values))

    def _show_what_counts(self) -> None:
        """Grey out what has no effect in these settings; mark the lesson that they are."""
        now = self.settings
        for name in _LOADING:
            self.widgets[name].disabled = now.resident
        self.widgets["lifetime"].disabled = now.resident or not now.side_stream
        for name, button in self.buttons.items():
            on = all(getattr(now, key) == value for key, value in PRESETS[name].items())
            button.button_style = "info" if on else ""
            button.icon = "check" if on else ""

    def _button(self, name: str) -> Any:
        tip = f"the settings of the {name} loader"
        button = widgets.Button(description=name, tooltip=tip, layout={"width": "auto"})
        button.on_click(lambda _: self.set(self.settings.change(**PRESETS[name])))
        return button

    def _laid_out(self) -> Any:
        """Put the groups into columns side by side, so that picture and code are in sight with them."""
        buttons = widgets.HBox(list(self.buttons.values()), layout={"flex_flow": "wrap", "margin": "0 0 8px"})
        parts = {**self.widgets, "buttons": buttons, "typed": self.typed, "refused": self.refused}
        boxes = []
        for groups in _COLUMNS:
            column = []
            for title, names in groups.items():
                heading = widgets.HTML(_TITLE.format(title), layout={"height": "22px", "margin": "0"})
                column += [heading, *map(parts.get, names)]
            boxes.append(widgets.VBox(column, layout={"flex": "1 1 260px", "min_width": "0"}))
        return widgets.HBox(boxes, layout={"flex_flow": "row wrap", "grid_gap": "0 16px"})


def _slider(name: str, value: int) -> Any:
    label = _SLIDERS[name][0]
    return widgets.SelectionSlider(
        options=offered(name, value),
        value=value,
        description=label,
        tooltip=_HELP.get(name, label),
        style=_TEXT,
        layout=_ROW,
        continuous_update=True,
    )


def _check(label: str, value: bool) -> Any:
    return widgets.Checkbox(value=value, description=label, indent=False, layout=_ROW)


def _dropdown(label: str, options: Any, value: Any) -> Any:
    return widgets.Dropdown(options=options, value=value, description=label, style=_TEXT, layout=_ROW)
