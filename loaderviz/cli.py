"""The command line: `compare`, `view` and `run` write pages; `lessons`, `room`, `ready` are for courses; and more."""

from __future__ import annotations

import argparse
import builtins
import codecs
import contextlib
import errno
import gzip
import importlib.util
import json
import os
import runpy
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.machinery import SourceFileLoader
from io import TextIOWrapper
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TextIO, cast

import loaderviz
from loaderviz import notebooks, words
from loaderviz.batches import LIMIT
from loaderviz.errors import LoadervizError, NotModelledError, clean, require
from loaderviz.files import writable, write
from loaderviz.imports import cured_imports
from loaderviz.progress import Progress, lasting
from loaderviz.stopping import INTERRUPTED, Stopping, before_exit
from loaderviz.version import __version__

if TYPE_CHECKING:
    from loaderviz.analysis import Advice
    from loaderviz.emulator.hazards import Hazard
    from loaderviz.experiment import Run, Setting
    from loaderviz.export import Section
    from loaderviz.recording import Recording
    from loaderviz.timeline import Timeline


FAILED, USAGE_ERROR, NOT_KEPT = 1, 2, 3  # exit statuses: an error, not understood, a limit
GONE = errno.EPIPE, errno.EIO, errno.EBADF  # of a stream: its reader, its terminal
LARGE = 50_000  # spans: of so many, advice takes longer than what stops a program may wait
PLAIN = {"µ": "u", "×": "x", "±": "+/-", "“": '"', "”": '"', "–": "-", "…": "...", "→": "->"}  # in any code page
Add = Callable[..., argparse.Action]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return the exit status: 0 done, 1 failed, 2 not understood, 3 a limit is not kept."""
    parser = _parser()
    parser.add_argument("--version", action="store_true", help="print the versions of loaderviz and of torch")
    with contextlib.ExitStack() as streams:
        for stream, redirect in (sys.stdout, contextlib.redirect_stdout), (sys.stderr, contextlib.redirect_stderr):
            streams.callback((listener := Listener(stream)).close)
            streams.enter_context(redirect(cast(TextIO, listener)))
        options = parser.parse_args(arguments)
        if options.version:
            print("\n".join(_versions()))
            return 0
        if options.command is None:
            parser.print_help()
            return USAGE_ERROR
        try:
            require(f"`{options.command}`", *options.needs)  # before anything runs
            return int(options.run(options) or 0)
        except (LoadervizError, OSError) as problem:
            print(f"loaderviz: {problem}", file=sys.stderr)
            return FAILED
        except KeyboardInterrupt:
            print("loaderviz: stopped", file=sys.stderr)
            return INTERRUPTED


class Listener:
    """A stream to write to that goes nowhere once its reader, such as `| head`, or its terminal is gone: work goes on.

    So does what is said of errors, on standard error, where a full disk takes none of it.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self._as_before: Callable[[], object] = stream.flush
        if isinstance(stream, TextIOWrapper) and not stream.closed and stream.errors in ("strict", "backslashreplace"):
            self._as_before = partial(stream.reconfigure, errors=stream.errors)
            self._do(partial(stream.reconfigure, errors="loaderviz"))  # for a sign that a code page lacks, another

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        """Write a text; return its length."""
        self._do(self.stream.write, text)
        return len(text)

    def flush(self) -> None:
        """Hand on what was written."""
        self._do(self.stream.flush)

    def close(self) -> None:
        """Leave the stream as it was, and open."""
        self._do(self._as_before)

    def _do(self, call: Callable[..., object], *given: str) -> None:
        try:
            call(*given)
        except OSError as problem:
            if problem.errno not in GONE and self.stream is not sys.__stderr__:
                raise
            _lead_nowhere(self.stream)


def _plainly(problem: UnicodeError) -> tuple[str, int]:
    """Say what stands for signs that an encoding does not have."""
    if not isinstance(problem, UnicodeEncodeError):
        raise problem
    signs = problem.object[problem.start : problem.end]
    return "".join(PLAIN.get(sign, "?") for sign in signs), problem.end


codecs.register_error("loaderviz", _plainly)


