"""Operators: every aten operator, backward's included, seen by a `TorchDispatchMode`.

On device tensors an operator becomes a kernel on the current stream, with a cost by bytes and FLOPs, and its results
get device memory. On host tensors it costs host time. The values are computed at once, by the CPU.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable
from functools import partial
from operator import attrgetter
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from loaderviz.emulator.device import Stream
from loaderviz.emulator.hardware import Gpu
from loaderviz.emulator.kernels import (
    CLASS,
    PRODUCTS,
    Array,
    Call,
    Precision,
    Times,
    kernel_times,
    memory_share,
    moved,
    sm_share,
)
from loaderviz.emulator.torch import copies
from loaderviz.emulator.torch.session import Session
from loaderviz.emulator.torch.tensors import (
    ATTRIBUTE,
    DeviceTag,
    HostTag,
    any_on_device,
    set_tag,
    storage_of,
    tag_of,
)
from loaderviz.errors import NotModelledError

Tensors = list[torch.Tensor]
MASKS = (torch.bool, torch.uint8)
LAST_NUMBER = 2**63  # AccumulateGrad nodes have the largest number there is: they follow the node before them
PLAIN = {torch.Tensor, torch.nn.Parameter}
NO_DISPATCH = torch.Tensor.__torch_dispatch__  # what a class says that does not run operators itself
SPLIT = torch._C.DispatchKey.CompositeImplicitAutograd
aten = torch.ops.aten


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# No kernel: they only make or describe memory.
NO_KERNEL = _words("""
    empty empty_like empty_strided empty_permuted new_empty new_empty_strided set_ resize_ _unsafe_view lift detach_
    squeeze_ unsqueeze_ transpose_ t_ as_strided_ swapaxes_ swapdims_ record_stream
""")
QUESTIONS = frozenset(("is_same_size", "is_pinned", "_has_compatible_shallow_copy_type"))
# They read something back, so the host waits for the current stream (R25).
SYNCHRONIZING = _words("""
    _local_scalar_dense nonzero masked_select _unique _unique2 unique_dim unique_consecutive unique_dim_consecutive
    equal is_nonzero bincount _linalg_check_errors _nested_tensor_from_mask_left_aligned
""")
INDEXING = frozenset(("index", "index_put_", "index_put", "_index_put_impl_", "_unsafe_index_put"))
# CPU tensors may stand beside device tensors here.
MIXED = INDEXING | _words(
    "copy_ _to_copy _pack_padded_sequence _pack_padded_sequence_backward _ctc_loss _ctc_loss_backward tensor_split set_"
)
HOST_OUTPUTS = {"_pack_padded_sequence": 1}  # which result belongs on the host
# They write without reading what they write to, though it is their first argument.
FILLING = _words("""
    copy_ fill_ zero_ normal_ uniform_ random_ bernoulli_ exponential_ log_normal_ geometric_ cauchy_ set_
    _foreach_copy_ _foreach_zero_ arange randperm
""")
NOTHING: frozenset[int] = frozenset()
UNMARKED = {"native_batch_norm": (3, 4)}  # running statistics, which its schema does not name as written
HALF_PRODUCTS = _words("mm addmm bmm baddbmm convolution convolution_backward")
MATMUL = frozenset(("mm", "addmm", "bmm", "baddbmm"))
# Each a composite call: nested operators, and a library that chooses its algorithm
COMPOSITE = MATMUL | _words("""
    convolution native_batch_norm native_layer_norm native_group_norm _native_batch_norm_legit
    _native_batch_norm_legit_no_training _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_attention_math
    _thnn_fused_lstm_cell _thnn_fused_gru_cell mkldnn_rnn_layer
