"""Timeline -> plotly figures: `figure` for one, `compare` for several on one time axis, `text` for the words."""

from __future__ import annotations

try:
    import plotly  # noqa: F401 - looked for here, so that its absence gets a useful message
except ImportError as problem:
    raise ImportError("loaderviz draws with plotly, which is missing: pip install 'loaderviz[draw]'") from problem

from loaderviz.draw.comparison import Comparison, compare
from loaderviz.draw.single import DrawError, figure, mimebundle, refresh, text

__all__ = ["Comparison", "DrawError", "compare", "figure", "mimebundle", "refresh", "text"]
