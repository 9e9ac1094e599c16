"""Operators: every aten operator, backward's included, seen by a `TorchDispatchMode`.

On device tensors an operator becomes a kernel on the current stream, with a cost by bytes and FLOPs, and its results
get device memory. On host tensors it costs host time. The values are computed at once, by the CPU.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable
from functools import partial
from itertools import repeat
from operator import attrgetter
from typing import Any

import torch
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import is_fake
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from torch.utils.flop_counter import flop_registry

from loaderviz.emulator.device import Stream
from loaderviz.emulator.hardware import DATA, Gpu, ceil_div
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
from loaderviz.emulator.torch import copies, internals
from loaderviz.emulator.torch.functions import HOST_OUTPUTS, is_faked, modes, names
from loaderviz.emulator.torch.placement import NO_FUNCTIONS
from loaderviz.emulator.torch.session import CPU, Session
from loaderviz.emulator.torch.tensors import (
    AT_REST,
    ATTRIBUTE,
    NO_DISPATCH,
    NO_STORAGE,
    PLAIN,
    SPARSE,
    STORAGE,
    DeviceTag,
    HostTag,
    any_on_device,
    is_on_device,
    parts_of,
    set_tag,
    storage_of,
    tag_of,
)
from loaderviz.errors import NotModelledError

Tensors = list[torch.Tensor]
ATTRIBUTES, NONES = repeat(ATTRIBUTE), repeat(None)  # for `map`, which needs no frame of Python's
MASKS = (torch.bool, torch.uint8)
LAST_NUMBER = 2**63  # AccumulateGrad nodes have the largest number there is: they follow the node before them
KEYS: Any = internals.DispatchKey
SPLIT, EXPLICIT = KEYS.CompositeImplicitAutograd, KEYS.CompositeExplicitAutograd
aten = torch.ops.aten


# No kernel: they only make or describe memory.
NO_KERNEL = names("""
    empty empty_like empty_strided empty_permuted new_empty new_empty_strided set_ resize_ _unsafe_view lift detach_
    squeeze_ unsqueeze_ transpose_ t_ as_strided_ swapaxes_ swapdims_ record_stream
""")
# What they make holds nothing yet
BLANK = names("empty empty_like empty_strided empty_permuted new_empty new_empty_strided")
# They hand on what they read, whatever it is; they write to parts of an argument without reading it
HANDING_ON = names("copy_ clone _to_copy contiguous _pin_memory")
TO_PARTS = names("index_put_ _index_put_impl_ index_copy_ index_fill_ scatter_ masked_fill_ masked_scatter_ put_ set_")
QUESTIONS = frozenset(("is_same_size", "is_pinned", "_has_compatible_shallow_copy_type"))
# They read something back, so the host waits for the current stream (R25).
SYNCHRONIZING = names("""
    _local_scalar_dense nonzero masked_select _unique _unique2 unique_dim unique_consecutive unique_dim_consecutive
    equal is_nonzero bincount _linalg_check_errors _nested_tensor_from_mask_left_aligned
""")
INDEXING = frozenset(("index", "index_put_", "index_put", "_index_put_impl_", "_unsafe_index_put"))
# CPU tensors may stand beside device tensors here.
MIXED = INDEXING | names(
    "copy_ _to_copy _pack_padded_sequence _pack_padded_sequence_backward _ctc_loss _ctc_loss_backward tensor_split set_"
)
NO_NUMBERS = names("cat stack clamp clamp_min clamp_max")  # none of the operands may be one on the host
HOST_ARGUMENTS = {"_pack_padded_sequence": 1}  # which argument has to be on the host
# They write without reading what they write to, though it is their first argument.
FILLING = names("""
    copy_ fill_ zero_ normal_ uniform_ random_ bernoulli_ exponential_ log_normal_ geometric_ cauchy_ set_
    _foreach_copy_ _foreach_zero_ arange randperm
""")
# CUDA has no kernel for half precision either
NOR_IN_CUDA = names("geqrf orgqr ormqr triangular_solve cholesky cholesky_solve cholesky_inverse _cdist_forward histc")
NO_HALF_KERNEL = re.compile(r"not implemented for '(Half|BFloat16)'")
NUMBERS = frozenset((int, float, bool, complex))
NOTHING: frozenset[int] = frozenset()
UNMARKED = {"native_batch_norm": (3, 4)}  # running statistics, which its schema does not name as written
HALF_PRODUCTS = names(
    "mm addmm bmm baddbmm convolution convolution_backward mkldnn_rnn_layer mkldnn_rnn_layer_backward"
)
NORMS = names("native_layer_norm native_batch_norm")
# Which arguments of their backward are the weight and the statistics
STATISTICS = {"native_layer_norm_backward": (5, (3, 4)), "native_batch_norm_backward": (2, (5, 6))}
MATMUL = frozenset(("mm", "addmm", "bmm", "baddbmm"))
# Each a composite call: nested operators, and a library that chooses its algorithm
COMPOSITE = MATMUL | names("""
    convolution native_batch_norm native_layer_norm native_group_norm _native_batch_norm_legit
    _native_batch_norm_legit_no_training _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_attention_math
    _thnn_fused_lstm_cell _thnn_fused_gru_cell mkldnn_rnn_layer
    convolution_backward native_batch_norm_backward native_layer_norm_backward native_group_norm_backward
    _scaled_dot_product_flash_attention_for_cpu_backward _thnn_fused_lstm_cell_backward_impl
    _thnn_fused_gru_cell_backward mkldnn_rnn_layer_backward
