"""Every timeline that any test of the emulator makes must pass `self_check()`."""

import pytest

from loaderviz.emulator.runtime import Runtime


@pytest.fixture(autouse=True, scope="session")
def every_timeline_is_well_made():
    original = Runtime.timeline

    def timeline(self, context=None):
        return original(self, context).self_check()

    Runtime.timeline = timeline
    yield
    Runtime.timeline = original
