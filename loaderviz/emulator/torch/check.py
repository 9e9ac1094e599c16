"""Check: the first step once more without the emulator, call by call and module by module.

Each call of torch (the first two from a line) is made again on the CPU, with copies of its arguments and the same
random numbers, and the values are compared. PyTorch itself says of what dtype, shape and device the result is on a
real GPU: it is asked with fake tensors on CUDA. Each outermost module is run again from a copy on the CPU, and the
outputs of all modules inside it are compared. `Difference` names the first thing that is not alike.
"""

from __future__ import annotations

import copy
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.modules.module import register_module_forward_hook
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only
from torch.utils.checkpoint import _StopRecomputationError

from loaderviz.emulator.hazards import code
from loaderviz.emulator.torch import copies, internals
from loaderviz.emulator.torch.functions import STAND_IN, call_on_host, modes, names
from loaderviz.emulator.torch.placement import TYPES
from loaderviz.emulator.torch.session import CPU, Session
from loaderviz.emulator.torch.tensors import PLAIN, is_on_device, tag_of
from loaderviz.errors import LoadervizError
from loaderviz.imports import held

EACH_LINE = 2  # calls of one function from one line that are made again
LARGEST = 2**26  # bytes of arguments beyond which values are not compared, only kinds
SAMPLE = 2**20  # elements of a module's output that are kept
# What rounding may do, as a part of the largest value: of products and sums in another order, in half precision,
# through a whole network in half precision
ROUNDING, HALF_ROUNDING, DEEP_ROUNDING = 1e-5, 2e-2, 1e-1
HALF = (torch.float16, torch.bfloat16)
MOVES = (torch.Tensor.to, torch.Tensor.cuda)  # a number among their arguments is the index of a GPU
LOGGER = logging.getLogger("torch._subclasses.fake_tensor")
BLANK = names("""
    empty empty_like empty_strided empty_permuted empty_quantized new_empty new_empty_strided resize_ resize_as_ new
""")
ASIDE = names("""
    embedding_bag stride storage_offset is_contiguous __get__ __set__ __delete__ device get_device manual_seed seed
    set_rng_state record_stream register_hook requires_grad_ backward retain_grad data_ptr untyped_storage storage
    share_memory_ set_ pin_memory is_pinned __deepcopy__ __reduce_ex__ __setstate__ __repr__ __format__ __dlpack__
    to_dlpack numpy __array__ __len__ __iter__ __hash__ _parse_to
""")


@dataclass(frozen=True)
class Difference:
    """Where the emulated run is not what PyTorch does: of a call or module (`name`) at a line, in one `aspect`."""

    name: str
    source: str
    aspect: str  # "value", "dtype", "shape", "device" or "error"
    emulated: str
    expected: str

    def __str__(self) -> str:
        return (
            f"{self.name}: the {self.aspect} is {self.emulated} on the emulated GPU; without the emulator it is "
            f"{self.expected}. At {code(self.source) or 'an unknown line'}"
        )


@dataclass
class Check:
    """What `record(check=True)` found: `differences`, how much was compared, and what could not be."""

    differences: list[Difference] = field(default_factory=list)
    calls: int = 0
    modules: int = 0
    left_out: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        compared = f"{self.calls} calls of torch and {self.modules} outputs of modules were compared"
        if self.left_out:
            compared += "; left out: " + ", ".join(f"{count} {what}" for what, count in self.left_out.items())
        if not self.differences:
            return f"The emulated run agrees with the CPU and with PyTorch: {compared}."
        first = "\n".join(map(str, self.differences[:10]))
        return f"The emulated run differs in {len(self.differences)} places ({compared}):\n{first}"

    __repr__ = __str__


