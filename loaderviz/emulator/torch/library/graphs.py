"""CUDA graphs: a capture notes what is put into its streams; a replay does all of it, with one launch (R34).

During a capture operators are tried on the values that are there, so that shapes and errors are the real ones. At its
end all that they wrote is put back, and what they made is poison until the first replay. A replay runs them again on
the memory that they had: memory that was there before is kept by the graph, what was made inside lives as long as the
program holds it (on a real GPU the graph's pool keeps that, too). Host operators run once, in the capture.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from loaderviz import words
from loaderviz.emulator.device import Command
from loaderviz.emulator.runtime import Capture, CudaError
from loaderviz.emulator.torch import copies, internals
from loaderviz.emulator.torch.patches import Disguised, Patches, stands_for
from loaderviz.emulator.torch.session import Session
from loaderviz.emulator.torch.tensors import AT_REST, ATTRIBUTE, SET, DeviceTag, storage_of, tag_of
from loaderviz.errors import NotModelledError
from loaderviz.imports import held

POOLS = count(1)


class Memory:
    """A storage that a graph uses. `kept` is it, if it was there before the capture; else only a reference is."""

    def __init__(self, storage: torch.UntypedStorage, *, made: bool) -> None:
        self.kept = None if made else storage
        self.made = weakref.ref(storage)
        self.nbytes = storage.nbytes()
        self.dtype: torch.dtype | None = None  # of what was first written there, if it was made in the capture


@dataclass(frozen=True)
class TensorView:
    """A tensor of a captured call: where it lies."""

    memory: Memory
    dtype: torch.dtype
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


class CapturedCall(NamedTuple):
    """One captured operator or copy; `node` is its number among the nodes of the graph."""

    node: int
    name: str
    function: Callable[..., Any] | None  # None: a copy between host and device, which `copies.arrive` does
    args: Any  # with views in place of device tensors, as are keywords
    keywords: Any
    reads: list[TensorView]
    writes: list[TensorView]
    made: list[TensorView]  # its results, where they are new memory


class Recorder:
    """What torch does while a stream captures: the calls, and what they change, so that it can be put back."""

    def __init__(self, session: Session) -> None:
        self.session, self.calls = session, list[CapturedCall]()
        self.nodes = session.runtime.capture = Capture(session.stream)
        self._memory: weakref.WeakKeyDictionary[DeviceTag, Memory] = weakref.WeakKeyDictionary()
        self._before: dict[Memory | torch.UntypedStorage, tuple[torch.Tensor, torch.Tensor]] = {}
        self._random = torch.default_generator.get_state()

    def made(self, storage: torch.UntypedStorage, tag: DeviceTag) -> None:
        """Device memory is made: if for a stream that captures, it is the graph's."""
        if self.nodes.takes(self.session.stream):
            self._memory[tag] = Memory(storage, made=True)

    def keep(self, tensors: Iterable[torch.Tensor]) -> None:
        """These are about to be written to: note what was in memory that is older than the capture."""
        for tensor in tensors:
            tag = tag_of(tensor)
            memory = self._memory_of(tensor) if type(tag) is DeviceTag else tensor.untyped_storage()
            if memory not in self._before and not (isinstance(memory, Memory) and memory.kept is None):
                whole = copies.bytes_of(tensor.untyped_storage())
                self._before[memory] = whole, whole.clone()

    def note(
        self, name: str, function: Any, args: Any, keywords: Any = None, made: Any = (), written: Any = ()
    ) -> None:
        """A call put the last node into the capture. `made` are its results, `written` those arguments it changes."""
        views: dict[int, TensorView] = {}

        def view(tensor: torch.Tensor) -> Any:
            if type(tag_of(tensor)) is not DeviceTag:  # a number, which is part of the launch; or a copy's pinned side
                return tensor if function is None else tensor.clone()
            views[id(tensor)] = place = self._view(tensor)
            return place

        args, keywords = tree_map_only(torch.Tensor, view, (args, keywords or {}))
        changed = {id(tensor) for tensor in written}
        reads = [place for key, place in views.items() if key not in changed]
        writes = [place for key, place in views.items() if key in changed]
        fresh = [tensor for tensor in made if id(tensor) not in views and type(tag_of(tensor)) is DeviceTag]
        new = [self._view(tensor) for tensor in fresh]
        self.calls.append(CapturedCall(len(self.nodes.nodes) - 1, name, function, args, keywords, reads, writes, new))

    def note_copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """A copy between pinned memory and the device was captured."""
        self.keep([target])
        with torch.no_grad():
            target.detach().copy_(source)
        self.note("aten::copy_", None, (target, source), written=[target])

    def end(self) -> None:
        """Put everything back as it was before the capture; what was made in it is poison."""
        session = self.session
        session.recorder = session.runtime.capture = None
        torch.default_generator.set_state(self._random)
        with session.bookkeeping(), internals.DisableTorchFunction(), torch.no_grad():
            for whole, before in self._before.values():
                whole.copy_(before)
            for memory in self._memory.values():
                storage = memory.made()
                if memory.kept is None and memory.dtype and storage is not None:
                    SET(torch.empty(0, dtype=memory.dtype), storage).fill_(copies.poison(memory.dtype))

    def _view(self, tensor: torch.Tensor) -> TensorView:
        memory, offset = self._memory_of(tensor), int(tensor.storage_offset())
        memory.dtype = memory.dtype or tensor.dtype
        return TensorView(memory, tensor.dtype, offset, tuple(tensor.shape), tensor.stride())

    def _memory_of(self, tensor: torch.Tensor) -> Memory:
        tag = self.session.device_tag(tensor)
        assert tag is not None
        if (memory := self._memory.get(tag)) is None:
            memory = self._memory[tag] = Memory(storage_of(tensor), made=False)
        return memory


