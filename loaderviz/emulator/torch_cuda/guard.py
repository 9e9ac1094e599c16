"""Guard: where the emulated GPU is out of reach (a second thread, a forked process), using it is an error, at the call.

The modes of a recording belong to its thread. Elsewhere a device tensor would look like a CPU tensor, and its operators
would go by unseen; the guard is a light mode that lets everything pass but what touches the device.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch.overrides import TorchFunctionMode

from loaderviz.emulator.torch_cuda.tags import is_on_device

if TYPE_CHECKING:
    from loaderviz.emulator.torch_cuda.patching import Patches
    from loaderviz.emulator.torch_cuda.session import Session

QUESTIONS: dict[Any, Any] = {
    torch.Tensor.device.__get__: torch.device("cuda", 0),
    torch.Tensor.is_cuda.__get__: True,  # type: ignore[attr-defined]
    torch.Tensor.is_cpu.__get__: False,  # type: ignore[attr-defined]
    torch.Tensor.get_device: 0,
}


class Guard(TorchFunctionMode):
    """Lets every torch function pass but those that touch the device; for these it calls `refuse`, which raises."""

    def __init__(self, refuse: Callable[[str], object]) -> None:
        super().__init__()
        self._refuse = refuse

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one function, or refuse it. Questions about a device tensor are answered, its values are out of reach."""
        if touches_device(func, args, kwargs):
            if func in QUESTIONS:
                return QUESTIONS[func]
            if getattr(func, "__name__", "") != "__get__":  # its shape, dtype, …
                self._refuse(f"torch.{getattr(func, '__name__', func)}")
        return func(*args, **(kwargs or {}))


def touches_device(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> bool:
    """Tell whether a call has to do with the device: names it, or gets a tensor that is on it."""
    if isinstance(func, type):  # torch.device("cuda") only names it
        return False
    if kwargs and _any_device(kwargs.values()):
        return True
    return func is torch.Tensor.cuda or _any_device(args)


def _any_device(values: Iterable[Any]) -> bool:
    for value in values:
        if isinstance(value, torch.Tensor):
            if is_on_device(value):
                return True
        elif isinstance(value, (list, tuple)):
            if _any_device(value):
                return True
        elif (isinstance(value, str) and value.startswith("cuda")) or (
            isinstance(value, torch.device) and value.type == "cuda"
        ):
            return True
    return False


def watch_threads(session: Session, patches: Patches) -> None:
    """Let each thread that is started while the recording runs have a guard: `session.enter` says what is wrong."""
    start = threading.Thread.start

    def guarded_start(self: threading.Thread) -> None:
        run = self.run

        def guarded() -> None:
            try:
                if session.alive:
                    with Guard(session.enter):
                        run()
                else:
                    run()
            finally:
                del self.run  # the thread's own method again

        self.run = guarded  # type: ignore[method-assign]
        start(self)

    patches.set(threading.Thread, "start", guarded_start)


def refuse_in_fork(call: str) -> NoReturn:
    """Raise what CUDA says in a forked process."""
    raise RuntimeError(
        f"{call}: Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the "
        "'spawn' start method"
    )
