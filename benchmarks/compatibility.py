"""Which public programs and libraries run unchanged on an emulated GPU: writes docs/compatibility.md.

    python -m benchmarks.compatibility                      # all, about 20 minutes on two cores
    python -m benchmarks.compatibility mnist "peft LoRA"    # some; prints their rows and writes nothing
    python -m benchmarks.compatibility --checkouts FOLDER   # with those that are files of repositories

Makes a temporary environment that borrows torch from this one, installs each library with pip, and runs each program of
benchmarks/programs.py and packages.toml twice, on the CPU and in an emulated recording with `check=True`, each in a
process of its own (a fork). For packages that are installed already, in an environment of one's own: `--python`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sysconfig
import tempfile
import venv
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[1]
HEAD = """\
# What runs unchanged

Written by `python -m benchmarks.compatibility` (torch {torch}). Each program knows nothing of the emulator. It runs
once on the CPU and once, asking for "cuda", inside `record(on="a100", check=True)`.

*Whose*: "our own" is a small program that we wrote in the style of what is named. All others are of the package or
the repository itself, unchanged: the first example in the documentation of a class ("its example"), a command that it
installs ("its command"), or a file of a checkout ("its train.py"). A list of ours, `benchmarks/packages.toml`, sets
sizes and seeds, and has small data and random weights put where they look for them. *Values*: losses, variables and
saved weights against those of the CPU. *Hazards*: races that were found. *Check*: how many calls of torch and outputs
of modules were made again on the CPU (`recording.check`), and whether they agree.

{count}

| program | whose | version | result | values | hazards | check |
|---|---|---|---|---|---|---|
"""
FOOT = """
The programs of ultralytics ran with its own `nms` in place of torchvision's, of which there is no compiled one here.

## What is refused, and why

Each raises `NotModelledError`, which names the call.

* **CUDA from a second Python thread** (spdl, torchdata's `PinMemory` node, a copying thread, `device_map` of
  transformers): each would need a virtual clock of its own, and every lock, queue and future between them would have to
  carry time. Without that, the order in which two threads reach the GPU would be this machine's, and the same program
  would give another timeline in each run. It is raised there and again when the block ends. Prefetch with a side stream
  instead, or with DataLoader workers; or record with `threads=True` (below). transformers loads weights onto a GPU
  with threads, unless it is told not to by `HF_DEACTIVATE_ASYNC_LOAD=1` in the environment, a switch of its own: all
  of its programs above but one ran with it.
* **CUDA in a forked process** is an error on a real GPU as well; **in a spawned one**, it would be another process on
  the same GPU. Use one process for the GPU; workers of a DataLoader need none.
* **A tensor of the GPU in another process**, by `multiprocessing` (hogwild): its handles are not emulated. Nor are
  interprocess events.
* **More than one GPU or rank**: the emulated machine has one. (A second GPU is, as on such a machine, a CUDA error.)
* **Memory pools and allocators of one's own, raw device memory, and the raw CUDA runtime** (`torch.cuda.cudart()`): the
  memory is this machine's, and the allocator that is emulated is PyTorch's.
* **Streams and events made outside PyTorch** (`ExternalStream`): no one could say what is in them.
* **Kernels compiled at run time** (`torch.cuda.jiterator`): only a GPU can run them. `torch.compile` runs, as PyTorch
  would without it.
