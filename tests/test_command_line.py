"""`python -m loaderviz`: what a shell user meets."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path

import factory
import pytest

import loaderviz as lv
from loaderviz import cli, experiment, notebooks, words
from loaderviz.analysis.advice import advise
from loaderviz.timeline import Kind

SMALL = ["compare", "--batch-size", "16", "--steps", "2", "--warmup", "1", "--workers", "1"]


def test_compare_prints_a_table_and_writes_one_page(tmp_path, capsys):
    page = tmp_path / "page.html"
    assert cli.main([*SMALL, "--on", "t4", "--out", str(page)]) == 0
    out = capsys.readouterr().out
    assert "Batch size 16 on an emulated Tesla T4" in out
    assert all(name in out for name in ("blocking", "pinned", "prefetch", "resident", "window", "hidden"))
    assert "start-up" not in out  # it is over before the pictures begin
    assert "bit for bit" in out  # the three DataLoader-fed loaders computed the same loss
    assert str(page) in out
    text = page.read_text(encoding="utf-8")
    assert "plotly" not in text
    assert text.count('<div class="lv-view"') == 1


@pytest.mark.slow
@pytest.mark.parametrize("given, sizes", [("", ["512", "64"]), ("8 32 16", ["8", "32", "16"])])
def test_compare_keeps_the_order_of_batch_sizes_and_begins_with_the_large_one(
    tmp_path, capsys, monkeypatch, given, sizes
):
    monkeypatch.setattr(experiment, "LARGE_BATCH", experiment.LARGE_BATCH // 8)
    page, options = tmp_path / "page.html", [f"--batch-size={size}" for size in given.split()]
    cli.main(["compare", *options, "--steps", "2", "--warmup", "1", "--workers", "1", "--out", str(page)])
    out = capsys.readouterr().out
    printed = re.findall(r"^Batch size (\d+) on", out, re.MULTILINE)
    assert printed == re.findall(r"<h2>Batch size (\d+)</h2>", page.read_text(encoding="utf-8")) == sizes
    assert "Overlap cannot pay here" in out


@pytest.mark.parametrize(
    ("size", "machine", "told"), [(64, ("a100", "workstation"), "less"), (2048, ("laptop", "laptop"), "more")]
)
def test_the_price_of_a_gather_is_told_beside_what_it_saves(size, machine, told):
    runs = experiment.four_loaders(experiment.Setting(size), *machine, only=("prefetch", "resident"))
    found, (prefetch, resident) = experiment.gather(runs), (lv.summarize(run.timeline) for run in runs.values())
    more = (resident.compute - prefetch.compute) / resident.batches
    assert found.kernels == ["index_select"]
    # hidden copies take memory bandwidth from the prefetcher's kernels, and nothing else
    assert found.time == more if prefetch.overlap == 0 else 0.8 * found.time < more < found.time
    assert f"{words.duration(found.time)} a step (index_select). That is {told} than it saves" in cli._gathers(runs)
    assert (resident.step > prefetch.step) is (told == "more")


@pytest.mark.slow
def test_readme_says_what_compare_draws():
    """Its first picture is made by hand: of `compare`, with what that takes by default."""
    readme = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    runs = experiment.four_loaders(only=("blocking", "prefetch"))
    blocking, prefetch = (f"{lv.summarize(run.timeline).step / 1e6:.1f} ms" for run in runs.values())
    said = " ".join(readme.split())
    assert f"`blocking` loader takes {blocking} for each batch of {experiment.Setting().batch_size} images" in said
    assert f"copies while the GPU computes, and takes {prefetch}." in said


def test_the_usual_loop_is_two_to_ten_times_as_slow_as_a_resident_data_set():
    """As published for in-memory loaders; by the table of transforms, so a recording gives the same again."""
    setting = experiment.Setting(64, steps=6, warmup=8)
    runs = [experiment.four_loaders(setting, only=only) for only in (("usual", "resident"), ("usual",))]
    usual, again, resident = runs[0]["usual"].timeline, runs[1]["usual"].timeline, runs[0]["resident"].timeline
    assert (usual.start == again.start).all() and (usual.end == again.end).all()
    assert 2 < lv.summarize(usual).step / lv.summarize(resident).step < 10
    fetch = usual.where(Kind.FETCH)
    assert 20_000 < (usual.end - usual.start)[fetch].mean() / 64 < 30_000  # ns a sample: benchmarks/epoch.py has 25 us


@pytest.mark.slow
@pytest.mark.parametrize(("on", "host"), [("a100", "workstation"), ("laptop", "laptop"), ("h200", "server 2023")])
def test_the_warm_up_is_over_when_the_pictures_begin(on, host):
    """Twelve batches later a step is as long as in the picture, with each of the loaders."""
    long = experiment.Setting(64, steps=18, workers=4)
    for name, run in experiment.four_loaders(long, on, host, only=long.loaders).items():
        late, whole = (lv.summarize(part) for part in (run.timeline.from_batch(long.warmup + 12), run.timeline))
        seen = (whole.window - late.window) / 12
        assert seen == pytest.approx(late.step, rel=0.01), name


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("--on voodoo2", "no GPU preset 'voodoo2'; choose one of: 2080ti"),
        ("--host toaster", "no host preset 'toaster'"),
        ("--batch-size 0", "batch_size must be at least 1, got 0"),
        ("--batch-size 70000", "larger than MNIST"),
        ("--workers -1", "workers must be at least 0"),
        ("--depth 0", "depth must be at least 1"),
        ("--out no/page.html", "the folder no does not exist"),
    ],
)
def test_a_bad_option_is_one_clear_sentence(tmp_path, capsys, arguments, complaint):
    assert cli.main(["compare", "--out", str(tmp_path / "page.html"), *arguments.split()]) == 1
    out, err = capsys.readouterr()
    assert complaint in err
    assert "Traceback" not in err
    assert out == ""


def test_view_prints_what_could_be_gained_and_puts_it_on_the_page(tmp_path, capsys):
    saved, page = factory.loader("pinned", 8).save(tmp_path / "run.json"), tmp_path / "page.html"
    assert cli.main(["view", str(saved), "--out", str(page)]) == 0
    assert "1. copy-not-hidden: up to" in capsys.readouterr().out
    assert "<b>copy-not-hidden</b>" in page.read_text(encoding="utf-8")


def test_the_help_has_all_commands_and_each_option_at_most_one_default(capsys):
    done = subprocess.run([sys.executable, "-m", "loaderviz"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    parser = next(iter(cli._parser()._subparsers._group_actions))
    for command in parser.choices:
        assert command in done.stdout
        with pytest.raises(SystemExit):
            cli.main([command, "--help"])
        out = " ".join(capsys.readouterr().out.split())
        assert "None" not in out and "False" not in out and "[]" not in out
        assert re.search(rf"usage: loaderviz {command} .*? [A-Z][^.]*\. (positional|options)", out)  # a sentence
        assert all(action.help for action in parser.choices[command]._actions)
        assert all(option.count("(default") <= 1 for option in out.split(" --"))


TRAINING = """
import sys, torch
x = torch.ones(8).pin_memory().to("cuda", non_blocking=True)
print(x.sum().item())
if sys.argv[1:]:
    while True:
        print("Python ends such a program when nobody reads it")
