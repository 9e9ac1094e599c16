"""After a recording everything is as it was; between two recordings nothing leaks, and what stays goes on working."""

import contextlib
import gc
import os
import pkgutil
import queue
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
import traceback
import types
import weakref

import factory
import pytest
import torch
from programs import mlp, train
from torch.utils.data import DataLoader, TensorDataset

import loaderviz as lv
from loaderviz import recording
from loaderviz.emulator import device
from loaderviz.emulator.hardware import GPUS, HOSTS
from loaderviz.emulator.runtime import CudaError
from loaderviz.emulator.torch import EmulatedCuda, patches
from loaderviz.emulator.torch.patches import Patches
from loaderviz.emulator.torch.session import NoRecordingError, Session
from loaderviz.loaders import PrefetchLoader
from loaderviz.timeline import Kind

OWNERS = """
    torch torch.cuda torch.cuda.graphs torch.cuda.graph torch.cuda.memory torch.cuda.streams torch.cuda.random
    torch.cuda.nvtx torch.cuda.profiler torch.cuda.Stream torch.cuda.Event torch.accelerator torch.Tensor torch.nn
    torch.nn.attention torch.nn.functional torch.nn.parallel.DistributedDataParallel torch.nested torch.distributed
    torch.UntypedStorage torch.storage._StorageBase torch._C torch.overrides torch.amp torch.amp.autocast_mode.autocast
    torch.autograd.graph torch.autograd.profiler.record_function torch.autograd.profiler.profile torch.backends.cuda
    torch.backends.cudnn torch.serialization torch.utils._foreach_utils torch._tensor torch.jit._builtins
    torch.autograd.graph.saved_tensors_hooks torch.compiler torch._dynamo.eval_frame torch.utils.data.dataloader
    torch.utils.data.DataLoader torch.utils.data.dataloader._SingleProcessDataLoaderIter
    torch.utils.data.dataloader._MultiProcessingDataLoaderIter torch.utils.data._utils.worker
    torch.utils.data._utils.pin_memory time timeit threading.Thread loaderviz.loaders.base
"""
OWNERS = (*map(pkgutil.resolve_name, OWNERS.split()), sys.modules[__name__])


def snapshot():
    """Return every attribute of everything that a recording replaces (and of a good deal more)."""
    # Python 3.12 and later warn of a fork beside threads, and note the warning in the module that forks.
    own = {owner: {k: v for k, v in vars(owner).items() if k != "__warningregistry__"} for owner in OWNERS}
    own["registry"] = list(torch.serialization._package_registry)
    own["modes"] = torch.overrides._get_current_function_mode_stack(), torch._C._len_torch_dispatch_stack()
    return own


def differences(before, after):
    return [
        (getattr(owner, "__name__", owner), name)
        for owner, names in before.items()
        if isinstance(names, dict)
        for name in names.keys() | after[owner].keys()
        if names.get(name) is not after[owner].get(name) and not isinstance(names.get(name), types.MappingProxyType)
    ]


def use_everything():
    train("cuda", num_workers=1, pin_memory=True)
    with torch.autocast("cuda"), torch.cuda.stream(torch.cuda.Stream()):
        torch.ones(1, device="cuda").item()


def test_everything_is_restored():
    lv.record(on="a100").__enter__().__exit__(None, None, None)  # what is imported at the first use is there now
    with lv.record(on="a100"):
        use_everything()
    before = snapshot()
    with lv.record(on="a100"):
        inside = snapshot()
        use_everything()
    after = snapshot()
    assert len(differences(before, inside)) > 100
    assert differences(before, after) == []
    assert before["registry"] == after["registry"]
    assert before["modes"] == after["modes"] == ([], 0)


