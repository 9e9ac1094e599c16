"""Several DataLoaders drawn at once, and DataLoaders inside DataLoaders: what is expected of their recordings."""

import itertools
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from itertools import chain

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

import loaderviz as lv
from loaderviz.timeline import Kind

CPU, EMULATED = {"on": "cpu"}, {"on": "a100", "host": "workstation"}
both = pytest.mark.parametrize("where", [CPU, EMULATED], ids=["cpu", "a100"])


class Rows(Dataset):
    """`count` rows of `width` floats; a row may cost and wait [ms], read a file, fail, or be made by `make(i)`."""

    def __init__(self, count, width=1, ms=0, waits=0, path=None, fails=None, make=None):
        self.count, self.costs, self.path, self.fails = count, (ms * 1e-3, waits * 1e-3), path, fails
        self.make = make or (lambda i: torch.full((width,), float(i)))

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        with lv.costs(self.costs[0], waits=self.costs[1]) if any(self.costs) else nullcontext():
            pass
        if i == self.fails:
            raise ValueError(f"row {i} is broken")
        if self.path:
            self.path.read_bytes()
        return self.make(i)


@dataclass
class Stream(IterableDataset):
    source: object  # a function that gives something to iterate over

    def __iter__(self):
        return iter(self.source())


def run(program, where):
    """Run `program(log)` plain and recorded, hold that both log equal batches; return timeline and log."""
    plain, log = [], []
    for batches, block in ((plain, nullcontext()), (log, recording := lv.record(**where))):
        with block:
            torch.manual_seed(3)
            program(batches)
    assert [b.tolist() for b in plain] == [b.tolist() for b in log] and plain
    lv.advise(recording.timeline.self_check())
    return recording.timeline, log


def fetches(timeline, role="main"):
    return [row for row in timeline.rows(Kind.FETCH) if row.lane.role == role]


def held(timeline, log):
    """Hold that main-lane fetches (but for that of a stream's end) and steps are one for each batch, in order."""
    assert [row.nbytes for row in fetches(timeline) if row.nbytes >= 0] == [batch.nbytes for batch in log]
    assert sum(row.name.startswith("batch ") for row in timeline.rows(Kind.RANGE)) == len(log)


def logged(loader, log):
    for batch in loader:
        log.append(batch)
        yield batch


def in_turn(*many):
    list(itertools.zip_longest(*many))


def cat(loader, but=()):
    found = []
    with suppress(but):
        found.extend(loader)
    return torch.cat(found)


def inner(**more):
    return DataLoader(Rows(4, 6, **more), 2)


def kept(**more):
    endless = chain.from_iterable(itertools.repeat(inner(**more)))  # one loader goes on from row to row
    return lambda i: next(endless)


WAYS = {"zip": lambda *many: list(zip(*many, strict=False)), "chain": lambda *many: list(chain(*many)),
        "longest": in_turn, "product": lambda *many: list(itertools.product(*many))}  # fmt: skip
LOADERS = {
    "sizes": lambda: [DataLoader(Rows(9, 10), 2), DataLoader(Rows(12, 3), 3)],
    "same loader": lambda: [loader := DataLoader(Rows(6, 5), 4), loader],
    "collates": lambda: [DataLoader(Rows(8, 4), 2, collate_fn=lambda r: torch.stack(r + r)), DataLoader(Rows(8, 4), 2)],
    "three": lambda: [DataLoader(Rows(7, 2), 2, shuffle=True), inner(), DataLoader(Rows(3, 9), batch_size=None)],
    "stream": lambda: [DataLoader(Stream(lambda: map(Rows(5, 7).__getitem__, range(5))), 2), inner()],
}
NESTED = {
    "getitem": lambda: DataLoader(Rows(5, make=lambda i: cat(inner()) + i), 2),
    "shuffled": lambda: DataLoader(Rows(5, make=lambda i: cat(DataLoader(Rows(4), 2, shuffle=True))), 2, shuffle=True),
    "kept": lambda: DataLoader(Rows(5, make=kept()), 2),
    "forgiving": lambda: DataLoader(Rows(5, make=lambda i: cat(inner(fails=2), ValueError)), 2),
    "zip": lambda: DataLoader(Rows(5, make=lambda i: torch.cat(list(chain(*zip(inner(), inner(), strict=True))))), 2),
    "collate": lambda: DataLoader(Rows(5, 6), 2, collate_fn=lambda rows: torch.cat([*rows, *cat(inner())])),
    "deep": lambda: DataLoader(Rows(5, make=lambda i: cat(DataLoader(Rows(2, make=lambda j: cat(inner())), 1))), 2),
    "not batched": lambda: DataLoader(Rows(3, make=lambda i: cat(inner()) + i), batch_size=None),
    "stream": lambda: DataLoader(Stream(lambda: chain.from_iterable(inner())), 3),
    "worker": lambda: DataLoader(Rows(2, make=lambda i: cat(DataLoader(Rows(4, 6), 2, num_workers=1))), 1),
}


