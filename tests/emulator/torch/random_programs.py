"""Random PyTorch programs over streams, events, device tensors and pinned buffers, and how to run many of them.

`OPERATIONS` says what a program may do: name of a method of `Program` -> what each argument may be.
"""

import copy
import gc
import warnings

import torch

import loaderviz as lv
from loaderviz.emulator.hazards import HazardWarning
from loaderviz.emulator.torch.session import Session

SIZE = 8
TWO, THREE, YES_NO = (0, 1), (0, 1, 2), (False, True)
WHOLE, FRONT, BACK, MIDDLE, EVEN = slice(0, SIZE), slice(0, 4), slice(4, SIZE), slice(2, 6), slice(0, SIZE, 2)
VIEWS = (WHOLE, FRONT, BACK, MIDDLE, EVEN)
VALUES = (-1.0, 3.0, 7.5)
OPERATIONS = {
    "upload": (THREE, TWO, TWO, VIEWS, (True, True, False)),
    "renew": (THREE, TWO, TWO, VIEWS[:4], (torch.float32, torch.float64), YES_NO),
    "download": (THREE, TWO, TWO, VIEWS, (True, True, False)),
    "fetch": (THREE, TWO, TWO, YES_NO),
    "add": (THREE, TWO, TWO, VIEWS),
    "compute": (THREE, TWO, TWO),
    "duplicate": (THREE, TWO, TWO),
    "item": (THREE, TWO),
    "record": (TWO, THREE),
    "wait": (THREE, TWO),
    "order": (THREE, THREE),
    "record_stream": (TWO, THREE),
    "synchronize": ((0, 1, 2, 3, 4),),
    "query": ((0, 1, 2, 3, 4),),
    "read": (TWO, YES_NO),
    "write": (TWO, VIEWS, VALUES),
    "numpy": (TWO, VIEWS, VALUES),
}
OFTEN = ("upload", "download", "order", "order", "synchronize", "synchronize")  # these more often than others


class Program:
    """A program's state; `run` returns all that it saw, and what is there in the end."""

    def __init__(self):
        self.streams = [torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
        self.events = [torch.cuda.Event() for _ in range(2)]
        self.device = [torch.full((SIZE,), float(n), device="cuda") for n in range(2)]
        self.pinned = [torch.full((SIZE,), 10.0 + n).pin_memory() for n in range(2)]
        self.results = [torch.full((SIZE,), 20.0 + n) for n in range(2)]
        self.seen, self.written = [], 0
        torch.cuda.synchronize()

    def run(self, program):
        for name, *rest in program:
            getattr(self, name)(*rest)
        torch.cuda.synchronize()
        self.seen += [tensor.tolist() for tensor in (*self.device, *self.pinned, *self.results)]
        return self.seen

    def on(self, stream):
        return torch.cuda.stream(self.streams[stream])

    def upload(self, stream, tensor, buffer, view, non_blocking=True):
        with self.on(stream):
            self.device[tensor][view].copy_(self.pinned[buffer][view], non_blocking=non_blocking)

    def renew(self, stream, tensor, buffer, view=WHOLE, dtype=torch.float32, non_blocking=True):
        """A new device tensor; of another dtype or of a part, it is made by kernels out of what was copied."""
        with self.on(stream):
            part = self.pinned[buffer][view].to("cuda", dtype, non_blocking=non_blocking)
            self.device[tensor] = part.float().repeat(SIZE // len(part))

    def download(self, stream, tensor, buffer, view, non_blocking=True):
        with self.on(stream):
            self.pinned[buffer][view].copy_(self.device[tensor][view], non_blocking=non_blocking)

    def fetch(self, stream, result, tensor, non_blocking):
        with self.on(stream):
            self.results[result] = self.device[tensor].to("cpu", non_blocking=non_blocking)

    def add(self, stream, tensor, other, view):
        with self.on(stream):
            self.device[tensor][view].add_(self.device[other][view])

    def compute(self, stream, tensor, other):
        with self.on(stream):
            self.device[tensor] = self.device[other] * 2

    def duplicate(self, stream, tensor, other):
        with self.on(stream):
            self.device[tensor] = copy.deepcopy(self.device[other])

    def item(self, stream, tensor):
        with self.on(stream):
            self.seen.append(self.device[tensor].sum().item())

    def record(self, event, stream):
        self.events[event].record(self.streams[stream])

    def wait(self, stream, event):
        self.events[event].wait(self.streams[stream])

    def order(self, stream, other):
        self.streams[stream].wait_stream(self.streams[other])

    def record_stream(self, tensor, stream):
        self.device[tensor].record_stream(self.streams[stream])

    def synchronize(self, what):
        (self.streams + self.events)[what].synchronize()

    def query(self, what):
        self.seen.append((self.streams + self.events)[what].query())

    def read(self, buffer, result):
        self.seen.append((self.results if result else self.pinned)[buffer].tolist())

    def write(self, buffer, view, value):
        self.pinned[buffer][view].fill_(value)

    def numpy(self, buffer, view, value):
        """A value never written before: bytes that are put back before anybody looks are not seen to have changed."""
        self.written += 1
        self.pinned[buffer].numpy()[view] = value + self.written * 16


def run(programs, **options):
    """Run programs one after the other in one recording; return for each (what it saw, was there a hazard in it?)."""
    gc.collect()
    results = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HazardWarning)
        with lv.record(on="a100", **options):
            races = Session.running("test").runtime.races
            for program in programs:
                before = count(races)
                seen = Program().run(program)
                results.append((repr(seen), count(races) > before))  # NaN is equal to NaN in words
    return results


def count(races):
    edges = races._missing.values() if races else ()
    return sum(conflicts.count for edge in edges for conflicts in edge.conflicts.values())


def guarded(program):
    """The program with a synchronise of all streams between any two operations that touch memory."""
    return [step for operation in program for step in (operation, *(("synchronize", s) for s in range(3)))]
