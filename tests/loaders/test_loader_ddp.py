"""Two real processes with gloo: together they see the data set, and their model stays the same."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from loaderviz.loaders import ResidentLoader

SAMPLES, WORLD = 37, 2


def train(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=WORLD)
    try:
        data = torch.arange(SAMPLES, dtype=torch.float32)
        loader = ResidentLoader(data, 5, rank=rank, world_size=WORLD, seed=2, device="cpu")
        weight, seen = torch.zeros(1), []
        for batch in loader:
            mean = batch.mean().reshape(1)
            dist.all_reduce(mean)  # would hang if one rank had one batch more
            weight += mean
            seen.append(batch)
        torch.save({"seen": torch.cat(seen), "weight": weight}, f"{folder}/rank{rank}.pt")
    finally:
        dist.destroy_process_group()


def test_two_processes_share_an_epoch(tmp_path):
    mp.spawn(train, args=(str(tmp_path),), nprocs=WORLD)
    ranks = [torch.load(tmp_path / f"rank{rank}.pt", weights_only=True) for rank in range(WORLD)]
    assert len(ranks[0]["seen"]) == len(ranks[1]["seen"]) == 19
    union = torch.cat([rank["seen"] for rank in ranks]).long()
    counts = torch.bincount(union, minlength=SAMPLES)
    assert counts.min() == 1 and counts.sum() == 38, "every sample, and one twice to make the lengths equal"
    assert torch.equal(ranks[0]["weight"], ranks[1]["weight"])
