"""Nested batches: containers keep their type, leaves that are no tensors stay the same objects."""

import dataclasses
from collections import OrderedDict, UserDict, UserList, defaultdict, deque, namedtuple
from types import MappingProxyType

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

from loaderviz.loaders import BlockingLoader, PinnedLoader, PrefetchLoader
from loaderviz.loaders.nested import leaves, map_nested, samples_in, to_device

Pair = namedtuple("Pair", "image label")


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    image: torch.Tensor
    name: str
    cached: torch.Tensor = dataclasses.field(init=False)

    def __post_init__(self):
        object.__setattr__(self, "cached", self.image * 2)


class Graph:
    """Moves itself, and says where it was asked to go."""

    def __init__(self, nodes):
        self.nodes = nodes

    def to(self, device):
        return Graph(self.nodes.to(device) + 1)

    def __len__(self):
        return len(self.nodes)


def plus_one(tensor):
    return tensor + 1


@pytest.mark.parametrize(
    "make",
    [
        lambda t: t,
        lambda t: (t, "x"),
        lambda t: [t, None],
        lambda t: Pair(t, 3),
        lambda t: {"a": t, "b": [1.5, (t,)]},
        lambda t: OrderedDict(a=t),
        lambda t: UserDict(a=t),
        lambda t: UserList([t]),
        lambda t: deque([t]),
        lambda t: MappingProxyType({"a": t}),
        lambda t: defaultdict(list, a=t),
    ],
)
def test_containers_keep_their_type_and_each_tensor_is_replaced_once(make):
    old = make(torch.tensor([1.0]))
    new = map_nested(old, plus_one)
    assert type(new) is type(old)
    assert [leaf.item() for leaf in leaves(new)] == [2.0] * len(list(leaves(old)))
    assert all(leaf.item() == 1.0 for leaf in leaves(old)), "the old batch must not change"
    assert not isinstance(new, defaultdict) or new["missing"] == []


def test_a_frozen_dataclass_is_rebuilt_with_its_init_false_fields_and_without_post_init():
    old = Sample(torch.ones(2), "cat")
    new = map_nested(old, plus_one)
    assert type(new) is Sample and new.name == "cat"
    assert new.image.tolist() == [2, 2]
    assert new.cached.tolist() == [3, 3], "the field's own tensor plus one, not twice the new image"
    assert old.cached.tolist() == [2, 2]


def test_other_leaves_pass_through_as_the_same_object():
    things = [object(), "text", b"bytes", 3, 2.5, None, {1, 2}, range(3), Sample, bytearray(b"ab")]
    assert all(a is b for a, b in zip(things, map_nested(things, plus_one), strict=True))


def test_an_object_with_to_moves_itself_even_if_it_takes_no_non_blocking():
    for non_blocking in (False, True):
        moved = to_device({"g": Graph(torch.zeros(2))}, torch.device("cpu"), non_blocking)["g"]
        assert type(moved) is Graph and moved.nodes.tolist() == [1, 1]


def test_a_packed_sequence_stays_one():
    packed = pack_sequence([torch.ones(3), torch.ones(2)])
    assert to_device(packed, torch.device("cpu")).batch_sizes.tolist() == [2, 2, 1]


def test_samples_in_counts_the_first_tensor_it_finds():
    assert samples_in({"name": "x", "images": torch.zeros(5, 2), "labels": torch.zeros(3)}) == 5
    assert samples_in(torch.tensor(1.0)) == 1
    assert samples_in([Graph(torch.zeros(4))]) == 4
    assert samples_in("nothing") == 0


@pytest.mark.parametrize("loader_type", [BlockingLoader, PinnedLoader, PrefetchLoader])
def test_every_copying_loader_moves_nested_batches(loader_type, device):
    source = [
        {"pair": Pair(torch.full((2,), k), f"name{k}"), "more": [Sample(torch.ones(1) * k, "s")]} for k in range(4)
    ]
    count = 0
    for k, batch in enumerate(loader_type(source, device)):
        assert batch["pair"].image.device.type == device.type
        assert batch["pair"].image.tolist() == [k, k] and batch["pair"].label == f"name{k}"
        assert batch["more"][0].cached.tolist() == [2 * k]
        count += 1
    assert count == 4
