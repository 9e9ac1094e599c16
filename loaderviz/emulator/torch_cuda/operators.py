"""Operators: every aten operator, backward's included, seen by a `TorchDispatchMode`.

On device tensors an operator becomes a kernel on the current stream, with a cost by bytes and FLOPs, and its results
get device memory. On host tensors it costs host time. The values are computed at once, by the CPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from loaderviz.emulator.torch_cuda import transfers
from loaderviz.emulator.torch_cuda.backward import BackwardStreams
from loaderviz.emulator.torch_cuda.kernels import KernelCosts, Operator
from loaderviz.emulator.torch_cuda.session import Session
from loaderviz.emulator.torch_cuda.tags import ATTRIBUTE, DeviceTag, HostTag, set_tag, storage_of
from loaderviz.errors import NotModelledError
from loaderviz.timeline import Kind

Tensors = list[torch.Tensor]


class Operators(TorchDispatchMode):
    """The mode that sees every operator while a recording runs."""

    def __init__(self, session: Session) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.session = session
        self.backward = BackwardStreams(session)
        self._known: dict[Any, Operator] = {}
        self._costs = KernelCosts(session.runtime.gpu)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Leave the method as it is: torch would wrap it against its compiler, which costs 45 us at each operator."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one operator."""
        kwargs = kwargs or {}
        session = self.session
        operator = self._known.get(func)
        if operator is None:
            operator = self._known[func] = Operator(func)
        if operator.is_free or session.quiet:
            return func(*args, **kwargs)
        with torch._C.DisableTorchFunction():
            tensors: Tensors = []
            _collect(args, tensors)
            if kwargs:
                _collect(kwargs.values(), tensors)
            tags = [_tag(tensor) for tensor in tensors]
            on_device = False
            for tag in tags:
                if type(tag) is DeviceTag:
                    on_device = True
                    break
            target = session.target
            if target is not None and operator.base != "_local_scalar_dense":  # a size given as a tensor is read first
                session.target = None  # it is meant for this operator, not for what it calls
                wanted = target.type == "cuda"
            else:  # a composite function may make memory without naming a tensor: it belongs where its arguments are
                wanted = on_device or (not tensors and session.call_is_on_device())
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
        if session.measured:
            session.enter(operator.name)
            session.leave()  # from here the real time of the operator counts, as other Python's does
        touched = None if operator.no_kernel else session.touched
        if touched:
            touched.before_change(tags)
        result = func(*args, **kwargs)
        outputs = _outputs(result)
        if batch >= 0:
            for output in outputs:
                tag = _tag(output)
                if tag is None:
                    set_tag(output, HostTag(session, batch))
                elif operator.base == "copy_" and tags[-1] is not None and tags[-1].batch >= 0:
                    tag.batch = tags[-1].batch  # a buffer: this is in it from now on
        if not operator.no_kernel and not session.measured:
            nbytes = sum(tensor.nbytes for tensor in tensors if tensor.layout is torch.strided)
            nbytes += sum(output.nbytes for output in outputs if output.layout is torch.strided)
            session.host_operator(operator.name, nbytes, batch)
        if touched:
            touched.host_operator(operator, args, kwargs, tensors, tags)
        return result

    # On the device

    def _on_device(
        self, operator: Operator, func: Any, args: Any, kwargs: Any, tensors: Tensors, tags: list[Any], wanted: bool
    ) -> Any:
        session = self.session
        self._check_places(operator, tensors, tags)
        if operator.base == "copy_" and _places_differ(tags):
            transfers.copy_across(session, args[0], args[1], bool(_argument(args, kwargs, 2, "non_blocking")))
            return args[0]
        self.backward.follow(session)
        batch = self._prepare_inputs(operator, tensors, tags)
        runtime = session.runtime
        runtime.batch, runtime.source = session.batch_or_current(batch), session.source()
        if not operator.no_kernel:
            runtime.batch = session.batches.of_kernel(batch, session.stream.id)
        try:
            result = func(*args, **kwargs)
        except RuntimeError as problem:
            self._memory_error(problem)
            raise
        outputs = _outputs(result)
        start = runtime.now
        if not operator.no_kernel:
            runtime.now += runtime.host.dispatch
        elif operator.base == "resize_":
            self._resized(args[0])
        places = self._place_outputs(operator, outputs, session.batches.of_data(batch)) if wanted else []
        if not operator.no_kernel:
            self._launch(operator, args, kwargs, tensors, tags, outputs, places)
            runtime.builder.span(
                start, runtime.now, runtime.main, Kind.OPERATOR, operator.name, batch=runtime.batch,
                source=runtime.source,
            )  # fmt: skip
        return result

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

    def _check_places(self, operator: Operator, tensors: Tensors, tags: list[Any]) -> None:
        if operator.mixed or all(type(tag) is DeviceTag for tag in tags):
            return
        strays = [t for t, tag in zip(tensors, tags, strict=True) if type(tag) is not DeviceTag and t.dim()]
        if strays and len(strays) < len(tensors):
            shape = tuple(strays[0].shape)
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu! "
                f"(in {operator.name}: the tensor of shape {shape} and dtype {strays[0].dtype} is on the CPU)"
            )

    def _prepare_inputs(self, operator: Operator, tensors: Tensors, tags: list[Any]) -> int:
        """Let arrive what is ordered before us; take over tensors of earlier recordings; return the newest batch."""
        session, batch = self.session, -1
        for position, (tensor, tag) in enumerate(zip(tensors, tags, strict=True)):
            if tag is None:
                continue
            if type(tag) is DeviceTag:
                if tag.session is not session:
                    tag = tags[position] = session.device_tag(tensor)
                if tag.arrivals and not operator.no_kernel:
                    session.late.deliver(tag, session.stream)
            if tag.batch > batch:
                batch = tag.batch
        return batch

    def _place_outputs(self, operator: Operator, outputs: Tensors, batch: int) -> list[Any]:
        """Give new tensors device memory; return the tags of all."""
        session, tags = self.session, []
        for position, output in enumerate(outputs):
            tag = _tag(output)
            tags.append(tag)
            if position == operator.host_output:
                continue
            if tag is None or type(tag) is not DeviceTag:
                if output.layout is not torch.strided:
                    raise NotModelledError(
                        f"{operator.name} makes a tensor of layout {output.layout}, which the emulated GPU does not "
                        "model; do this step on the CPU"
                    )
                tags[-1] = session.give_block(output, batch)
            elif not operator.no_kernel and batch > tag.batch:
                tag.batch = batch
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
        self, operator: Operator, args: Any, kwargs: Any, tensors: Tensors, tags: list[Any], outputs: Tensors,
        places: list[Any],
    ) -> None:  # fmt: skip
        session, runtime, touched = self.session, self.session.runtime, self.session.touched
        synchronizes = operator.synchronizes or (
            operator.indexes and any(t.dtype in (torch.bool, torch.uint8) for t in _indices(args))
        )
        if operator.base != "_local_scalar_dense":
            sizes = [tensor.nbytes for tensor in tensors]
            duration, share = self._costs.of(operator, args, kwargs, tensors, sizes, outputs)
            command = runtime.launch(duration, session.stream, name=operator.base, share=share)
            if touched:
                touched.kernel(command, operator, (args, kwargs), tensors, tags, sizes, outputs, places)
        if synchronizes:
            session.synchronizing(operator.name)
            scalar = tensors[0].element_size() if operator.base == "_local_scalar_dense" else 8
            command = runtime.memcpy(scalar, "d2h", session.stream, blocking=True)  # PyTorch's own, pinned, buffer
            if touched and operator.base == "_local_scalar_dense":
                touched.device(command, operator.name, reads=tensors)
            session.late.host_knows()


def _collect(values: Iterable[Any], tensors: Tensors) -> None:
    for value in values:
        if isinstance(value, torch.Tensor):
            tensors.append(value)
        elif type(value) in (list, tuple):
            _collect(value, tensors)


def _outputs(result: Any) -> Tensors:
    if isinstance(result, torch.Tensor):
        return [result]
    tensors: Tensors = []
    if isinstance(result, (tuple, list)):
        _collect(result, tensors)
    return tensors


def _tag(tensor: torch.Tensor) -> Any:
    try:
        return getattr(tensor.untyped_storage(), ATTRIBUTE)
    except AttributeError:
        return None
    except (NotImplementedError, RuntimeError):  # sparse and other tensors without a storage are host tensors
        return None


def _places_differ(tags: list[Any]) -> bool:
    return (type(tags[0]) is DeviceTag) != (type(tags[1]) is DeviceTag)


def _argument(args: Any, kwargs: Any, position: int, name: str) -> Any:
    return args[position] if len(args) > position else kwargs.get(name)


def _indices(args: Any) -> Tensors:
    tensors: Tensors = []
    _collect(args[1] if len(args) > 1 else (), tensors)
    return tensors
