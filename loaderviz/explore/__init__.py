"""Pictures one can touch: `explore` (sliders and one live timeline), `step_through` and `viewer`. They need ipywidgets."""

from __future__ import annotations

from loaderviz.explore.explorer import Explorer, explore
from loaderviz.explore.state import State, state_at
from loaderviz.explore.stepper import Stepper, step_through
from loaderviz.explore.viewer import Viewer, viewer

__all__ = ["Explorer", "State", "Stepper", "Viewer", "explore", "state_at", "step_through", "viewer"]
