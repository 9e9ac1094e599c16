"""`record(check=True)`: faults of kinds that were once there are put back, one at a time, and each is named."""

import re
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import loaderviz as lv
from loaderviz.emulator.torch.functions import HANDLERS
from loaderviz.emulator.torch.library import autocast
from loaderviz.emulator.torch.operators import Operators
from loaderviz.emulator.torch.placement import move
from loaderviz.emulator.torch.session import CPU

HERE = r"test_check\.py:\d+"


def on_host(session, func, *args, **kwargs):
    """Make a call as if it had not been told of the GPU."""
    with session.placing(CPU):
        return func(*args, **kwargs | {"device": CPU})


def computed(base, change):
    """Return a fault: the values of one operator are changed."""
    real = Operators._computed

    def wrong(self, operator, *given):
        result = real(self, operator, *given)
        return change(result) if operator.base == base and not self.session.quiet else result

    return Operators, "_computed", wrong


def halved(result):
    with torch._C._DisableTorchDispatch():
        (result[0] if isinstance(result, tuple) else result).mul_(0.5)
    return result


def undone(result):
    with torch._C._DisableTorchDispatch():
        return result.sub_(1)


def under_autocast(work, dtype=torch.float16):
    with torch.autocast("cuda", dtype):
        return work(torch.full((64, 64), 7.0, device="cuda").half())


class Rotary(nn.Module):
    """A buffer that is made anew, and a norm."""

    def __init__(self):
        super().__init__()
        self.register_buffer("frequencies", 1 / 10 ** torch.arange(4.0), persistent=False)
        self.first, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)

    def forward(self, x):
        return self.norm(self.first(x) * self.frequencies)


def x():
    return torch.arange(1.0, 5, device="cuda")


def with_default_device():
    torch.set_default_device("cuda")
    try:
        return nn.Linear(3, 2)
    finally:
        torch.set_default_device(None)


def with_default_type():
    torch.set_default_tensor_type("torch.cuda.FloatTensor")
    try:
        return torch.ones(4) + x()
    finally:
        torch.set_default_tensor_type("torch.FloatTensor")


def fault_of(function, answer, program, told):
    """Return a fault: a function has another handler."""
    return (HANDLERS, function, answer), program, told


def to_host(session, tensor, **options):
    return move(session, tensor, CPU, None, False, **options)


def of_lists(change, work, told):
    """Return a fault: the list of what autocast computes in half precision is another one."""
    return (autocast, "LOWER", change(autocast.LOWER)), lambda: under_autocast(work), told


# Each: what is put where, what meets it, and name and aspect of the first difference
FAULTS = {
    "meta is not left alone (A1)": fault_of(
        torch.tensor, on_host, lambda: torch.tensor([1.0], device="meta"), "tensor: the device"
    ),
    "empty is not made on meta (A1)": fault_of(
        torch.empty, on_host, lambda: nn.Linear(2, 2, device="meta"), "empty: the device"
    ),
    "as_tensor stays on the host (A1)": fault_of(
        torch.as_tensor, on_host, lambda: torch.as_tensor([1], device="cuda"), "as_tensor: the device"
    ),
    "type_as stays on the host (A2)": fault_of(
        torch.Tensor.type_as,
        lambda session, func, tensor, _: tensor,
        lambda: torch.ones(2).type_as(x()),
        "type_as: the device",
    ),
    "a copy of a tensor goes to the host (A2)": fault_of(
        torch.tensor,
        lambda session, func, data: to_host(session, data),
        lambda: torch.tensor(x()),
        "tensor: the device",
    ),
    "new data go to the host (A2)": fault_of(
        torch.Tensor.new,
        lambda session, func, tensor, data: to_host(session, torch.ones(2)),
        lambda: x().new([1, 1]),
        "new: the device",
    ),
    "device=None is not the default (A6)": fault_of(torch.empty, on_host, with_default_device, "empty: the device"),
    "softmax in half precision (A7)": of_lists(
        lambda lower: lower | {"softmax"}, lambda y: y.softmax(0), "softmax: the dtype"
    ),
    "pow in half precision (A7)": of_lists(lambda lower: lower | {"pow"}, lambda y: y.pow(2).sum(), "pow: the dtype"),
    "a product in single precision (A7)": of_lists(
        lambda lower: lower - {"mm", "matmul"}, lambda y: y.float() @ y.float(), "(__matmul__|matmul): the dtype"
    ),
    "an old type is on the host (A8)": fault_of(
        torch.Tensor.type,
        lambda session, func, tensor, _: to_host(session, tensor),
        lambda: x().type("torch.cuda.DoubleTensor"),
        "type: the (device|dtype)",
    ),
    "the default type is forgotten (A8)": fault_of(torch.ones, on_host, with_default_type, "add: the error"),
    "a false error (A9)": fault_of(torch.cumsum, lambda *_: [][0], lambda: torch.cumsum(x(), 0), "cumsum: the error"),
    "another shape": fault_of(
        torch.flip, lambda session, func, tensor, _: tensor[1:], lambda: torch.flip(x(), (0,)), "flip: the shape"
    ),
    "wrong values of an operator": (computed("exp", halved), lambda: x().exp(), "exp: the value"),
    "an update that is lost": (computed("add_", undone), lambda: x().add_(1), "add_: the value"),
    "wrong values inside a module": (
        computed("native_layer_norm", halved),
        lambda: Rotary().cuda()(x()),
        "(layer_norm|the output of module norm): the value",
    ),
    "a mask of another scale": (computed("native_dropout", halved), lambda: F.dropout(x(), 0.5), "dropout: the value"),
}


