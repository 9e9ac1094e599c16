"""What holds for all tests: no data from outside, a host by name, one thread for torch (faster on a busy machine)."""

import os

import pytest
from hypothesis import settings

os.environ.setdefault("LOADERVIZ_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # also for the processes that tests start

# The same random programs in every run, so that a red run can be repeated; HYPOTHESIS_PROFILE=search tries new ones.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("search", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


@pytest.fixture(scope="session", autouse=True)
def named_host():
    """Give timelines the same nanoseconds on every machine, where a test names no host: "auto" would measure here."""
    from loaderviz.recording import record

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(record.__kwdefaults__, "host", "laptop")
        yield
