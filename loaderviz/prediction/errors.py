"""What cannot be predicted."""

from __future__ import annotations

from loaderviz.errors import LoadervizError


class WhatIfError(LoadervizError, ValueError):
    """A timeline, or a change, of which nothing can be predicted; the message says what is missing."""
