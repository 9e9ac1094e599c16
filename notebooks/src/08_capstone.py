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
# ![The loop of lesson 4, with the data set on the GPU: no copies, and the stream computes from the beginning to the
# end.](pictures/08_capstone.png)
#
# **The question of this lesson: how near can you bring a whole training to the limit?**
#
# Time: about 35 minutes. Before it: lessons 1 to 4, best also [6. Workers](06_workers.ipynb). Your times stay in
# your progress file.

# %%
import torch
from torch.utils.data import DataLoader, TensorDataset

import loaderviz as lv
from loaderviz import words
from loaderviz.loaders import PrefetchLoader
from loaderviz.workshop import capstone, loop, predict, recall
from loaderviz.workshop.lessons.lesson06 import stations

# %%
recall(8)

# %% [markdown]
# ## The race
#
# You write the loader: `load(images, labels, size, epochs)` gets MNIST digits in host memory and hands out batches on
# the GPU. The link is forty times slower than that of the laptop, so that small batches cost enough.
#
# Here the *limit* is the first copy, and then only training.

# %%
print(f"{capstone.EPOCHS} epochs of {capstone.PER_EPOCH} batches of {capstone.SIZE} digits")
print(f"the limit: {words.duration(capstone.limit())}")
loop.show_code(capstone.Training.train_on)

# %% [markdown]
# ## The first loader


# %%
def blocking(images, labels, size, epochs):
    """What everybody begins with."""
    loader = DataLoader(TensorDataset(images.float() / 255, labels), size, shuffle=True)
    for epoch in range(epochs):
        for x, y in loader:
            yield x.to("cuda"), y.to("cuda")


