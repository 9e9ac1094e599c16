"""Workers that are spawned, and kept for the next loader: the same batches and times, and no more processes."""

import multiprocessing
import os
import signal
import sys
import textwrap
import time
from multiprocessing import popen_spawn_posix
from pathlib import Path

import datasets_kept
import pytest
import torch
from torch.utils.data import ChainDataset, ConcatDataset, DataLoader, Subset, TensorDataset

import loaderviz as lv
from loaderviz.emulator import kept

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.name != "posix", reason="counts processes as POSIX starts them")]
NUMBERS = TensorDataset(torch.arange(64.0).reshape(16, 4), torch.arange(16))


@pytest.fixture
def started(monkeypatch):
    """The numbers of the processes that are started."""
    kept.dismiss()
    numbers, launch = [], popen_spawn_posix.Popen._launch

    def counting(popen, process):
        launch(popen, process)
        numbers.append(popen.pid)

    monkeypatch.setattr(popen_spawn_posix.Popen, "_launch", counting)
    monkeypatch.setattr(kept, "KNOWN", kept.KNOWN | {"datasets_kept"})
    yield numbers
    kept.dismiss()


def told_by(dataset, options, method):
    """Return the batches of a loader, and the rows of the timeline."""
    options = options | ({"multiprocessing_context": method} if options["num_workers"] else {})
    with lv.record(on="a100", host="laptop") as recording:
        batches = str(list(DataLoader(dataset, 4, **options)))
    return batches, list(recording.timeline.rows())


def test_loaders_of_one_program_share_workers_and_nothing_else_changes(started):
    """Other data sets, hosts, depths and seeds; with two workers, then one, then three; a recording without any."""
    settings = [
        (NUMBERS, {"num_workers": 2}),
        (Subset(NUMBERS, [5, 3, 8, 1, 2]), {"num_workers": 1, "prefetch_factor": 5, "pin_memory": True}),
        (NUMBERS, {"num_workers": 0}),
        (ConcatDataset([NUMBERS, TensorDataset(torch.zeros(3, 4), torch.zeros(3))]), {"num_workers": 3}),
        (NUMBERS, {"num_workers": 2, "persistent_workers": True, "in_order": False}),
        (TensorDataset(torch.zeros(0)), {"num_workers": 1}),
    ]
    spawned = [told_by(*each, "spawn") for each in settings]
    assert len(started) == 3
    assert spawned == [told_by(*each, "fork") for each in settings]


@pytest.mark.parametrize(
    ("dataset", "collate"),
    [
        (ConcatDataset([Subset(datasets_kept.Squares(), [0, 1])]), None),
        (NUMBERS, datasets_kept.collate),
        (ChainDataset([datasets_kept.Counting()]), None),
    ],
)
def test_a_worker_that_gets_what_a_program_defines_is_new_each_time(started, monkeypatch, dataset, collate):
    monkeypatch.setattr(kept, "KNOWN", kept.KNOWN - {"datasets_kept"})
    told_by(NUMBERS, {"num_workers": 1}, "spawn")
    (idle, _), *_ = kept._idle
    for _ in range(2):
        told_by(dataset, {"num_workers": 1, "collate_fn": collate}, "spawn")
    assert len(started) == 3 and not kept._idle
    assert idle.poll() == 0  # what was kept made room


def test_a_sleep_is_counted_once_by_the_worker_that_has_the_work(started):
    slow = datasets_kept.Slow()
    times = [told_by(slow, {"num_workers": 1}, "spawn")[1] for _ in range(3)]
    assert times[0] == times[1] == times[2] and len(started) == 1


def test_what_a_worker_raises_is_told_and_the_process_goes_on(started):
    for _ in range(2):
        with pytest.raises(ValueError, match="no sample 3"), lv.record(on="a100", host="laptop"):
            list(DataLoader(datasets_kept.Broken(), 2, num_workers=1, multiprocessing_context="spawn"))
    assert len(started) == 1


def test_batches_that_nobody_takes_keep_no_one_waiting(started):
    """Their pickled bytes fill the pipe, so that a thread of the worker is left: it is not kept."""
    for _ in range(2):
        with lv.record(on="a100", host="laptop"):
            options = {"num_workers": 1, "multiprocessing_context": "spawn", "collate_fn": datasets_kept.as_bytes}
            loader = DataLoader(datasets_kept.Wide(), 2, **options)
            next(iter(loader))
            del loader
    assert told_by(NUMBERS, {"num_workers": 1}, "spawn") == told_by(NUMBERS, {"num_workers": 1}, "fork")


