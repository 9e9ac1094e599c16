"""The emulated device computes the very numbers of the CPU, whatever way the data take."""

from threading import Thread

import pytest
import torch
import torch.nn.functional as F
from programs import adam, cnn, mlp, same, sgd, to_device, train
from torch import nn

import loaderviz as lv
from benchmarks.programs import copying_thread
from loaderviz.timeline import Kind


def asynchronous(loader, device):
    return to_device(loader, device, non_blocking=True)


@pytest.mark.parametrize("optimizer", [adam, sgd], ids=["adam", "sgd"])
@pytest.mark.parametrize("make", [mlp, cnn])
@pytest.mark.parametrize("copies", ["on_wait", "eager"])
def test_training_is_bitwise_that_of_the_cpu(make, optimizer, copies):
    expected = train("cpu", make, optimizer)
    with lv.record(on="a100", copies=copies):
        blocking = train("cuda", make, optimizer)
        pinned = train("cuda", make, optimizer, asynchronous, pin_memory=True)
        pageable = train("cuda", make, optimizer, asynchronous)
    assert same(blocking, expected)
    assert same(pinned, expected)
    assert same(pageable, expected)


def test_gradients_flow_through_copies_between_host_and_device():
    weight = torch.ones(3, requires_grad=True)
    with lv.record(on="a100"):
        (weight.to("cuda").mul(2).cpu() * torch.tensor([1.0, 2.0, 3.0])).sum().backward()
    assert weight.grad.tolist() == [2.0, 4.0, 6.0]


def test_optimizers_take_their_foreach_path_on_the_device():
    with lv.record(on="a100") as recording:
        model = mlp().to("cuda")
        optimizer = torch.optim.Adam(model.parameters())
        model(torch.rand(2, 144, device="cuda")).sum().backward()
        optimizer.step()
    names = {span.name for span in recording.timeline.rows(Kind.COMPUTE)}
    assert any(name.startswith("_foreach_") for name in names)


OPTIMIZERS = sorted(name for name, kind in vars(torch.optim).items() if "_init_group" in getattr(kind, "__dict__", ()))


def steps_with_a_late_gradient(name, device):
    """Return parameters and state after three steps; one of the parameters has no gradient at first."""
    torch.manual_seed(0)
    values = [torch.rand(3, 2), torch.rand(2, 3)]
    early, late = parameters = [nn.Parameter(value.to(device)) for value in values]
    optimizer = getattr(torch.optim, name)(parameters, lr=0.1)
    for number in range(3):
        optimizer.zero_grad()
        assert early.grad is late.grad is None
        (early @ late if number else early).square().sum().backward()
        optimizer.step()
    states = [
        value for state in optimizer.state.values() for value in state.values() if isinstance(value, torch.Tensor)
    ]
    assert all(value.is_cuda == early.is_cuda for value in states if value.dim())
    return [value.detach().cpu() for value in (*parameters, *states)]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_makes_its_state_where_the_parameters_are_whenever_gradients_come(name):
    with lv.record(on="a100"):
        found = steps_with_a_late_gradient(name, "cuda")
    for value, expected in zip(found, steps_with_a_late_gradient(name, "cpu"), strict=True):
        torch.testing.assert_close(value, expected)


def test_a_module_may_have_param_groups_of_its_own():
    class Grouped(nn.Linear):
        def param_groups(self):
            return [{"params": [self.weight]}, {"params": [self.bias]}]

    with lv.record(on="a100"):
        model = Grouped(2, 1).cuda()
        optimizer = torch.optim.SGD(model.param_groups(), 0.1)
        for clear in (model.zero_grad, optimizer.zero_grad):
            model(torch.ones(1, 2, device="cuda")).sum().backward()
            clear()
            assert model.weight.grad is model.bias.grad is None


