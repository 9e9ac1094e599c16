"""Explain: what is wrong between two accesses, which order is missing, the line that makes it, and how it shows.

text = explain.race("early-read", first, second, None, None, "")
text.fix    # "before train.py:31 add …"
"""

from __future__ import annotations

from typing import NamedTuple

from loaderviz.emulator.findings import UNSEEN, Access, short


class Text(NamedTuple):
    """The words of a report; see `Hazard`. `edge` is the missing order in a few words, for the picture."""

    rule: str
    problem: str
    missing: str
    fix: str
    shows: str
    edge: str = ""


def race(kind: str, first: Access, second: Access, first_block: object, second_block: object, waited: str) -> Text:
    """Return the words for a race between two accesses of the same bytes, each in its block.

    `waited` is the line of the last wait of the second stream for the first, which came too early ("": there is none).
    """
    if kind == "early-refill":
        return _refill(first, second)
    if kind == "early-host-read":
        return _host_read(first, second)
    if kind == "early-read":
        return _read(first, second, waited)
    if first_block is not second_block:
        return _reused_block(first, second, second_block, waited)
    return _live_buffer(first, second, waited)


def _read(first: Access, second: Access, waited: str) -> Text:
    reader, writer = second.place, first.place
    its, of_writer = _streams(second, first)
    missing = f"{reader} does not wait until {first.operator} on {writer} ({short(first.source)}) is over"
    missing += _too_early(waited, reader, writer)
    return Text(
        "R16", f"{reader} reads {second.tensor} before {writer} has written it", missing,
        f"after {short(first.source)} record an event in {writer}: `ready = {of_writer}.record_event()`; and before "
        f"{short(second.source)} let {reader} wait for it: `{its}.wait_event(ready)`. "
        f"`{its}.wait_stream({of_writer})` works, too, but waits for everything that {writer} has in its queue by then",
        f"{second.operator} starts as soon as its own stream is free, and reads what lay there before: an older batch, "
        "half a copy, anything. Right whenever the copy happens to be early, so it passes most tests",
        f"before {short(second.source)}, {reader} waits for {short(first.source)}",
    )  # fmt: skip


def _reused_block(first: Access, second: Access, block: object, waited: str) -> Text:
    reader, writer = first.place, second.place
    of_reader, of_writer = _streams(first, second)
    doing = "writes" if first.writes else "reads"
    owner = getattr(getattr(block, "stream", None), "number", None)
    pool = f"the pool of stream {owner}" if owner is not None else "its pool"
    lost = (
        f"the tensor of {short(first.source)} was dropped, and its memory went back to {pool} and was handed out again"
    )
    waits = f"before {short(second.source)} let {writer} wait for {reader}: `{of_writer}.wait_stream({of_reader})`"
    if owner is not None and owner == first.stream:
        missing = f"{lost}. That is in order for {reader}, whose pool it is; but {writer} does not wait for {reader}"
        fix, edge = f"{waits}. `record_stream` does not help, since the memory is {reader}'s own", ""
    else:
        missing = f"{lost}; nothing tells the allocator, or {writer}, that {reader} still {doing} it"
        fix = f"before {short(first.source)} add `tensor.record_stream({of_reader})` for each tensor; or {waits}"
        edge = f"record_stream at {short(first.source)}, or "
    return Text(
        "R35, R36, R37",
        f"{writer} {'writes into' if second.writes else 'reads'} freed memory that {reader} still {doing}",
        missing + _too_early(waited, writer, reader), fix,
        "as soon as the host runs ahead of the GPU (no `.item()` in the loop), new bytes land in a batch that is still "
        "in use: some steps train on a mixture of two batches. No error, but now and then a worse loss or a NaN",
        f"{edge}{writer} waits for {reader} at {short(second.source)}",
    )  # fmt: skip


def _live_buffer(first: Access, second: Access, waited: str) -> Text:
    before, after = first.place, second.place
    of_before, of_after = _streams(first, second)
    doing = "writes" if first.writes else "reads"
    missing = f"{after} does not wait until {first.operator} on {before} ({short(first.source)}) is over"
    missing += _too_early(waited, after, before)
    return Text(
        "R16, R37", f"{after} overwrites {second.tensor} while {before} still {doing} it", missing,
        f"after {short(first.source)} record an event in {before}: `done = {of_before}.record_event()`; and before "
        f"{short(second.source)} let {after} wait for it: `{of_after}.wait_event(done)`",
        "the buffer changes under the kernel that uses it: some steps work on a mixture of old and new values, "
        "depending on how far the host is ahead",
        f"before {short(second.source)}, {after} waits for {short(first.source)}",
    )  # fmt: skip


