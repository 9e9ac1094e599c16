"""Program: the PyTorch code that a setting of the explorer means. It runs as it stands, on a GPU or in `record()`.

    program = program_of(Settings(pin=True, side_stream=True, depth=2))
    print(program.text)
    program.lines["copy"]      # the number of the line that copies; the picture's spans carry it as their source

No torch is needed to write it.
"""

from __future__ import annotations

import linecache
import zlib
from dataclasses import dataclass
from functools import cached_property

from loaderviz import words
from loaderviz.emulator.replay import LIFETIMES
from loaderviz.widgets.settings import SAMPLES, Settings

Line = tuple[str, str]  # the text, and what the line does ("" for most)


@dataclass(frozen=True)
class Program:
    """Source text, and the numbers of the lines that do something on the timeline (from 1)."""

    text: str
    lines: dict[str, int]

    @cached_property
    def file(self) -> str:
        """A name for the text, as tracebacks have one for code that lies in no file."""
        return f"<explorer {zlib.crc32(self.text.encode()) & 0xFFFF:04x}>"

    def source(self, does: str) -> str:
        """Return "file:line" of the line that does this; "" if no line does."""
        return f"{self.file}:{self.lines[does]}" if does in self.lines else ""

    def remember(self) -> None:
        """Let Python's `linecache` know the text, so that whoever asks for the file's lines gets them."""
        linecache.cache[self.file] = (len(self.text), None, self.text.splitlines(keepends=True), self.file)


def program_of(settings: Settings) -> Program:
    """Return the code for these settings."""
    parts = _model(settings) + (_resident(settings) if settings.resident else _loop(settings))
    body = [*parts, ("torch.cuda.synchronize()", "synchronize")]
    lines = [*_imports(settings), ("", ""), *body]
    numbers = {does: number for number, (_, does) in enumerate(lines, 1) if does}
    return Program("\n".join(text for text, _ in lines) + "\n", numbers)


def _imports(settings: Settings) -> list[Line]:
    streamed = not settings.resident
    lines = ["import itertools"] if streamed and (settings.depth or _rings(settings)) else []
    lines += ["import time"] if streamed and settings.fetch_per_sample else []
    lines += ["from collections import deque"] if streamed and settings.depth else []
    lines += [""] if lines else []
    lines += ["import torch"]
    lines += ["from torch.utils.data import DataLoader, Dataset, default_convert"] if streamed else []
    return [(line, "") for line in lines]


def _model(settings: Settings) -> list[Line]:
    took = f"{settings.kernels} kernels, {words.duration(settings.compute)}"
    return [
        (f"model = torch.nn.Linear({settings.sample_bytes}, 10, device=\"cuda\")  # stands for your model", ""),
        ("optimizer = torch.optim.SGD(model.parameters(), lr=0.01)", ""),
        ("", ""), ("", ""),
        (f"def train_step(x):  # in the picture: {took}", ""),
        ("    loss = model(x.float() / 255).square().mean()", "forward"),
        ("    loss.backward()", "backward"),
        ("    optimizer.step()", "optimizer"),
        ("    optimizer.zero_grad()", ""),
        ("", ""), ("", ""),
    ]  # fmt: skip


def _resident(settings: Settings) -> list[Line]:
    return [
        (f"data = torch.zeros({SAMPLES}, {settings.sample_bytes}, dtype=torch.uint8)  # stands for your data set", ""),
        ("data = data.to(\"cuda\")  # once", "move"),
        ("order = torch.randperm(len(data)).to(\"cuda\")  # once per epoch", "order"),
        (f"for indices in order.split({settings.batch_size}):", "loop"),
        ("    train_step(data.index_select(0, indices))", "gather"),
    ]  # fmt: skip


