"""LiveView: the view as a widget. It tells Python what is done in it, and Python tells it what to show.

live = LiveView(timeline.view())
live.become(another.view(), height=400)       # redrawn in place
live.observe(lambda change: print(change["new"]), "selection")
"""

from __future__ import annotations

from typing import Any

import anywidget
import numpy as np
import traitlets

from loaderviz.view import View, page
from loaderviz.view.pack import Ints

MOST = 300_000  # bars that are sent at once; further ones when the window has come near them


class LiveView(anywidget.AnyWidget):
    """A view in a notebook cell. `window` [ns], `selection` (a bar) and `time` [ns] change there and here.

    Times are from the begin of the timeline on. `playing` runs the time cursor.
    """

    _esm = page.module()
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
        head, body = view.packed(MOST)
        with self.hold_sync():
            self.body, self.head = body, head | looks
            self.options = {"keep": bool(difference), "difference": difference}
            self.selection = -1

    @property
    def _spans(self) -> Ints:
        """The span behind each bar that was sent, -1 for a state; empty if some were merged."""
        spans = self.view.parts[0].bars.span
        return spans if len(spans) == self.head["rows"] else spans[:0]

    def span_of(self, bar: int) -> int:
        """Return the span behind a bar of a single timeline; -1 for a state, or for no bar."""
        return int(self._spans[bar]) if 0 <= bar < len(self._spans) else -1

    def bar_of(self, span: int) -> int:
        """Return the last bar of a span, which is not that of its engine; -1 if it has none."""
        return int(np.flatnonzero(self._spans == span)[-1]) if span >= 0 and span in self._spans else -1

    def _asked(self, _: Any, content: Any, __: Any) -> None:
        """The window has left the part that was sent in full: send that around it."""
        if isinstance(content, dict) and "need" in content:
            start, end = (round(float(edge)) for edge in list(content["need"]))
            head, body = self.view.around(start, end, MOST)
            with self.hold_sync():
                self.body, self.head = body, head | self._looks