def _lead_nowhere(stream: TextIO) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _versions() -> Iterator[str]:
    """Yield the versions, and what is to be known of this torch; without a torch that can be imported, too."""
    yield f"loaderviz {__version__}"
    try:
        import torch

        yield f"torch {torch.__version__}"
        from loaderviz.emulator.torch.internals import untried

        yield from untried()
    except Exception as problem:  # of another version, or of a library of the system that it lacks
        missing = isinstance(problem, ModuleNotFoundError) and problem.name == "torch"
        why = "it is not installed" if missing else next(iter(str(problem).splitlines()), type(problem).__name__)
        yield f"loaderviz cannot work with torch here: {why}"


def compare(options: argparse.Namespace) -> None:
    """Run the four loaders at each batch size, print the tables, write the page.

    The batch sizes come in the order given; without any, the large one first: there one sees the copy run under the
    computation, while a small batch is gone before there is anything to hide.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # torch reads it once: else its threads burn what they wait for
    from loaderviz import experiment, export
    from loaderviz.analysis.report import report
    from loaderviz.emulator.hardware import Gpu, Host

    gpu, host = Gpu.preset(options.on), Host.preset(options.host)
    for file in filter(None, (options.out, options.json)):
        writable(file)
    sizes = options.batch_size or [experiment.LARGE_BATCH, experiment.SMALL_BATCH]
    numbers = options.steps, options.warmup, options.workers, options.depth
    settings = [experiment.Setting(size, *numbers) for size in sizes]
    sections, reports = [], {}
    for setting in settings:
        line = Progress()
        done = partial(_say_done, line, setting.batch_size)
        runs = experiment.four_loaders(setting, gpu, host, done, setting.loaders)
        line.close()
        section, text = _section(setting, runs, gpu.name, host.name)
        sections.append(section)
        print(text)
        if options.json:
            reports[setting.batch_size] = {name: report(run.timeline) for name, run in runs.items()}
    export.to_html(sections, options.out, f"Ways to feed a GPU: MNIST on an emulated {gpu.name}")
    print(f"The pictures are in {options.out}: open it in a browser.")
    if options.json:
        write(options.json, json.dumps(reports, indent=1) + "\n")
        print(f"The numbers are in {options.json}.")


def _say_done(line: Progress, size: int, name: str) -> None:
    line.look(f"batch size {size}: {name} is done")


def _section(setting: Setting, runs: dict[str, Run], gpu: str, host: str) -> tuple[Section, str]:
    """Return one batch size as a section of the page, and as text for the terminal."""
    from loaderviz.analysis.advice import advise, verdict
    from loaderviz.export import Section

    timelines = {name: run.timeline for name, run in runs.items()}
    losses = {name: run.loss for name, run in runs.items()}
    comparison = loaderviz.compare(timelines, advice={name: advise(timeline) for name, timeline in timelines.items()})
    heading = f"Batch size {setting.batch_size}"
    pays = verdict(loaderviz.summarize(timelines["pinned"]), loaderviz.summarize(timelines["prefetch"]))
    gathers = _gathers(runs)
    usual = "usual: as most people write it, digit by digit through PIL and ToTensor, 2 workers, .cuda() in the loop. "
    check = (usual if "usual" in runs else "") + (
        f"{words.count(setting.steps, 'step')} after {setting.warmup} of warm-up, "
        f"{words.count(setting.workers, 'worker')}; host costs: {host}. "
        f"The loss of the last batch is {_losses(losses)}."
    )
    table = comparison.printed().T.to_string()
    said = "\n".join(words.wrapped(text, most=sys.maxsize) for text in (pays, gathers, check))
    text = f"{heading} on an emulated {gpu}\n\n{table}\n\n{said}\n"
    return Section(heading, pays, [comparison, gathers, check]), text


def _gathers(runs: dict[str, Run]) -> str:
    """Say what the resident loader, which copies nothing, does instead, and whether that is faster here."""
    from loaderviz.experiment import gather

    (kernels, time), prefetch = gather(runs), loaderviz.summarize(runs["prefetch"].timeline)
    steps = [loaderviz.summarize(runs[name].timeline).step or 0 for name in ("resident", "prefetch")]
    hidden = f"since {words.share(prefetch.overlap)} of the prefetcher's copies are hidden"
    saved = (
        f"more than it saves, {hidden}" if steps[0] > steps[1] else "less than it saves by fetching and copying none"
    )
    return (
        f"The resident loader copies no batch. It gathers each one on the GPU: {words.duration(time)} a step "
        f"({', '.join(kernels)}). That is {saved}: its step takes {words.duration(steps[0])}, the prefetcher's "
        f"{words.duration(steps[1])}."
    )


def _losses(losses: dict[str, float]) -> str:
    """Say whether all have trained on the same; the resident loader has an order of its own after its first epoch."""
    fed = [loss for name, loss in losses.items() if name != "resident"]
    same = "bit for bit" if len(set(fed)) == 1 else "the first of them, NOT all"
    if len({*losses.values()}) == 1:
        why = "in the first epoch they draw the samples in the same order"
        return f"{fed[0]:.6f} with all {len(losses)} loaders, {same}: {why}"
    return (
        f"{fed[0]:.6f} with the {len(fed)} that a DataLoader feeds, {same}; {losses['resident']:.6f} with the resident "
        "one, which from its second epoch on draws another order"
    )


class _Help(argparse.ArgumentDefaultsHelpFormatter):
    """Tells the default of each option that has one."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return action.help if action.default in (None, False, []) else super()._get_help_string(action)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="loaderviz", description="Does my data reach the GPU while the GPU is computing, and if not, why?"
    )
    commands = parser.add_subparsers(dest="command", metavar="command")

    def command(name: str, run: Callable[[argparse.Namespace], int | None], needs: Sequence[str], about: str) -> Add:
        sub = commands.add_parser(
            name, help=about, description=f"{about[:1].upper()}{about[1:]}.", formatter_class=_Help
        )
        sub.set_defaults(run=run, needs=needs)
        return sub.add_argument

    about = "run four loaders and the usual loop on MNIST, print their tables and write one HTML page"
    add = command("compare", compare, ("pandas", "torchvision"), about)
    add("--on", default="a100", metavar="GPU", help="the GPU to emulate, such as a100, t4, h200 or laptop")
    add("--host", default="workstation", help="the host around it: laptop, workstation, server 2023, server 2016")
    sizes = "the samples in a batch; each further --batch-size adds a table and a picture (default: 4096, then 64)"
    add("--batch-size", type=int, action="append", metavar="N", help=sizes)
    add("--workers", type=int, default=4, metavar="N", help="the worker processes of a DataLoader")
    add("--depth", type=int, default=2, metavar="N", help="the batches that the prefetcher copies ahead")
    add("--steps", type=int, default=4, metavar="N", help="the batches that the picture shows")
    add("--warmup", type=int, default=6, metavar="N", help="the batches that run before those and are not shown")
    add("--out", type=Path, default=Path("timelines.html"), metavar="FILE", help="the page to write")
    add("--json", type=Path, metavar="FILE", help="the file for the report of each run, as JSON")

    add = command("view", view, (), "read a trace of torch.profiler or Nsight Systems and write one HTML page")
    add("file", type=Path, nargs="+", metavar="FILE", help="a trace, or a folder with the traces of several ranks")
    add("--steps", type=_part, metavar="FIRST:END", help="the steps to read; 3:6 reads the steps 3, 4 and 5")
    add("--out", type=Path, default=Path("timeline.html"), metavar="PAGE", help="the page to write")
    _add_judging(command)
    add = command("run", run, (), "record a program on an emulated or a real GPU and write one HTML page")
    commands.choices["run"].usage = "loaderviz run [options] (script.py | -m module) [argument ...]"
    where = "where it runs: cuda, cpu, or a GPU to emulate, such as a100; auto takes cuda, or a100 where no GPU is"
    costs = "the computer around an emulated GPU, such as laptop; auto measures Python and data set on this machine"
    add("--on", default="auto", metavar="WHERE", help=where)
    add("--host", default="auto", metavar="HOST", help=costs)
    turns = "whether the program's threads take turns in virtual time, and so may use an emulated GPU"
    add("--threads", action=argparse.BooleanOptionalAction, default=True, help=turns)
    add("--wait", type=int, default=0, metavar="N", help="the steps at the start that are left out")
    add("--steps", type=int, metavar="N", help="the steps to record after those; all, without it")
    add("--limit", type=int, default=LIMIT, metavar="N", help="the most spans to keep of a real run")
    add("--out", type=Path, default=Path("timeline.html"), metavar="PAGE", help="the page to write")
    add("--save", type=Path, metavar="FILE", help="the file for the timeline, for `view` and read()")
    add("--json", type=Path, metavar="FILE", help="the file for numbers and findings, for `diff`")
    under = "end with status 3 if a number is less than this, such as overlap=0.9; it may be given more than once"
    add("--fail-under", action="append", default=[], metavar="NAME=NUMBER", help=under)
    over = "end with status 3 if a number is more than this, such as step=2ms; it may be given more than once"
    add("--fail-over", action="append", default=[], metavar="NAME=NUMBER", help=over)
    add("-m", dest="module", action="store_true", help="run a module, as `python -m` does")
    add("program", help="the script to run, or the module with -m")
    add("arguments", nargs=argparse.REMAINDER, metavar="argument", help="all that follows belongs to the program")

    _add_course(command)
    return parser


