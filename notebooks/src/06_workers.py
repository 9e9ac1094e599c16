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
# Time: about 25 minutes. Before it: [3. Prefetch](03_non_blocking_prefetch.ipynb).

# %%
from dataclasses import replace

import torch
from torch.utils.data import DataLoader, TensorDataset

import loaderviz as lv
from loaderviz import mnist, words
from loaderviz.emulator import Gpu, Host
from loaderviz.experiment import Images, as_it_is
from loaderviz.loaders import PrefetchLoader
from loaderviz.workshop import lesson06, predict, recall
from loaderviz.workshop.loop import gpu_milliseconds, new_model, show_code, train_step

# %%
recall(6)

# %%
BATCH, STEPS = 512, 32
GPU = replace(Gpu.preset("laptop"), name="a small GPU", fp32=62 * 10**10, malloc=0, malloc_small=0)
HOST = replace(Host.preset("laptop"), name="a host with slow memory", memory_bandwidth=12 * 10**9)
HOST = replace(HOST, page_lock_base=0, page_lock_per_gib=0, crowding=0)
images, labels = (part[: BATCH * STEPS] for part in mnist.tensors(train=True))
one_by_one = TensorDataset(images.float().div_(255), labels)


# %%
def train(loader, read_loss=False):
    """Train as in lesson 3."""
    model, optimizer = new_model(hidden=96)
    for x, y in PrefetchLoader(loader, "cuda"):
        x = x if x.is_floating_point() else x.float() / 255
        loss = train_step(model, optimizer, x, y)
        if read_loss:
            loss.item()


# %%
def feed(data, workers, on=GPU, read_loss=False, **options):
    """Record a training; return its middle."""
    with lv.record(on=on, host=HOST) as recording:
        train(DataLoader(data, BATCH, num_workers=workers, pin_memory=True, **options), read_loss)
    return lesson06.steady(recording.timeline)


def say(name, timeline):
    """Print a step's time; return it in ns."""
    step, share = timeline.duration / len(lesson06.STEADY), lv.summarize(timeline).compute_share
    print(f"{name:32} step {words.duration(step):>9}   GPU computes {words.share(share):>6} of the time")
    return step


# %% [markdown]
# ## No workers
#
# `num_workers=0` is the default. Then the main thread fetches each batch: these are the green bars.

# %%
alone = feed(one_by_one, 0)
say("workers: 0", alone)
alone.view(color="kind")

# %% [markdown]
# A *worker* is a process of its own that fetches whole batches.

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
# ## The slowest station sets the pace
#
# A batch goes from a worker to the *pin thread* (R45), over the link, and to the GPU. At one moment each of these
# stations has a different batch. Only fetching has several workers.

# %%
lesson06.pace


# %% tags=["starter"]
# Exercise 6.0
def step_time(fetch, workers, pin, copy, compute):
    """Return the time of one step, in ns."""
    return ...


# %% tags=["exercise"]
# Exercise 6.0
def step_time(fetch, workers, pin, copy, compute):
    """Return the time of one step, in ns."""
    return max(fetch / workers, pin, copy, compute)


# %%
lesson06.pace.check(step_time)

# %%
lesson06.pace.show()

# %%
costs = lesson06.stations(runs[1])
print("one batch: " + ", ".join(f"{station} {words.duration(time)}" for station, time in costs.items()))
lesson06.chart(steps, costs)

# %%
lesson06.enough


# %% tags=["starter"]
# Exercise 6.1
def workers_needed(fetch, pin, copy, compute):
    """Return the smallest number of workers that is enough."""
    return ...


# %% tags=["exercise"]
# Exercise 6.1
import math


def workers_needed(fetch, pin, copy, compute):
    """Return the smallest number of workers that is enough."""
    slowest = max(pin, copy, compute)  # of the stations that do not get faster by more workers
    return max(1, math.ceil(fetch / slowest))


# %%
lesson06.enough.check(workers_needed)

# %% [markdown]
# ## Fetch a batch, not samples
#
# `DataLoader` calls `dataset[i]` for each sample. A data set with `__getitems__` gives a whole batch at once.

# %%
whole_batches = Images(*one_by_one.tensors)
batched = {workers: feed(whole_batches, workers, collate_fn=as_it_is) for workers in (0, 1, 2)}
for workers, each in batched.items():
    say(f"whole batches, workers: {workers}", each)
show_code(Images, as_it_is)

# %%
lesson06.read_fast

# %% tags=["starter"]
# Exercise 6.2
from torch.utils.data import DataLoader


def make_loader(data, size):
    """Return a loader over all of `data`, in order, in batches of `size`."""
    return DataLoader(data, size, num_workers=0)


# %% tags=["exercise"]
# Exercise 6.2
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler


def make_loader(data, size):
    """Return a loader over all of `data`, in order, in batches of `size`."""
    rows = BatchSampler(SequentialSampler(data), size, drop_last=False)  # each batch is one read
    return DataLoader(data, batch_size=None, sampler=rows, num_workers=2, pin_memory=True)


