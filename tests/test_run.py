"""`python -m loaderviz run`: a program runs as under Python itself, and is recorded however it ends."""

import gc
import os
import re
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import pytest
import torch
from factory import python, slow

import loaderviz as lv
from loaderviz import cli
from loaderviz.imports import program_of, rank_of
from loaderviz.timeline import Kind, Timeline

TRAIN = """
import sys
import torch
from torch.utils.data import DataLoader, Dataset


class Numbers(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.full((100,), float(index))


def main():
    workers, start = int(sys.argv[1]), sys.argv[2]
    loader = DataLoader(Numbers(), 16, num_workers=workers, multiprocessing_context=start if workers else None)
    total = sum(batch.to("cuda").sum().item() for batch in loader)
    print(f"{__name__} {total:.0f}")


print(f"imported as {__name__}", flush=True)
if __name__ == "__main__":
    main()
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def script(folder, text, name="program.py"):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text), encoding="utf-8")
    return str(path)


def run(*arguments, on="t4"):
    return cli.main(["run", "--on", on, "--host", "laptop", *map(str, arguments)])


@pytest.fixture
def shell(here, warm):
    """Return a function that runs a program as a shell's user does, in a Python of its own."""
    return lambda *arguments: warm.run("-m", "loaderviz", "run", *arguments, folder=here)


GPU = "import sys, torch\ntorch.ones(1000).to('cuda').sum().item()\n"


def test_a_recorded_script_is_told_of_and_leaves_nothing_behind(here, capsys):
    script(here, GPU, "lib/program.py")
    before = list(sys.path), sys.argv, sys.modules["__main__"]
    assert run("lib/program.py") == 0
    out, err = capsys.readouterr()
    assert out == "" and (list(sys.path), sys.argv, sys.modules["__main__"]) == before
    for told in ("program.py: Tesla T4;", "GPU computes", "The picture is in timeline.html", "Judged: "):
        assert told in err
    page = (here / "timeline.html").read_text(encoding="utf-8")
    assert "<h1>program.py: Tesla T4</h1>" in page
    assert "What could be gained" in page


@pytest.mark.slow
@pytest.mark.parametrize(
    ("folder", "name", "command", "also"),
    [
        ("lib", "program.py", ["lib/program.py", "--on", "h200", "-m", "--", "x"], "__spec__"),
        (".", "tools/fit.py", ["-m", "tools.fit", "--lr", "1"], "__package__"),
    ],
)
def test_a_program_sees_what_it_sees_under_python(here, folder, name, command, also):
    """Standard output is the program's alone, byte for byte."""
    script(here / folder, "WHO = 'its neighbour'", "helper.py")
    text = "import os, sys, helper\nprint(__name__, sys.argv, os.path.abspath(sys.path[0]), __file__, helper.WHO)\n"
    script(here / folder, f"{text}print({also})\nsys.exit(3)", name)
    plain = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False, cwd=here)
    ours = python("-m", "loaderviz", "run", "--on", "t4", *command, folder=here)
    assert (ours.stdout, ours.returncode) == (plain.stdout, plain.returncode) == (plain.stdout, 3)
    assert "its neighbour" in plain.stdout


BROKEN_TORCHVISION = """
    import torch
    from . import extension
    @torch.library.register_fake("torchvision::nms")
    def _(dets, scores, iou_threshold):
        return dets.new_empty(0)
    complete = True
"""


@pytest.mark.slow
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_workers_do_not_record_again_and_have_the_cure_of_torchvision(here, shell, start):
    """A spawned worker imports the program anew, as __mp_main__: it must not record, nor run main()."""
    script(here, BROKEN_TORCHVISION, "torchvision/__init__.py")  # beside another torch: see test_torchvision_cure.py
    script(here, "def _has_ops():\n    return False\n", "torchvision/extension.py")
    script(here, "import torchvision\nassert torchvision.complete\n" + TRAIN, "train.py")
    done = shell("--on", "t4", "--save", "run.json", "train.py", "2", start)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines.count("__main__ 201600") == 1
    assert lines.count("imported as __main__") == 1
    assert done.stdout.count("imported as __mp_main__") == (2 if start == "spawn" else 0)  # both may write at once
    assert done.stderr.count("The picture is in") == 1
    timeline = Timeline.load(here / "run.json")
    assert {lane.name for lane in timeline.lanes if lane.role == "worker"} == {"worker 0", "worker 1"}
    assert timeline.where(Kind.FETCH).sum() == 4