""")
SHAPE, STRIDE, STORAGE = attrgetter("shape", "dtype"), torch.Tensor.stride, torch.Tensor.untyped_storage
NO_FUNCTIONS = torch._C.DisableTorchFunction  # a block in which no call is the program's
FP32: Precision = "fp32"
HALF = (torch.float16, torch.bfloat16)
TENSOR_FLOAT = (8, 0)  # the first capability with TF32: Ampere
TRANSPOSED = {"convolution": 6, "convolution_backward": 7}  # the argument that says so


class Operators(TorchDispatchMode):
    """The mode that sees every operator while a recording runs."""

    def __init__(self, session: Session) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.session = session
        self.backward = BackwardStreams(session)
        self._known: dict[int, Operator] = {}  # by the overload's id: its own hash is a function of Python's
        self._costs = KernelCosts(session.runtime.gpu)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one operator; a tensor of several tensors (`torch.jagged`) does so itself, and its parts come to us."""
        if not PLAIN.issuperset(types) and any(kind.__torch_dispatch__ is not NO_DISPATCH for kind in types):
            return NotImplemented
        kwargs = kwargs or {}
        session, operator = self.session, self._known.get(id(func)) or self._operator(func)
        if operator.splits and not session.quiet:
            with NO_FUNCTIONS(), self:
                return func._op_dk(SPLIT, *args, **kwargs)
        if operator.is_free or session.quiet:
            if operator.is_view and session.counted != session.calls and not session.quiet:
                session.count_call()
            with NO_FUNCTIONS():
                return operator.run(*args, **kwargs)
        with NO_FUNCTIONS():
            tensors, tags = _tensors(args, kwargs)
            on_device = DeviceTag in list(map(type, tags))
            target = session.target
            if target is not None and operator.base != "_local_scalar_dense":  # a size given as a tensor is read first
                session.target = None  # it is meant for this operator, not for what it calls
                wanted = target.type == "cuda"
            else:  # a composite function may make memory without naming a tensor: it belongs where its arguments are
                wanted = on_device or (not tensors and any_on_device((*session.call[0], *session.call[1].values())))
            if not (on_device or wanted):
                return self._on_host(operator, func, args, kwargs, tensors, tags)
            session.enter(operator.name)
            try:
                return self._on_device(operator, func, args, kwargs, tensors, tags, wanted)
            finally:
                session.leave()

    # On the host

    def _on_host(self, operator: Operator, func: Any, args: Any, kwargs: Any, tensors: Tensors, tags: list[Any]) -> Any:
        session = self.session
        if session.fetching:
            return func(*args, **kwargs)
        batch = max((tag.batch for tag in tags if tag is not None), default=-1)
        session.enter(operator.name)
        tracking = None if operator.no_kernel else session.tracking
        if tracking:
            tracking.before_change(tags)
        result = func(*args, **kwargs)
        outputs = _outputs(result)
        if batch >= 0:
            for output in outputs:
                tag = tag_of(output)
                if tag is None:
                    set_tag(output, HostTag(session, batch))
                elif operator.copies and tags[-1] is not None and tags[-1].batch >= 0:
                    tag.batch = tags[-1].batch  # a buffer: this is in it from now on
        if not operator.no_kernel:
            session.host_operator(operator.name, *host_work(operator, args, kwargs, result), batch=batch)
        session.leave()
        if tracking:
            tracking.host_operator(operator, args, kwargs, tensors, tags)
        return result

    # On the device

    def _on_device(
        self, operator: Operator, func: Any, args: Any, kwargs: Any, tensors: Tensors, tags: list[Any], wanted: bool
    ) -> Any:
        session, runtime = self.session, self.session.runtime
        session.count_call()
        start = runtime.now
        if operator.indexes:
            if type(tag_of(args[0])) is not DeviceTag:
                return self._index_on_host(operator, func, args)
            operator, func, args = self._as_cuda_indexes(operator, func, args)
            tensors, tags = _tensors(args)
        if not operator.mixed and list(map(type, tags)).count(DeviceTag) < len(tags):
            _check_places(operator, tensors, tags)
        if operator.copies and (type(tags[0]) is DeviceTag) != (type(tags[1]) is DeviceTag):
            non_blocking = args[2] if len(args) > 2 else kwargs.get("non_blocking")
            return copies.transfer(session, args[1], args[0].dtype, bool(non_blocking), args[0])
        batch = self._prepare_inputs(operator, tensors, tags)
        session.mark_call(batch)
        if not operator.no_kernel:
            runtime.batch = session.batches.of_kernel(batch, session.stream.id)
        recorder = session.recorder
        if recorder and operator.writes:
            changed = operator.written(args, kwargs)
            recorder.keep(tensor for tensor in tensors if id(tensor) in changed)
        try:
            result = operator.run(*args, **kwargs)
        except RuntimeError as problem:
            self._memory_error(problem)
            raise
        outputs = _outputs(result)
        if operator.half_product and outputs[0].dtype is torch.float16:
            session.note(
                "float16: products are computed in float32 and rounded once, as a GPU does but for their order"
            )
        if not operator.no_kernel:
            runtime.now += runtime.host.dispatch + self._beyond(operator)
        elif operator.base == "resize_":
            self._resized(args[0])
        places = self._place_outputs(operator, outputs, session.batches.of_data(batch)) if wanted else []
        if not operator.no_kernel:
            self._launch(operator, args, kwargs, tensors, tags, outputs, places)
            runtime.note(start, operator.name)
        return result

    def _beyond(self, operator: Operator) -> int:
        """Return the host time [ns] of an operator beyond `dispatch`: that of its autograd node, or its own."""
        if self.backward.runs:
            return self.session.runtime.host.node if self.backward.is_new_node() else 0
        return self.session.runtime.host.composite if operator.composite else 0

    # Indexing

    def _as_cuda_indexes(self, operator: Operator, func: Any, args: Any) -> tuple[Operator, Any, Any]:
        """Return the operator that CUDA launches in the end for an index or an assignment to one, and its arguments.

        `x[mask] = number` fills (R47). Any other mask is searched first, and moved before that if it was a list. What
        is in host memory is moved: an index, and a number to be written, by a blocking copy each (R46; expandTensors in
        ATen/native/IndexingUtils.h).
        """
        tensor, indices, *rest = args
        mask = _fills(operator, tensor, *args[1:4])
        if mask is not None:
            func = aten.masked_fill_.Scalar if func._schema.is_mutable else aten.masked_fill.Scalar
            return self._operator(func), func, (tensor, mask, rest[0].item())
        moved: list[torch.Tensor | None] = []
        for index in indices:
            if index is not None and index.dtype in MASKS:
                from_list = _is_host(index) and index.tolist() in _lists(*self.session.call[0][1:2])
                moved += self._searched(self._index_moved(index) if from_list else index)
            else:
                moved.append(self._index_moved(index) if _is_host(index) else index)
        if rest and _is_host(rest[0]):
            if rest[0].dim():
                raise _apart(operator, rest[0])
            rest[0] = self._index_moved(rest[0])  # up to torch 2.13
        return operator, func, (tensor, moved, *rest)

    def _searched(self, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the indices of what is True in a mask, on the device: one tensor for each of its dimensions.

        The host waits for their number (R25); of a mask that it has itself it sends the indices from pinned memory.
        """
        session, func, tag = self.session, aten.nonzero.default, tag_of(mask)
        if type(tag) is DeviceTag:
            rows: torch.Tensor = self._on_device(self._operator(func), func, (mask,), {}, [mask], [tag], True)
        else:
            rows = session.pin(mask.nonzero())
            session.host_operator("aten::nonzero", mask.nbytes + rows.nbytes)
            rows = copies.transfer(session, rows, rows.dtype, True)
        return tuple(rows.unbind(1))

    def _index_moved(self, index: torch.Tensor) -> torch.Tensor:
        """Copy an index, or a number to be written, to the device, and wait for it."""
        session, before = self.session, self.session.runtime.now
        moved = copies.transfer(session, index, index.dtype, False)
        if session.runtime.races and session.stream.last_work:
            session.runtime.races.linter.blocked(session.stream.last_work, session.runtime.now - before, index=True)
        return moved

    def _index_on_host(self, operator: Operator, func: Any, args: Any) -> Any:
        """A host tensor with an index or a value from the device: only a single value is brought to the host."""
        tensor, indices, *rest = args
        if any(index is not None and not _is_host(index) for index in indices):
            raise RuntimeError("indices should be either on cpu or on the same device as the indexed tensor (cpu)")
        if rest[0].dim():
            raise _apart(operator, tensor)
        args = (tensor, indices, copies.transfer(self.session, rest[0], rest[0].dtype, False), *rest[1:])
        return self._on_host(operator, func, args, {}, *_tensors(args))

    def _operator(self, func: Any) -> Operator:
        if (operator := self._known.get(id(func))) is None:
            operator = self._known[id(func)] = Operator(func)
        return operator

    def _memory_error(self, problem: RuntimeError) -> None:
        """This computer is out of memory: raise what the emulated GPU would say, or say that it has room."""
        asked = re.search(r"can't allocate memory: you tried to allocate (\d+) bytes", str(problem))
        if asked:
            block = self.session.allocate(int(asked[1]))  # raises torch.OutOfMemoryError, if there is no room either
            self.session.pool.free(block)
            raise MemoryError(
                f"the emulated GPU has room for {int(asked[1])} bytes, but this computer, which holds the real values, "
                "has not; use smaller tensors"
            ) from problem

    def _prepare_inputs(self, operator: Operator, tensors: Tensors, tags: list[Any]) -> int:
        """Let arrive what is ordered before us; take over tensors of earlier recordings; return the newest batch."""
        session, batch = self.session, -1
        if len(session.stream_history) > 1:
            self.backward.follow()
        for tag in tags:
            if tag is None:
                continue
            if tag.memory is not session and type(tag) is DeviceTag:
                position = tags.index(tag)
                tag = tags[position] = session.device_tag(tensors[position])
            if tag.arrivals and type(tag) is DeviceTag and not operator.no_kernel:
                session.deferred.deliver(tag, session.stream)
            if tag.batch > batch:
                batch = tag.batch
        return batch

    def _place_outputs(self, operator: Operator, outputs: Tensors, batch: int) -> list[Any]:
        """Give new tensors device memory; return the tags of all."""
        session = self.session
        tags: list[Any] = []
        for position, output in enumerate(outputs):
            if output.layout is not torch.strided:
                raise NotModelledError(
                    f"{operator.name} makes a tensor of layout {output.layout}, which the emulated GPU does not "
                    "model; do this step on the CPU"
                )
            storage = output.untyped_storage()
            tag = getattr(storage, ATTRIBUTE, None)
            if position != operator.host_output:
                if type(tag) is not DeviceTag:
                    tag = session.give_block(storage, batch)
                elif batch > tag.batch and not operator.no_kernel:
                    tag.batch = batch
            tags.append(tag)
        return tags

    def _resized(self, tensor: torch.Tensor) -> None:
        """`resize_` may need more memory than the block has."""
        tag, storage = self.session.device_tag(tensor), storage_of(tensor)
        if tag and storage.nbytes() > tag.block.size:
            self.session.pool.free(tag.block)
            tag.block = self.session.allocate(storage.nbytes())
        elif tag:
            tag.block.requested = storage.nbytes()

    def _launch(
        self,
        operator: Operator,
        args: Any,
        kwargs: Any,
        tensors: Tensors,
        tags: list[Any],
        outputs: Tensors,
        places: list[Any],
    ) -> None:
        session, runtime, tracking = self.session, self.session.runtime, self.session.tracking
        if operator.base != "_local_scalar_dense":
            changed = operator.written(args, kwargs)
            durations, share, traffic = self._costs.of(operator, args, tensors, outputs, changed)
            command = runtime.launch(durations[0], session.stream, operator.base, share, traffic)
            for beside in durations[1:]:
                runtime.launch(beside, session.stream, operator.base, share, traffic)
            if command.number < 0:  # captured, not launched
                written = [tensor for tensor in tensors if id(tensor) in changed]
                session.recorder.note(operator.name, operator.run, args, kwargs, outputs, written)
            elif tracking:
                tracking.kernel(command, operator, changed, tensors, tags, outputs, places)
        if operator.synchronizes:
            session.synchronizing(operator.name)
            scalar = tensors[0].element_size() if operator.base == "_local_scalar_dense" else 8
            command = runtime.memcpy(scalar, "d2h", session.stream, blocking=True)  # PyTorch's own, pinned, buffer
            if tracking and operator.base == "_local_scalar_dense":
                tracking.device(command, operator.name, reads=tensors)
            session.deferred.host_knows()


def _collect(values: Iterable[Any], tensors: Tensors) -> None:
    for value in values:
        if isinstance(value, torch.Tensor):
            tensors.append(value)
        elif type(value) in (list, tuple):
            if PLAIN.issuperset(map(type, value)):  # by far the most
                tensors += value
            else:
                _collect(value, tensors)


def _tensors(args: Any, kwargs: Any = None) -> tuple[Tensors, list[Any]]:
    tensors: Tensors = []
    _collect(args, tensors)
    if kwargs:
        _collect(kwargs.values(), tensors)
    try:
        return tensors, [getattr(storage, ATTRIBUTE, None) for storage in map(STORAGE, tensors)]
    except (NotImplementedError, RuntimeError):  # one of them has no storage
        return tensors, list(map(tag_of, tensors))


def host_work(operator: Operator, args: Any, kwargs: Any, result: Any) -> tuple[int, int]:
    """Return the bytes that an operator on the host reads and writes, and its FLOPs as torch counts them."""
    tensors = _tensors(args, kwargs)[0]
    made = [output for output in _outputs(result) if all(output is not tensor for tensor in tensors)]
    if CLASS.get(operator.base) == "gather":  # it reads as much of its source as it hands out
        tensors = [*tensors[1:], *made]
    nbytes = sum(tensor.nbytes for tensor in (*tensors, *made) if tensor.layout is torch.strided)
    counter = flop_registry.get(operator.packet) if operator.multiplies else None
    return nbytes, int(counter(*args, **kwargs, out_val=result)) if counter else 0


def _outputs(result: Any) -> Tensors:
    if isinstance(result, torch.Tensor):
        return [result]
    tensors: Tensors = []
    _collect((result,), tensors)
    return tensors


def _check_places(operator: Operator, tensors: Tensors, tags: list[Any]) -> None:
    strays = [t for t, tag in zip(tensors, tags, strict=True) if type(tag) is not DeviceTag and t.dim()]
    if strays and len(strays) < len(tensors):
        raise _apart(operator, strays[0])


def _apart(operator: Operator, stray: torch.Tensor) -> RuntimeError:
    return RuntimeError(
        "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu! "
        f"(in {operator.name}: the tensor of shape {tuple(stray.shape)} and dtype {stray.dtype} is on the CPU)"
    )


def _is_host(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and type(tag_of(value)) is not DeviceTag


def _lists(key: Any = None) -> list[Any]:
    return [entry for entry in (key if isinstance(key, tuple) else (key,)) if isinstance(entry, list)]


def _fills(operator: Operator, tensor: torch.Tensor, indices: Any, value: Any = None, accumulate: bool = False) -> Any:
    """Return the mask, shaped to broadcast, of an assignment that is only a `masked_fill_` (R47); else None."""
    given = [index for index in indices if index is not None]
    if value is None or accumulate or value.numel() != 1:
        return None
    in_backward = torch._C._current_graph_task_id() >= 0  # there autograd writes a zero made on the host
    if not (_is_host(value) or (in_backward and value.dim() == 0)):
        return None
    if len(given) != 1 or given[0].dtype not in MASKS or _is_host(given[0]):
        return None
    after = tensor.dim() - (len(indices) - 1) - given[0].dim()
    return given[0][(..., *(None,) * after)]


# Kernels


def _in_single(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Compute a product of float16 in float32, as a GPU accumulates, and round once: the CPU's float16 is slow."""
    for value in args:
        if isinstance(value, torch.Tensor) and value.dtype is torch.float16:
            break
    else:
        return func(*args, **kwargs)
    single = [value.float() if isinstance(value, torch.Tensor) else value for value in args]
    result = func(*single, **kwargs)
    if isinstance(result, tuple):
        return tuple(value if value is None else value.half() for value in result)
    return result.half()


GRADIENTS = 1  # the place of the gradients among the arguments of a fused optimizer


class Operator:
    """What is known of one aten overload, worked out once."""

    def __init__(self, overload: Any) -> None:
        schema = overload._schema
        self.packet = overload.overloadpacket
        self.name: str = schema.name
        self.base = base = self.name.split("::")[-1]
        # Autograd splits these into others; under torch.inference_mode, without it, they come whole.
        here = overload.namespace != "prim"  # a question about a layout, say, of which the dispatcher knows nothing
        self.splits: bool = here and torch._C._dispatch_has_kernel_for_dispatch_key(overload.name(), SPLIT)
        aliases = [entry.alias_info for entry in schema.returns]
        # Views share their storage, and with it all that is known of it.
        self.is_view = any(alias is not None and not alias.is_write for alias in aliases)
        self.is_free = self.is_view or base in QUESTIONS or self.name.startswith("profiler::")
        self.no_kernel = base in NO_KERNEL
        self.synchronizes = base in SYNCHRONIZING or overload is aten.repeat_interleave.Tensor
        self.indexes, self.mixed, self.copies = base in INDEXING, base in MIXED, base == "copy_"
        self.host_output = HOST_OUTPUTS.get(base, -1)
        self.multiplies = CLASS.get(base) in PRODUCTS
        self.composite, self.fused = base in COMPOSITE, base.startswith("_fused_") and base.endswith("_")
        # What is read and written: arguments by position or keyword, and results
        marked = [(place, it) for place, it in enumerate(schema.arguments) if it.alias_info and it.alias_info.is_write]
        self.positions = (*(place for place, it in marked if not it.kwarg_only), *UNMARKED.get(base, ()))
        self.keywords = tuple(it.name for _, it in marked)
        self.fills = base in FILLING or any(it.kwarg_only for _, it in marked)  # out=...
        self.writes = bool(self.positions or self.keywords)
        self.run: Callable[..., Any] = overload  # its frame is torch's: what an operator refuses is no error of ours
        self.half_product, self.over_lists = base in HALF_PRODUCTS, base.startswith(("_foreach_", "_fused_"))
        if self.half_product and not self.writes:
            self.run = partial(_in_single, overload)
        # These ask their argument for its shape and dtype only.
        self.reads = self.writes or not (base.endswith("_like") or base.startswith("new_"))
        # Results that are arguments, as those of x.add_(y), are written already.
        self.makes = None in aliases

    def written(self, args: Any, kwargs: Any) -> Collection[int]:
        """Return the ids of tensors that it writes to; a fused optimizer writes gradients only to unscale them."""
        if not self.writes:
            return NOTHING
        spared = GRADIENTS if self.fused and kwargs.get("grad_scale") is None else -1
        found = [args[position] for position in self.positions if position < len(args) and position != spared]
        if kwargs:
            found += [kwargs[name] for name in self.keywords if name in kwargs]
        ids: set[int] = set()
        for value in found:
            ids.update(map(id, value) if isinstance(value, (list, tuple)) else (id(value),))
        return ids


class KernelCosts:
    """What each operator's kernels cost, worked out once for each set of shapes."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._known: dict[tuple[Any, ...], tuple[Times, int, int]] = {}

    def of(
        self, operator: Operator, args: Any, tensors: Tensors, outputs: Tensors, changed: Collection[int] = NOTHING
    ) -> tuple[Times, int, int]:
        """Return (times [ns], share of the GPU, part of its memory bandwidth [thousandths]) of an operator's kernels.

        The main kernel is the first. `changed` are the ids of the arguments that it writes to. What is only written
        counts once (R48).
        """
        every = (*tensors, *outputs) if operator.makes else tensors
        key: tuple[Any, ...] = operator, len(tensors), *map(SHAPE, every)
        if not operator.over_lists:  # those see each tensor as so many elements
            key += tuple(map(STRIDE, every))
        precision, transposed = FP32, False
        if operator.multiplies:
            precision, place = self._precision(operator, tensors), TRANSPOSED.get(operator.base)
            transposed = place is not None and bool(args[place])
            key += (precision, transposed)
        cost = self._known.get(key)
        if cost is None:
            cost = self._known[key] = self._priced(operator, tensors, outputs, changed, precision, transposed)
        return cost

    def _priced(
        self,
        operator: Operator,
        tensors: Tensors,
        outputs: Tensors,
        changed: Collection[int],
        precision: Precision,
        transposed: bool,
    ) -> tuple[Times, int, int]:
        reads = [it for it in tensors if not (operator.fills and id(it) in changed)] if operator.reads else []
        writes = [it for it in outputs if id(it) not in changed] + [it for it in tensors if id(it) in changed]
        call = Call(operator.base, list(map(_array, reads)), list(map(_array, writes)), precision, transposed)
        elements = max((it.numel() for it in outputs or writes or tensors), default=1) or 1
        times = kernel_times(self._gpu, call)
        return times, sm_share(self._gpu, elements), memory_share(self._gpu, moved(call), sum(times))

    def _precision(self, operator: Operator, tensors: Tensors) -> Precision:
        """Return in what precision the GPU would compute a product of these tensors."""
        dtype = torch.float32
        for tensor in tensors:
            if tensor.dtype.is_floating_point:
                dtype = tensor.dtype
                break
        if dtype in HALF:
            return "fp16"
        if dtype is torch.float64:
            return "fp64"
        if operator.base in MATMUL:
            # torch's own wrapper takes longer than the rest
            tf32 = torch._C._get_float32_matmul_precision() != "highest"
        else:
            tf32 = torch.backends.cudnn.allow_tf32
        return "tf32" if tf32 and self._gpu.capability >= TENSOR_FLOAT else "fp32"


def _array(tensor: torch.Tensor) -> Array:
    return Array(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), tensor.stride())


# Backward


class BackwardStreams:
    """An operator's backward runs on the stream that its forward ran on (R17): keeps the current stream in step.

    Autograd numbers its nodes in the order of the forward. The session remembers at which number the current stream
    changed, so a node's number tells its stream. Between nodes of different streams the engine orders the one after the
    other, and when backward is over the caller's stream is ordered after all of them.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.runs = 0  # how many backward passes, one inside the other
        self.used: list[Stream] = []
        self._node: Any = None  # the last one that launched a kernel

    def is_new_node(self) -> bool:
        """Tell whether the node of the graph that runs is another one than when last asked."""
        node = torch._C._current_autograd_node()
        if node is self._node:
            return False
        self._node = node
        return True

    def follow(self) -> None:
        """Called before each device operator once there were two streams: inside backward, take that of the forward."""
        session, history = self.session, self.session.stream_history
        node = torch._C._current_autograd_node()
        if node is None or (number := node._sequence_nr()) >= LAST_NUMBER:
            return
        stream = history[max(0, bisect_right(history, number, key=lambda entry: entry[0]) - 1)][1]
        if stream is not session.stream:
            session.runtime.wait_stream(stream, session.stream, asked=False)
            session.stream = stream
            if stream not in self.used:
                self.used.append(stream)

    def run(self, engine: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call autograd's engine: afterwards the caller's stream is current again, and ordered after the rest."""
        session, caller = self.session, self.session.stream
        outer, self.used = self.used, []
        call, session.call = session.call, (args, {})
        session.begin_priced(0)
        session.calls += 1  # one, whatever Python torch has run on the way to here
        self.runs += 1
        try:
            return engine(*args, **kwargs)
        finally:
            self.runs, self._node = self.runs - 1, None
            session.end_priced()
            session.stream, session.call = caller, call
            for stream in self.used:
                if stream is not caller:
                    session.runtime.wait_stream(caller, stream, asked=False)
            self.used = outer
