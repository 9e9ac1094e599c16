"""Gpu and Host: the machines that can be emulated. Presets, with a source for each number, are in hardware.toml.

Times are integer nanoseconds, sizes bytes, rates bytes (or FLOPs) a second, shares thousandths.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self, cast

from loaderviz.errors import LoadervizError
from loaderviz.files import Source, readable, write

ASSUMED = "assumed"
GB = 10**9  # bandwidths are given in decimal GB/s
UNITS = {"GB": GB, "GiB": 2**30}
TERA = 10**12
FULL = 1000  # shares and factors are in thousandths
SECOND = 10**9
PAGE = 4096  # bytes
SMALL_MALLOC = 2 * 2**20  # bytes: the segments of PyTorch's small blocks
CACHED = 2 * 2**20  # bytes of pageable memory that the processor has at hand: its second cache, assumed
AT_HAND = 8 * 2**20  # bytes of a sample that the processor's caches have, assumed
BRANDS = re.compile(r"^(nvidia |geforce |tesla )*")


class UnknownHardwareError(LoadervizError, ValueError):
    """No such preset."""


class HardwareError(LoadervizError, ValueError):
    """A machine with a number that none can have."""


def ceil_div(a: int, b: int) -> int:
    """Divide whole numbers and round up, so that no work takes less time than it needs."""
    return -(-a // b)


class Hardware:
    """What `Gpu` and `Host` have in common: a source for each number, and presets."""

    sources: dict[str, str]
    divisors: ClassVar[tuple[str, ...]]  # what something is divided by

    def __post_init__(self) -> None:
        """Raise `HardwareError` for a number that no machine has."""
        for entry in fields(cast(Any, self)):
            value = getattr(self, entry.name)
            if isinstance(value, int) and (value < 0 or (value == 0 and entry.name in self.divisors)):
                least = "above 0" if entry.name in self.divisors else "0 or more"
                raise HardwareError(f"{type(self).__name__}({entry.name}={value}): give a number {least}")

    def source(self, name: str) -> str:
        """Return where the number `name` comes from, or "assumed"."""
        known = GPU_SOURCES if isinstance(self, Gpu) else HOST_SOURCES
        return self.sources.get(name) or known.get(name, ASSUMED)

    @classmethod
    def preset(cls, name: str) -> Self:
        """Return a preset by name, or the machine of a file of `loaderviz calibrate` ("my_gpu.json", "my-host.toml").

        Raises `UnknownHardwareError`, with the names that exist.
        """
        presets: dict[str, Any] = GPUS if cls is Gpu else HOSTS
        if str(name).endswith((".json", ".toml")):
            return cls._saved(Path(name), presets)
        if not isinstance(name, str) or name.lower() not in presets:
            what, known = "GPU" if cls is Gpu else "host", ", ".join(sorted(presets))
            raise UnknownHardwareError(f"no {what} preset {name!r}; choose one of: {known}")
        return cast(Self, presets[name.lower()])

    @classmethod
    def _saved(cls, path: Path, presets: dict[str, Any]) -> Self:
        """Return the machine of a file; raise `UnknownHardwareError` for any file that does not hold one."""
        what = cls.__name__.lower()
        try:
            numbers = _object(_object(_read(path), "content").get(what), f"entry {what!r}")
            preset = numbers.pop("preset", None)
            if not isinstance(preset, str) or preset.lower() not in presets:
                raise ValueError(f"its preset is none of {', '.join(sorted(presets))}")
            base, rows = presets[preset.lower()], _object(numbers.pop("kernels", {}), "entry 'kernels'")
            known = {entry.name for entry in fields(base)} - {"kernels", "sources", "capability", "architecture"}
            for name, value in numbers.items():
                if name not in known or type(value) is not (str if name == "name" else int):
                    raise ValueError(f"{name[:40]} is no whole number of a {what}")
            for kind, row in rows.items():
                if not isinstance(row, list) or [type(number) for number in row] != [int] * len(Kernel._fields):
                    raise ValueError(f"its kernels of {kind[:40]} are not {len(Kernel._fields)} whole numbers")
            if rows:
                numbers["kernels"] = {**base.kernels, **{kind: Kernel(*row) for kind, row in rows.items()}}
            measured = dict.fromkeys(numbers, f"measured: {path.name}")
            return cast(Self, replace(base, **numbers, sources=base.sources | measured))
        except (OSError, ValueError, RecursionError) as problem:
            said = "it is nested too deeply" if isinstance(problem, RecursionError) else problem
            raise UnknownHardwareError(f"{path} is not a file that `loaderviz calibrate` wrote: {said}") from problem


def _read(path: Path) -> Any:
    content = Source(readable(path)).whole()
    try:
        return (tomllib.loads if path.suffix == ".toml" else json.loads)(content.decode())
    except ValueError as problem:
        raise ValueError(f"it is no {path.suffix[1:].upper()} ({getattr(problem, 'msg', 'not UTF-8')})") from problem


def _object(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"its {what} is no object")
    return dict(value)


class Kernel(NamedTuple):
    """What a class of kernels reaches: ns that the smallest takes, thousandths of memory bandwidth, of peak FLOP/s."""

    floor: int
    bandwidth: int
    peak: int


Kernels = Mapping[str, Kernel]


class Multiprocessor(NamedTuple):
    """One of a compute capability: threads that it holds, tiles that it works on at once, KiB of shared memory."""

    threads: int
    tiles: int
    shared: int

    @classmethod
    def of(cls, name: str, capability: tuple[int, int]) -> Self:
        """Return that of a card. Raises `HardwareError` for a capability that the table has not."""
        key = "{}.{}".format(*capability)
        if row := DATA["gpu"]["capabilities"].get(key):
            return cls(*row)
        raise HardwareError(
            f"{name} has compute capability {key}, and hardware.toml has no row for it: add [gpu.capabilities] "
            f'"{key}" = [threads, tiles, KiB of shared memory of a multiprocessor] with its source, or give '
            "Gpu(tiles=..., threads_per_sm=...)"
        )


# What it costs that a batch comes from another process. Measured by us, in processor time of a worker (AMD EPYC in a
# virtual machine, 2.3 us a new page): a list of 256 arrays of 64 KiB takes 34 ms, of 32 of 512 KiB 28, one of 16 MiB
# 15 to 24, and bytes 5 to 18: as if each page of an array were written new so many times more than one of bytes.
COPIES = 2
SENDING = "tensor_sent", "pickle_per_byte", "new_page"
RECEIVING = "tensor_received", "unpickle_per_byte", "unmap", "first_read", "staged_page"


class Parcel(NamedTuple):
    """What crosses from a worker to another process: tensors, their bytes in shared memory, bytes that are pickled.

    Of the last so many are those of `arrays` (numpy's, pictures), which pickle copies first.
    """

    tensors: int = 0
    shared: int = 0
    pickled: int = 0
    arrays: int = 0


def pages(nbytes: int) -> int:
    """Return how many pages of memory these bytes take."""
    return ceil_div(nbytes, PAGE)


@dataclass(frozen=True)
class Gpu(Hardware):
    """What the device can do. Rates in bytes/s or FLOP/s, times in ns, memory in bytes, factors in thousandths."""

    divisors = ("memory_bandwidth", "sms", "bidirectional")

    name: str
    h2d: int  # pinned host -> device; a rate of the link is 0 where a timeline does not tell it
    d2h: int  # device -> pinned host
    pageable: int  # through the staging buffer, either way unless `pageable_d2h` is given
    memory_bandwidth: int
    memory: int
    fp32: int
    tf32: int
    fp16: int  # also bfloat16; products summed in float32, as PyTorch asks for
    fp64: int
    sms: int
    capability: tuple[int, int]
    architecture: str = "ampere"
    copy_latency: int = 1_500
    d2h_latency: int = 2_500
    bidirectional: int = 720  # of its speed for a copy to the device beside one to the host
    bidirectional_d2h: int = 0  # for the one to the host; 0: as `bidirectional`
    pageable_d2h: int = 0  # 0: as `pageable`
    pageable_cached: int = 0  # the first `CACHED` bytes of a pageable copy to the device; 0: as the rest
    staging_chunk: int = 512 * 1024
    launch_latency: int = 1_600  # from the end of the launch call to the start, in an idle stream
    queue_gap: int = 1_100  # between two kernels of a stream that were both queued
    word_rate: int = 9_900_000_000  # bytes/s that a multiprocessor reads of matrices whose rows are not 16-byte aligned
    tiles: int = 0  # of a product that a multiprocessor works on at once, each with a part of its rate; 0: see below
    threads_per_sm: int = 0  # that it holds; 0: both as `capability` says
    l2: int = 0  # bytes of the cache, where it is known how fast it is; 0: no faster than memory
    l2_bandwidth: int = 0
    queue_depth: int = 1024
    async_engines: int = 3  # copy engines: with one, H2D and D2H take turns; more than two add nothing
    context_memory: int = 512 * 2**20
    malloc: int = 341_000  # host time of cudaMalloc, cudaFree: large blocks
    malloc_small: int = 20_000  # up to 2 MiB
    kernels: Kernels = field(default_factory=lambda: KERNELS["ampere"], hash=False, repr=False)
    sources: dict[str, str] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Raise `HardwareError` for a number that no GPU has, or a capability of which nothing is known."""
        if not (self.tiles and self.threads_per_sm):
            known = Multiprocessor.of(self.name, self.capability)
            object.__setattr__(self, "tiles", self.tiles or known.tiles)
            object.__setattr__(self, "threads_per_sm", self.threads_per_sm or known.threads)
        super().__post_init__()

    @classmethod
    def named(cls, name: str) -> Gpu:
        """Return the preset of a card by the name that it reports, as "NVIDIA H100 80GB HBM3".

        Raises `UnknownHardwareError` where none fits: a card of a like name (a laptop's, "Ti", a MIG slice) is another.
        """
        given = BRANDS.sub("", name.strip().lower())
        for key, gpu in GPUS.items():
            if given == BRANDS.sub("", gpu.name.lower()) or re.fullmatch(DATA["gpu"]["names"].get(key, "-"), given):
                return gpu
        raise UnknownHardwareError(
            f"no preset fits the GPU {name!r}; choose the nearest of: {', '.join(sorted(GPUS))}; or give a Gpu(...) "
            "with its numbers"
        )

    def behind(self, h2d: int, pageable: int) -> Self:
        """Return this GPU behind another link [bytes/s]: pageable copies have one rate, whatever their size and way."""
        return replace(self, h2d=h2d, pageable=pageable, pageable_d2h=0, pageable_cached=0)

    def copy_time(self, nbytes: int, rate: int, *, down: bool = False) -> int:
        """Return the time of a copy over the link in ns: latency + bytes / rate (R22); `down`: to the host."""
        return (self.d2h_latency if down else self.copy_latency) + ceil_div(nbytes * SECOND, rate)

    def pageable_time(self, nbytes: int, *, down: bool = False) -> int:
        """Return the time of a copy from pageable memory in ns, or `down` to it, where only the staging holds it up."""
        if down:
            return self.copy_time(nbytes, self.pageable_d2h or self.pageable, down=True)
        cached = min(nbytes, CACHED) if self.pageable_cached else 0
        first = ceil_div(cached * SECOND, self.pageable_cached) if cached else 0
        return self.copy_time(nbytes - cached, self.pageable) + first

    def malloc_time(self, nbytes: int) -> int:
        """Return the host's time in ns for `cudaMalloc` or `cudaFree` of `nbytes` bytes (R13)."""
        return self.malloc_small if nbytes <= SMALL_MALLOC else self.malloc


@dataclass(frozen=True)
class Host(Hardware):
    """What the computer around the GPU costs. Times in ns, rates in bytes/s or FLOP/s.

    What has a default costs nothing where it is not given, so that a `Host` of one's own has simple sums.
    """

    divisors = ("memory_bandwidth", "siblings", "ranks_on_host")

    name: str
    dispatch: int  # one operator through PyTorch, without its CUDA calls
    launch: int  # cudaLaunchKernel
    memcpy_call: int  # cudaMemcpyAsync
    synchronize: int  # cudaStreamSynchronize, when there is nothing to wait for
    event_call: int  # cudaEventRecord, cudaStreamWaitEvent
    query: int  # cudaEventQuery
    memory_bandwidth: int  # what one thread reads and writes
    page_lock_base: int  # cudaHostAlloc, however small
    page_lock_per_gib: int
    fetch_per_sample: int  # dataset[i] and its share of collate
    fetch_per_byte: int  # picoseconds a byte: read, gather or collate
    fetch_base: int  # a batch, however small: queue, index list
    hand_out: int  # the main thread takes a batch from the loader, whatever is in it
    worker_start: int  # one DataLoader worker process: its start, and its end at the end of the epoch
    python: int = 0  # from one call of torch to the next
    module: int = 0  # `nn.Module.__call__`
    composite: int = 0  # a product, convolution or norm, or its backward, beyond `dispatch`: nested calls, cuBLAS
    convolution: int = 0  # a call of cuDNN for one, beyond `composite`: one forward, one for each gradient
    node: int = 0  # a node of autograd, beyond its operators
    optimizer: int = 0  # `Optimizer.step()`, beyond its operators
    parameter: int = 0  # of it, for each parameter
    flops: int = 0  # of one thread, in float32; 0: arithmetic is free
    cores: int = 0  # shared by all (emulator/host.py), arithmetic on the main thread takes them all; 0: no limit
    siblings: int = 1  # threads that a core can run at once (SMT): a virtual CPU is one of them
    sibling: int = 0  # thousandths of a core's work that each further one of them adds
    contention: int = 0  # thousandths by which each busy core slows the next: clocks, caches and memory are shared
    ranks_on_host: int = 1  # equal training processes that share cores, disk, memory's bandwidth and /dev/shm
    parallel_bandwidth: int = 0  # what torch's threads read and write together; 0: as one thread
    transforms: int = 0  # thousandths of the times in the table of transforms (torch/dataloader.py)
    cached_bandwidth: int = 0  # what one thread reads and writes in its caches; 0: as `memory_bandwidth`
    wake: int = 0  # a blocked host goes on so long after what it waited for
    lock: int = 0  # a lock is taken, by whoever finds it free
    thread_wake: int = 0  # a thread that waits for another one goes on so long after it was let go on
    thread_start: int = 0  # `Thread.start()`
    switch_interval: int = 0  # after which a thread gets Python's lock from another one; 0: free-threaded, no lock
    crowding: int = 0  # thousandths by which each busy worker slows copies within the host's memory (pinning, staging)
    disk: int = 0  # bytes/s of files that are read the first time; 0: files are in memory
    disk_latency: int = 0  # of each such file
    shm: int = 0  # bytes of /dev/shm, where workers put tensors; 0: no limit
    tensor_sent: int = 0  # a worker hands a tensor in shared memory over: its file descriptor goes through a socket
    tensor_received: int = 0  # the process that takes it
    pickle_per_byte: int = 0  # picoseconds a byte of what is no tensor: pickled and written into a pipe of 64 KiB
    unpickle_per_byte: int = 0  # read from there and unpickled
    new_page: int = 0  # a page (4 KiB) of shared memory, written for the first time
    first_read: int = 0  # such a page, when another process touches it first
    staged_page: int = 0  # when that is the driver, which stages a pageable copy
    unmap: int = 0  # and when that one gives it back
    sources: dict[str, str] = field(default_factory=dict, compare=False, repr=False)

    def save(self, path: str | Path) -> Path:
        """Write what differs from the preset that it was made of as TOML, for `record(host=path)`; return the path.

        Raises `NoFolderError` for a missing folder.
        """
        preset = self.name.split(", ")[0]
        preset = preset if preset in HOSTS else "workstation"
        names = [entry.name for entry in fields(self) if isinstance(getattr(self, entry.name), int)]
        changed = [name for name in names if getattr(self, name) != getattr(HOSTS[preset], name)]
        lines = [f"{name} = {getattr(self, name)}  # {self.source(name)}" for name in changed]
        head = ["[host]", f"name = {json.dumps(self.name)}", f"preset = {json.dumps(preset)}  # of all else"]
        return write(path, "\n".join([*head, *lines, ""]))

    def work_time(self, nbytes: int, flops: int = 0, work: int = 0) -> int:
        """Return the time in ns in which one thread touches `nbytes` (reads and writes counted), or computes.

        `work`: what it takes besides, on the processor of the tables [ns].
        """
        math = ceil_div(flops * SECOND, self.flops) if self.flops else 0
        return max(ceil_div(nbytes * SECOND, self.memory_bandwidth), math, work * self.transforms // FULL)

    def sample_time(self, nbytes: int, flops: int = 0, work: int = 0) -> int:
        """Return `work_time` [ns] of an operator in a data set: the first bytes of a sample are in the caches."""
        near = min(nbytes, AT_HAND)
        faster = max(self.memory_bandwidth, self.cached_bandwidth)
        return self.work_time(nbytes - near + near * self.memory_bandwidth // faster, flops, work)

    def list_time(self, count: int, *, given: bool = False) -> int:
        """Return the time in ns in which `torch.tensor` reads so many numbers out of lists, one by one.

        `given`: in which `Tensor.tolist` puts them into one.
        """
        price = DATA["lists"]
        took = price["given"] * count // 1000 if given else price["call"] + price["number"] * count // 1000
        return int(took * self.transforms // FULL)

    def pin_time(self, nbytes: int) -> int:
        """Return the time in ns in which the main thread copies `nbytes` into pinned memory, with torch's threads."""
        return ceil_div(2 * nbytes * SECOND, max(self.memory_bandwidth, self.parallel_bandwidth))

    def page_lock_time(self, nbytes: int) -> int:
        """Return the time in ns of page-locking `nbytes` for the first time (R44)."""
        return self.page_lock_base + ceil_div(nbytes * self.page_lock_per_gib, 2**30)

    def fetch_time(self, samples: int, nbytes: int, *, batched: bool = False) -> int:
        """Return the time in ns in which a worker prepares a batch of `samples` samples, `nbytes` bytes in all.

        `batched`: the data set gives the whole batch at once (`__getitems__`, or an index list as one item), which
        saves the cost of each sample.
        """
        per_sample = 0 if batched else samples * self.fetch_per_sample
        return self.fetch_base + per_sample + ceil_div(nbytes * self.fetch_per_byte, 1000)

    def sending(self, parcel: Parcel) -> int:
        """Return the time in ns in which a worker sends a batch to another process, its pages in shared memory new."""
        pickled = ceil_div(parcel.pickled * self.pickle_per_byte, 1000)
        new = pages(parcel.shared) + COPIES * pages(parcel.arrays)
        return parcel.tensors * self.tensor_sent + pickled + new * self.new_page

    def receiving(self, parcel: Parcel) -> int:
        """Return the time in ns in which a process takes a batch from a worker, and gives its pages back later."""
        pickled = ceil_div(parcel.pickled * self.unpickle_per_byte, 1000)
        return parcel.tensors * self.tensor_received + pickled + pages(parcel.shared) * self.unmap

    def pinning(self, nbytes: int) -> int:
        """Return the time in ns in which the pin thread copies what a worker wrote, whose pages it is first to read."""
        return self.work_time(2 * nbytes) + pages(nbytes) * self.first_read

    def speed(self, busy: int) -> int:
        """Return the speed of one more thread beside `busy` cores, in thousandths of a core alone; 0: none is left."""
        if not self.cores:
            return FULL
        free = FULL if busy < self.cores else self.sibling if busy < self.cores * self.siblings else 0
        return free * FULL // (FULL + self.contention * busy)

    def for_rank(self) -> Host:
        """Return what one of `ranks_on_host` equal processes has: the parts that all share, divided among them."""
        ranks = self.ranks_on_host
        if ranks == 1:
            return self
        together = ceil_div(self.parallel_bandwidth, ranks)
        return replace(
            self,
            name=f"{self.name} ({ranks} ranks share it)",
            cores=max(1, self.cores // ranks) if self.cores else 0,
            memory_bandwidth=min(self.memory_bandwidth, together or self.memory_bandwidth),
            parallel_bandwidth=together,
            disk=ceil_div(self.disk, ranks),
            shm=ceil_div(self.shm, ranks),
            ranks_on_host=1,
        )

    def step_operator(self) -> int:
        """Return the time in ns for an operator of a training step, without its launch, where no one knows which.

        Half of them are taken to be backward, each a node; half forward, each in a module. Every second one is
        composite, none a convolution.
        """
        return self.dispatch + (self.python + self.module + self.node + self.composite) // 2


def table(name: str) -> dict[str, Any]:
    """Return what stands in a TOML file beside this module."""
    return tomllib.loads(Path(__file__).with_name(f"{name}.toml").read_text(encoding="utf-8"))


def _kernels() -> dict[str, Kernels]:
    costs = table("kernels")["costs"]
    columns = zip(*costs["rows"].values(), strict=True)
    return {
        architecture: {
            kind: Kernel(round(floor * 1000), bandwidth, peak)
            for kind, (floor, bandwidth, peak) in zip(costs["rows"], column, strict=True)
        }
        for architecture, column in zip(costs["architectures"], columns, strict=True)
    }


def _sources(texts: Mapping[str, str]) -> dict[str, str]:
    return {name: text for names, text in texts.items() for name in names.split()}  # a text may stand for several


def _card(key: str, row: list[Any]) -> Gpu:
    for (column, kind), value in zip_longest(COLUMNS.items(), row, fillvalue=("one more", ())):  # which nothing fits
        if not isinstance(value, kind):
            raise HardwareError(
                f"the row of {key!r} in hardware.toml, [gpu.cards], has {len(row)} values, of which that for {column} "
                f"does not fit; give these {len(COLUMNS)}: {', '.join(COLUMNS)}"
            )
    architecture, link, bandwidth, memory, *rates, sms, capability, name = row
    up, down, pageable, source = DATA["gpu"]["links"][link.rstrip("*")]
    sources = dict.fromkeys(("h2d", "d2h", "pageable"), ("assumed from: " if "*" in link else "") + source)
    copies: dict[str, Any] = {}
    for numbers_of, whose in (("staged", link), ("both_ways", architecture)):
        own = dict(DATA["gpu"][numbers_of].get(whose.rstrip("*"), {}))
        sources |= dict.fromkeys(own, ("assumed from: " if "*" in whose else "") + own.pop("source", ""))
        copies |= own
    size, unit = memory.split()
    fp32, tf32, fp16, fp64 = (round(rate * TERA) for rate in rates)
    cached = DATA["gpu"]["l2_bandwidth"].get(key, 0) * GB
    return Gpu(
        name, round(up * GB), round(down * GB), round(pageable * GB), bandwidth * GB, int(size) * UNITS[unit],
        fp32, tf32, fp16, fp64, sms, tuple(capability), architecture, kernels=KERNELS[architecture], sources=sources,
        l2=DATA["gpu"]["chips"][key][0] * 2**20 if cached else 0, l2_bandwidth=cached,
        **{name: round(rate * GB) if name.startswith("pageable") else rate for name, rate in copies.items()},
    )  # fmt: skip


_NUMBER = int, float
COLUMNS: dict[str, Any] = {
    "architecture": str, "link": str, "GB/s of memory": _NUMBER, "bytes of memory": str, "fp32": _NUMBER,
    "tf32": _NUMBER, "fp16": _NUMBER, "fp64": _NUMBER, "multiprocessors": int, "capability": list, "name": str,
}  # fmt: skip
DATA = table("hardware")
GPU_SOURCES, HOST_SOURCES = (_sources(DATA[kind]["sources"]) for kind in ("gpu", "host"))
KERNELS: dict[str, Kernels] = _kernels()
GPUS: dict[str, Gpu] = {key: _card(key, row) for key, row in DATA["gpu"]["cards"].items()}
HOSTS: dict[str, Host] = {
    name: Host(
        name,
        **dict(zip(DATA["host"]["numbers"], column, strict=True)),
        sources=_sources(DATA["host"]["own"].get(name, {})),
    )
    for name, column in zip(DATA["host"]["names"], zip(*DATA["host"]["numbers"].values(), strict=True), strict=True)
}


def numbers(machine: Gpu | Host) -> dict[str, str]:
    """Return every number of a preset with its source, for a table: `{"h2d": "25000000000 (PCIe 4: …)"}`."""
    names = [entry.name for entry in fields(machine) if entry.name not in ("name", "sources")]
    return {name: f"{getattr(machine, name)} ({machine.source(name)})" for name in names}
