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
# ![Host and GPU as boxes: batches travel over the link, one after the other.](pictures/00_start_here.svg)
#
# **The question of this course: does my data reach the GPU while the GPU is computing, and if not, why?**
#
# A batch starts in the memory of the computer, the *host*. The driver puts it into a *staging buffer*, the GPU's *copy
# engine* fetches it over the link, and its processors, the SMs, compute.
#
# **You need no GPU:** your code runs on an *emulated* one.
#
# Time: about 15 minutes.

# %%
import textwrap

import torch
from torch.utils.data import DataLoader, TensorDataset

import loaderviz as lv
from loaderviz import mnist, words
from loaderviz.workshop import lesson00, predict, progress
from loaderviz.workshop.loop import HOST, gpu_milliseconds, new_model, train_step

progress()

# %% [markdown]
# ## The loop

# %%
GPU = "laptop"
BATCH = 2048
images, labels = mnist.tensors(train=True)
print(f"images {tuple(images.shape)}, labels {tuple(labels.shape)}: {words.size(images.nbytes + labels.nbytes)}")


# %%
def train(loader):
    """Train on all batches."""
    model, optimizer = new_model()
    for x, y in loader:
        loss = train_step(model, optimizer, x.to("cuda"), y.to("cuda"))
    return loss


# %%
busy = predict(
    "In which share of the time does the GPU compute?",
    ["more than half", "between a fifth and a half", "less than a fifth"],
    answer=lambda: 1 + (summary.compute_share < 0.5) + (summary.compute_share < 0.2),
)
busy

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
# ## How to read it
#
# **A row is a place, time goes to the right, a colour is a batch.**
#
# * `main thread`: the Python program. A long bar makes a batch. Hatched: the host is blocked.
# * `copy engine`: copies to the GPU, and back.
# * `default stream`: the queue of the GPU. Thick bars compute (*kernels*), thin ones copy.
# * `what the GPU does`: computing, an *exposed* copy (the GPU computes nothing), a *hidden* copy, idle.
#
# In a *good* picture the rows of the GPU have **different colours at the same time**.

# %%
print(textwrap.fill(steady.view().text(), 110))

# %%
summary = lv.summarize(steady)
summary

# %%
busy.reveal()

# %% [markdown]
# Workers can make the batches ([lesson 6](06_workers.ipynb)); the copy remains. Look for a hidden one:

# %%
lesson00.puzzle().view(verdict=False)

# %%
lesson00.look


# %% tags=["starter"]
# Exercise 0.a
def hidden():
    """Return its number."""
    return ...


# %% tags=["exercise"]
# Exercise 0.a
def hidden():
    """Return its number."""
    return 3


# %%
lesson00.look.check(hidden)

# %% [markdown]
# ## Exercise
#
# Replace the `...` with your code.

# %%
lesson00.reading

# %% tags=["starter"]
# Exercise 0.1
import loaderviz as lv


def exposed_share(timeline):
    """Return a share, from 0 to 1."""
    summary = lv.summarize(timeline)
    return ...


# %% tags=["exercise"]
# Exercise 0.1
import loaderviz as lv


def exposed_share(timeline):
    """Return a share, from 0 to 1."""
    summary = lv.summarize(timeline)
    return summary.exposed_copy / summary.window


# %%
lesson00.reading.check(exposed_share)

# %% [markdown]
# ## The course
#
# | | lesson | its question | minutes |
# |---|---|---|---:|
# | 0 | Start here | how do I read the picture? | 15 |
# | 1 | [The blocking copy](01_blocking_copy.ipynb) | what does `x.to("cuda")` cost? | 25 |
# | 2 | [Pinned memory](02_pin_memory.ipynb) | what does it change? | 25 |
# | 3 | [Non-blocking copies and prefetch](03_non_blocking_prefetch.ipynb) | what hides a copy? | 45 |
# | 4 | [The data set on the GPU](04_gpu_resident_slicing.ipynb) | why carry it in every epoch? | 30 |
# | 5 | [Find the bug](05_find_the_bug.ipynb) | which loader is wrong? | 25 |
# | 6 | [Workers](06_workers.ipynb) | which station is too slow? | 25 |
# | 7 | [Your own trace](07_your_own_trace.ipynb) | what does my training do? | 25 |
# | 8 | [Capstone](08_capstone.ipynb) | how close to the limit? | 35 |
# | 9 | [What the articles say](09_what_the_articles_say.ipynb) | is it true? | 25 |
# | 10 | [Extras](10_extras.ipynb) | what else is there? | 10 |
# | 11 | [An article repaired](11_an_article_repaired.ipynb) | what comes first? | 30 |
#
# [All terms](terms.md)
#
# ## Four ways to feed a GPU
#
# | loader | how a batch reaches the GPU |
# |---|---|
# | blocking | copied when needed; the host waits |
# | pinned | from page-locked memory, which cannot move |
# | prefetch | ahead, in a stream of its own |
# | resident | the data set is on the GPU |

# %%
first = predict(
    "Which is the first of the four that hides most of its copies?",
    ["blocking", "pinned", "prefetch", "none of them"],
    answer=lambda: next((name for name in runs if comparison.summaries()[name].overlap > 0.5), "none of them"),
)
first

