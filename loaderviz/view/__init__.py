"""One view of timelines, wherever they are looked at: a page, a notebook without a kernel, a widget."""

from __future__ import annotations

from loaderviz.view.comparison import Comparison, compare
from loaderviz.view.picture import View, ViewError, text

__all__ = ["Comparison", "View", "ViewError", "compare", "text"]
