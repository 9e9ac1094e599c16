"""Compilers and tracers of torch, which read a program before it runs: what they make is emulated operator by operator.

`torch.compile` runs its model as it is. `torch.jit.trace` and ONNX watch the program on the CPU, where nothing is
counted. TorchScript does not know of the emulated GPU. `torch.export` looks at fake tensors, of which torch itself says
where they are; for autograd it wants a guard of the device, which torch has only where it was built for CUDA.
"""

from __future__ import annotations

import ctypes
import inspect
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch._subclasses import fake_tensor, meta_utils
from torch.library import Library

from loaderviz.emulator.torch import internals
from loaderviz.emulator.torch.library.storing import bring
from loaderviz.emulator.torch.patches import Patches
from loaderviz.emulator.torch.placement import move
from loaderviz.emulator.torch.session import CPU, DEVICE, STANDS_FOR_CUDA, Session, wanted_device
from loaderviz.emulator.torch.tensors import is_on_device
from loaderviz.errors import NotModelledError
from loaderviz.imports import bound_arguments

TRACERS = "_create_graph_by_tracing", "_create_function_from_trace", "_create_function_from_trace_with_dict"
METHOD_TRACERS = "_create_method_from_trace", "_create_method_from_trace_with_dict"
CUDA = 1  # c10/core/DeviceType.h
IMPLICIT = "CompositeImplicitAutograd"
PLACE = "loaderviz_device"  # in a saved module: where its parameters were


