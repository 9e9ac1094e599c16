"""The download of MNIST: torchvision's own, in a child process that ends when the time is up.

A thread cannot be stopped in the middle of a name look-up or a read; a process can. `download` is the parent's side;
``python -m loaderviz._mnist_download`` is the child.
"""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

PROBE_SECONDS = 2.0
"""How long one mirror may take to answer at all; without a network this is all that a user waits for."""


def download(root: Path, mirrors: list[str], resources: list[tuple[str, str]], seconds: float) -> str | None:
    """Let torchvision download MNIST to `root` within so many seconds; return None, or why it did not work.

    `mirrors` and `resources` (file name, md5) are those of torchvision's `MNIST`. When this returns, the child has
    ended; what it leaves in `root` is whole only if None was returned.
    """
    package_parent = str(Path(__file__).resolve().parent.parent)
    search_path = os.pathsep.join(filter(None, [package_parent, os.environ.get("PYTHONPATH")]))
    order = json.dumps({"root": str(root), "mirrors": mirrors, "resources": resources})
    try:
        finished = subprocess.run(
            [sys.executable, "-m", "loaderviz._mnist_download"],
            input=order,
            env={**os.environ, "PYTHONPATH": search_path},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        return f"the download took longer than {seconds:g} s"
    except OSError as error:
        return f"no child process could be started ({error})"
    if finished.returncode == 0:
        return None
    lines = finished.stderr.strip().splitlines()
    return lines[-1].strip() if lines else f"the download ended with status {finished.returncode}"


def _answering(mirrors: list[str], first_file: str) -> tuple[list[str], str]:
    """The mirrors that answer, and the last one's reason if it did not. Cheap: torch is not imported yet."""
    answering, reason = [], "no mirror is known"
    for mirror in mirrors:
        try:
            with urllib.request.urlopen(mirror + first_file, timeout=PROBE_SECONDS) as reply:
                reply.read(1)
            answering.append(mirror)
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason = str(error)
    return answering, reason


def _main(order: dict[str, Any]) -> int:
    mirrors, reason = _answering(order["mirrors"], order["resources"][0][0])
    if not mirrors:
        print(f"no mirror answers ({reason})", file=sys.stderr)
        return 1

    from loaderviz._torchvision import import_torchvision

    dataset = import_torchvision().datasets.MNIST
    dataset.mirrors = mirrors
    dataset.resources = [tuple(resource) for resource in order["resources"]]
    try:
        dataset(order["root"], download=True)
    except Exception as error:
        print(" ".join(str(error).split()) or type(error).__name__, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_main(json.load(sys.stdin)))
