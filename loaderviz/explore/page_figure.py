"""PageFigure: plotly's FigureWidget, whose 5 MB of script a page reads once, however many figures it has.

    widget = PageFigure(figure)     # otherwise a FigureWidget

plotly gives every FigureWidget its own copy of the script. A page that is loaded again would get one for each and read
them side by side; anywidget gives each two seconds, which a slow or busy machine misses: "model not found". Here the
script lies in one model that all figures share, and a figure's own script is the few lines that ask for it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ipywidgets
import plotly.graph_objects as go
import traitlets

from loaderviz.explore import panels

_LOADER = """
async function script(model) {
    const shared = await model.widget_manager.get_model(model.get("_script").slice("IPY_MODEL_".length));
    const url = URL.createObjectURL(new Blob([shared.get("text")], {type: "text/javascript"}));
    try {
        return (await import(url)).default;
    } finally {
        URL.revokeObjectURL(url);
    }
}

async function figure(model) {
    const made = await (globalThis.loaderviz_plotly ??= script(model));
    const figure = typeof made === "function" ? await made() : made;
    await figure.initialize?.({model});
    return figure;
}

export default () => {
    let ready;
    return {
        // Not awaited: what takes longer than two seconds here would be given up.
        initialize({model}) { ready = figure(model); ready.catch(() => {}); },
        async render(context) { return (await ready).render(context); },
    };
};
"""


class _Script(ipywidgets.Widget):  # type: ignore[misc]
    """A model without a view that holds plotly's script."""

    text = traitlets.Unicode().tag(sync=True)


_script: _Script | None = None


def _shared_script() -> _Script:
    """Return the one model with the script; a new one if somebody closed the former."""
    global _script
    if _script is None or _script.comm is None:
        source: Any = go.FigureWidget._esm
        _script = _Script(text=source.read_text(encoding="utf-8") if isinstance(source, Path) else str(source))
    return _script


class PageFigure(go.FigureWidget):  # type: ignore[misc]
    """A FigureWidget as wide as its cell, without a script of its own. `config` is added to plotly's own."""

    _esm = _LOADER
    _script = traitlets.Instance(_Script).tag(sync=True, **ipywidgets.widget_serialization)
    _complete = False

    @traitlets.default("_script")
    def _default_script(self) -> _Script:
        return _shared_script()

    def __init__(self, figure: go.Figure, config: dict[str, Any] | None = None) -> None:
        super().__init__(figure)
        self._config: dict[str, Any] = {"responsive": True, "displaylogo": False} | (config or {})
        self.add_class(panels.CARD)
        self._complete = True
        self.open()

    def open(self) -> None:
        """Tell the page of the figure, once it is complete.

        plotly makes an empty figure and sends its content after it. A page that looks for the kernel's widgets at that
        moment, as each does when it has just been opened, misses what is sent, and shows an empty figure.
        """
        if self._complete:
            super().open()
