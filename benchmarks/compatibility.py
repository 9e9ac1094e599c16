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

* **CUDA from a thread that has no turns** (below): one that is older than the block, was started by `_thread`, by C
  code, by a library for its processes, or in a data set's fetch. Start it with `threading.Thread` in the block. With
  `threads=False` no second thread has turns.
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

**Threads** that the program starts in the block use the GPU: they take turns in virtual time, always the earliest, so
the same program gives the same timeline. It changes at locks, conditions, events, semaphores, barriers, queues,
futures, executors, event loops, sleeps and waits for the GPU (R51); a deadlock is reported at once. What cannot be
seen is a wait for a bare lock (made before the block, by `_thread` or in C) after 1.5 s without work, for another
program after 10 s, a loop that looks at a variable after 30 s; and, at once, a data set that waits for a thread while
it fetches. Where a second thread has used the GPU, that is refused, with the stack. Where none has, the threads go on
in real time from there on, which the notes tell; CUDA in a second thread is refused after that.

`select`, `selectors`, sockets, `os.read` and the queues and connections of `multiprocessing` wait in virtual time, too,
so that servers of `socketserver`, `http.server` and `logging.handlers` have turns. What the program's own threads send
is there at once. While a thread waits for what may come from outside, virtual time passes no faster than real time;
what comes is there after as long as on this machine, which a note tells. To connect, to send, and to read of `ssl`
takes as long as here, and other threads wait meanwhile. `time` is virtual; `datetime.now()` is this machine's clock.

A tensor that one thread makes and another one uses is a hazard, unless both the threads and their streams wait. What
counts between threads is what the recording sees: locks and what is made of them, starts and joins. It does not see a
list, a `deque` or a variable through which they hand something over, and reports a race there; hand it over with a
queue. Two threads that use the same stream are in its order, that of this run. What one thread writes into a pinned
buffer before another one's copy reads it is not looked at. Of Python one thread runs at a time (R53), on a core of its
own; a data set's fetch is not told apart from Python, which holds the lock. `concurrent.futures.wait` and
`as_completed` take their futures in the order of their addresses: where several are locked or over at once, the order
is this machine's.

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
