# ---
# jupyter:
#   jupytext:
#     cell_metadata_filter: tags,-all
#     notebook_metadata_filter: kernelspec,jupytext
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#       jupytext_version: 1.19.6
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 6. Workers
#
# ![A loop with a DataLoader: two workers fetch batches ahead, a thread pins them, the main thread takes them, and
# the GPU copies and computes.](pictures/06_workers.png)
#
# **The question of this lesson: who makes the batches, and how many workers are enough?**
#
# In lessons 1 to 3 the batches were ready before the loop began. In a real training somebody has to read, decode and
# collect the samples. After this lesson you can name the station that sets the pace, and compute how many workers are
# enough.
#
# Time: about 30 minutes. Before it: [5. Find the bug](05_find_the_bug.ipynb).

# %%
from dataclasses import replace

import torch
from torch.utils.data import DataLoader, Subset, TensorDataset

import loaderviz as lv
from loaderviz import mnist, words
from loaderviz.emulator import Gpu, Host
from loaderviz.experiment import Images, as_it_is
from loaderviz.loaders import PrefetchLoader
from loaderviz.workshop import lesson06, predict
from loaderviz.workshop.loop import gpu_milliseconds, new_model, show_code, train_step

# %% [markdown]
# ## The data, the machine and the loop
#
# MNIST in host memory, as float32. A `DataLoader` takes one sample after the other and puts them together. Our network
# is tiny, so the GPU that we emulate is slow; the memory of its host is slow, too, so that you can see what pinning
# costs. The zeros stand for a training that has run for a while: its memory is allocated and page-locked already (R44).


# %%
def train(loader, read_loss=False):
    """Train on all batches of a loader; a side stream copies them ahead, as in lesson 3."""
    model, optimizer = new_model(hidden=96)
    for x, y in PrefetchLoader(loader, "cuda"):
        x = x if x.is_floating_point() else x.float() / 255
        loss = train_step(model, optimizer, x, y)
        if read_loss:
            loss.item()


def say(name, timeline):
    """Print how long a step takes, and in which share of it the GPU computes; return the step in ns."""
    step, share = timeline.duration / len(lesson06.STEADY), lv.summarize(timeline).compute_share
    print(f"{name:32} step {words.duration(step):>9}   GPU computes {words.share(share):>6} of the time")
    return step


# %%
BATCH, STEPS = 1024, 32
GPU = replace(Gpu.preset("laptop"), name="a small GPU", fp32=62 * 10**10, malloc=0, malloc_small=0)
HOST = replace(Host.preset("laptop"), name="a host with slow memory", memory_bandwidth=12 * 10**9)
HOST = replace(HOST, page_lock_base=0, page_lock_per_gib=0, crowding=0)
images, labels = (part[: BATCH * STEPS] for part in mnist.tensors(train=True))
one_by_one = TensorDataset(images.float().div_(255), labels)


def feed(data, workers, on=GPU, read_loss=False, **options):
    """Record training with this many workers; return the middle of it, cut where the GPU ends a batch."""
    with lv.record(on=on, host=HOST) as recording:
        train(DataLoader(data, BATCH, num_workers=workers, pin_memory=True, **options), read_loss)
    return lesson06.steady(recording.timeline)


# %% [markdown]
# ## No workers
#
# `num_workers=0` is the default. Who fetches the batch then? Look at the lanes: there are no workers.

# %%
alone = feed(one_by_one, 0)
say("workers: 0", alone)
alone.view(color="kind")

# %% [markdown]
# The main thread does everything: it fetches a batch (the green bars), pins it, gives work to the GPU, and fetches the
# next one. The GPU is done long before the next batch is there.
#
# **Predict** what workers do. A worker is a process of its own that fetches whole batches.

# %%
guess = predict(
    "From 1 worker to 8 workers: a step becomes …",
    ["8 times as fast", "faster, but less than 8 times", "not faster"],
    answer=lambda: 1 if steps[1] > 7.5 * steps[8] else 2 if steps[1] > 1.1 * steps[8] else 3,
)
guess

# %%
runs = {workers: feed(one_by_one, workers) for workers in (1, 2, 4, 8)}
steps = {workers: say(f"workers: {workers}", timeline) for workers, timeline in runs.items()}
runs[2].view()

# %%
guess.reveal()

