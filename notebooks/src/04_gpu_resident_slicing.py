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
# # 4. The data set on the GPU
#
# ![The prefetcher of lesson 3: the stream computes without a gap, and in a second stream later batches are copied
# at the same time.](pictures/04_gpu_resident_slicing.png)
#
# **The question of this lesson: why carry a small data set to the GPU in every epoch?**
#
# Time: about 30 minutes.

# %%
import itertools
import textwrap
from dataclasses import replace

import torch
from torch.utils.data import DataLoader, TensorDataset

import loaderviz as lv
from loaderviz import mnist, words
from loaderviz.emulator import Gpu
from loaderviz.loaders import ResidentLoader
from loaderviz.workshop import lesson04, loop, predict, recall
from loaderviz.workshop.loop import GPU, HOST, WARM_UP, new_model, steps, train_step, watch

# %%
recall(4)

# %% [markdown]
# ## Does it fit?
#
# `ResidentLoader` asks how much memory is free *before* it moves anything.

# %%
images, labels = mnist.tensors(train=True)
for dtype in (torch.uint8, torch.float16, torch.float32):
    size = images.numel() * dtype.itemsize + labels.nbytes
    print(f"{dtype!s:14} {words.size(size):>9}, {words.share(size / Gpu.preset(GPU).memory)} of the memory of this GPU")
with lv.record(on=replace(Gpu.preset(GPU), name="a tiny GPU", memory=600 * 2**20), host=HOST):
    try:
        ResidentLoader((images.half(), labels), 256)
    except MemoryError as problem:
        print(textwrap.fill(str(problem), 110))

# %% [markdown]
# ## First: the usual loop


# %%
def train(batches, count=WARM_UP + 8):
    """Train on `count` batches."""
    model, optimizer = new_model()
    for x, y in steps(itertools.islice(batches, count)):
        loss = train_step(model, optimizer, x.to("cuda").float() / 255, y.to("cuda"))
    return loss


usual_loader = DataLoader(TensorDataset(images, labels), batch_size=2048, shuffle=True)

# %%
guess_usual = predict(
    "What takes the largest part of a step?",
    ["the GPU computes", "the copy to the GPU", "the host makes the next batch"],
    answer=lambda: 1 + max(range(3), key=(summary.compute, summary.copy, summary.idle).__getitem__),
)
guess_usual

# %%
usual = watch(train, usual_loader)
summary = lv.summarize(usual)
for part, time_ns in summary.breakdown.items():
    print(f"{part:40} {words.share(time_ns / summary.window):>6}")
guess_usual.reveal()

# %% [markdown]
# The host fetches each sample alone.
#
# ## Slices of a tensor that is on the GPU already
#
# A *slice* is two numbers, the start and the end: it costs no kernel and no memory.

# %%
lesson04.stay


# %% tags=["starter"]
# Exercise 4.a
def load(images, labels, size, epochs):
    """Yield slices of the data set on the GPU, in order."""
    for epoch in range(epochs):
        for x, y in zip(images.split(size), labels.split(size), strict=True):
            yield x.to("cuda"), y.to("cuda")


# %% tags=["exercise"]
# Exercise 4.a
def load(images, labels, size, epochs):
    """Yield slices of the data set on the GPU, in order."""
    images, labels = images.to("cuda"), labels.to("cuda")
    for epoch in range(epochs):
        yield from zip(images.split(size), labels.split(size), strict=True)


# %%
lesson04.stay.check(load)

# %%
lesson04.stay.show()


# %%
def slices(size=2048):
    """Yield slices in random order."""
    on_gpu = list(zip(images.to("cuda").split(size), labels.to("cuda").split(size), strict=True))[:-1]
    while True:
        for number in torch.randperm(len(on_gpu)).tolist():
            yield on_gpu[number]


sliced = watch(train, slices())
lv.compare({"DataLoader": usual, "slices": sliced})

# %% [markdown]
# The *utilisation* is the share of each short time in which a kernel runs. `nvidia-smi` shows it as "GPU-Util".
# It does not say how well a kernel uses the GPU.

# %%
three_steps = usual.from_batch(WARM_UP + 5)
count = round(three_steps.duration / lv.summarize(sliced).step)
as_long = {"DataLoader, 3 steps": three_steps, f"slices, {count} steps": watch(train, slices(), WARM_UP + count)}
print(lv.compare(as_long))
lv.compare(as_long).utilization()

# %% [markdown]
# ## What is wrong with slices?

# %%
guess_mates = predict(
    "Slices of 256, shuffled, ten epochs: how many other samples does sample 0 meet in total?",
    ["255", "about 2500", "all of them"],
    answer=lambda: 1 if mates["batches"] == 255 else 2 if mates["batches"] < len(images) / 2 else 3,
)
guess_mates


# %%
def batch_mates(shuffle, epochs=10):
    """Count those that sample 0 met."""
    loader, met = ResidentLoader(torch.arange(len(images)), 256, shuffle, device="cpu"), set()
    for batch in itertools.chain.from_iterable(itertools.repeat(loader, epochs)):
        if 0 in batch:
            met |= set(batch.tolist())
    return len(met) - 1