"""
UNHEARD = {  # what is run when nobody reads what it prints, its exit status, the file that it writes
    "compare": ([*SMALL, "--out", "compare.html"], 0, "compare.html"),
    "view": (["view", "run.json", "--out", "view.html"], 0, "view.html"),
    "run": (["run", "--host", "laptop", "--out", "run.html", "script.py"], 0, "run.html"),
    "forever": (["run", "--host", "laptop", "--out", "forever.html", "script.py", "forever"], 1, "forever.html"),
    "calibrate": (["calibrate", "trace.json.gz", "--save", "gpu.json"], 0, "gpu.json"),
    "validate": (["validate", "trace.json.gz", "--limit", "0"], 1, "trace.json.gz"),
    "lessons": (["lessons", "mine"], 0, "mine/terms.md"),
    "ready": (["ready"], 0, "run.json"),
    "a wrong option": (["view", "nothing.json"], 1, "run.json"),
    "nothing": ([], 2, "run.json"),
}
READERS_GONE = """
import json, os, sys
from loaderviz import cli, notebooks
notebooks.CHECKS, found = notebooks.CHECKS[:2], {}
for name, (arguments, *_) in json.loads(sys.argv[1]).items():
    read, write = os.pipe()
    os.close(read)
    for stream in (1, 2):
        os.dup2(write, stream)
    os.close(write)
    found[name] = cli.main(arguments)
