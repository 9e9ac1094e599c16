"""Cells: an interactive picture in a notebook cell. One per cell: running the cell again closes the former one.

It is two outputs: the view as HTML, which needs no kernel, and the widget, which hides it. So the next morning, when
the kernel is gone, the picture is there and says what to do for its controls; and a page that is loaded again does not
ask for widgets that are forgotten, since a picture is closed when its cell makes a new one.

The words and numbers beside it are HTML. Colours are JupyterLab's own variables, so that dark and light theme both read
well; elsewhere the fallbacks hold.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from html import escape
from importlib.util import find_spec
from typing import Any

from loaderviz import words
from loaderviz.metrics import Summary, check_timeline, describe, summarize, window_of
from loaderviz.timeline import Timeline
from loaderviz.view.picture import View, element, loader

_open: dict[str, Interactive] = {}
WIDGET = "application/vnd.jupyter.widget-view+json"
BARS = 20_000  # of the view that stands in for the widget
RUN = "The controls need a running kernel: run this cell."


class Interactive(ABC):
    """An interactive picture: what a notebook displays, live where it can, else the view of its first frame.

    `widget` is the ipywidgets box (None where there is none), `view` the picture as it is now.
    """

    view: View

    def __init__(self, what: str, name: str | None) -> None:
        self.key = f"{what} {cell() if name is None else name}"
        self.widget: Any = None
        self._panels: dict[str, Any] = {}  # the widgets that hold `_html`
        if former := _open.get(self.key):
            former.close()
        _open[self.key] = self

    @abstractmethod
    def text(self) -> str:
        """Return the picture in words, as it is now."""

    def static_html(self) -> str:
        """Return the words and numbers that a place without widgets shows below the picture."""
        return paragraph(self.text()) + "".join(html for name, html in self._html().items() if name != "words")

    def close(self) -> None:
        """Close all its widgets; the kernel and the browser forget them."""
        if self.widget is not None:
            for part in list(descendants(self.widget)):
                part.close()
            self.widget, self._panels = None, {}
        if _open.get(self.key) is self:
            del _open[self.key]

    @abstractmethod
    def _html(self) -> dict[str, str]:
        """Return what stands beside the picture, by the names of its panels; "words" are the text."""

    @abstractmethod
    def _assembled(self) -> Any:
        """Return the box of view, controls and panels, which are still empty."""

    def _build(self) -> None:
        """Make the widgets where they work."""
        if not live_here():
            return
        import ipywidgets as widgets

        self._panels = {name: widgets.HTML() for name in self._html()}
        self.widget = self._assembled()
        self._write()

    def _write(self) -> None:
        """Write the panels, if there are some."""
        if self._panels:
            for name, html in self._html().items():
                self._panels[name].value = html

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        """Return what stands in for the widget, without a kernel too."""
        picture = self.view.svg()
        return {"text/html": self._cell(picture), "image/svg+xml": picture, "text/plain": self.text()}

    def _cell(self, picture: str) -> str:
        """Return the HTML that stands in for the widget, its script with it; `picture` is the still one."""
        below = paragraph(RUN) + self.static_html()
        return element(*self.view.packed(BARS), picture, below, stands=self.widget is not None) + loader()

    def _ipython_display_(self) -> None:
        from IPython.display import display

        display(self._repr_mimebundle_(), raw=True)
        show(self.widget)

    def __repr__(self) -> str:
        return self.text()


def show(widget: Any) -> None:
    """Display a widget, if there is one, as an output without words: they stand in the one before it."""
    from IPython.display import display

    if widget is not None:
        live: Any = widget._repr_mimebundle_()
        live = live[0] if isinstance(live, tuple) else live
        display({WIDGET: live[WIDGET], "text/plain": " "}, raw=True)


def cell() -> str:
    """Return an id of the notebook cell that runs, "" where the front end does not tell."""
    try:
        shell: Any = sys.modules["IPython"].get_ipython()
        metadata = shell.kernel.get_parent("shell")["metadata"]
        return str(metadata.get("cellId", ""))
    except (AttributeError, KeyError, TypeError):
        return ""


def live_here() -> bool:
    """Tell whether widgets work: anywidget and ipywidgets are there, and no Colab, which frames callbacks' outputs."""
    return "google.colab" not in sys.modules and all(map(find_spec, ("anywidget", "ipywidgets")))


def descendants(widget: Any) -> Iterator[Any]:
    """Give all widgets below `widget`, itself last, and the models of their layout and style."""
    for child in getattr(widget, "children", ()):
        yield from descendants(child)
    models = (getattr(widget, name, None) for name in ("style", "layout"))
    yield from (model for model in models if hasattr(model, "comm"))
    yield widget


# The viewer: the plainest of them


def viewer(timeline: Timeline, *, color: str = "batch", name: str | None = None) -> Viewer:
    """Return the viewer of a timeline; displaying it in a notebook shows it.

    `color` is "batch" or "kind", as in `timeline.view`. A cell that runs again closes its former viewer; `name` tells
    several in one cell apart. Raises `NotATimelineError`, and `ViewError` for another colour.
    """
    return Viewer(check_timeline(timeline, "viewer()"), color, name)


