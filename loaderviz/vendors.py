"""What profilers call things: categories of events, names of copies, and what a call of a vendor's runtime does.

One table for all vendors, vendors.toml, for the reader of traces, for advice and for what_if(). Categories changed over
the years ("Kernel" in 2021, "kernel" now) and differ by vendor (`cuda_runtime`, `xpu_runtime`, `mtia_runtime`, …; the
types are those of Kineto's ActivityType).
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from enum import IntEnum, IntFlag
from functools import lru_cache, reduce
from operator import or_
from pathlib import Path
from typing import Any

import numpy as np

from loaderviz.batches import BATCH_RANGE, LOADER_NEXT, PREFETCH_RANGE, STEP_RANGE
from loaderviz.timeline import Cause, Ints, Kind, Message


class Role(IntEnum):
    """What an event of a category is; NONE is left out and counted."""

    NONE = 0
    OPERATOR = 1
    ANNOTATION = 2
    CALL = 3
    KERNEL = 4
    MEMCPY = 5
    MEMSET = 6
    GPU_ANNOTATION = 7
    SYNC = 8


ON_DEVICE = (Role.KERNEL, Role.MEMCPY, Role.MEMSET)

_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
ROLES = {category: Role[role] for role, categories in _TABLE["categories"].items() for category in categories.split()}

# "Memcpy HtoD (Pageable -> Device)", "CopyHostToDevice", "zeCommandListAppendMemoryCopy(M2D)", "Memcpy D2M …"
_COPY = re.compile(
    r"(?:memcpy|memorycopy)\W*([A-Z])(?:to|2)([A-Z])\b|Copy(Host|Device|Array)To(Host|Device|Array)", re.I
)
_MEMORY = re.compile(r"\(\s*(.+?)\s*->\s*(.+?)\s*\)")
_HOST_SIDE = {"H", "M"}  # Level Zero calls the host's memory M
PAGE_FAULTS, MIGRATION = "page faults", "page migration"  # of managed memory; the second is in the name of a copy
_COLLECTIVE = re.compile(rf"^(?:void )?(?:{_TABLE['collectives']})|ncclDevKernel|ncclKernel", re.I)
POINT_TO_POINT = re.compile(_TABLE["point_to_point"], re.I)
_DTYPES = {dtype: int(size) for size, dtypes in _TABLE["dtypes"].items() for dtype in dtypes.split()}
_MOST = 2**50  # elements, or ranks, of a message: there are no more
NSIGHT, NSYS = "Nsight Systems", "nsys profile --trace=cuda,nvtx"  # how its traces are recorded
_BLIT_COPY, _BLIT_FILL = "__amd_rocclr_copyBuffer", "__amd_rocclr_fillBuffer"  # ROCm copies may be kernels


class Api(IntFlag):
    """What a call of a vendor's runtime or driver does, several at once: a cudaMemcpy is a launch, too."""

    LAUNCH = 1  # puts work into a stream
    COPY = 2
    SYNCHRONIZE = 4  # the host waits for work of the device
    ALLOCATE = 8  # device memory, and waits for nobody (R13)
    FREE = 16  # device memory, and waits for the device (R13)
    PAGE_LOCK = 32  # host memory, or unlocks it (R7)
    MEMORY = ALLOCATE | FREE | PAGE_LOCK
    EVENT = 64  # records, awaits or queries one


_PATTERNS = [
    (reduce(or_, (Api[each] for each in does.split("|"))), re.compile(f"(?:{_TABLE['prefixes']})(?:{rest})|{intel}"))
    for does, (rest, intel) in _TABLE["calls"].items()
]


def calls_of(names: Sequence[str]) -> Ints:
    """Return what the call of each name does, as bits of `Api`; 0 for what is none of these.

    >>> calls_of(["hipMemcpyAsync", "muStreamSynchronize", "aten::add"]).tolist()
    [3, 4, 0]
    """
    return np.array([next((call for call, pattern in _PATTERNS if pattern.match(name)), 0) for name in names], np.int16)


