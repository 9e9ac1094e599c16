"""Which events of a chunk are needed at all, by how their texts begin: before anything is parsed.

Flows, memory counters and Python frames are dropped. Operators lose their arguments (shapes, call stacks), which are
most of a file. Whatever does not look exactly as expected is kept as it is, and read with all care.
"""

from __future__ import annotations

from collections.abc import Sequence

_ARGUMENTS = (b'"args": ', b'"args":')
_BLANKS = [(b" ", b" "), (b"", b""), (b" ", b"\n    ")]  # as Kineto writes it, compact, and as torch 2.13 does


def _begin(phase: bytes, *categories: bytes) -> tuple[bytes, ...]:
    """Return how the texts of a phase, or of its categories, begin."""
    if not categories:
        return tuple({b':%s"%s"' % (colon, phase) for colon, _ in _BLANKS})
    return tuple(b':%s"%s",%s"cat":%s"%s"' % (colon, phase, comma, colon, category)
                 for colon, comma in _BLANKS for category in categories)  # fmt: skip


class Skim:
    """Parts the event texts of a file whose events begin with `key`; where that is not "ph", all are kept."""

    def __init__(self, key: bytes) -> None:
        none, known = (b"\x00",), key == b"ph"
        self._operators = _begin(b"X", b"cpu_op", b"Operator") if known else none
        self._flows = _begin(b"s") + _begin(b"f") if known else none
        self._instants = _begin(b"i") if known else none
        self._frames = _begin(b"X", b"python_function") if known else none
        self._syncs = _begin(b"X", b"cuda_sync", b"xpu_sync") if known else none

    def wanted(self, bodies: Sequence[bytes]) -> tuple[list[bytes], list[bytes], dict[str, int]]:
        """Return what is needed (operators cut before their arguments), the synchronisation rows, what was dropped."""
        texts: list[bytes] = []
        syncs: list[bytes] = []
        operators, flows, instants, frames = self._operators, self._flows, self._instants, self._frames
        flow = instant = frame = 0
        for body in bodies:
            if body.startswith(flows) and b"{" not in body:
                flow += 1
            elif body.startswith(operators):
                place = body.find(b"{")
                plain = place > 0 and body.find(b"{", place + 1) < 0 and body.endswith(_ARGUMENTS, 0, place)
                texts.append(body[:place] if plain else body)
            elif body.startswith(frames) and body.count(b"{") == 1:
                frame += 1
            elif body.startswith(instants) and body.count(b"{") == 1:
                instant += 1
            elif body.startswith(self._syncs):
                syncs.append(body)
            else:
                texts.append(body)
        dropped = {"flow": flow, "instant": instant, "python_function": frame}
        return texts, syncs, {name: count for name, count in dropped.items() if count}

    def parted(self, texts: Sequence[bytes]) -> tuple[list[bytes], list[bytes], list[bytes]]:
        """Part what is needed: operators that were cut, synchronisation rows, all others."""
        cut = [text for text in texts if text.endswith(_ARGUMENTS)]
        whole = [text for text in texts if not text.endswith(_ARGUMENTS)]
        syncs = [text for text in whole if text.startswith(self._syncs)]
        return cut, syncs, [text for text in whole if not text.startswith(self._syncs)]
