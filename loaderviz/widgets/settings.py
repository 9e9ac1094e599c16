"""Settings: one way to feed a GPU, as a handful of numbers and choices. The explorer's sliders set nothing else.

    Settings(pin=True, side_stream=True, depth=2).words()   # "A100, 8,192 × 784 B, 4 workers, pinned, …"
    PRESETS["prefetch"]                                      # the choices of a lesson

Times are integer nanoseconds, sizes bytes, rates bytes a second.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from loaderviz import words
from loaderviz.emulator.hardware import GB, GPUS, Gpu
from loaderviz.emulator.replay import LIFETIMES, LoaderConfig
from loaderviz.errors import LoadervizError

SAMPLES = 60_000  # of the data set, as many as MNIST has
_LIMITS = {  # smallest and largest value that makes sense
    "batch_size": (1, SAMPLES), "sample_bytes": (1, 100_000_000), "pinned_rate": (1_000_000, 10**13),
    "pageable_rate": (1_000_000, 10**13), "compute": (0, 10**10), "kernels": (1, 200), "fetch_per_sample": (0, 10**9),
    "workers": (0, 64), "depth": (0, 16), "steps": (1, 100),
}  # fmt: skip


class SettingsError(LoadervizError, ValueError):
    """A setting has a value that means nothing."""


@dataclass(frozen=True)
class Settings(LoaderConfig):
    """What the explorer shows. The defaults are the blocking loader of the first lesson.

    `compute` is the time of a batch's kernels [ns], spread over `kernels` launches; `fetch_per_sample` is what the data
    set's own work costs a worker [ns a sample]; `pinned_rate` and `pageable_rate` are the link's [bytes/s]. `depth`
    batches are copied ahead. `lifetime` says what protects a batch's memory when a side stream copies. With `resident`
    the data set lives on the GPU, and all that concerns loading and copying has no effect. `steps` are drawn.

    Raises `SettingsError` for a number out of range or an unknown choice.
    """

    batch_size: int = 8192
    sample_bytes: int = 784
    pinned_rate: int = 25 * GB
    pageable_rate: int = 10 * GB
    compute: int = 880_000
    kernels: int = 8
    fetch_per_sample: int = 0
    workers: int = 4
    gpu: str = "a100"
    steps: int = 6

    def __post_init__(self) -> None:
        for name, (least, most) in _LIMITS.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
                raise SettingsError(f"{name} is {value!r}; give a whole number from {least:,} to {most:,}")
        for name in ("pin", "non_blocking", "side_stream", "resident"):
            if not isinstance(getattr(self, name), bool):
                raise SettingsError(f"{name} is {getattr(self, name)!r}; give True or False")
        if self.lifetime not in LIFETIMES:
            raise SettingsError(f"lifetime is {self.lifetime!r}; choose from {', '.join(LIFETIMES)}")
        if self.gpu not in GPUS:
            raise SettingsError(f"gpu is {self.gpu!r}; choose from {', '.join(sorted(GPUS))}")

    @property
    def nbytes(self) -> int:
        """Bytes of a batch."""
        return self.batch_size * self.sample_bytes

    def machine(self) -> Gpu:
        """Return the emulated GPU: the preset, with the link's rates of these settings."""
        return replace(
            Gpu.preset(self.gpu), h2d=self.pinned_rate, pageable=self.pageable_rate,
            sources={"h2d": "set by hand", "pageable": "set by hand"},
        )  # fmt: skip

    def words(self) -> str:
        """Return the state in one line, as the figure's title has it."""
        parts = [f"{self.gpu.upper()}, {self.batch_size:,} × {words.size(self.sample_bytes).replace('bytes', 'B')}"]
        if self.resident:
            return f"{parts[0]}, resident on the GPU"
        parts.append(f"{self.workers} worker{'' if self.workers == 1 else 's'}")
        parts.append("pinned" if self.pin else "pageable")
        parts += ["non_blocking"] if self.non_blocking else []
        policy = "" if self.lifetime == "consumer" else f" ({self.lifetime})"
        parts.append(f"side stream{policy}" if self.side_stream else "one stream")
        parts += [f"{self.depth} ahead"] if self.depth else []
        return ", ".join(parts)

    def change(self, **values: Any) -> Settings:
        """Return the settings with some values changed. Raises `SettingsError`, with the names that exist."""
        known = [entry.name for entry in fields(self)]
        if unknown := values.keys() - set(known):
            raise SettingsError(f"no setting {', '.join(sorted(unknown))}; there are {', '.join(known)}")
        return replace(self, **values)


PRESETS: dict[str, dict[str, Any]] = {  # what each of the four lessons changes
    "blocking": {"pin": False, "non_blocking": False, "side_stream": False, "depth": 0, "resident": False},
    "pinned": {"pin": True, "non_blocking": True, "side_stream": False, "depth": 0, "resident": False},
    "prefetch": {"pin": True, "non_blocking": True, "side_stream": True, "depth": 2, "resident": False,
                 "lifetime": "consumer"},
    "resident": {"resident": True},
}  # fmt: skip


def rates_of(gpu: str) -> dict[str, int]:
    """Return the link's rates of a GPU preset [bytes/s], as settings."""
    preset = Gpu.preset(gpu)
    return {"pinned_rate": preset.h2d, "pageable_rate": preset.pageable}
