"""Cells: an interactive picture in a notebook cell. One per cell: running the cell again closes the former one.

Every FigureWidget takes 5 MB of the page, and a browser that reloads the page asks the kernel for all of them, the
forgotten ones, too. So a picture is closed when its cell makes a new one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import plotly.graph_objects as go

from loaderviz.draw.single import bundle_of

_open: dict[str, Interactive] = {}
WIDGET = "application/vnd.jupyter.widget-view+json"


class Interactive:
    """An interactive picture: what a notebook displays, live where it can, else its first frame.

    `widget` is the ipywidgets box (None where there is none), `figure` the plotly figure, `twin` the words of it.
    """

    def __init__(self, what: str, name: str | None) -> None:
        self.key = f"{what} {cell() if name is None else name}"
        self.widget: Any = None
        replace(self)

    @property
    def figure(self) -> go.Figure:
        """The picture as it is now."""
        raise NotImplementedError

    def text(self) -> str:
        """Return the picture in words, as it is now."""
        raise NotImplementedError

    def static_html(self) -> str:
        """Return the words and numbers that a place without widgets shows."""
        return f"<p>{self.text()}</p>"

    def close(self) -> None:
        """Close all its widgets; the kernel and the browser forget them."""
        if self.widget is not None:
            for part in list(descendants(self.widget)):
                part.close()
            self.widget = None
        if _open.get(self.key) is self:
            del _open[self.key]

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        bundle = bundle_of(go.Figure(self.figure), self.text())
        if self.widget is None:
            return bundle
        live: Any = self.widget._repr_mimebundle_()
        live = live[0] if isinstance(live, tuple) else live
        picture = bundle.pop("image/svg+xml", "")  # into the words, for a place without widgets shows one of the two
        return bundle | {WIDGET: live[WIDGET], "text/html": picture + self.static_html()}

    def __repr__(self) -> str:
        return self.text()


def replace(new: Interactive) -> None:
    """Close the picture that the same cell made before."""
    former = _open.get(new.key)
    if former is not None:
        former.close()
    _open[new.key] = new


def cell() -> str:
    """Return an id of the notebook cell that runs, "" where the front end does not tell."""
    try:
        from IPython import get_ipython

        shell: Any = get_ipython()
        metadata = shell.kernel.get_parent("shell")["metadata"]
        return str(metadata.get("cellId", ""))
    except (ImportError, AttributeError, KeyError, TypeError):
        return ""


def live_here() -> bool:
    """Tell whether FigureWidgets work here: anywidget and ipywidgets are installed, and this is not Colab.

    Colab shows no figures from widget callbacks (colabtools issue 5889).
    """
    if "google.colab" in sys.modules:
        return False
    try:
        import anywidget  # noqa: F401 - plotly's FigureWidget needs it
        import ipywidgets  # noqa: F401
    except ImportError:
        return False
    return True


def descendants(widget: Any) -> Iterator[Any]:
    """Give all widgets below `widget`, itself last, and the models of their layout and style."""
    for child in getattr(widget, "children", ()):
        yield from descendants(child)
    models = (getattr(widget, name, None) for name in ("style", "layout"))
    yield from (model for model in models if hasattr(model, "comm"))  # a figure's layout is plotly's, no widget
    yield widget