mates = {shuffle: batch_mates(shuffle) for shuffle in ("batches", "samples")}
for shuffle, count in mates.items():
    print(f"shuffle={shuffle!r:10} sample 0 meets {count:,} other samples")
guess_mates.reveal()

# %% [markdown]
# A slice never gets other samples. That is harmful where a file is sorted by class:

# %%
part = labels[:12_800].argsort(stable=True)
classes = [len(batch.unique()) for batch in labels[part].split(256)]
print(f"classes in a slice of 256: {min(classes)} to {max(classes)}; ", end="")
print(f"{sum(count == 1 for count in classes)} of {len(classes)} slices have one class only")


# %%
def accuracy_with(shuffle, epochs=3):
    """Train on the sorted part."""
    test_images, test_labels = mnist.tensors(train=False)
    with lv.record(on=GPU, host=HOST):
        (model, optimizer), loader = new_model(), ResidentLoader((images[part], labels[part]), 256, shuffle)
        for x, y in itertools.chain.from_iterable(itertools.repeat(loader, epochs)):
            train_step(model, optimizer, x.float() / 255, y)
        return (model(test_images.to("cuda").float() / 255).argmax(1).cpu() == test_labels).float().mean().item()


accuracy = {shuffle: accuracy_with(shuffle) for shuffle in ("batches", "samples")}
for shuffle, share in accuracy.items():
    print(f"shuffle={shuffle!r:10} {words.share(share)} of the test digits are right")

# %% [markdown]
# ## Shuffle samples, on the GPU
#
# A *gather*, such as `images[rows]`, collects rows on the GPU. If `rows` is in host memory, it is copied at each use,
# and the host waits (**R46**). `"blocks"` shuffles short pieces.


# %%
def resident(shuffle="samples"):
    """Yield batches, epoch after epoch."""
    loader = ResidentLoader((images, labels), 2048, shuffle, drop_last=True)
    while True:
        yield from loader


runs = {shuffle: lv.summarize(watch(train, resident(shuffle))) for shuffle in ("batches", "blocks", "samples")}
for shuffle, each in runs.items():
    print(f"shuffle={shuffle!r:10} step {words.duration(each.step)}, GPU computes {words.share(each.compute_share)}")
print(f"the gather makes a step {words.share(runs['samples'].step / runs['batches'].step - 1)} longer")


# %%
def rows_from(place, size=2048):
    """Yield random batches."""
    on_gpu, answers = images.to("cuda"), labels.to("cuda")
    while True:
        for rows in torch.randperm(len(images)).to(place).split(size)[:-1]:
            yield on_gpu[rows], answers[rows]


orders = {place: watch(train, rows_from(place)) for place in ("cuda", "cpu")}
for place, timeline in orders.items():
    print(f"the order on {place:4}: step {words.duration(lv.summarize(timeline).step)}")
print(lv.advise(orders["cpu"])[0])

# %%
lesson04.shuffle

# %% tags=["starter"]
# Exercise 4.1
import torch


def shuffled(images, labels, size, epochs):
    """Yield batches of random samples."""
    images, labels = images.to("cuda"), labels.to("cuda")
    for epoch in range(epochs):
        for start in range(0, len(images), size):
            yield images[start : start + size], labels[start : start + size]


# %% tags=["exercise"]
# Exercise 4.1
import torch


def shuffled(images, labels, size, epochs):
    """Yield batches of random samples."""
    images, labels = images.to("cuda"), labels.to("cuda")
    for epoch in range(epochs):
        order = torch.randperm(len(images)).to("cuda")  # one small copy an epoch
        for rows in order.split(size):
            yield images.index_select(0, rows), labels.index_select(0, rows)


# %%
lesson04.shuffle.check(shuffled)

# %%
lesson04.resume

# %% tags=["starter"]
# Exercise 4.2
import torch


def resumed(images, labels, size, epoch, first):
    """Yield batches from number `first` on."""
    images, labels = images.to("cuda"), labels.to("cuda")
    order = torch.randperm(len(images)).to("cuda")
    for rows in order.split(size):
        yield images.index_select(0, rows), labels.index_select(0, rows)


# %% tags=["exercise"]
# Exercise 4.2
import torch


def resumed(images, labels, size, epoch, first):
    """Yield batches from number `first` on."""
    images, labels = images.to("cuda"), labels.to("cuda")
    generator = torch.Generator().manual_seed(epoch)  # the order is a function of the epoch
    order = torch.randperm(len(images), generator=generator).to("cuda")
    for rows in order.split(size)[first:]:
        yield images.index_select(0, rows), labels.index_select(0, rows)


# %%
lesson04.resume.check(resumed)

# %% [markdown]
# ## A slice is the data set
#
# A slice shares its memory with the data set. So `div_`, which works *in place*, changes all later epochs:

# %%
with lv.record(on=GPU, host=HOST):
    data = images[:20_480].float().to("cuda")
    for epoch in range(3):
        print(f"epoch {epoch}: mean of the data {data.mean().item():9.5f}")
        for x in data.split(2048):
            x.div_(255)