@lru_cache(10_000)
def is_collective(name: str) -> bool:
    """Tell whether a kernel is a collective's, by its name."""
    return bool(_COLLECTIVE.search(name))


def message_of(correlation: int, arguments: dict[str, Any]) -> Message:
    """Return what a kernel of a collective, or torch's `record_param_comms`, tells of it in its arguments.

    The bytes are those of nccl-tests: the larger of what a rank gives and gets.

    >>> told = {"Collective name": "_allgather_base", "In msg nelems": 12, "Out msg nelems": 96, "dtype": "BFloat16"}
    >>> message_of(7, told)
    Message(correlation=7, name='_allgather_base', nbytes=192, dtype='BFloat16', group='', ranks=None)
    """
    texts = [arguments.get(key) for key in ("Collective name", "dtype", "Process Group Name")]
    name, dtype, group = (text if isinstance(text, str) else "" for text in texts)
    given, got, ranks = (
        value if type(value := arguments.get(key)) is int and 0 <= value < _MOST else None
        for key in ("In msg nelems", "Out msg nelems", "Group size")
    )
    nbytes = None if given is None or got is None else max(given, got) * _DTYPES.get(dtype, 0)
    return Message(correlation, name, nbytes or None, dtype, group, ranks or None)


def copy_of(name: str) -> tuple[Kind, int]:
    """Return the kind of a copy, and 1 if its host side is pinned, 0 if pageable, -1 if the name does not say.

    Copies between host and host, or between two devices, are work on the device as far as a timeline goes.

    >>> copy_of("Memcpy HtoD (Pageable -> Device)")
    (<Kind.COPY_H2D: 2>, 0)
    """
    match = _COPY.search(name)
    sides = [(group or "?")[0].upper() for group in match.groups() if group] if match else ["?", "?"]
    source, target = ("H" if side in _HOST_SIDE else "D" for side in sides[:2])
    kind, host = {("H", "D"): (Kind.COPY_H2D, 1), ("D", "H"): (Kind.COPY_D2H, 2)}.get((source, target), (None, 0))
    if kind is None:
        return Kind.COPY_D2D, -1
    memory = _MEMORY.search(name)
    return kind, {"pinned": 1, "pageable": 0}.get(memory.group(host).lower() if memory else "", -1)


def kind_of(role: Role, name: str) -> tuple[Kind, int, Cause]:
    """Return kind, host memory (see `copy_of`) and cause of waiting of an event of this role and name."""
    if role is Role.MEMCPY:
        return (*copy_of(name), Cause.NONE)
    if role is Role.KERNEL:  # the direction of ROCm's copies stands in their call, see `BLIT_DIRECTIONS`
        work = Kind.COMMUNICATION if is_collective(name) else Kind.COMPUTE
        kind = Kind.COPY_D2D if is_blit(name) else Kind.MEMSET if name.startswith(_BLIT_FILL) else work
        return kind, -1, Cause.NONE
    if role in (Role.OPERATOR, Role.ANNOTATION) and name.startswith(LOADER_NEXT):
        # with workers the main thread waits for them; without, it prepares the batch itself
        return (Kind.FETCH, -1, Cause.NONE) if "SingleProcess" in name else (Kind.WAIT, -1, Cause.DATA)
    if role is Role.OPERATOR and any(each.match(name) for each in (STEP_RANGE, BATCH_RANGE, PREFETCH_RANGE)):
        return Kind.RANGE, -1, Cause.NONE  # in 2021 annotations were operators, too
    if role is Role.SYNC:
        return Kind.WAIT, -1, Cause.SYNCHRONIZE
    kinds = {Role.OPERATOR: Kind.OPERATOR, Role.CALL: Kind.API, Role.MEMSET: Kind.MEMSET}
    return kinds.get(role, Kind.RANGE), -1, Cause.NONE


BLIT_DIRECTIONS = {1: Kind.COPY_H2D, 2: Kind.COPY_D2H}  # hipMemcpyKind in the call's arguments


def is_blit(name: str) -> bool:
    """Tell whether a kernel is ROCm's way of copying."""
    return name.startswith(_BLIT_COPY)
