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
# # 8. Capstone: from the first loader to the limit
#
# **The question of this lesson: how near can you bring a whole training on MNIST to the limit, and how do you find the
# way?**
#
# After it you can
#
# * find out what holds a training loop, and change that, instead of what a list of tips says;
# * climb a ladder: one change at a time, each measured against the first loader and against the one before;
# * say which part of the way is left, and whether it is worth going.
#
# Time: about 45 minutes, most of them yours. You need no GPU. Before it: lessons 1 to 4, best also [6.
# Workers](06_workers.ipynb). This notebook keeps your times in a file, `leaderboard.sqlite`, beside it.

# %%
import torch
from torch.utils.data import DataLoader, TensorDataset

import loaderviz as lv
from loaderviz import words
from loaderviz.loaders import PrefetchLoader
from loaderviz.workshop import capstone, loop, predict, training
from loaderviz.workshop.stages import stages

# %% [markdown]
# ## The race
#
# You write the loader: `load(images, labels, size, epochs)` gets MNIST digits in host memory, and hands out batches on
# the GPU. Everything else is fixed: a small network, cross entropy, SGD. The clock runs from the call of your function
# until the GPU has done the last step, so what you prepare counts, too.
#
# The race is *honest*: each epoch has each sample once, in a new order of the samples, with its right label; each check
# takes other digits. What the network knows afterwards is measured with test digits that it never saw.
#
# The *limit* is the copy of the first batch, and then only training: no loader can be faster. The emulated machine
# moves bytes forty times more slowly than the laptop of the lessons, so a batch of 256 behaves as a large one does
# there.

# %%
print(f"{training.EPOCHS} epochs of {training.PER_EPOCH} batches of {training.SIZE} digits")
print(f"the limit: {words.duration(capstone.limit())}")
loop.show_code(training.Training.train_on)

# %% [markdown]
# ## The first loader
#
# This is the one that everybody begins with: `float32` from 0 to 1, a `DataLoader`, `.to("cuda")`.


# %%
def blocking(images, labels, size, epochs):
    """Yield shuffled batches on the GPU, epoch after epoch: the loader that everybody begins with."""
    loader = DataLoader(TensorDataset(images.float() / 255, labels), size, shuffle=True)
    for epoch in range(epochs):
        for x, y in loader:
            yield x.to("cuda"), y.to("cuda")


# %%
guess_first = predict(
    "What takes the largest part of the time?",
    ["the GPU computes", "the copy to the GPU", "the host fetches batches: sample by sample, on the main thread"],
    answer=lambda: ("compute", "copy", "fetch").index(largest) + 1,
)
guess_first

# %%
first = capstone.climb("blocking", blocking)
breakdown = lv.summarize(first.timeline).breakdown
for part, time_ns in breakdown.items():
    print(f"{part:40} {words.share(time_ns / first.ns):>6}")
largest = next(word for word in ("compute", "copy", "fetch") if word in max(breakdown, key=breakdown.get))
print(first)
guess_first.reveal()

# %% [markdown]
# ## The second rung: workers and pinned memory
#
# The host fetches, so let others fetch: two worker processes, and a thread that pins (lesson 2, R45). The copies need
# not block now.


# %%
def two_workers(images, labels, size):
    """Return a DataLoader with two workers and a pin thread."""
    data, more = TensorDataset(images.float() / 255, labels), {"pin_memory": True, "persistent_workers": True}
    return DataLoader(data, size, shuffle=True, num_workers=2, **more)


def with_workers(images, labels, size, epochs):
    """Yield batches that two workers fetch; the copies do not block, in the same stream."""
    loader = two_workers(images, labels, size)
    for epoch in range(epochs):
        for x, y in loader:
            yield x.to("cuda", non_blocking=True), y.to("cuda", non_blocking=True)


# %%
capstone.climb("workers, pinned", with_workers)

# %% [markdown]
# ## The third rung: prefetch
#
# Next on most lists of tips: a prefetcher. "It doubles the speed."


# %%
def prefetching(images, labels, size, epochs):
    """The same, and the copies run on a side stream, two batches ahead."""
    loader = two_workers(images, labels, size)
    for epoch in range(epochs):
        yield from PrefetchLoader(loader)


