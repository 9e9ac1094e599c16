"""Runs the steps of .github/workflows/portability.yml on this machine: all, or those that name one of the arguments.

python .ci/portability.py
python .ci/portability.py compare same_numbers.py
"""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WORKFLOW = ROOT / ".github" / "workflows" / "portability.yml"


def steps() -> list[str]:
    """Return the commands of the workflow, in their order."""
    return re.findall(r"(?m)^ +- run: (.+)$", WORKFLOW.read_text(encoding="utf-8"))


def main(chosen: list[str]) -> int:
    """Run them up to the first that fails, with the Python that runs this file; return its status."""
    for step in steps():
        if not chosen or any(each in step for each in chosen):
            print(f"== {step}", flush=True)
            command = step.replace("python", f'"{sys.executable}"', 1)
            status = subprocess.call(command, shell=True, cwd=ROOT, env={"LOADERVIZ_OFFLINE": "1"} | os.environ)
            if status:
                return status
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
