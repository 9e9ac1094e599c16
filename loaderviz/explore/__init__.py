"""Pictures one can touch: `explore` (sliders and one live timeline), `step_through` and `viewer`. They need ipywidgets."""

from __future__ import annotations

from loaderviz.explore.explorer import Explorer, explore

__all__ = ["Explorer", "explore"]