def _add_course(command: Callable[..., Add]) -> None:
    add = command("lessons", lessons, (), "copy the notebooks of the course into a folder")
    add("folder", type=Path, nargs="?", default=Path("lessons"), help="the folder to make; files in it are kept")
    add("--without-solutions", action="store_true", help="leave out the solved notebooks, and the links to them")
    add = command("slides", slides, ("nbconvert",), "make one HTML page of slides of a lesson, for a talk")
    add("lesson", metavar="NN", help="the number of the lesson, such as 03")
    add("--out", type=Path, default=Path("slides.html"), metavar="PAGE", help="the page to write")
    add = command("handout", handout, (), "make two pages to print: how to read the picture, the exercises, the terms")
    add("--out", type=Path, default=Path("handout.html"), metavar="PAGE", help="the page to write")
    add = command("room", room, (), "take the checks of a room of learners, and show a board of who is stuck where")
    add("--bind", default="127.0.0.1", metavar="ADDRESS", help="the address to listen at; 0.0.0.0 lets the network in")
    add("--port", type=int, default=8700, metavar="N", help="the port to listen at; 0 takes any that is free")
    add("--code", metavar="CODE", help="the code to join with, 4 to 40 letters and digits (default: a new one)")
    add("--folder", type=Path, metavar="DIR", help="the folder of the rows, in which kernels may write, too")
    command("ready", ready, (), "test in half a minute whether a workshop can be held here; print READY or a repair")


