"""The rules of CUDA and PyTorch that the emulated GPU obeys and that reports, findings and lessons cite, as text.

    loaderviz.rule("R16")     # prints as text, and as a card in a notebook

Each is held by the tests whose names begin with `test_r16_`; docs/rules.md lists them.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from loaderviz.errors import LoadervizError

_SYNC = "https://docs.nvidia.com/cuda/cuda-driver-api/api-sync-behavior.html"
_STREAMS = "https://docs.nvidia.com/cuda/cuda-driver-api/stream-sync-behavior.html"
_NOTES = "https://docs.pytorch.org/docs/stable/notes/cuda.html"
_COPY = "PyTorch, aten/src/ATen/native/cuda/Copy.cu"
_PINNED = "PyTorch, aten/src/ATen/core/CachingHostAllocator.h"
_C10 = "PyTorch, c10/cuda/CUDAStream.cpp"


class UnknownRuleError(LoadervizError, KeyError):
    """There is no rule of this name."""

    def __str__(self) -> str:
        return str(self.args[0])


@dataclass(frozen=True)
class Rule:
    """A rule: its name, what it says, and who says so. Prints as text; a card in a notebook."""

    name: str
    statement: str
    source: str

    def __str__(self) -> str:
        return f"{self.name}: {self.statement}\n(source: {self.source})"

    def _repr_html_(self) -> str:
        return (
            '<div style="border-left:4px solid #888;padding:.3em .8em;margin:.3em 0">'
            f"<b>{self.name}</b> {escape(self.statement)}<br><small>{escape(self.source)}</small></div>"
        )


def rule(name: str) -> Rule:
    """Return a rule by its name, such as "R16" (or 16). Raises `UnknownRuleError` for one that is not published.

    >>> print(rule("R24").statement)
    Each stream's launch queue holds about 1,000 commands; when it is full, the next launch blocks the host.
    """
    number = str(name).strip().upper().removeprefix("R")
    try:
        return RULES[f"R{number}"]
    except KeyError:
        raise UnknownRuleError(f"no rule {name!r}; there are {', '.join(RULES)}") from None


def _rules(*rows: tuple[int, str, str]) -> dict[str, Rule]:
    return {f"R{number}": Rule(f"R{number}", statement, source) for number, statement, source in rows}


RULES = _rules(
    (
        1,
        "A synchronous copy from pageable memory first waits for its stream and returns once the data are staged; the "
        "last transfer may still run.",
        _SYNC,
    ),
    (2, "A synchronous copy from pinned memory returns when it is complete.", _SYNC),
    (3, "A synchronous copy from device to host, pageable or pinned, returns when it is complete.", _SYNC),
    (4, "A copy from device to device does not make the host wait.", _SYNC),
    (6, "An asynchronous copy between the device and pageable memory may be synchronous for the host.", _SYNC),
    (7, "Pageable memory must be staged: the driver may wait for the stream before it stages.", _SYNC),
    (8, "Every other asynchronous copy, such as one from pinned memory, returns at once.", _SYNC),
    (10, "A memset is asynchronous, except into pinned host memory.", _SYNC),
    (
        11,
        "An asynchronous copy into pageable memory blocks today, but CUDA no longer promises it: do not rely on it.",
        f"{_SYNC}; older editions promised it",
    ),
    (
        12,
        "A copy of at most 64 KB from pageable memory does not make the host wait.",
        "CUDA C++ programming guide, asynchronous execution; a lower bound, by real traces",
    ),
    (
        13,
        "cudaMalloc costs host time (5 to 40 us a small block, 100 to 700 us a large one), but does not wait for "
        "running work. cudaFree of what may be in use waits; page-locking costs milliseconds the first time.",
        "public traces of an RTX 2080 Ti and an MI300X; the guide's implicit synchronisation is about order "
        "between streams",
    ),
    (
        14,
        "The default stream and blocking streams wait for each other; non-blocking streams do not take part.",
        _STREAMS,
    ),
    (
        15,
        "PyTorch's streams are non-blocking, 32 a priority, handed out in turn: nothing orders them with the default "
        "stream but what you write.",
        f"{_C10}; {_STREAMS}",
    ),
    (
        16,
        "A stream is a queue: its commands run in order, those of two streams in any order. wait_stream() and "
        "wait_event() hold back what comes later for what was enqueued before, and return to the host at once.",
        _NOTES,
    ),
    (
        17,
        "The backward of an operator runs in the stream of its forward; autograd orders both ends with the caller's "
        "stream.",
        _NOTES,
    ),
    (
        18,
        "Of waiting kernels those of the stream with the lower priority number go first; what runs is not interrupted, "
        "and copies are not affected.",
        "CUDA driver API, cuStreamCreateWithPriority; PyTorch, torch.cuda.Stream",
    ),
    (
        19,
        "Kernels of two streams run at once only if the GPU has room: one large kernel fills it.",
        "PyTorch forum, topic 212841",
    ),
    (
        20,
        "One copy in each direction and kernels run at once; two copies of the same direction take turns.",
        "NVIDIA webinar, Streams and concurrency",
    ),
    (
        21,
        "Copies in both directions at once slow each other, to about 0.72 of the speed.",
        "NVIDIA nvbandwidth, README: 26.0 GB/s alone, 18.4 to 19.6 together",
    ),
    (
        22,
        "A copy takes a latency and its bytes over the bandwidth; from pageable memory at the speed of the staging.",
        "public traces: 1.5 to 2.5 us on the device",
    ),
    (
        23,
        "A launch costs the host time, and the GPU starts later: short kernels are bound by their launches.",
        "public traces: 4 to 10 us a launch",
    ),
    (
        24,
        "Each stream's launch queue holds about 1,000 commands; when it is full, the next launch blocks the host.",
        "Stack Overflow, question 53970187; 1,024 by later measurements",
    ),
    (
        25,
        ".item(), .cpu(), .tolist(), nonzero(), a mask as an index, print() and `if` on a tensor copy to the host and "
        "wait for the current stream.",
        "PyTorch, aten/src/ATen/native/cuda/CUDAScalar.cu",
    ),
    (
        26,
        "torch.cuda.set_sync_debug_mode sees explicit synchronisation only, not a non_blocking copy that the driver "
        "stages through pageable memory.",
        "vLLM, gpu_sync_debug",
    ),
    (
        27,
        "Host timing without a synchronize measures the launches, not the work; CUDA_LAUNCH_BLOCKING=1 makes each "
        "launch wait.",
        _NOTES,
    ),
    (28, "A copy between CPU and GPU runs in the GPU's current stream.", _COPY),
    (
        29,
        "A non_blocking copy notes its stream with the pinned block, so that the cache does not give it out too early.",
        _COPY,
    ),
    (
        30,
        "A blocking copy is an asynchronous one and a wait for that stream: it waits for all earlier kernels there.",
        _COPY,
    ),
    (
        31,
        "A copy that changes the dtype converts on the GPU if non_blocking; else on the CPU into a new pageable "
        "temporary, which loses the pinned path.",
        f"{_COPY}; pytorch issue 121320",
    ),
    (
        32,
        ".to('cpu', non_blocking=True) gives pinned memory whose data are not there yet; copy_() into pageable memory "
        "blocks.",
        "PyTorch, aten/src/ATen/native/TensorConversions.cpp",
    ),
    (34, "What a CUDA graph captures must not copy from pageable memory.", _COPY),
    (
        35,
        "Memory that is freed goes back to the pool of the stream that allocated it, at host time: safe to reuse in "
        "that stream, which runs in order, and in no other.",
        _NOTES,
    ),
    (
        36,
        "record_stream(s) holds freed memory back until the work that s has then is done.",
        "PyTorch, torch.Tensor.record_stream",
    ),
    (37, "A side stream must wait for the stream that allocated its memory even before it only writes to it.", _NOTES),
    (
        39,
        "Pinned sizes are rounded up to a power of two and never split: up to twice the memory.",
        f"{_PINNED}; pytorch issue 95823",
    ),
    (
        40,
        "A freed pinned block is given out again when its copies are over: x.pin_memory().cuda(non_blocking=True) "
        "is safe.",
        _PINNED,
    ),
    (41, "Only copies that PyTorch made itself are known to the pinned cache.", _PINNED),
    (42, "Nothing keeps the CPU from writing into a pinned buffer while it is being copied.", "pytorch issue 127612"),
    (
        43,
        "pin_memory() copies and blocks the host; a tensor that is pinned already is returned as it is.",
        "pytorch issue 32167",
    ),
    (44, "Page-locking new memory is slow; from then on it comes from a cache.", _PINNED),
    (
        45,
        "DataLoader(pin_memory=True) pins in one thread, in order; without workers in the main thread. At most "
        "prefetch_factor batches a worker are made ahead.",
        "PyTorch, torch/utils/data/dataloader.py",
    ),
    (
        46,
        "Indexing a device tensor with a CPU tensor, a list or an array moves the index by a blocking copy, at each "
        "indexing; up to torch 2.13 a number written through an index, too; whole numbers and slices never.",
        "PyTorch, aten/src/ATen/native/IndexingUtils.h",
    ),
    (
        47,
        "v[mask] = number is masked_fill_ and does not wait; v[mask] as a value does, and so does a mask with a tensor "
        "value.",
        "PyTorch, aten/src/ATen/native/TensorAdvancedIndexingUtils.h",
    ),
    (48, "What is only written (zero_, fill_, the target of copy_) is not read.", "PyTorch, operator semantics"),
)
