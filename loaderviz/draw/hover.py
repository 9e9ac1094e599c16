"""The text on a bar and the text under the mouse. Names may hold "<", which plotly would read as a tag."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np
import numpy.typing as npt

from loaderviz import words
from loaderviz.draw.detail import Bars
from loaderviz.draw.names import shorten
from loaderviz.metrics import BATCH_RANGE
from loaderviz.timeline import COPIES, Cause, Kind, Span

Shares = npt.NDArray[np.float64]

_TEXT_LENGTHS = (14, 90)  # letters of a name on a bar, at least and at most; a browser leaves out what does not fit
_NEXT_BATCH = "enumerate(DataLoader)#"  # and the name of a class of PyTorch: the loop asks for its next batch
_BY_BATCH = (Kind.COMPUTE, Kind.COMMUNICATION, *COPIES, Kind.COPY_D2D, Kind.MEMSET, Kind.FETCH, Kind.PIN)


def hover_texts(rows: Sequence[Span], hidden: Shares, bars: Bars, origin: int) -> list[str]:
    """Return the hover text of each bar.

    `rows` are the spans of the bars (of merged ones, one that prevails), `hidden` their `metrics.hidden_shares`,
    `origin` [ns] is time 0.
    """
    texts = []
    shares, counts = hidden.tolist(), bars.count.tolist()
    for number, (row, count) in enumerate(zip(rows, counts, strict=True)):
        if count == 1:
            texts.append("<br>".join(_lines(row, shares[number], origin)))
            continue
        start, end = int(bars.start[number]), int(bars.end[number])
        texts.append(
            f"<b>{count} spans</b>, busy {words.duration(int(bars.busy[number]))} of "
            f"{words.duration(end - start)}<br>mostly {row.kind.name.lower().replace('_', ' ')}, such as "
            f"{shorten(row.name)}<br>from {words.duration(start - origin)}<br>{escape(row.lane.name)}"
            "<br>a shorter window shows them singly"
        )
    return texts


def bar_text(row: Span, by_batch: bool, letters: int) -> str:
    """Return what stands on a bar in which about `letters` letters have room."""
    if row.kind is Kind.WAIT:
        return row.cause.words if row.cause else "blocked"
    if row.kind in _BY_BATCH and row.batch >= 0 and (by_batch or row.kind in (Kind.FETCH, Kind.PIN)):
        return str(row.batch)
    if row.kind in COPIES and row.nbytes > 0:
        return words.size(row.nbytes)
    if row.kind is Kind.RANGE and BATCH_RANGE.fullmatch(row.name):
        batch = row.name.partition(":")[0]
        return batch if len(batch) <= letters else batch.removeprefix("batch ")
    if row.name.startswith(_NEXT_BATCH):
        return "next batch" if letters >= len("next batch") else "next"
    least, most = _TEXT_LENGTHS
    return shorten(row.name, max(least, min(letters, most)))


def _lines(row: Span, hidden: float, origin: int) -> list[str]:
    lines = [f"<b>{shorten(row.name)}</b>", escape(row.lane.name, quote=False)]
    if row.batch >= 0:
        lines[1] += f", batch {row.batch}"
    lines.append(f"{words.duration(row.duration)}, from {words.duration(row.start - origin)}")
    if row.nbytes >= 0:
        speed = f", {row.nbytes / row.duration:.3g} GB/s" if row.duration and row.nbytes else ""  # bytes per ns
        lines.append(words.size(row.nbytes) + speed)
    if row.pinned is not None:
        lines.append("pinned host memory" if row.pinned else "pageable host memory")
    if hidden == hidden:  # no NaN: it is a copy
        lines.append(f"{words.share(hidden)} of it hidden under kernels")
    if row.cause is not Cause.NONE:
        lines.append(f"host blocked: {row.cause.words}")
    if row.source:
        lines.append(escape(words.place(row.source), quote=False))
    return lines
