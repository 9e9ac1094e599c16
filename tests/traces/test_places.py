"""What `read` takes: folders of folders, patterns, archives, open files; executors; some of the ranks."""

import io
import tarfile
import zipfile
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import pytest
from factory import real, shared
from trace_files import BASE, loop, notes, read, trace, write

from loaderviz.errors import NoFileError
from loaderviz.traces import TraceError, places


def ranks(folder, count=3):
    """A file for each rank, each a little later than the one before."""
    for rank in range(count):
        write(folder, trace(*loop(BASE + 1_000 * rank), distributedInfo={"rank": rank}), f"{rank}.json.gz")
    return folder


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "run").mkdir()
    return ranks(tmp_path / "run")


def test_folders_in_a_folder_and_patterns(folder, tmp_path):
    (tmp_path / "deep" / "deeper").mkdir(parents=True)
    for file in folder.iterdir():
        place = tmp_path / "deep" / ("deeper" if file.name.startswith("1") else "")
        (place / file.name).write_bytes(file.read_bytes())
    assert read(tmp_path / "deep") == read(folder) == read(tmp_path / "deep" / "**" / "*.json.gz")
    assert read(str(folder / "[01].json.gz")) == read([folder / "0.json.gz", folder / "1.json.gz"])
    (tmp_path / "a[b].json.gz").write_bytes((folder / "0.json.gz").read_bytes())
    assert read(tmp_path / "a[b].json.gz") == read(folder / "0.json.gz")  # a name, not a pattern
    with pytest.raises(NoFileError, match=r"no file fits the pattern .*x\*"):
        read(tmp_path / "x*.json")


@pytest.mark.parametrize(
    ("count", "told"), [(1, "has a)$"), (2, "a); nor is the other file"), (30, "; nor is any of the 29 other files")]
)
def test_a_folder_without_a_trace_says_how_many_files_it_has(tmp_path, count, told):
    for number in range(count):
        write(tmp_path, {"a": 1}, f"c{number}.json")
    with pytest.raises(TraceError, match=rf"c0\.json is no trace: .*{told}".replace("a)", r"a\)")):
        read(tmp_path)


def test_open_files_of_no_trace(no_leftovers):
    with pytest.raises(TypeError, match="open as text"):
        read(io.StringIO("{}"))
    with pytest.raises(TraceError, match="an empty file"):
        read(io.BytesIO())


@pytest.mark.parametrize("pool", [ThreadPoolExecutor, ProcessPoolExecutor])
def test_an_executor_reads_the_same(folder, pool):
    with pool(2) as executor:
        assert read(folder, executor=executor) == read(folder)
        (folder / "3.json").write_text("no trace")
        timeline = read(folder, executor=executor)
        assert timeline == read(folder) and "3.json is no trace" in notes(timeline)
        with pytest.raises(TraceError, match=r"3\.json is no trace"):
            read([folder / "0.json.gz", folder / "3.json"], executor=executor)


def test_some_of_the_ranks(folder):
    assert read(folder, ranks=range(1, 2)) == read(folder / "1.json.gz")
    with pytest.raises(TraceError, match=r"no file in .* is of one of the ranks 7, 9"):
        read(folder, ranks=(7, 9))


def test_a_file_that_tells_another_rank_at_its_beginning_is_not_read(folder):
    write(folder, '{"distributedInfo": {"rank": 9}, "traceEvents": [' + "x" * 100_000, "rank-0.json.gz")
    assert "rank 9: the file is damaged" in notes(read(folder))
    assert "rank 9" not in notes(read(folder, ranks=[0, 1]))
    assert "no file is of rank 4, 7" in notes(read(folder, ranks=[7, 0, 4]))


@pytest.mark.parametrize(
    ("option", "given"),
    [("ranks", given) for given in ([], [-1], ["1"], [True], 3, "12")]
    + [("executor", given) for given in (3, "pool", object(), ThreadPoolExecutor)],
)
def test_odd_ranks_and_executors_are_refused(folder, option, given):
    with pytest.raises(TypeError, match="give the numbers of ranks" if option == "ranks" else r"has no map\(\)"):
        read(folder, **{option: given})


def test_of_many_files_that_are_left_out_a_few_are_named(folder):
    for number in range(9):
        write(folder, "hello", f"x{number}.json")
    said = read(folder).context.notes
    assert sum("left out: " in note for note in said) == 7 and said[-1] == "left out: 3 more files"


@pytest.mark.parametrize("members", [{}, {"readme.txt": "no trace"}, {"a.json/": ""}])
def test_an_archive_without_a_trace(tmp_path, members, no_leftovers):
    with zipfile.ZipFile(tmp_path / "it.zip", "w") as archive:
        archive.writestr("x.txt", "so that it has a head")
        for name, text in members.items():
            archive.writestr(name, text)
    with pytest.raises(TraceError, match=r"it\.zip has no trace in it|it looks like"):
        read(tmp_path / "it.zip")


def test_a_hostile_archive(tmp_path, monkeypatch, no_leftovers):
    """Names that lead out of the folder, a bomb, encrypted or cut members."""
    with zipfile.ZipFile(tmp_path / "names.zip", "w") as archive:
        archive.writestr("../../../evil.json", (write(tmp_path, trace(*loop()))).read_text())
        archive.writestr("/abs/evil.json", (tmp_path / "trace.json").read_text())
    assert len(read(tmp_path / "names.zip")) == 2 * len(read(tmp_path / "trace.json"))
    assert not list(Path(tmp_path).parent.glob("evil.json"))
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bomb.json", bytes(30_000_000))
    with pytest.raises(TraceError, match=r"bomb\.json inflates more than 200-fold"):
        read(tmp_path / "bomb.zip")
    with tarfile.open(tmp_path / "bomb.tar.gz", "w:gz") as archive:
        for number in range(3):
            member = tarfile.TarInfo(f"{number}.json")
            member.size = 10_000_000
            archive.addfile(member, io.BytesIO(bytes(member.size)))
    with pytest.raises(TraceError, match=r"1\.json inflates more than 200-fold"):
        read(tmp_path / "bomb.tar.gz")
    monkeypatch.setattr(places, "LARGEST", 100)
    with pytest.raises(TraceError, match="of traces; give its files by themselves"):
        read(tmp_path / "names.zip")
    monkeypatch.undo()
    whole = (tmp_path / "names.zip").read_bytes()
    for cut in (30, len(whole) // 2, len(whole) - 5):
        (tmp_path / "cut.zip").write_bytes(whole[:cut])
        with pytest.raises(TraceError, match=r"cut\.zip is a damaged archive"):
            read(tmp_path / "cut.zip")


@pytest.mark.slow
def test_eight_real_ranks_in_two_processes_are_the_same(no_leftovers):
    folder = shared("ranks8_nanogpt_2025")
    with ProcessPoolExecutor(2) as executor:
        timeline = read(folder, executor=executor)
    assert timeline == real("ranks8_nanogpt_2025")
    some = read(folder, ranks=[1, 4])
    assert {lane.name.split()[1] for lane in some.lanes} == {"1", "4"}


@pytest.mark.parametrize("given", ["s3://bucket/run/rank0.json.gz", "https://host/trace.json", "gs://a/b.json"])
def test_an_address_is_told_how_to_be_read(given):
    with pytest.raises(NoFileError, match=r"is an address; give the open file: with fsspec.open"):
        read(given)
