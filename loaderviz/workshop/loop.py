"""The set-up that the lessons share: batches, a small network, one training step, and ways to watch and time a loop.

    batches = make_batches()              # in host memory, before the loop starts

    def my_loop(batches):                 # ordinary PyTorch for a CUDA GPU
        model, optimizer = new_model()
        for x, y in steps(batches):
            loss = train_step(model, optimizer, x.to("cuda"), y.to("cuda"))
        return loss

    watch(my_loop, batches).view()        # on the emulated GPU, without the warm-up
    gpu_milliseconds(my_loop, batches)    # on the GPU that is there: ms a step
    show_code(train_step)                 # how it is done

Nothing in here but `watch` and `show_code` knows of loaderviz: the rest runs on a real GPU as it is.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer
from torch.profiler import record_function

from loaderviz import mnist
from loaderviz.emulator.hardware import Gpu
from loaderviz.recording import record
from loaderviz.timeline import Timeline
from loaderviz.workshop.exercises import ExerciseError, Note, say

GPU = "laptop"  # the GPU to emulate; other names: "t4", "a100", "h100", "h200"
HOST = "laptop"  # the computer around it: by name, so that the whole room sees the same times
WARM_UP = 3  # steps before the picture begins: in these, memory is taken for the first time
STEPS = 4  # steps in the picture

Batch = tuple[Tensor, Tensor]
_when_warm: list[Callable[[], None]] = []  # what `steps` calls when the warm-up is over


def make_batches(size: int = 2048, count: int = WARM_UP + STEPS) -> list[Batch]:
    """Return `count` batches of MNIST in host memory.

    Images are float32 `[size, 28, 28]` from 0 to 1, labels int64 `[size]`.

    Raises `ExerciseError` if MNIST has not that many digits.

    >>> [x.shape for x, y in make_batches(64, 2)]
    [torch.Size([64, 28, 28]), torch.Size([64, 28, 28])]
    """
    images, labels = mnist.tensors(train=True)
    if size < 1 or count < 1 or size * count > len(images):
        raise ExerciseError(say("batches-wanted", size=size, count=count, most=len(images)))
    pairs = zip(images.split(size), labels.split(size), strict=True)
    return [(x.float() / 255, y) for (x, y), _ in zip(pairs, range(count), strict=False)]


def network(inputs: int = 784, hidden: int = 128) -> Module:
    """Return a network of one hidden layer that tells ten classes apart."""
    layers = torch.nn.Linear(inputs, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, 10)
    return torch.nn.Sequential(torch.nn.Flatten(), *layers)


def new_model(hidden: int = 256) -> tuple[Module, Optimizer]:
    """Return a small network on the GPU and its optimizer, always with the same first weights."""
    torch.manual_seed(0)
    model = network(784, hidden).to("cuda")
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def train_step(model: Module, optimizer: Optimizer, x: Tensor, y: Tensor) -> Tensor:
    """Train on one batch that is on the GPU already; return the loss, still on the GPU."""
    loss = torch.nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


def steps(batches: Iterable[Any], warm_up: int = WARM_UP) -> Iterator[Any]:
    """Hand out the batches, each under its name, so that each has its colour in the picture.

    Before the first batch that counts is asked for, wait until the GPU has done all earlier work.
    """
    for number, batch in enumerate(batches):
        with record_function(f"batch {number}: {len(batch[-1])} samples"):
            yield batch
        if number == warm_up - 1:
            torch.cuda.synchronize()
            for tell in _when_warm:  # gpu_milliseconds starts its clock here
                tell()


def watch(loop: Callable[..., Tensor], *arguments: Any, on: str | Gpu = GPU, warm_up: int = WARM_UP) -> Timeline:
    """Record `loop(*arguments)` on an emulated GPU; print its loss, return the timeline without the warm-up.

    Raises `TimelineError` if the loop does not get as far as batch `warm_up`.
    """
    with record(on=on, host=HOST) as recording:
        loss = loop(*arguments)
        torch.cuda.synchronize()
    print(say("loss", loop=getattr(loop, "__name__", say("the-loop")), loss=loss.item()))
    return recording.timeline.from_batch(warm_up)


def gpu_milliseconds(loop: Callable[..., Any], *arguments: Any) -> float:
    """Return the time of one step after the warm-up in ms, measured by two events in the stream.

    The first argument is the list of batches. A loop that does not use `steps` is timed as a whole.
    """
    loop(*arguments)  # the first run allocates memory and loads kernels
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    count = len(arguments[0])

    def restart() -> None:
        nonlocal count
        begin.record()  # an event that is recorded again forgets the first time
        count = len(arguments[0]) - WARM_UP

    begin.record()
    _when_warm.append(restart)
    try:
        loop(*arguments)
    finally:
        _when_warm.remove(restart)
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) / count


def show_code(*functions: Callable[..., Any]) -> Note:
    """Return the source of functions, to be shown in a notebook. Raises `ExerciseError` where Python cannot find it."""
    sources = []
    for function in functions:
        try:
            sources.append(textwrap.dedent(inspect.getsource(function)).strip())
        except (OSError, TypeError):
            raise ExerciseError(say("no-source", function=function)) from None
    return Note("", "\n\n\n".join(sources))
