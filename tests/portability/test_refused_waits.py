"""What is refused to a second thread ends the wait of the one that records, also where no signal can: on Windows."""

import subprocess
import sys

import pytest

PROGRAM = """
import contextlib, signal, threading, time
from concurrent.futures import ThreadPoolExecutor
from queue import Queue
if {without}:
    del signal.pthread_kill
import torch
import loaderviz as lv
from loaderviz.emulator.torch import patches
from loaderviz.errors import NotModelledError

patches.PATIENCE = 0.05
threading.excepthook = lambda problem: None
names = threading._allocate_lock, threading.Thread.join

def waits(wait, also=None):
    threading.Thread(target=lambda: also(torch.ones(1).to("cuda")), daemon=True).start()
    wait()

def never():
    other = threading.Thread(target=threading.Event().wait, daemon=True)
    other.start()
    other.join()

queue, event = Queue(), threading.Event()
for wait in queue.get, event.wait, threading.Barrier(2).wait, never:
    try:
        with lv.record(on="t4"):
            waits(wait, queue.put)
    except NotModelledError as error:
        print("second Python thread" in str(error), (threading._allocate_lock, threading.Thread.join) == names)

with lv.record(on="t4"):  # waits that end are as ever, however often they are looked at
    with ThreadPoolExecutor(1) as pool:
        print(pool.submit(lambda: time.sleep(0.2) or 7).result(), event.wait(0.01), queue.empty())
    sent = [threading.Thread(target=queue.put, args=(each,)) for each in range(50)]
    [each.start() for each in sent]
    print(sorted(queue.get() for _ in sent) == [*range(50)], [each.join() for each in sent].count(None))
"""


@pytest.mark.parametrize("without", [True, False])
def test_a_refusal_in_a_thread_ends_the_wait_for_it(without):
    run = [sys.executable, "-c", PROGRAM.format(without=without)]
    done = subprocess.run(run, capture_output=True, text=True, check=False, timeout=100)
    assert done.stdout.splitlines() == ["True True"] * 4 + ["7 False True", "True 50"], done.stderr