# %% [markdown]
# One worker is slower than none: to send a batch takes longer than the loop gains. Two workers: each one makes every
# second batch. Then the batch goes to the *pin thread* (R45), to the main thread, and over the link. Look at one
# moment, from top to bottom: all have different batches. That is a *pipeline*.
#
# ## The slowest station sets the pace
#
# All stations work at the same time. So a step takes as long as the slowest of them: **step = max(fetch / workers,
# pin, host, copy, compute)**. Only `fetch` is divided: there is one pin thread, one link, one GPU. The **host** is
# the loop's own work in a step, with the copy if that blocks.

# %%
costs, blocked = lesson06.stations(runs[1]), sum(lv.summarize(runs[8]).host_blocked.values())
print(f"the host works for {words.duration((runs[8].duration - blocked) / len(lesson06.STEADY))} a step")
print(", ".join(f"{name} {words.duration(each)}" for name, each in costs.items()))
for workers, step in steps.items():
    print(f"workers: {workers}   the formula says {words.duration(lesson06.limit(costs, workers)):>9}, ", end="")
    print(f"measured {words.duration(step):>9}")
lesson06.chart(steps, costs)

# %% [markdown]
# The points lie on the line. Where it is flat, the GPU is the slowest station, and more workers gain nothing.
#
# ## The strongest change: fetch a batch, not samples
#
# `DataLoader` calls `dataset[i]` for each sample, and then puts a thousand small tensors together. A data set with
# `__getitems__` gives a whole batch at once.

# %%
whole_batches = Images(*one_by_one.tensors)
batched = {workers: feed(whole_batches, workers, collate_fn=as_it_is) for workers in (0, 1, 2)}
for workers, each in batched.items():
    say(f"whole batches, workers: {workers}", each)
show_code(Images, as_it_is)

# %% [markdown]
# The loop needs no worker now: the GPU is the slowest station. One worker makes it slower, since it writes each batch
# into new shared memory, page by page. Make the work smaller before you add workers.
#
# ## `prefetch_factor`
#
# Each worker prepares `prefetch_factor` batches ahead; the default is 2.
# **Predict:** two workers fetch sample by sample, and the GPU waits for them.

# %%
guess_factor = predict(
    "With prefetch_factor=8 instead of 2, a step becomes …",
    ["shorter", "the same", "longer"],
    answer=lambda: 1 if factors[8] < 0.97 * factors[2] else 2 if factors[8] < 1.03 * factors[2] else 3,
)
guess_factor

# %%
buffered = {1: feed(one_by_one, 2, prefetch_factor=1), 2: runs[2], 8: feed(one_by_one, 2, prefetch_factor=8)}
factors = {n: say(f"prefetch_factor={n}", timeline) for n, timeline in buffered.items()}
guess_factor.reveal()

# %% [markdown]
# With 1, a worker has nothing to do while its batch waits to be taken; from 2 on, it always has work. A buffer that is
# always empty does not get fuller by being larger.
#
# A larger buffer helps when batches are *irregular*. In the next data set, now and then one batch comes late, as from a
# busy disk. The loop reads the loss in each step, so the host cannot run ahead (R25).

# %%
late = lesson06.SometimesSlow(*one_by_one.tensors, every=9 * BATCH, seconds=0.012)
irregular = {n: feed(late, 2, read_loss=True, collate_fn=as_it_is, prefetch_factor=n) for n in (2, 8)}
stalls = {n: say(f"irregular, prefetch_factor={n}", timeline) for n, timeline in irregular.items()}
irregular[2].view()

# %% [markdown]
# One worker has a long bar. The other one fetches a few more batches, and then it stops: it may not go further ahead.
# Its batches are ready, but they come *later in the order*, so the main thread waits for the late one:
# *head-of-line blocking*. The GPU is idle although two batches are in its memory: `PrefetchLoader` asks for the next
# batch before it hands one out. A larger buffer hides most of the stall: see the line with `prefetch_factor=8`.
#
# ## A faster GPU, and the pin thread
#
# Three workers, whole batches, and a GPU that computes three times as fast. **Predict:** is a step three times as fast,
# too?

# %%
faster = replace(GPU, name="a faster GPU", fp32=3 * GPU.fp32)
quick = feed(whole_batches, 3, on=faster, collate_fn=as_it_is)
as_bytes = feed(Images(images, labels), 3, on=faster, collate_fn=as_it_is)
say("small GPU", batched[2])
for name, each in {"faster GPU": quick, "faster GPU, uint8": as_bytes}.items():
    say(name, each)
    print("    " + ", ".join(f"{station} {words.duration(ns)}" for station, ns in lesson06.stations(each).items()))

