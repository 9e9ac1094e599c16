"""Replaying a source that cannot save its own place: start it with the same random numbers, skip what was used.

A shuffling `DataLoader` draws its order when an epoch begins, from its `generator`, or else from torch's default
CPU generator. Counting batches is therefore not enough to resume it. `random_state` saves those generators at the
start of the epoch, and `replaying` puts them back while the source starts again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch


def generators_of(source: Any) -> list[torch.Generator]:
    """Return the random generators that `source` and its samplers own, each once."""
    sampler, batch_sampler = getattr(source, "sampler", None), getattr(source, "batch_sampler", None)
    owners = (source, sampler, batch_sampler, getattr(batch_sampler, "sampler", None))
    found = {id(g): g for o in owners if isinstance(g := getattr(o, "generator", None), torch.Generator)}
    return list(found.values())


def random_state(source: Any, with_default: bool) -> dict[str, Any]:
    """Return the states of the source's generators, and of torch's default CPU generator if `with_default`."""
    return {
        "default": torch.get_rng_state() if with_default else None,
        "generators": [generator.get_state() for generator in generators_of(source)],
    }


def completed(state: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return `state`, saved between two epochs, as the state of the epoch that begins now."""
    if state is None:
        return None
    return {**state, "default": torch.get_rng_state() if state["default"] is None else state["default"]}


@contextmanager
def replaying(source: Any, state: Mapping[str, Any] | None) -> Iterator[None]:
    """Put `state` in place while the source starts and skips; afterwards the default generator is as before.

    The source's own generators stay where the replay leaves them, since that is where they would have been.
    Raises ValueError if the source does not own as many generators as when the state was saved.
    """
    if state is None:
        yield
        return
    owned = generators_of(source)
    if len(owned) != len(state["generators"]):
        raise ValueError(
            f"the state was saved with {len(state['generators'])} random generator(s) in the source, this source "
            f"has {len(owned)}: build it the same way (`DataLoader(generator=...)`) before load_state_dict"
        )
    for generator, saved in zip(owned, state["generators"], strict=True):
        generator.set_state(saved)
    default = torch.get_rng_state()
    try:
        if state["default"] is not None:
            torch.set_rng_state(state["default"])
        yield
    finally:
        if state["default"] is not None:
            torch.set_rng_state(default)