def test_everything_is_restored_after_an_error_and_when_the_beginning_fails(monkeypatch):
    before = snapshot()
    with pytest.raises(CudaError), lv.record(on="a100"):
        torch.ones(1, device="cuda:3")
    assert differences(before, snapshot()) == []
    monkeypatch.setattr(EmulatedCuda, "_install", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        lv.record(on="a100").__enter__()
    assert (Session.active, differences(before, snapshot())) == (None, [])
    monkeypatch.undo()
    with lv.record(on="a100"):
        assert torch.ones(1, device="cuda").is_cuda


INTERRUPTS = 18  # of a recording


def copies_and_products():
    x = torch.ones(64, 8).pin_memory().to("cuda", non_blocking=True).requires_grad_()
    for _ in range(4):
        (x @ x.T).sum().backward()
    torch.cuda.synchronize()


def in_two_threads():
    ready = queue.Queue(1)
    threading.Thread(target=lambda: [ready.put(torch.ones(64).to("cuda")) for _ in range(4)], daemon=True).start()
    assert [ready.get(timeout=5).sum().item() for _ in range(4)] == [64] * 4


def short_recording(block=copies_and_products):
    with lv.record(on="a100"):
        block()


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="each interrupt has a process of its own, by fork")
@pytest.mark.parametrize("block", [copies_and_products, in_two_threads])
def test_an_interrupt_at_any_moment_leaves_nothing_behind(block):
    """At random moments of entering, the block and leaving, each in a fork of this process."""
    short_recording(block)
    before = snapshot()
    # The moments move to what a fork needs here and now, which no measurement beforehand can tell: it copies memory.
    within, ends = 1.0, []
    while ends.count("interrupted") < INTERRUPTS and len(ends) < 40 * INTERRUPTS:
        ends.append(_in_fork(_interrupt_here, before, random.uniform(1e-6, within), block))
        within *= 1.1 if ends[-1] == "interrupted" else 0.8
        assert ends[-1] in ("interrupted", "ran to its end"), ends[-1]
    assert ends.count("interrupted") == INTERRUPTS


def _in_fork(function, *arguments):
    """Return the text that a function returns in a fork of this process, or its traceback."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            end = function(*arguments)
        except BaseException:
            end = f"{arguments[1:]}: {traceback.format_exc()}"
        os.write(writer, end.encode())
        os._exit(0)
    os.close(writer)
    with open(reader, "rb") as pipe:
        end = pipe.read().decode()
    os.waitpid(child, 0)
    return end


def _interrupt_here(before, moment, block):
    """Interrupt a recording after `moment` s; return how it ended, or raise AssertionError for what is left."""
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    end = "ran to its end"
    try:
        signal.setitimer(signal.ITIMER_REAL, moment)
        short_recording(block)
        signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        end = "interrupted"
    now = snapshot()
    assert differences(before, now) == []
    assert (now["modes"], now["registry"]) == (before["modes"], before["registry"])
    x = torch.ones(3, 3, requires_grad=True)
    (x @ x).sum().backward()
    assert x.grad.tolist() == [[6.0] * 3] * 3
    short_recording(block)
    assert not differences(before, snapshot())
    return end


@pytest.mark.parametrize("part", ["entering", "leaving"])
def test_an_interrupt_at_lines_of_entering_and_leaving_leaves_nothing_behind(part):
    short_recording()
    before = snapshot()
    lines = _run_lines(part, -1)
    for stop in (*range(1, 20), *range(20, lines, lines // 20)):
        with pytest.raises(KeyboardInterrupt):
            _run_lines(part, stop)
        assert (Session.active, differences(before, snapshot())) == (None, []), stop
        assert snapshot()["modes"] == before["modes"], stop
    short_recording()


def test_an_interrupt_in_a_step_of_the_device_costs_what_is_on_it_and_no_more():
    with lv.record(on="a100"):
        lines = _run_lines("device", -1)
    for stop in range(1, lines, lines // 40):
        with lv.record(on="a100") as stopped, contextlib.suppress(KeyboardInterrupt):
            _run_lines("device", stop)
        assert list(stopped.timeline.self_check().rows(Kind.OPERATOR)), stop


def _run_lines(part, stop):
    """Enter and leave a recording; return how many lines of ours that took. Raise KeyboardInterrupt at line `stop`."""
    count, tracing = 0, sys.gettrace()
    modules = recording, sys.modules[EmulatedCuda.__module__], sys.modules[Patches.__module__]
    ours = [module.__file__ for module in (modules if part != "device" else [device])]

    def trace(frame, event, _):
        nonlocal count
        if frame.f_code.co_filename not in ours:
            return None
        count += 1
        if count == stop:
            sys.settrace(tracing)
            raise KeyboardInterrupt
        return trace

    try:
        if part != "leaving":
            sys.settrace(trace)
        if part == "device":
            copies_and_products()
        else:
            with lv.record(on="a100"):
                sys.settrace(trace if part == "leaving" else tracing)
    finally:
        sys.settrace(tracing)
    return count


def test_an_interrupt_before_the_first_line_of_leaving_is_not_too_early(monkeypatch):
    """Where Python calls `__exit__`, before any `try` in it: as it lets go of the recording, that ends all the same."""
    before = snapshot()

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(recording._WayOut, "__call__", interrupted)
    with pytest.raises(KeyboardInterrupt), lv.record(on="a100") as stopped:
        torch.ones(3, device="cuda")
    assert not differences(before, snapshot())
    assert Session.active is None
    assert len(stopped.timeline)


def test_looking_at_the_way_out_does_not_take_it():
    with lv.record(on="a100") as running:
        assert callable(running.__exit__)
        assert torch.ones(3, device="cuda").is_cuda
    with contextlib.ExitStack() as stack:
        stack.enter_context(lv.record(on="a100"))
        assert torch.ones(3, device="cuda").is_cuda
    assert Session.active is None


# What is set and is no stand-in: values, and what is sent to another process or thread by its name.
NO_FUNCTIONS = """
    _worker_loop _pin_memory_loop _loaderviz_tag _package_registry default_generators default_capture_stream _stance
    _streams _is_in_torch_dispatch_mode _is_in_non_infra_torch_dispatch_mode _tensor_classes avoid_device_init
    _is_in_any_mode_without_ignore_compile_internals device is_cuda is_cpu cuda _has_cudnn _cudart nvmlLib
    _nvmlGetFunctionPointer_cache default_pg_nccl_timeout _global_shutdown_lock __defaults__
