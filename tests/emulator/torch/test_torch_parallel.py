"""The forms of many GPUs over the one there is: `DataParallel`, and `torch.distributed` with one rank."""

import sys
from contextlib import nullcontext

import pytest
import torch
from factory import python
from programs import cnn, mlp, same, to_device, train
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

import loaderviz as lv
from loaderviz.emulator.runtime import CudaError
from loaderviz.errors import NotModelledError


@pytest.fixture(autouse=True)
def own_excepthook(monkeypatch):
    """Forming a process group wraps `sys.excepthook`, and torch never takes that back."""
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)


@pytest.mark.filterwarnings("ignore:Using -1 to represent CPU:FutureWarning")  # torch's own, in the way back
def test_data_parallel_over_the_one_gpu_calls_the_module():
    def train(wrap):
        torch.manual_seed(0)
        model = wrap(torch.nn.Linear(3, 2).to("cuda"))
        loss = model(torch.arange(12.0).reshape(4, 3)).square().mean()
        loss.backward()
        return loss.item(), [parameter.grad.tolist() for parameter in model.parameters()]

    with lv.record(on="a100") as recording:
        assert train(torch.nn.DataParallel) == train(with_inputs_copied)
        given = torch.ones(2, 3, requires_grad=True)
        torch.nn.DataParallel(torch.nn.Linear(3, 2))(given).sum().backward()
        assert not given.grad.is_cuda
        with pytest.raises(CudaError, match="one GPU"):
            torch.nn.DataParallel(torch.nn.Linear(3, 2), device_ids=[0, 1])
    assert not recording.hazards


def with_inputs_copied(model):
    """Return a module that copies its inputs to the device first, as `DataParallel` does."""
    model.register_forward_pre_hook(lambda module, inputs: tuple(entry.to("cuda") for entry in inputs))
    return model


@pytest.fixture
def one_rank():
    """Return a function that begins a process group of one rank."""

    def begin(backend, ranks=1, **options):
        distributed.init_process_group(backend, store=distributed.HashStore(), rank=0, world_size=ranks, **options)

    yield begin
    if distributed.is_initialized():
        distributed.destroy_process_group()


@pytest.mark.parametrize("make", [mlp, cnn])
@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_distributed_data_parallel_with_one_rank_trains_as_its_module(backend, make, one_rank):
    def batches(loader, device):
        sampler = DistributedSampler(loader.dataset, shuffle=False)
        sampler.set_epoch(1)
        again = torch.utils.data.DataLoader(loader.dataset, 16, sampler=sampler, pin_memory=True)
        return to_device(again, device, True)

    def wrapped():
        model = DistributedDataParallel(make().to("cuda"), device_ids=[0])
        with model.no_sync():
            assert not model.require_backward_grad_sync
        return model

    with lv.record(on="a100") as recording:
        one_rank(backend, **({"device_id": torch.device("cuda", 0)} if backend == "nccl" else {}))
        assert (distributed.get_backend(), distributed.is_nccl_available()) == (backend, True)
        seen = train("cuda", wrapped, batches=batches)
        given = torch.tensor([1.0, 2.0], device="cuda")
        distributed.all_reduce(given)
        distributed.barrier()
        assert given.is_cuda and given.tolist() == [1.0, 2.0]
    assert same(seen, train("cpu", make))
    assert not recording.hazards
    assert any("DistributedDataParallel" in note for note in recording.timeline.context.notes)


@pytest.mark.parametrize(
    ("world", "asked", "told"),
    [(None, "nccl", "nccl"), ("gloo", "nccl", "nccl"), ("nccl", None, "nccl"), ("gloo", None, "gloo")],
)
def test_another_group_has_the_backend_that_it_asks_for(world, asked, told, one_rank):
    with lv.record(on="a100"):
        one_rank(world)
        group = distributed.new_group([0], backend=asked)
        mesh = distributed.device_mesh.init_device_mesh("cuda", (1,))
        given = torch.tensor([1.0, 2.0], device="cuda")
        distributed.all_reduce(given, group=group)
        assert (distributed.get_backend(group), given.tolist(), mesh.size()) == (told, [1.0, 2.0], 1)


@pytest.mark.parametrize(
    ("world", "asked", "takes"),
    [("nccl", "gloo", True), ("gloo", "nccl", False), ("NCCL", None, False), (None, None, True), ("gloo", None, True)],
)
def test_a_group_takes_tensors_of_the_cpu_as_its_own_backend_does(world, asked, takes, one_rank):
    refused = pytest.raises(RuntimeError, match="No backend type associated with device type cpu")
    with lv.record(on="a100"):
        one_rank(world)
        group = distributed.new_group([0], backend=asked)
        with nullcontext() if takes else refused:
            distributed.all_reduce(torch.ones(2), group=group)


def test_more_ranks_are_refused(one_rank, monkeypatch):
    with lv.record(on="a100"):
        with pytest.raises(NotModelledError, match="with 2 ranks"):
            one_rank("nccl", 2)
        monkeypatch.setenv("WORLD_SIZE", "4")
        with pytest.raises(NotModelledError, match="with 4 ranks"):
            distributed.init_process_group("gloo")
        one_rank("gloo")
        monkeypatch.setattr(distributed, "get_world_size", lambda group=None: 3)
        with pytest.raises(NotModelledError, match="with 3 ranks"):
            DistributedDataParallel(torch.nn.Linear(2, 2).cuda())


SPAWNS = """
import torch, torch.multiprocessing, loaderviz as lv

def work(rank):
    try:
        torch.ones(2, device="cuda")
    except NotImplementedError as error:
        print(error)

if __name__ == "__main__":
    with lv.record(on="a100"):
        torch.multiprocessing.spawn(work, nprocs=1)
"""


@pytest.mark.slow
def test_cuda_in_a_spawned_process_is_refused_by_name(tmp_path):
    script = tmp_path / "spawns.py"
    script.write_text(SPAWNS)
    assert python(script).stdout.startswith(
        "CUDA in a spawned process: the emulated GPU is in the process that is recorded"
    )