class Viewer(Interactive):
    """A timeline, and the `window` whose numbers are shown [ns, as in `timeline.start`].

    The view needs no kernel and tells what is known about a bar. What Python adds: the numbers of the window; and a
    timeline too long to be sent whole comes in parts.
    """

    def __init__(self, timeline: Timeline, color: str = "batch", name: str | None = None) -> None:
        super().__init__("viewer", name)
        self.timeline = timeline
        self.view = View({"": timeline}, color)
        self.window = (timeline.begin, timeline.begin + timeline.duration)
        self._build()

    def show(self, start: int, end: int) -> None:
        """Zoom to a window [ns]. Raises `MetricsError` if its end lies before its start."""
        self.window = window_of(self.timeline, (start, end))
        if self.widget is not None:
            self._live.window = [float(edge - self.timeline.begin) for edge in self.window]
        self._write()

    def text(self) -> str:
        """Return the numbers of the window in a line of words."""
        start, end = (words.duration(edge - self.timeline.begin) for edge in self.window)
        return f"{start} to {end}: {describe(self.timeline, window=self.window)}"

    def _html(self) -> dict[str, str]:
        return {
            "numbers": numbers(summarize(self.timeline, self.window)),
            "words": paragraph(self.text(), "In words:", live=True),
        }

    def _assembled(self) -> Any:
        import ipywidgets as widgets

        from loaderviz.widgets.controls import LiveView

        self._live = LiveView(self.view)
        self._live.observe(lambda change: self._zoomed(change["new"]), "window")
        return widgets.VBox([self._live, *self._panels.values()])

    def _zoomed(self, window: list[float]) -> None:
        start, end = (self.timeline.begin + round(edge) for edge in window)
        if start < end and (start, end) != self.window:
            self.window = (start, end)
            self._write()


# Words and numbers as HTML


INK, SOFT, LINE, BACK = (
    "var(--jp-ui-font-color1,#222)",
    "var(--jp-ui-font-color2,#555)",
    "var(--jp-border-color1,#bbb)",
    "var(--jp-layout-color2,#f3f3f3)",
)
_MONO = "font-family:var(--jp-code-font-family,monospace);font-size:13px;line-height:1.45"
_WRAPPED = "white-space:pre-wrap;overflow-wrap:anywhere;padding-left:10ch;text-indent:-10ch"  # goes on below if long
_CUT = "white-space:pre;overflow:hidden;text-overflow:ellipsis"


def numbers(summary: Summary) -> str:
    """Return the few numbers that count, big, with units."""
    rate = words.rate(summary.samples_per_second)
    shown = {
        "step": words.duration(summary.step),
        "throughput": rate if summary.samples_per_second is None else f"{rate} samples/s",
        "GPU computes": words.share(summary.compute_share),
        "copy hidden": "no copies" if summary.overlap is None else words.share(summary.overlap),
        "against the limit": words.times(summary.headroom),
    }
    cells = "".join(
        f"<div style='padding:2px 18px 2px 0'><div style='color:{SOFT};font-size:13px'>{escape(name)}</div>"
        f"<div style='color:{INK};font-size:18px;font-weight:600;white-space:nowrap'>{escape(value)}</div></div>"
        for name, value in shown.items()
    )
    return f"<div style='display:flex;flex-wrap:wrap;line-height:1.3'>{cells}</div>"


def paragraph(text: str, label: str = "", live: bool = False) -> str:
    """Return a line of words; `live` ones are read out by screen readers when they change."""
    lead = f"<b>{escape(label)}</b> " if label else ""
    role = " role='status' aria-live='polite'" if live else ""
    return f"<p{role} style='color:{INK};font-size:14px;line-height:1.45;margin:4px 0'>{lead}{escape(text)}</p>"


def titled(title: str, html: str) -> str:
    """Return a panel below its title."""
    return f"<b style='font-size:14px'>{escape(title)}</b>{html}"


def listing(lines: list[tuple[int, str]], current: int) -> str:
    """Return numbered source lines: the current one, whole, with an arrow and a frame, the others as a row each."""
    rows = []
    for number, text in lines:
        here = number == current
        looks = f"background:{BACK};outline:1px solid {LINE};font-weight:600;{_WRAPPED}" if here else _CUT
        rows.append(f"<div style='{looks}'>{'▶' if here else ' '} {number:>4}  {escape(text.rstrip())}</div>")
    return f"<div style='{_MONO};color:{INK};contain:inline-size'>{''.join(rows)}</div>"


def table(head: list[str], rows: list[list[str]], empty: str = "nothing") -> str:
    """Return a small table of words; `empty` stands for no rows."""
    if not rows:
        return f"<p style='color:{SOFT};font-size:14px;margin:2px 0'>{escape(empty)}</p>"
    cell = (
        f"padding:1px 10px 1px 0;border-bottom:1px solid {LINE};text-align:left;vertical-align:top;font-size:13px;"
        "line-height:1.35"
    )
    names = "".join(f"<th style='{cell};color:{SOFT};white-space:nowrap'>{escape(name)}</th>" for name in head)

    def filled(value: str) -> str:
        whole = ";white-space:nowrap" if len(value) < 20 else ""  # a label, such as "stream 7 (default)"
        text = escape(value.replace("->", "-\u2060>"))  # a line does not end inside of it; names of copies have it
        return f"<td style='{cell};color:{INK}{whole}'>{text}</td>"

    body = "".join(f"<tr>{''.join(map(filled, row))}</tr>" for row in rows)
    return f"<table style='border-collapse:collapse'><thead><tr>{names}</tr></thead><tbody>{body}</tbody></table>"
