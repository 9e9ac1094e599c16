"""The command line: `compare` the four loaders on MNIST, `view` a trace, `run` a program; each writes one HTML page."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from loaderviz.commands import run, view
from loaderviz.errors import LoadervizError

if TYPE_CHECKING:
    from loaderviz.draw import Comparison
    from loaderviz.experiment import Run, Setting
    from loaderviz.export import Section

USAGE_ERROR = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return the exit status: 0 done, 1 it failed, 2 the command was not understood."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.command is None:
        parser.print_help()
        return USAGE_ERROR
    try:
        status: int = options.run(options)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (LoadervizError, OSError) as problem:
        print(f"loaderviz: {problem}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("loaderviz: stopped", file=sys.stderr)
        return 130


def compare(options: argparse.Namespace) -> int:
    """Run the four loaders at each batch size, print the tables, write the page."""
    from tqdm import tqdm

    from loaderviz import experiment, export
    from loaderviz.emulator.hardware import Gpu, Host
    from loaderviz.files import writable

    gpu, host = Gpu.preset(options.on), Host.preset(options.host)
    out = writable(options.out)
    sizes = options.batch_size or [experiment.SMALL_BATCH, experiment.LARGE_BATCH]
    numbers = options.steps, options.warmup, options.workers, options.depth
    settings = [experiment.Setting(size, *numbers) for size in sizes]
    sections = []
    with tqdm(total=len(settings) * len(experiment.LOADERS), unit="run", leave=False, disable=None) as bar:

        def done(name: str) -> None:
            bar.set_description(f"batch {setting.batch_size}: {name}")
            bar.update()

        for setting in settings:
            runs = experiment.four_loaders(setting, gpu, host, done)
            section, text = _section(setting, runs, gpu.name, host.name)
            sections.append(section)
            bar.write(text, file=sys.stdout)
    export.to_html(sections, out, f"Four ways to feed a GPU: MNIST on an emulated {gpu.name}")
    print(f"The pictures are in {out}: open it in a browser.")
    return 0


def _section(setting: Setting, runs: dict[str, Run], gpu: str, host: str) -> tuple[Section, str]:
    """Return one batch size as a section of the page, and as text for the terminal."""
    from loaderviz import experiment
    from loaderviz.draw import compare
    from loaderviz.export import Section

    timelines = {name: run.timeline for name, run in runs.items()}
    losses = {name: run.loss for name, run in runs.items()}
    comparison: Comparison = compare(timelines, color="batch")
    heading = f"Batch size {setting.batch_size}"
    verdict = experiment.verdict(timelines)
    equal = losses["blocking"] == losses["pinned"] == losses["prefetch"]
    check = (
        f"{setting.steps} steps after {setting.warmup} of warm-up, {setting.workers} workers; host costs: {host}. "
        f"The loss of the last batch is {losses['blocking']:.6f} with each of the three DataLoader-fed loaders"
        f"{', bit for bit' if equal else ' of one, NOT of the others'}; {losses['resident']:.6f} with the resident "
        "one, which shuffles by itself."
    )
    table = comparison.table().T.to_string(float_format="{:,.2f}".format)
    text = f"{heading} on an emulated {gpu}\n\n{table}\n\n{verdict}\n{check}\n"
    return Section(heading, verdict, [comparison, check]), text


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="loaderviz", description="Does my data reach the GPU while the GPU is computing, and if not, why?"
    )
    commands = parser.add_subparsers(dest="command", metavar="command")
    add = commands.add_parser(
        "compare", help="run the four loaders on MNIST, print the tables, write one HTML page",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )  # fmt: skip
    add.add_argument("--on", default="a100", metavar="GPU", help="the GPU to emulate: a100, t4, h200, laptop, …")
    add.add_argument("--host", default="workstation", help="the computer around it: laptop or workstation")
    add.add_argument(
        "--batch-size", type=int, action="append", metavar="N",
        help="samples in a batch; may be given more than once (default: 64 and 8192)",
    )  # fmt: skip
    add.add_argument("--workers", type=int, default=4, metavar="N", help="DataLoader worker processes")
    add.add_argument("--depth", type=int, default=2, metavar="N", help="batches that the prefetcher is ahead")
    add.add_argument("--steps", type=int, default=12, metavar="N", help="batches in the picture")
    add.add_argument("--warmup", type=int, default=12, metavar="N", help="batches before it")
    add.add_argument("--out", type=Path, default=Path("timelines.html"), metavar="FILE", help="the page to write")
    add.set_defaults(run=compare)
    add = commands.add_parser("view", help="show a trace of torch.profiler or Nsight Systems as one HTML page")
    add.add_argument("file", type=Path, nargs="+", metavar="FILE", help="a trace, a folder of ranks, or several ranks")
    add.add_argument("--out", type=Path, default=Path("timeline.html"), metavar="PAGE", help="the page to write")
    add.set_defaults(run=view)
    _add_run(commands)
    return parser


def _add_run(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    add = commands.add_parser(
        "run", help="record a program on an emulated or a real GPU, show it as one HTML page",
        usage="loaderviz run [options] (script.py | -m module) [argument ...]",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )  # fmt: skip
    where = "auto (the real GPU, else an emulated A100), cuda, cpu, or a GPU to emulate: a100, t4, h200, …"
    costs = "costs around an emulated GPU: of this machine (measured), laptop or workstation"
    add.add_argument("--on", default="auto", metavar="WHERE", help=where)
    add.add_argument("--host", default="measured", metavar="HOST", help=costs)
    add.add_argument("--wait", type=int, default=0, metavar="N", help="leave out the first N steps")
    add.add_argument("--steps", type=int, metavar="N", help="record N steps after that, not all")
    add.add_argument("--out", type=Path, default=Path("timeline.html"), metavar="PAGE", help="the page to write")
    add.add_argument("--save", type=Path, metavar="FILE", help="save the timeline itself, for `view` or read()")
    add.add_argument("-m", dest="module", action="store_true", help="run a module, as `python -m` does")
    add.add_argument("program", help="the script, or with -m the module")
    add.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="argument", help="all that follows is the program's"
    )
    add.set_defaults(run=run)


if __name__ == "__main__":
    sys.exit(main())
