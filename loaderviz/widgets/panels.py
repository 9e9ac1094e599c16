"""Panels: the words and numbers beside an interactive figure, as HTML. Plain functions; they follow the page's theme.

Colours are JupyterLab's own variables, so that dark and light theme both read well; elsewhere the fallbacks hold.
"""

from __future__ import annotations

from html import escape

from loaderviz import words
from loaderviz.metrics import Summary

INK, SOFT, LINE, BACK = (
    "var(--jp-ui-font-color1,#222)", "var(--jp-ui-font-color2,#555)", "var(--jp-border-color1,#bbb)",
    "var(--jp-layout-color2,#f3f3f3)",
)  # fmt: skip
_MONO = "font-family:var(--jp-code-font-family,monospace);font-size:13px;line-height:1.45"
_WRAPPED = "white-space:pre-wrap;overflow-wrap:anywhere;padding-left:10ch;text-indent:-10ch"  # long lines go on below
# The page may be served over plain http, where browsers have no clipboard API: then the text is selected and copied.
_COPY = (
    "const b=this,p=b.parentElement.parentElement.querySelector('pre'),t=p.textContent,"
    "d=()=>{b.textContent='copied';setTimeout(()=>b.textContent='copy the code',1500)},"
    "o=()=>{const s=getSelection();s.selectAllChildren(p);document.execCommand('copy');s.removeAllRanges();d()};"
    "navigator.clipboard?navigator.clipboard.writeText(t).then(d,o):o()"
)


def numbers(summary: Summary) -> str:
    """Return the few numbers that count, big, with units."""
    hidden = "no copies" if summary.overlap is None else words.share(summary.overlap)
    cells = [
        ("step", words.duration(summary.step)),
        ("throughput", _throughput(summary.samples_per_second)),
        ("GPU computes", words.share(summary.compute_share)),
        ("copy hidden", hidden),
        ("against the limit", words.times(summary.headroom)),
    ]
    shown = "".join(
        f"<div style='padding:2px 18px 2px 0'><div style='color:{SOFT};font-size:13px'>{escape(name)}</div>"
        f"<div style='color:{INK};font-size:22px;font-weight:600;white-space:nowrap'>{escape(value)}</div></div>"
        for name, value in cells
    )
    return f"<div style='display:flex;flex-wrap:wrap;line-height:1.3'>{shown}</div>"


def _throughput(rate: float | None) -> str:
    if rate is None:
        return "–"
    return f"{rate / 1e6:.3g} M samples/s" if rate >= 1e6 else f"{words.rate(rate)} samples/s"


def paragraph(text: str, label: str = "", live: bool = False) -> str:
    """Return a line of words; `live` ones are read out by screen readers when they change."""
    lead = f"<b>{escape(label)}</b> " if label else ""
    role = " role='status' aria-live='polite'" if live else ""
    return f"<p{role} style='color:{INK};font-size:14px;line-height:1.45;margin:4px 0'>{lead}{escape(text)}</p>"


def problem(text: str) -> str:
    """Return an error that the reader can mend, set apart by a border and the word."""
    return (
        f"<p role='alert' style='color:{INK};border-left:4px solid #D55E00;padding:4px 10px;margin:4px 0;"
        f"font-size:14px'><b>This does not work:</b> {escape(text)}</p>"
    )


def code(text: str, title: str) -> str:
    """Return source text with a button that copies it."""
    button = f"<button type='button' class='jupyter-button' onclick=\"{escape(_COPY)}\">copy the code</button>"
    return (
        f"<div><div style='display:flex;justify-content:space-between;align-items:center;color:{INK};"
        f"font-size:14px'><b>{escape(title)}</b>{button}</div>"
        f"<pre tabindex='0' style='{_MONO};color:{INK};background:{BACK};padding:8px 10px;overflow:auto;"
        f"margin:4px 0'>{escape(text)}</pre></div>"
    )


def listing(lines: list[tuple[int, str]], current: int) -> str:
    """Return numbered source lines; the current one has an arrow and a frame."""
    rows = []
    for number, text in lines:
        here = number == current
        frame = f"background:{BACK};outline:1px solid {LINE};font-weight:600;" if here else ""
        rows.append(f"<div style='{frame}{_WRAPPED}'>{'▶' if here else ' '} {number:>4}  {escape(text.rstrip())}</div>")
    return f"<div style='{_MONO};color:{INK}'>{''.join(rows)}</div>"


def table(head: list[str], rows: list[list[str]], empty: str = "nothing") -> str:
    """Return a small table of words; `empty` stands for no rows."""
    if not rows:
        return f"<p style='color:{SOFT};font-size:14px;margin:2px 0'>{escape(empty)}</p>"
    cell = (
        f"padding:2px 10px 2px 0;border-bottom:1px solid {LINE};text-align:left;vertical-align:top;font-size:13px;"
        "line-height:1.35"
    )
    names = "".join(f"<th style='{cell};color:{SOFT}'>{escape(name)}</th>" for name in head)
    top = f"<thead><tr>{names}</tr></thead>" if any(head) else ""
    body = "".join(
        "<tr>" + "".join(f"<td style='{cell};color:{INK}{_whole(value)}'>{_unbroken(value)}</td>" for value in row)
        + "</tr>"
        for row in rows
    )  # fmt: skip
    return f"<table style='border-collapse:collapse'>{top}<tbody>{body}</tbody></table>"


def _whole(value: str) -> str:
    """Return the style that keeps a short label, such as "launched by", in one line."""
    return ";white-space:nowrap" if len(value) < 12 else ""


def _unbroken(value: str) -> str:
    """Return a cell's words as HTML; a line does not end inside of "->", which names of copies have."""
    return escape(value.replace("->", "-\u2060>"))
