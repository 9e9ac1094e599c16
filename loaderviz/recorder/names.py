"""The words of the profilers: what a category, a copy's name or a call's name says.

Categories changed over the years ("Kernel" in 2021, "kernel" now) and differ by vendor (`cuda_runtime`, `xpu_runtime`,
`mtia_runtime`, …; the types are those of Kineto's ActivityType). They are compared in lower case.
"""

from __future__ import annotations

import re
from enum import IntEnum

from loaderviz.timeline import Cause, Kind


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

ROLES: dict[str, Role] = {
    "cpu_op": Role.OPERATOR, "operator": Role.OPERATOR,
    "user_annotation": Role.ANNOTATION, "collective_comm": Role.ANNOTATION, "xpu_scope_profiler": Role.ANNOTATION,
    **dict.fromkeys((
        "runtime", "driver", "cuda_runtime", "cuda_driver", "xpu_runtime", "xpu_driver", "mtia_runtime",
        "glow_runtime", "hpu_op", "privateuse1_runtime", "privateuse1_driver", "gcu_runtime", "gcu_driver",
    ), Role.CALL),
    "kernel": Role.KERNEL, "mtia_ccp_events": Role.KERNEL,
    "memcpy": Role.MEMCPY, "gpu_memcpy": Role.MEMCPY,
    "memset": Role.MEMSET, "gpu_memset": Role.MEMSET,
    "gpu_user_annotation": Role.GPU_ANNOTATION,
    "cuda_sync": Role.SYNC, "xpu_sync": Role.SYNC,
}  # fmt: skip

# "Memcpy HtoD (Pageable -> Device)", "CopyHostToDevice", "zeCommandListAppendMemoryCopy(M2D)", "Memcpy D2M …"
_COPY = re.compile(
    r"(?:memcpy|memorycopy)\W*([A-Z])(?:to|2)([A-Z])\b|Copy(Host|Device|Array)To(Host|Device|Array)", re.I
)
_MEMORY = re.compile(r"\(\s*(.+?)\s*->\s*(.+?)\s*\)")
_HOST_SIDE = {"H", "M"}  # Level Zero calls the host's memory M
_COLLECTIVE = re.compile(r"^(?:void )?(?:nccl|rccl|oneccl|hccl|xccl|mscclpp?_)|ncclDevKernel|ncclKernel", re.I)
_BLIT_COPY, _BLIT_FILL = "__amd_rocclr_copyBuffer", "__amd_rocclr_fillBuffer"  # ROCm copies may be kernels

LAUNCHES = re.compile(
    r"^(?:cuda|cu|hip|hipExt|hipDrv|musa)(?:Ext|Module)?(?:Launch(?!HostFunc)|Memcpy|Memset|GraphLaunch)", re.I
)
_SYNCHRONIZES = re.compile(r"^(?:cuda|cu|hip|musa)(?:Device|Stream|Event|Ctx|Context|Thread)Synchronize|"
                           r"^(?:urQueueFinish|urEventWait|zeEventHostSynchronize|zeCommandQueueSynchronize|"
                           r"zeCommandListHostSynchronize)")  # fmt: skip
_ALLOCATES = re.compile(r"^(?:cuda|hip|musa)(?:Malloc|Free)(?:Managed|Pitch|3D|Array)?$|^cuMem(?:Alloc|Free)(?:_v2)?$")
_PAGE_LOCKS = re.compile(r"^(?:cuda|hip|musa)(?:HostAlloc|HostMalloc|MallocHost|FreeHost|HostFree|HostRegister|"
                         r"HostUnregister)$|"
                         r"^cuMem(?:HostAlloc|AllocHost|FreeHost|HostRegister|HostUnregister)")  # fmt: skip
_RECORDS = re.compile(r"^(?:cuda|cu|hip|musa)EventRecord", re.I)
_WAITS_EVENT = re.compile(r"^(?:cuda|cu|hip|musa)StreamWaitEvent", re.I)
_COPY_CALL = re.compile(r"^(?:cuda|cu|hip|musa)Memcpy", re.I)
LOADER_NEXT = re.compile(r"^enumerate\(DataLoader\)#_(\w*?)DataLoaderIter\.__next__")

