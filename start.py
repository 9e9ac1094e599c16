"""Sets up .venv beside this file on Linux, macOS and Windows, without make, and runs its Python.

    python3 start.py                           # sets up what the lessons need; on Windows `py start.py`
    python3 start.py -m loaderviz compare      # the same if it is not done yet, then runs what follows
    python3 start.py --dev -m pytest           # with what the tests need, too

PyTorch is its CPU build on Linux without an NVIDIA GPU, of the index TORCH_INDEX (an address, from the environment).
"""

from __future__ import annotations

import os
import platform
import re
import signal
import subprocess
import sys
import urllib.request
from http.client import HTTPException
from pathlib import Path

from loaderviz.notebooks import misfit

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
RUN = VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
INDEX = "https://download.pytorch.org/whl/cpu"
MADE_OF = {".ready": ["requirements.txt", "pyproject.toml"], ".ready-dev": ["requirements-dev.txt"]}


def main(arguments: list[str]) -> int:
    """Set up what is missing or older than its list of packages; return the status of what was run."""
    dev = arguments[:1] == ["--dev"]
    if not is_new(".ready"):
        if problem := misfit():
            print(f"This cannot be set up here: {problem}.", file=sys.stderr)
            return 1
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
        torch()
        pip("-r", "requirements.txt")
        pip("--no-deps", "--editable", ".")
        (VENV / ".ready").touch()
    if dev and not is_new(".ready-dev"):
        pip("-r", "requirements-dev.txt")
        (VENV / ".ready-dev").touch()
    rest = arguments[dev:]
    if rest and os.name == "posix":
        os.execv(RUN, [str(RUN), *rest])  # in this process's place, so that signals are the program's
    return run(rest) if rest else 0


def run(arguments: list[str]) -> int:
    """Run .venv's Python beside this one, which leaves Ctrl-C to it; return its status."""
    running = subprocess.Popen([str(RUN), *arguments])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return running.wait()


def is_new(mark: str) -> bool:
    """Return whether this was set up after the last change of what it is made of."""
    made = [(VENV / each).stat().st_mtime if (VENV / each).exists() else 0.0 for each in (".ready", mark)]
    return made[1] >= max(made[0], *((ROOT / name).stat().st_mtime for name in MADE_OF[mark]))


def pip(*arguments: str) -> None:
    """Install into .venv. Raises CalledProcessError."""
    command = [str(RUN), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments]
    subprocess.run(command, cwd=ROOT, check=True)


def torch() -> None:
    """Install torch and torchvision alone from an index of their own, where the default build does not fit, and say so.

    Without their dependencies, so that nothing else can be taken from there.
    """
    index, why = build()
    print(f"PyTorch: {f'from {index}' if index else 'the default build'}, {why}", flush=True)
    if index:
        try:
            pip("--no-deps", "--index-url", index, *re.findall(r"(?m)^torch(?:vision)?==.*", requirements()))
        except subprocess.CalledProcessError:
            if os.environ.get("TORCH_INDEX"):
                raise
            print("PyTorch: the default build then", flush=True)


def requirements() -> str:
    """Return the list of what a learner needs."""
    return (ROOT / "requirements.txt").read_text(encoding="utf-8")


def build() -> tuple[str, str]:
    """Return the index that torch comes from ("": the default one), and why."""
    given, system = os.environ.get("TORCH_INDEX"), platform.system()
    if not given and system != "Linux":  # there it is the CPU build
        return "", f"which on {system} {platform.machine()} is not a large one"
    if not given and has_gpu():
        return "", "for the NVIDIA GPU that nvidia-smi lists"
    try:
        urllib.request.urlopen(f"{given or INDEX}/torch/", timeout=10).read(1)
    except (OSError, ValueError, HTTPException):  # the last two are of what is no address
        return "", f"since {given or INDEX} does not answer"
    return given or INDEX, "as you asked" if given else "since nvidia-smi lists no NVIDIA GPU"


def has_gpu() -> bool:
    """Return whether nvidia-smi lists a GPU."""
    try:
        return subprocess.run(["nvidia-smi", "-L"], capture_output=True).returncode == 0
    except OSError:
        return False


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except subprocess.CalledProcessError as problem:
        sys.exit(problem.returncode)
    except KeyboardInterrupt:
        sys.exit(130)