"""


def test_every_replacement_does_what_its_name_does_when_the_recording_is_over(monkeypatch):
    """So that whoever kept one (a default argument, a closure, an import inside the block) goes on working."""
    kept, put = [], Patches.set

    def spy(self, owner, name, value):
        there = put(self, owner, name, value)
        kept.append((owner, name, there))
        return there

    monkeypatch.setattr(Patches, "set", spy)
    with lv.record(on="a100"):
        pass
    stand_ins = [entry for entry in kept if isinstance(entry[2], (types.FunctionType, type))]
    others = {name for _, name, there in kept if not isinstance(there, staticmethod)}
    others -= {name for _, name, _ in stand_ins}
    assert {"_worker_loop", "_pin_memory_loop"} <= others <= set(NO_FUNCTIONS.split())
    assert len(stand_ins) > 150
    for owner, name, stand_in in stand_ins:
        if not hasattr(owner, name) or getattr(stand_in, "stands_alone", False):
            continue  # this build of torch has none to go on with; or it goes on as the class that it stood in for
        now = types.SimpleNamespace() if isinstance(stand_in, type) else None
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, lambda *args, now=now, **kwargs: (now, args, kwargs))
            assert stand_in(1, two=2) == (now, (1,), {"two": 2}), name
        assert getattr(owner, name) is not stand_in


NAMES = "initial_seed, seed, seed_all, manual_seed, manual_seed_all, device, device_of, stream, Stream, synchronize"


@pytest.mark.parametrize("older", [False, True])
def test_a_name_imported_inside_a_block_works_after_it_and_in_the_next(older, monkeypatch):
    """In a module that is imported inside, and in one that is older than the recording, as a notebook is."""
    notebook = types.ModuleType("notebook")
    notebook.nothing = ()  # as torch.cuda.default_generators is without a GPU
    if older:
        monkeypatch.setitem(sys.modules, "notebook", notebook)
    with lv.record(on="a100"):
        assert notebook.nothing == ()
        imports = f"from torch import Generator, initial_seed as host_seed\nfrom torch.cuda import {NAMES}"
        exec(f"{imports}, is_available, Event\nfrom time import time", vars(notebook))
        monkeypatch.setitem(sys.modules, "notebook", notebook)
        held = time.perf_counter
        assert notebook.is_available() and isinstance(notebook.Event(), notebook.Event)
    if not older:  # all its names are the real ones again, those of stand-ins that are equal, too
        assert (notebook.time, notebook.host_seed) == (time.time, torch.initial_seed)
        names = NAMES.split(", ")
        assert [getattr(notebook, name) for name in names] == [getattr(torch.cuda, name) for name in names]
    assert abs(held() - time.perf_counter()) < 60  # a clock that was kept is a real one now
    assert notebook.is_available() == torch.cuda.is_available()
    assert abs(notebook.time() - time.time()) < 60
    assert type(notebook.Generator()) is torch.Generator and isinstance(torch.Generator(), notebook.Generator)
    assert not isinstance(3, notebook.Event)
    with lv.record(on="a100"):
        assert notebook.is_available() and isinstance(notebook.Event(), torch.cuda.Event)
        before = notebook.time()
        time.sleep(1000)
        assert notebook.time() - before >= 1000


def test_the_emulators_objects_say_so_outside_a_recording():
    with lv.record(on="a100"):
        stream, event = torch.cuda.Stream(), torch.cuda.Event()
    for call in (stream.synchronize, event.record, lambda: stream.wait_event(event), stream.__enter__):
        with pytest.raises(NoRecordingError, match="recording has ended"):
            call()


def test_what_stays_on_the_device_goes_on_in_the_next_recording():
    with lv.record(on="a100"):
        model = mlp().to("cuda")
        optimizer = torch.optim.Adam(model.parameters())
        stream, event = torch.cuda.Stream(), torch.cuda.Event(enable_timing=True)
        event.record(stream)
        values, pinned = torch.ones(2**18, device="cuda"), torch.ones(10).pin_memory()
    with lv.record(on="a100") as recording:
        assert torch.cuda.memory_allocated() == 0
        assert values.is_cuda
        assert pinned.is_pinned()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            model(values[:144][None]).sum().backward()
        assert event.query()
        torch.cuda.current_stream().wait_stream(stream)
        optimizer.step()
        assert pinned.to("cuda", non_blocking=True).sum().item() == 10
        assert torch.cuda.memory_allocated() > 2**18
        stream.synchronize()
    assert 13 in {span.lane.number for span in recording.timeline.rows(Kind.COMPUTE)}


def test_what_stays_on_the_device_costs_nothing_in_the_next_recording():
    with lv.record(on="a100"):
        there = [torch.ones(2**19, device="cuda") for _ in range(3)]
    with lv.record(on="a100") as recording:
        assert sum(tensor.sum().item() for tensor in there) == 3 * 2**19
    reserved = [span.nbytes for span in recording.timeline.rows() if span.name == "cudaMalloc"]
    assert reserved == [2 * 2**20]  # for the results only


def test_one_loader_may_be_used_in_several_recordings():
    loader = PrefetchLoader(DataLoader(TensorDataset(torch.arange(12.0)), 4), "cuda")
    epochs = []
    for _ in range(3):
        with lv.record(on="a100"):
            epochs.append([batch.tolist() for (batch,) in loader])
    assert epochs[0] == epochs[1] == epochs[2]


def test_nothing_is_kept_alive():
    with lv.record(on="a100") as recording:
        train("cuda", pin_memory=True)
        session = weakref.ref(Session.active)
        storage = torch.ones(3, device="cuda").untyped_storage()
        tag = weakref.ref(storage._loaderviz_tag)
        del storage
        assert tag() is None
        for _ in range(3):
            torch.ones(2**20, device="cuda").to("cpu", non_blocking=True)  # results that nobody waits for
        gc.collect()
        assert torch.cuda.memory_allocated() == 0
        assert Session.active.pinned.ledger.figures()["allocated_bytes"]["all"].current == 0
    timeline = recording.timeline
    del recording
    assert factory.are_gone(session)
    assert len(timeline)


def test_a_forked_process_can_go_on_without_the_recording():
    context = torch.multiprocessing.get_context("fork")
    with lv.record(on="a100") as recording:
        results = context.SimpleQueue()
        process = context.Process(target=_in_child, args=(results,))
        process.start()
        answer = results.get()
        process.join()
    assert answer == (False, 3.0, "builtin_function_or_method")
    assert len(recording.timeline) == 0


def _in_child(results):
    time.sleep(0)
    results.put((torch.cuda.is_available(), torch.ones(3).sum().item(), type(time.perf_counter).__name__))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="what a fork may do")
def test_an_interrupt_while_a_fork_forgets_the_recording_comes_after_it(capfd):
    """Python drops an error of what it calls after a fork, and says so."""
    code = 1
    with lv.record(on="a100"):
        recorded = EmulatedCuda._running._patches
        parents, restore = os.getpid(), recorded.restore

        def interrupted():
            if os.getpid() != parents:
                signal.raise_signal(signal.SIGINT)
            restore()

        recorded.restore = interrupted
        if not (child := os.fork()):
            try:
                time.sleep(5)
            except KeyboardInterrupt:
                code = 0 if Session.active is None and not torch.cuda.is_available() else 2
            finally:
                os._exit(code)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert (status, capfd.readouterr().err) == (0, "")


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="what a fork may do")
def test_a_fork_after_a_recording_may_run_backward():
    """Torch forbids it once its engine has started a thread for a device; our guard for fake tensors is none."""
    code = """
    import os, torch, loaderviz as lv
    with lv.record(on="a100"):
        x = torch.ones(3, device="cuda", requires_grad=True)
        x.sum().backward()
    if child := os.fork():
        raise SystemExit(os.waitpid(child, 0)[1])
    x = torch.ones(3, requires_grad=True)
    x.sum().backward()
    os._exit(0)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True)