@stands_for(torch.cuda.CUDAGraph)
class CUDAGraph(Disguised):
    """A graph of the emulated device. Raises `CudaError` where CUDA would."""

    def __init__(self, keep_graph: bool = False) -> None:
        self._session = Session.running("torch.cuda.CUDAGraph")
        self._recorder: Recorder | None = None
        self._is_captured = False
        self._pool = (0, next(POOLS))

    def capture_begin(
        self, pool: Any = None, capture_error_mode: str = "global", check_input_liveness: bool = False
    ) -> None:
        """Begin to capture the current stream, which must not be the default one."""
        with self._session.calling("CUDAGraph.capture_begin") as session:
            if self._is_captured:
                raise CudaError(
                    "This CUDAGraph instance already owns a captured graph. To capture a new graph, create a new "
                    "instance."
                )
            if session.stream is session.runtime.default_stream:
                raise CudaError("CUDA graphs must be captured on a non-default stream.")
            if session.recorder:
                raise session.recorder.nodes.refuse()
            if session.aside is AT_REST:
                raise NotModelledError(
                    "a CUDA graph is captured after the steps that record(wait=, steps=) keeps, where nothing is "
                    "emulated any more: leave steps= out, or capture it before them"
                )
            session.plain = False
            self._pool = pool or self._pool
            self._recorder = session.recorder = Recorder(session)

    def capture_end(self) -> None:
        """End the capture; nothing has been done yet."""
        recorder = self._recorder
        if recorder is None or self._session.recorder is not recorder:
            raise CudaError("CUDA error: invalid argument: this graph is not being captured")
        with self._session.calling("CUDAGraph.capture_end") as session:
            recorder.end()
            recorder.nodes.end(session.stream)
            self._is_captured = True
            if recorder.nodes.branches:
                session.note("CUDA graph: its branches are emulated one after the other, in the order of the capture")
        if not recorder.nodes.nodes:
            words.warn(
                "The CUDA Graph is empty. This usually means that the graph was attempted to be captured on wrong "
                "device or stream.",
                sys._getframe(1),
            )

    def replay(self) -> None:
        """Launch the graph into the current stream."""
        session = Session.running("CUDAGraph.replay")
        if session is not self._session:
            raise NotModelledError("this CUDA graph was captured in an earlier recording; capture it again in this one")
        if not self._is_captured or self._recorder is None:
            raise CudaError("Called CUDAGraph::replay without a preceding successful capture.")
        calls, nodes = self._recorder.calls, self._recorder.nodes.nodes
        inputs = {view.memory.made() for call in calls for view in call.reads}
        batch = max((getattr(storage, ATTRIBUTE).batch for storage in inputs if storage is not None), default=-1)
        inside: dict[Memory, torch.UntypedStorage] = {}  # memory that nobody outside holds
        with session.calling("CUDAGraph.replay"):
            session.runtime.batch = session.batches.of_kernel(batch, session.stream.id)
            commands = session.runtime.launch_graph(nodes, session.stream)
            with session.bookkeeping(), internals.DisableTorchFunction(), torch.no_grad():
                for call in calls:
                    self._run(call, commands[call.node], inside, batch)

    def _run(
        self, call: CapturedCall, command: Command, inside: dict[Memory, torch.UntypedStorage], batch: int
    ) -> None:
        session = self._session

        def tensor(view: TensorView) -> torch.Tensor:
            storage = view.memory.made() or inside.get(view.memory)
            if storage is None:
                storage = inside[view.memory] = torch.UntypedStorage(view.memory.nbytes)
            return SET(torch.empty(0, dtype=view.dtype), storage, view.offset, view.shape, view.stride)

        if call.function is None:
            target, source = (tensor(each) if isinstance(each, TensorView) else each for each in call.args)
            if tag_of(target) is None:
                target.copy_(source)
                return
            copies.prepare(session, target, source)
            copies.arrive(session, command, target, source, pinned=True, waits=session.runtime.launch_blocking)
            return
        for view in (*call.reads, *call.writes):
            if tag := tag_of(tensor(view)):
                session.deferred.deliver(tag, session.stream)
        args, keywords = tree_map_only(TensorView, tensor, (call.args, call.keywords))
        results = [each for each in tree_leaves(call.function(*args, **keywords)) if isinstance(each, torch.Tensor)]
        written = [tensor(view) for view in call.writes]
        for view, result in zip(call.made, results if call.made else (), strict=True):
            if view.memory.made() is None:
                inside[view.memory] = result.untyped_storage()
            else:
                written.append(tensor(view).copy_(result))
        for each in written:
            if (tag := tag_of(each)) and batch >= 0:
                tag.batch = batch
        if session.tracking:
            session.tracking.device(command, call.name, map(tensor, call.reads), written)

    def instantiate(self) -> None:
        """Nothing is left to be done when the capture has ended."""

    enable_debug_mode = instantiate

    def reset(self) -> None:
        """Forget the graph; it may capture anew."""
        self._recorder, self._is_captured = None, False

    def pool(self) -> tuple[int, int]:
        """Return a name for the graph's memory, which other graphs may be given; here each tensor has its own."""
        return self._pool

    def raw_cuda_graph(self, *_: Any) -> int:
        """Not modelled."""
        raise NotModelledError("there is no cudaGraph_t behind an emulated CUDAGraph; look at what its replay() draws")

    raw_cuda_graph_exec = debug_dump = raw_cuda_graph


def install(session: Session, patches: Patches) -> None:
    """Let `torch.cuda.CUDAGraph` and its like be ours; `torch.cuda.graph` and the rest go by torch's own code."""

    def is_current_stream_capturing() -> bool:
        return bool(session.recorder and session.recorder.nodes.takes(session.stream))

    patches.function(torch.cuda, "CUDAGraph", CUDAGraph)
    patches.function(torch.cuda, "is_current_stream_capturing", is_current_stream_capturing)
    patches.function(torch.cuda, "graph_pool_handle", lambda: (0, next(POOLS)))

    @patches.around(torch.cuda, "make_graphed_callables")
    def make_graphed_callables(make: Any, *args: Any, **kwargs: Any) -> Any:
        with held(session, "warming_up", True):
            return make(*args, **kwargs)

    patches.set(torch.cuda.graph, "default_capture_stream", None)  # one that is kept would be of an earlier recording
