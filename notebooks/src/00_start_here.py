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
# ![A timeline of three batches: above the rows of the host, with its calls and its waits; below the rows of the
# GPU, where each batch is copied by the H2D engine and then computed with in the stream. Each batch has its own
# colour.](pictures/00_start_here.png)
#
# **The question of this course: does my data reach the GPU while the GPU is computing, and if not, why?**
#
# A GPU can only compute on data that is in its own memory. While it waits for data, it does nothing.
# loaderviz draws when data moves and when the GPU computes, so that you can *see* who waits for whom.
#
# After this notebook you can
#
# * record a training loop and draw its timeline;
# * read the picture: lanes, colours, waits, the strip at the bottom;
# * say how much a loop could win by overlap, and which ways of feeding a GPU have overlap;
# * say what the emulated GPU promises, and what it does not.
#
# Time: about 20 minutes. **You need no GPU.** Your code runs on an *emulated* one.

# %% [markdown]
# ## The course
#
# | | lesson | its question | minutes |
# |---|---|---|---:|
# | 0 | Start here | how do I read the picture? | 20 |
# | 1 | [The blocking copy](01_blocking_copy.ipynb) | what does `x.to("cuda")` cost in a training loop? | 25 |
# | 2 | [Pinned memory](02_pin_memory.ipynb) | what does it change, and what does it not change? | 25 |
# | 3 | [Non-blocking copies and prefetch](03_non_blocking_prefetch.ipynb) | what hides a copy? | 40 |
# | 4 | [The data set on the GPU](04_gpu_resident_slicing.ipynb) | why carry a small data set in every epoch? | 40 |
# | 5 | [Find the bug](05_find_the_bug.ipynb) | which of these prefetchers gives wrong numbers? | 45 |
# | 6 | [Workers](06_workers.ipynb) | workers, pin thread, copy or GPU: which one is too slow? | 30 |
# | 7 | [Your own trace](07_your_own_trace.ipynb) | what does my own training loop do? | 30 |
# | 8 | [Capstone](08_capstone.ipynb) | how close to the limit can I bring a training? | 45 |
# | 9 | [What the articles say](09_what_the_articles_say.ipynb) | is it true what people repeat? | 40 |
#
# Lessons 1 to 4 are one story, in this order. Each lesson goes the same way: **predict** what will happen, **run** it,
# **see** it in the picture, read why, then solve an **exercise**. The check runs your code on the emulated GPU and
# judges what it *does*. How you write it is up to you.

# %%
import textwrap

import torch
from torch.utils.data import DataLoader, TensorDataset

import loaderviz as lv
from loaderviz import experiment, mnist, words
from loaderviz.emulator import Gpu
from loaderviz.workshop import lesson00, predict
from loaderviz.workshop.loop import gpu_milliseconds, new_model, show_code, train_step

# %% [markdown]
# ## The data
#
# 60,000 pictures of digits. If the real MNIST is not on this computer and cannot be downloaded, loaderviz draws digits
# of the same size and says so in one line. For these lessons both are equally good.

# %%
GPU = "laptop"  # the GPU to emulate; other names: "t4", "a100", "h100", "h200"
BATCH = 2048
images, labels = mnist.tensors(train=True)
print(f"images {tuple(images.shape)}, labels {tuple(labels.shape)}: {words.size(images.nbytes + labels.nbytes)}")

# %% [markdown]
# ## A training loop
#
# This is ordinary PyTorch for a CUDA GPU. Nothing in it knows about loaderviz. The network and the training step are
# the same in all lessons, so they stand in a file. Here they are:

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
# The images are in the memory of the computer (the *host*). The GPU is the *device*.
# In each step of the loop a batch is put together, copied to the GPU, and then the GPU computes.

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
# Put the loop into `with lv.record(...)`. Inside, "cuda" is the emulated GPU.
# The first batches are special: memory is taken for the first time. `from_batch(3)` leaves them out of the picture.

# %%
subset = TensorDataset(images[: 7 * BATCH].float() / 255, labels[: 7 * BATCH])
loader = DataLoader(subset, BATCH)
with lv.record(on=GPU) as recording:
    loss = train(loader)
    print(f"the loss is a real number: {loss.item():.4f}")
timeline = recording.timeline

# %%
steady = timeline.from_batch(3)
steady.view(verdict=False)