@pytest.mark.parametrize(
    ("ending", "status", "printed"),
    [
        ("", 0, ""), ("sys.exit()", 0, ""), ("sys.exit(0)", 0, ""), ("sys.exit(7)", 7, ""),
        ("sys.exit('too late')", 1, "too late\n"), ("raise SystemExit(True)", 1, ""),
        ("raise KeyboardInterrupt", 130, "loaderviz: stopped\n"),
    ],
)  # fmt: skip
def test_the_exit_status_is_the_programs_own(here, capsys, ending, status, printed):
    script(here, GPU + ending)
    assert run("--save", "kept.json", "program.py") == status
    err = capsys.readouterr().err
    assert err.startswith(printed or "program.py: Tesla T4") and "loaderviz: the timeline is saved in kept.json" in err
    assert Timeline.load(here / "kept.json").where(Kind.COPY_H2D).sum() == 1
    assert (here / "timeline.html").exists()


def test_an_error_is_printed_as_python_prints_it_and_the_recording_kept(here, capsys, monkeypatch):
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)  # init_process_group in another test leaves its own
    script(here, GPU + "def inner(x):\n    return x @ torch.ones(5, device='cuda')\n\ninner(torch.ones(3, 3).cuda())\n")
    assert run("program.py") == 1
    err = capsys.readouterr().err
    trace = err[: err.index("program.py: Tesla T4")].splitlines()
    assert trace[0] == "Traceback (most recent call last):"
    assert [line.strip() for line in trace if "File" in line] == [
        f'File "{here / "program.py"}", line 6, in <module>', f'File "{here / "program.py"}", line 4, in inner',
    ]  # fmt: skip
    assert trace[-1].startswith("RuntimeError: size mismatch")
    assert "The picture until the error is in timeline.html" in err
    page = (here / "timeline.html").read_text(encoding="utf-8")
    for text in (err, page):
        assert "Judged: " not in text and "What could be gained" not in text


IN_A_THREAD = """
    import threading, torch
    def work():
        try:
            torch.ones(3, device="cuda")
        except Exception as problem:
            print("logged", type(problem).__name__)
    torch.ones(3).to("cuda")
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    torch.ones(3).to("cuda")
    print("went on")
"""


def test_what_is_refused_to_a_thread_of_the_program_ends_it_with_an_error(here, capsys):
    script(here, IN_A_THREAD)
    assert run("--no-threads", "--save", "run.json", "program.py") == 1
    out, err = capsys.readouterr()
    assert out == "logged NotModelledError\nwent on\n"
    assert "second Python thread" in err
    assert 'program.py", line 5, in work' in err
    assert "Judged: " not in err
    assert Timeline.load(here / "run.json").where(Kind.COPY_H2D).sum() == 2


CAUSE = (
    "try:\n    torch.ones(3).cuda() @ torch.ones(4).cuda()\nexcept RuntimeError as e:\n    raise ValueError() from e\n"
)
RECORDS = "import loaderviz\nwith loaderviz.record(on='t4'):\n    pass\n"


@pytest.mark.parametrize(
    ("text", "error", "line"),
    [(GPU + CAUSE, "ValueError", 6), (GPU + CAUSE, "direct cause", 4), ("def f(:\n    pass\n", "SyntaxError", 1),
     ("import torch\ntorch.cuda.MemPool()\n", "NotModelledError", 2),
     (RECORDS, "NestedRecordingError: a recording is running already", 2)],
    ids=["error", "cause", "syntax", "not modelled", "it records by itself"],
)  # fmt: skip
def test_an_error_shows_the_programs_lines_and_none_of_ours(here, capsys, text, error, line):
    script(here, text)
    assert run("program.py") == 1
    trace = capsys.readouterr().err.split("program.py: ")[0]
    assert error in trace
    assert f'program.py", line {line}' in trace
    assert not re.search(r'File ".*loaderviz', trace)


