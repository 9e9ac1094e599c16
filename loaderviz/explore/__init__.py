"""Pictures one can touch. They need ipywidgets and anywidget; without them they show their first frame.

    import loaderviz as lv

    lv.explore()                  # sliders and one live timeline
    lv.step_through(timeline)     # move through time
    lv.explore.viewer(timeline)   # zoom, click, select

The package is itself callable: `lv.explore()` works, whatever of it was imported before.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from loaderviz.explore.explorer import Explorer, explore
from loaderviz.explore.settings import Settings, SettingsError
from loaderviz.explore.state import State, state_at
from loaderviz.explore.stepper import Stepper, step_through
from loaderviz.explore.viewer import Viewer, viewer

__all__ = [
    "Explorer", "Settings", "SettingsError", "State", "Stepper", "Viewer", "explore", "state_at", "step_through",
    "viewer",
]  # fmt: skip


class _Callable(ModuleType):
    """A module that is called as its function of the same name: Python binds `loaderviz.explore` to the package."""

    __doc__ = explore.__doc__

    def __call__(self, *arguments: Any, **options: Any) -> Explorer:
        return explore(*arguments, **options)


sys.modules[__name__].__class__ = _Callable
