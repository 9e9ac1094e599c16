"""Saving and resuming: at whatever batch, the rest is the rest of the uninterrupted run."""

import io

import pytest
import torch
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

from loaderviz.loaders import BlockingLoader, PinnedLoader, PrefetchLoader, ResidentLoader

from .conftest import Source

DATA = torch.arange(23)
BATCHES = 6  # of 4 samples, the last of 3


class Counting:
    """A source that keeps its own place, as stateful data loaders do; resumes from it without replay."""

    def __init__(self):
        self.position = self.started_at = 0

    def __iter__(self):
        self.started_at = self.position
        while self.position < BATCHES:
            self.position += 1
            yield DATA[4 * self.position - 4 : 4 * self.position]
        self.position = 0

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]


def own_generator():
    return DataLoader(TensorDataset(DATA), 4, shuffle=True, generator=torch.Generator().manual_seed(3))


SOURCES = {
    "list": lambda: [(DATA[i : i + 4],) for i in range(0, 23, 4)],
    "shuffling DataLoader": lambda: DataLoader(TensorDataset(DATA), 4, shuffle=True),
    "shuffling DataLoader with its own generator": own_generator,
    "sampler with its own generator": lambda: DataLoader(
        TensorDataset(DATA), 4, sampler=RandomSampler(DATA, generator=torch.Generator().manual_seed(3))
    ),
    "source with a state": Counting,
    "resident loader": lambda: ResidentLoader((DATA,), 4, seed=5, device="cpu"),
}
LOADERS = {
    "blocking": lambda source: BlockingLoader(source, "cpu"),
    "pinned": lambda source: PinnedLoader(source, "cpu"),
    "prefetch-1": lambda source: PrefetchLoader(source, "cpu", depth=1),
    "prefetch-3": lambda source: PrefetchLoader(source, "cpu", depth=3),
    "prefetch-20": lambda source: PrefetchLoader(source, "cpu", depth=20),
}


def values(batch):
    return (batch[0] if isinstance(batch, (tuple, list)) else batch).tolist()


def train(loader, epochs):
    """All batches of some epochs; draws from the default generator at each step, as dropout does."""
    seen = []
    for _ in range(epochs):
        for batch in loader:
            torch.rand(3)
            seen.append(values(batch))
    return seen


def resumed(make_source, make_loader, state):
    """A loader of a new process, which has another history of random numbers; the state went through a file."""
    torch.save(state, file := io.BytesIO())
    file.seek(0)
    random = torch.get_rng_state()
    torch.manual_seed(77)
    torch.rand(5)
    loader = make_loader(make_source())
    loader.load_state_dict(torch.load(file, weights_only=True))
    torch.set_rng_state(random)  # the training script's own checkpoint of them
    return loader


def train_until(loader, stop, between_epochs):
    """Train for `stop` batches; return them and the state, saved after the last one or before the next epoch."""
    seen = []
    while True:
        if between_epochs and len(seen) == stop:
            return seen, loader.state_dict()
        for batch in loader:
            torch.rand(3)
            seen.append(values(batch))
            if not between_epochs and len(seen) == stop:
                return seen, loader.state_dict()


STOPS = [(stop, False) for stop in range(1, 2 * BATCHES + 2)] + [(epoch * BATCHES, True) for epoch in range(3)]


@pytest.mark.parametrize("make_loader", LOADERS.values(), ids=LOADERS)
@pytest.mark.parametrize("make_source", SOURCES.values(), ids=SOURCES)
def test_resuming_at_any_batch_equals_the_uninterrupted_run(make_source, make_loader):
    torch.manual_seed(1)
    expected = train(make_loader(make_source()), 3)
    assert len(expected) == 3 * BATCHES
    for stop, between_epochs in STOPS:
        torch.manual_seed(1)
        seen, state = train_until(make_loader(make_source()), stop, between_epochs)
        loader = resumed(make_source, make_loader, state)
        assert seen + train(loader, 3 - state["epoch"]) == expected, (stop, between_epochs)
        assert (loader.epoch, loader.batches_handed_out) == (3, 0)


def test_a_resumed_run_can_be_saved_and_resumed_again():
    make = SOURCES["shuffling DataLoader"]
    torch.manual_seed(1)
    expected = train(PrefetchLoader(make(), "cpu"), 2)
    torch.manual_seed(1)
    loader, seen = PrefetchLoader(make(), "cpu"), []
    for stop, between_epochs in ((BATCHES, True), (2, False), (3, False)):
        got, state = train_until(loader, stop, between_epochs)
        seen += got
        loader = resumed(make, lambda source: PrefetchLoader(source, "cpu"), state)
    assert seen + train(loader, 1) == expected


def test_the_state_of_a_source_is_the_one_after_the_batch_handed_out():
    source = Counting()
    loader = PrefetchLoader(source, "cpu", depth=3)
    running = iter(loader)
    next(running)
    assert (source.position, loader.state_dict()["source"]) == (4, {"position": 1})
    again = Counting()
    other = PrefetchLoader(again, "cpu", depth=3)
    other.load_state_dict(loader.state_dict())
    next(iter(other))
    assert again.started_at == 1, "continued from its own state, not replayed"


def test_a_state_loaded_but_not_used_is_given_back_unchanged():
    loader = BlockingLoader(Source(5), "cpu")
    running = iter(loader)
    next(running), next(running)
    other = BlockingLoader(Source(5), "cpu")
    other.load_state_dict(loader.state_dict())
    assert other.state_dict()["batches"] == 2 and other.state_dict()["epoch"] == 0
    assert len(list(other)) == 3
    assert (other.epoch, other.batches_handed_out) == (1, 0)


def test_a_break_ends_the_epoch_for_the_next_iteration():
    loader = ResidentLoader(DATA, 4, device="cpu")
    first = values(next(iter(loader)))
    assert loader.epoch == 0
    assert values(next(iter(loader))) != first
    assert loader.epoch == 1


def test_loading_cancels_a_running_iteration():
    loader = BlockingLoader(Source(5), "cpu")
    running = iter(loader)
    next(running)
    loader.load_state_dict(loader.state_dict())
    with pytest.raises(RuntimeError, match="reloaded"):
        next(running)


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"batches": -1}, ValueError, "'batches' in the state must be at least 0, got -1"),
        ({"batches": "two"}, TypeError, "got 'two'"),
        ({"batches": None}, TypeError, "got None"),
        ({"source": {"position": 1}}, ValueError, "a Source, keeps no state of its own, but the state has one"),
    ],
)
def test_a_bad_state_is_named(change, error, match):
    loader = BlockingLoader(Source(5), "cpu")
    with pytest.raises(error, match=match):
        loader.load_state_dict({**loader.state_dict(), **change})


def test_a_state_without_its_keys_and_a_source_without_its_generator_are_named():
    with pytest.raises(ValueError, match="no 'epoch'"):
        BlockingLoader(Source(5), "cpu").load_state_dict({"batch": 3})
    other = BlockingLoader(SOURCES["list"](), "cpu")
    other.load_state_dict(BlockingLoader(own_generator(), "cpu").state_dict())
    with pytest.raises(ValueError, match=r"1 random generator\(s\).*has 0"):
        next(iter(other))


def test_a_source_shorter_than_the_state_says_is_an_error():
    loader = PrefetchLoader(Source(2), "cpu")
    loader.load_state_dict({"epoch": 0, "batches": 3, "random": None, "source": None})
    with pytest.raises(RuntimeError, match="saved after 3 batches, but the source ended after 2"):
        next(iter(loader))
