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
# # 0. Start here
#
# ![A host and a GPU as boxes: a batch lies in host memory, another one travels over the link, a third one has been
# computed with.](pictures/00_start_here.png)
#
# **The question of this course: does my data reach the GPU while the GPU is computing, and if not, why?**
#
# You will see it. **You need no GPU:** your code runs on an *emulated* one, and loaderviz draws what happens when.
# The next cells are the machine, moving.
#
# Time: about 20 minutes. Afterwards you can record a training loop, read its timeline, and say what overlap could win.

# %%
import textwrap

import torch
from torch.utils.data import DataLoader, TensorDataset

import loaderviz as lv
from loaderviz import experiment, mnist, words
from loaderviz.emulator import Gpu
from loaderviz.workshop import lesson00, predict
from loaderviz.workshop.loop import HOST, gpu_milliseconds, new_model, show_code, train_step

# %%
lesson00.machine()

# %% [markdown]
# A batch starts in the memory of the computer, the *host*. The driver stages it in a buffer, the *copy engine* fetches
# it from there over the link, and the SMs compute with it. Look at the SMs: who keeps them waiting?
#
# ## The course
#
# | | lesson | its question | minutes |
# |---|---|---|---:|
# | 0 | Start here | how do I read the picture? | 20 |
# | 1 | [The blocking copy](01_blocking_copy.ipynb) | what does `x.to("cuda")` cost in a training loop? | 30 |
# | 2 | [Pinned memory](02_pin_memory.ipynb) | what does it change, and what does it not change? | 30 |
# | 3 | [Non-blocking copies and prefetch](03_non_blocking_prefetch.ipynb) | what hides a copy? | 55 |
# | 4 | [The data set on the GPU](04_gpu_resident_slicing.ipynb) | why carry a small data set in every epoch? | 35 |
# | 5 | [Find the bug](05_find_the_bug.ipynb) | which of these prefetchers gives wrong numbers? | 35 |
# | 6 | [Workers](06_workers.ipynb) | workers, pin thread, copy or GPU: which one is too slow? | 30 |
# | 7 | [Your own trace](07_your_own_trace.ipynb) | what does my own training loop do? | 30 |
# | 8 | [Capstone](08_capstone.ipynb) | how close to the limit can I bring a training? | 40 |
# | 9 | [What the articles say](09_what_the_articles_say.ipynb) | is it true what people repeat? | 40 |
# | 10 | [Extras](10_extras.ipynb) | graphs, chunks, augmentation: what else is there? | 10 |
#
# Lessons 1 to 4 are one story. Each lesson goes the same way: **predict**, **run**, **see**, read why, then solve an
# **exercise**. The check judges what your code *does*. How you write it is up to you. [All terms](terms.md) are on one
# page.

# %% [markdown]
# ## The data, and a training loop
#
# 60,000 pictures of digits: MNIST, or, without it, digits that loaderviz draws. For these lessons both are equally
# good.

# %%
GPU = "laptop"  # the GPU to emulate; other names: "t4", "a100", "h100", "h200"
BATCH = 2048
images, labels = mnist.tensors(train=True)
print(f"images {tuple(images.shape)}, labels {tuple(labels.shape)}: {words.size(images.nbytes + labels.nbytes)}")

# %% [markdown]
# And this is ordinary PyTorch for a CUDA GPU; nothing in it knows about loaderviz.

# %%
show_code(new_model, train_step)


# %%
def train(loader):
    """Train on all batches of the loader; return the last loss."""
    model, optimizer = new_model()
    for x, y in loader:
        loss = train_step(model, optimizer, x.to("cuda"), y.to("cuda"))
    return loss


# %% [markdown]
# ## Predict
#
# In each step a batch is put together, copied to the GPU (the *device*), and then the GPU computes. Say what you
# expect; nobody is surprised without having said something.

# %%
busy = predict(
    "In which share of the time does the GPU compute?",
    ["more than half of the time", "between a fifth and a half", "less than a fifth"],
    answer=lambda: 1 + (summary.compute_share < 0.5) + (summary.compute_share < 0.2),
)
busy