def test_a_kept_process_that_dies_or_is_tired_of_waiting_is_replaced(started, monkeypatch):
    once = told_by(NUMBERS, {"num_workers": 1}, "spawn")
    os.kill(started[0], signal.SIGKILL)
    monkeypatch.setattr(kept, "IDLE", 0.01)
    assert told_by(NUMBERS, {"num_workers": 1}, "spawn") == once
    kept._idle[0][0].wait(60)
    assert told_by(NUMBERS, {"num_workers": 1}, "spawn") == once
    assert len(started) == 3


def test_a_kept_process_that_does_not_answer_is_replaced(started, monkeypatch):
    once = told_by(NUMBERS, {"num_workers": 1}, "spawn")
    os.kill(started[0], signal.SIGSTOP)
    monkeypatch.setattr(kept, "PATIENCE", 0.1)
    assert told_by(NUMBERS, {"num_workers": 1}, "spawn") == once and len(started) == 2


def test_a_forked_child_leaves_what_its_parent_keeps(started):
    told_by(NUMBERS, {"num_workers": 1}, "spawn")
    (real, _), *_ = kept._idle
    child = multiprocessing.get_context("fork").Process(target=kept.dismiss)
    child.start()
    child.join()
    assert child.exitcode == 0 and real.poll() is None
    told_by(NUMBERS, {"num_workers": 1}, "spawn")
    assert len(started) == 1


def test_without_a_recording_each_worker_is_new(started):
    for _ in range(2):
        list(DataLoader(NUMBERS, 4, num_workers=1, multiprocessing_context="spawn"))
    assert len(started) == 2 and not kept._idle


@pytest.mark.parametrize("ending", ["pass", "os._exit(0)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_no_process_outlives_the_program(tmp_path, new_python, ending):
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(f"""
        import os, signal, torch, loaderviz
        from loaderviz.emulator import kept
        from torch.utils.data import DataLoader, TensorDataset
        if __name__ == "__main__":
            with loaderviz.record(on="a100", host="laptop"):
                list(DataLoader(TensorDataset(torch.ones(8)), 2, num_workers=2, multiprocessing_context="spawn"))
            print(*[real.pid for real, _ in kept._idle], flush=True)
            {ending}
        """)
    )
    done = new_python.run(program, folder=tmp_path)
    numbers = [int(number) for number in done.stdout.split()]
    told = done.stderr.splitlines()
    if ending != "pass":  # then nobody unlinks the semaphores of a queue that was not collected yet
        told = [line for line in told if "leaked semaphore" not in line and "warnings.warn(" not in line]
    assert len(numbers) == 2 and not told
    until = time.monotonic() + 60
    while any(map(lives, numbers)) and time.monotonic() < until:
        time.sleep(0.1)
    assert not any(map(lives, numbers))


def lives(number):
    """Tell whether a process runs; one that nobody has asked after has ended, too."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{number}/status").read_text()
    except OSError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is imported before a fork")
def test_a_fork_server_has_ready_what_workers_import_and_knows_no_cuda(tmp_path, new_python):
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent("""
        import multiprocessing, sys
        def child():
            print("loaderviz.emulator.torch.dataloader" in sys.modules, "torch._dynamo" in sys.modules, flush=True)
            torch.ones(1).cuda()
        if __name__ == "__main__":
            import loaderviz
            from torch.utils.data import DataLoader, TensorDataset
        import torch
        if __name__ == "__main__":
            with loaderviz.record(on="a100", host="laptop"):
                options = {"num_workers": 1, "multiprocessing_context": "forkserver"}
                print(sum(each.sum().item() for each, in DataLoader(TensorDataset(torch.ones(8)), 2, **options)))
                process = multiprocessing.get_context("forkserver").Process(target=child)
                process.start()
                process.join()
        """)
    )
    done = new_python.run(program, folder=tmp_path)
    assert done.stdout.split() == ["8.0", "True", "False"]
    assert "CUDA in a spawned process: the emulated GPU is in the process that is recorded" in done.stderr
