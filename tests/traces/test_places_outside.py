"""What a sceptical user tries on `loaderviz.read(path, executor, ranks)` and on `loaderviz.ranks`."""

import gzip
import io
import json
import os
import shutil
import tarfile
import tempfile
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import factory
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader
from trace_files import BASE, call, loop, note, op, straggling, trace, work, write

import loaderviz as lv
from loaderviz.analysis.ranks import rank_table
from loaderviz.traces import TraceError, workers


def packed(where, files, mode="w"):
    """A zip, or a tar archive written with `mode`, of (name, bytes)."""
    where.parent.mkdir(exist_ok=True)
    if where.suffix == ".zip":
        with zipfile.ZipFile(where, "w") as archive:
            for name, data in files:
                archive.writestr(name, data)
        return where
    with tarfile.open(where, mode) as archive:
        for name, data in files:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return where


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    straggling(folder, 2, count=3)
    return folder


@pytest.fixture
def files(run):
    return [(path.name, path.read_bytes()) for path in sorted(run.iterdir())]


pytestmark = [pytest.mark.usefixtures("no_leftovers"), pytest.mark.this_clock]


def late_of(table):
    return [(each.row.rank, each.cause, each.often) for each in table.late]


# Archives that are not named by a path of their own


def zips(files, at):
    return [packed(at / "zips" / f"{name}.zip", [(name, data)]) for name, data in files]


def nested(files, at):
    inner = packed(at / "archives" / "all.tar.gz", files, "w:gz")
    packed(at / "outer.zip", [("all.tar.gz", inner.read_bytes())])
    return at


def below(prefix, files):
    return [(prefix + name, data) for name, data in files]


GIVEN = {
    **{name: lambda files, at, name=name: packed(at / name, files, "w:gz" if "gz" in name else "w")
       for name in ("all.zip", "all.tar", "all.tgz", "all.gz", "all.json", "all")},
    **{where: lambda files, at, where=where: str(nested(files, at) / where)
       for where in ("archives", "archives/*.tar.gz", "archives/*", "outer.zip")},
    **{f"open, {mode}": lambda files, at, mode=mode: io.BytesIO(packed(at / "run.tar", files, mode).read_bytes())
       for mode in ("w", "w:gz")},
    **{f"of a folder, {kind}": lambda files, at, kind=kind: shutil.make_archive(at / "made", kind, at / "run")
       for kind in ("zip", "tar", "gztar")},
    **{f"below {on[:12]}, {name}": lambda files, at, name=name, on=on: packed(at / name, below(on, files))
       for on in ("../../../evil/", "/evil/", "ünï/日本 ", "a" * 200 + "/") for name in ("a.zip", "a.tar")},
    "beside a text": lambda files, at: packed(at / "a.zip", [*files, ("a/readme.txt", b"no trace")]),
    "a later member of the same name": lambda files, at: packed(at / "updated.tar", [*files, files[0]]),
    "a list of archives": zips,
    "a pattern of archives": lambda files, at: (zips(files, at), str(at / "zips" / "*.zip"))[1],
    "archives beside a file": lambda files, at: (
        zips(files[1:], at), (at / "zips" / files[0][0]).write_bytes(files[0][1]), at / "zips")[-1],
    "brackets in a folder's name": lambda files, at: (at / "run").rename(at / "lr[1]"),
    "the same as text": lambda files, at: str((at / "run").rename(at / "lr[1]")),
}  # fmt: skip


@pytest.mark.parametrize("how", GIVEN)
def test_the_traces_of_a_run_are_the_same_however_they_are_given(run, files, tmp_path, how):
    whole = lv.read(run)
    assert lv.read(GIVEN[how](files, tmp_path)) == whole
    assert not Path("/evil").exists()


def test_links_in_a_tar_archive_lead_nowhere_and_are_told(files, tmp_path):
    place = tmp_path / "links.tar"
    packed(place, files[:2])
    with tarfile.open(place, "a") as archive:
        for name, kind, to in (("2.json", tarfile.LNKTYPE, "0.json"), ("3.json", tarfile.SYMTYPE, "/etc/passwd")):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, to
            archive.addfile(member)
    timeline = lv.read(place)
    assert not any("root:" in note for note in timeline.context.notes)
    assert sum(lane.name.endswith("main") for lane in timeline.lanes) == 3  # tar writes a second name as a hard link


