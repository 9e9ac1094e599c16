import os
import sys
import tempfile
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from loaderviz import files

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def no_leftovers(monkeypatch, tmp_path):
    """Copies of files are made in a folder of their own, which is empty at the end."""
    (tmp_path / "own").mkdir()
    own = SimpleNamespace(
        mkdtemp=partial(tempfile.mkdtemp, dir=tmp_path / "own"), gettempdir=lambda: str(tmp_path / "own")
    )
    monkeypatch.setattr(files, "tempfile", own)  # there alone: multiprocessing keeps what it once was told
    yield
    assert os.listdir(tmp_path / "own") == []