MARK = re.compile(r"batch (\d+): \d+ samples?$")  # loaderviz.loaders: handed out; holds until the next
PREFETCH = re.compile(r"prefetch of batch (\d+)$")  # loaderviz.loaders: the launches in it are for a later batch
NUMBERED = re.compile(r"batch (\d+)$", re.I)
STEP = re.compile(r"ProfilerStep#(\d+)$")


def copy_of(name: str) -> tuple[Kind, int]:
    """Return the kind of a copy, and 1 if its host side is pinned, 0 if pageable, -1 if the name does not say.

    Copies between host and host, or between two devices, are work on the device as far as a timeline goes.

    >>> copy_of("Memcpy HtoD (Pageable -> Device)")
    (<Kind.COPY_H2D: 2>, 0)
    """
    match = _COPY.search(name)
    sides = [(group or "?")[0].upper() for group in match.groups() if group] if match else ["?", "?"]
    source, target = ("H" if side in _HOST_SIDE else "D" for side in sides[:2])
    if (source, target) == ("H", "D"):
        kind, host = Kind.COPY_H2D, 1
    elif (source, target) == ("D", "H"):
        kind, host = Kind.COPY_D2H, 2
    else:
        return Kind.COPY_D2D, -1
    memory = _MEMORY.search(name)
    return kind, {"pinned": 1, "pageable": 0}.get(memory.group(host).lower() if memory else "", -1)


def kind_of(role: Role, name: str) -> tuple[Kind, int, Cause]:
    """Return kind, host memory (see `copy_of`) and cause of waiting of an event of this role and name."""
    if role is Role.MEMCPY:
        return (*copy_of(name), Cause.NONE)
    if role is Role.KERNEL:
        return _kernel(name), -1, Cause.NONE
    if role in (Role.OPERATOR, Role.ANNOTATION) and (match := LOADER_NEXT.match(name)):
        # with workers the main thread waits for them; without, it prepares the batch itself
        fetches = match.group(1).startswith("SingleProcess")
        return (Kind.FETCH, -1, Cause.NONE) if fetches else (Kind.WAIT, -1, Cause.DATA)
    if role is Role.OPERATOR and any(pattern.match(name) for pattern in (STEP, MARK, NUMBERED, PREFETCH)):
        return Kind.RANGE, -1, Cause.NONE  # in 2021 annotations were operators, too
    kinds = {Role.OPERATOR: Kind.OPERATOR, Role.CALL: Kind.API, Role.MEMSET: Kind.MEMSET}
    return kinds.get(role, Kind.RANGE), -1, Cause.NONE


def _kernel(name: str) -> Kind:
    if name.startswith(_BLIT_COPY):
        return Kind.COPY_D2D  # its direction stands in the call, see `BLIT_DIRECTIONS`
    if name.startswith(_BLIT_FILL):
        return Kind.MEMSET
    return Kind.COMMUNICATION if _COLLECTIVE.search(name) else Kind.COMPUTE


BLIT_DIRECTIONS = {1: Kind.COPY_H2D, 2: Kind.COPY_D2H}  # hipMemcpyKind in the call's arguments


def is_blit(name: str) -> bool:
    """Tell whether a kernel is ROCm's way of copying."""
    return name.startswith(_BLIT_COPY)


class Calls:
    """What the calls of a trace do, one set of name numbers for each question."""

    def __init__(self, names: list[str]) -> None:
        def which(pattern: re.Pattern[str]) -> list[int]:
            return [number for number, name in enumerate(names) if pattern.search(name)]

        self.launches = which(LAUNCHES)
        self.copies = which(_COPY_CALL)
        self.records = which(_RECORDS)
        self.waits_event = which(_WAITS_EVENT)
        self.blocking = {
            Cause.SYNCHRONIZE: which(_SYNCHRONIZES), Cause.ALLOCATION: which(_ALLOCATES),
            Cause.PAGE_LOCKING: which(_PAGE_LOCKS),
        }  # fmt: skip