def _part(text: str) -> slice | None:
    """Read "3:6" as the numbers of steps."""
    from loaderviz.traces.steps import checked_part

    try:
        first, end = (int(each) if each else None for each in text.split(":"))
        return checked_part(slice(first, end), None)[0]
    except (TypeError, ValueError):
        raise argparse.ArgumentTypeError(
            f"{text!r} has no step in it; give the first step and the end, such as 3:6"
        ) from None


def _add_judging(command: Callable[..., Add]) -> None:
    add = command("diff", diff, (), "compare the numbers of two runs that `run --json` saved")
    add("before", type=Path, metavar="BEFORE", help="the report of the run before a change")
    add("after", type=Path, metavar="AFTER", help="the report of the run after it")
    worse = "end with status 3 if a number is worse by more than a share, such as step=10%%, and by more than chance"
    add("--fail-over", action="append", default=[], metavar="NAME=SHARE", help=worse)

    about = "compare the kernels of a trace with what the emulator would charge; end with status 1 beyond the limit"
    add = command("validate", validate, (), about)
    add("file", type=Path, nargs="+", metavar="TRACE", help="a trace that was recorded with record_shapes=True")
    add("--on", metavar="GPU", help="the preset to compare with (default: the card that the trace names)")
    add("--limit", type=float, default=0.25, metavar="SHARE", help="the largest sum of errors over the measured sum")

    about = "measure this machine as a host to emulate, or read a GPU and a host from a trace"
    add = command("calibrate", calibrate, (), about)
    add("file", type=Path, metavar="TRACE", nargs="?", help="a trace that was recorded with record_shapes=True")
    add("--on", metavar="GPU", help="the preset for what a trace does not show (default: the card that it names)")
    add("--host", default="workstation", metavar="HOST", help="the host preset for what is not measured")
    add("--save", "--out", type=Path, metavar="FILE", help="the file to write (default: my-host.toml, or my_gpu.json)")