# %% [markdown]
# Divide the `fetch` of the faster GPU by its three workers: now `pin` is the slowest station. There is one pin thread
# per `DataLoader`, and it copies every byte once (R43, R45). More workers do not help it. Fewer bytes do: the last
# run sends `uint8`, the GPU converts, and is the slowest station again.
#
# ## What workers cost: time to start, memory, cores
#
# *Time:* without `persistent_workers=True` each epoch starts new processes. The first cell below records two short
# epochs.
#
# *Memory:* up to `num_workers * prefetch_factor` batches lie in host memory at once. The second cell counts them in the
# irregular run with `prefetch_factor=8`. **Predict:** is it the largest number that is possible?
#
# *Cores:* the emulated host has eight; your computer may have fewer. So the second cell also fetches the batches of
# `one_by_one` for real. Do not be surprised if workers lose: for cheap samples in memory, to send a batch from
# process to process can cost more than it saves.

# %%
for persistent in (False, True):
    with lv.record(on=GPU, host=HOST) as recording:
        some = Subset(whole_batches, range(8 * BATCH))
        options = {"num_workers": 2, "collate_fn": as_it_is, "persistent_workers": persistent}
        loader = DataLoader(some, BATCH, pin_memory=True, **options)
        for _ in range(2):
            train(loader)
    print(f"persistent_workers={persistent!s:5}: {words.duration(recording.timeline.duration)}")
print(f"start of one worker: {words.duration(HOST.worker_start)} ({HOST.source('worker_start')})")

# %% tags=["measured"]
import time

from loaderviz.machine import cores

most = lesson06.in_flight(irregular[8])
print(f"at most {most} batches at once: {words.size(most * BATCH * 28 * 28 * 4)}")
print(f"this process may use {cores().threads} CPUs of your computer; in real time:")
for workers in range(min(2, cores().threads) + 1):
    times = [time.perf_counter()]
    for _ in DataLoader(one_by_one, BATCH, num_workers=workers):
        times.append(time.perf_counter())
    per_batch = 1e3 * (times[-1] - times[1]) / (len(times) - 2)
    print(f"  workers: {workers}   first batch after {times[1] - times[0]:.3f} s, then {per_batch:.1f} ms a batch")

# %% [markdown]
# So this run never has the largest number: while one worker is late, its part of the buffer gets empty.
#
# ## Exercises

# %%
lesson06.enough


# %% tags=["starter"]
# Exercise 6.1
def workers_needed(fetch, pin, copy, compute):
    """Return the smallest number of workers beyond which more workers gain nothing; times of a batch in ns."""
    return ...


# %% tags=["exercise"]
# Exercise 6.1
import math


def workers_needed(fetch, pin, copy, compute):
    """Return the smallest number of workers beyond which more workers gain nothing; times of a batch in ns."""
    slowest = max(pin, copy, compute)  # of the stations that do not get faster by more workers
    return max(1, math.ceil(fetch / slowest))


# %%
lesson06.enough.check(workers_needed)

# %%
lesson06.read_fast

# %% tags=["starter"]
# Exercise 6.2
from torch.utils.data import DataLoader


def make_loader(data, size):
    """Return a loader over all of `data`, in order, in batches of `size`; more workers are not enough."""
    return DataLoader(data, size, num_workers=0)


# %% tags=["exercise"]
# Exercise 6.2
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler


def make_loader(data, size):
    """Return a loader over all of `data`, in order, in batches of `size`; each batch is one read."""
    rows = BatchSampler(SequentialSampler(data), size, drop_last=False)  # lists of `size` numbers
    return DataLoader(data, batch_size=None, sampler=rows, num_workers=2, pin_memory=True)


# %%
lesson06.read_fast.check(make_loader)

# %% [markdown]
# ## Try
#
# * `lv.advise(alone)` and `lv.advise(quick)`: do they name the station that you found?
# * `lesson06.read_fast.show()` draws your last run. Which lane is the busiest?
# * Record `train(...)` with `lv.record(on=GPU)`: with no host named, a fetch costs what it takes on your computer.
#
# ## The same code on a real GPU

# %% tags=["gpu"]
if torch.cuda.is_available():
    for data, collate in ((one_by_one, None), (whole_batches, as_it_is)):
        loader = DataLoader(data, BATCH, num_workers=2, pin_memory=True, collate_fn=collate)
        print(f"{torch.cuda.get_device_name()}: {type(data).__name__} {gpu_milliseconds(train, loader):.3f} ms a step")
else:
    print("Skipped: PyTorch sees no CUDA GPU here. On a machine with one, this cell times both data sets on it.")