# %%
from loaderviz import experiment

setting = experiment.Setting(batch_size=BATCH, steps=4, workers=2)
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
# The losses are equal: the same work. `resident` copies nothing, but kernels *gather* each batch:

# %%
gather = experiment.gather(runs)
steps = {name: comparison.summaries()[name].step for name in ("prefetch", "resident")}
print(f"prefetch: a step takes {words.duration(steps['prefetch'])}")
print(f"resident: a step takes {words.duration(steps['resident'])}")
print(f"In it, kernels that gather ({', '.join(gather.kernels)}) take {words.duration(gather.time)}.")

# %% [markdown]
# ## What the emulated GPU promises
#
# * **The values are real**, computed on your CPU.
# * **The order is right:** it follows numbered rules of CUDA, such as R16.
# * **A forgotten wait shows** as `nan`, or a report names it.
# * **The time is virtual:** the same on every computer.
#
# Real microseconds may **differ**.

# %%
with lv.record(on=GPU, host=HOST) as again:
    train(loader).item()
same = (again.timeline.start == timeline.start).all() and (again.timeline.end == timeline.end).all()
print(f"{len(timeline)} bars, all at the same nanosecond as before: {same}")

# %%
from loaderviz.emulator import Gpu

gpu = Gpu.preset(GPU)
for name, unit in {"h2d": "GB/s", "pageable": "GB/s", "memory_bandwidth": "GB/s", "copy_latency": "µs"}.items():
    value = getattr(gpu, name) / (1e9 if unit == "GB/s" else 1e3)
    print(textwrap.fill(f"{name}: {value:g} {unit} ({gpu.source(name)})", 110, subsequent_indent="    "))

# %% [markdown]
# ## Try
#
# With `prefetch`, make the batch ever smaller. Which two things does the loop wait for?

# %%
lv.explore(gpu=GPU, batch_size=BATCH, sample_bytes=subset[0][0].nbytes)

# %% [markdown]
# ## The same code on a real GPU

# %% tags=["gpu"]
if torch.cuda.is_available():
    print(f"{torch.cuda.get_device_name()}: {gpu_milliseconds(train, loader):.3f} ms a step")
else:
    print("Skipped: PyTorch sees no CUDA GPU here. On a machine with one, this cell times the loop on it.")

# %% [markdown]
# ## Recap
#
# * `lv.record` records; `recording.timeline.view()` draws; `lv.summarize` gives numbers.
# * Two colours at the same time are overlap. It can save *exposed* copies.
# * The *limit* is the longer of two times: all computing, all copies.
#
# Next: [1. The blocking copy](01_blocking_copy.ipynb)

# %% tags=["picture"]
from loaderviz.workshop.lessons.lesson00 import machine

machine()

# %% tags=["claims"]
assert same
assert summary.compute_share < 0.2 and summary.overlap == 0
assert max((time, part) for part, time in summary.breakdown.items())[1] == "idle: host fetches a batch"
assert sorted(summary.breakdown.items(), key=lambda part: part[1])[-2][0] == "copy exposed"
assert len({run.loss for run in runs.values()}) == 1
assert comparison.summaries()["pinned"].overlap == 0 < comparison.summaries()["prefetch"].overlap
assert not lv.summarize(runs["resident"].timeline).h2d
assert 0.8 < (steps["resident"] - steps["prefetch"]) / gather.time < 1.2
tried = lv.explore("prefetch", gpu=GPU, batch_size=BATCH, sample_bytes=subset[0][0].nbytes, name="tried")
assert "waiting for the next batch" in tried.text()
tried.set(batch_size=BATCH // 16, compute=tried.settings.compute // 16)
assert "launching" in tried.text()

# %% [markdown] tags=["guide"]
# ### 0. Start here
#
# Asks: how do I read the picture?
#
# Idea: In the picture, one colour is one batch. Look for different colours at the same time.
#
# Exercises: 0.a (1), 0.1 (5)
#
# * **Say:** "A row is a place, time goes to the right, and a colour is a batch. In a good picture the rows have
#   different colours at the same time."
# * **Stuck:** people divide by the time of the copy. Or they return `copy_share`, which counts the hidden part of the
#   copy, too.
# * **If asked for two numbers of the table:** the *limit* is the longer one of two times: the time of all computing,
#   and the time of all copies. The *headroom* says how many times as long as the limit the loop takes now.
# * **If asked "is this real?":** the values are real: the loss is that of the CPU, bit for bit. The order of things is
#   real, too. The microseconds come from a model. Lesson 7 puts `recorded` beside `emulated`.

# %% [markdown] tags=["answers"]
# ## 0. Start here
#
# <!-- busy ec45e57d -->
# * *In which share of the time does the GPU compute?* **less than a fifth**
#   (<!--=summary.compute_share:.0%-->9 %<!---->): the host makes the batches, sample by sample.
#
# <!-- first 0a0c16b9 -->
# * *Which is the first of the four that hides most of its copies?* **prefetch**. Pinned memory alone hides nothing.
#
# * **Exercise 0.a:** 3: it is copied while the GPU computes on batch 2.
# * **Exercise 0.1:** `summary.exposed_copy / summary.window`: only the exposed part of the copy can be won.