def _refill(first: Access, second: Access) -> Text:
    doing, of_copy = "fill" if first.writes else "read", _streams(first, second)[0]
    unseen = second.operator == UNSEEN
    where = f"the line that writes (it ran before {short(second.source)} was over)" if unseen else short(second.source)
    return Text(
        "R42", f"the host changes a pinned buffer while {first.operator} may still {doing} it",
        f"the host does not wait for {first.operator} on {first.place} ({short(first.source)}) before it writes; "
        "the call that copies only puts the copy into the queue, and returns before it has happened",
        f"after {short(first.source)} record an event in {first.place}: `copied = {of_copy}.record_event()`; and "
        f"before {where} add `copied.synchronize()`; or write into another buffer",
        "the GPU gets the new values in place of the old ones, or some of both: some batches come twice, others never",
        f"before {short(second.source)}, the host waits for the copy of {short(first.source)}",
    )  # fmt: skip


def _host_read(first: Access, second: Access) -> Text:
    return Text(
        "R32", f"the host reads {second.tensor} before {first.operator} has written it",
        f"the host does not wait for {first.operator} on {first.place} ({short(first.source)}); a copy with "
        "`non_blocking=True` returns at once",
        f"before {short(second.source)} add `{_streams(first, second)[0]}.synchronize()`, or record an event after "
        "the copy and synchronize that; or copy without `non_blocking`",
        "the host sees what the memory held before: zeros, or the result of an earlier step. With a print or a "
        "breakpoint in between the number is right, so that is no way to find the mistake",
        f"before {short(second.source)}, the host waits for the copy of {short(first.source)}",
    )  # fmt: skip


def _streams(one: Access, other: Access) -> tuple[str, str]:
    """Return what a program may call the streams of both: the default one is the current one, as a rule."""
    names = {None: "", 7: "torch.cuda.current_stream()"}
    alone = one.stream in names or other.stream in names
    first, second = (
        names.get(access.stream) or ("side" if alone else f"stream_{access.stream}") for access in (one, other)
    )
    return first, second


def _too_early(waited: str, waiter: str, other: str) -> str:
    if not waited:
        return ""
    return (
        f". {waiter} does wait for {other} at {short(waited)}, but earlier: "
        "a wait is only for what is in the queue by then"
    )


def wait_on_nothing(waiter: str, other: str, source: str, recorded: bool) -> Text:
    """Return the words for a line of waits that never waited for anything."""
    why = f"nothing new was in {other} at the time" if recorded else "its event was not recorded yet"
    if waiter == other:
        return Text(
            "R16", f"{waiter} waits for itself: what is in one stream runs in order anyway",
            "a wait holds back one stream only. `event.wait()` names none, so the current stream waits; inside "
            "`with torch.cuda.stream(side)` that is `side`",
            f"at {short(source)} name who has to wait: `event.wait(stream)` or `stream.wait_event(event)` for a "
            "stream, `event.synchronize()` for the host",
            "the line looks like protection and does nothing: who should wait does not wait",
        )  # fmt: skip
    order = "" if recorded else "record the event after the line that queues the work, and only then wait: "
    return Text(
        "R16", f"{waiter} waits for nothing: {why}", "a wait is only for work that is in the queue by then",
        f"{order}move {short(source)} to after the line that queues the work, or leave it out",
        "the line looks like protection and does nothing: nobody waits for work that is queued later",
    )  # fmt: skip


def hidden_sync(name: str, source: str, blocked: str) -> Text:
    """Return the words for asynchronous copies that blocked the host."""
    problem = f"a non_blocking copy blocked the host ({blocked} in all): its host memory is pageable"
    if "DtoH" in name:
        return Text(
            "R11, R26", problem,
            "code that reads the result at once relies on this blocking, and CUDA's documents of today do not promise "
            "it",
            f"at {short(source)} copy into pinned memory, as `tensor.to('cpu', non_blocking=True)` does by itself, and "
            "before the result is read add `torch.cuda.current_stream().synchronize()`; or leave `non_blocking` out, "
            "so that the line says what it does",
            f"{name} returns only when the bytes are there: the host launches nothing in the meantime",
        )  # fmt: skip
    return Text(
        "R7, R26", problem, "",
        f"pin the host side of {short(source)}: `DataLoader(pin_memory=True)`, or `tensor.pin_memory()` once",
        f"{name} returns only when the driver has staged the bytes; what the host launches after it comes late, and "
        "the copy is not hidden",
    )  # fmt: skip


def stream_per_epoch(streams: int, held: str, source: str) -> Text:
    """Return the words for streams that are made again and again, each with memory of its own."""
    return Text(
        "R15, R35", f"{streams} streams were made here one after the other, and {held} of memory lie in the pools of "
        "those that are no longer used", "",
        f"at {short(source)} make the stream once and keep it (in `__init__`, not in `__iter__`)",
        "memory use grows with every epoch, until the 32 side streams have all been used: what is kept for one stream "
        "is never given to another",
    )  # fmt: skip


def needless_wait(waiter: str, other: str, source: str, delay: str) -> Text:
    """Return the words for waits that order nothing that needs it, and cost time."""
    return Text(
        "R16", f"{waiter} waits for {other} without need, and loses {delay}", "",
        f"leave {short(source)} out, or wait for an event that was recorded earlier: without this wait, too, all "
        "accesses of the same memory stay in order. (Of several such lines remove one, then look again.)",
        "copies and kernels that could run at the same time run one after the other",
    )  # fmt: skip