# %%
lesson04.safe


# %% tags=["starter"]
# Exercise 4.3
def safe_batches(images, labels, size, epochs):
    """Yield batches that may be changed."""
    images, labels = images.float().to("cuda"), labels.to("cuda")
    for epoch in range(epochs):
        for start in range(0, len(images), size):
            yield images[start : start + size], labels[start : start + size]


# %% tags=["exercise"]
# Exercise 4.3
def safe_batches(images, labels, size, epochs):
    """Yield batches that may be changed."""
    images, labels = images.to("cuda"), labels.to("cuda")  # as stored: uint8
    for epoch in range(epochs):
        for start in range(0, len(images), size):
            yield images[start : start + size].float(), labels[start : start + size]  # float() makes a new tensor


# %%
lesson04.safe.check(safe_batches)

# %% [markdown]
# ## Try
#
# Add `x.zero_()` to `train`, after the step. What do `resident("batches")` and `slices()` say?
#
# ## The same code on a real GPU

# %% tags=["gpu"]
if torch.cuda.is_available():
    on_gpu, count = ResidentLoader((images, labels), 2048), len(usual_loader)
    print(f"{torch.cuda.get_device_name()}")
    print(f"DataLoader     {loop.gpu_milliseconds(train, usual_loader, count):.3f} ms a step")
    print(f"ResidentLoader {loop.gpu_milliseconds(train, on_gpu, count):.3f} ms a step")
else:
    print("Skipped: PyTorch sees no CUDA GPU here. On a machine with one, this cell times both loops on it.")

# %% [markdown]
# ## Recap
#
# * A small data set belongs on the GPU, as it is stored.
# * Shuffle samples, not slices: one gather per batch.
# * Never change a slice in place.
#
# Next: [5. Find the bug](05_find_the_bug.ipynb)

# %% tags=["picture"]
# the copy in a stream of its own
from stills import batches, train

from loaderviz.loaders import PrefetchLoader

train(lambda: PrefetchLoader(batches(9, pinned=True))).view(title="Lesson 3: a later batch is copied meanwhile")

# %% tags=["claims"]
assert summary.compute_share < 0.2 and summary.breakdown["idle: host fetches a batch"] > summary.window / 2
assert lv.summarize(sliced).copy == 0 and lv.summarize(sliced).headroom < 1.05
assert mates["batches"] == 255 and mates["samples"] > 2000
assert lv.summarize(orders["cpu"]).step > 1.02 * lv.summarize(orders["cuda"]).step
assert lv.advise(orders["cpu"])[0].kind == "index-on-host" and not lv.summarize(orders["cuda"]).copy
assert sum(count == 1 for count in classes) > len(classes) / 2
assert accuracy["batches"] < accuracy["samples"] - 0.1
# a gather has its price
assert runs["batches"].step < runs["samples"].step < 1.1 * runs["batches"].step

# %% [markdown] tags=["guide"]
# ### 4. The data set on the GPU
#
# Asks: why carry it in every epoch?
#
# Idea: The fastest copy is no copy. Shuffle samples, and not slices.
#
# Exercises: 4.a (1), 4.1 (8), 4.2 (8), 4.3 (6)
#
# * **Say:** "We spent three lessons hiding a copy. Now we stop copying."
# * **Stuck:** in 4.1 people write `images[rows]` with `rows` on the host. The lesson shows what that costs, a copy and
#   a wait for each use (R46), and the check names it. In 4.2 people seed the global generator.
# * **If asked:** `"blocks"` shuffles short pieces of neighbours. `ResidentLoader(..., method="permute")` makes one
#   gather in each epoch. A gather makes a copy, so you may change it in place. Where `ResidentLoader` hands out slices
#   instead, it notices such a change and raises an error. A low utilisation curve means that the GPU waits. It does not
#   say what the GPU waits for.
# * **Ask:** "The utilisation is at 100 %. Are we done?" No: it says that some kernel runs, and not that the kernel runs
#   well.

# %% [markdown] tags=["answers"]
# ## 4. The data set on the GPU
#
# <!-- guess_usual 57ca3c32 -->
# * *What takes the largest part of a step?* **the host makes the next batch**: the GPU is idle for
#   <!--=summary.idle / summary.window:.0%-->85 %<!----> of the time.
#
# <!-- guess_mates cba9e50e -->
# * *Slices of 256, shuffled, ten epochs: how many other samples does sample 0 meet in total?* **255**, in ten epochs;
#   with shuffled samples <!--=mates['samples']:,-->2,498<!---->.
#
# * **Exercise 4.a:** `.to("cuda")` of the whole data set, before the first epoch.
# * **Exercise 4.1:** one `randperm` an epoch, moved once, and `index_select` a batch.
# * **Exercise 4.2:** the order must be a function of the epoch: `torch.Generator().manual_seed(epoch)`, then leave out
#   the first `first` batches.
# * **Exercise 4.3:** keep `uint8` on the GPU; `.float()` of a slice makes a new tensor, so nobody can spoil the data
#   set.
