"""What the tests of the workshop share: source text as a learner's cell, and a file of rows of their own."""

import itertools
import linecache

import pytest
import torch

from loaderviz.workshop import rooms

_number = itertools.count(1)


def cell(source, name=None):
    """Run source text as a notebook would, with its lines known to `inspect`; return the function in it."""
    file = f"<cell {next(_number)}>"
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    place = {"__name__": "a_cell", "torch": torch}  # each lesson has imported it in its first cell
    exec(compile(source, file, "exec"), place)
    mine = [value for value in place.values() if getattr(value, "__module__", "") == "a_cell"]
    return place[name] if name else mine[-1]


@pytest.fixture(autouse=True)
def own_rows(tmp_path, monkeypatch):
    """No room, and what checks write is the test's own."""
    for name in ("LOADERVIZ_ROOM", "JUPYTERHUB_USER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LOADERVIZ_PROGRESS", str(tmp_path / "progress.jsonl"))
    monkeypatch.setattr(rooms, "_here", rooms._Here())
    return tmp_path / "progress.jsonl"