def test_modules_that_a_program_imports_are_found_without_a_look_at_each(monkeypatch):
    """A forked worker gets a page of memory of its own for each name that it looks at."""

    class Looked(set):
        looks = 0

        def __contains__(self, name):
            self.looks += 1
            return super().__contains__(name)

    known = {f"known{number}": None for number in range(500)}
    modules, loaded = dict(known), Looked(known)
    monkeypatch.setattr(patches, "sys", types.SimpleNamespace(modules=modules))
    assert patches._imported_since(loaded) == {"__main__"} and loaded.looks < 50
    modules["one"] = None
    modules["known3"] = modules.pop("known3")  # imported anew, among others
    modules |= {"two": None, "three.four": None}
    del modules["known7"]
    assert patches._imported_since(loaded) == {"__main__", "one", "two", "three.four"}
    assert patches._imported_since(set()) == {"__main__", *modules}


def test_what_one_recording_does_not_replace_the_next_one_does():
    module, lock, synchronize = types.ModuleType("of_an_installed_package"), threading.Lock, torch.cuda.synchronize
    module.__file__, module.Lock, module.wait = patches.INSTALLED + "/it.py", lock, synchronize
    sys.modules[module.__name__] = module
    try:
        seen = []
        for threads in (False, True, False, True):
            with EmulatedCuda(GPUS["a100"], HOSTS["laptop"], threads=threads):
                seen.append((module.Lock is not lock, module.wait is not synchronize))
            assert (module.Lock, module.wait) == (lock, synchronize)
        assert seen == [(threads, True) for threads in (False, True, False, True)]
        module.again = synchronize  # a name that it did not have
        with lv.record(on="a100"):
            assert module.again is torch.cuda.synchronize is not synchronize
        assert module.again is synchronize
    finally:
        del sys.modules[module.__name__]


def test_what_stands_in_for_a_function_does_so_again_and_keeps_nothing_of_a_recording():
    stand_ins, sessions, synchronize = [], [], torch.cuda.synchronize
    for _ in range(3):
        with lv.record(on="a100"):
            stand_ins.append(torch.cuda.synchronize)
            sessions.append(weakref.ref(Session.active))
    assert stand_ins[0] is stand_ins[1] is stand_ins[2] is not synchronize
    assert factory.are_gone(*sessions)


def test_what_a_program_put_there_between_two_recordings_is_what_acts_after_the_next(monkeypatch):
    with lv.record(on="a100"):
        kept = torch.cuda.ipc_collect
    monkeypatch.setattr(torch.cuda, "ipc_collect", lambda: "the program's own")
    assert kept() == torch.cuda.ipc_collect() == "the program's own"
    with lv.record(on="a100"):
        other = torch.cuda.ipc_collect
        assert kept() is other() is None
    assert kept() == other() == "the program's own"