def lessons(options: argparse.Namespace) -> None:
    """Copy the notebooks."""
    folder, kept = notebooks.copy(options.folder, not options.without_solutions)
    left = f" ({words.count(kept, 'file')} that it had already left as they were)" if kept else ""
    print(f"The lessons are in {folder}{left}. Begin with: python -m jupyterlab {folder / notebooks.FIRST}")


def slides(options: argparse.Namespace) -> None:
    """Make slides of a lesson."""
    from loaderviz.workshop import papers

    print(f"The slides are in {write(options.out, papers.slides(options.lesson))}: open it in a browser; keys go on.")


def handout(options: argparse.Namespace) -> None:
    """Make the two pages for learners."""
    from loaderviz.workshop import papers

    print(f"The handout is in {write(options.out, papers.handout())}: open it in a browser and print it.")


def room(options: argparse.Namespace) -> None:
    """Serve the board of a room until Ctrl-C."""
    from loaderviz.workshop.board import serve

    serve(options.bind, options.port, options.code or "", options.folder)


def ready(options: argparse.Namespace) -> int:
    """Test what a workshop needs."""
    return 0 if notebooks.ready() else 1


# Commands that show a timeline: `view` one from files, `run` one of a program


def view(options: argparse.Namespace) -> None:
    """Read the trace files (several: the ranks of one run), print numbers and findings, write the page."""
    from loaderviz import export

    out = writable(options.out)
    files: list[Path] = options.file
    with lasting(f"reading {files[0].name}") if len(files) == 1 and files[0].is_file() else contextlib.nullcontext():
        timeline = loaderviz.read(files[0] if len(files) == 1 else files, steps=options.steps)
    title = files[0].name if len(files) == 1 else f"{files[0].name} and {len(files) - 1} more"
    page, _ = _told(timeline, title, sys.stdout, failed=False, short=False)
    with lasting(f"writing {out}"):
        export.to_html(page, out, f"{title}: {timeline.context.device}")
    print(f"The picture is in {out}: open it in a browser.")


def validate(options: argparse.Namespace) -> int:
    """Print the tables of each trace, last a line of JSON with the totals; 1 if one is beyond the limit."""
    from loaderviz.analysis.validate import JUDGED, validate

    results = [validate(path, options.on) for path in options.file]
    for result in results:
        print(result, end="\n\n")
    print(json.dumps([result.totals() for result in results]))
    return int(any(result.measured >= JUDGED and result.error > options.limit for result in results))


def calibrate(options: argparse.Namespace) -> None:
    """Make a machine of a trace, or measure this one; save it, and say what was measured and what was kept."""
    from loaderviz.analysis.calibration import calibrate, told

    file = writable(options.save or Path("my_gpu.json" if options.file else "my-host.toml"))
    if options.file is None:
        made = calibrate(host=options.host)
        made.save(file)
        print(f"{told(made)}\nSaved as {file}: loaderviz run --host {file} script.py")
    else:
        found = calibrate(options.file, options.on, options.host)
        found.save(file)
        print(f"{found}\nSaved as {file}: loaderviz run --on {file} --host {file} script.py")


def diff(options: argparse.Namespace) -> int:
    """Compare two reports; the status is 3 where a number is worse than allowed."""
    from loaderviz.analysis import report

    found = report.differences(report.read_report(options.before), report.read_report(options.after))
    print("\n".join(map(str, found)))
    worse = report.regressions(found, options.fail_over)
    for each in worse:
        _say(each)
    return NOT_KEPT if worse else 0


def run(options: argparse.Namespace) -> int:
    """Record a program, show what was recorded, and end as it ended. Standard output is the program's alone."""
    with Stopping() as stopping:
        return stopping.status(_run(options, stopping))


def _run(options: argparse.Namespace, stopping: Stopping) -> int:
    """Return the status of the program, or of what is written of it."""
    from loaderviz.analysis import report

    for each in (*options.fail_under, *options.fail_over):  # before the program starts
        report.limit(each)
    for file in filter(None, (options.out, options.save, options.json)):
        writable(file)
    program = Program(options.program, options.arguments, is_module=options.module)
    kept = {name: getattr(options, name) for name in ("wait", "steps", "limit", "threads")}
    tell = partial(_tell, options, program, stopping)
    recording, status = record_program(program, options.on, options.host, kept, stopping, tell)
    return tell(recording, status)