with open("found.json", "w") as file:
    json.dump(found, file)
"""


@pytest.mark.slow
def test_a_command_does_its_work_when_nobody_reads_what_it_prints(tmp_path):
    """Behind `| head`, or `2>&1 | head`: the files are whole, the exit status is the work's."""
    factory.loader("pinned", 8).save(tmp_path / "run.json")
    (tmp_path / "script.py").write_text(TRAINING)
    (tmp_path / "trace.json.gz").write_bytes(notebooks.trace("alexnet_pageable_2023.json.gz").read_bytes())
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = [sys.executable, "-c", READERS_GONE, json.dumps(UNHEARD)]
    subprocess.run(command, cwd=tmp_path, env=buffered, check=True)
    assert json.loads((tmp_path / "found.json").read_text()) == {
        name: status for name, (_, status, _) in UNHEARD.items()
    }
    for _, _, file in UNHEARD.values():
        assert (tmp_path / file).stat().st_size > 200
        assert not file.endswith(".html") or (tmp_path / file).read_text(encoding="utf-8").endswith("</html>\n")

    help_ = subprocess.Popen(
        [sys.executable, "-m", "loaderviz", "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    help_.stdout.close()  # before anything is printed
    assert (help_.stderr.read(), help_.wait()) == (b"", 0)
    help_.stderr.close()


@pytest.mark.parametrize(
    ("page", "micro", "quote"),
    [("ascii", "u", '"'), ("cp936", "u", "“"), ("cp932", "u", "“"), ("cp1252", "µ", "“"), ("cp437", "µ", '"')],
)
def test_a_sign_that_a_code_page_lacks_ends_no_command(page, micro, quote, monkeypatch):
    raw = BytesIO()
    stream = TextIOWrapper(raw, page, write_through=True)
    (listener := cli.Listener(stream)).write("3 µs, “waits”, 数, done\n")
    listener.close()
    assert (stream.closed, stream.errors) == (False, "strict")  # a program that calls main() has its stream as it was
    kept = "数" if page in ("cp936", "cp932") else "?"
    close = quote if quote == '"' else "”"
    assert raw.getvalue().decode(page) == f"3 {micro}s, {quote}waits{close}, {kept}, done\n"


def test_paragraphs_are_as_wide_as_the_terminal_and_whole_in_a_pipe(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    terminal, text = StringIO(), "a word " * 40
    assert words.wrapped(text, most=sys.maxsize) == text.strip()
    advice, change = (
        advise(factory.loader("blocking", 12)),
        "model = torch.compile(model, mode='reduce-overhead')  # or larger",
    )
    told = replace(advice[0], change=change)
    assert max(map(len, str(advice).splitlines())) > 60
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stdout", terminal)
    assert max(map(len, words.wrapped(text, most=sys.maxsize).splitlines())) <= 60
    assert max(map(len, (line for line in str(told).splitlines() if change not in line))) <= 60
    assert not re.search(r"\d\n +(ms|µs|%)", str(advice))
    assert f"change  {change}" in str(told)  # code is not broken, so that it can be copied