# %% [markdown]
# ## Run
#
# Put the loop into `with lv.record(...)`. Inside, "cuda" is the emulated GPU, and `HOST` the computer around it. The
# first batches are special: memory is taken for the first time. `from_batch(3)` leaves them out of the picture.

# %%
subset = TensorDataset(images[: 7 * BATCH].float() / 255, labels[: 7 * BATCH])
loader = DataLoader(subset, BATCH)
with lv.record(on=GPU, host=HOST) as recording:
    loss = train(loader)
    print(f"the loss is a real number: {loss.item():.4f}")
timeline = recording.timeline

# %%
steady = timeline.from_batch(3)
steady.view(verdict=False)

# %% [markdown]
# ## See: how to read it
#
# **A row is a place, time goes to the right, a colour is a batch.** The rows are in the order in which a batch travels:
#
# * `main thread: batches`: which batch the Python program is at, and below it parts of that step.
# * `main thread: loading and CUDA calls`: what the program calls; the long bars are the `DataLoader`, which makes the
#   next batch. `main thread waits`, hatched: the host is blocked; the mouse says by what.
# * `copy engine to GPU`: copies from host to device. `copy engine from GPU`: back; here only the loss, at the end.
# * `default stream`: the queue in which the GPU works. Thick bars compute, thin bars are copies.
# * `what the GPU does`: computing, a copy that keeps it from computing (*exposed*), a copy during the computing
#   (*hidden*), idle.
#
# Follow one colour from the top left to the bottom right. In a *good* picture the lanes of the GPU have **different
# colours at the same time**: batch 5 is copied while batch 4 is computed. Here they have one colour at a time, and long
# pauses in between.
#
# Move the mouse over a bar; drag to zoom in, double click to zoom out. Every picture also comes in words and in
# numbers:

# %%
print(textwrap.fill(steady.view().text(), 110))

# %%
summary = lv.summarize(steady)
summary

# %%
busy.reveal()

# %% [markdown]
# Most of the time goes into making the batch, sample by sample, on the host ("host fetches a batch"). So why do the
# next lessons work on the copy, which comes second? Because workers can take the making off the loop ([lesson
# 6](06_workers.ipynb)), and then the copy is what is left.
#
# The *limit* is the longer one of two times: that of all computing and that of all copies. *Headroom* says how many
# times as long the loop takes now.
#
# ## Exercise
#
# Write your code in place of the `...`, run it, run the check, as often as you like. Stuck? Type
# `lesson00.reading.hint()` into a new cell.

# %%
lesson00.reading

# %% tags=["starter"]
# Exercise 0.1
import loaderviz as lv


def exposed_share(timeline):
    """Return the share of the time in which a copy keeps the GPU from computing, from 0 to 1."""
    summary = lv.summarize(timeline)
    return ...


# %% tags=["exercise"]
# Exercise 0.1
import loaderviz as lv


def exposed_share(timeline):
    """Return the share of the time in which a copy keeps the GPU from computing, from 0 to 1."""
    summary = lv.summarize(timeline)
    return summary.exposed_copy / summary.window


# %%
lesson00.reading.check(exposed_share)

# %% [markdown]
# ## Four ways to feed a GPU
#
# This is where the lessons go. Each of the four trains the same network from the same start:
#
# | loader | how a batch reaches the GPU | lesson |
# |---|---|---|
# | blocking | copied when it is needed; the host waits for it | [1](01_blocking_copy.ipynb) |
# | pinned | from page-locked memory; the host does not wait, the GPU does | [2](02_pin_memory.ipynb) |
# | prefetch | in a stream of its own, while the GPU computes the batch before | [3](03_non_blocking_prefetch.ipynb) |
# | resident | not at all: the data set is on the GPU | [4](04_gpu_resident_slicing.ipynb) |
#
# The first three get their batches from two worker processes, which make them while the loop trains.

