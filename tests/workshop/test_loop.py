"""The set-up that the lessons share does what its sentences say."""

import math
from unittest.mock import Mock
from xml.etree import ElementTree

import pytest
import torch

import loaderviz as lv
from loaderviz import mnist, notebooks
from loaderviz.timeline import Kind, TimelineError
from loaderviz.workshop import ExerciseError, lesson00, loop
from loaderviz.workshop.loop import gpu_milliseconds, make_batches, new_model, show_code, steps, train_step, watch


@pytest.fixture(scope="module")
def batches():
    return make_batches(64, loop.WARM_UP + 2)


def plain_loop(batches):
    model, optimizer = new_model(32)
    for x, y in steps(batches):
        loss = train_step(model, optimizer, x.to("cuda"), y.to("cuda"))
    return loss


def test_batches_are_mnist_in_order_and_no_more_than_there_are():
    images, labels = mnist.tensors(train=True)
    made = make_batches(5, 3)
    assert torch.equal(torch.cat([x for x, _ in made]), images[:15].float() / 255)
    assert torch.equal(torch.cat([y for _, y in made]), labels[:15])
    assert [len(y) for _, y in make_batches()] == [2048] * (loop.WARM_UP + loop.STEPS)
    for size, count in ((0, 1), (1, 0), (-3, 2), (30_000, 3)):
        with pytest.raises(ExerciseError, match=rf"make_batches\({size}, {count}\): .* size \* count <= 60000"):
            make_batches(size, count)


def test_a_step_trains_the_same_weights_each_time(batches):
    x, y = batches[0]
    with lv.record(on=loop.GPU):
        first, second = (torch.cat([part.flatten() for part in new_model(8)[0].parameters()]).cpu() for _ in range(2))
        model, optimizer = new_model()
        on_gpu = x.to("cuda"), y.to("cuda")
        losses = [train_step(model, optimizer, *on_gpu).item() for _ in range(5)]
    assert torch.equal(first, second) and len(first) == 784 * 8 + 8 + 8 * 10 + 10
    assert losses == sorted(losses, reverse=True)
    assert abs(losses[0] - math.log(10)) < 0.3  # it knows nothing yet: ten classes, equally likely


def test_watch_shows_what_comes_after_the_warm_up(batches, capsys):
    timeline = watch(plain_loop, batches)
    assert capsys.readouterr().out.startswith("plain_loop: loss of the last batch ")
    names = [span.name for span in timeline.rows(Kind.RANGE) if span.name.startswith("batch")]
    assert names == ["batch 3: 64 samples", "batch 4: 64 samples"]
    assert {span.batch for span in timeline.rows(Kind.COMPUTE)} == {3, 4}
    assert min(span.start for span in timeline.rows(Kind.COMPUTE)) > timeline.begin  # nothing of before still runs
    longer = watch(lambda: plain_loop(batches), warm_up=1, on="t4")
    assert [span.batch for span in longer.rows(Kind.RANGE) if span.name.startswith("batch")] == [1, 2, 3, 4]
    assert longer.context.device == "Tesla T4"
    with pytest.raises(TimelineError, match=r"batch 3"):  # it ends in the warm-up
        watch(plain_loop, batches[:2])


def test_the_milliseconds_are_those_of_a_step_without_the_warm_up(batches):
    """The events see the same as the timeline; what is made before the first step does not count."""

    def slow_start(batches):
        torch.zeros(2**24).to("cuda")
        return plain_loop(batches)

    def by_hand(batches):
        model, optimizer = new_model(32)
        for x, y in batches:
            train_step(model, optimizer, x.to("cuda"), y.to("cuda"))

    step = lv.summarize(watch(plain_loop, batches)).step / 1e6
    with lv.record(on=loop.GPU):
        assert gpu_milliseconds(plain_loop, batches) == pytest.approx(step, rel=0.05)
        assert gpu_milliseconds(slow_start, batches) == pytest.approx(step, rel=0.05)
        assert gpu_milliseconds(by_hand, batches) > gpu_milliseconds(plain_loop, batches)  # timed as a whole
        with pytest.raises(ZeroDivisionError):
            gpu_milliseconds(Mock(side_effect=ZeroDivisionError), batches)
    assert loop._when_warm == []


def test_the_code_is_shown_as_it_is():
    note = show_code(train_step, steps)
    assert note.code.startswith("def train_step(") and "\n\n\ndef steps(" in note.code
    assert "loss.backward()" in repr(note)
    assert note._repr_markdown_().lstrip().startswith("```python\ndef train_step(")
    with pytest.raises(ExerciseError, match=r"show_code\(<built-in function len>\): Python has no source"):
        show_code(len)


def test_the_drawn_machine_moves_each_batch_as_the_timeline_has_it():
    drawn = lesson00.machine()
    copies = drawn.timeline.rows(Kind.COPY_H2D)
    assert [span.end - drawn.timeline.begin for span in copies] == [at[2] for at in drawn.journeys.values()]
    for at in drawn.journeys.values():
        assert list(at) == sorted(at)
    svg = drawn.svg()
    shown = ElementTree.fromstring(svg)
    assert len(shown.findall("{*}g[@transform]")) == len(drawn.journeys) == svg.count("@keyframes") == 3
    assert "prefers-reduced-motion" in svg and "batch 4: its copy is called" in shown.get("aria-label")
    stored = notebooks.folder() / "pictures" / "00_start_here.svg"
    assert stored.read_text(encoding="utf-8") == svg, "python notebooks/build.py --execute 00"
