"""The one family of exceptions: each message says what was wrong, with the value, and what to do next."""

from __future__ import annotations


class LoadervizError(Exception):
    """Base class of everything that loaderviz raises on purpose."""


class NotModelledError(LoadervizError, NotImplementedError):
    """The emulated device does not model this call; the message names the call and a way out."""


class NestedRecordingError(LoadervizError, RuntimeError):
    """A recording was begun inside another one, or a second time."""
