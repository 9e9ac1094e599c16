"""How fast does loaderviz read a large profiler trace, and in how much memory? Against HolisticTraceAnalysis.

Run it from the root of the repository: python -m benchmarks.read [--megabytes 540] [--peer | --no-peer] [--trace FILE]

The file is made by repeating a real trace (of ../shared/traces, or --trace; a synthetic one where there is none) with
its times and correlation numbers moved on, so that no event occurs twice. What counts is less the size than the
number of spans, so both are told (alexnet_pageable_2023 has twice as many in a megabyte: --trace). Each reader runs
in a process of its own; memory is the peak of that process above one that has imported the same modules
and read nothing. HolisticTraceAnalysis is installed into a temporary folder for the run, and left out, with the reason,
if that fails.
"""

from __future__ import annotations

import argparse
import gzip
import json
import platform
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TRACES = Path(__file__).resolve().parents[2] / "shared" / "traces"
GOAL = "5 s and 150 MB"  # for 540 MB
HTA = "HolisticTraceAnalysis"

PEAK = """
import resource, sys, time
sys.path[:0] = {paths!r}
def peak():
    try:  # ru_maxrss begins with that of the parent process
        lines = open("/proc/self/status").read().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
"""
READ = """
import loaderviz, loaderviz.traces.read, loaderviz.traces.kineto
idle, start, cpu = peak(), time.perf_counter(), time.process_time()
spans = len(loaderviz.read({file!r}))
print(time.perf_counter() - start, time.process_time() - cpu, peak() - idle, spans)
"""
PEER = """
from hta.common.trace import Trace
idle, start, cpu = peak(), time.perf_counter(), time.process_time()
trace = Trace(trace_files={{0: {file!r}}}, trace_dir="")
trace.parse_traces(use_multiprocessing=False)
spans = len(trace.get_trace(0))
print(time.perf_counter() - start, time.process_time() - cpu, peak() - idle, spans)
"""


def main() -> int:
    """Make the file, read it with each reader, print the table."""
    options = _options()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "large.json"
        name, events = make(trace, options.megabytes, options.trace)
        size = trace.stat().st_size / 1e6
        print(f"{size:,.0f} MB, {events:,} events, made of {name}; {platform.processor() or platform.machine()}, "
              f"Python {platform.python_version()}\n")  # fmt: skip
        print(f"{'reader':<34}{'seconds':>9}{'of CPU':>9}{'MB':>8}{'spans':>12}")
        own = best((PEAK + READ).format(paths=[], file=str(trace)), "loaderviz", options.repeat)
        if options.peer:
            compare(Path(folder), trace, own)
        print(f"\ngoal for 540 MB: {GOAL}")
    return 0


def compare(folder: Path, trace: Path, own: tuple[float, float]) -> None:
    """Read the same file with HolisticTraceAnalysis, and say how much faster loaderviz is."""
    extra, reason = install(folder / "hta", HTA, "setuptools<81")
    if reason:
        print(f"{HTA:<34}left out: {reason}")
        return
    theirs = best((PEAK + PEER).format(paths=[extra], file=str(trace)), HTA, 1)
    if theirs[0]:
        print(f"loaderviz is {theirs[0] / own[0]:.1f} times as fast, "
              f"in {own[1] / theirs[1]:.2f} of the memory")  # fmt: skip


def best(code: str, label: str, repeat: int) -> tuple[float, float]:
    """Run the code in new processes; print and return the best time [s] and its memory [MB]."""
    runs = []
    for _ in range(repeat):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"{label:<34}failed: {done.stderr.strip().splitlines()[-1][:150]}")
            return 0.0, 0.0
        seconds, cpu, mb, spans = done.stdout.split()[-4:]
        runs.append((float(seconds), float(cpu), float(mb), int(spans)))
    seconds, cpu, mb, spans = min(runs)
    print(f"{label:<34}{seconds:>9.2f}{cpu:>9.2f}{mb:>8.0f}{spans:>12,}", flush=True)
    return seconds, mb


