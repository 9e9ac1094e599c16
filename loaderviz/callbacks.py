"""Callbacks of the well-known trainers that record their training as it really runs, and write what was seen.

    lightning.Trainer(..., callbacks=[lightning_callback("timeline.html", wait=10, steps=20)])
    transformers.Trainer(..., callbacks=[trainer_callback("timeline.json")])

To emulate a GPU, run the whole program in `loaderviz.record(on="a100")`: a trainer chooses its device when it is made.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from loaderviz.errors import LoadervizError
from loaderviz.export import to_html
from loaderviz.files import writable
from loaderviz.imports import cured_imports
from loaderviz.recording import Recording, record
from loaderviz.timeline import Timeline

REAL = "auto", "cuda", "cpu"


class CallbackError(LoadervizError, ValueError):
    """A callback was asked for what it cannot record."""


class TrainingRecord:
    """Records from `begin()` to `end()` and writes the page, or for a ".json" the timeline, to `path`.

    `on` is "cuda", "cpu" or "auto", the GPU if torch sees one; `wait` and `steps` are those of `loaderviz.record`.
    """

    def __init__(self, path: str | Path, on: str = "auto", wait: int = 0, steps: int | None = None) -> None:
        if on not in REAL:
            raise CallbackError(
                f"on={on!r}: a callback records what really runs, on one of {', '.join(map(repr, REAL))}. To emulate a "
                "GPU, run the whole program inside loaderviz.record()"
            )
        writable(path)
        self.path, self.on, self.wait, self.steps = Path(path), on, wait, steps
        self.timeline: Timeline | None = None
        self._recording: Recording | None = None

    def begin(self, *_: Any, **__: Any) -> None:
        """Start to record, whatever a trainer tells."""
        on = self.on if self.on != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
        self._recording = record(on, wait=self.wait, steps=self.steps).__enter__()

    def end(self, *_: Any, **__: Any) -> None:
        """Stop, and write; nothing where nothing was begun. Each rank but the first has a file of its own."""
        if self._recording is None:
            return
        recording, self._recording = self._recording, None
        recording.__exit__(None, None, None)
        self.timeline, path = recording.timeline, self.path
        distributed = torch.distributed
        if distributed.is_available() and distributed.is_initialized() and (rank := distributed.get_rank()):
            path = path.with_stem(f"{path.stem}-rank{rank}")
        self.timeline.save(path) if path.suffix == ".json" else to_html(self.timeline, path)


def lightning_callback(path: str | Path, on: str = "auto", wait: int = 0, steps: int | None = None) -> Any:
    """Return a callback for Lightning's Trainer, which records the fit; its `record.timeline` is what happened.

    Raises `CallbackError` for another `on`, `ModuleNotFoundError` where Lightning is not installed.
    """
    with cured_imports():
        from lightning.pytorch import Callback

    class TimelineCallback(Callback):  # type: ignore[misc]
        record = TrainingRecord(path, on, wait, steps)

        # The loader is iterated before on_train_start, and is after a check of the validation, which is no training.
        def on_fit_start(self, trainer: Any, *_: Any) -> None:
            if not (trainer.enable_validation and trainer.num_sanity_val_steps):
                self.record.begin()

        on_sanity_check_end = record.begin
        on_train_end = on_exception = record.end

    return TimelineCallback()


def trainer_callback(path: str | Path, on: str = "auto", wait: int = 0, steps: int | None = None) -> Any:
    """Return a callback for the Trainer of transformers, which records `train()`; see `lightning_callback`.

    A training that fails calls no callback: then `callback.record.end()` writes what was there.
    """
    with cured_imports():
        from transformers import TrainerCallback

    class TimelineCallback(TrainerCallback):  # type: ignore[misc]
        record = TrainingRecord(path, on, wait, steps)

        on_train_begin, on_train_end = record.begin, record.end

    return TimelineCallback()
