"""How far work is that takes long: told after 2 s of a clock that the test moves on; it never is in the way."""

import contextlib
import io
import sys
import threading
import types

import pytest

import loaderviz as lv
from loaderviz import cli, progress
from loaderviz.progress import Progress, lasting, told


class Stream(io.StringIO):
    """A terminal, or a file."""

    def __init__(self, terminal):
        super().__init__()
        self.isatty = lambda: terminal


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture(autouse=True)
def usual(quick, monkeypatch):
    monkeypatch.setattr(progress, "AFTER", 2.0)


def work(clock, stream, took, count=100):
    """What is told of so many items that take `took` s each."""
    for _ in told(iter(range(count)), range(count), "reading {} files", Progress(stream, clock)):
        clock.now += took
    return stream.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("took", [0, 0.0199])
def test_nothing_is_said_of_what_takes_less_than_two_seconds(clock, terminal, took):
    assert work(clock, Stream(terminal), took) == ""


def test_a_file_gets_whole_lines_each_after_twice_the_time(clock):
    assert work(clock, Stream(False), 0.5, 1000).splitlines() == [
        f"loaderviz: reading 1,000 files: {done} are done, after {done // 2} s"
        for done in (4, 8, 16, 32, 64, 128, 256, 512)
    ]


def test_a_terminal_has_one_line_that_changes_and_is_gone_at_the_end(clock):
    said = work(clock, Stream(True), 1.0, 12)
    lines = said.split("\r")
    assert "\n" not in said and lines[1] == "loaderviz: reading 12 files: 2 are done, after 2 s" and len(lines) == 14
    assert lines[-2].isspace() and lines[-1] == "" and len(lines[-2]) >= max(map(len, lines[:-2]))


def test_a_terminal_is_written_to_five_times_a_second_at_most(clock):
    assert work(clock, Stream(True), 0.001, 4_000).count("done") <= 11


def test_a_shorter_text_covers_the_longer_one_before_it(clock):
    stream = Stream(True)
    line = Progress(stream, clock)
    for doing in "a long word", "short":
        clock.now += 3
        line.look(doing)
    first, second = stream.getvalue().split("\r")[1:]
    assert second.startswith("loaderviz: short") and len(second) == len(first)


def test_the_line_is_cleared_where_the_work_fails_or_its_reader_goes(clock):
    stream = Stream(True)
    with pytest.raises(ValueError, match="damaged"):
        for number in told(range(9), range(9), "{} files", Progress(stream, clock)):
            clock.now += 3
            if number == 4:
                raise ValueError("damaged")
    assert stream.getvalue().endswith(" \r")


class Broken(Stream):
    """A terminal that is gone, a full disk, a stream that somebody closed."""

    def __init__(self, problem):
        super().__init__(True)
        self.problem, self.tries = problem, 0

    def write(self, text):
        self.tries += 1
        raise self.problem


@pytest.mark.parametrize("problem", [OSError(28, "No space left on device"), BrokenPipeError(), ValueError("closed")])
def test_a_stream_that_takes_nothing_is_left_alone(clock, problem):
    stream = Broken(problem)
    assert work(clock, stream, 1.0) == "" and stream.tries == 1


def test_without_a_standard_error_work_goes_on(clock, monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)  # as under pythonw on Windows
    assert list(told([1, 2], [0, 0], "{}")) == [1, 2]
    stream = Stream(True)
    stream.isatty = None  # a stand-in of the program's that is no whole file
    assert "\n" in work(clock, stream, 1.0)


def test_a_notebook_is_told_nothing(clock, monkeypatch):
    shell = types.SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    assert work(clock, Stream(True), 1.0) == ""
    del shell.kernel  # IPython in a terminal
    assert "reading" in work(clock, Stream(True), 1.0)


def test_a_block_that_lasts_is_told_by_a_thread_that_ends(clock):
    stream, looked, go = Stream(True), threading.Semaphore(0), threading.Semaphore(0)

    def pause(_):
        looked.release()
        go.acquire()

    with lasting("writing", Progress(stream, clock), pause):
        looked.acquire()
        clock.now = 2.5
        go.release()
        looked.acquire()
        assert stream.getvalue() == "\rloaderviz: writing, after 2 s"
    go.release()
    assert stream.getvalue().endswith(" \r") and not looked.acquire(timeout=0.05)


def test_a_system_without_threads_works_in_silence(monkeypatch):
    def none(*_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(progress, "start_new_thread", none)
    with lasting("writing"):
        pass


# Where it is told


@pytest.fixture
def soon(usual, monkeypatch):
    monkeypatch.setattr(progress, "AFTER", -1.0)


@pytest.fixture
def run_of_ranks(tmp_path):
    from factory import script

    script("tests/traces/trace_files.py").straggling(tmp_path, late=1, count=3)
    return tmp_path


@pytest.mark.parametrize("call", [lv.read, lv.ranks])
def test_reading_many_files_tells_how_many_are_done(soon, run_of_ranks, call, capsys):
    call(run_of_ranks)
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("loaderviz: reading 3 files: 1 is done, after 0 s\n")


def test_commands_tell_what_takes_long_on_standard_error(run_of_ranks, monkeypatch, capsys):
    doing = []

    @contextlib.contextmanager
    def noted(text):
        doing.append(text)
        yield

    monkeypatch.setattr(cli, "lasting", noted)
    monkeypatch.chdir(run_of_ranks)
    (run_of_ranks / "program.py").write_text("import torch\ntorch.ones(9).to('cuda').sum().item()\n")
    assert cli.main(["run", "--on", "t4", "--save", "t.json", "program.py"]) == 0
    assert cli.main(["view", "t.json"]) == 0
    ran, viewed = ["making the", "looking for", "writing what", "writing what"], ["reading t.json", "looking for"]
    assert [" ".join(text.split()[:2]) for text in doing] == [*ran, *viewed, "writing timeline.html"]
    assert "after" not in capsys.readouterr().out.splitlines()[-1]