# %%
lesson06.read_fast.check(make_loader)

# %% [markdown]
# ## `prefetch_factor`
#
# Each worker prepares `prefetch_factor` batches ahead; the default is 2.

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
# A larger buffer helps when single batches come late. One worker below has a long bar. The other has later batches
# ready, but the loop waits: *head-of-line blocking*.

# %%
late = lesson06.SometimesSlow(*one_by_one.tensors, every=9 * BATCH, seconds=0.006)
irregular = {n: feed(late, 2, read_loss=True, collate_fn=as_it_is, prefetch_factor=n) for n in (2, 8)}
stalls = {n: say(f"irregular, prefetch_factor={n}", timeline) for n, timeline in irregular.items()}
irregular[2].view()

# %% [markdown]
# ## Threads or processes?
#
# Workers can be *threads* of the loop's process. Then nothing is sent. But one thread at a time runs Python: it has
# the *interpreter's lock* (GIL, R53). Decoders in C let go of it.

# %%
threads = {part: lv.what_if(runs[4], threads=part) for part in (0.2, 0.5, 1)}
for part, timeline in threads.items():
    print(f"4 threads, {part:.0%} of a fetch has the lock: step {words.duration(lv.summarize(timeline).step)}")
threads[1].view()

# %%
lesson06.one_lock


# %% tags=["starter"]
# Exercise 6.3
def step_time(fetch, held, threads, host, compute):
    """Return the time of one step, in ns."""
    return ...


# %% tags=["exercise"]
# Exercise 6.3
def step_time(fetch, held, threads, host, compute):
    """Return the time of one step, in ns."""
    return max(fetch / threads, held + host, compute)


# %%
lesson06.one_lock.check(step_time)

# %% [markdown]
# ## Try
#
# * A GPU three times as fast: `feed(whole_batches, 3, on=replace(GPU, fp32=3 * GPU.fp32))`. Which
#   station is the slowest now?
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
# * A step takes as long as its slowest station. Workers help only if that is `fetch`.
# * Make the work smaller before you add workers.
# * A larger buffer hides a late batch.
# * Threads share one lock.
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
locked = {part: lv.summarize(timeline).step for part, timeline in threads.items()}
assert locked[0.2] < 1.1 * steps[4] < locked[0.5] < locked[1] / 1.5
# batch 18 comes late, and the GPU begins 16 after that, although 16 and 17 were copied long before
late = next(span.end for span in irregular[2].rows() if span.name == "fetch batch 18")
assert late < min(span.start for span in irregular[2].rows() if span.kind.name == "COMPUTE" and span.batch == 16)
assert late - 10**6 > max(span.end for span in irregular[2].rows() if span.kind.name == "COPY_H2D" and span.batch == 17)

# %% [markdown] tags=["guide"]
# ### 6. Workers
#
# Asks: which station is too slow?
#
# Idea: A pipeline is as fast as its slowest station.
#
# Exercises: 6.0 (2), 6.1 (5), 6.2 (10), 6.3 (3)
#
# * **Say:** "Read, pin, copy, compute: a factory line. Find the slowest station. Everything else is decoration."
# * **Stuck:** in 6.0 people add up the stations, and the check says so. In 6.1 they forget the pin thread, or they
#   round down. In 6.2 they add workers first. Eight workers are refused, because the machine of the task has four
#   cores. On macOS and Windows a class that was written in the notebook cannot go to a worker (see
#   [below](#when-something-goes-wrong)). The solution needs no such class. In 6.3 they forget that the loop runs
#   Python, too.
# * **The picture to dwell on:** the irregular run. One worker is late, the other one is ready, and the main thread
#   waits: this is head-of-line blocking. The GPU is idle with two batches in its memory, because this prefetcher asks
#   for the next batch before it hands one out.
# * **The pin thread:** with the faster GPU of "Try" it becomes the slowest station (R43, R45). More workers do not help
#   it. Fewer bytes (`uint8`) help it.
# * **Be honest:** the emulated host has eight cores. On small machines workers often make a loop slower if its data are
#   in memory, because it can cost more to send a batch from process to process than the workers save. Without
#   `persistent_workers=True` each epoch starts new processes. Up to `num_workers * prefetch_factor` batches lie in host
#   memory.

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
# * *(Under "Try")* With a GPU three times as fast a step is less than twice as fast: then the pin thread sets the pace.
#   There is one pin thread for a `DataLoader`, and it copies every byte once.
# * **Exercise 6.0:** `max(fetch / workers, pin, copy, compute)`.
# * **Exercise 6.1:** `ceil(fetch / max(pin, copy, compute))`, at least 1.
# * **Exercise 6.2:** one read for each batch (`batch_size=None` with a `BatchSampler`, or `__getitems__`), and two
#   workers.
# * **Exercise 6.3:** `max(fetch / threads, held + host, compute)`: the loop needs the lock, too.
