"""A Summary as a table: plain text, HTML and Markdown, all from the same rows. Standard library only."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from loaderviz import words

if TYPE_CHECKING:
    from loaderviz.metrics import Summary

Row = tuple[str, str, str]  # what, how much, remark
_A_RATE = 1e8  # bytes/s; below it all copies were tiny, such as one loss, and the number is their latency's (R22)


def rows(summary: Summary) -> list[Row]:
    """Return the lines of the table: what, how much with its unit, and a remark such as the share of the window."""
    window = summary.window
    lines = [("window", words.duration(window), _device(summary))]
    if summary.batches:
        lines.append(("step", words.duration(summary.step), words.count(summary.batches, "batch")))
    if summary.samples_per_second is not None:
        rate = f"{words.rate(summary.samples_per_second)} samples/s"
        lines.append(("throughput", rate, words.count(summary.samples or 0, "sample")))
    lines += [
        ("GPU computes", words.duration(summary.compute), _of(summary.compute, window)),
        *([("GPU communicates", words.duration(summary.communication), _of(summary.communication, window))]
          if summary.communication else []),
        ("GPU idle", words.duration(summary.idle), _of(summary.idle, window)),
        ("copy", words.duration(summary.copy), _of(summary.copy, window)),
        ("copy hidden", words.duration(summary.hidden_copy), _of(summary.hidden_copy, summary.copy, "the copy")),
        ("copy exposed", words.duration(summary.exposed_copy), _of(summary.exposed_copy, window)),
        *((f"copy rate {kind}", f"{rate / 1e9:.3g} GB/s", "") for kind, rate in summary.bandwidth.items()
          if rate > _A_RATE),
        *((f"host blocked: {cause}", words.duration(time), _of(time, window))
          for cause, time in summary.host_blocked.items()),
        ("limit", words.duration(summary.limit), _longest(summary)),
        ("headroom", words.times(summary.headroom), "window / limit"),
    ]  # fmt: skip
    return lines


def breakdown_rows(summary: Summary) -> list[Row]:
    """Return the lines of the breakdown; they sum to the window."""
    return [(name, words.duration(time), _of(time, summary.window)) for name, time in summary.breakdown.items()]


def as_text(summary: Summary) -> str:
    """Return the table as lines of text, columns aligned."""
    table, parts = rows(summary), breakdown_rows(summary)
    left = max(len(row[0]) for row in (*table, *parts))
    middle = max(len(row[1]) for row in (*table, *parts))
    lines = [f"{what:<{left}}  {much:>{middle}}  {remark}".rstrip() for what, much, remark in table]
    if parts:
        lines += ["", "where the window goes (sums to it)"]
        lines += [f"{what:<{left}}  {much:>{middle}}  {remark}".rstrip() for what, much, remark in parts]
    return "\n".join(lines)


def as_html(summary: Summary) -> str:
    """Return the table as HTML."""
    head = '<table><thead><tr><th style="text-align:left">{}</th><th></th><th></th></tr></thead><tbody>'
    body = head.format("Summary") + "".join(map(_html_row, rows(summary))) + "</tbody></table>"
    parts = breakdown_rows(summary)
    if parts:
        body += head.format("Where the window goes (sums to it)") + "".join(map(_html_row, parts)) + "</tbody></table>"
    return body


def as_markdown(summary: Summary) -> str:
    """Return the table as Markdown."""
    lines = [*rows(summary), *((f"in it: {what}", much, remark) for what, much, remark in breakdown_rows(summary))]
    return "\n".join(["| what | how much | |", "|---|---:|---|", *(f"| {' | '.join(line)} |" for line in lines)])


def _html_row(row: Row) -> str:
    what, much, remark = map(escape, row)
    return f'<tr><td style="text-align:left">{what}</td><td style="text-align:right">{much}</td>' \
           f'<td style="text-align:left">{remark}</td></tr>'  # fmt: skip


def _of(part: float, whole: float, name: str = "the window") -> str:
    return f"{words.share(part / whole)} of {name}" if whole else ""


def _longest(summary: Summary) -> str:
    if not summary.limit:
        return "no work on the GPU"
    engines = {"kernels": summary.kernels, "H2D copies": summary.h2d, "D2H copies": summary.d2h}
    return f"{max(engines, key=lambda name: engines[name])} alone"


def _device(summary: Summary) -> str:
    others = len(summary.devices) - 1
    return f"device {summary.device} of {others + 1}" if others else ""
