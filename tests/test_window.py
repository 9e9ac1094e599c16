"""record(wait=, steps=) emulated: what is kept is a part of the whole, and the rest of a long run costs little."""

import functools

import factory
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import loaderviz as lv
from loaderviz.emulator.runtime import Runtime
from loaderviz.emulator.torch.session import Session
from loaderviz.emulator.torch.tensors import AT_REST
from loaderviz.errors import NotModelledError
from loaderviz.loaders import PrefetchLoader
from loaderviz.timeline import WIDTH
from loaderviz.traces.steps import cut


class Training:
    """A net and its data, trained by one of several loops; `losses` are what it came to."""

    def __init__(self, steps):
        torch.manual_seed(3)
        self.steps, self.losses, self.places = steps, [], []
        self.data = TensorDataset(torch.randn(4 * steps, 6), torch.randint(0, 3, (4 * steps,)))
        layers = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3)
        self.net = nn.Sequential(*layers).to("cuda")
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=0.05)

    def step(self, x, y):
        x, y = x.to("cuda", non_blocking=True), y.to("cuda", non_blocking=True)
        loss = nn.functional.cross_entropy(self.net(x), y)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        self.optimizer.step()
        self.losses.append(loss.item())
        gradient = next(self.net.parameters()).grad
        self.places.append({it.device.type for it in (x, loss, gradient, gradient * 2, torch.zeros_like(loss))})

    def loader(self, **options):
        return DataLoader(self.data, 4, **options)

    def slices(self):
        x, y = (it.to("cuda") for it in self.data.tensors)
        return ((x[at : at + 4], y[at : at + 4]) for at in range(0, 4 * self.steps, 4))

    def train(self, loop, recording):
        sources = {
            "workers": lambda: self.loader(num_workers=2, pin_memory=True),
            "ahead": lambda: PrefetchLoader(self.loader(pin_memory=True)),
            "slices": self.slices,
        }
        for x, y in sources.get(loop, self.loader)():
            if loop == "calls":
                recording.step()
            self.step(x, y)
            if loop == "in_half":
                (x.to("cuda").half() @ torch.ones(6, 1, device="cuda").half()).sum().item()


@functools.cache
def trained(loop, count=16, **options):
    """Return the training and its recording; `stopped` tells whether nothing is emulated at its end."""
    with lv.record(on="a100", **{"host": "laptop"} | options) as recording:
        training = Training(count)
        training.train(loop, recording)
        training.stopped = Session.active.aside is AT_REST
        training.spans = len(Session.active.runtime.builder._values) // WIDTH
    return training, recording


LOOPS = pytest.mark.parametrize("loop", ["plain", "workers", "ahead", "calls", "slices", "in_half"])


@LOOPS
@pytest.mark.parametrize(("wait", "steps"), [(2, 3), (0, 1), factory.slow(5, 2)])
def test_what_is_kept_is_that_part_of_the_whole(loop, wait, steps):
    _, whole = trained(loop)
    training, recording = trained(loop, wait=wait, steps=steps)
    part, expected = recording.timeline.self_check(), cut(whole.timeline, wait, steps, loop == "calls")
    assert training.stopped == (loop != "in_half")
    assert list(part.rows()) == list(expected.rows())
    assert part.marks == expected.marks
    assert part.context.notes == expected.context.notes
    assert part.context.samples == expected.context.samples
    joined = [sorted(zip(*(it.arrows[name].tolist() for name in it.arrows), strict=True)) for it in (part, expected)]
    assert joined[0] == joined[1]


@LOOPS
@pytest.mark.parametrize("host", [factory.slow("laptop"), "auto"])
def test_the_loop_goes_on_to_the_same_numbers_when_nothing_is_recorded_any_more(loop, host):
    whole, _ = trained(loop, host=host)
    part, _ = trained(loop, host=host, wait=1, steps=1)
    assert part.losses == whole.losses
    assert part.places == [{"cuda"}] * whole.steps


@pytest.mark.parametrize("loop", ["plain", "calls", "ahead", "in_half"])
def test_a_long_run_keeps_no_more_than_its_window(loop):
    before, after = trained(loop, 30, wait=40, steps=1)[0], trained(loop, 30, wait=1, steps=1)[0]
    one = len(trained(loop, 6, wait=2, steps=1)[1].timeline)
    assert before.spans <= 3 * one
    assert after.spans <= 1


def test_nothing_is_priced_after_the_window(monkeypatch):
    launches, launch = [], Runtime.launch
    monkeypatch.setattr(Runtime, "launch", lambda *args, **kwargs: launches.append(1) or launch(*args, **kwargs))
    counts = []
    for count in (20, 40):
        launches.clear()
        trained("plain", count, wait=2, steps=4)
        counts.append(len(launches))
    assert counts[0] == counts[1] > 100


def test_cuda_answers_after_the_window():
    def ask(recording):
        for _ in range(9):
            recording.step()
            x = torch.ones(8, device="cuda")
            first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            first.record()
            with torch.cuda.stream(torch.cuda.Stream()):
                y = x * 2
                y.record_stream(torch.cuda.current_stream())
            last.record()
            torch.cuda.synchronize()
            y = y.cpu()
        return x, y, first.elapsed_time(last), torch.cuda.memory_allocated()

    with lv.record(on="a100", steps=1, hazards="off") as recording:
        x, y, took, held = ask(recording)
        assert Session.active.aside is AT_REST
        assert (x.is_cuda, y.is_cuda, y.tolist()) == (True, False, [2.0] * 8)
        assert took >= 0 and held >= 0
        with pytest.raises(TypeError, match="cuda"):
            x.numpy()
        with pytest.raises(NotModelledError, match="leave steps= out"), torch.cuda.graph(torch.cuda.CUDAGraph()):
            pass
    assert not hasattr(torch.ones(1), "emulated") and torch.ones(1).device.type == "cpu"


def test_a_sequence_model_and_a_function_of_ones_own_go_on_after_the_window():
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            assert gradient.is_cuda
            return gradient * torch.full((), 2.0, device=gradient.device)

    def run(steps):
        torch.manual_seed(0)
        with lv.record(on="a100", steps=steps, host="laptop") as recording:
            net = nn.LSTM(3, 4, batch_first=True).cuda()
            found = []
            for _ in range(8):
                recording.step()
                x = torch.randn(2, 5, 3).cuda()
                packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([5, 2]), batch_first=True)
                padded, lengths = nn.utils.rnn.pad_packed_sequence(net(packed)[0], batch_first=True)
                Doubled.apply(padded).sum().backward()
                found.append((net.weight_ih_l0.grad.sum().item(), padded.device.type, lengths.device.type))
        return found

    assert run(2) == run(None)
