"""What holds for all tests: no data from outside, a host by name, one thread for torch (faster on a busy machine), and
one seed, LOADERVIZ_SEED, from which every random draw comes: programs of hypothesis and the global generators.
"""

import gc
import itertools
import multiprocessing
import os
import random
import signal
import sys
import zlib
from collections import defaultdict

import pytest
from hypothesis import settings
from warm import Warm

from loaderviz.stopping import SIGNALS

sys.modules.setdefault("rfc3987_syntax", None)  # jsonschema, of nbformat, would make 38 grammars that nobody here needs
os.environ.setdefault("LOADERVIZ_OFFLINE", "1")
os.environ["LOADERVIZ_PROGRESS"] = "off"  # checks of tests are nobody's progress
os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # whoever uses torch's profiler first in this process
os.environ.setdefault("OMP_NUM_THREADS", "1")  # also for the processes that tests start

if (
    signal.getsignal(signal.SIGINT) == signal.SIG_IGN
):  # a shell's jobs in the background; Python's programs then ignore it
    signal.signal(signal.SIGINT, signal.default_int_handler)

START = os.environ.get("LOADERVIZ_START", "fork")  # how workers start; `make test-spawn` tries the others
if sys.platform == "linux":  # what Python 3.14 starts by default, a "forkserver", cannot send data sets local to a test
    multiprocessing.set_start_method(START, force=True)
    # What test modules import; else each worker would for itself, as spawned ones do.
    multiprocessing.set_forkserver_preload(["pytest", "torchdata.stateful_dataloader", "loaderviz.emulator.torch"])

SEED = int(os.environ.get("LOADERVIZ_SEED", "0"))  # 0: those of every run, so that a red one can be repeated
AGAIN = f"LOADERVIZ_SEED={SEED} makes the same random draws again"
settings.register_profile("seeded", derandomize=not SEED, deadline=None)
settings.load_profile("seeded")


@pytest.hookimpl(tryfirst=True)  # before hypothesis looks
def pytest_configure(config):
    if SEED:
        config.option.hypothesis_seed = str(SEED)


def pytest_collection_modifyitems(items):
    """Kernels and browsers are slow, and warn of what no test can change: loops and pipes closed when collected."""
    apart = ["DeprecationWarning", "PendingDeprecationWarning", "ResourceWarning"]
    apart += ["pytest.PytestUnraisableExceptionWarning"]
    cases = defaultdict(list)
    for item in items:
        if START != "fork" and (inherits := item.get_closest_marker("inherits")):
            item.add_marker(pytest.mark.skip(reason=f"a worker started by {START} lacks {inherits.args[0]}"))
        if item.get_closest_marker("browser") or item.get_closest_marker("notebook"):
            item.add_marker("slow")
            for warning in apart:
                item.add_marker(pytest.mark.filterwarnings(f"ignore::{warning}"))
        if item.get_closest_marker("browser") or item.get_closest_marker("this_clock"):
            item.add_marker(pytest.mark.flaky(reruns=2))
        if hasattr(item, "callspec") and not item.get_closest_marker("gpu"):
            cases[item.parent.nodeid, item.originalname].append(item)
    for same in cases.values():
        for item in set(same) - pairwise(same):
            item.add_marker("slow")


def pairwise(items):
    """Return cases of one test in which all values of each two of its parameters meet, or those that its mark names."""
    once = items[0].get_closest_marker("once_for")
    values = {item: [(name, repr(value)) for name, value in item.callspec.params.items()] for item in items}
    if once:
        meetings = {item: {item.callspec.params[once.args[0]]} for item in items}
    elif len(items[0].callspec.params) < 3:
        return set(items)
    else:
        meetings = {item: set(itertools.combinations(values[item], 2)) for item in items}
    chosen, missing = set(), set().union(*meetings.values())
    while missing:
        best = max(items, key=lambda item: len(meetings[item] & missing))
        chosen.add(best)
        missing -= meetings[best]
    return chosen


def pytest_collection_finish():
    """What is imported by now stays: Python's collector, which would go through torch again and again, lets it be."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item, nextitem):
    """So does what a file's tests have imported, such as torch._dynamo: recordings with threads, and forks, collect."""
    if nextitem is None or nextitem.path != item.path:
        pytest_collection_finish()


@pytest.fixture(autouse=True)
def signals():
    """Programs that tests run in this process, such as launchers of ranks, may handle signals, and go on doing so."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        if signal.getsignal(number) is not handler:
            signal.signal(number, handler)


@pytest.fixture
def uncollected():
    """What the test lets go of is gone at once, or it lies in a cycle: Python does not look for cycles."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


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


COMMANDS = ("torch.utils.data", "loaderviz.cli", "loaderviz.recording", "loaderviz.emulator.torch", "loaderviz.view",
            "loaderviz.analysis.advice")  # fmt: skip
KERNELS = ("ipykernel.ipkernel", "torch._dynamo", "pandas", "ipywidgets", "anywidget", "loaderviz.recording",
           "loaderviz.emulator.torch", "loaderviz.view")  # fmt: skip


@pytest.fixture(scope="session")
def warm(tmp_path_factory):
    made = Warm(tmp_path_factory.mktemp("warm"), *COMMANDS)
    yield made
    made.close()


@pytest.fixture(scope="session")
def new_python(tmp_path_factory):
    """Python as it is when it has imported torch: loaderviz is imported in it anew."""
    made = Warm(tmp_path_factory.mktemp("python"), "torch._dynamo", "torch.utils.data")
    yield made
    made.close()


@pytest.fixture(scope="session")
def kernels(tmp_path_factory):
    """Kernels that have imported by the time they start what lessons import."""
    pytest.importorskip("ipykernel", reason="ipykernel is missing: pip install -r requirements.txt")
    made = Warm(tmp_path_factory.mktemp("kernels"), *KERNELS)
    with pytest.MonkeyPatch.context() as patch:
        if sys.platform == "linux":
            patch.setenv("JUPYTER_PATH", made.kernels())
        yield
    made.close()


@pytest.fixture(scope="session", autouse=True)
def named_host():
    """Give timelines the same nanoseconds on every machine, where a test names no host: "auto" would measure here."""
    from loaderviz.recording import record

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(record.__kwdefaults__, "host", "laptop")
        yield


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """No test takes so long that its program says how far it is: what is printed is the same on a busy machine."""
    from loaderviz import progress

    monkeypatch.setattr(progress, "AFTER", float("inf"))