def install(session: Session, patches: Patches) -> None:
    """Put all in place."""
    _install_compile(session, patches)
    _install_scripts(session, patches)
    _install_fake(patches)

    @patches.around(torch.export, "export")
    def export(original: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.pop("strict", False):
            session.note("torch.export: strict=True reads the program's bytecode, which sees our modes; traced without")
        return original(*args, **kwargs, strict=False)

    @patches.around(torch.jit._builtins, "_find_builtin")
    def find_builtin(find: Any, function: Any) -> Any:  # by identity, also of what stands in for a builtin now
        return find(inspect.unwrap(function))

    def watch(trace: Callable[..., Any], *args: Any) -> Any:
        session.note("torch.jit.trace, ONNX export: the calls that are watched are not in the timeline")
        session.synchronize(None)  # what is on its way may be a constant of what is traced
        with session.on_host():
            return trace(*args)

    patches.around(internals.C, *TRACERS)(watch)
    patches.around(internals.ScriptModule, *METHOD_TRACERS)(watch)

    @patches.around(internals.Graph, "__str__", "__repr__")
    def printed(write: Callable[..., str], graph: Any) -> str:
        with internals.DisableTorchDispatch():  # it looks at constants by operators
            return write(graph)


def _install_compile(session: Session, patches: Patches) -> None:
    """Compiled code runs as its eager operators, also what was compiled before, and the timeline says so."""
    from torch._dynamo import eval_frame  # takes 2 s, which a worker has no use for

    note = "torch.compile: compiled code is emulated as its eager operators, so nothing is fused"

    @patches.around(torch, "compile")
    def compile_eagerly(original: Any, *args: Any, **kwargs: Any) -> Any:
        asked = bound_arguments(original, *args, **kwargs).arguments
        model = asked.pop("model", None)
        if model is None:
            return lambda model: torch.compile(model, **asked)
        if asked.get("mode") is not None and asked.get("options") is not None:
            raise RuntimeError("torch.compile: either mode or options can be specified, but not both")
        if asked.get("disable") or isinstance(model, type):
            return model
        session.note(note)
        return torch.compiler.disable(model)  # wrapped just as a compiled one is

    def without_compiling(callback: Any) -> None:
        if callback:
            session.note(note)

    patches.set(eval_frame, "_stance", eval_frame.DynamoStance("force_eager"))  # with fullgraph=True, too
    patches.set(eval_frame, "_callback_from_stance", without_compiling)  # asked at each call of compiled code
    patches.set(torch.compiler, "cudagraph_mark_step_begin", lambda: None)  # what runs eagerly makes no graphs
    patches.function(torch._dynamo, "reset", lambda: None)  # nor anything else to be forgotten


# TorchScript, which asks its tensors in C++ where they are, and hears "cpu"

ANSWERED = """
    device(Tensor self) -> Device
    is_cuda(Tensor self) -> bool
    is_cpu(Tensor self) -> bool
    get_device(Tensor self) -> int
    to(Tensor self, Tensor? other, Device? device, ScalarType? dtype, bool non_blocking, bool copy) -> Tensor
"""


@cache
def _operators() -> Library:
    """Define the operators that answer in their place, once in a process."""
    library = Library("loaderviz", "DEF")
    for line in ANSWERED.split("\n")[1:-1]:
        library.define(line.strip())
    for name in ("device", "is_cuda", "is_cpu"):
        library.impl(name, vars(torch.Tensor)[name].fget, "CompositeImplicitAutograd")
    library.impl("get_device", lambda tensor: 0 if is_on_device(tensor) else tensor.get_device(), IMPLICIT)
    library.impl("to", _moved, IMPLICIT)
    return library


def _moved(tensor: Any, other: Any, device: Any, dtype: Any, non_blocking: bool, copy: bool) -> torch.Tensor:
    if other is not None:
        device, dtype = other.device, other.dtype
    return move(Session.running("TorchScript"), tensor, device, dtype, non_blocking, copy)


def _install_scripts(session: Session, patches: Patches) -> None:
    rewritten: dict[Any, Any] = {}

    def call(run: Callable[..., Any], code: Any, *args: Any, **kwargs: Any) -> Any:
        if code not in rewritten:
            rewritten[code] = _rewritten(code)
            rewritten.setdefault(rewritten[code])
        owner = () if (owned := getattr(code, "owner", None)) is None else (owned,)
        if (instead := rewritten[code]) is None:
            return run(code, *args, **kwargs)
        given = code.schema.arguments[len(owner) + len(args) :]
        args = (*args, *(kwargs.get(each.name, each.default_value) for each in given))
        return internals.ScriptFunction.__call__(instead, *owner, *args)

    for kind in (internals.ScriptFunction, internals.ScriptMethod):
        patches.around(kind, "__call__")(call)

    def save(original: Any, self: Any, *args: Any, _extra_files: Any = None, **kwargs: Any) -> Any:
        files = dict(_extra_files or {}) | ({PLACE: "cuda"} if any(map(is_on_device, self.parameters())) else {})
        return original(self, *args, _extra_files=files, **kwargs)

    for module in (vars(torch.jit)["RecursiveScriptModule"], torch.jit.ScriptModule):
        patches.around(module, "save", "save_to_buffer")(save)

    @patches.around(torch.jit, "load")
    def load(original: Any, f: Any, map_location: Any = None, _extra_files: Any = None, **kwargs: Any) -> Any:
        files = {} if _extra_files is None else _extra_files
        files[PLACE] = ""
        named = None if map_location is None else wanted_device(map_location)
        model = original(f, CPU if named == DEVICE else map_location, files, **kwargs)
        if (files.pop(PLACE) if named is None else named.type) in ("cuda", b"cuda"):
            with session.calling("torch.jit.load"):
                for each in (*model.parameters(), *model.buffers()):
                    bring(session, each.untyped_storage())
        return model


def _rewritten(code: Any) -> Any:
    """Return the same code as a function that asks the emulator where tensors are; None if it does not ask."""
    graph = code.inlined_graph
    before = str(graph)
    if graph.findAllNodes("prim::fork", True):  # by a thread of its own; here one after the other
        internals.jit_pass_inline_fork_wait(graph)
    for name in ("prim::device", "prim::is_cuda", "prim::is_cpu", "aten::get_device"):
        for node in graph.findAllNodes(name, True):
            _replace(graph, node, f"loaderviz::{name.partition('::')[2]}", [node.inputsAt(0)])
    for node in (
        node for name in ("to", "cpu", "cuda", "type_as") for node in graph.findAllNodes(f"aten::{name}", True)
    ):
        _replace(graph, node, "loaderviz::to", _arguments_of_to(graph, node))
    for node in graph.findAllNodes("prim::Constant", True):
        if str(node.output().type()) == "Device" and f'value="{STANDS_FOR_CUDA}"' in str(node):
            node.output().replaceAllUsesWith(_constant(graph, node, DEVICE))
    if str(graph) == before:
        return None
    _operators()
    return internals.create_function_from_graph(code.name, graph)


def _arguments_of_to(graph: Any, node: Any) -> list[Any]:
    names = [argument.name for argument in internals.parse_schema(node.schema()).arguments]
    given = dict(zip(names, node.inputs(), strict=True))
    if node.kind() in ("aten::cpu", "aten::cuda"):
        given["device"] = _constant(graph, node, torch.device(node.kind().partition("::")[2]))
    defaults = {"other": None, "device": None, "dtype": None, "non_blocking": False, "copy": False}
    values = [given.get(name) or _constant(graph, node, value) for name, value in defaults.items()]
    return [node.inputsAt(0), *values]


def _constant(graph: Any, place: Any, value: Any) -> Any:
    constant = graph.insertConstant(value)
    constant.node().moveBefore(place)
    return constant


def _replace(graph: Any, node: Any, name: str, inputs: list[Any]) -> None:
    instead = graph.create(name, inputs, 1)
    instead.output().setType(node.output().type())
    instead.insertBefore(node)
    node.output().replaceAllUsesWith(instead.output())
    node.destroy()


# Fake tensors, and all that names the device in C++


def _install_fake(patches: Patches) -> None:
    table, guard = _guards(), _guard_without_gpu()
    if guard is not None:
        # Until the recording ends CUDA has a guard that does nothing. Without one, what names the device in C++ fails,
        # and autograd of a tensor that says "cuda" ends the process.
        patches.at_end(partial(table.__setitem__, CUDA, table[CUDA]))
        table[CUDA] = guard
    # As without a GPU: constants go to it by operators that a fake tensor sees
    patches.set(fake_tensor.FakeTensorMode, "avoid_device_init", property(lambda mode: True))
    patches.set(fake_tensor, "init_gpu_context", lambda device: None)  # torch 2.10 would begin CUDA

    @patches.around(fake_tensor.FakeTensor, "__new__")
    def make(original: Any, cls: Any, mode: Any, elem: Any, device: torch.device, *args: Any, **kwargs: Any) -> Any:
        if device.type == "cuda" and guard is None:
            raise NotModelledError(
                "FakeTensor on the emulated GPU: this build of torch shows no table of device guards, without which "
                "autograd would end the process; make the fake tensors, or the export, of a model on the CPU"
            )
        return original(cls, mode, elem, device, *args, **kwargs)

    @patches.around(meta_utils.MetaTensorDescriber, "describe_tensor")
    def describe(original: Any, self: Any, tensor: torch.Tensor, **kwargs: Any) -> Any:
        description = original(self, tensor, **kwargs)
        if description.device != tensor.device:  # that of the CPU tensor behind it, where no function is seen
            object.__setattr__(description, "device", tensor.device)
        return description


@cache
def _guards() -> Any:
    """Return torch's table of device guards, by type of device; None if this build shows none."""
    for library in Path(torch.__file__).parent.glob("lib/*c10.*"):
        for symbol in ("_ZN3c104impl26device_guard_impl_registryE", "?device_guard_impl_registry@impl@c10@@"):
            try:
                return (ctypes.c_void_p * (CUDA + 1)).in_dll(ctypes.CDLL(str(library)), symbol)
            except (OSError, ValueError):
                continue
    return None


@cache
def _guard_without_gpu() -> int | None:
    """Return the address of torch's guard for CUDA that does nothing; None if it cannot be had.

    Torch makes it, for fake tensors, where a build for CUDA finds no GPU (c10::impl::ensureCUDADeviceGuardSet). It asks
    the guard that is there for its number of devices; in a build for the CPU there is none, so one answers for that
    moment, all of whose functions return 0.
    """
    table = _guards()
    if table is None:
        return None
    with suppress(RuntimeError):  # of autograd in a fork
        # Autograd's engine now counts the devices: with the guard it would find one, start a thread, and rule out forks
        torch.ones((), device="cpu", requires_grad=True).backward()
    no_devices = ctypes.CFUNCTYPE(ctypes.c_int8, ctypes.c_void_p)(lambda _: 0)
    functions = (ctypes.c_void_p * 64)(*[ctypes.cast(no_devices, ctypes.c_void_p).value] * 64)
    asked = ctypes.c_void_p(ctypes.addressof(functions))
    before, table[CUDA] = table[CUDA], ctypes.addressof(asked)
    try:
        internals.ensureCUDADeviceGuardSet()
        return None if table[CUDA] == ctypes.addressof(asked) else table[CUDA]
    finally:
        table[CUDA] = before
