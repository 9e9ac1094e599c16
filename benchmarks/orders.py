"""Published figures of threads that feed a GPU, beside the emulator: whose order comes out, and from when on.

Nothing is fitted. What a source does not tell is assumed and stands in the table: above all which part of the work is
Python, which is tried at several values.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import loaderviz as lv
from loaderviz.emulator import Gpu, Runtime
from loaderviz.emulator.hardware import Host
from loaderviz.emulator.replay import Batch, LoaderConfig, Replay

MS = 10**6  # ns
SHARES = (0, 50, 100, 200, 300, 500)  # thousandths of a fetch that are Python
HOST = Host.preset("server 2023")
FREE = replace(HOST, switch_interval=0)
# SPDL, docs/source/case_studies/parallelism.rst [batches/s]: workers that are processes, threads beside the loop, and
# the loop alone with one batch again and again. So a step takes the GPU 238 ms, and 8 workers a batch in 417.
PROCESSES, THREADS, HEADROOM = 2.4, 1.2, 4.2
# koenvo/python-experiments: ten threads of Python over one, on Python 3.14 and 3.14t; the machine is not told
TEN = {"with the lock": 0.94, "free-threaded": 5.03}


class Loop:
    """A loop whose batch takes a worker so long, its launches the host, and its kernels the GPU [ns]."""

    resident_bytes = ()

    def __init__(self, fetch: float, host: float, gpu: float) -> None:
        self.fetch, self.host, self.gpu = round(fetch), round(host), round(gpu)

    def batch(self, number: int) -> Batch:
        """Return what is loaded: 64 pictures of 224 x 224 as bytes."""
        return Batch([64 * 3 * 224 * 224], 64, self.fetch)

    def train(self, runtime: Runtime, number: int) -> None:
        """Launch all, and the kernels run."""
        runtime.host_needs(self.host)
        runtime.launch(self.gpu, name="kernels")

    def source(self, does: str) -> str:
        """No program stands behind it."""
        return ""


def rate(loop: Loop, host: Host, workers: int = 8, threads: bool = False, python: int = 1000) -> float:
    """Return batches a second in the steady state."""
    config = LoaderConfig(workers=workers, pin=True, non_blocking=True, threads=threads, python=python)
    timeline = Replay(config, loop, Runtime(Gpu.preset("a100"), host)).run(40, 40)
    return 40e9 / timeline.duration


def ten(host: Host) -> float:
    """Return how many times as fast ten threads of Python are as one that does the same."""
    with lv.record(on="a100", host=host, hazards="off"):

        def work() -> None:
            with lv.costs(0.05):
                pass

        threads, begin = [threading.Thread(target=work) for _ in range(10)], time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return 10 * 0.05 / (time.perf_counter() - begin)


def table() -> Iterator[str]:
    """Give the three published orders beside the emulator's."""
    spdl = Loop(8e9 / PROCESSES, 150 * MS, 1e9 / HEADROOM)
    disk = Loop(80 * MS, 2 * MS, 5 * MS)  # fetching is the limit, whatever the GPU does
    processes, headroom = rate(spdl, HOST), rate(Loop(0, spdl.host, spdl.gpu), HOST)
    alone, without = rate(disk, HOST), rate(disk, FREE, threads=True)
    yield "| Python's part of a fetch | SPDL: threads in main [batches/s] | thread workers over processes |"
    yield "|--:|--:|--:|"
    for share in SHARES:
        threads = rate(spdl, HOST, threads=True, python=share)
        ratio = rate(disk, HOST, threads=True, python=share) / alone
        yield f"| {share / 1000:.0%} | {threads:.2f} | {ratio - 1:+.0%} |"
    yield f"| published | {THREADS} | about -30% |"
    yield f"\nSPDL: processes {processes:.2f} ({PROCESSES}, given), headroom {headroom:.2f} ({HEADROOM}, given)."
    yield f"Thread workers in a free-threaded Python over processes: {without / alone - 1:+.0%} (published: equal).\n"
    yield "| ten threads of Python over one | published | 16 cores | 8 cores | 4 cores |\n|---|--:|--:|--:|--:|"
    for (name, published), host in zip(TEN.items(), (HOST, FREE), strict=True):
        cells = " | ".join(f"{ten(replace(host, cores=cores, siblings=1)):.2f}" for cores in (16, 8, 4))
        yield f"| {name} | {published} | {cells} |"


if __name__ == "__main__":
    print(*table(), sep="\n")
