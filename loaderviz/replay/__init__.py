"""A training loop on the emulated GPU without torch: any way to feed it (`Feed`), any work in it (`Work`).

    Replay(feed, work, runtime).run(warmup=10, steps=6)     # the Timeline of the steps

The explorer replays what its sliders say, `what_if` what a timeline shows. The host's calls, the memory pools, workers
and pin thread obey the same rules as PyTorch on the emulator does. The same feed and work give the same timeline, to
the nanosecond.
"""

from __future__ import annotations

from loaderviz.replay.loader import PREFETCH_FACTOR, DataLoader
from loaderviz.replay.loop import Replay
from loaderviz.replay.work import Feed, Work, launch

__all__ = ["PREFETCH_FACTOR", "DataLoader", "Feed", "Replay", "Work", "launch"]
