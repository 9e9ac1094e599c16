"""Tensors of the emulated device: every way to and fro, what they say of themselves, and CUDA's own errors."""

import re
from typing import ClassVar

import pytest
import torch
import torch.nn.functional as F

import loaderviz as lv
from loaderviz.emulator.runtime import CudaError
from loaderviz.errors import NotModelledError
from loaderviz.imports import import_torchvision
from loaderviz.timeline import COPIES, Kind

CUDA = torch.device("cuda:0")


def copies(recording):
    return sum(1 for _ in recording.timeline.rows(*COPIES))


ARGUMENTS = {  # of functions of torch by their names
    "zeros ones rand randn": (2, 3),
    "arange randperm hann_window eye": (6,),
    "linspace logspace": (0, 1, 3),
    "full": ((2, 3), 5.0),
    "randint": (0, 9, (4,)),
    "normal": (0.0, 1.0, (3,)),
    "tensor": ([1, 2],),
    "tril_indices": (3, 3),
    "zeros_like rand_like": (torch.ones(2),),
    "full_like": (torch.ones(2), 4.0),
}
FACTORIES = {
    **{
        name: lambda d, name=name, given=given: getattr(torch, name)(*given, device=d)
        for names, given in ARGUMENTS.items()
        for name in names.split()
    },
    "empty": lambda d: torch.empty(2, 3, device=d).zero_(),
    "scalar": lambda d: torch.tensor(3.0, device=d),
    "new_zeros": lambda d: torch.ones(1).new_zeros(3, device=d),
    "new_full": lambda d: torch.ones(1).new_full((3,), 2.0, device=d),
    "generator": lambda d: torch.randn(3, device=d, generator=torch.Generator(device=d).manual_seed(2)),
    "uniform_": lambda d: torch.empty(4, device=d).uniform_(generator=torch.Generator(d).manual_seed(2)),
    "from the device": lambda d: torch.zeros(2, device=d).new_ones(3),
    "like on the device": lambda d: torch.zeros_like(torch.zeros(2, device=d)),
}


@pytest.mark.parametrize("name", FACTORIES)
def test_factories_make_the_cpus_values_where_they_are_asked_for(name, recording):
    torch.manual_seed(5)
    here = FACTORIES[name]("cpu")
    torch.manual_seed(5)
    there = FACTORIES[name]("cuda")
    assert not here.is_cuda
    assert there.is_cuda
    assert torch.equal(there.cpu(), here)


def test_an_index_alone_names_a_gpu_and_a_default_device_is_respected(recording):
    assert torch.device(0) == torch.device(device=0) == CUDA
    assert torch.device(1) == torch.device("cuda", 1)  # it can be named; there is no such GPU to go to
    assert isinstance(torch.device(0), torch.device)
    for place in (0, torch.device(0), "cuda"):
        assert torch.Generator(place).device == torch.device(place)
        torch.set_default_device(place)
        try:
            assert torch.ones(2).is_cuda
        finally:
            torch.set_default_device(None)
        with torch.device(place):
            assert torch.nn.Linear(2, 2).weight.is_cuda
        assert not torch.zeros(2).is_cuda


def test_views_share_memory_and_cost_nothing():
    with lv.record(on="a100") as recording:
        x = torch.arange(6.0, device="cuda")
        before = torch.cuda.memory_allocated()
        y = x.view(2, 3).t()[1:].unsqueeze(0)
        y.detach().flatten(1, 1).expand(2, 2, 2)
        assert torch.cuda.memory_allocated() == before
        x.add_(1)
        assert y.tolist() == [[[2.0, 5.0], [3.0, 6.0]]]
    kernels = [span.name for span in recording.timeline.rows(Kind.COMPUTE)]
    assert kernels == ["arange", "add_", "copy_"]  # the last one makes the view contiguous for tolist()


def test_operands_on_two_devices_are_refused_but_for_scalars(recording):
    x = torch.ones(3, device="cuda")
    for call in (
        lambda: x + torch.ones(3),
        lambda: torch.ones(3).mul(x),
        lambda: torch.cat([x, torch.ones(3)]),
        lambda: torch.nn.Linear(3, 3)(x),
        lambda: x.add_(torch.ones(3)),
        lambda: torch.where(x > 0, x, torch.ones(3)),
        lambda: torch.nn.functional.cross_entropy(x[None], torch.tensor([1])),
    ):
        with pytest.raises(RuntimeError, match=r"same device, but found at least two devices, cuda:0 and cpu!"):
            call()
    assert (x + torch.tensor(2.0)).tolist() == [3.0] * 3
    assert (torch.tensor(2.0) * x).is_cuda
    assert x[torch.tensor([0, 1])].is_cuda  # indices may be on the host