def _loop(settings: Settings) -> list[Line]:
    pinned = ", pin_memory=True" if settings.pin else ""
    lines = [
        *_dataset(settings),
        ("loader = DataLoader(", ""),
        (f"    Samples(), {settings.batch_size}, shuffle=True, drop_last=True, num_workers={settings.workers}{pinned},",
         ""),
        ("    collate_fn=default_convert,  # a batch is whole already", ""),
        (")", "loader"),
    ]  # fmt: skip
    if settings.side_stream:
        lines.append(("main, side = torch.cuda.current_stream(), torch.cuda.Stream()", "streams"))
    if settings.side_stream and _rings(settings):
        shape = f'{settings.batch_size}, {settings.sample_bytes}, dtype=torch.uint8, device="cuda"'
        lines.append((f"ring = itertools.cycle([torch.empty({shape}) for _ in range({settings.depth + 1})])", "ring"))
    return lines + (_ahead(settings) if settings.depth else _in_place(settings))


def _dataset(settings: Settings) -> list[Line]:
    cost = f"        time.sleep(len(indices) * {settings.fetch_per_sample / 1e9:g})  # what your transforms cost"
    return [
        ("class Samples(Dataset):  # stands for your data set", ""),
        ("    def __len__(self):", ""),
        (f"        return {SAMPLES}", ""),
        ("", ""),
        ("    def __getitems__(self, indices):  # a whole batch at once", ""),
        *([(cost, "")] if settings.fetch_per_sample else []),
        (f"        return torch.zeros(len(indices), {settings.sample_bytes}, dtype=torch.uint8)", "fetch"),
        ("", ""), ("", ""),
    ]  # fmt: skip


def _in_place(settings: Settings) -> list[Line]:
    """Copy each batch when its turn has come."""
    lines = [("for batch in loader:", "loop"), *_copy(settings)]
    if settings.side_stream:
        lines.append(("    main.wait_stream(side)", "hand over"))
        if LIFETIMES[settings.lifetime].records:
            lines.append(("    x.record_stream(main)", "record_stream"))
    return [*lines, ("    train_step(x)", "step")]


def _ahead(settings: Settings) -> list[Line]:
    """Copy `depth` batches before their turn."""
    side, depth = settings.side_stream, settings.depth
    batches = "batch" if depth == 1 else f"{depth} batches"
    lines: list[Line] = [
        ("", ""), ("", ""), ("def copies():", ""), ("    for batch in loader:", "loop"),
        *((f"    {text}", does) for text, does in _copy(settings)),
        ("        yield x, side.record_event()" if side else "        yield x", "event"),
        ("", ""), ("", ""),
        ("ahead = copies()", ""),
        (f"queue = deque(itertools.islice(ahead, {depth}))  # the first {batches}", ""),
        ("while queue:", ""),
    ]  # fmt: skip
    if side:
        lines += [("    x, copied = queue.popleft()", "drop"), ("    main.wait_event(copied)", "hand over")]
        if LIFETIMES[settings.lifetime].records:
            lines.append(("    x.record_stream(main)", "record_stream"))
    else:
        lines.append(("    x = queue.popleft()", "drop"))
    return [
        *lines, ("    queue.extend(itertools.islice(ahead, 1))  # the next copy, before this step", ""),
        ("    train_step(x)", "step"),
    ]  # fmt: skip


def _copy(settings: Settings) -> list[Line]:
    """Copy `batch` to the GPU as `x`."""
    how = "non_blocking=True" if settings.non_blocking else ""
    to_cuda = f'x = batch.to("cuda"{", " + how if how else ""})'
    if not settings.side_stream:
        return [(f"    {to_cuda}", "copy")]
    policy = LIFETIMES[settings.lifetime]
    inside = f"x.copy_(batch{', ' + how if how else ''})" if policy.of_consumer else to_cuda
    lines: list[Line] = []
    if policy.of_consumer:
        lines.append(
            ("    x = next(ring)" if policy.ring else '    x = torch.empty_like(batch, device="cuda")', "allocate")
        )
    if policy.waits:
        lines.append(("    side.wait_stream(main)  # the memory may still be in use", "protect"))
    return [*lines, ("    with torch.cuda.stream(side):", ""), (f"        {inside}", "copy")]


def _rings(settings: Settings) -> bool:
    return settings.side_stream and LIFETIMES[settings.lifetime].ring