""")
SHAPE, DTYPE = attrgetter("shape", "dtype"), attrgetter("dtype")
STRIDE, CONTIGUOUS = torch.Tensor.stride, torch.Tensor.is_contiguous
FP32: Precision = "fp32"
HALF = (torch.float16, torch.bfloat16)
SCALARS = {"int64": "Long", "int32": "Int", "int16": "Short", "int8": "Char", "uint8": "Byte", "bool": "Bool"}
FLOAT8 = (8, 9)  # the first capability with products of float8: Ada
TENSOR_FLOAT = (8, 0)  # the first capability with TF32: Ampere
IRREGULAR = "_irregular"  # an operator on sparse or nested tensors, in kernels.toml
TRANSPOSED = {"convolution": 6, "convolution_backward": 7}  # the argument that says so


class Operators(TorchDispatchMode):
    """The mode that sees every operator while a recording runs."""

    supports_higher_order_operators = True

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
        """Run one operator: it describes memory only, consists of others, or does work on the device or the host."""
        session, operator, kwargs = self.session, self._known.get(id(func)), kwargs or {}
        if operator is None or modes() or not PLAIN.issuperset(types):
            if other := self._other_way(func, types):
                return other(func, types, args, kwargs)
            operator = self._operator(func)
        if args and type(args[0]) in NUMBERS:
            args = operator.with_tensors(args)
        with NO_FUNCTIONS():
            if session.quiet:
                return operator.run(*args, **kwargs)
            if operator.splits and not (session.irregular and any(it.is_nested for it in _collected(args, {}))):
                with self:
                    return func._op_dk(SPLIT, *args, **kwargs)
            if operator.is_free:
                return self._described(operator, args, kwargs)
            tensors, tags = _tensors(session, args, kwargs)
            if kwargs or session.target is not None or operator.draws or DeviceTag not in map(type, tags):
                return self._where_asked(operator, func, args, kwargs, tensors, tags)
            return self._on_device(operator, func, args, kwargs, tensors, tags, True)

    def _other_way(self, func: Any, types: Any) -> Callable[..., Any] | None:
        """Return what runs an operator that torch traces, a tensor's own class runs, or that calls functions."""
        if modes() and is_faked():
            return lambda func, types, args, kwargs: func(*args, **kwargs)
        if any(kind.__torch_dispatch__ is not NO_DISPATCH for kind in types):
            return self._by_subclass
        return self._higher_order if isinstance(func, HigherOrderOperator) else None

    def _described(self, operator: Operator, args: Any, kwargs: Any) -> Any:
        session = self.session
        if operator.is_view:
            session.count_call()
        result = operator.run(*args, **kwargs)
        if isinstance(result, (list, tuple)) and not is_on_device(args[0]):
            session.runtime.now += session.runtime.host.python * (len(result) - 1) // 2  # measured
        for output in _outputs(result) if session.irregular else ():
            if output.layout in SPARSE and is_on_device(args[0]):  # its indices may be its own: let them be where it is
                for part in parts_of(output):
                    if not is_on_device(part):
                        session.place(part)
        return result

    def _where_asked(
        self, operator: Operator, func: Any, args: Any, kwargs: Any, tensors: Tensors, tags: list[Any]
    ) -> Any:
        """Run an operator where its call (`Session.target`) or itself says, or else where its arguments are."""
        session, named, on_device = self.session, kwargs.get("device"), DeviceTag in map(type, tags)
        target = None if operator.base == "_local_scalar_dense" else session.target  # a size, which is read first
        if named is not None and named.type != "cpu":
            if named.type != "cuda":
                return func(*args, **kwargs)  # "meta" and others are none of our business
            target, kwargs = named, {**kwargs, "device": CPU}  # by compiled code
        if target is None:
            # A composite function may make memory of no tensor; it names the device of its argument, or none: the CPU
            part = not tensors and "device" in kwargs
            wanted = on_device or (part and any_on_device((*session.call[0], *session.call[1].values())))
        elif operator.base == "_to_copy":
            return copies.converted(session, args[0], target, kwargs)
        else:
            session.target = None  # it is meant for this operator, not for what it calls
            wanted = target.type == "cuda"
        if operator.draws and (generator := session.call[1].get("generator")) is not None:
            found, expected = generator.device.type, "cuda" if on_device or wanted else "cpu"
            if found != expected and {found, expected} == {"cuda", "cpu"}:
                raise RuntimeError(f"Expected a '{expected}' device type for generator but found '{found}'")
        run = self._on_device if on_device or wanted else self._on_host
        return run(operator, func, args, kwargs, tensors, tags, wanted)

    def _by_subclass(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Let the tensors' own classes run the operator; what they call in turn comes to us, functions and operators.

        Those that torch runs in C++ (`DTensor`) are left to it.
        """
        kinds = [kind for kind in types if kind.__torch_dispatch__ is not NO_DISPATCH]
        self.session.plain = False
        if any(hasattr(kind, "_op_dispatcher") for kind in kinds):
            return NotImplemented
        with self.session.seen(), self:
            for kind in kinds:
                result = kind.__torch_dispatch__(func, types, args, kwargs)
                if result is not NotImplemented:
                    return result
        return NotImplemented

    def _higher_order(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Run the eager form of `flex_attention`, `cond` or their like, whose operators come to us."""
        self.session.plain, kernel = False, func.py_kernels[EXPLICIT]
        named = getattr(kernel, "__globals__", {})  # it asserts that no mode is there, as none was to be
        ask = named.get("_get_current_dispatch_mode")
        try:
            if ask:
                named["_get_current_dispatch_mode"] = lambda: None
            with self.session.seen(), self:
                return kernel(*args, **kwargs)
        finally:
            if ask:
                named["_get_current_dispatch_mode"] = ask

    # On the host

    def _on_host(
        self, operator: Operator, func: Any, args: Any, kwargs: Any, tensors: Tensors, tags: list[Any], wanted: bool
    ) -> Any:
        session = self.session
        if session.fetching:
            return func(*args, **kwargs)
        batch = max((tag.batch for tag in tags if tag is not None), default=-1)
        session.enter(operator.name)
        any_blank = any(tag is not None and tag.blank for tag in tags)
        blank = self._blank(operator, args, kwargs, tensors, tags) if any_blank else ""
        tracking = None if operator.no_kernel else session.tracking
        if tracking:
            tracking.before_change(tags)
        result = operator.on_host(*args, **kwargs)
        blank = blank or (session.source() if operator.blank and session.tracking else "")
        if batch >= 0 or blank:
            for part in (part for output in _outputs(result) for part in parts_of(output)):
                tag = tag_of(part)
                if tag is None:
                    set_tag(part, tag := HostTag(session, batch))
                    tag.blank = blank
                elif operator.copies and tags[-1] is not None and tags[-1].batch >= 0:
                    tag.batch = tags[-1].batch  # a buffer: this is in it from now on
        if not operator.no_kernel:
            session.first_read(tensors, tags)
            for numbers in _lists(*session.call[0][1:2]) if operator.indexes else ():
                session.host_list("Tensor.__getitem__", session.runtime.host.list_time(len(numbers)))
            nbytes, flops, work = host_work(operator, args, kwargs, result)
            own = 0 if session.shuffling and operator.base == "randperm" else work
            session.host_operator(operator.name, nbytes, flops, own, batch=batch)
        session.leave()
        if tracking:
            tracking.host_operator(operator, args, kwargs, tensors, tags)
        return result

    # On the device

    def _on_device(
        self, operator: Operator, func: Any, args: Any, kwargs: Any, tensors: Tensors, tags: list[Any], wanted: bool
    ) -> Any:
        session = self.session
        session.enter(operator.name)
        try:
            session.count_call()
            start = session.runtime.now
            if operator.indexes:
                if type(tag_of(args[0])) is not DeviceTag:
                    return self._index_on_host(operator, func, args)
                operator, func, args = self._as_cuda_indexes(operator, func, args)
                tensors, tags = _tensors(session, args)
            if operator.host_argument is not None or list(map(type, tags)).count(DeviceTag) < len(tags):
                if operator.copies and is_on_device(args[0]) != is_on_device(args[1]):
                    non_blocking = args[2] if len(args) > 2 else kwargs.get("non_blocking")
                    return copies.transfer(session, args[1], args[0].dtype, bool(non_blocking), args[0])
                if operator.base == "fill_" and type(tags[0]) is not DeviceTag:  # it asks for the number
                    args = args[0], copies.transfer(session, args[1], args[1].dtype, False)
                    return self._on_host(operator, func, args, {}, *_tensors(session, args), False)
                _check_places(operator, args, operator.written(args, kwargs), tensors, tags)
            return self._kernel(operator, args, kwargs, tensors, tags, wanted, start)
        finally:
            session.leave()

    def _kernel(
        self, operator: Operator, args: Any, kwargs: Any, tensors: Tensors, tags: list[Any], wanted: bool, start: int
    ) -> Any:
        """Compute the values, put them on the device, and launch what computes them there."""
        session, runtime, is_kernel = self.session, self.session.runtime, not operator.no_kernel
        batch, any_blank = self._prepare_inputs(operator, tensors, tags)
        session.mark_call(batch)
        blank = self._blank(operator, args, kwargs, tensors, tags) if any_blank else ""
        if is_kernel:
            runtime.batch = session.batches.of_kernel(batch, session.stream.id)
        if session.recorder and operator.writes:
            changed = operator.written(args, kwargs)
            session.recorder.keep(tensor for tensor in tensors if id(tensor) in changed)
        launched = runtime.device.submitted
        result = self._computed(operator, args, kwargs, tensors)
        if runtime.device.submitted > launched:
            return result  # a custom operator of others, which came to us
        outputs = [result] if type(result) is torch.Tensor else _outputs(result)
        for output in outputs:
            if session.irregular or output.layout is not torch.strided or output.is_nested:
                outputs = self._irregular(outputs)
                break
        if is_kernel:
            beyond = self._beyond(operator, args) if operator.composite or self.backward.runs else 0
            session.scheduler.works(runtime.host.dispatch + beyond, gil=False)  # PyTorch lets go of it around each
        elif operator.base == "resize_":
            self._resized(args[0])
        carried = batch if batch >= 0 else session.batches.ahead
        places = self._place_outputs(operator, outputs, carried) if wanted else []
        if blank or operator.blank:
            for tag in places:
                tag.blank = blank or runtime.source
        if is_kernel:
            self._launch(operator, args, kwargs, tensors, tags, outputs, places)
            runtime.note(start, operator.name)
        return result

    def _computed(self, operator: Operator, args: Any, kwargs: Any, tensors: Tensors) -> Any:
        if operator.half_product and torch.float16 in map(DTYPE, tensors):
            if len({it.dtype for it in tensors if it.is_floating_point()}) > 1:
                return operator.run(*args, **kwargs)  # which refuses them, as CUDA does
            self.session.note(
                "float16: products are computed in float32 and rounded once, as a GPU does but for their order"
            )
            return _in_single(operator.run, *args, **kwargs)
        if operator.base == "histc" and not args[0].is_floating_point():  # CUDA has a kernel for integers
            return operator.run(args[0].double(), *args[1:], **kwargs).to(args[0].dtype)
        try:
            return self._custom(operator, args, kwargs) if operator.custom else operator.run(*args, **kwargs)
        except RuntimeError as problem:
            self._memory_error(problem)
            if not NO_HALF_KERNEL.search(str(problem)) or "linalg_" in operator.base or operator.base in NOR_IN_CUDA:
                raise
        return _in_single(operator.run, *args, **kwargs)  # CUDA has one

    def _custom(self, operator: Operator, args: Any, kwargs: Any) -> Any:
        """Run an operator of the program's own: what it is made of, if it is made of others, comes to us."""
        self.session.plain = False
        with self.session.seen(), self:
            return operator.run(*args, **kwargs)

    def _beyond(self, operator: Operator, args: Any) -> int:
        """Return the host time [ns] of an operator beyond `dispatch`: of its autograd node, if new, and its calls."""
        host = self.session.runtime.host
        cost = host.node if self.backward.runs and self.backward.is_new_node() else 0
        if operator.composite:
            cost += host.composite + host.convolution * _cudnn_calls(operator, args)
        return cost

    # Indexing

    def _as_cuda_indexes(self, operator: Operator, func: Any, args: Any) -> tuple[Operator, Any, Any]:
        """Return the operator that CUDA launches in the end for an index or an assignment to one, and its arguments.

        `x[mask] = number` fills (R47). Any other mask is searched first, and moved before that if it was a list. What
        is in host memory is moved: an index, and a number to be written, by a blocking copy each (R46; expandTensors in
        ATen/native/IndexingUtils.h).
        """
        tensor, indices, *rest = args
        _check_masks(tensor, indices)
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
            rest[0] = self._index_moved(rest[0], ", of a number")  # up to torch 2.13
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

    def _index_moved(self, index: torch.Tensor, case: str = ", of an index") -> torch.Tensor:
        """Copy an index, or a number to be written, to the device, and wait for it."""
        session, before = self.session, self.session.runtime.now
        moved = copies.transfer(session, index, index.dtype, False)
        if session.runtime.races and session.stream.last_work:
            session.runtime.races.linter.blocked(session.stream.last_work, session.runtime.now - before, case)
        return moved

    def _index_on_host(self, operator: Operator, func: Any, args: Any) -> Any:
        """A host tensor with an index or a value from the device: only a single value is brought to the host."""
        tensor, indices, *rest = args
        if any(index is not None and not _is_host(index) for index in indices):
            raise RuntimeError("indices should be either on cpu or on the same device as the indexed tensor (cpu)")
        if rest[0].dim():
            raise _apart(operator, tensor)
        args = (tensor, indices, copies.transfer(self.session, rest[0], rest[0].dtype, False), *rest[1:])
        return self._on_host(operator, func, args, {}, *_tensors(self.session, args), False)

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

    def _prepare_inputs(self, operator: Operator, tensors: Tensors, tags: list[Any]) -> tuple[int, bool]:
        """Let arrive what is ordered before us, take over tensors of earlier recordings.

        Return the newest batch, and whether something is blank.
        """
        session, batch, blank = self.session, -1, False
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
            if tag.blank:
                blank = True
        return batch, blank

    def _blank(self, operator: Operator, args: Any, kwargs: Any, tensors: Tensors, tags: list[Any]) -> str:
        """Report what reads memory that nothing has written; return where it was made, if that is handed on."""
        handed_on, changed = "", operator.written(args, kwargs)
        everything = operator.name.partition("::")[0] != "aten"  # whose schema may not say what it writes
        for tensor, tag in zip(tensors, tags, strict=True):
            if tag is None or not tag.blank or operator.no_kernel or not tensor.numel():
                continue
            writes, made = everything or id(tensor) in changed, tag.blank
            if operator.base in HANDING_ON and not writes:
                handed_on = made
                continue
            if operator.reads and not (writes and (operator.fills or everything or operator.base in TO_PARTS)):
                self.session.read_blank(operator.name, type(tag) is DeviceTag, made)
            tag.blank = "" if writes or operator.reads else made
        return handed_on

    def _place_outputs(self, operator: Operator, outputs: Tensors, batch: int) -> list[Any]:
        """Give new tensors device memory; return the tags of all."""
        session = self.session
        tags: list[Any] = []
        for position, output in enumerate(outputs):
            storage = output.untyped_storage()
            tag = getattr(storage, ATTRIBUTE, None)
            if position != operator.host_output:
                if type(tag) is not DeviceTag:
                    tag = session.give_block(storage, batch)
                elif batch > tag.batch and not operator.no_kernel:
                    tag.batch = batch
            tags.append(tag)
        return tags

    def _irregular(self, outputs: Tensors) -> Tensors:
        """Return the dense tensors that the results consist of, from now on also those of each operator's arguments."""
        self.session.irregular = True
        if not all(map(_is_regular, outputs)):
            self.session.note("sparse and nested tensors: the time of their kernels is by bytes, which is assumed")
        return [part for output in outputs for part in parts_of(output)]

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
            changed = operator.written(args, kwargs) if operator.writes else NOTHING
            base, touched = operator.base, (tensors, outputs)
            if session.irregular and not all(map(_is_regular, (*(given := _collected(args, kwargs)), *outputs))):
                base = IRREGULAR
                rows = [part for each in given if each.layout in SPARSE for part in parts_of(each)]
                if rows and (changed or operator.base == "sparse_mask"):  # of a dense tensor no other rows are touched
                    touched = rows, rows
            durations, share, traffic = self._costs.of(operator, args, *touched, changed, base)
            session.plain = session.plain and self._costs.plain
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


def _cudnn_calls(operator: Operator, args: Any) -> int:
    """Return how many calls of cuDNN a convolution takes: one for each result; torch does depthwise ones by itself."""
    if operator.base not in ("convolution", "convolution_backward"):
        return 0
    backward = operator.base == "convolution_backward"
    weight, groups = (args[2], args[9]) if backward else (args[1], args[8])
    if groups > 1 and weight.shape[1] == 1:
        return 0
    return sum(args[10][:2]) if backward else 1  # the gradient of the bias is a sum


def _collect(values: Iterable[Any], tensors: Tensors) -> None:
    for value in values:
        if isinstance(value, torch.Tensor):
            tensors.append(value)
        elif type(value) in (list, tuple):
            if PLAIN.issuperset(map(type, value)):  # by far the most
                tensors += value
            else:
                _collect(value, tensors)


def _collected(args: Any, kwargs: Any) -> Tensors:
    tensors: Tensors = []
    _collect((*args, *kwargs.values()), tensors)
    return tensors


def _is_regular(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_nested


def _tensors(session: Session, args: Any, kwargs: Any = None) -> tuple[Tensors, list[Any]]:
    """Return the dense tensors among the arguments of an operator, and the tag of each."""
    tensors = _collected(args, kwargs or {})
    if session.irregular:
        tensors = [part for tensor in tensors for part in parts_of(tensor)]
    try:
        return tensors, list(map(getattr, map(STORAGE, tensors), ATTRIBUTES, NONES))
    except NO_STORAGE:  # one of them has no storage
        tensors = [part for tensor in tensors for part in parts_of(tensor)]
        return tensors, list(map(tag_of, tensors))


PRICES = DATA["operators"]
ROUNDED = torch.uint8, torch.int64  # into which floats are converted one by one
INDICES = torch.int64, torch.int32, *MASKS
INDEXED = names("""
    masked_fill masked_fill_ index index_select index_put index_put_ index_add index_add_ gather scatter scatter_
    scatter_add scatter_add_ take
""")
HALVING = frozenset(("searchsorted", "bucketize"))
PLAIN_POWERS = frozenset((-2, -1, -0.5, 0, 0.5, 1, 2, 3))  # which torch makes of products and roots
SORTED_FROM = 56  # so many numbers are compared with each in the time that sorting them takes
PLANNED = 11  # times as long as making a number of a Fourier transform takes to plan one


def host_work(operator: Operator, args: Any, kwargs: Any, result: Any) -> tuple[int, int, int]:
    """Return the bytes that an operator on the host reads and writes, its FLOPs as torch counts, other work [ns]."""
    tensors = _collected(args, kwargs)
    made = [output for output in _outputs(result) if all(output is not tensor for tensor in tensors)]
    if CLASS.get(operator.base) == "gather":  # it reads as much of its source as it hands out
        tensors = [*tensors[1:], *made]
    read = [] if operator.base in HALVING else tensors  # these read a few of many numbers
    nbytes = sum(tensor.nbytes for tensor in (*read, *made) if tensor.layout is torch.strided)
    counter = flop_registry.get(operator.packet) if operator.multiplies else None
    flops = int(counter(*args, **kwargs, out_val=result)) if counter else 0
    if operator.base == "convolution" and args[8] == args[1].shape[0] == result.shape[1]:
        flops = _depthwise(args[1], result)
    return nbytes, flops, _own_work(operator.base, args, result, (*tensors, *made)) // 1000


def _own_work(base: str, args: Any, result: Any, tensors: Iterable[torch.Tensor]) -> int:
    """Return what an operator takes by the numbers that it works on [ps]; 0 where bytes or FLOPs say it."""
    if base == "multinomial":
        return _drawing(args[0], result, bool(args[2:3] and args[2]))
    if base == "_to_copy":
        rounded = args[0].is_floating_point() and result.dtype in ROUNDED
        bools = args[0].dtype is torch.bool
        return int(result.numel() * (PRICES["rounded"] * rounded + PRICES["bools"] * bools))
    along = args[1] if len(args) > 1 and isinstance(args[1], (int, list)) else None
    each = (PRICES.get(f"{base} of dim") if along not in (None, []) else None) or PRICES.get(base)
    if not each:
        return 0
    count = COUNTED.get(base)
    work = int(each * (max((it.numel() for it in tensors), default=0) if count is None else count(args, result)))
    return work + (PRICES["sort"] * result[0].numel() if base == "topk" else 0)


def _drawing(weights: torch.Tensor, drawn: torch.Tensor, again: bool) -> int:
    """Return the ps of drawing by weights: their sums are halved for each draw.

    Without replacement each weight gets a random number, and the largest are chosen.
    """
    if again:
        return int(PRICES["cumsum"] * weights.numel() + PRICES["searchsorted"] * _halvings(weights, drawn))
    return int((PRICES["exponential_"] + PRICES["topk"]) * weights.numel() + PRICES["sort"] * drawn.numel())


def _indices(args: Any, result: Any) -> int:
    return max((each.numel() for each in _collected(args[1:], {}) if each.dtype in INDICES), default=0)


def _halvings(places: torch.Tensor, result: torch.Tensor) -> int:
    return int(result.numel() * places.shape[-1].bit_length())


def _looked_up(args: Any, result: Any) -> int:
    among = args[1].numel() if isinstance(args[1], torch.Tensor) else 1
    return int(max(among, result.numel() * min(SORTED_FROM, among) // SORTED_FROM))


def _transformed(args: Any, result: Any) -> int:
    return int(args[0].numel() + PLANNED * max(map(args[0].shape.__getitem__, args[1]), default=0))


def _raised(args: Any, result: Any) -> int:
    return 0 if type(args[1]) in NUMBERS and args[1] in PLAIN_POWERS else int(result.numel())


# How many numbers an operator costs its price for; where it is not here, those of its largest tensor
COUNTED: dict[str, Callable[[Any, Any], int]] = {
    **dict.fromkeys(INDEXED, _indices),
    **dict.fromkeys(("_fft_r2c", "_fft_c2r", "_fft_c2c"), _transformed),
    **dict.fromkeys(("cat", "stack"), lambda args, _: len(args[0])),
    "where": lambda args, _: int(args[0].numel()),  # a mask of few numbers chooses whole rows, which are copied
    "searchsorted": lambda args, result: _halvings(args[0], result),
    "bucketize": lambda args, result: _halvings(args[1], result),
    "isin": _looked_up,
    "pow": _raised,
}


def _depthwise(weight: torch.Tensor, result: torch.Tensor) -> int:
    """Return the FLOPs that a depthwise convolution takes as long as on the host: few channels use it badly."""
    together, ordering = DATA["depthwise"]["channels"], DATA["depthwise"]["ordering"]
    pixels = result.numel() // result.shape[1] * together * ceil_div(result.shape[1], together)
    return int(2 * pixels * (weight[0, 0].numel() + ordering))


def _outputs(result: Any) -> Tensors:
    return _collected((result,), {})


def _check_places(operator: Operator, args: Any, changed: Collection[int], tensors: Tensors, tags: list[Any]) -> None:
    """Raise what torch does of operands on two devices: one on the host may be a number beside the others, as a rule.

    Of TensorIteratorConfig::allow_cpu_scalars; what is written to is no such number.
    """
    if operator.host_argument is not None and is_on_device(args[operator.host_argument]):
        raise RuntimeError(f"'lengths' argument of {operator.name} should be a 1D CPU int64 tensor, not on cuda:0")
    strays = [t for t, tag in zip(tensors, tags, strict=True) if type(tag) is not DeviceTag]
    strays = [t for t in strays if t.dim() or id(t) in changed or operator.base in NO_NUMBERS]
    if strays and len(strays) < len(tensors) and not operator.mixed:
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


def _check_masks(tensor: torch.Tensor, indices: Any) -> None:
    """Raise IndexError for a mask of another size than what it masks (expandTensors in ATen/native/IndexingUtils.h)."""
    place = 0
    for index in indices:
        masks = index is not None and index.dtype in MASKS
        for dim in range(index.dim() if masks else 0):
            if place + dim >= tensor.dim() or index.shape[dim] != tensor.shape[place + dim]:
                raise IndexError(
                    f"The shape of the mask {list(index.shape)} at index {dim} does not match the shape of the indexed "
                    f"tensor {list(tensor.shape)} at index {place + dim}"
                )
        place += index.dim() if masks else 1


def _fills(operator: Operator, tensor: torch.Tensor, indices: Any, value: Any = None, accumulate: bool = False) -> Any:
    """Return the mask, shaped to broadcast, of an assignment that is only a `masked_fill_` (R47); else None."""
    given = [index for index in indices if index is not None]
    if value is None or accumulate or value.numel() != 1:
        return None
    in_backward = internals.current_graph_task_id() >= 0  # there autograd writes a zero made on the host
    if not (_is_host(value) or (in_backward and value.dim() == 0)):
        return None
    if len(given) != 1 or given[0].dtype not in MASKS or _is_host(given[0]):
        return None
    after = tensor.dim() - (len(indices) - 1) - given[0].dim()
    return given[0][(..., *(None,) * after)]


# Kernels


def _in_single(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Compute in float32 what is in half precision, and round once.

    A GPU accumulates products so, and the CPU's float16 is slow; some operators have no kernel for it on the CPU.
    """
    halves = [tensor for tensor in _collected(args, kwargs) if tensor.dtype in HALF]
    if not halves:
        return func(*args, **kwargs)
    dtype, single = halves[0].dtype, {id(tensor): tensor.float() for tensor in halves}
    args, kwargs = tree_map_only(torch.Tensor, lambda tensor: single.get(id(tensor), tensor), (args, kwargs))
    result = func(*args, **kwargs)
    written = {id(single[id(tensor)]): tensor for tensor in halves}

    def rounded(value: torch.Tensor) -> torch.Tensor:
        if id(value) in written:  # an argument that it writes to, and returns
            return written[id(value)].copy_(value)
        return value.to(dtype) if value.dtype is torch.float32 else value

    return tree_map_only(torch.Tensor, rounded, result)


GRADIENTS = 1  # the place of the gradients among the arguments of a fused optimizer


OF_TORCH = names("aten prim prims quantized c10d _c10d_functional profiler torchvision")


def _conjugating(overload: Any, *args: Any, **kwargs: Any) -> Any:
    """Run an operator that may take the conjugate of a matrix inside.

    While a mode runs an operator, torch has the keys switched off that make a conjugate (or negative) view into memory.
    """
    if not any(tensor.is_complex() for tensor in _collected(args, kwargs)):
        return overload(*args, **kwargs)
    off = internals.dispatch_tls_local_exclude_set().remove(KEYS.Conjugate).remove(KEYS.Negative)
    with internals.ForceDispatchKeyGuard(internals.dispatch_tls_local_include_set(), off):
        return overload(*args, **kwargs)


def _normed(overload: Any, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
    """A norm: its statistics are float32 on CUDA, also where the CPU's are of half precision."""
    result, *statistics = overload(*args, **kwargs)
    return result, *(value.float() if value.dtype in HALF else value for value in statistics)


def _from_statistics(overload: Any, weight: int, statistics: tuple[int, ...], *args: Any, **kwargs: Any) -> Any:
    """Its backward: the CPU's kernels want them as they gave them, which is as the weight, or else the input, is."""
    dtype = (args[1] if args[weight] is None else args[weight]).dtype
    halved = statistics if dtype in HALF else ()
    return overload(*(it.to(dtype) if place in halved else it for place, it in enumerate(args)), **kwargs)


def _widened(overload: Any, *args: Any, out: torch.Tensor | None = None, **kwargs: Any) -> torch.Tensor:
    """A product of half precision with a result of float32, for which CUDA alone has a kernel."""
    place = next(place for place, it in enumerate(overload._schema.arguments) if it.name == "out_dtype")
    dtype: torch.dtype = args[place]
    wide = [value.to(dtype) if isinstance(value, torch.Tensor) else value for value in args[:place] + args[place + 1 :]]
    result: torch.Tensor = overload.overloadpacket.default(*wide, **kwargs)
    return result if out is None else out.copy_(result)


class Operator:
    """What is known of one aten overload, worked out once."""

    def __init__(self, overload: Any) -> None:
        schema = overload._schema
        self.packet = overload.overloadpacket
        self.arguments = schema.arguments
        self.draws = any(argument.name == "generator" for argument in schema.arguments)
        self.name: str = schema.name
        self.base = base = self.name.split("::")[-1]
        # Autograd splits these into others; under torch.inference_mode, without it, they come whole.
        here = overload.namespace != "prim"  # a question about a layout, say, of which the dispatcher knows nothing
        has_kernel = partial(internals.dispatch_has_kernel_for_dispatch_key, overload.name())
        self.splits: bool = here and has_kernel(SPLIT)
        aliases = [entry.alias_info for entry in schema.returns]
        # Views share their storage, and with it all that is known of it.
        self.is_view = any(alias is not None and not alias.is_write for alias in aliases)
        self.is_free = self.is_view or base in QUESTIONS or self.name.startswith("profiler::")
        self.no_kernel, self.blank = base in NO_KERNEL, base in BLANK
        self.synchronizes = base in SYNCHRONIZING or overload is aten.repeat_interleave.Tensor
        self.indexes, self.mixed, self.copies = base in INDEXING, base in MIXED, base == "copy_"
        self.host_output, self.host_argument = HOST_OUTPUTS.get(base, -1), HOST_ARGUMENTS.get(base)
        self.multiplies = CLASS.get(base) in PRODUCTS
        self.composite, self.fused = base in COMPOSITE, base.startswith("_fused_") and base.endswith("_")
        # What is read and written: arguments by position or keyword, and results
        marked = [(place, it) for place, it in enumerate(schema.arguments) if it.alias_info and it.alias_info.is_write]
        self.positions = (*(place for place, it in marked if not it.kwarg_only), *UNMARKED.get(base, ()))
        self.keywords = tuple(it.name for _, it in marked)
        self.fills = base in FILLING or any(it.kwarg_only for _, it in marked)  # out=...
        self.writes = bool(self.positions or self.keywords)
        self.on_host: Callable[..., Any] = overload
        self.run: Callable[..., Any] = overload  # its frame is torch's: what an operator refuses is no error of ours
        self.custom = overload.namespace not in OF_TORCH and not self.splits
        if self.custom:  # what the program registered for the GPU, if anything, or else for all or the CPU
            keys = (key for key in (KEYS.CUDA, EXPLICIT, KEYS.CPU) if has_kernel(key.name))
            self.run = partial(overload._op_dk, next(keys, KEYS.CPU))
        elif base in MATMUL and overload._overloadname.startswith("dtype"):
            self.run = partial(_widened, overload)
        elif "linalg_" in base or base == "pinverse":
            self.run = self.on_host = partial(_conjugating, overload)
        elif base in NORMS:
            self.run = partial(_normed, overload)
        elif base in STATISTICS:
            self.run = partial(_from_statistics, overload, *STATISTICS[base])
        self.half_product = base in HALF_PRODUCTS and not self.writes
        self.over_lists = base.startswith(("_foreach_", "_fused_"))
        # These ask their argument for its shape and dtype only.
        self.reads = self.writes or not (base.endswith("_like") or base.startswith("new_"))
        # Results that are arguments, as those of x.add_(y), are written already.
        self.makes = None in aliases

    def with_tensors(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the arguments with a tensor for each number that stands for one, as TorchScript's constants come."""
        needs = [str(argument.type) == "Tensor" for argument in self.arguments]
        return tuple(
            torch.tensor(arg, device=CPU) if need and type(arg) in NUMBERS else arg
            for need, arg in zip(needs, args, strict=False)
        )

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
        self.plain = True  # the CPU computes all of it as the GPU does: nothing is of half precision, or complex

    def of(
        self,
        operator: Operator,
        args: Any,
        tensors: Tensors,
        outputs: Tensors,
        changed: Collection[int] = NOTHING,
        base: str = "",
    ) -> tuple[Times, int, int]:
        """Return (times [ns], share of the GPU, part of its memory bandwidth [thousandths]) of an operator's kernels.

        The main kernel is the first. `changed` are the ids of the arguments that it writes to. What is only written
        counts once (R48).
        """
        every = (*tensors, *outputs) if operator.makes else tensors
        key: tuple[Any, ...] = base, operator, len(tensors), *map(SHAPE, every)
        # Lists: each tensor is so many elements. A weight of 1 x 1 is contiguous, and may be channels last, too.
        if not operator.over_lists and (operator.multiplies or False in map(CONTIGUOUS, every)):
            key += tuple(map(STRIDE, every))
        precision, transposed = FP32, False
        if operator.multiplies:
            precision, place = self._precision(operator, tensors), TRANSPOSED.get(operator.base)
            transposed = place is not None and bool(args[place])
            key += (precision, transposed)
        cost = self._known.get(key)
        if cost is None:
            cost = self._known[key] = self._priced(base, operator, tensors, outputs, changed, precision, transposed)
        return cost

    def _priced(
        self,
        base: str,
        operator: Operator,
        tensors: Tensors,
        outputs: Tensors,
        changed: Collection[int],
        precision: Precision,
        transposed: bool,
    ) -> tuple[Times, int, int]:
        self._refuse_kernel(operator, outputs)
        self.plain = self.plain and not any(it.dtype in HALF or it.is_complex() for it in (*tensors, *outputs))
        reads = [it for it in tensors if not (operator.fills and id(it) in changed)] if operator.reads else []
        writes = [it for it in outputs if id(it) not in changed] + [it for it in tensors if id(it) in changed]
        call = Call(base or operator.base, list(map(_array, reads)), list(map(_array, writes)), precision, transposed)
        elements = max((it.numel() for it in outputs or writes or tensors), default=1) or 1
        times = kernel_times(self._gpu, call)
        return times, sm_share(self._gpu, elements), memory_share(self._gpu, moved(call), sum(times))

    def _refuse_kernel(self, operator: Operator, outputs: Tensors) -> None:
        """Raise what CUDA says where it has no kernel, and the CPU has one."""
        kinds = {output.dtype for output in outputs} - {torch.bool}
        if operator.multiplies and kinds and not any(kind.is_floating_point or kind.is_complex for kind in kinds):
            kind = str(min(kinds, key=str)).removeprefix("torch.")
            raise RuntimeError(f"\"{operator.base}_cuda\" not implemented for '{SCALARS.get(kind, kind)}'")
        if operator.base == "_scaled_mm" and self._gpu.capability < FLOAT8:
            major, minor = self._gpu.capability
            raise RuntimeError(
                f"torch._scaled_mm needs compute capability 8.9 or higher; {self._gpu.name}: {major}.{minor}"
            )

    def _precision(self, operator: Operator, tensors: Tensors) -> Precision:
        """Return in what precision the GPU would compute a product of these tensors."""
        dtype = next((tensor.dtype for tensor in tensors if tensor.dtype.is_floating_point), torch.float32)
        if dtype in HALF:
            return "fp16"
        if dtype is torch.float64:
            return "fp64"
        if operator.base in MATMUL:
            # torch's own wrapper takes longer than the rest
            tf32 = internals.get_float32_matmul_precision() != "highest"
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
        before, self._node = self._node, internals.current_autograd_node()
        return self._node is not before

    def follow(self) -> None:
        """Called before each device operator once there were two streams: inside backward, take that of the forward."""
        session, history = self.session, self.session.stream_history
        node = internals.current_autograd_node()
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
        if session.aside is AT_REST:
            return engine(*args, **kwargs)
        if not session.in_recording_thread():
            with internals.DisableTorchDispatch():  # it may have our modes still: see `Scheduler.let_go`
                return engine(*args, **kwargs)
        outer, self.used = self.used, []
        call, session.call = session.call, (args, {})
        if any(is_fake(root) and root.device.type == "cuda" for root in args[0]):
            raise NotModelledError(
                "backward through FakeTensors on the emulated GPU (AOTAutograd does so): torch has no engine for it in "
                "this build; trace the forward alone, or make the fake tensors on the CPU"
            )
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
