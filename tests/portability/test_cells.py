"""What a notebook's cell defines, and a worker that is started anew would have to import.

A program that Python reads with -c is as a notebook's cells are: its `__main__` is no file that a worker can import.
"""

import ast
import subprocess
import sys
import types

import pytest
from torch.utils.data import DataLoader

import loaderviz

PROGRAM = """
import functools, multiprocessing, torch
from torch.utils.data import ConcatDataset, DataLoader, Subset, TensorDataset
import loaderviz as lv

class Squares(torch.utils.data.Dataset):
    def __len__(self): return 4
    def __getitem__(self, index): return torch.tensor(index)

class Marker: pass
def collate(samples): return torch.stack(samples)
def local():
    class Inner(Squares): pass
    return Inner()

def tried(on, method, dataset, **given):
    with lv.record(on=on):
        try:
            loader = DataLoader(dataset, 2, num_workers=2, multiprocessing_context=method, **given)
            return sum(len(batch) for batch in loader)
        except RuntimeError as error:
            assert "num_workers=0" in str(error) and "%%writefile" in str(error), error
            return str(error).split(":")[0]

plain, deep = list(torch.ones(4)), TensorDataset(torch.ones(4))
deep.notes = {"a": [(Marker(),)]}
if __name__ == "__main__":
    CASES
    print([tried(*case, **given) for case, given in cases], len(multiprocessing.active_children()))
"""
REFUSED = {
    "Squares": "Squares(), {}",
    "local.<locals>.Inner": "Subset(ConcatDataset([plain, local()]), range(4)), {}",
    "Marker": "deep, {}",
    "collate": "plain, {'worker_init_fn': functools.partial(collate)}",
    "<lambda>": "plain, {'collate_fn': lambda samples: samples}",
}


def said(on, *cases, method="spawn", file=None):
    """What came of these data sets and options, how many workers are left, and what was printed besides."""
    listed = ", ".join(f"(({on!r}, {method!r}, {case}".replace(", {", "), {", 1) + ")" for case in cases)
    code = PROGRAM.replace("CASES", f"cases = [{listed}]")
    if file is not None:
        file.write_text(code, encoding="utf-8")
    run = [sys.executable, *([str(file)] if file else ["-c", code])]
    done = subprocess.run(run, capture_output=True, text=True, check=False, timeout=200)
    found, _, left = done.stdout.strip().rpartition(" ")
    assert found, done.stderr
    return ast.literal_eval(found), int(left), done.stderr


@pytest.mark.parametrize("on", ["t4", "cpu"])
def test_what_a_cell_defines_is_refused_at_once(on):
    assert said(on, *REFUSED.values()) == ([*REFUSED], 0, "")


@pytest.mark.slow
@pytest.mark.parametrize("on", ["t4", "cpu"])
def test_a_fork_server_refuses_it_too_and_what_can_be_imported_works(on):
    assert said(on, REFUSED["Squares"], "plain, {}", method="forkserver") == (["Squares", 4], 0, "")
    assert said(on, REFUSED["Squares"], method="fork") == ([4], 0, "")


@pytest.mark.slow
def test_a_script_has_its_classes_in_its_workers(tmp_path):
    assert said("cpu", "Squares(), {'collate_fn': collate}", file=tmp_path / "script.py") == ([4], 0, "")


def test_a_main_without_a_spec_keeps_nobody_from_workers(monkeypatch):
    monkeypatch.setitem(sys.modules, "__main__", types.SimpleNamespace(__name__="__main__"))
    with loaderviz.record(on="cpu"):
        assert len(list(DataLoader([1, 2], num_workers=1, multiprocessing_context="fork"))) == 2