def test_a_mode_of_the_program_sees_what_an_optimizer_asks():
    asked = []

    class Seen(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            asked.append(torch.overrides.resolve_name(func))
            return func(*args, **(kwargs or {}))

    with lv.record(on="a100"):
        parameter = torch.ones(2, device="cuda", requires_grad=True)
        optimizer = torch.optim.SGD([parameter], 0.1)
        parameter.sum().backward()
        with Seen():
            optimizer.step()
            optimizer.zero_grad()
    assert asked.count("torch.Tensor.grad.__get__") >= 3
    assert "torch.Tensor.grad.__set__" in asked


def test_under_autocast_the_timeline_says_what_is_computed():
    with lv.record(on="a100") as recording, torch.autocast("cuda"):
        nn.Linear(8, 4).cuda()(torch.ones(2, 8, device="cuda"))
    assert any("dtypes by CUDA's lists" in note for note in recording.timeline.context.notes)


HALF_PRODUCTS = {
    "mm": lambda x: x[0, 0] @ x[0, 1],
    "bmm": lambda x: x[0] @ x[1],
    "linear": lambda x: F.linear(x, x[0, 0], x[0, 0, 0]),
    "convolution": lambda x: F.conv2d(x, x[:, :, :3, :3], x[0, 0, 0, :2], padding=1),
}


@pytest.mark.parametrize("name", HALF_PRODUCTS)
def test_products_of_float16_are_computed_in_float32_and_rounded_once(name):
    """Forward and backward; what the CPU's own kernels for float16 take ten times as long for."""

    def run(x):
        x = x.clone().requires_grad_()
        result = HALF_PRODUCTS[name](x)
        (gradient,) = torch.autograd.grad(result, x, torch.ones_like(result))
        return result.detach(), gradient

    values = torch.rand(2, 2, 8, 8, generator=torch.Generator().manual_seed(0)).half()
    with lv.record(on="a100") as recording:
        result, gradient = (each.cpu() for each in run(values.cuda()))
    exact, of_exact = run(values.float())
    assert result.dtype == gradient.dtype == torch.float16
    assert torch.equal(result, exact.half())
    torch.testing.assert_close(gradient.float(), of_exact, rtol=2e-3, atol=0)  # a sum of rounded products
    assert any("rounded once" in note for note in recording.timeline.context.notes)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("lengths", [(7, 5, 3), None], ids=["padded at the end", "inside"])
@pytest.mark.parametrize("settings", [{}, {"norm_first": True, "activation": "gelu"}], ids=["post", "pre"])
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_padded_sequences_leave_an_encoder_as_from_the_cpu(mode, settings, lengths):
    def encode(device):
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, **settings)
        nested = not settings.get("norm_first", False)
        encoder = nn.TransformerEncoder(layer, 2, nn.LayerNorm(16), enable_nested_tensor=nested).to(device).eval()
        if lengths:
            padding = torch.arange(7) >= torch.tensor(lengths)[:, None]
        else:
            padding = torch.eye(3, 7) > 0
        with mode():
            x, padding = torch.randn(3, 7, 16).to(device), padding.to(device)
            return encoder(x, src_key_padding_mask=padding).detach().cpu(), layer.to(device).eval()(x).detach().cpu()

    expected = encode("cpu")
    with lv.record(on="a100", hazards="raise"):
        torch.testing.assert_close(encode("cuda"), expected, equal_nan=True)


def test_inference_mode_does_what_no_grad_does():
    def run(mode):
        torch.manual_seed(0)
        with lv.record(on="a100") as recording:
            model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()).cuda()
            head, rnn = nn.Linear(32, 10).cuda(), nn.LSTM(10, 4).cuda()
            with mode():
                x = torch.rand(4, 3, 8, 8).pin_memory().to("cuda", non_blocking=True, memory_format=torch.channels_last)
                y = head(model(F.interpolate(x, scale_factor=2)))
                F.cross_entropy(y, torch.zeros(4, dtype=torch.long, device="cuda")).item()
                values = rnn(y[None])[0].half().float().reshape(4, 4).chunk(2)[0] @ torch.einsum("ij,kj->ik", y, y)
        return recording.timeline, values.numel()

    assert run(torch.inference_mode) == run(torch.no_grad)


@pytest.mark.parametrize("backend", ["MATH", "FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION"])
def test_attention_runs_with_every_backend_that_cuda_has(backend):
    with lv.record(on="a100"), torch.nn.attention.sdpa_kernel(getattr(torch.nn.attention.SDPBackend, backend)):
        given = torch.randn(1, 2, 8, 16, device="cuda", requires_grad=True)
        F.scaled_dot_product_attention(given, given, given, is_causal=True).sum().backward()
        assert given.grad.is_cuda


@pytest.mark.filterwarnings("ignore:`torch.jit")
@pytest.mark.parametrize("make", [torch.jit.script, lambda model: torch.jit.trace(model, torch.ones(1, 144))])
def test_scripted_and_traced_modules_run(make):
    expected = make(mlp()[:3])(torch.ones(2, 144))
    with lv.record(on="a100") as recording:
        assert torch.equal(make(mlp()[:3]).cuda()(torch.ones(2, 144, device="cuda")).cpu(), expected)
    assert [span.name for span in recording.timeline.rows(Kind.COMPUTE)][-2:] == ["addmm", "relu"]


def test_a_program_of_two_threads_draws_the_same_numbers_whichever_is_first(monkeypatch):
    """Of the benchmark of compatibility: once its thread runs, nothing draws from the generator that both share."""
    start, losses = Thread.start, []
    for first in (lambda: None, lambda: torch.rand(7)):
        monkeypatch.setattr(Thread, "start", lambda thread, first=first: (first(), start(thread)))
        torch.manual_seed(0)
        losses.append(copying_thread("cpu"))
    assert losses[0] == losses[1] and len(losses[0]) == 4
