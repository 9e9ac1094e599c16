"""Data parallel training where there is one GPU: `DataParallel`, and process groups of one rank.

NCCL is in no CPU build of torch, and wants a real GPU; for one rank gloo stands in, and says that it is "nccl"."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch
from torch.nn.parallel import _functions
from torch.utils._pytree import tree_leaves

from loaderviz.emulator.torch import internals
from loaderviz.emulator.torch.functions import names
from loaderviz.emulator.torch.patches import Patches
from loaderviz.emulator.torch.session import DEVICE, Session, wanted_device
from loaderviz.emulator.torch.tensors import is_on_device
from loaderviz.errors import NotModelledError
from loaderviz.imports import bound_arguments, held


def install(session: Session, patches: Patches) -> None:
    """Let each be what it is for one GPU."""
    _install_data_parallel(patches)
    if torch.distributed.is_available():
        _install_groups(session, patches)
        _install_collectives(session, patches)
        _install_reducer(session, patches)


def _install_data_parallel(patches: Patches) -> None:
    """`DataParallel` over the one GPU there is: its inputs are copied there, and the module is called."""

    def scatter(tensor: torch.Tensor, devices: Any, sizes: Any, dim: int, streams: Any) -> tuple[torch.Tensor, ...]:
        with torch.cuda.stream(streams[0] if streams else None):
            return (tensor.to(DEVICE, non_blocking=True),)

    def broadcast_out(tensor: torch.Tensor, out: Any) -> Any:
        return [each.copy_(tensor) for each in out]

    answers = {
        "_scatter": scatter,
        "_scatter_out": lambda tensor, out, dim, streams: broadcast_out(tensor, out),
        "_gather": lambda tensors, dim, index: tensors[0].to("cpu" if index == -1 else DEVICE),
        "_gather_out": lambda tensors, out, dim: out.copy_(tensors[0]),
        "_broadcast": lambda tensor, devices: (tensor.to(DEVICE),),
        "_broadcast_out": broadcast_out,
        "_broadcast_coalesced": lambda tensors, devices, size: [[tensor.to(DEVICE) for tensor in tensors]],
    }
    patches.set_all(internals.C, answers)
    patches.set(_functions, "_streams", None)  # the copy stream that it keeps for each GPU


COLLECTIVES = names("""
    all_reduce all_gather all_gather_into_tensor all_to_all all_to_all_single broadcast gather reduce reduce_scatter
    reduce_scatter_tensor scatter send recv
""")


class Done:
    """The work of collectives over one rank, which is over when it begins."""

    def wait(self, *_: Any) -> bool:
        """There is nothing to wait for."""
        return True

    is_completed = is_success = wait


def _one_rank(ranks: int) -> None:
    if ranks > 1:
        raise NotModelledError(
            f"torch.distributed with {ranks} ranks: the emulated machine has one GPU, so one rank; start it with "
            "torchrun --nproc-per-node 1, or record on real GPUs"
        )


def _install_groups(session: Session, patches: Patches) -> None:
    """Process groups of one rank, by gloo, also for who asks for NCCL. More ranks are refused."""
    distributed, inner = torch.distributed, torch.distributed.distributed_c10d

    def named(group: Any, backend: str) -> None:
        world, name = inner._world, inner.Backend(backend)
        world.pg_map[group] = name, world.pg_map[group][1]
        world.pg_backend_config[group] = world.pg_backend_config[group].replace("cuda:gloo", "cuda:nccl")

    @patches.around(distributed, "init_process_group")
    def init_process_group(begin: Any, *args: Any, **kwargs: Any) -> None:
        options = bound_arguments(begin, *args, **kwargs).arguments
        ranks = options.get("world_size", -1)
        _one_rank(ranks if ranks > 0 else int(os.environ.get("WORLD_SIZE", 1)))
        wanted, device = options.get("backend"), options.get("device_id")
        session.only_nccl = []
        nccl = "nccl" in (wanted or "nccl").lower()
        if nccl:
            options |= {"backend": "gloo", "device_id": None}
        begin(**options)
        if nccl:
            named(group := inner._get_default_group(), "nccl")
            session.only_nccl += [group] * ((wanted or "").lower() == "nccl")
            group.bound_device_id = None if device is None else wanted_device(device)

    @patches.around(inner, "_new_process_group_helper")
    def group_of(make: Any, size: int, rank: int, ranks: Any, backend: str, *args: Any, **kwargs: Any) -> Any:
        of_both = session.only_nccl == [] and distributed.is_initialized() and distributed.get_backend() == "nccl"
        made = make(size, rank, ranks, inner.Backend(backend.replace("nccl", "gloo")), *args, **kwargs)
        if "nccl" in backend:
            named(made[0], backend)
            session.only_nccl += [made[0]] * (backend == "nccl" and not of_both)
        return made

    patches.set(inner, "default_pg_nccl_timeout", timedelta(minutes=10))  # torch's own, where it has NCCL
    patches.function(distributed, "is_nccl_available", lambda: True)


def _install_collectives(session: Session, patches: Patches) -> None:
    """What moves data between ranks; a group for NCCL alone has none for tensors of the CPU."""
    distributed = torch.distributed

    def only_nccl(group: Any) -> bool:
        return any(each is (group or distributed.group.WORLD) for each in session.only_nccl)

    def only_of_device(collective: Any, *args: Any, **kwargs: Any) -> Any:
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        group = bound_arguments(collective, *args, **kwargs).arguments.get("group")
        if only_nccl(group) and not all(map(is_on_device, tensors)):
            raise RuntimeError(f"{collective.__name__}: No backend type associated with device type cpu")
        return collective(*args, **kwargs)

    patches.around(distributed, *COLLECTIVES)(only_of_device)

    @patches.around(distributed.distributed_c10d, "_get_object_coll_device")
    def device_of_objects(device_of: Any, group: Any = None) -> str:
        return "cuda" if only_nccl(group) else device_of(group)

    patches.set(distributed.ProcessGroup, "_start_coalescing", lambda *_: None)
    patches.set(distributed.ProcessGroup, "_end_coalescing", lambda *_: Done())


def _install_reducer(session: Session, patches: Patches) -> None:
    """`DistributedDataParallel` over one rank: torch's own code reduces, over that one."""
    parallel = torch.nn.parallel.DistributedDataParallel

    @patches.around(parallel, "__init__")
    def init(make: Any, self: Any, module: Any, *args: Any, **kwargs: Any) -> None:
        if any(map(is_on_device, module.parameters())):
            _one_rank(torch.distributed.get_world_size(kwargs.get("process_group")))
            session.note("DistributedDataParallel over one rank: what reduces the gradients costs as any kernel does")
        make(self, module, *args, **kwargs)

    @patches.around(parallel, "_ddp_init_helper", "_pre_forward")
    def with_parameters(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        """Its buckets are made in C++, of no tensor: they belong where the parameters are."""
        with held(session, "call", (tuple(self.module.parameters()), {})):
            return original(self, *args, **kwargs)