* **Backward through FakeTensors on "cuda"** (one's own AOTAutograd): PyTorch has no engine for that in a build for the
  CPU. Forward and `torch.export` work. In a build of torch that does not show its table of device guards, so that even
  making one would end the process, FakeTensors are refused altogether. Make them on the CPU.

**Threads** use the GPU with `record(threads=True)` or `run --threads`: those that the program starts in the block take
turns in virtual time, always the earliest, so the same program gives the same timeline. It changes at locks,
conditions, events, semaphores, barriers, queues, futures, executors, event loops, sleeps and waits for the GPU (R51); a
deadlock is reported at once. Refused, with the stack, is a wait that the recording cannot see while other threads have
no turn: for a bare lock (made before the block, by `_thread` or in C), a pipe or a queue of multiprocessing after 1.5 s
without work, for sockets and other programs after 10 s, a loop that looks at a variable after 30 s; and at once a data
set that waits for a thread while it fetches. Each thread runs as if it had a core of its own: Python's interpreter lock
is not modelled, and hazards are looked for between streams and the host as a whole, not between threads.
`concurrent.futures.wait` and `as_completed` take their futures in the order of their addresses: where several are
locked or over at once, the order is this machine's.

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


def row(program: Any, here: dict[str, Any], there: dict[str, Any]) -> tuple[str, str]:
    """Return a row of the table, and its result in one word: "runs", "refused" or "fails"."""
    cells = [program.style, program.whose, there.get("version") or here.get("version", "")]
    if "error" in there:
        refused = there["error"].startswith("NotModelledError") or "Cannot re-initialize CUDA" in there["error"]
        word = "refused" if refused else "fails"
        also = ", on the CPU, too" if "error" in here and not refused else ""
        return _line(*cells, f"{word}{also}: {_cell(there['error'])}", "", "", ""), word
    values = "it needs a GPU" if "error" in here else _values(here["numbers"], there["numbers"])
    return _line(
        *cells, "runs", values, ", ".join(there["hazards"]) or "none", there["check"].replace("|", "/")[:240]
    ), "runs"


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |".replace("  ", " ")


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


def main() -> None:
    """Run programs, all if none is named, and print the table; write it if it is whole."""
    parser = argparse.ArgumentParser(description="Run public programs on an emulated GPU; write docs/compatibility.md.")
    parser.add_argument("names", nargs="*", metavar="PROGRAM", help="some only; then nothing is written")
    parser.add_argument("--checkouts", default=os.devnull, help="a folder with repositories")
    parser.add_argument("--python", help="of an environment that has the packages already (default: one is made)")
    options = parser.parse_args()
    os.environ |= {"CHECKOUTS": os.path.abspath(options.checkouts), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    os.environ |= {"HF_DEACTIVATE_ASYNC_LOAD": "1", "YOLO_OFFLINE": "true", "PYTHONPATH": str(ROOT)}
    from benchmarks.programs import PROGRAMS  # which need to know where the checkouts are

    if unknown := ", ".join(set(options.names) - PROGRAMS.keys()):
        parser.error(f"no program is called {unknown}; there are {', '.join(PROGRAMS)}")
    rows: list[tuple[str, str]] = []
    with tempfile.TemporaryDirectory() as folder:
        python = options.python or environment(os.path.join(folder, "environment"))
        places = {name: os.path.join(folder, name) for name in ("TMPDIR", "HF_HOME", "YOLO_CONFIG_DIR", "MPLCONFIGDIR")}
        for place in places.values():
            os.mkdir(place)
        command, pipe = [python, "-m", "benchmarks.programs"], subprocess.PIPE
        variables = os.environ | places
        with subprocess.Popen(command, env=variables, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as programs:
            assert programs.stdin and programs.stdout
            for name in options.names or PROGRAMS:
                for package in PROGRAMS[name].needs if not options.python else ():
                    subprocess.run([python, "-m", "pip", "install", "-q", package], check=False, capture_output=True)
                print(f"{name} cpu\n{name} a100", file=programs.stdin, flush=True)
                rows.append(row(PROGRAMS[name], *(json.loads(programs.stdout.readline()) for _ in range(2))))
                print(rows[-1][0], flush=True)
            programs.stdin.close()
    if not options.names:
        words = [word for _, word in rows]
        count = f"{words.count('runs')} of {len(rows)} run, {words.count('refused')} are refused by name."
        if fail := words.count("fails"):
            count = f"{count[:-1]}, {fail} fail."
        head = HEAD.format(torch=torch.__version__, count=count)
        (ROOT / "docs" / "compatibility.md").write_text(
            head + "\n".join(line for line, _ in rows) + "\n" + FOOT, "utf-8"
        )


if __name__ == "__main__":
    main()