# %%
guess_prefetch = predict(
    "How much faster than the rung before is the one with PrefetchLoader?",
    ["nearly twice as fast", "about a third faster", "not faster"],
    answer=lambda: 1 if speed > 1.6 else 2 if speed > 1.1 else 3,
)
guess_prefetch

# %%
second, third = capstone.ladder.rungs["workers, pinned"], capstone.climb("prefetch", prefetching)
speed = second.ns / third.ns
capstone.ladder

# %%
guess_prefetch.reveal()

# %% [markdown]
# Let us see why: four steps of both loaders, in the third epoch.

# %%
capstone.ladder.compare("workers, pinned", "prefetch", batches=range(27, 31)).figure(title="Four steps of two rungs")

# %% [markdown]
# The prefetcher did what it promises: see the line above each picture. And it won nothing, because the GPU does not
# wait for the copy. Read the lanes from the top: which are busy nearly all the time? `worker 0`, `worker 1`, `pin
# thread`. A pipeline is as fast as its slowest stage; a change anywhere else wins nothing. Here is what one batch costs
# in each stage (`fetch` is the time of *one* worker), and how many bytes the batch has, as it travels and as it is
# stored.

# %%
for stage, time_ns in stages(third.timeline).items():
    print(f"{stage:8} {words.duration(time_ns):>9} a batch")
pixels = training.SIZE * 28 * 28
print(f"images of a batch: {words.size(4 * pixels)} as float32, {words.size(pixels)} as stored")

# %% [markdown]
# ## Your turn
#
# You know now what holds the loop. Three ways are open, and you can combine them: fewer bytes (lesson 1), more hands
# ([lesson 6](06_workers.ipynb)), fewer trips (lesson 4). Change one thing, check, read the ladder, change the next one.
# A check also writes your time into the leaderboard: `capstone.race.check(load, name="Ada")` chooses the name there.

# %%
capstone.race

# %% tags=["exercise"]
# Exercise 8.1
import torch


def load(images, labels, size, epochs):
    """Yield shuffled batches on the GPU, epoch after epoch; the data set is moved once, as it is stored."""
    images, labels = images.to("cuda"), labels.to("cuda")
    for epoch in range(epochs):
        order = torch.randperm(len(images)).to("cuda")
        for rows in order.split(size):
            yield images.index_select(0, rows), labels.index_select(0, rows)


# %%
capstone.race.check(load)

# %%
capstone.ladder

# %% [markdown]
# Whatever you changed: look at the last column. All rungs train the same network equally well (up to the luck of the
# shuffle). A faster loader that trains a worse network has not won.
#
# ## The leaderboard
#
# It is a small file. In a room, one file for all: the instructor sets
# `LOADERVIZ_LEADERBOARD=/a/shared/folder/room.sqlite` before the notebooks are started. Several kernels can write to it
# at once.

# %%
capstone.leaderboard()

# %% [markdown]
# ## Try
#
# * The target is within reach of several designs. Reach it once with `PrefetchLoader`, without a resident data set.
# * What is left between you and the limit? `capstone.race.show()` draws your run: look at its first milliseconds. Can
#   the first epoch compute while the data set is still on its way?
# * Spoil it: hand out the same order in each epoch, or labels that are shifted by one. What does the check say?
#
# ## The same code on a real GPU
#
# The loaders know nothing of the emulator. There, bytes do not move at a fortieth of the speed, so expect other ratios:
# it is the *method* that you take along.

# %% tags=["gpu"]
if torch.cuda.is_available():
    print(torch.cuda.get_device_name())
    for name, loader in {"blocking": blocking, "workers, pinned": with_workers, "prefetch": prefetching}.items():
        print(f"{name:16} {capstone.milliseconds(loader):.3f} ms a step")
else:
    print("Skipped: PyTorch sees no CUDA GPU here. On a machine with one, this cell times the three loaders on it.")

# %% [markdown]
# ## Recap
#
# * First find what holds the loop: the lane that is always busy. Then change that, and nothing else.
# * One change at a time, each measured: against the first loader, and against the one before.
# * A prefetcher hides copies. It does not hide a slow loader.
# * The cheapest byte is the one that does not travel: send what is stored, or send it once.
# * Know the limit. When you are there, stop: the next second is won in the model.
#
# This was the last lesson. [0. Start here](00_start_here.ipynb) has the list of all of them.
