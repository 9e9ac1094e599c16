"""`python -m loaderviz`: what a shell user meets."""

import subprocess
import sys

import factory
import pytest

from loaderviz import __main__ as command_line

SMALL = ["compare", "--batch-size", "16", "--steps", "2", "--warmup", "1", "--workers", "1"]


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    monkeypatch.setenv("LOADERVIZ_OFFLINE", "1")


def test_compare_prints_a_table_and_writes_one_page(tmp_path, capsys):
    page = tmp_path / "page.html"
    assert command_line.main([*SMALL, "--on", "t4", "--out", str(page)]) == 0
    out = capsys.readouterr().out
    assert "Batch size 16 on an emulated Tesla T4" in out
    assert all(name in out for name in ("blocking", "pinned", "prefetch", "resident", "makespan", "hidden"))
    assert "bit for bit" in out  # the three DataLoader-fed loaders computed the same loss
    assert str(page) in out
    text = page.read_text(encoding="utf-8")
    assert text.count("plotly.js v") == 1
    assert text.count('class="plotly-graph-div"') >= 2


def test_compare_says_so_where_overlap_cannot_pay(tmp_path, capsys):
    numbers = ["--batch-size", "64", "--steps", "8", "--warmup", "4", "--workers", "1"]
    command_line.main(["compare", *numbers, "--out", str(tmp_path / "page.html")])
    assert "Overlap cannot pay here" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--on", "voodoo2"], "no GPU preset 'voodoo2'; choose one of: a100"),
        (["--host", "toaster"], "no host preset 'toaster'"),
        (["--batch-size", "0"], "batch_size must be at least 1, got 0"),
        (["--batch-size", "70000"], "larger than MNIST"),
        (["--workers", "-1"], "workers cannot be negative"),
        (["--depth", "0"], "depth must be at least 1"),
    ],
)
def test_a_bad_option_is_one_clear_sentence(tmp_path, capsys, arguments, complaint):
    assert command_line.main(["compare", *arguments, "--out", str(tmp_path / "page.html")]) == 1
    out, err = capsys.readouterr()
    assert complaint in err
    assert "Traceback" not in err
    assert out == ""


def test_a_missing_folder_is_told_before_anything_runs(tmp_path, capsys):
    assert command_line.main(["compare", "--out", str(tmp_path / "no" / "page.html")]) == 1
    assert "no" in capsys.readouterr().err


def test_view_prints_what_could_be_gained_and_puts_it_on_the_page(tmp_path, capsys):
    saved, page = factory.loader("pinned", 8).save(tmp_path / "run.json"), tmp_path / "page.html"
    assert command_line.main(["view", str(saved), "--out", str(page)]) == 0
    out = capsys.readouterr().out
    assert "Judged: " in out
    assert "1. copy-not-hidden: up to" in out
    text = page.read_text(encoding="utf-8")
    assert "<h2>What could be gained</h2>" in text
    assert "<b>copy-not-hidden</b>" in text


def test_no_command_prints_help(capsys):
    assert command_line.main([]) == 2
    out = capsys.readouterr().out
    assert all(command in out for command in ("compare", "view", "run"))


def test_it_runs_as_a_module():
    done = subprocess.run([sys.executable, "-m", "loaderviz", "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "Does my data reach the GPU" in done.stdout
