"""`python -m loaderviz view`: what a shell user meets; and the front door `loaderviz.read`."""

import subprocess
import sys

import pytest
from trace_files import BASE, loop, op, trace, work, write

import loaderviz
from loaderviz import cli


def view(*arguments):
    return cli.main(["view", *map(str, arguments)])


def test_it_prints_the_numbers_and_writes_one_page(tmp_path, capsys):
    path = write(tmp_path, trace(*loop(), deviceProperties=[{"id": 0, "name": "V100 <x>"}]), "my.json.gz")
    page = tmp_path / "page.html"
    assert view(path, "--out", page) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "my.json.gz: V100 <x>; 9 spans in 2 lanes" in out
    assert "GPU computes 40 % of the time, 0 % of the copy is hidden" in out
    assert "host blocked: synchronize" in out
    assert "note: recording quality: 0 of 2 launches without GPU work" in out
    assert f"The picture is in {page}" in out
    text = page.read_text(encoding="utf-8")
    assert text.count('<div class="lv-view"') == 1
    assert "V100 &lt;x&gt;" in text
    assert "Recording quality: 0 of 2 launches" in text
    assert "2023-11-14 22:13:20" in text


def test_several_files_are_the_ranks_of_one_run(tmp_path, capsys):
    files = [
        write(tmp_path, trace(*loop(BASE + rank), distributedInfo={"rank": rank}), f"r{rank}.json") for rank in (0, 1)
    ]
    assert view(*files, "--out", tmp_path / "page.html") == 0
    assert "r0.json and 1 more: 2 GPUs of unknown name; 18 spans in 4 lanes" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"not a trace", "is no trace: it looks like a text file; its first line is 'not a trace'"),
        (None, "there is no file"),
    ],
)
def test_a_file_that_is_no_trace_is_one_sentence(tmp_path, capsys, content, complaint):
    path = tmp_path / "it.json"
    if content is not None:
        path.write_bytes(content)
    assert view(path, "--out", tmp_path / "page.html") == 1
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    assert err.startswith("loaderviz: ")
    assert complaint in err
    assert not (tmp_path / "page.html").exists()


@pytest.mark.slow
def test_a_closed_pipe_is_no_error_message(tmp_path):
    path, page = write(tmp_path, trace(*loop())), tmp_path / "page.html"
    command = f"{sys.executable} -m loaderviz view {path} --out {page} | true"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.stderr == ""
    assert page.exists()


@pytest.mark.slow
def test_read_is_a_public_function_whatever_was_imported_before(tmp_path):
    path = write(tmp_path, trace(*loop()))
    assert len(loaderviz.read(str(path))) == len(loaderviz.read(path)) == 9
    code = "import loaderviz.traces, loaderviz.traces.kineto, loaderviz; print(callable(loaderviz.read))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"


def test_each_rank_is_a_group_of_lanes(tmp_path):
    for rank in (0, 1):
        events = [*loop(), op("autograd::engine::x", BASE, 9, tid=123_456), work("k", BASE, 5, 9, stream=1_234)]
        write(tmp_path, trace(*events, distributedInfo={"rank": rank}), f"rank-{rank}.json")
    (part,) = loaderviz.read(tmp_path).view(operators=True).packed()[0]["parts"]
    assert [group["name"] for group in part["groups"]] == ["rank 0", "rank 1"]
    names = [lane["name"] for lane in part["lanes"]]
    assert {"rank 0 autograd 123456: operators", "rank 1 main thread: batches", "rank 1 side stream"} <= {*names}
    assert [lane["group"] for lane in part["lanes"]] == sorted(lane["group"] for lane in part["lanes"])
