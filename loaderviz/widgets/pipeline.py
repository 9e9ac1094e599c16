"""The loaders of the lessons on the emulated GPU without torch: `simulate(settings)` gives the Timeline.

    timeline = simulate(Settings(pin=True, non_blocking=True, side_stream=True, depth=2))
    loaderviz.summarize(timeline).overlap

The loop itself is `emulator.replay`, which obeys the same rules as PyTorch on the emulator does, so that lessons and
explorer agree. A pure function: the same settings give the same timeline, to the nanosecond.
"""

from __future__ import annotations

from loaderviz.emulator import costs
from loaderviz.emulator.hardware import Host
from loaderviz.emulator.replay import Replay, launch
from loaderviz.emulator.runtime import Runtime
from loaderviz.timeline import Timeline
from loaderviz.widgets.program import Program, program_of
from loaderviz.widgets.settings import SAMPLES, Settings

HOST = "workstation"


def simulate(settings: Settings, program: Program | None = None) -> Timeline:
    """Return `settings.steps` steps of the loop, after a warm-up in which memory is allocated and queues fill.

    `program` is `program_of(settings)`, if it was made before; its lines are the sources of the spans. Raises
    `OutOfMemory` if the batches (or the resident data set) do not fit into the GPU's memory.
    """
    runtime = Runtime(settings.machine(), Host.preset(HOST))
    work = _Work(settings, program or program_of(settings), runtime)
    return Replay(settings, work, runtime).run(settings.warmup, settings.steps)


class _Work:
    """What the settings say about a batch and a step, statement by statement of a `Program`."""

    def __init__(self, settings: Settings, program: Program, runtime: Runtime) -> None:
        self.settings, self.source = settings, program.source
        slept = settings.batch_size * settings.fetch_per_sample
        self.fetch = costs.fetch_time(runtime.host, settings.batch_size, settings.nbytes, batched=True) + slept
        self.kernel = max(runtime.gpu.kernels["elementwise"].floor, costs.ceil_div(settings.compute, settings.kernels))

    def tensors(self, number: int) -> list[int]:
        return [self.settings.nbytes]

    def samples(self, number: int) -> int:
        return self.settings.batch_size

    def fetch_time(self, number: int) -> int:
        return self.fetch

    def draw_time(self, number: int) -> int:
        return 0

    def resident_bytes(self) -> list[int]:
        return [SAMPLES * self.settings.sample_bytes, 8 * SAMPLES]

    def train(self, runtime: Runtime, number: int) -> None:
        """Launch the kernels of a step: a third forward, the last one the optimizer's, the rest backward."""
        kernels = self.settings.kernels
        forward = max(1, kernels // 3)
        for kernel in range(kernels):
            name = "forward" if kernel < forward else "optimizer" if kernel == kernels - 1 else "backward"
            runtime.source = self.source(name)
            launch(runtime, name, self.kernel)