def _tell(options: argparse.Namespace, program: Program, stopping: Stopping, recording: Recording, status: int) -> int:
    """Show and write what was recorded of a program that ended with a status; return the one to end with."""
    from loaderviz.timeline import DEVICE_KINDS

    timeline, stopped = recording.timeline, bool(stopping.number) or status == INTERRUPTED
    failed = status != 0 and not stopped
    if not failed and options.on != "cpu" and not timeline.where(*DEVICE_KINDS).any():
        _say("nothing of a GPU was seen: the program put no work on 'cuda'")
    emulated = timeline.context.origin == "emulated"  # a real run does not show its races
    outputs = Outputs(options, timeline, recording.hazards if emulated else ())
    if len(timeline):
        outputs.show(program.title, failed=failed, short=stopped and len(timeline) > LARGE)
    else:
        for note in timeline.context.notes:
            _say(note)
        _say("nothing was recorded, so there is no picture")
    judged = outputs.save(judge=not (failed or stopped) and len(timeline) > 0)
    return status or outputs.kept() or judged


class Outputs:
    """What `run` writes of a recording. Where one cannot be written, the others are; it is kept elsewhere then."""

    def __init__(self, options: argparse.Namespace, timeline: Timeline, hazards: Sequence[Hazard]) -> None:
        self._options, self._timeline, self._hazards = options, timeline, hazards
        self._advice: Advice | None = None
        self._lost = False

    def show(self, title: str, *, failed: bool, short: bool) -> None:
        """Print numbers and findings, and write the page; `short`: without what takes long."""
        from loaderviz import export

        page, self._advice = _told(self._timeline, title, sys.stderr, self._hazards, failed=failed, short=short)
        done = f"The picture{' until the error' if failed else ''} is in {self._options.out}: open it in a browser."
        if short:
            many = f"{len(self._timeline):,} spans"
            _say(f"advice is left out: for {many} it takes longer than a stopped program may wait")
        self._write(done, lambda: export.to_html(page, self._options.out, f"{title}: {self._timeline.context.device}"))

    def save(self, *, judge: bool) -> int:
        """Save report and timeline, return 3 if there is anything to `judge` and a limit is not kept."""
        from loaderviz.analysis import Advice, report

        options, broken = self._options, list[str]()
        if options.json or options.fail_under or options.fail_over:
            advice = self._advice or Advice([], "nothing: the program was stopped, or nothing was recorded", (0, 0))
            found = report.report(self._timeline, len(self._hazards), advice)
            if options.json:
                text = json.dumps(found, indent=1) + "\n"
                self._write(f"loaderviz: the report is saved in {options.json}", lambda: write(options.json, text))
            broken = report.broken(found, options.fail_under, options.fail_over) if judge else []
        if options.save:
            done = f"loaderviz: the timeline is saved in {options.save}"
            self._write(done, lambda: self._timeline.save(options.save))
        for each in broken:
            _say(each)
        return NOT_KEPT if broken else 0

    def kept(self) -> int:
        """Keep the recording in the temporary folder if anything of it could not be written; return 1 then."""
        if self._lost:
            file = Path(tempfile.gettempdir()) / f"loaderviz-{os.getpid()}.json.gz"
            done = f"loaderviz: the recording is kept in {file}: python -m loaderviz view {file}"
            self._write(done, lambda: write(file, gzip.compress(json.dumps(self._timeline.to_dict()).encode())))
        return FAILED if self._lost else 0

    def _write(self, done: str, write: Callable[[], object]) -> None:
        try:
            with lasting("writing what was recorded"):
                write()
        except (LoadervizError, OSError, MemoryError) as problem:
            self._lost = True
            _say(str(problem) or "there is not enough memory for this")
        else:
            print(done, file=sys.stderr)