ONE_GPU = r"invalid device ordinal: cuda:1 .* has one GPU"


@pytest.mark.parametrize(
    ("call", "error", "told"),
    [
        (lambda: torch.zeros(2, device="cuda:1"), CudaError, ONE_GPU),
        (lambda: torch.zeros(2).to(1), CudaError, ONE_GPU),
        (lambda: torch.zeros(2, device=torch.device(1)), CudaError, ONE_GPU),
        (lambda: torch.cuda.set_device(1), CudaError, ONE_GPU),
        (lambda: torch.cuda.Event(interprocess=True), NotModelledError, "interprocess"),
    ],
)
def test_there_is_one_gpu_and_one_process(call, error, told, recording):
    with pytest.raises(error, match=told):
        call()


def test_other_devices_are_left_alone(recording):
    assert torch.zeros(2, device="meta").is_meta
    assert torch.ones(2).to("meta").is_meta
    assert torch.eye(2).to_sparse().add(torch.eye(2).to_sparse()).to_dense().sum() == 4


class Named(torch.Tensor):
    """A plain subclass, as user code has them."""


class WithoutOverride(torch.Tensor):
    """A subclass that wants no `__torch_function__`, as `torch.nn.Parameter` does."""

    __torch_function__ = torch._C._disabled_torch_function_impl


class Logged(torch.Tensor):
    """A subclass that notes which functions it sees."""

    seen: ClassVar[set[str]] = set()

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.seen.add(func.__name__)
        return super().__torch_function__(func, types, args, kwargs)


IMAGES = {
    "relu": lambda x: F.relu(x),
    "interpolate": lambda x: F.interpolate(x, scale_factor=2.0),
    "max_pool2d": lambda x: F.max_pool2d(x, 2),
    "softmax": lambda x: F.softmax(x, 1),
    "cross_entropy": lambda x: F.cross_entropy(x, x.argmax(1)),
    "embedding bag": lambda x: F.embedding_bag(x.flatten().argsort().view(4, -1), x.reshape(-1, 1)),
    "norm": lambda x: torch.norm(x, dim=1),
    "split": lambda x: torch.split(x, 1)[1],
    "operators": lambda x: x * 2 + x.mean(),
    "module": lambda x: torch.nn.BatchNorm2d(3).to(x.device)(x),
}