# %% [markdown]
# ## See: how to read it
#
# Time goes from left to right. Each row is a *lane*. They are in the order in which a batch travels:
#
# * `main · ranges`: where the Python program is, that is, which batch the loop is at. The row below it, `nested`, shows
#   parts of that step; here the long ones are the `DataLoader`, which makes the next batch.
# * `main · calls`: what the program calls. The longest bars are again the making of the next batch, the short ones are
#   calls of CUDA.
# * `main · waits`, hatched: the host is blocked. The text, or the mouse over it, says by what.
# * `H2D engine`: the part of the GPU that copies from host to device. `D2H engine` copies back; here it only brings the
#   loss at the end.
# * `stream 7 (default)`: the queue in which the GPU works. Thick bars compute, thin bars are copies.
# * `GPU state`, the strip at the bottom, has its own colours: computing, a copy that keeps the GPU from computing
#   (*exposed*), a copy during the computing (*hidden*), or idle.
#
# Each batch has one colour. Follow one colour from the top left to the bottom right: it is the way of that batch.
# In a *good* picture the lanes of the GPU have **different colours at the same time**: batch 5 is copied while batch 4
# is computed. Here they have one colour at a time, and long pauses in between, in which the GPU waits for the host.
#
# Move the mouse over a bar to see what it is. Drag to zoom in; a double click zooms out.
# `steady.view(color="kind")` colours by *what* happens instead of *for which batch*.
#
# You can also have every picture in words, for people who cannot see it, or for a log file. And in numbers:

# %%
print(textwrap.fill(steady.view().text(), 110))

# %%
summary = lv.summarize(steady)
summary

# %%
busy.reveal()

# %% [markdown]
# The lower table says where the time goes. In this loop most of it goes into making the batch, sample by sample, on the
# host ("host fetches a batch", lesson 6). The copy comes second. The picture has four batches, but the making of only
# three: it begins when batch 3 is ready.
#
# The *limit* is the longer one of two times: that of all computing and that of all copies, here the copies. Even if all
# of the shorter one is hidden, the loop takes at least the limit. *Headroom* says how many times as long it takes now.
#
# ## Exercise
#
# Run the next cell to see the task. Write your code in place of the `...`, run it, run the check, as often as you
# like. If you are stuck, type `lesson00.reading.hint()` into a new cell.

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
runs = experiment.four_loaders(setting, on=GPU, host="laptop")
comparison = lv.compare({name: run.timeline for name, run in runs.items()}, verdict=False)
comparison

# %%
for name, run in runs.items():
    print(f"{name:9} loss of the last batch {run.loss:.6f}")
comparison.table()[["step [µs]", "GPU computes [%]", "copy [ms]", "copy hidden [%]", "speed-up"]].round(2)

# %%
first.reveal()

# %% [markdown]
# Look at the rows `H2D engine` and `stream 7` of each of the four. In the first two, copying and computing take turns.
# In the third one the copy engine has another colour than the computing stream: this is overlap. The fourth one has no
# row `H2D engine`: nothing is copied to the GPU. (There the GPU puts each batch together by itself, and computes a
# little longer. Lesson 4.)
#
# The losses are equal: all do the same work, only at other times. The workers are not in the picture: they had made
# these batches before it begins. Lesson 2 shows them.
#
# ## What the emulated GPU promises
#
# * **The values are real.** Every number is computed, on your CPU. The loss is the loss.
# * **The order of things is right.** It follows the rules of CUDA: which call waits, what can overlap with what.
#   The lessons name the rules by numbers, such as R16.
# * **Mistakes show every time.** If your code forgets to wait for a copy, you get `nan`, on every run.
# * **The time is virtual.** It comes from a model of the GPU and of the host. It does not depend on your computer:
#   the same program gives the same timeline, to the nanosecond.
#
# It does **not** promise microseconds. It tells you what the bottleneck is and what waits for what. On a real GPU the
# numbers will be different. Every number of the model has a source, or it is called "assumed".
# Let us test the promise about the time, and look at some of the numbers:

# %%
with lv.record(on=GPU) as again:
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
# * With `prefetch`, make the batch smaller, step by step. What does the loop wait for now? Is it still faster than
#   `pinned` with the same batch?
# * Begin with `blocking`. Switch on `pin_memory`, `non_blocking` and the side stream, one after the other, in any
#   order. At the end set `batches ahead` to 1. Which of the four hides a copy by itself?

# %%
lv.explore()

# %% [markdown]
# ## The same code on a real GPU
#
# The function `train` is ordinary PyTorch, so it runs on a real GPU as it is. Every lesson ends with such a cell.
# It is skipped where there is no GPU.

# %% tags=["gpu"]
if torch.cuda.is_available():
    print(f"{torch.cuda.get_device_name()}: {gpu_milliseconds(train, loader):.3f} ms a step")
else:
    print("Skipped: PyTorch sees no CUDA GPU here. On a machine with one, this cell times the loop on it.")

# %% [markdown]
# ## Recap
#
# * `lv.record(on="laptop")` records; `recording.timeline.view()` draws; `lv.summarize` gives numbers.
# * Look for different colours at the same time in the lanes of the GPU. That is overlap. Only the time of an *exposed*
#   copy can be won by it.
# * Two of the four showed such colours, or had no copy at all. Lessons 1 to 4 show why.
# * The emulated GPU promises order and bottleneck, not microseconds.
#
# Next: [1. The blocking copy](01_blocking_copy.ipynb)
