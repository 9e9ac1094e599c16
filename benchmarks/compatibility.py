"""Which public programs and libraries run unchanged on an emulated GPU: writes docs/compatibility.md.

    python -m benchmarks.compatibility                # all, about 10 minutes on two cores
    python -m benchmarks.compatibility mnist gat      # some; prints their rows and writes nothing

Makes a temporary environment that borrows torch from this one, installs each library with pip, and runs each program of
benchmarks/programs.py twice, on the CPU and in an emulated recording, each in a process of its own (a fork).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path
from typing import Any

import torch

from benchmarks.programs import PROGRAMS

ROOT = Path(__file__).parents[1]
HEAD = """\
# What runs unchanged

Written by `python -m benchmarks.compatibility` (torch {torch}). Each program is a small one of our own, in the style of
what is named, and knows nothing of the emulator; it runs once on the CPU and once, asking for "cuda", inside
`record(on="a100")`. *Values*: its losses or sums against those of the CPU. *Hazards*: races that were found.

{count}

| program | version | result | values | hazards |
|---|---|---|---|---|
"""
FOOT = """
## What is refused, and why

* **CUDA from a second Python thread** (spdl, torchdata's `PinMemory` node, a copying thread): each would need a virtual
  clock of its own, and every lock, queue and future between them would have to carry time. Without that, the
  order in which two threads reach the GPU would be this machine's, and the same program would give another timeline in
  each run. So the first such call raises `NotModelledError`, there and again when the block ends. Prefetch with a side
  stream instead, or with DataLoader workers.
* **CUDA in a forked process** is an error on a real GPU as well: use "spawn", and one process for the GPU.
* **A tensor of the GPU in another process**, by `multiprocessing` (hogwild): its handles are not emulated.
* **More than one GPU or rank**, sparse and nested tensors on the device, memory pools and allocators of one's own, raw
  CUDA: each raises `NotModelledError`, which names the call.

Attention and encoder layers in evaluation take the path of training, as their fused "fast path" is not modelled: values
equal to rounding, with zeros where a `TransformerEncoder` unpacks padded sequences. For a sequence that is padding from
end to end, the CPU's fast path gives NaN (without gradients, `batch_first=True`, and no nested tensors, as with
`norm_first=True`; also `MultiheadAttention` with `need_weights=False`); the emulated GPU gives the numbers of training.
"""


def environment(folder: str) -> str:
    """Make an environment that sees the packages of this one; return its Python."""
    venv.create(folder, with_pip=True)
    python = os.path.join(folder, "Scripts" if os.name == "nt" else "bin", "python")
    site = subprocess.check_output(
        [python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"], text=True
    )
    Path(site.strip(), "borrowed.pth").write_text(sysconfig.get_paths()["purelib"], encoding="utf-8")
    return python


def row(name: str, here: dict[str, Any], there: dict[str, Any]) -> tuple[str, str]:
    """Return a row of the table, and its result in one word: "runs", "refused" or "fails"."""
    style, version = PROGRAMS[name].style, there.get("version") or here.get("version", "")
    if "error" in here:
        return f"| {style} | {version} | fails on the CPU, too: {_cell(here['error'])} | | |", "fails"
    if "error" in there:
        refused = there["error"].startswith("NotModelledError") or "Cannot re-initialize CUDA" in there["error"]
        result = "refused" if refused else "fails"
        return f"| {style} | {version} | {result}: {_cell(there['error'])} | | |", result
    hazards = ", ".join(there["hazards"]) or "none"
    return f"| {style} | {version} | runs | {_values(here['numbers'], there['numbers'])} | {hazards} |", "runs"


def _cell(error: str) -> str:
    last = error.strip().splitlines()[-1]
    return (last.partition(": ")[2] or last).replace("|", "/")[:140]


def _values(expected: list[float], found: list[float]) -> str:
    if found == expected:
        return "equal"
    if len(found) != len(expected):
        return "**differ in number**"
    apart = max(abs(a - b) / max(abs(a), abs(b), 1e-9) for a, b in zip(expected, found, strict=True))
    return f"within {apart:.0e}" if apart < 0.02 else f"**differ by {apart:.0%}**"


def main(names: list[str]) -> None:
    """Run programs, all if none is named, and print the table; write it if it is whole."""
    rows: list[tuple[str, str]] = []
    with tempfile.TemporaryDirectory() as folder:
        python = environment(folder)
        variables = os.environ | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        command, pipe = [python, "-m", "benchmarks.programs"], subprocess.PIPE
        with subprocess.Popen(command, env=variables, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as programs:
            assert programs.stdin and programs.stdout
            for name in names or PROGRAMS:
                for package in PROGRAMS[name].needs:
                    subprocess.run([python, "-m", "pip", "install", "-q", package], check=False, capture_output=True)
                print(f"{name} cpu\n{name} a100", file=programs.stdin, flush=True)
                rows.append(row(name, *(json.loads(programs.stdout.readline()) for _ in range(2))))
                print(rows[-1][0], flush=True)
            programs.stdin.close()
    if not names:
        words = [word for _, word in rows]
        count = f"{words.count('runs')} of {len(rows)} run, {words.count('refused')} are refused by name."
        head = HEAD.format(torch=torch.__version__, count=count)
        (ROOT / "docs" / "compatibility.md").write_text(
            head + "\n".join(line for line, _ in rows) + "\n" + FOOT, "utf-8"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