def test_an_exception_hook_of_the_program_is_used(here, capsys, monkeypatch):
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # which is put back
    script(here, """
        import sys
        sys.excepthook = lambda kind, error, trace: print("mine", kind.__name__, trace.tb_lineno)
        1 / 0
    """)  # fmt: skip
    assert run("program.py") == 1
    assert capsys.readouterr().out == "mine ZeroDivisionError 4\n"


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_of_the_program_shows_nothing_and_ctrl_c_keeps_what_was_recorded(here, shell):
    forks = "import os, signal\npid = os.fork()\nif not pid:\n    sys.exit(5)\nprint(os.waitpid(pid, 0)[1] >> 8)\n"
    script(here, GPU + forks + "os.kill(os.getpid(), signal.SIGINT)\nprint('never')\n")
    done = shell("--on", "t4", "program.py")
    assert (done.stdout, done.returncode) == ("5\n", 130)
    assert done.stderr.count("loaderviz: stopped") == done.stderr.count("timeline.html") == 1
    assert "Traceback" not in done.stderr
    assert (here / "timeline.html").exists()


CHILD = """
    import sys, torch
    import torch.multiprocessing as mp

    def work(queue):
        try:
            queue.put(torch.ones(3).to("cuda").sum().item())
        except RuntimeError as problem:
            queue.put(str(problem))

    if __name__ == "__main__":
        torch.ones(3).to("cuda")
        for start in "fork", "spawn":
            context = mp.get_context(start)
            queue = context.SimpleQueue()
            process = context.Process(target=work, args=(queue,))
            process.start()
            print(queue.get())
            process.join()
"""


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="where there is a GPU a child has it")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_that_asks_for_cuda_is_told_why_not(here, shell):
    script(here, CHILD, "train.py")
    done = shell("--on", "t4", "train.py")
    assert done.returncode == 0, done.stderr
    forked, spawned = done.stdout.splitlines()
    assert "Cannot re-initialize CUDA in forked subprocess" in forked
    assert "the emulated GPU is in the process that is" in spawned
    assert done.stderr.count("The picture is in") == 1


RANKS = """
    import torch
    device = "cuda" if torch.cuda.is_available() else "cpu"
    print("trained on", device, torch.ones(8, device=device).sum().item())
"""
LAUNCHES = """
    import os, subprocess, sys
    ranks = [
        subprocess.Popen([sys.executable, *sys.argv[1:]], env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2"})
        for rank in range(2)
    ]
    sys.exit(max(rank.wait() for rank in ranks))
"""
SPAWNS = """
    import sys, torch.multiprocessing as mp

    def train(rank, *more):
        exec(open("ranks.py").read())

    if __name__ == "__main__":
        if sys.argv[1] == "Process":
            process = mp.get_context("fork").Process(target=train, args=(0,))
            process.start()
            process.join()
        elif sys.argv[1] == "Pool":
            with mp.get_context("fork").Pool(1) as pool:
                pool.map(train, [0])
        elif sys.argv[1] == "program":
            import subprocess
            subprocess.run([sys.executable, "-u", "ranks.py"], check=True)
        else:
            mp.start_processes(train, nprocs=2, start_method=sys.argv[1])
"""


@pytest.fixture
def launchers(here):
    """A training that takes the CPU where there is no GPU, and who starts it as two ranks."""
    script(here, RANKS, "ranks.py")
    script(here, LAUNCHES, "accelerate/commands/launch.py")
    script(here, "import subprocess, sys\nsubprocess.run(sys.argv[1], shell=True, check=True)", "shells.py")
    script(here, SPAWNS, "spawns.py")
    return here