def _told(
    timeline: Timeline, title: str, stream: TextIO, hazards: Sequence[Hazard] = (), *, failed: bool, short: bool
) -> tuple[list[Section], Advice | None]:
    """Print numbers and findings, of a program that failed only what was recorded; return the page, and findings."""
    from loaderviz import export, metrics
    from loaderviz.analysis.advice import advise

    summary, context = loaderviz.summarize(timeline), timeline.context
    with lasting(f"looking for what could be gained, in {words.count(len(timeline), 'span')}"):
        advice = None if short else advise(timeline)
    clock = [] if context.origin == "emulated" else [f"Clock: {context.clock}."]
    notes = [*clock, *(f"{note[:1].upper()}{note[1:]}." for note in context.notes)]
    races = [export.Section("Races: wrong on a real GPU, now and then", items=list(hazards))]
    picture = timeline if failed or advice is None else export.advised(timeline, advice)
    ranks = export.ranks(timeline)
    sections = [export.Section("Timeline", items=[picture, summary, *ranks, *notes]), *(races if hazards else [])]
    spans, lanes = words.count(len(timeline), "span"), words.count(len(timeline.lanes), "lane")
    lines = [f"{title}: {context.device}; {spans} in {lanes}"]
    if not failed:
        found = [advice] if advice is not None else []
        sections += [export.Section("What could be gained", items=found)] if found else []
        lines.append(f"{words.wrapped(metrics.describe(timeline), most=sys.maxsize)}\n")
        lines += [f"{part}\n" for part in (summary, *ranks, *found)]
    lines += [
        *(f"race: {hazard}\n" for hazard in hazards),
        *(words.wrapped(f"note: {each}", most=sys.maxsize) for each in context.notes),
    ]
    print("\n".join(lines), file=stream)
    return sections, advice


def _say(text: str) -> None:
    print(f"loaderviz: {text}", file=sys.stderr)


# `run` runs a program inside a recording, as Python would: it sees its arguments in `sys.argv`, its folder in
# `sys.path[0]`, itself as `__main__` (so that worker processes find its classes, by fork or spawn). However it ends, by
# `sys.exit`, an error or Ctrl-C, what was recorded until then is kept, and the exit status is the program's own.


class ProgramError(LoadervizError, RuntimeError):
    """There is no such program, or it is none."""


class Program:
    """A script of Python source, or with `is_module` a module, and its arguments. Raises `ProgramError` without one."""

    def __init__(self, name: str, arguments: Sequence[str] = (), *, is_module: bool = False) -> None:
        self.name, self.arguments, self.is_module = name, list(arguments), is_module
        self.title = name if is_module else Path(name).name
        if not is_module:
            _check_script(Path(name))

    def run(self, stopping: Stopping) -> int:
        """Run it to its end, or to a signal, and return its exit status; an error is printed as Python prints it."""
        try:
            with self._environment():
                stopping.begin()
                if self.is_module:
                    _check_module(self.name)
                    runpy.run_module(self.name, run_name="__main__", alter_sys=True)
                else:
                    self._run_source(Path(self.name).absolute())
        except SystemExit as stop:
            return _exit_status(stop)
        except KeyboardInterrupt:
            by = f" by {signal.Signals(stopping.number).name}" if stopping.number else ""
            _say(f"stopped{by}")
            return INTERRUPTED
        except ProgramError:
            raise
        except BaseException as error:
            _print_error(error)
            return FAILED
        finally:
            stopping.end()
        return 0

    def _run_source(self, path: Path) -> None:
        """Run a file of source as `__main__`. (Of `runpy.run_path`, `sys.argv` and `__file__` have the same path.)"""
        loader = SourceFileLoader("__main__", str(path))
        self._main = main = ModuleType("__main__")
        main.__dict__.update(__file__=str(path), __loader__=loader, __builtins__=builtins)
        before, sys.modules["__main__"] = sys.modules["__main__"], main
        try:
            exec(loader.source_to_code(loader.get_data(str(path)), str(path)), main.__dict__)
        finally:
            sys.modules["__main__"] = before

    @contextlib.contextmanager
    def _environment(self) -> Iterator[None]:
        """Set `sys.argv` and `sys.path` as Python itself does, and its own streams; put them back."""
        argv, path, streams = sys.argv, list(sys.path), [sys.stdout, sys.stderr]
        own = [getattr(stream, "stream", stream) for stream in streams]
        sys.stdout, sys.stderr = own
        sys.argv = ["-m" if self.is_module else self.name, *self.arguments]
        if not sys.flags.safe_path:
            sys.path[0] = str(Path.cwd() if self.is_module else Path(self.name).resolve().parent)
        try:
            yield
        finally:
            sys.argv, sys.path[:] = argv, path
            if [sys.stdout, sys.stderr] == own:  # the program may have set others, which stay, as in Python
                sys.stdout, sys.stderr = streams