# %%
first = predict(
    "Which is the first of the four that hides most of its copies under the computing?",
    ["blocking", "pinned", "prefetch", "none of them"],
    answer=lambda: next((name for name in runs if comparison.summaries()[name].overlap > 0.5), "none of them"),
)
first

# %%
setting = experiment.Setting(batch_size=BATCH, steps=4, warmup=12, workers=2)
runs = experiment.four_loaders(setting, on=GPU, host=HOST)
comparison = lv.compare({name: run.timeline for name, run in runs.items()}, verdict=False)
comparison

# %%
for name, run in runs.items():
    print(f"{name:9} loss of the last batch {run.loss:.6f}")
comparison.table()[["step [µs]", "GPU computes [%]", "copy [ms]", "copy hidden [%]", "speed-up"]].round(2)

# %%
first.reveal()

# %% [markdown]
# In the first two, copying and computing take turns. In the third one the copy engine has another colour than the
# stream: this is overlap. In the fourth one nothing is copied. The losses are equal: all do the same work, only at
# other times.
#
# ## What the emulated GPU promises
#
# * **The values are real**, computed on your CPU.
# * **The order of things is right.** It follows the rules of CUDA. The lessons name them by numbers, such as R16;
#   `lv.rule("R16")` shows one.
# * **A forgotten wait shows.** Until something waits for a copy, its numbers are `nan`. Other races leave the numbers
#   right; then the report names them.
# * **The time is virtual:** with a host by name the same program gives the same timeline on every computer, to the
#   nanosecond. Without one (`lv.record(on=GPU)`) your own Python and data set take as long as they do on yours.
#
# It does **not** promise microseconds. It tells you what waits for what, and what the bottleneck is *for the host that
# you name*: on another host the same loop can wait for something else. Let us test the promise about the time, and look
# at some numbers of the model. Every number has a source, or it is called "assumed".

# %%
with lv.record(on=GPU, host=HOST) as again:
    train(loader).item()
same = (again.timeline.start == timeline.start).all() and (again.timeline.end == timeline.end).all()
print(f"{len(timeline)} spans, all at the same nanosecond as before: {same}")

# %%
gpu = Gpu.preset(GPU)
for name, unit in {"h2d": "GB/s", "pageable": "GB/s", "memory_bandwidth": "GB/s", "copy_latency": "µs"}.items():
    value = getattr(gpu, name) / (1e9 if unit == "GB/s" else 1e3)
    print(textwrap.fill(f"{name}: {value:g} {unit} ({gpu.source(name)})", 110, subsequent_indent="    "))

# %% [markdown]
# ## Try
#
# The explorer has the most important settings of this course, one live timeline, and the code that the settings mean.
#
# * Press the four buttons with the names of the loaders, one after the other.
# * With `prefetch`, make the batch smaller, step by step. What does the loop wait for now?
# * Begin with `blocking`. Switch on `pin_memory`, `non_blocking` and the side stream, in any order. At the end set
#   `batches ahead` to 1. Which of the four hides a copy by itself?

# %%
lv.explore()

# %% [markdown]
# ## The same code on a real GPU
#
# The function `train` is ordinary PyTorch, so it runs on a real GPU as it is. Every lesson ends with such a cell.

# %% tags=["gpu"]
if torch.cuda.is_available():
    print(f"{torch.cuda.get_device_name()}: {gpu_milliseconds(train, loader):.3f} ms a step")
else:
    print("Skipped: PyTorch sees no CUDA GPU here. On a machine with one, this cell times the loop on it.")

# %% [markdown]
# ## Recap
#
# * `lv.record(on=GPU, host=HOST)` records; `recording.timeline.view()` draws; `lv.summarize` gives numbers.
# * Different colours at the same time in the lanes of the GPU are overlap. Only the time of an *exposed* copy can be
#   won by it.
# * Two of the four showed such colours, or had no copy at all. Lessons 1 to 4 show why.
# * The emulated GPU promises what waits for what, not microseconds.
#
# Next: [1. The blocking copy](01_blocking_copy.ipynb)