# %%
guess_first = predict(
    "With this loader, what takes the largest part of the time?",
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

# %%
capstone.fewer_bytes

# %% tags=["starter"]
# Exercise 8.0
from torch.utils.data import DataLoader, TensorDataset


def load_bytes(images, labels, size, epochs):
    """The first loader."""
    loader = DataLoader(TensorDataset(images.float() / 255, labels), size, shuffle=True)
    for epoch in range(epochs):
        for x, y in loader:
            yield x.to("cuda"), y.to("cuda")


# %% tags=["exercise"]
# Exercise 8.0
from torch.utils.data import DataLoader, TensorDataset


def load_bytes(images, labels, size, epochs):
    """The first loader."""
    loader = DataLoader(TensorDataset(images, labels), size, shuffle=True)
    for epoch in range(epochs):
        for x, y in loader:
            yield x.to("cuda"), y.to("cuda")


# %%
capstone.fewer_bytes.check(load_bytes)

# %%
capstone.fewer_bytes.show()

# %% [markdown]
# ## The second rung: workers and pinned memory
#
# Two workers fetch; the copies do not block.


# %%
def two_workers(images, labels, size):
    data, more = TensorDataset(images.float() / 255, labels), {"pin_memory": True, "persistent_workers": True}
    return DataLoader(data, size, shuffle=True, num_workers=2, **more)


def with_workers(images, labels, size, epochs):
    loader = two_workers(images, labels, size)
    for epoch in range(epochs):
        for x, y in loader:
            yield x.to("cuda", non_blocking=True), y.to("cuda", non_blocking=True)


# %%
capstone.climb("workers, pinned", with_workers)

# %% [markdown]
# ## The third rung: prefetch
#
# The next tip on most lists: "A prefetcher doubles the speed."


# %%
def prefetching(images, labels, size, epochs):
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

# %%
capstone.ladder.compare("workers, pinned", "prefetch", batches=range(27, 31))

# %% [markdown]
# The copies are hidden, but the GPU waits for batches. Which rows are always busy? A change anywhere else wins nothing.

# %%
for station, time_ns in stations(third.timeline).items():
    print(f"{station:8} {words.duration(time_ns):>9} a batch")

# %% [markdown]
# ## Your turn
#
# Send fewer bytes, share the fetching (lesson 6), or copy less often (lesson 4). Change one thing, then check. In
# `reason` say what takes the largest part of your run: "compute", "copy", "data" or "host".

# %%
capstone.race

# %% tags=["starter"]
# Exercise 8.1
import torch
from torch.utils.data import DataLoader, TensorDataset


def load(images, labels, size, epochs):
    """Yield shuffled batches on the GPU."""
    loader = DataLoader(TensorDataset(images.float() / 255, labels), size, shuffle=True)
    for epoch in range(epochs):
        for x, y in loader:
            yield x.to("cuda"), y.to("cuda")


reason = ""

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


reason = "compute"


# %%
capstone.race.check(load, reason=reason)

# %%
capstone.ladder

# %% [markdown]
# ## Two other worlds, at home
#
# The loader that wins here loses there.

# %%
capstone.larger

# %% tags=["starter"]
# Exercise 8.2
import torch
from torch.utils.data import DataLoader, TensorDataset


def load_larger(images, labels, size, epochs):
    """Yield shuffled batches on the GPU."""
    loader = DataLoader(TensorDataset(images, labels), size, shuffle=True, num_workers=2)
    for epoch in range(epochs):
        for x, y in loader:
            yield x.to("cuda"), y.to("cuda")


reason = ""

# %% tags=["exercise"]
# Exercise 8.2
import torch
from torch.utils.data import DataLoader

from loaderviz.experiment import Images, as_it_is
from loaderviz.loaders import PrefetchLoader


def load_larger(images, labels, size, epochs):
    """Yield shuffled batches on the GPU, epoch after epoch: whole batches of uint8, from two workers."""
    more = {"pin_memory": True, "persistent_workers": True, "collate_fn": as_it_is}
    loader = DataLoader(Images(images, labels), size, shuffle=True, num_workers=2, **more)
    for epoch in range(epochs):
        yield from PrefetchLoader(loader)


reason = "compute"


# %%
capstone.larger.check(load_larger, reason=reason)

# %%
capstone.files

# %% tags=["starter"]
# Exercise 8.3
import torch
from torch.utils.data import DataLoader


def load_files(data, size, epochs):
    """Yield shuffled and flipped batches on the GPU."""
    loader = DataLoader(data, size, shuffle=True, num_workers=2)
    for epoch in range(epochs):
        for x, y in loader:
            x = torch.where(torch.rand(len(x), 1, 1) < 0.5, x.flip(2), x)
            yield x.to("cuda"), y.to("cuda")


reason = ""

# %% tags=["exercise"]
# Exercise 8.3
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler

from loaderviz.loaders import PrefetchLoader


def load_files(data, size, epochs):
    """Yield shuffled batches on the GPU: each batch is one read by a worker, and flipped on the GPU."""

    def flip(batch):
        return torch.where(torch.rand(len(batch[0]), 1, 1, device="cuda") < 0.5, batch[0].flip(2), batch[0]), batch[1]

    more = {"num_workers": 4, "pin_memory": True, "persistent_workers": True}
    loader = DataLoader(data, None, sampler=BatchSampler(RandomSampler(data), size, drop_last=False), **more)
    for epoch in range(epochs):
        yield from PrefetchLoader(loader, transform=flip)


reason = "compute"


# %%
capstone.files.check(load_files, reason=reason)

# %% [markdown]
# ## The leaderboard

# %% tags=["measured"]
capstone.leaderboard()

# %% [markdown]
# ## Try
#
# * Reach the target with `PrefetchLoader`.
#
# ## The same code on a real GPU

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
# * Find the row that is always busy, and change that.
# * A prefetcher does not hide a slow loader.
# * The cheapest byte is the one that does not travel.
#
# Next: [9. What the articles say](09_what_the_articles_say.ipynb)

# %% tags=["picture"]
# the loop of lesson 4, whose data set is on the GPU
from stills import dataset, train

from loaderviz.loaders import ResidentLoader

train(lambda: ResidentLoader(dataset(7), 2048)).view(title="The loop of lesson 4: the GPU never waits")

# %% tags=["claims"]
assert lv.summarize(first.timeline).compute_share < 0.2 and largest == "fetch"
assert first.ns > 1.5 * second.ns
# a prefetcher wins nothing here
assert 0.95 < speed < 1.05
assert lv.summarize(second.timeline).overlap == 0 and lv.summarize(third.timeline).overlap > 0.7
# the workers and the pin thread are what holds it
each = stations(third.timeline)
assert min(each["fetch"] / 2, each["pin"]) > 2 * each["compute"]
assert capstone.ladder.rungs["yours"].ns < capstone.FITS.target * capstone.limit() < third.ns / 2
assert max(rung.right for rung in capstone.ladder.rungs.values()) < 0.1 + min(
    rung.right for rung in capstone.ladder.rungs.values()
)

# %% [markdown] tags=["guide"]
# ### 8. Capstone
#
# Asks: how close to the limit?
#
# Idea: Find what holds the loop, change that, measure, repeat.
#
# Exercises: 8.0 (2), 8.1 (25)
#
# * **Say:** "Change one thing. Predict what it will win. Check. Look at the ladder."
# * **Two other worlds, for home:** in 8.2 the data set does not fit on the GPU. In 8.3 files are slow and pictures are
#   flipped. Both refuse the line that wins 8.1. In each world there are four points: for the time, the memory, honesty,
#   and the reason (`check(load, reason="compute")`). Each world has a leaderboard of its own.
# * **One board for all:** set `LOADERVIZ_ROOM=/a/shared/folder` before the notebooks are started.
#   `capstone.race.check(load, name="Ada")` chooses the name on the board. `capstone.leaderboard(world="larger")` and
#   `world="files"` are the other two boards.
# * **The last column of the ladder:** all rungs train the same network equally well. A faster loader that trains a
#   worse network has not won.
# * **Spoil it:** hand out the same order in each epoch, or labels that are shifted by one. What does the check say?
# * **Stuck:** the check refuses "each epoch in the same order" and "labels shifted". The ladder shows the accuracy
#   beside it. A check that says "not yet" first names the largest part of the idle time. Then it names the longest gap,
#   which is often the start. The shares of right digits differ by a few hundredths from run to run, because each run
#   has other digits.

# %% [markdown] tags=["answers"]
# ## 8. Capstone
#
# <!-- guess_first 7904b398 -->
# * *With this loader, what takes the largest part of the time?* **the host fetches batches: sample by sample, on the
#   main thread** (<!--=max(breakdown.values()) / first.ns:.0%-->53 %<!---->).
#
# <!-- guess_prefetch 8ba76328 -->
# * *How much faster than the rung before is the one with PrefetchLoader?* **not faster**
#   (<!--=speed:.2f-->0.99<!---->x): what the hidden copies save, the GPU waits for the workers and the pin thread.
#
# * **Exercise 8.0:** `TensorDataset(images, labels)`: the training converts on the GPU.
# * **Exercise 8.1:** move the data set once as `uint8`, one random order an epoch, `index_select` a batch; within 1.35x
#   of the limit. Two workers with `uint8` and `PrefetchLoader` come near, 1.5x; four of them reach it.
# * **Exercise 8.2:** whole batches of `uint8` (`experiment.Images`) from two workers, pinned, with `PrefetchLoader`.
# * **Exercise 8.3:** one read a batch (`BatchSampler`, `batch_size=None`) by four workers; the flip on the GPU, in
#   `PrefetchLoader(transform=...)`.
