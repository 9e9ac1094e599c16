"""Streams in backward: an operator's backward runs on the stream that its forward ran on (R17).

Autograd numbers its nodes in the order of the forward. The session remembers at which number the current stream
changed, so a node's number tells its stream. Between nodes of different streams the engine orders the one after the
other, and when backward is over the caller's stream is ordered after all of them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from loaderviz.emulator.device import Stream

if TYPE_CHECKING:
    from loaderviz.emulator.torch_cuda.session import Session

LAST_NUMBER = 2**63  # AccumulateGrad nodes have the largest number there is: they follow the node before them


class BackwardStreams:
    """Keeps the session's current stream in step with the autograd node that runs."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.used: list[Stream] = []

    def follow(self, session: Session) -> None:
        """Called before each device operator: inside backward, switch to the stream of the node's forward."""
        if len(session.stream_history) == 1:
            return  # only the default stream was ever current
        node = torch._C._current_autograd_node()
        if node is None:
            return
        number = node._sequence_nr()
        if number >= LAST_NUMBER:
            return
        history = session.stream_history
        stream = history[max(0, bisect_right(history, number, key=lambda entry: entry[0]) - 1)][1]
        if stream is not session.stream:
            session.runtime.wait_stream(stream, session.stream, asked=False)
            session.stream = stream
            if stream not in self.used:
                self.used.append(stream)

    def wrap(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap autograd's engine call: afterwards the caller's stream is current again, and ordered after the rest."""

        def run_backward(*args: Any, **kwargs: Any) -> Any:
            session, caller = self.session, self.session.stream
            outer, self.used = self.used, []
            call, session.call = session.call, (args, {})
            try:
                return run(*args, **kwargs)
            finally:
                session.stream, session.call = caller, call
                for stream in self.used:
                    if stream is not caller:
                        session.runtime.wait_stream(caller, stream, asked=False)
                self.used = outer

        return run_backward
