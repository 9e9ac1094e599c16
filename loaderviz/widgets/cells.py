"""Cells: an interactive picture in a notebook cell. One per cell: running the cell again closes the former one.

It is two outputs: the view as HTML, which needs no kernel, and the widget, which hides it. So the next morning, when
the kernel is gone, the picture is there and says what to do for its controls; and a page that is loaded again does not
ask for widgets that are forgotten, since a picture is closed when its cell makes a new one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from loaderviz.view import View, page
from loaderviz.widgets import panels

_open: dict[str, Interactive] = {}
WIDGET = "application/vnd.jupyter.widget-view+json"
BARS = 20_000  # of the view that stands in for the widget
RUN = "The controls need a running kernel: run this cell."


class Interactive:
    """An interactive picture: what a notebook displays, live where it can, else the view of its first frame.

    `widget` is the ipywidgets box (None where there is none), `view` the picture as it is now.
    """

    view: View

    def __init__(self, what: str, name: str | None) -> None:
        self.key = f"{what} {cell() if name is None else name}"
        self.widget: Any = None
        replace(self)

    def text(self) -> str:
        """Return the picture in words, as it is now."""
        raise NotImplementedError

    def static_html(self) -> str:
        """Return the words and numbers that a place without widgets shows below the picture."""
        return panels.paragraph(self.text())

    def close(self) -> None:
        """Close all its widgets; the kernel and the browser forget them."""
        if self.widget is not None:
            for part in list(descendants(self.widget)):
                part.close()
            self.widget = None
        if _open.get(self.key) is self:
            del _open[self.key]

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        """Return what stands in for the widget, without a kernel too."""
        view, below = self.view, self.static_html() + panels.paragraph(RUN)
        picture = view.svg()
        html = page.host(*view.packed(BARS), picture, below, stands=self.widget is not None) + page.loader()
        return {"text/html": html, "image/svg+xml": picture, "text/plain": self.text()}

    def _ipython_display_(self) -> None:
        from IPython.display import display

        display(self._repr_mimebundle_(), raw=True)
        if self.widget is not None:
            live: Any = self.widget._repr_mimebundle_()
            live = live[0] if isinstance(live, tuple) else live
            display({WIDGET: live[WIDGET], "text/plain": " "}, raw=True)  # its words stand above

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
    """Tell whether widgets work here: anywidget and ipywidgets are installed, and this is not Colab.

    Colab shows an output that a widget's callback makes in a frame of its own.
    """
    if "google.colab" in sys.modules:
        return False
    try:
        import anywidget  # noqa: F401
        import ipywidgets  # noqa: F401
    except ImportError:
        return False
    return True


def descendants(widget: Any) -> Iterator[Any]:
    """Give all widgets below `widget`, itself last, and the models of their layout and style."""
    for child in getattr(widget, "children", ()):
        yield from descendants(child)
    models = (getattr(widget, name, None) for name in ("style", "layout"))
    yield from (model for model in models if hasattr(model, "comm"))
    yield widget
