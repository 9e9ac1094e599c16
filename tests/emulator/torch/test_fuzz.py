"""The fuzz of `fuzz.py`, whole and in part: the emulated GPU answers as the CPU does, in kind, place and value."""

import logging
import random

import fuzz
import pytest

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's own, of what it deprecates
COVERED = 0.995  # of the callables that are not excluded


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    """FakeTensorMode logs each call that it has no answer to."""
    monkeypatch.setattr(logging.getLogger("torch._subclasses.fake_tensor"), "disabled", True)


def check(chosen, covered):
    report = fuzz.fuzz(chosen)
    print(fuzz.told(report))
    assert report.coverage >= covered, report.few
    assert not report.differences, "\n".join(report.differences)


@pytest.mark.fuzz
@pytest.mark.timeout(1200)
def test_every_callable_answers_as_on_the_cpu():
    check(fuzz.cases(), COVERED)


@pytest.mark.slow
def test_some_callables_answer_as_on_the_cpu():
    check(random.Random(0).sample(fuzz.cases(), 100), COVERED)


WRONG = {
    "value": lambda result: result + 1,
    "dtype": lambda result: result.double(),
    "device": lambda result: result.cpu(),
    "shape": lambda result: result[None],
    "view": lambda result: result.clone(),
    "crash": lambda result: result.no_such_attribute,
}


@pytest.mark.parametrize("wrong", WRONG)
def test_the_fuzz_finds_what_is_wrong(wrong, monkeypatch):
    def called(case, args, kwargs):
        result = original(case, args, kwargs)
        return WRONG[wrong](result) if type(result) is fuzz.torch.Tensor and result.is_cuda else result

    original = fuzz.called
    monkeypatch.setattr(fuzz, "called", called)
    monkeypatch.setattr(fuzz, "known", lambda *call: [])
    assert len(fuzz.fuzz(["Tensor.relu_"], draws=3).differences) == 3