# %% [markdown]
# ## Recap
#
# * step = max(fetch / workers, pin, host, copy, compute). Find the slowest station. Workers help only if it is `fetch`.
# * Fetch whole batches (`__getitems__`, or `batch_size=None` with lists of indices) before you add workers.
# * `prefetch_factor` buffers irregular batches. It makes no station faster.
# * One pin thread moves every byte: send fewer bytes. `persistent_workers=True` starts the workers once.
#
# Next: [7. Your own trace](07_your_own_trace.ipynb)

# %% tags=["picture"]
# two workers, the thread that pins, and the loop of lesson 2
from stills import dataset, train
from torch.utils.data import DataLoader

from loaderviz import experiment
from loaderviz.loaders import PinnedLoader

data = experiment.Images(*dataset(16))
loader = DataLoader(data, 2048, num_workers=2, collate_fn=experiment.as_it_is, pin_memory=True)
train(lambda: PinnedLoader(loader), warm_up=10).view(title="Two workers, a pin thread and a loop")

# %% tags=["claims"]
assert lv.summarize(alone).compute_share < 0.5 and {lane.role for lane in alone.lanes} == {"main", "stream"}
assert all(0.99 < step / lesson06.limit(costs, workers) < 1.03 for workers, step in steps.items())
assert lesson06.limit(costs, 8) == lesson06.limit(costs, 4) == costs["compute"] > costs["fetch"] / 4
assert alone.duration < steps[1] * len(lesson06.STEADY)
assert max(batched[0].duration, batched[2].duration) < 1.03 * runs[8].duration < batched[1].duration / 1.1
assert factors[1] > 1.05 * factors[2] and 0.98 < factors[8] / factors[2] < 1.02
assert stalls[2] > 1.2 * stalls[8]
# batch 18 comes late, and the GPU begins 16 after that, although 16 and 17 were copied long before
late = next(span.end for span in irregular[2].rows() if span.name == "fetch batch 18")
assert late < min(span.start for span in irregular[2].rows() if span.kind.name == "COMPUTE" and span.batch == 16)
assert late - 10**6 > max(span.end for span in irregular[2].rows() if span.kind.name == "COPY_H2D" and span.batch == 17)
assert max((time, station) for station, time in lesson06.stations(quick).items() if station != "fetch")[1] == "pin"
assert lesson06.stations(quick)["fetch"] / 3 < lesson06.stations(quick)["pin"]
assert 1.2 * quick.duration < batched[2].duration and as_bytes.duration < 0.9 * quick.duration
costs = lesson06.stations(as_bytes)
assert costs["compute"] > max(costs["fetch"] / 3, costs["pin"], costs["copy"])
assert 1 < most < 2 * 8

# %% [markdown] tags=["guide"]
# ### 6. Workers
#
# Asks: which station is too slow?
#
# Idea: A pipeline is as fast as its slowest station.
#
# Exercises: 6.1 (6), 6.2 (10)
#
# * **Say:** "Read, pin, copy, compute: a factory line. Find the slowest station. Everything else is decoration."
# * **Stuck:** in 6.1 people forget the pin thread, or round down. In 6.2 they add workers first; eight are refused,
#   since the machine of the task has four cores. A class written in the notebook cannot go to a worker on macOS and
#   Windows (see [below](#when-something-goes-wrong)); the solution needs none.
# * **The picture to dwell on:** the irregular run. One worker late, the other one ready, the main thread waits:
#   head-of-line blocking. And the GPU is idle with two batches in its memory, because this prefetcher asks for the next
#   batch before it hands one out.
# * **Be honest:** the emulated host has eight cores. The cell with the wall clock shows what this room's
#   machines do; on small machines workers often lose on data in memory.

# %% [markdown] tags=["answers"]
# ## 6. Workers
#
# <!-- guess 74a885e4 -->
# * *From 1 worker to 8 workers: a step becomes …* **faster, but less than 8 times**: at four workers the GPU is the
#   slowest station.
#
# <!-- guess_factor c3083593 -->
# * *With prefetch_factor=8 instead of 2, a step becomes …* **the same**: a buffer makes nothing faster.
#
# * *(In the text)* A GPU three times as fast: less than twice as fast, then the pin thread sets the pace. *(In the
#   text)* Two workers, `prefetch_factor=8`: 12 batches at once, not 16. One worker was late, and the data end before
#   the buffer is full again.
# * **Exercise 6.1:** `ceil(fetch / max(pin, copy, compute))`, at least 1.
# * **Exercise 6.2:** one read for each batch (`batch_size=None` with a `BatchSampler`, or `__getitems__`), and two
#   workers.
