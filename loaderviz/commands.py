"""The commands of `python -m loaderviz` that look at what is already there."""

from __future__ import annotations

import argparse
from pathlib import Path


def view(options: argparse.Namespace) -> int:
    """Read the trace files (several: the ranks of one run), print the numbers, write the page."""
    from loaderviz import export, metrics
    from loaderviz.files import writable
    from loaderviz.reading import read

    out = writable(options.out)
    files: list[Path] = options.file
    timeline = read(files[0] if len(files) == 1 else files)
    title = files[0].name if len(files) == 1 else f"{files[0].name} and {len(files) - 1} more"
    summary = metrics.summarize(timeline)
    context = timeline.context
    notes = [f"Clock: {context.clock}.", *(f"{note[:1].upper()}{note[1:]}." for note in context.notes)]
    section = export.Section("Timeline", "", [timeline, summary, *notes])
    export.to_html(section, out, f"{title}: {context.device}")
    print(f"{title}: {context.device}; {len(timeline):,} spans in {len(timeline.lanes)} lanes")
    print(metrics.describe(timeline))
    print(f"\n{summary}\n")
    for note in context.notes:
        print(f"note: {note}")
    print(f"The picture is in {out}: open it in a browser.")
    return 0
