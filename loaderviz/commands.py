"""The commands of `python -m loaderviz` that show a timeline: `view` one from files, `run` one of a program."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from loaderviz import words

if TYPE_CHECKING:
    from loaderviz.emulator.findings import Hazard
    from loaderviz.timeline import Timeline


def view(options: argparse.Namespace) -> int:
    """Read the trace files (several: the ranks of one run), print numbers and findings, write the page."""
    from loaderviz.files import writable
    from loaderviz.reading import read

    out = writable(options.out)
    files: list[Path] = options.file
    timeline = read(files[0] if len(files) == 1 else files)
    title = files[0].name if len(files) == 1 else f"{files[0].name} and {len(files) - 1} more"
    _show(timeline, title, out, sys.stdout)
    return 0


def run(options: argparse.Namespace) -> int:
    """Record a program, show what was recorded, and end as it ended. Standard output is the program's alone."""
    from loaderviz.files import writable
    from loaderviz.running import Program, record_program
    from loaderviz.timeline import DEVICE_KINDS

    out, save = writable(options.out), options.save and writable(options.save)
    program = Program(options.program, options.arguments, is_module=options.module)
    recording, status = record_program(program, options.on, options.host, options.wait, options.steps)
    timeline = recording.timeline
    if save:
        timeline.save(save)
        _say(f"the timeline is saved in {save}")
    if options.on != "cpu" and not timeline.where(*DEVICE_KINDS).any():
        _say("nothing of a GPU was seen: the program put no work on 'cuda'")
    if not len(timeline):
        _say("nothing was recorded, so there is no picture")
        return status
    emulated = timeline.context.origin == "emulated"  # a real run does not show its races
    _show(timeline, program.title, out, sys.stderr, recording.hazards if emulated else ())
    return status


def _show(timeline: Timeline, title: str, out: Path, stream: TextIO, hazards: Sequence[Hazard] = ()) -> None:
    """Print the numbers and what could be gained, and write the page with the picture."""
    from loaderviz import export, metrics
    from loaderviz.advice import advise

    summary, advice, context = metrics.summarize(timeline), advise(timeline), timeline.context
    clock = [] if context.origin == "emulated" else [f"Clock: {context.clock}."]
    notes = [*clock, *(f"{note[:1].upper()}{note[1:]}." for note in context.notes)]
    races = [export.Section("Races: wrong on a real GPU, now and then", items=list(hazards))]
    sections = [
        export.Section("Timeline", items=[timeline, summary, *notes]), *(races if hazards else []),
        export.Section("What could be gained", items=[advice]),
    ]  # fmt: skip
    export.to_html(sections, out, f"{title}: {context.device}")
    spans, lanes = words.count(len(timeline), "span"), words.count(len(timeline.lanes), "lane")
    lines = [
        f"{title}: {context.device}; {spans} in {lanes}",
        f"{metrics.describe(timeline)}\n\n{summary}\n\n{advice}\n",
        *(f"race: {hazard}\n" for hazard in hazards), *(f"note: {note}" for note in context.notes),
        f"The picture is in {out}: open it in a browser.",
    ]  # fmt: skip
    print("\n".join(lines), file=stream)


def _say(text: str) -> None:
    print(f"loaderviz: {text}", file=sys.stderr)
