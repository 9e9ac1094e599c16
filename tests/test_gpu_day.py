"""A day with a GPU, tried where none is: parts that fail or hang, what is in the file, copies on an emulated card."""

import json
import socket
import sys
import zipfile
from pathlib import Path

import factory
import pytest
import torch

import loaderviz as lv
from benchmarks import gpu_day
from benchmarks.gpu_day import Part


@pytest.fixture
def card(monkeypatch, tmp_path):
    """A machine that seems to have a GPU, and a folder to be in."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "NVIDIA Fake")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def packed(folder, name="gpu_day.zip"):
    with zipfile.ZipFile(folder / name) as file:
        return {each: file.read(each).decode() for each in file.namelist()}


WRITES = "print('said'); open('found.json', 'w').write('{}'); print(__import__('os').getcwd())"


def test_each_part_is_in_the_file_with_how_it_ended(card, monkeypatch, capsys):
    parts = (
        Part("good", 60, ("-c", WRITES)),
        Part("bad", 60, ("-c", "print('before'); 1 / 0")),
        Part("hangs", 0.5, ("-c", "import time; print('begun', flush=True); time.sleep(60)")),
        Part("killed", 60, ("-c", "import os; os.kill(os.getpid(), 9)")),
    )
    monkeypatch.setattr(gpu_day, "PARTS", parts)
    assert gpu_day.main([]) == 1
    found = packed(card)
    told = json.loads(found["results.json"])
    assert told["machine"]["gpu"] == "NVIDIA Fake" and told["machine"]["torch"] == torch.__version__
    assert [(each["part"], each["status"]) for each in told["results"]] == [
        ("good", 0), ("bad", 1), ("hangs", None), ("killed", -9),
    ]  # fmt: skip
    assert told["results"][2]["problem"] == "it was stopped after 0.5 s"
    assert found["good.txt"].split() == ["said", "."] and found["found.json"] == "{}"  # "." is its folder
    assert "before" in found["bad.txt"] and "ZeroDivisionError" in found["bad.txt"]
    assert "Please send this file" in capsys.readouterr().out


def test_parts_are_chosen_and_the_file_has_the_name_asked_for(card, monkeypatch):
    monkeypatch.setattr(gpu_day, "PARTS", (Part("one", 60, ("-c", "")), Part("two", 60, ("-c", "1 / 0"))))
    assert gpu_day.main(["--parts", "one", "--out", "mine.zip"]) == 0
    assert set(packed(card, "mine.zip")) == {"results.json", "one.txt"}
    with pytest.raises(SystemExit, match="2"):
        gpu_day.main(["--parts", "three"])


def test_a_python_that_does_not_start_is_a_problem_of_its_part(card, monkeypatch):
    monkeypatch.setattr(gpu_day, "PARTS", (Part("one", 60, ("-c", "")),))
    monkeypatch.setattr(sys, "executable", str(card / "no such python"))
    assert gpu_day.main([]) == 1
    (result,) = json.loads(packed(card)["results.json"])["results"]
    assert result["status"] is None and result["problem"].startswith("it did not start")


def test_the_file_is_there_even_where_the_day_ends_early(card, monkeypatch):
    monkeypatch.setattr(gpu_day, "PARTS", (Part("one", 60, ("-c", "print(1)")), Part("two", 60, ("-c", ""))))
    first, ran = gpu_day.done, []

    def interrupted(part, folder):
        if ran:
            raise KeyboardInterrupt
        ran.append(part)
        return first(part, folder)

    monkeypatch.setattr(gpu_day, "done", interrupted)
    with pytest.raises(KeyboardInterrupt):
        gpu_day.main([])
    assert packed(card)["one.txt"].strip() == "1"


def test_without_nvidia_smi_the_machine_is_told_all_the_same(card, monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert gpu_day.machine()["nvidia-smi"] == ["nvidia-smi: FileNotFoundError"]
    text = json.dumps(gpu_day.machine())
    assert socket.gethostname() not in text and str(card.home()) not in text


def test_the_parts_fit_into_twenty_minutes_and_each_of_ours_exists():
    assert sum(part.seconds for part in gpu_day.PARTS) <= 20 * 60
    assert {part.command[-1] for part in gpu_day.PARTS if "--do" in part.command} == set(gpu_day.DO)


def test_copies_of_an_emulated_card_have_its_rates(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(gpu_day, "SIZES", (2**25,))
    with lv.record(on="a100", host="laptop"):
        gpu_day.copies()
    rates = json.loads((tmp_path / "copies.json").read_text())
    assert {name: round(rate / 1e9) for name, rate in rates.items()} == {
        "H2D pinned 33554432": 25, "D2H pinned 33554432": 25, "H2D pageable 33554432": 10, "D2H pageable 33554432": 10,
    }  # fmt: skip
    assert "H2D pinned 33554432 bytes:" in capsys.readouterr().out


@pytest.mark.slow
def test_the_loaders_are_recorded_twice(card, monkeypatch, capsys):
    from loaderviz import experiment

    asked, four = [], experiment.four_loaders

    def emulated(setting, on, host):
        asked.append(on if isinstance(on, str) else on.name)
        return four(experiment.Setting(64, 2, 2, 0), "t4", "laptop", only=("blocking", "resident"))

    monkeypatch.setattr(experiment, "four_loaders", emulated)
    gpu_day.loaders()
    assert asked == ["cuda", "NVIDIA A100-PCIE-40GB"]  # no preset has the fake's name
    said = capsys.readouterr().out
    assert "no preset fits the GPU 'NVIDIA Fake'" in said and "real: Tesla T4" in said and "speed-up" in said
    assert len(lv.read(card / "real-blocking.json")) == len(lv.read(card / "emulated-blocking.json"))


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
@pytest.mark.parametrize("options", [[], ["--do", "copies"], ["--parts", "tests"]])
def test_without_a_gpu_one_sentence_says_so_and_nothing_is_written(options, tmp_path):
    run = factory.python("-m", "benchmarks.gpu_day", *options, folder=tmp_path)
    assert (run.returncode, run.stdout) == (1, "") and list(tmp_path.iterdir()) == []
    assert run.stderr == "torch sees no CUDA GPU on this machine, so there is nothing to try.\n"


def test_all_tests_that_need_a_gpu_are_among_those_of_the_day():
    tests = Path(__file__).parent
    signs = "@pytest.mark.gpu\n", "marks=pytest.mark.gpu)"
    marked = [path for path in tests.rglob("test_*.py") if path.name != Path(__file__).name]
    marked = [
        path for path in [*marked, *tests.rglob("conftest.py")] if any(sign in path.read_text() for sign in signs)
    ]
    assert len(marked) == 3
    assert all(any(path.is_relative_to(place) for place in gpu_day.GPU_TESTS) for path in marked)
