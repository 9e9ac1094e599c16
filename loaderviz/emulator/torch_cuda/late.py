"""Late bytes: with `copies="on_wait"` an asynchronous copy's bytes arrive when something ordered after it needs them.

Until then the destination holds poison (NaN, or the largest integer), so a forgotten wait gives wrong numbers always.
"""

from __future__ import annotations

import sys
import weakref
from typing import TYPE_CHECKING, Any

import torch

from loaderviz.emulator.device import Stream
from loaderviz.emulator.torch_cuda.tags import ATTRIBUTE, Arrival, HostTag, Tag, storage_of, tag_of

if TYPE_CHECKING:
    from loaderviz.emulator.torch_cuda.session import Session


class LateBytes:
    """The bytes that are on their way, in one recording."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._tags: weakref.WeakSet[Tag] = weakref.WeakSet()  # tags of storages that wait for bytes

    def expect(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Let `target` hold poison until something ordered after the copy just put into the stream needs its bytes."""
        storage, stream = storage_of(target), self._session.stream.id
        tag: Tag = getattr(storage, ATTRIBUTE)
        place = (stream, self._session.runtime.order.snapshot(stream)[stream])
        target.detach().fill_(poison(target.dtype))
        offset, stride = int(target.storage_offset()), target.stride()
        tag.arrivals.append(Arrival(place, source, weakref.ref(storage), offset, stride))
        self._tags.add(tag)

    def deliver(self, tag: Tag, stream: Stream | None) -> None:
        """Let those bytes arrive that `stream` (None: the host) is ordered after; the others stay poison for it."""
        waiting, tag.arrivals = tag.arrivals, []
        block = tag.block if type(tag) is HostTag else None
        watched = self._session.touched.watched if block and self._session.touched else None
        if block and watched:
            watched.look_at(block)
        for arrival in waiting:
            if self._session.runtime.is_ordered(stream, arrival.place):
                with self._session.bookkeeping(), torch.no_grad():
                    arrival.deliver()
            else:
                tag.arrivals.append(arrival)
        if block and watched:
            watched.changed(block)
        if not tag.arrivals:
            self._tags.discard(tag)

    def host_knows(self) -> None:
        """The host has waited for something: what is certain to be over for it has arrived."""
        if self._session.touched:
            self._session.touched.watched.look()
        for tag in list(self._tags) if self._tags else ():
            self.deliver(tag, None)

    def let_go(self) -> None:
        """Give pinned memory back that the program has dropped, and that only a late copy of ours still holds.

        PyTorch lets go of it as soon as the copy is done (R40), whoever needs the destination, and when.
        """
        for tag in list(self._tags):
            for arrival in tag.arrivals:
                source = tag_of(arrival.source)
                if type(source) is HostTag and source.block is not None and _is_last_holder(arrival.source):
                    self._session.release_pinned(source)
                    source.block = None

    def keep_sources(self, target: torch.Tensor) -> None:
        """The stream is about to overwrite pinned memory: late copies out of it, made before, keep their bytes."""
        storage, stream, is_ordered = storage_of(target), self._session.stream, self._session.runtime.is_ordered
        for tag in list(self._tags):
            for position, arrival in enumerate(tag.arrivals):
                if storage_of(arrival.source) is storage and is_ordered(stream, arrival.place):
                    tag.arrivals[position] = arrival._replace(source=arrival.source.clone())


def _is_last_holder(tensor: torch.Tensor) -> bool:
    """Tell whether nothing but the arrival that holds `tensor` has its storage."""
    holders: int = torch._C._storage_Use_Count(storage_of(tensor)._cdata)
    return holders <= _LONE and _names(tensor) <= _LONE_NAMES + 1  # the argument here is one name more


def _count_lone() -> tuple[int, int]:
    """Return what the two counts say of a tensor that one tuple holds, in this version of torch and Python."""
    held = (torch.empty(1),)
    setattr(storage_of(held[0]), ATTRIBUTE, None)  # as a tag does, an attribute keeps the storage's object
    return torch._C._storage_Use_Count(storage_of(held[0])._cdata), _names(held[0])


def _names(tensor: torch.Tensor) -> int:
    return sys.getrefcount(tensor)


_LONE, _LONE_NAMES = _count_lone()


def poison(dtype: torch.dtype) -> Any:
    """Return what memory holds before a copy has arrived: NaN, or the largest integer, or True."""
    if dtype.is_floating_point:
        return float("nan")
    if dtype.is_complex:
        return complex("nan")
    return True if dtype is torch.bool else torch.iinfo(dtype).max