def record_program(
    program: Program,
    on: str,
    host: str,
    kept: dict[str, Any],
    stopping: Stopping,
    tell: Callable[[Recording, int], int],
) -> tuple[Recording, int]:
    """Run a program in a recording; return the recording, which is over, and the program's exit status.

    Where it ends by `os._exit`, this never returns: the same two go to `tell`, which returns the status to end with.

    The options are those of `loaderviz.record`, `kept` has `wait`, `steps`, `limit` and `threads`; `host` has no
    meaning in a real run. Raises what `record` raises for an option that means nothing, and `ProgramError` without such
    a module.
    """

    def leave(status: int) -> int:
        stopping.end()
        try:
            with lasting("making the timeline"):
                recording.__exit__(None, None, None)
            return stopping.status(tell(recording, status))
        except BaseException as error:
            _print_error(error)
            return status or FAILED

    lost = partial(_say, "a thread of the program has called os._exit, so nothing that was recorded is kept")
    process = os.getpid()
    recording = loaderviz.record(on, host=host, **kept)
    recording.warn = False  # the races are printed
    try:
        with contextlib.ExitStack() as end, recording, cured_imports(), before_exit(leave, lost):
            status = program.run(stopping)
            if os.getpid() != process:  # a child of the program's own os.fork() has come here; the parent shows it all
                os._exit(status)
            end.enter_context(lasting("making the timeline"))
    except NotModelledError as refused:  # in a thread of the program, which went on
        _print_error(refused)
        status = status or FAILED
    try:
        sys.stdout.flush()
    except OSError as problem:  # a full disk
        _say(f"what the program printed could not be written to standard output: {problem.strerror}")
        _lead_nowhere(sys.stdout)
        status = status or FAILED
    return recording, status


def _check_script(path: Path) -> None:
    if not path.exists():
        raise ProgramError(f"cannot run {path}: there is no such file. A module is run with `run -m {path.name}`")
    if path.suffix == ".ipynb":
        raise ProgramError(f"cannot run {path}: it is a notebook. In it, `%load_ext loaderviz` and `%%timeline` record")
    if path.is_dir():
        raise ProgramError(f"cannot run {path}: it is a folder; name a script in it, or a module with -m")
    start = path.read_bytes()[:4096] if path.is_file() else b""  # it may be a pipe, too
    if b"\0" in start or start.startswith((b"\x1f\x8b", b"\x89PNG")):
        raise ProgramError(f"cannot run {path}: it is no Python source; `view` shows a trace file")


def _check_module(name: str) -> None:
    """Raise `ProgramError` unless there is a module of this name that can be run."""
    spec = None
    try:
        if all(part.isidentifier() for part in name.split(".")):
            spec = importlib.util.find_spec(name)
    except ModuleNotFoundError as problem:
        if not f"{name}.".startswith(f"{problem.name}."):
            raise  # a parent package itself lacks something
    if spec is None:
        raise ProgramError(f"cannot run -m {name}: no module of this name is found from {sys.path[0]}")
    if spec.submodule_search_locations is not None and importlib.util.find_spec(f"{name}.__main__") is None:
        raise ProgramError(f"cannot run -m {name}: it is a package without a __main__ module")


def _exit_status(stop: SystemExit) -> int:
    """Return the status that Python would exit with; a text is printed."""
    if stop.code is None:
        return 0
    if isinstance(stop.code, int):
        return stop.code
    print(stop.code, file=sys.stderr)
    return FAILED


def _print_error(error: BaseException) -> None:
    """Print an uncaught error as Python does, by the program's own `sys.excepthook` if it has set one."""
    sys.stdout.flush()
    clean(error)
    sys.excepthook(type(error), error, error.__traceback__)