@both
@pytest.mark.parametrize("loaders", LOADERS.values(), ids=LOADERS)
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_each_fetch_has_the_bytes_of_its_own_loader(way, loaders, where):
    """Loaders drawn at once: one fetch and one step for each batch, in the order in which they were drawn."""
    held(*run(lambda log: way(*(logged(each, log) for each in loaders())), where))


@both
@pytest.mark.parametrize("make", [None, lambda i: cat(inner())], ids=["plain", "nested"])
def test_one_loader_with_a_worker_and_one_without(make, where):
    """Fetches of the loader without workers are in the main lane, those of the other in the worker's."""
    pair = [DataLoader(Rows(6, 10, make=make), 2, num_workers=1), DataLoader(Rows(9, 7), 3)]
    timeline, log = run(lambda log: in_turn(*(logged(each, log) for each in pair)), where)
    assert [row.nbytes for row in fetches(timeline)] == [3 * 7 * 4] * 3
    assert [row.nbytes for row in fetches(timeline, "worker")] == [2 * (24 if make else 10) * 4] * 3
    assert timeline.context.samples == 15 and len(log) == 6


@both
@pytest.mark.parametrize("deep", [False, True], ids=["own", "inside"])
def test_an_error_comes_through_and_the_loader_beside_goes_on(deep, where):
    """The same error as without a recording; whole batches keep their bytes, before it and after it."""
    make, texts = (lambda i: cat(inner(fails=1 if i == 2 else None))) if deep else None, []

    def program(log):
        bad, good = iter(DataLoader(Rows(8, 4, ms=5, make=make, fails=None if deep else 2), 2)), iter(inner())
        log.extend([next(bad), next(good)])
        with pytest.raises(ValueError, match="is broken") as caught:
            next(bad)
        texts.append((type(caught.value), caught.value.args))
        log.extend([*good, *bad])

    timeline, log = run(program, where)
    assert texts[0] == texts[1] and len(log) == 5
    assert where is CPU or timeline.duration >= 7 * 5_000_000  # the row that fails has cost its time, too
    held(timeline, log)


def test_a_fetch_is_alike_alone_and_beside_others(tmp_path):
    """Emulated: same duration, bytes, cause, line and waiting, whether loaders run alone or in turn."""
    (path := tmp_path / "file").write_bytes(bytes(2_000_000))
    kinds = [{"path": path}, {"ms": 5}, {"waits": 7}, {"make": lambda i: cat(inner(ms=1))}]

    def looks(*makes):
        timeline, _ = run(lambda log: in_turn(*(logged(inner(**more), log) for more in makes)), EMULATED)
        return [(r.duration, r.nbytes, r.cause.name, r.source, r.waited) for r in fetches(timeline)]

    alone = [looks(each) for each in kinds]
    assert looks(*kinds) == list(chain(*zip(*alone, strict=True)))
    assert [{look[2] for look in each} for each in alone] == [{"READ"}, {"NONE"}, {"NONE"}, {"NONE"}]


@both
@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside"])
@pytest.mark.parametrize("make", NESTED.values(), ids=NESTED)
def test_a_loader_inside_counts_for_the_outer_one(make, beside, where):
    """As many fetches and steps as outer batches, with the bytes of the outer batches; also beside another loader."""
    held(*run(lambda log: in_turn(*(logged(each(), log) for each in [make, inner][: 1 + beside])), where))


COSTLY = {  # makes a loader that pays `c` inside; how many times a batch of it pays
    "flat": (lambda c: DataLoader(Rows(6, 6, **c), 2), 2),
    "getitem": (lambda c: DataLoader(Rows(6, make=lambda i: cat(inner(**c))), 2), 8),
    "collate": (lambda c: DataLoader(Rows(6, 6), 2, collate_fn=lambda rows: cat(inner(**c))), 4),
    "forgiving": (lambda c: DataLoader(Rows(6, make=lambda i: cat(inner(fails=2, **c), ValueError)), 2), 6),
    "deep": (lambda c: DataLoader(Rows(6, 6), 2, collate_fn=lambda r: cat(DataLoader(Rows(3, make=kept(**c)), 1))), 6),
}


@pytest.mark.parametrize(("make", "times"), COSTLY.values(), ids=COSTLY)
@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside"])
def test_the_outer_fetch_has_all_the_time(make, times, beside):
    """Emulated: each fetch grows by exactly what is declared inside, and its waiting by what waits."""
    free, dear = (
        fetches(run(lambda log, c=c: in_turn(*(logged(e, log) for e in [make(c), inner()][: 1 + beside])), EMULATED)[0])
        for c in ({}, {"ms": 5, "waits": 2})
    )
    grown = [(b.duration - a.duration, b.waited - a.waited) for a, b in zip(free, dear, strict=True)]
    assert grown == [*[(times * 7_000_000, times * 2_000_000), (0, 0)][: 1 + beside] * 3][: 3 + 2 * beside]
