"""What holds for all tests: no data from outside, a host by name, one thread for torch (faster on a busy machine), and
one seed, LOADERVIZ_SEED, from which every random draw comes: programs of hypothesis and the global generators.
"""

import multiprocessing
import os
import random
import sys
import zlib

import pytest
from hypothesis import settings

os.environ.setdefault("LOADERVIZ_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # also for the processes that tests start

if sys.platform == "linux":  # what Python 3.14 starts by default, a "forkserver", cannot send data sets local to a test
    multiprocessing.set_start_method("fork", force=True)

SEED = int(os.environ.get("LOADERVIZ_SEED", "0"))  # 0: those of every run, so that a red one can be repeated
AGAIN = f"LOADERVIZ_SEED={SEED} makes the same random draws again"
settings.register_profile("seeded", derandomize=not SEED, deadline=None)
settings.load_profile("seeded")


@pytest.hookimpl(tryfirst=True)  # before hypothesis looks
def pytest_configure(config):
    if SEED:
        config.option.hypothesis_seed = str(SEED)


def pytest_collection_modifyitems(items):
    """Kernels and browsers warn of what no test can change: event loops and pipes that are closed when collected."""
    apart = ["DeprecationWarning", "PendingDeprecationWarning", "ResourceWarning"]
    apart += ["pytest.PytestUnraisableExceptionWarning"]
    for item in items:
        if item.get_closest_marker("browser") or item.get_closest_marker("notebook"):
            for warning in apart:
                item.add_marker(pytest.mark.filterwarnings(f"ignore::{warning}"))


def pytest_report_header():
    return AGAIN


def pytest_terminal_summary(terminalreporter):
    if terminalreporter.stats.get("failed"):
        terminalreporter.write_line(AGAIN)


@pytest.fixture(autouse=True)
def seeded(request):
    """Draws from the global generators are those of this test, whatever ran before it."""
    number = zlib.crc32(f"{SEED} {request.node.nodeid}".encode())
    random.seed(number)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(number)


@pytest.fixture(scope="session", autouse=True)
def named_host():
    """Give timelines the same nanoseconds on every machine, where a test names no host: "auto" would measure here."""
    from loaderviz.recording import record

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(record.__kwdefaults__, "host", "laptop")
        yield
