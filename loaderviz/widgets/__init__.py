"""Pictures one can touch. They need ipywidgets and anywidget; without them Python hears of nothing that is touched."""

from __future__ import annotations

from loaderviz.widgets.cells import Viewer, viewer
from loaderviz.widgets.explorer import Explorer, Settings, SettingsError, explore
from loaderviz.widgets.stepper import State, Stepper, state_at, step_through

__all__ = [
    "Explorer", "Settings", "SettingsError", "State", "Stepper", "Viewer", "explore", "state_at", "step_through",
    "viewer",
]  # fmt: skip