@pytest.mark.skipif(torch.cuda.is_available(), reason="where there is a GPU a child has it")
@pytest.mark.parametrize(
    ("start", "told"),
    [
        ("accelerate/commands/launch.py ranks.py", "ranks.py is launched as a rank of a distributed training"),
        ("-m accelerate.commands.launch ranks.py", "ranks.py is launched as a rank"),
        slow("-m torch.distributed.run --nproc-per-node 2 ranks.py", "ranks.py is launched as a rank"),
        ("shells.py torchrun|--nproc-per-node|2|ranks.py", "torchrun launches the ranks"),
        ("shells.py python|-m|torch.distributed.launch|ranks.py", "torch.distributed.launch launches the ranks"),
    ],
)
def test_a_launcher_of_ranks_does_not_train_them_on_the_cpu_unseen(launchers, capfd, start, told):
    assert run(*(word.replace("|", " ") for word in start.split())) == 1
    out, err = capfd.readouterr()
    assert "trained on" not in out
    assert told in err and "torchrun --nproc-per-node 1 -m loaderviz run" in err
    gc.collect()  # the launcher's store joins threads when it goes: in a forked worker, which has none, that is its end


@pytest.mark.filterwarnings("always:train runs in a process")
@pytest.mark.skipif(not hasattr(os, "fork") or torch.cuda.is_available(), reason="needs fork, and no GPU for a child")
@pytest.mark.parametrize(
    ("start", "on", "name"),
    [
        ("Process", "t4", "train"),
        ("Process", "cpu", "train"),
        ("Pool", "t4", "multiprocessing.pool.worker"),
        slow("program", "cpu", "ranks.py"),
        ("fork", "t4", "train"),
        ("fork", "cpu", "train"),
    ],
)
def test_other_processes_of_a_program_are_named(launchers, capfd, start, on, name):
    """They run, as on a machine without a GPU; who starts ranks is warned at once."""
    with warnings.catch_warnings(record=True) as warned:
        status = run("spawns.py", start, on=on)
    out, err = capfd.readouterr()
    assert (status, "trained on cpu 8.0" in out) == (0, True), err
    told = f"{name} runs in a process of its own, which is not recorded"
    assert told + " and has no emulated GPU" * (on == "t4") in err.replace("\n", " ")
    ranks = [str(each.message) for each in warned if "process of its own" in str(each.message)]
    assert len(ranks) == (on == "t4" and start == "fork")


@pytest.mark.parametrize("on", ["t4", "cpu"])
def test_workers_of_a_data_loader_are_no_other_processes(here, capfd, on):
    script(here, TRAIN.replace('.to("cuda")', ""), "train.py")
    assert run("train.py", 1, "fork", on=on) == 0
    assert "process of its own" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("command", "program", "rank"),
    [
        ([sys.executable, "-u", "train.py"], "train.py", False),
        (["python3.11", "-X", "dev", "-m", "tool"], "tool", False),
        ("python -c 'import os'", "-c", False),
        ([b"python", Path("accelerate_me.py")], "accelerate_me.py", False),
        (["git", "status", "torchrun"], "", False),
        ("'", "", False),
        (None, "", False),
        (["/opt/bin/torchrun", "train.py"], "torchrun", True),
        (["python", "/opt/bin/torchrun", "train.py"], "/opt/bin/torchrun", True),
        ("accelerate launch train.py", "accelerate", True),
    ],
)
def test_which_program_a_command_runs(monkeypatch, command, program, rank):
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert (program_of(command), bool(rank_of(command, None))) == (program, rank)
    assert bool(rank_of(command, {"WORLD_SIZE": "1"})) is rank, "that of this process itself"
    assert rank_of(["./train"], {"WORLD_SIZE": "2"}) == "['./train'] is launched as a rank of a distributed training"