@pytest.mark.parametrize("place", ["cpu", "cuda"])
@pytest.mark.parametrize("kind", [torch.Tensor, Named, Logged, WithoutOverride])
@pytest.mark.parametrize("name", IMAGES)
def test_functions_take_subclasses_of_tensor(name, kind, place, recording):
    plain = torch.rand(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    expected = IMAGES[name](plain)
    x = plain.as_subclass(kind).to(place)
    Logged.seen.clear()
    found = IMAGES[name](x)
    assert name not in vars(F) or (name in Logged.seen) == (kind is Logged)
    assert found.device.type == place
    assert type(x) is (torch.Tensor if kind is WithoutOverride and place == "cuda" else kind)
    assert type(found) is (torch.Tensor if kind is WithoutOverride else kind)
    assert torch.equal(found.cpu().as_subclass(torch.Tensor), expected)


def test_images_of_torchvision_stay_images(recording):
    import_torchvision()
    from torchvision import tv_tensors

    image = tv_tensors.Image(torch.rand(3, 4, 4)).to("cuda")
    assert type(image) is tv_tensors.Image
    assert image.is_cuda
    pooled = F.interpolate(F.relu(image)[None], 2)
    assert (type(pooled), pooled.device) == (torch.Tensor, CUDA)


LAZY = {
    "linear": (lambda: torch.nn.LazyLinear(3), (2, 5)),
    "convolution": (lambda: torch.nn.LazyConv2d(3, 3), (2, 5, 4, 4)),
    "batch norm": (lambda: torch.nn.LazyBatchNorm1d(), (2, 5)),  # has lazy buffers, too
}


MOVES = {
    "to": (lambda m: m.to("cuda"), "cuda"),
    "cuda()": (lambda m: m.cuda(), "cuda"),
    "integer": (lambda m: m.to(0), "cuda"),
    "to and fro": (lambda m: m.cuda().cpu(), "cpu"),
    "dtype": (lambda m: m.float(), "cpu"),
}


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("name", LAZY)
def test_lazy_modules_materialise_where_they_were_moved(name, move, recording):
    (make, shape), (go, there) = LAZY[name], MOVES[move]
    model = go(make())
    assert torch.nn.parameter.is_lazy(model.weight)
    torch.manual_seed(1)
    result = model(torch.ones(shape, device=there))
    result.sum().backward()
    tensors = [*model.parameters(), *model.buffers()]
    assert {tensor.device.type for tensor in (result, *tensors, model.weight.grad)} == {there}
    assert not any(torch.nn.parameter.is_lazy(tensor) for tensor in tensors)
    torch.manual_seed(1)
    assert torch.equal(result.cpu(), make()(torch.ones(shape)))


def test_data_can_be_assigned(recording):
    parameter = torch.nn.Parameter(torch.ones(3))
    parameter.data = parameter.data.to("cuda")
    assert parameter.is_cuda
    parameter.data = torch.zeros(4, device="cuda")
    assert parameter.tolist() == [0.0] * 4
    parameter.grad = torch.ones(4, device="cuda")
    torch.optim.SGD([parameter], 1.0).step()
    assert parameter.tolist() == [-1.0] * 4


def test_pageable_memory_may_change_after_a_non_blocking_copy(recording):
    source = torch.ones(2**18)
    moved = source.to("cuda", non_blocking=True)
    source.zero_()
    assert moved.sum().item() == 2**18


@pytest.mark.filterwarnings("ignore::loaderviz.HazardWarning")  # the race is meant
@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.complex64, torch.int64, torch.uint8, torch.bool])
def test_poison_is_nan_or_the_largest(dtype):
    with lv.record(on="a100"):
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            late = torch.zeros(3, dtype=dtype).pin_memory().to("cuda", non_blocking=True)
        seen = late.cpu()
        if dtype.is_floating_point or dtype.is_complex:
            assert seen.isnan().all()
        else:
            assert (seen == (True if dtype == torch.bool else torch.iinfo(dtype).max)).all()
        torch.cuda.current_stream().wait_stream(side)
        assert not late.cpu().any()


ERRORS = {
    "operator": (
        lambda: torch.ones(2, device="cuda") @ torch.ones(3, device="cuda"),
        r"emulating aten\.dot\.default on an",
    ),
    "function": (lambda: torch.ones(2, device="cuda").numpy(), r"emulating torch\.Tensor\.numpy on an"),
    "torch's Python": (lambda: torch.optim.SGD([], lr=1), "emulating an NVIDIA"),
    "the program's own": (lambda: [][0], ""),
    "CUDA's": (lambda: torch.ones(2, device="cuda:1"), ""),
}


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_out_of_torch_ends_with_what_was_emulated(name):
    call, said = ERRORS[name]
    with pytest.raises((RuntimeError, TypeError, ValueError, IndexError)) as raised, lv.record(on="a100"):
        call()
    notes = getattr(raised.value, "__notes__", [])
    assert len(notes) == bool(said)
    assert re.search(said, "".join(notes)) and ("without loaderviz" in "".join(notes)) == bool(said)


MASKS = [
    (slice(None), [True, False, True]),
    [True, False],
    [[False] * 4] * 2,
    [True] * 5,
    (..., None, [True] * 4),
    [True, False, True],
]


@pytest.mark.parametrize("index", MASKS)
@pytest.mark.parametrize("place", ["cpu", "cuda"])
@pytest.mark.parametrize("writes", [False, True])
def test_a_mask_is_as_large_as_what_it_masks(index, place, writes, recording):
    def found(device, place):
        entries = index if isinstance(index, tuple) else (index,)
        key = tuple(torch.tensor(entry, device=place) if isinstance(entry, list) else entry for entry in entries)
        x = torch.arange(12.0).view(3, 4).to(device)
        try:
            if writes:
                x[key] = 1.0
            return (x if writes else x[key]).tolist()
        except IndexError as error:
            return str(error)

    assert found("cuda", place) == found("cpu", "cpu")