@pytest.mark.parametrize("name", ["e.zip", "e.tar"])
def test_an_empty_archive_is_said_to_be_one(tmp_path, name):
    place = packed(tmp_path / name, [])
    with pytest.raises(TraceError) as told:
        lv.read(place)
    assert "archive" in str(told.value).replace(str(place), "")


def test_an_archive_in_a_gzip_file_is_not_called_damaged(files, tmp_path):
    place = tmp_path / "all.zip.gz"
    place.write_bytes(gzip.compress(packed(tmp_path / "all.zip", files).read_bytes()))
    with pytest.raises(TraceError) as told:
        lv.read(place)
    assert "damaged" not in str(told.value).replace(str(place), "")


@pytest.mark.parametrize("name", ["a.zip", "a.tar", "a.tgz"])
def test_a_damaged_archive_is_a_trace_error(files, run, tmp_path, name):
    place = packed(tmp_path / name, files, "w:gz" if name == "a.tgz" else "w")
    whole, read = place.read_bytes(), lv.read(run)
    for size in range(1, len(whole), max(1, len(whole) // 40)):
        place.write_bytes(whole[:size])
        with suppress(TraceError):
            assert lv.read(place) == read


def test_a_tar_archive_that_ends_after_a_member_lacks_its_end(files, tmp_path):
    place = packed(tmp_path / "cut.tar", files)
    with tarfile.open(place) as archive:
        last = archive.getmembers()[2].offset
    place.write_bytes(place.read_bytes()[:last])
    with pytest.raises(TraceError, match="it lacks its end"):
        lv.read(place)


# Open files


class OnlyRead:
    def __init__(self, data, most=1 << 30):
        self.file, self.most = io.BytesIO(data), most

    def read(self, size=-1):
        return self.file.read(min(self.most, size) if size >= 0 else self.most)


def test_open_files_of_all_kinds_are_the_file(run, files, tmp_path):
    whole, data = lv.read(run / "0.json"), files[0][1]
    with zipfile.ZipFile(packed(tmp_path / "a.zip", files)) as archive, archive.open("0.json") as member:
        assert lv.read(member) == whole
    assert lv.read(io.BytesIO(data)) == lv.read(OnlyRead(data)) == lv.read(OnlyRead(data, most=100)) == whole
    assert lv.read(io.BytesIO(gzip.compress(data))) == whole
    assert lv.read(gzip.GzipFile(fileobj=io.BytesIO(gzip.compress(data)))) == whole
    opened = [io.BytesIO(each) for _, each in files]
    assert lv.read(opened) == lv.read(run)
    assert not any(each.closed for each in opened)


class Views(OnlyRead):
    def read(self, size=-1):
        return memoryview(super().read(size))


def test_bytes_of_another_type_are_no_text(run, files):
    assert lv.read(Views(files[0][1])) == lv.read(run / "0.json")


def test_a_file_that_was_read_to_its_end_is_told_so(files):
    file = io.BytesIO(files[0][1])
    lv.read(file)
    with pytest.raises(TraceError, match=r"its end|seek|position") as told:
        lv.read(file)
    assert "/loaderviz-" not in str(told.value)  # a temporary file that nobody can look at any more


def test_a_path_in_bytes_is_refused_as_bytes(run):
    with pytest.raises(TypeError, match="got bytes"):
        lv.read(os.fsencode(run))


# Folders and ranks


def rank_files(folder, told):
    """Traces that are named (name, rank)."""
    for name, rank in told:
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        write(place.parent, trace(*loop(), distributedInfo={"rank": rank}), place.name)
    return folder


def test_the_rank_that_a_file_tells_counts_and_not_its_name_and_none_is_passed_over(tmp_path):
    names = [(f"node{rank // 2}/rank{rank % 2}.json", rank) for rank in range(4)]
    folder = rank_files(tmp_path / "nodes", names)
    assert len({lane.device for lane in lv.read(folder, ranks=[2, 3]).lanes if lane.device is not None}) == 2
    assert lv.read(folder, ranks=[0, 3]) == lv.read([folder / "node0/rank0.json", folder / "node1/rank1.json"])


@pytest.mark.parametrize(
    "given",
    [{0, 2}, (0, 2), range(0, 3, 2), [2, 0, 0], iter((0, 2)), np.array([0, 2]), [np.int64(0), np.int32(2)]],
)
def test_ranks_are_any_collection_of_numbers(run, given):
    assert lv.read(run, ranks=given) == lv.read([run / "0.json", run / "2.json"])


def test_links_and_odd_things_in_a_folder(run):
    whole = lv.read(run)
    (run / "self").symlink_to(run)
    (run / "dead.json").symlink_to("/nonexistent.json")
    os.mkfifo(run / "fifo.json")
    (run / "folder.json").mkdir()
    assert lv.read(run).lanes == whole.lanes


# Executors


class Backwards:
    def map(self, function, things):
        return [function(each) for each in list(things)[::-1]][::-1]


@pytest.mark.parametrize("name", ["", "a.zip", "a.tar"])
def test_an_executor_changes_nothing(run, files, tmp_path, name):
    place = packed(tmp_path / name, files) if name else run
    with ThreadPoolExecutor(2) as pool:
        assert lv.read(place, executor=pool) == lv.read(place, executor=Backwards()) == lv.read(run)


# lv.ranks


def met(folder, recorded, late=(), longer=300):
    """Ranks in a run of steps of 1 ms; rank i records the steps in recorded[i], and the kernels of some are long."""
    for rank, steps in enumerate(recorded):
        events = []
        for step in steps:
            begin, number = BASE + 1_000 * step, 10 * step
            takes = 250 + 5 * rank + longer * (rank in late)
            events += [
                note(f"ProfilerStep#{step}", begin, 1_000),
                op("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", begin + 1, 50),
                call("cudaLaunchKernel", begin + 60, 3, number + 1),
                work("gemm", begin + 80, takes, number + 1, device=rank),
                call("cudaLaunchKernel", begin + 65, 3, number + 2),
                work(
                    "ncclDevKernel_AllReduce_Sum", begin + 85 + takes, 815 - takes, number + 2, stream=20, device=rank
                ),
            ]
        write(folder, trace(*events, distributedInfo={"rank": rank}), f"{rank}.json")
    return folder


EARLY = [range(1, 7), range(3, 7), range(3, 7), range(3, 7)]
LATER = [range(3, 7), range(5, 9), range(5, 9), range(5, 9)]
ENDED = [range(3, 7), range(3, 7), range(3, 7), range(3, 5)]


@pytest.mark.parametrize("recorded", [EARLY, LATER, ENDED])
def test_ranks_that_are_recorded_at_other_times_are_judged_alike(tmp_path, recorded):
    met(tmp_path, recorded, late=[1])
    table, whole = lv.ranks(tmp_path), rank_table(lv.read(tmp_path))
    assert late_of(table) == late_of(whole)
    assert str(table.lateness) == str(whole.lateness)
    assert "29" in str(table.lateness).split(" µs")[0].split()[-1]  # a step, as was planted


def test_a_rank_that_is_there_twice_is_no_other_rank(tmp_path):
    met(tmp_path, [range(3, 9)] * 4, late=[2])
    (tmp_path / "2b.json").write_text((tmp_path / "2.json").read_text())
    table = lv.ranks(tmp_path)
    assert [row.rank for row in table.rows] == [row.rank for row in rank_table(lv.read(tmp_path)).rows]
    assert "3" not in [each.row.rank for each in table.late]


def test_notes_of_an_archive_name_the_archive(files, tmp_path):
    place = packed(tmp_path / "run.zip", [*files, ("bad.json", json.dumps({"traceEvents": 3}).encode())])
    told = [note for note in lv.read(place).context.notes if "bad.json" in note]
    assert len(told) == 1 and tempfile.gettempdir() not in told[0]


# Advice on what a worker's memory does


def burn(seconds):
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def keeping(once=0, each=0):
    """Samples of 0.1 ms; the worker keeps `once` bytes at sample 200, and `each` bytes for each sample."""
    kept = []

    def sample(index):
        burn(1e-4)
        kept.append(bytearray(b"x" * (each + once * (index == 200))))
        return torch.ones(64)

    return factory.Samples(sample, 2_000)


def kinds_of(data, steps=40):
    model = torch.nn.Linear(64, 1)
    with lv.record(on="cpu") as recording:
        batches = iter(DataLoader(data, batch_size=16, num_workers=1))
        for _ in range(steps):
            model(next(batches)).sum().backward()
            burn(0.02)
    return {each.kind for each in lv.advise(recording.timeline)}


def test_memory_that_is_taken_for_each_sample_grows(monkeypatch):
    monkeypatch.setattr(workers, "RARE", 5)  # this process may be a large one, of which a look takes long
    assert "memory-grows" in kinds_of(keeping(each=200_000))


@pytest.mark.parametrize("once", [factory.slow(0), 100_000_000])
def test_memory_that_is_taken_once_does_not_grow(once):
    assert "memory-grows" not in kinds_of(keeping(once=once))