def test_options_are_passed_on_and_the_host_is_this_machine_unless_told_otherwise(here):
    script(here, TRAIN, "train.py")
    assert (
        cli.main(["run", "--on", "t4", "--wait", "1", "--steps", "2", "--save", "run.json", "train.py", "0", "-"]) == 0
    )
    timeline = Timeline.load(here / "run.json")
    assert lv.summarize(timeline).batches == 2
    assert sorted({span.batch for span in timeline.rows(Kind.COPY_H2D)}) == [1, 2]
    assert "measured on this machine" in timeline.context.host


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="where there is a GPU the profiler's own log is left on")
def test_a_program_on_the_cpu_alone_is_recorded_as_it_runs(here, shell):
    script(here, TRAIN.replace('.to("cuda")', ""), "train.py")
    done = shell("--on", "cpu", "--save", "run.json", "train.py", "0", "-")
    assert (done.returncode, done.stdout) == (0, "imported as __main__\n__main__ 201600\n")
    assert done.stderr.endswith("loaderviz: the timeline is saved in run.json\n")
    assert "nothing of a GPU" not in done.stderr
    timeline = Timeline.load(here / "run.json")
    assert timeline.context.origin == "recorded"
    assert timeline.where(Kind.OPERATOR).any()


@pytest.mark.parametrize(
    ("text", "status", "picture"),
    [
        ("print('hello')", 0, False),
        ("import torch\ntorch.ones(3) + 1", 0, True),
        ("import surely_not_a_module", 1, False),
    ],
)
def test_a_program_without_a_gpu_is_told_so_unless_it_crashed(here, capsys, text, status, picture):
    script(here, text)
    assert run("program.py") == status
    err = capsys.readouterr().err
    said = "loaderviz: nothing of a GPU was seen: the program put no work on 'cuda'"
    assert (said in err) is ("ModuleNotFoundError: No module named 'surely_not_a_module'" not in err) is (status == 0)
    assert ("nothing was recorded, so there is no picture" in err) is not picture
    assert (here / "timeline.html").exists() is picture


RACE = """
    import torch
    x, side = torch.ones(1 << 20).pin_memory(), torch.cuda.Stream()
    with torch.cuda.stream(side):
        y = x.to("cuda", non_blocking=True)
    y.sum()
"""


def test_races_are_told(here, capsys):
    script(here, RACE)
    assert run("program.py") == 0
    err = capsys.readouterr().err
    assert "race: early-read: stream 7" in err
    assert "HazardWarning" not in err
    page = (here / "timeline.html").read_text(encoding="utf-8")
    assert "program.py:6" in page
    assert "ready = side.record_event()" in page  # the line to add


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["missing.py"], "cannot run missing.py: there is no such file"),
        (["folder"], "cannot run folder: it is a folder; name a script in it"),
        (["lesson.ipynb"], "it is a notebook. In it, `%load_ext loaderviz`"),
        (["trace.json.gz"], "it is no Python source; `view` shows a trace file"),
        (["zeros"], "it is no Python source"),
        (["-m", "no.such.module"], "cannot run -m no.such.module: no module of this name"),
        (["-m", "xml"], "it is a package without a __main__ module"),
        (["-m", ".x"], "cannot run -m .x"),
        (["--on", "voodoo2", "fine.py"], "no GPU preset 'voodoo2'"),
        (["--host", "toaster", "fine.py"], "no host preset 'toaster'"),
        (["--steps", "0", "fine.py"], "steps=0"),
        (["--wait", "-1", "fine.py"], "wait=-1"),
        (["--out", "no/page.html", "fine.py"], "the folder no does not exist"),
        (["--save", "no/run.json", "fine.py"], "the folder no does not exist"),
    ],
)
def test_what_cannot_be_run_is_one_sentence(here, capsys, arguments, complaint):
    (here / "folder").mkdir()
    (here / "lesson.ipynb").write_text("{}")
    (here / "trace.json.gz").write_bytes(b"\x1f\x8b\x08")
    (here / "zeros").write_bytes(bytes(100))
    script(here, "print('it ran')", "fine.py")
    assert cli.main(["run", "--on", "t4", *arguments] if "--on" not in arguments else ["run", *arguments]) == 1
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    assert err.startswith("loaderviz: ")
    assert complaint in err


@pytest.mark.parametrize("arguments", [[], ["-m"], ["--steps", "many", "x.py"], ["--nonsense", "x.py"]])
def test_a_bad_command_line_is_a_usage_error(here, capsys, arguments):
    with pytest.raises(SystemExit) as caught:
        cli.main(["run", *arguments])
    assert caught.value.code == 2
    assert capsys.readouterr().err.startswith("usage: loaderviz")