@pytest.mark.filterwarnings("ignore:.*is deprecated:UserWarning", "ignore:To copy construct:UserWarning")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_that_is_put_back_is_named(fault, monkeypatch):
    (owner, name, wrong), program, told = FAULTS[fault]
    with lv.record(on="a100", check=True) as sound:
        program()
    assert sound.check.differences == []
    (monkeypatch.setitem if isinstance(owner, dict) else monkeypatch.setattr)(owner, name, wrong)
    with warnings.catch_warnings(record=True) as caught, lv.record(on="a100", check=True) as recording:
        warnings.simplefilter("always")
        try:
            program()
        except (RuntimeError, IndexError) as error:
            assert "error" in told or "device" in told, error
    assert re.match(
        rf"({told}) is .* on the emulated GPU; without the emulator it is .* At ", str(recording.check.differences[0])
    )
    assert re.search(HERE, str(recording.check.differences[0]))
    assert any(each.category.__name__ == "CheckWarning" for each in caught)


class Cache:
    """What a program's module may keep from call to call; no tree of tensors."""


class Keeping(nn.Module):
    def forward(self, x, cache):
        cache.x = torch.cat([cache.x, x]) if hasattr(cache, "x") else x
        return cache.x


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def forward(self, x):
        return checkpoint(self.inner, x, use_reentrant=False)


def test_a_check_changes_nothing_of_what_is_checked():
    def program():
        torch.manual_seed(0)
        cache, module = Cache(), Keeping()
        seen = [module(x(), cache).tolist() for _ in range(2)]
        y = torch.rand(2, 4, device="cuda", requires_grad=True)
        Checkpointed().cuda()(y).sum().backward()
        return seen, y.grad.tolist(), repr(y), torch.rand(1).item()

    results = []
    for check in (False, True):
        with lv.record(on="a100", host="laptop", check=check) as recording:
            results.append(program())
    assert results[0] == results[1]
    assert recording.check.differences == []
    assert "agrees with the CPU and with PyTorch" in str(recording.check)
    assert recording.check.calls > 10 and recording.check.modules > 2


def test_what_a_gpu_refuses_too_is_no_difference():
    with lv.record(on="a100", check=True) as recording:
        for refused in (lambda: x() + torch.ones(4), lambda: x().requires_grad_().add_(1), lambda: x().view(3)):
            with pytest.raises(RuntimeError):
                refused()
    assert recording.check.differences == []


def test_outputs_of_modules_are_compared_as_the_gpu_sees_them():
    """A view of a copy that is under way, and autocast inside a module."""

    class Cast(nn.Linear):
        def forward(self, x):
            with torch.autocast("cuda", torch.bfloat16):
                return super().forward(x)

    with lv.record(on="a100", check=True) as recording:
        images = torch.rand(2, 3, 4).pin_memory().to("cuda", non_blocking=True)
        nn.Sequential(nn.Flatten(), Cast(12, 4)).cuda()(images)
    assert recording.check.differences == []
    assert recording.check.modules == 3


def test_modes_of_the_program_see_nothing_of_a_check():
    found = []
    for check in (False, True):
        with lv.record(on="a100", check=check), FlopCounterMode(display=False) as counter:
            nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).cuda()(torch.ones(3, 8, device="cuda"))
        found.append(counter.get_total_flops())
    assert found == [2 * 3 * (8 * 16 + 16 * 4)] * 2
