"""The still picture: what the view shows first, as SVG without a browser, for places that run no scripts.

It has the lanes, tracks, colours and order of the view. Bars narrower than a pixel are merged as `pack.merge` merges
them, so that the area of a colour stays its time. Bars of one colour are one path: about 25 bytes a bar.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from html import escape
from textwrap import wrap

import numpy as np

from loaderviz import words
from loaderviz.timeline import COPIES, KERNELS, ArrowKind, Ints, Kind
from loaderviz.view import spoken, theme
from loaderviz.view.lanes import Row
from loaderviz.view.pack import Bars, Part, merge
from loaderviz.view.theme import Style

WIDTH = 960  # px
BARS = 1_300  # of all parts together; more would be a picture of more than 60 kB
_LANES, _RIGHT = 176, 16  # px: room for the names of lanes, and to the right of the bars
_TRACKS = {"host": 20, "engine": 14, "stream": 24, "strip": 24}  # px; of an engine as slim as its copies
_GAP = 4  # px between two lanes
_LETTER, _WIDE, _LINE = 6.1, 12, 17  # px of a letter of the text on bars, of a Chinese one, and of a line
_LEGEND = 6.8  # px of a letter of the legend
_TEXTS = 250  # bars with text on them, the longest
_MARKS = 3  # hazards drawn in full
_TICKS = 12
_THIN = (((*COPIES, Kind.COPY_D2D), "copy"), ((Kind.MEMSET,), "memset"))  # what the legend calls thin bars
_SHAPES = {  # of patterns, in squares of 6 px, drawn in the colour `{0}`
    "/": '<path d="M-1 1L1 -1M0 6L6 0M5 7L7 5" stroke="{0}" stroke-width="1.5"/>',
    "x": '<path d="M0 0L6 6M6 0L0 6" stroke="{0}"/>',
    ".": '<circle cx="3" cy="3" r="1.6" fill="{0}"/>',
}
_ARROW = (
    '<marker id="a" markerWidth="9" markerHeight="8" refX="8" refY="4" orient="auto" markerUnits="userSpaceOnUse">'
    '<path d="M0 0L9 4L0 8Z"/></marker>'
)


@dataclass(frozen=True)
class _Place:
    """Where a part is: the tops of its tracks [px], and its bars as drawn."""

    part: Part
    bars: Bars
    tops: list[float]
    heights: list[float]
    top: float
    bottom: float

    def box(self, bar: int) -> tuple[float, float]:
        """Return top and height of a bar [px]: a copy hangs from the top of its lane."""
        track, style = int(self.bars.track[bar]), theme.STYLES[int(self.bars.style[bar])]
        high = self.heights[track] - 2
        return self.tops[track] + 1, high if self.part.tracks[track].kind == "engine" else round(high * style.height)


def svg(
    title: str, subtitle: str, twin: str, parts: Sequence[Part], by_batch: bool, window: tuple[int, int] | None
) -> str:
    """Return the picture of the window [ns from each part's begin; None: all], its words above; `twin` describes it."""
    lines = wrap(title, 105) + [f"·{line}" for line in wrap(subtitle, 140)]
    first, last = window or (0, max((part.timeline.duration for part in parts), default=0))
    top = 14.0 + _LINE * len(lines)
    places = []
    for part in parts:
        places.append(_place(part, _within(part, first, last, BARS // len(parts)), top, len(parts) > 1))
        top = places[-1].bottom
    scale = (WIDTH - _LANES - _RIGHT) / ((last - first) or 1)
    styles: dict[Style, str] = {}
    drawn = "".join(part for place in places for part in _bars(place, first, scale, by_batch, styles))
    marks = "".join(part for place in places for part in _marks(place, first, last, scale))
    told = [
        line
        for part in parts
        for mark in part.timeline.marks[:_MARKS]
        for line in wrap(f"{mark.kind}: {mark.text}", 140)
    ]
    waits = [line for place in places for line in _waits(place, first, scale)]
    below = [
        f'<text x="12" y="{top + 48 + _LINE * place:.0f}">{escape(line)}</text>' for place, line in enumerate(told)
    ]
    top += _LINE * len(told)
    legend, height = _legend(places, by_batch, bool(waits), top + 40, styles)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img" font-family="system-ui,sans-serif" font-size="12" fill="{theme.TEXT}">'
    )
    patterns = (
        f'<pattern id="{name}" width="6" height="6" patternUnits="userSpaceOnUse"><rect width="6" height="6" '
        f'fill="{style.back}"/>{_SHAPES[style.pattern].format(style.color)}</pattern>'
        for style, name in styles.items()
    )
    return "".join([
        head, f"<desc>{escape(twin)}</desc>", *patterns, _ARROW,
        '<rect width="100%" height="100%" rx="8" fill="#FFFFFF"/>', *_words(lines),
        *_axis(first, last, scale, places), *(part for place in places for part in _names(place, len(parts) > 1)),
        drawn, *waits, marks, *below, *legend, "</svg>",
    ])  # fmt: skip


def _within(part: Part, first: int, last: int, limit: int) -> Bars:
    """Return the bars of a window in unfolded lanes, cut at its edges and merged to what a picture can hold."""
    bars, shown = part.bars, np.array([_shown(part, row) for row in part.tracks], bool)
    here = bars.at(np.flatnonzero((bars.end >= first) & (bars.start <= last) & shown[bars.track]))
    start, end = (np.clip(edge, first, last) for edge in (here.start, here.end))
    if len(start) <= limit:
        return replace(here, start=start, end=end)
    shifted = replace(here, start=start - first, end=end - first)
    alike = merge(shifted, here.style, np.zeros(len(start), bool), limit)
    return replace(alike, start=alike.start + first, end=alike.end + first)


def _shown(part: Part, row: Row) -> bool:
    return not part.folded or row.kind == "strip"


def _place(part: Part, bars: Bars, top: float, headed: bool) -> _Place:
    tops: list[float] = []
    heights: list[float] = []
    y = top + (26 if headed else 6)
    for row in part.arranged[0]:
        shown = _shown(part, row)
        for _ in row.tracks:
            tops.append(y)
            heights.append(_TRACKS[row.kind] * shown)
            y += heights[-1]
        y += _GAP * shown
    return _Place(part, bars, tops, heights, top, y + 2)


@cache
def _style(number: int, batch: int) -> Style:
    """Return how a bar of this style looks, without a name; a batch of -2: its colour stands for its kind."""
    style = replace(theme.STYLES[number], name="")
    if batch == -2 or number == Kind.WAIT or number >= len(Kind):
        return style
    return replace(theme.of_batch(batch), pattern=style.pattern, back=style.back)


def _bars(place: _Place, first: int, scale: float, by_batch: bool, styles: dict[Style, str]) -> Iterator[str]:
    """Draw all bars, those of one look as one path, and what stands on the longest ones."""
    bars = place.bars
    paths: dict[Style, list[str]] = {}
    texts: list[tuple[float, str]] = []
    batch = place.part.batches(bars) if by_batch else bars.span * 0 - 2
    columns = (column.tolist() for column in (*vars(bars).values(), batch, *_named(bars, 2 / scale)))
    for bar, (_, start, end, number, span, count, of, *named) in enumerate(zip(*columns, strict=True)):
        y, high = place.box(bar)
        style = _style(number, of)
        x, wide = _LANES + (start - first) * scale, (end - start) * scale
        gap = 1 if wide > 4 and span >= 0 else 0  # between neighbours; states fill their strip
        width = f"{max(0.05, wide - gap):.2f}"
        paths.setdefault(style, []).append(f"M{x:.2f} {y:.0f}h{width}v{high:.0f}h-{width}z")
        room = (named[1] - named[0]) * scale
        told = map(spoken.word, _texts(place, bar, by_batch)) if count == 1 and room > 9 else ()
        if text := next((each for each in told if _width(each, _LETTER) + 4 <= room), ""):
            rim = f' paint-order="stroke" stroke="{style.back}" stroke-width="4"' if style.pattern else ""
            looks = f'y="{y + high / 2 + 4:.0f}" fill="{style.ink}"{rim}'
            texts.append((room, f'<text x="{x + room / 2:.1f}" {looks}>{escape(text)}</text>'))
    for track in np.unique(bars.track[bars.style >= len(Kind)]).tolist():
        left, right = int(bars.start[bars.track == track].min()), int(bars.end[bars.track == track].max())
        x, wide = _LANES + (left - first) * scale, (right - left) * scale
        yield _frame(x - 1, place.tops[track], wide + 2, _TRACKS["strip"], theme.STATES["idle"].color)
    for style, shapes in paths.items():
        yield f'<path d="{"".join(shapes)}" fill="{_fill(style, styles)}"/>'
    longest = sorted(texts, key=lambda each: -each[0])[:_TEXTS]
    yield f'<g text-anchor="middle" font-size="11">{"".join(text for _, text in longest)}</g>'


def _named(bars: Bars, apart: float) -> tuple[Ints, Ints]:
    """Return where the name of each bar may stand, start and end [ns]: at the first of bars of one state, on all."""
    start, end = bars.start.copy(), bars.end.copy()
    first: dict[tuple[int, int], int] = {}
    for bar in np.flatnonzero(bars.span < 0).tolist():
        state = int(bars.track[bar]), int(bars.style[bar])
        before = first.get(state, -1)
        if before >= 0 and start[bar] - end[before] < apart:
            end[before], end[bar] = end[bar], start[bar]
        else:
            first[state] = bar
    return start, end


def _texts(place: _Place, bar: int, by_batch: bool) -> Sequence[str]:
    """Return what stands on a bar that has room, the longest first."""
    span = int(place.bars.span[bar])
    if span < 0:
        name = theme.STYLES[int(place.bars.style[bar])].name
        return name, name.removeprefix("copy ")
    row = place.part.timeline.row(span)
    if row.kind is Kind.WAIT:
        return (row.cause.words if row.cause else "blocked",)
    size = words.size(row.nbytes) if row.nbytes > 0 else ""
    if row.batch >= 0 and (by_batch or row.kind in (Kind.FETCH, Kind.PIN)):
        batch = f"batch {row.batch}"
        return (f"{batch}: {size}" if size else batch), batch, str(row.batch)
    return (size or row.name[:40],)


def _frame(x: float, y: float, wide: float, high: float, fill: str = "none") -> str:
    """Draw a line just inside of what holds states; `fill` is for where the GPU computes nothing, below a thin bar."""
    return (
        f'<rect x="{x + 0.5:.1f}" y="{y + 0.5:.1f}" width="{max(0, wide - 1):.1f}" height="{high - 1:.0f}" '
        f'fill="{fill}" stroke="{theme.FRAME}"/>'
    )


def _fill(style: Style, styles: dict[Style, str]) -> str:
    if not style.pattern:
        return style.color
    return f"url(#{styles.setdefault(style, f'p{len(styles)}')})"


def _words(lines: Sequence[str]) -> Iterator[str]:
    for number, line in enumerate(lines):
        looks = f'fill="{theme.SOFT}"' if line.startswith("·") else 'font-size="15" font-weight="600"'
        yield f'<text x="12" y="{24 + _LINE * number}" {looks}>{escape(line.removeprefix("·"))}</text>'


def _axis(first: int, last: int, scale: float, places: Sequence[_Place]) -> Iterator[str]:
    """Draw the grid and the numbers of the time axis; 0 is where each timeline begins."""
    if last <= first or not places:
        return
    top, bottom = places[0].top + 4, places[-1].bottom
    unit, name = next(
        pair
        for pair in ((10**9, "s"), (10**6, "ms"), (10**3, "µs"), (1, "ns"))
        if last - first >= 2 * pair[0] or pair[0] == 1
    )
    edges = first / unit, last / unit
    small = (f"M{_LANES + (tick * unit - first) * scale:.1f} {bottom:.0f}v3" for tick in ticks(*edges, 5 * _TICKS))
    yield f'<path d="{"".join(small)}" stroke="{theme.SOFT}"/>'
    for tick in ticks(*edges):
        x = _LANES + (tick * unit - first) * scale
        yield f'<path d="M{x:.1f} {top}V{bottom:.0f}" stroke="{theme.GRID}"/>'
        yield f'<text x="{x:.1f}" y="{bottom + 14:.0f}" text-anchor="middle">{tick:,.10g}</text>'
    middle = _LANES + (WIDTH - _LANES - _RIGHT) / 2
    yield f'<text x="{middle:.0f}" y="{bottom + 30:.0f}" text-anchor="middle">time [{name}]</text>'


def ticks(first: float, last: float, most: int = _TICKS) -> list[float]:
    """Return round numbers from `first` to `last`, at most `most`: steps of 1, 2 or 5 times a power of ten.

    >>> ticks(-0.02, 9.2)
    [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]
    """
    if not last > first:
        return []
    power = 10.0 ** int(f"{(last - first) / most:e}".partition("e")[2])
    step = next(power * times for times in (1, 2, 5, 10, 20) if (last - first) / (power * times) < most)
    return [number * step for number in range(int(-(-first // step)), int(last // step) + 1)]


def _names(place: _Place, headed: bool) -> Iterator[str]:
    """Write the names of the lanes, and above the lanes of one of several parts what it is."""
    if headed:
        name = _cropped(place.part.name, 60)
        finding = _cropped(place.part.finding, 136 - len(name))
        line = f"<tspan font-weight='600'>{escape(name)}</tspan> {escape(finding)}"
        yield f'<text x="12" y="{place.top + 20:.0f}">{line}</text>'
    track = 0
    for row in place.part.arranged[0]:
        if place.heights[track]:
            y = place.tops[track] + place.heights[track] / 2 + 4
            name = escape(_cropped(spoken.word(row.name), 25))
            yield f'<text x="{_LANES - 8}" y="{y:.0f}" text-anchor="end">{name}</text>'
        track += len(row.tracks)
    if not track:
        yield f'<text x="{_LANES}" y="{place.top + 20:.0f}">nothing was recorded</text>'


def _width(text: str, letter: float) -> float:
    return sum(_WIDE if each > "\u2e80" else letter for each in text)


def _cropped(text: str, letters: int) -> str:
    return text if len(text) <= letters else f"{text[: letters - 1]}…"


def _boxes(place: _Place, first: int, scale: float) -> Callable[[int], tuple[float, float, float, float] | None]:
    """Return a function: where a span is drawn, as left, right, top and height [px]; None if it is not."""
    bars = place.bars
    bar_of = place.part.bar_of(bars)

    def box(span: int) -> tuple[float, float, float, float] | None:
        bar = int(bar_of[span])
        if bar < 0:
            return None
        left, right = (_LANES + (int(edge[bar]) - first) * scale for edge in (bars.start, bars.end))
        return left, right, *place.box(bar)

    return box


def _waits(place: _Place, first: int, scale: float) -> Iterator[str]:
    """Draw arrows from what ended to what waited for it."""
    box, arrows = _boxes(place, first, scale), place.part.timeline.arrows
    for arrow in np.flatnonzero(arrows["kind"] == ArrowKind.WAIT)[:100].tolist():
        ends = [box(int(arrows[side][arrow])) for side in ("tail", "head")]
        if len({end[2] for end in ends if end}) == 2:  # in one track, the order is that of the stream
            yield _line(ends, 'stroke="#555555" stroke-width="0.8"')


def _marks(place: _Place, first: int, last: int, scale: float) -> Iterator[str]:
    """Draw the first hazards: both spans framed, a bold dashed arrow for the order that is missing."""
    timeline, box = place.part.timeline, _boxes(place, first, scale)
    for mark in timeline.marks[:_MARKS]:
        ends = [box(span) for span in mark.spans]
        yield _line(ends, 'stroke="#000000" stroke-width="2.5" stroke-dasharray="7 4"')
        for found in ends:
            if found:
                left, right, y, high = found
                yield (
                    f'<rect x="{left:.1f}" y="{y:.0f}" width="{max(2, right - left):.1f}" height="{high:.0f}" '
                    'fill="none" stroke="#000000" stroke-width="2.5"/>'
                )


def _line(ends: Sequence[tuple[float, float, float, float] | None], looks: str) -> str:
    tail, head = ends
    if tail is None or head is None:
        return ""
    y = [each[2] + each[3] / 2 for each in (tail, head)]
    return f'<path d="M{tail[1]:.1f} {y[0]:.0f}L{head[0]:.1f} {y[1]:.0f}" fill="none" {looks} marker-end="url(#a)"/>'


def _legend(
    places: Sequence[_Place], by_batch: bool, waits: bool, top: float, styles: dict[Style, str]
) -> tuple[list[str], int]:
    """Name the colours, patterns and arrows that are drawn; return that, and the height of the whole picture [px]."""
    used = {number for place in places for number in np.unique(place.bars.style).tolist()}
    batches = {
        int(place.part.timeline.batch[span])
        for place in places
        for span in place.bars.span[place.bars.span >= 0].tolist()
    } - {-1}
    thin = [spoken.word(name) for kinds, name in _THIN if used & {*kinds}]
    between = spoken.word(", ")
    entries = {
        "a batch: one colour along its way": [theme.of_batch(batch) for batch in sorted(batches)[:7] if by_batch],
        "thick: kernel": [Style("", theme.SOFT)] if used & {*KERNELS} else [],
        "thin: {names}": [Style("", theme.SOFT, height=theme.THIN)] if thin else [],
    }
    for number in sorted(used):
        if number >= len(Kind) or not by_batch or number == Kind.WAIT or theme.STYLES[number].pattern:
            entries[theme.legend(number)] = [theme.STYLES[number]]
    drawn, x, y = list[str](), 12.0, top
    for name, looks in [*((name, looks) for name, looks in entries.items() if looks), *[(theme.WAITED, [])] * waits]:
        told = spoken.word(name).replace("{names}", between.join(thin))
        step, letters = 14 if len(looks) < 2 else 8, _width(told, _LEGEND)
        wide = step * max(1, len(looks)) + 6 + letters
        if x > 12 and x + wide > WIDTH - 12:
            x, y = 12.0, y + 20
        drawn += [
            f'<rect x="{x + step * place:.0f}" y="{y:.0f}" width="{min(12, step)}" height="{round(12 * style.height)}" '
            f'fill="{_fill(replace(style, name=""), styles)}"/>'
            for place, style in enumerate(looks)
        ]
        if name in theme.LEGEND.values():
            drawn.append(_frame(round(x), y, 12, round(12 * looks[0].height)))
        if not looks:
            drawn.append(f'<path d="M{x:.0f} {y + 6:.0f}h14" stroke="{theme.SOFT}" marker-end="url(#a)"/>')
        drawn.append(f'<text x="{x + wide - letters:.0f}" y="{y + 10:.0f}">{escape(told)}</text>')
        x += wide + 16
    return drawn, round(y + 26)
