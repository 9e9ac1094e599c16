"""What needs anywidget: the view, the explorer and a question with choices as widgets."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import anywidget
import traitlets

from loaderviz.view.picture import EXPLORER, View, module

MOST = 300_000  # bars that are sent at once; further ones when the window has come near them


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

    def _asked(self, _: Any, content: Any, __: Any) -> None:
        """The window has left the part that was sent in full: send that around it."""
        if isinstance(content, dict) and "need" in content:
            start, end = (round(float(edge)) for edge in list(content["need"]))
            head, body = self.view.around(start, end, MOST)
            with self.hold_sync():
                self.body, self.head = body, head | self._looks


class LiveExplorer(anywidget.AnyWidget):
    """The explorer in a notebook cell; `settings` change there and here, `tables` are `explorer.tables`."""

    _esm = module(*EXPLORER)
    tables = traitlets.Dict().tag(sync=True)
    settings = traitlets.Dict().tag(sync=True)


class Choices(anywidget.AnyWidget):
    """A question and its choices, as HTML; `choice` is the number of the chosen one, -1 for none, `said` a line below.

    It answers to the arrow keys in JupyterLab, too, where those of ipywidgets are no group and move to the next cell.
    """

    _esm = files("loaderviz.widgets").joinpath("choices.js").read_text(encoding="utf-8")
    question = traitlets.Unicode().tag(sync=True)
    choices: traitlets.List[str] = traitlets.List(traitlets.Unicode()).tag(sync=True)
    choice = traitlets.Int(-1).tag(sync=True)
    said = traitlets.Unicode().tag(sync=True)