class Checker:
    """Makes the calls of a recording again, and compares."""

    def __init__(self, session: Session) -> None:
        self.report = Check()
        self._session = session
        self._seen: Counter[tuple[Any, str]] = Counter()
        self._modules: set[int] = set()
        self._depth = 0
        self._fake = FakeTensorMode()

    # Calls

    def call(self, run: Callable[..., Any], func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make a call of torch, and see whether it is as it should be."""
        name, session = getattr(func, "__name__", str(func)), self._session
        if modes() == 0:  # torch looks at a tensor for itself, to print it
            return run(func, args, kwargs)
        if (
            name in ASIDE
            or "quantize" in name
            or session.quiet
            or session.fetching
            or session.recorder
            or isinstance(func, type)
        ):
            return run(func, args, kwargs)
        source = session.source()
        self._seen[func, source] += 1
        if self._seen[func, source] > EACH_LINE or not _is_comparable(args, kwargs):
            return run(func, args, kwargs)
        with self._aside():
            again = Again(session, func, args, kwargs)
            fakes = self._fakes(func, args, kwargs)
        try:
            result = run(func, args, kwargs)
        except (LoadervizError, _StopRecomputationError):
            raise
        except Exception as error:
            # What PyTorch refuses on a GPU is no difference, nor what autograd does, which is not asked here
            if not isinstance(fakes, type(error)) and "grad" not in str(error):
                with self._aside(), suppress(Exception):  # then it fails without us, too
                    self._differ(name, source, "error", f"{type(error).__name__}: {error}", _shown(again.result()))
            raise
        with self._aside():
            self.report.calls += 1
            self._kinds(name, source, result, fakes)
            if name not in BLANK:
                self._values(name, source, result, again)
        return result

    def _aside(self) -> AbstractContextManager[None]:
        """Our own work: no part of the program, and not checked."""
        return held(self._session, "check", None)

    def _differ(self, name: str, source: str, aspect: str, emulated: Any, expected: Any) -> None:
        difference = Difference(name, source, aspect, str(emulated), str(expected))
        if difference not in self.report.differences:
            self.report.differences.append(difference)

    def _values(self, name: str, source: str, result: Any, again: Again) -> None:
        if again.args is None:
            self.report.left_out["large values"] += 1
            return
        try:
            expected = again.result()
        except Exception:
            self.report.left_out["calls that the CPU cannot make alone"] += 1
            return
        for here, there in zip(tree_leaves(result), tree_leaves(expected), strict=False):
            if difference := _unlike(self._session, here, there, ROUNDING, HALF_ROUNDING):
                self._differ(name, source, "value", *difference)

    # Kinds

    def _fakes(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return what PyTorch answers for fake tensors on CUDA, or its error; None if nothing is asked."""
        if self._session.default_type is not CPU or not internals.is_torch_function_enabled():
            return None
        func, args = _known_to_fakes(func, args)
        LOGGER.disabled = True  # it logs each call that it has no answer to
        try:
            given = tree_map_only(torch.Tensor, self._fake.from_tensor, (args, kwargs))
            given = tree_map(lambda it: torch.device("cuda", it) if type(it) is int and func in MOVES else it, given)
            # The program's modes see nothing of it. Nothing is saved for a backward, so none of its hooks is called
            with _disable_current_modes(), torch.no_grad(), self._fake:
                return func(*given[0], **given[1])
        except Exception as error:
            return error
        finally:
            LOGGER.disabled = False

    def _kinds(self, name: str, source: str, result: Any, fakes: Any) -> None:
        for here, fake in zip(tree_leaves(result), tree_leaves(fakes), strict=False):
            if not isinstance(fake, torch.Tensor) or type(here) not in PLAIN:
                continue
            found = {"device": here.device, "dtype": here.dtype, "shape": tuple(here.shape)}
            expected = {"device": fake.device, "dtype": fake.dtype, "shape": tuple(fake.shape)}
            if any(not isinstance(size, int) for size in fake.shape):
                del expected["shape"]  # it depends on values
            for aspect, due in expected.items():
                if found[aspect] != due and (aspect, str(due)) != ("device", "cuda"):
                    self._differ(name, source, aspect, found[aspect], due)

    # Modules

    def module(self, run: Callable[..., Any], module: torch.nn.Module, args: Any, kwargs: Any) -> Any:
        """Run a module; an outermost one for the first time also on the CPU, and compare the outputs of all inside."""
        if self._depth or id(module) in self._modules or self._session.aside is not None:
            return self._deeper(run, module, args, kwargs)
        self._modules.add(id(module))
        random = torch.default_generator.get_state()
        try:
            if any(type(it) not in PLAIN for it in (*module.parameters(), *module.buffers())):
                raise TypeError("a subclass of Tensor copies itself by functions that are not seen here")
            with self._session.on_host(), self._aside():
                memo = {
                    id(it): _on_cpu(self._session, it)
                    for it in tree_leaves((args, kwargs))
                    if isinstance(it, torch.Tensor)
                }
                twin, given, named = copy.deepcopy((module, args, kwargs), memo)  # also what holds tensors, as a cache
        except Exception:  # what holds a lock, a file, or a tensor of a graph cannot be copied
            self.report.left_out["modules that cannot be copied"] += 1
            return self._deeper(run, module, args, kwargs)
        with _outputs_of(module, self._session) as found:
            result = self._deeper(run, module, args, kwargs)
        source = self._session.source()
        with self._session.on_host(), self._aside(), torch.random.fork_rng(()):
            torch.default_generator.set_state(random)
            try:
                with _outputs_of(twin, self._session) as expected, torch.no_grad():
                    twin(*given, **named)
            except Exception:
                self.report.left_out["modules that the CPU cannot run alone"] += 1
            self._compare_modules(source, found, expected)
        return result

    def _deeper(self, run: Callable[..., Any], module: Any, args: Any, kwargs: Any) -> Any:
        with held(self, "_depth", self._depth + 1):
            return run(module, *args, **kwargs)

    def _compare_modules(self, source: str, found: list[Any], expected: list[Any]) -> None:
        rounding = 10 * ROUNDING
        for (name, here, half), (_, there, _) in zip(found, expected, strict=False):
            self.report.modules += 1
            rounding = DEEP_ROUNDING if half else rounding  # for all that comes after it, too
            if difference := _unlike(self._session, here, there, rounding, DEEP_ROUNDING):
                self._differ(f"the output of module {name}", source, "value", *difference)
                return  # what comes after it is made from it


class Again:
    """A call to be made again on the CPU: copies of its arguments, and the random numbers as they were."""

    def __init__(self, session: Session, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._session, self._func = session, func
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        self.args: Any = None
        if sum(tensor.nbytes for tensor in tensors if tensor.layout is torch.strided) <= LARGEST:
            with session.on_host():
                self.args = _on_cpu(session, (args, kwargs))
        self._generators = [torch.default_generator]
        self._generators += [leaf for leaf in tree_leaves(kwargs) if type(leaf).__name__ == "Generator"]
        self._states = [generator.get_state() for generator in self._generators]

    def result(self) -> Any:
        """Make the call; the random numbers are afterwards where they were."""
        after = [generator.get_state() for generator in self._generators]
        self._restore(self._states)
        try:
            with self._session.on_host(), torch.no_grad():
                return call_on_host(self._func, *self.args)
        finally:
            self._restore(after)

    def _restore(self, states: list[Any]) -> None:
        for generator, state in zip(self._generators, states, strict=True):
            generator.set_state(state)


def _known_to_fakes(func: Any, args: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    """Return the same call by today's name, where fake tensors do not know the old one."""
    if func is torch.Tensor.type and len(args) == 2 and str(args[1]) in TYPES:
        return torch.Tensor.to, (args[0], *TYPES[str(args[1])])
    if func is torch.Tensor.new and len(args) == 2 and isinstance(args[1], list):
        return torch.Tensor.new_tensor, args
    return func, args


def _is_comparable(args: Any, kwargs: Any) -> bool:
    """Whether all tensors are torch's own, with memory: others answer for themselves."""
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    return all(type(it) in PLAIN and it.layout is torch.strided and not it.is_nested for it in tensors) and not any(
        internals.is_functorch_wrapped_tensor(tensor) for tensor in tensors
    )


def _on_cpu(session: Session, values: Any) -> Any:
    """Return copies on the CPU; those of the device are marked, since they stand for such."""

    def moved(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        result = _seen(session, value.detach()).clone()
        if is_on_device(value):
            setattr(result, STAND_IN, True)
        return result

    return tree_map(moved, values)


def _seen(session: Session, tensor: torch.Tensor) -> torch.Tensor:
    tag = tag_of(tensor)
    return copies.as_seen(session, tensor, tag) if tag is not None and tag.arrivals else tensor


@contextmanager
def _outputs_of(module: torch.nn.Module, session: Session) -> Iterator[list[tuple[str, Any, bool]]]:
    """Collect the outputs of the modules inside a module, as they come, and whether autocast was on."""
    called = {id(each): name or type(each).__name__ for name, each in module.named_modules()}
    found: list[tuple[str, Any, bool]] = []

    def note(each: Any, _: Any, output: Any) -> None:
        if id(each) in called:
            with internals.DisableTorchFunction(), internals.DisableTorchDispatch():
                kept = [_seen(session, leaf.detach()) for leaf in tree_leaves(output) if type(leaf) in PLAIN]
                half = torch.is_autocast_enabled("cuda")
                found.extend((called[id(each)], it.clone(), half) for it in kept if it.numel() <= SAMPLE)

    handle = register_module_forward_hook(note)
    try:
        yield found
    finally:
        handle.remove()


def _unlike(session: Session, here: Any, there: Any, rounding: float, of_half: float) -> tuple[str, str] | None:
    """Return two values that are not alike beyond rounding; None if there are none."""
    if not isinstance(here, torch.Tensor) or not isinstance(there, torch.Tensor):
        return None if _is_same_number(here, there) else (_shown(here), _shown(there))
    if (
        here.shape != there.shape
        or here.layout is not torch.strided
        or here.is_nested
        or there.layout is not here.layout
        or here.is_meta
        or there.is_meta
    ):
        return None  # there are no values to compare, or `_kinds` has that
    with session.on_host(), torch.no_grad():
        here, there = _seen(session, here.detach()), there.detach()
        if torch.equal(here, there) or not here.numel():
            return None
        if not (here.is_floating_point() or here.is_complex()):
            place = (here != there).flatten().nonzero()
            return _pair(here, there, place)
        half = here.dtype in HALF or there.dtype in HALF or torch.is_autocast_enabled("cuda")
        wide = torch.complex128 if here.is_complex() else torch.float64
        one, other = here.to(wide), there.to(wide)
        largest = other.abs()[other.isfinite()].max() if bool(other.isfinite().any()) else torch.zeros(())
        near = (one - other).abs() <= (of_half if half else rounding) * largest.clamp_min(1e-30)
        alike = near | (one == other) | (one.isnan() & other.isnan())
        return _pair(here, there, (~alike).flatten().nonzero())


def _pair(here: torch.Tensor, there: torch.Tensor, places: torch.Tensor) -> tuple[str, str] | None:
    if not len(places):
        return None
    place = int(places[0])
    return tuple(f"{each.flatten()[place].item()!r} (element {place})" for each in (here, there))  # type: ignore[return-value]


def _is_same_number(here: Any, there: Any) -> bool:
    if type(here) is not type(there) or not isinstance(here, (int, float, bool, complex)):
        return True  # an object of its own, which cannot be compared
    return here == there or here != here


def _shown(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)} and dtype {value.dtype}"
    return repr(value)[:80]
