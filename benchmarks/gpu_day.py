"""Try loaderviz on the GPU of this machine, in at most 20 minutes, and pack what was found into one file to send.

    python -m benchmarks.gpu_day                     # writes gpu_day.zip
    python -m benchmarks.gpu_day --parts copies      # one part alone, or several

Each part is a program of its own with a limit of time. A part that fails or takes too long does not stop the others.
The file then has its output with the error, and results.json has its exit status.

tests      passes the tests that need a GPU
calibrate  measures this machine as a host
copies     measures the rates of pinned and pageable copies, both ways
loaders    records the four loaders on this GPU, and on an emulated card beside it

The file names the card, its driver, the system, Python and torch. It holds the timelines, numbers and outputs of these
parts, in which the names of your folders are replaced. The exit status is 0 if all parts ended well, and 1 if one did
not or if there is no GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from loaderviz.machine import cores

ROOT = Path(__file__).resolve().parents[1]
MIB = 2**20
SIZES = MIB // 4, 4 * MIB, 64 * MIB, 256 * MIB  # bytes of a copy
REPEATS = 10
# Where tests need a GPU: the others' modules import a browser, kernels and more, which a lent machine may lack
GPU_TESTS = ROOT / "tests" / "traces" / "test_profiler_gpu.py", ROOT / "tests" / "loaders"


class Part(NamedTuple):
    """What is run, with what after Python's name, and for how many seconds at most."""

    name: str
    seconds: float
    command: Sequence[str]


PARTS = (
    Part("tests", 480, ("-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", *map(str, GPU_TESTS))),
    Part("calibrate", 120, ("-m", "loaderviz", "calibrate", "--save", "my-host.toml")),
    Part("copies", 180, ("-m", "benchmarks.gpu_day", "--do", "copies")),
    Part("loaders", 360, ("-m", "benchmarks.gpu_day", "--do", "loaders")),
)


def copies() -> None:
    """Measure copies between host and GPU, and write their rates [bytes/s], the middle of some, to copies.json."""
    found = {}
    for nbytes in SIZES:
        there = torch.empty(nbytes, dtype=torch.uint8, device="cuda")
        for memory in ("pinned", "pageable"):
            here = torch.ones(nbytes, dtype=torch.uint8)
            here = here.pin_memory() if memory == "pinned" else here
            for way, target, source in (("H2D", there, here), ("D2H", here, there)):
                taken = [_milliseconds(target, source) for _ in range(REPEATS + 1)][1:]  # the first warms up
                found[f"{way} {memory} {nbytes}"] = round(nbytes / statistics.median(taken) * 1000)
    print("\n".join(f"{name:>24} bytes: {rate / 1e9:6.2f} GB/s" for name, rate in found.items()))
    Path("copies.json").write_text(json.dumps(found, indent=1), encoding="utf-8")


def _milliseconds(target: torch.Tensor, source: torch.Tensor) -> float:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    begin.record()
    target.copy_(source, non_blocking=True)
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end))


def loaders() -> None:
    """Record the four loaders here and emulated; print the two tables side by side, save the timelines."""
    from loaderviz.emulator import Gpu
    from loaderviz.emulator.hardware import UnknownHardwareError
    from loaderviz.experiment import Setting, four_loaders
    from loaderviz.view import compare

    try:
        like = Gpu.named(torch.cuda.get_device_name())
    except UnknownHardwareError as problem:
        like = Gpu.preset("a100")
        print(f"{problem}. So {like.name} is emulated")
    for on, kind in (("cuda", "real"), (like, "emulated")):
        runs = four_loaders(Setting(steps=20), on, "auto")
        timelines = {name: run.timeline for name, run in runs.items()}
        print(f"{kind}: {timelines['blocking'].context.device}\n{compare(timelines).printed().T}\n", flush=True)
        for name, timeline in timelines.items():
            timeline.save(f"{kind}-{name}.json")


DO: dict[str, Callable[[], None]] = {"copies": copies, "loaders": loaders}


def machine() -> dict[str, Any]:
    """Return what the card, its driver, the system and the packages are called."""
    asked = "name,driver_version,memory.total,pcie.link.gen.max,pcie.link.width.max,mig.mode.current"
    try:
        told = subprocess.run(["nvidia-smi", f"--query-gpu={asked}", "--format=csv"], capture_output=True, text=True)
        card = told.stdout.splitlines()
    except OSError as problem:
        card = [f"nvidia-smi: {type(problem).__name__}"]
    return {
        "gpu": torch.cuda.get_device_name(),
        "nvidia-smi": card,
        "capability": torch.cuda.get_device_capability(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "cores": cores().threads,
    }


def done(part: Part, folder: Path) -> dict[str, Any]:
    """Run a part in this folder; return how it ended. What it printed is NAME.txt, what it wrote stands beside that."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "LOADERVIZ_OFFLINE": "1"}
    begin, status, problem = time.monotonic(), None, ""
    with open(folder / f"{part.name}.txt", "w", encoding="utf-8") as out:
        try:
            command = [sys.executable, *part.command]
            status = subprocess.run(
                command, cwd=folder, env=environment, stdout=out, stderr=out, timeout=part.seconds
            ).returncode
        except subprocess.TimeoutExpired:
            problem = f"it was stopped after {part.seconds:g} s"
        except OSError as error:
            problem = f"it did not start: {error}"
    return {"part": part.name, "status": status, "seconds": round(time.monotonic() - begin, 1), "problem": problem}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the parts, write the file; return 0 if all ended well, 1 if not or if there is no GPU."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [part.name for part in PARTS]
    parser.add_argument("--parts", nargs="+", choices=names, default=names, help="the parts to run (default: all)")
    parser.add_argument("--out", type=Path, default=Path("gpu_day.zip"), metavar="FILE", help="the file to write")
    parser.add_argument("--do", choices=DO, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("torch sees no CUDA GPU on this machine, so there is nothing to try.", file=sys.stderr)
        return 1
    if options.do:
        DO[options.do]()
        return 0
    with tempfile.TemporaryDirectory() as place:
        folder, results = Path(place), []
        for part in (each for each in PARTS if each.name in options.parts):
            print(f"{part.name}: at most {part.seconds:g} s", flush=True)
            results.append(done(part, folder))
            print(f"    {results[-1]['problem'] or 'it ended'}, status {results[-1]['status']}", flush=True)
            _pack(folder, options.out, {"machine": machine(), "results": results})  # after each, in case one ends all
    print(f"Everything is in {options.out}. Please send this file.")
    return int(any(each["status"] != 0 for each in results))


def _pack(folder: Path, out: Path, told: dict[str, Any]) -> None:
    """Write what is in the folder, and what is told, into the file, without names of the folders of this machine."""
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("results.json", json.dumps(told, indent=1))
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                content = path.read_bytes()
                for place, name in ((folder, "."), (ROOT, "loaderviz"), (Path.home(), "~")):
                    content = content.replace(str(place).encode(), name.encode())
                packed.writestr(path.relative_to(folder).as_posix(), content)


if __name__ == "__main__":
    sys.exit(main())