def install(folder: Path, *packages: str) -> tuple[str, str]:
    """Install packages into a folder; return it, and why it could not be done ("" if it could)."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target"]
    done = subprocess.run([*command, str(folder), *packages], capture_output=True, text=True, check=False)
    lines = [line for line in done.stderr.strip().splitlines() if line.startswith("ERROR")] or ["pip failed"]
    return str(folder), lines[-1][:150] if done.returncode else ""


def make(path: Path, megabytes: float, source: Path | None) -> tuple[str, int]:
    """Write a trace of this size; return of what it is made and how many events it has."""
    name, text = source_text(source)
    begin = text.index("[", text.index('"traceEvents"')) + 1
    last = text.rindex('"ph"')  # the list of events ends with the last event
    end = last + re.search(r"\}\s*\]", text[last:]).start() + 1  # type: ignore[union-attr]
    head, tail = text[:begin], text[end:]
    body = text[begin:end].strip()
    times = [float(number) for number in re.findall(r'"ts"\s*:\s*([\d.]+)', body)]
    period = int(max(times) - min(times)) + 1_000
    numbers = [int(number) for number in re.findall(r'"correlation"\s*:\s*(\d+)', body)]
    step = max(numbers, default=0) + 1
    parts = re.split(r'("(?:ts|correlation)"\s*:\s*\d+)', body)
    places = [(index, *parts[index].rsplit(":", 1)) for index in range(1, len(parts), 2)]
    moved = [(index, key + ": ", int(number), period if "ts" in key else step) for index, key, number in places]
    events = copies = 0
    with path.open("w", encoding="utf-8") as file:
        file.write(head)
        while file.tell() < megabytes * 1e6:
            for index, key, number, by in moved:
                parts[index] = f"{key}{number + copies * by}"
            file.write(("," if copies else "") + "".join(parts))
            copies += 1
            events += body.count('"ph"')
        file.write(tail)
    return f"{name}, {copies} times", events


def source_text(source: Path | None) -> tuple[str, str]:
    """Return the name and text of the trace to repeat."""
    if source is None:
        source = TRACES / "resnet50_workers0_2021.json.gz"  # the largest of the shared ones
    if source.exists():
        data = source.read_bytes()
        return source.name, (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode("utf-8", "replace")
    return "a synthetic trace", json.dumps(synthetic(), indent=2)


def synthetic(steps: int = 500) -> dict[str, object]:
    """Return a trace of launches and kernels, with operators around them."""
    events: list[dict[str, object]] = []
    for number in range(1, steps):
        ts, common = 1_700_000_000_000_000 + 100 * number, {"ph": "X", "pid": 9_000, "tid": 9_000}
        events.append(common | {"cat": "cpu_op", "name": f"aten::op{number % 40}", "ts": ts, "dur": 60,
                                "args": {"External id": number, "Input Dims": [[64, 3, 224, 224], []]}})  # fmt: skip
        events.append(common | {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": ts + 5, "dur": 8,
                                "args": {"cbid": 211, "correlation": number}})  # fmt: skip
        events.append({"ph": "s", "id": number, "pid": 9_000, "tid": 9_000, "ts": ts + 5, "name": "ac2g"})
        events.append({"ph": "X", "cat": "kernel", "name": f"kernel<{number % 60}>", "pid": 0, "tid": 7, "ts": ts + 20,
                       "dur": 70, "args": {"device": 0, "context": 1, "stream": 7, "correlation": number,
                                           "grid": [80, 1, 1], "block": [256, 1, 1]}})  # fmt: skip
    return {"schemaVersion": 1, "traceEvents": events, "traceName": "synthetic"}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--megabytes", type=float, default=540)
    parser.add_argument("--trace", type=Path, help="the trace to repeat")
    parser.add_argument("--repeat", type=int, default=2, help="runs of each reader; the best counts")
    parser.add_argument("--peer", action=argparse.BooleanOptionalAction, default=True, help="compare with HTA")
    return parser.parse_args()


if __name__ == "__main__":
    started = time.perf_counter()
    status = main()
    print(f"done in {time.perf_counter() - started:.0f} s")
    sys.exit(status)
