"""Programs of threads give one timeline, however often they run; and the command that tries it tells when not."""

import random
import sys

import pytest

import loaderviz as lv
from benchmarks import threads


@pytest.mark.slow
@pytest.mark.parametrize("name", threads.programs())
def test_a_program_of_threads_has_one_timeline(name, capsys, uncollected):
    """Garbage of other tests, collected in the middle, would let go of tensors at a moment of its own."""
    assert threads.main([name, "--runs", "3", "--load", "1"]) == 0
    assert "3 runs, 1 timelines" in capsys.readouterr().out


def by_chance(device):
    with lv.costs(random.uniform(1e-3, 1e-2)):
        pass


def by_switches(device):
    """Another timeline while threads switch frantically."""
    with lv.costs(1e-3 if sys.getswitchinterval() > 1e-3 else 2e-3):
        pass


@pytest.mark.parametrize("program", [by_chance, by_switches])
def test_a_program_with_several_timelines_is_told(program, monkeypatch, capsys):
    monkeypatch.setattr(threads, "programs", lambda: {"steady": lambda _: None, program.__name__: program})
    before = sys.getswitchinterval()
    assert threads.main(["--runs", "2", "--load", "0"]) == 1 and sys.getswitchinterval() == before
    lines = capsys.readouterr().out.splitlines()
    assert "1 timelines" in lines[0] and "2 timelines" in lines[1]
    assert threads.main(["steady", "--runs", "2", "--load", "0"]) == 0


def test_a_program_that_fails_leaves_no_process_and_the_interval(monkeypatch):
    started, real = [], threads.subprocess.Popen

    def start(*arguments):
        started.append(real(*arguments))
        return started[-1]

    def fails(device):
        raise ValueError(device)

    monkeypatch.setattr(threads.subprocess, "Popen", start)
    monkeypatch.setattr(threads, "programs", lambda: {"fails": fails})
    before = sys.getswitchinterval()
    with pytest.raises(ValueError, match="cuda"):
        threads.main(["--runs", "2", "--load", "2"])
    assert len(started) == 2 and all(each.poll() is not None for each in started)
    assert sys.getswitchinterval() == before


@pytest.mark.parametrize("wrong", [["nobody"], ["--runs", "1"], ["--runs", "x"], ["--load", "-1"], ["pool", "nobody"]])
def test_wrong_arguments_are_refused(wrong, capsys):
    with pytest.raises(SystemExit) as exit_:
        threads.main(wrong)
    assert exit_.value.code == 2 and capsys.readouterr().err
