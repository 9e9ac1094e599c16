"""loaderviz: does my data reach the GPU while the GPU is computing, and if not, why?

with loaderviz.record(on="a100") as recording:   # ordinary PyTorch code for CUDA, on an emulated GPU
    train(...)
recording.timeline                               # the picture; loaderviz.summarize() gives the numbers
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from loaderviz.draw import compare
    from loaderviz.errors import LoadervizError
    from loaderviz.metrics import summarize
    from loaderviz.reading import read
    from loaderviz.recording import record
    from loaderviz.timeline import Timeline

__version__ = "0.1.0"
__all__ = ["LoadervizError", "Timeline", "compare", "read", "record", "summarize"]

_HOME = {
    "LoadervizError": "loaderviz.errors",
    "Timeline": "loaderviz.timeline",
    "compare": "loaderviz.draw",
    "read": "loaderviz.reading",
    "record": "loaderviz.recording",
    "summarize": "loaderviz.metrics",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: `import loaderviz` itself imports no torch, plotly or ipywidgets."""
    if name not in _HOME:
        raise AttributeError(f"module 'loaderviz' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
