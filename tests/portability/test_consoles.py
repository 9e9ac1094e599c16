"""Commands of ours on consoles of other code pages than UTF-8, as Windows has them: redirected output, too."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "command"),
    [
        ("cp936", "compare --batch-size 16 --steps 2 --warmup 1 --workers 0"),
        *((page, "run --on t4 program.py") for page in ("cp936", "cp932", "cp1252", "ascii")),
    ],
)
def test_no_sign_that_a_code_page_lacks_ends_a_command(page, command, tmp_path):
    """A sign that is not in the page comes as another: what is printed is its bytes, and nothing fails."""
    (tmp_path / "program.py").write_text(
        "import torch\nfor _ in range(3):\n    torch.ones(64).to('cuda').sum().item()\n"
    )
    settings = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONIOENCODING": page, "PYTHONUTF8": "0"}
    done = subprocess.run(
        [sys.executable, "-m", "loaderviz", *command.split()], cwd=tmp_path, env=settings, capture_output=True
    )
    said = (done.stdout + done.stderr).decode(page)
    assert done.returncode == 0 and "Error" not in said, said
    assert "open it in a browser." in said
