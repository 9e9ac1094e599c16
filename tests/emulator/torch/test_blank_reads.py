"""The lint `blank-read`: what reads memory of `torch.empty` before anything has written to it, and what does not."""

import io

import numpy as np
import pytest
import torch
from torch import nn

import loaderviz as lv

BUFFER = (4, 4)


class Positions(nn.Module):
    """A buffer that is made on "meta" and never filled, as when a loader of weights forgets those not saved."""

    def __init__(self):
        super().__init__()
        self.register_buffer("positions", torch.arange(4.0), persistent=False)

    def forward(self, x):
        return x + self.positions


def on_meta():
    with torch.device("meta"):
        module = Positions()
    return module.to_empty(device="cuda")(torch.ones(4, device="cuda"))


READ = {
    "an operator": lambda: torch.empty(BUFFER, device="cuda") + 1,
    "a product": lambda: torch.empty(BUFFER, device="cuda") @ torch.ones(BUFFER, device="cuda"),
    "empty_like": lambda: torch.empty_like(torch.ones(BUFFER, device="cuda")).sum(),
    "new_empty": lambda: torch.ones(1, device="cuda").new_empty(BUFFER).exp(),
    "an old type": lambda: torch.cuda.FloatTensor(4, 4).mul(2),
    "a view": lambda: torch.empty(BUFFER, device="cuda").T[1].relu(),
    "a copy to the device": lambda: torch.empty(BUFFER).cuda() + 1,
    "pinned memory": lambda: torch.empty(BUFFER).pin_memory().to("cuda", non_blocking=True) + 1,
    "a clone": lambda: torch.empty(BUFFER, device="cuda").clone().sum(),
    "a value for the host": lambda: torch.empty((), device="cuda").item(),
    "on the host": lambda: torch.empty(BUFFER) + 1,
    "an update": lambda: torch.empty(BUFFER, device="cuda").add_(1),
    "a module from meta": on_meta,
}


def filled(fill, device="cuda"):
    x = torch.empty(BUFFER, device=device)
    fill(x)
    return x.cuda() + 1


def saved():
    file = io.BytesIO()
    torch.save(nn.Linear(4, 4).cuda().state_dict(), file)
    file.seek(0)
    module = nn.Linear(4, 4, device="meta").to_empty(device="cuda")
    module.load_state_dict(torch.load(file))
    return module(torch.ones(4, device="cuda"))


WRITTEN = {
    "fill_": lambda: filled(lambda x: x.fill_(0)),
    "normal_": lambda: filled(lambda x: x.normal_()),
    "copy_": lambda: filled(lambda x: x.copy_(torch.ones(BUFFER))),
    "a part": lambda: filled(lambda x: x[1:].zero_()),
    "by index": lambda: filled(lambda x: x.__setitem__(torch.tensor([0, 2], device="cuda"), 1.0)),
    "out=": lambda: filled(lambda x: torch.add(torch.ones(BUFFER, device="cuda"), 1, out=x)),
    "initialised": lambda: filled(lambda x: nn.init.kaiming_uniform_(x)),
    "foreach": lambda: filled(lambda x: torch._foreach_zero_([x])),
    "by numpy": lambda: filled(lambda x: np.copyto(x.numpy(), 1), "cpu"),
    "by from_numpy": lambda: torch.from_numpy(np.empty(4)).cuda() + 1,
    "its shape": lambda: torch.ones_like(torch.empty(BUFFER, device="cuda")) + 1,
    "no element": lambda: torch.empty(0, device="cuda") + 1,
    "graphed callables": lambda: torch.cuda.make_graphed_callables(nn.Linear(4, 4).cuda(), (filled(torch.zero_),)),
    "weights from a file": saved,
    "layers": lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).cuda()(torch.ones(BUFFER, device="cuda")),
}  # fmt: skip


def blank_reads(program):
    with lv.record(on="a100") as recording:
        program()
    return [lint for lint in recording.lints if lint.kind == "blank-read"]


@pytest.mark.parametrize("program", READ)
def test_r50_what_nothing_has_written_is_named(program):
    (lint,) = blank_reads(READ[program])
    assert "test_blank_reads.py" in str(lint)


@pytest.mark.parametrize("program", WRITTEN)
def test_r50_what_something_has_written_is_not(program):
    assert blank_reads(WRITTEN[program]) == []
