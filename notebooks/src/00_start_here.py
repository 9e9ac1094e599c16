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
# **The question of this course: does my data reach the GPU while the GPU is computing, and if not, why?**
#
# A GPU can only compute on data that is in its own memory. While it waits for data, it does nothing.
# loaderviz draws when data moves and when the GPU computes, so that you can *see* who waits for whom.
#
# After this notebook you can
#
# * record a training loop and draw its timeline;
# * read the picture: lanes, colours, waits, the strip at the bottom;
# * say which of four ways to feed a GPU with MNIST is the fastest here, and why;
# * say what the emulated GPU promises, and what it does not.
#
# Time: about 15 minutes. **You need no GPU.** Your code runs on an *emulated* one.

# %%
import textwrap

import torch

import loaderviz as lv
from loaderviz import draw, experiment, mnist, words
from loaderviz.emulator import Gpu

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
# This is ordinary PyTorch for a CUDA GPU. Nothing in it knows about loaderviz.


# %%
def make_network():
    """Return a small network on the GPU and its optimizer."""
    torch.manual_seed(0)
    layers = torch.nn.Linear(784, 384), torch.nn.ReLU(), torch.nn.Linear(384, 10)
    network = torch.nn.Sequential(torch.nn.Flatten(), *layers).to("cuda")
    return network, torch.optim.SGD(network.parameters(), lr=0.1)


# %%
def train(loader):
    """Train on all batches of the loader; return the last loss."""
    network, optimizer = make_network()
    for x, y in loader:
        x, y = x.to("cuda"), y.to("cuda")
        loss = torch.nn.functional.cross_entropy(network(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss


# %% [markdown]
# ## Predict
#
# The images are in the memory of the computer (the *host*). The GPU is the *device*.
# In each step of the loop a batch is put together, copied to the GPU, and then the GPU computes.
#
# **Before you go on: in which share of the time does the GPU compute? Write down a number.**
#
# ## Run
#
# Put the loop into `with lv.record(...)`. Inside, "cuda" is the emulated GPU.

# %%
subset = torch.utils.data.TensorDataset(images[: 9 * BATCH].float() / 255, labels[: 9 * BATCH])
loader = torch.utils.data.DataLoader(subset, BATCH)
with lv.record(on=GPU) as recording:
    loss = train(loader)
    print(f"the loss is a real number: {loss.item():.4f}")
timeline = recording.timeline

# %% [markdown]
# The first batches are special: memory is taken for the first time. `from_batch(3)` leaves them out.

# %%
steady = timeline.from_batch(3)
steady.figure(color="batch")

# %% [markdown]
# ## How to read it
#
# Time goes from left to right. Each row is a *lane*. They are in the order in which a batch travels:
#
# * `main` is the Python program: the `ranges` show which batch the loop is at; the `calls` are calls of CUDA, and, in
#   the longest bars, the making of the next batch.
# * `main · waits`, hatched: the host is blocked. The text says by what.
# * `H2D engine`: the part of the GPU that copies from host to device.
# * `stream 7 (default)`: the queue in which the GPU works. Thick bars compute, thin bars are copies.
# * `GPU state`, the strip at the bottom, has its own colours: computing, a copy that keeps the GPU from computing
#   (*exposed*), a copy during the computing (*hidden*), or idle.
#
# With `color="batch"` each batch has one colour. Follow one colour from the top left to the bottom right:
# it is the way of that batch. In a *good* picture the lanes have **different colours at the same time**:
# batch 5 is copied while batch 4 is computed. Here each colour is alone. Everybody waits for everybody.
#
# You can move the mouse over a bar to see what it is, and drag to zoom in. A double click zooms out.
#
# Every picture can also be had in words, for people who cannot see it, or for a log file:

# %%
print(textwrap.fill(draw.text(steady), 110))

# %% [markdown]
# And in numbers:

# %%
lv.summarize(steady)

# %% [markdown]
# <details><summary><b>Compare with your prediction</b></summary>
#
# The line "GPU computes" of the table is the answer. Most people expect a much larger number.
# The last part of the table says where the rest of the time goes. In this loop most of it goes into making the batch,
# sample by sample, on the host; then into the copy.
#
# </details>
#
# ## The same timeline, coloured by kind
#
# `color="kind"` shows *what* happens instead of *for which batch*.

# %%
steady.figure(color="kind")

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
# **Predict** the order, from slow to fast. The first three get their batches from two worker processes.

# %%
setting = experiment.Setting(batch_size=BATCH, steps=4, warmup=12, workers=2)
runs = experiment.four_loaders(setting, on=GPU, host="laptop")
comparison = lv.compare({name: run.timeline for name, run in runs.items()})

# %%
comparison.figure()

# %%
comparison.table()[["step [µs]", "GPU computes [%]", "copy [ms]", "copy hidden [%]", "speed-up"]].round(2)

# %% [markdown]
# Look at the rows `H2D engine` and the stream of each of the four. In the third one the copy engine has another colour
# than the computing stream: this is overlap. In the fourth one the engine has nothing to do.
# (The workers have made their last batch before this window begins. Lesson 2 shows their lanes.)
#
# The losses show that the loaders do the same work. The resident loader shuffles by itself, so its number may differ:

# %%
for name, run in runs.items():
    print(f"{name:9} loss of the last batch {run.loss:.6f}")
print(textwrap.fill(experiment.verdict(comparison.timelines), 110))

# %% [markdown]
# One more picture. This is the curve that `nvidia-smi` shows: in which share of each short window does the GPU compute?

# %%
comparison.utilization()

# %% [markdown]
# ## What the emulated GPU promises
#
# * **The values are real.** Every number is computed, on your CPU. The loss is the loss.
# * **The order of things is right.** It follows the rules of CUDA: which call waits, what can overlap with what.
#   The lessons name the rules by numbers, such as R16.
# * **Mistakes show every time.** If your code forgets to wait for a copy, you get `nan`, on every run.
# * **The time is virtual.** It comes from a model of the GPU and of the host. It does not depend on your computer:
#   the same program gives the same timeline, to the nanosecond.
#
# Let us test the last promise:

# %%
with lv.record(on=GPU) as again:
    train(loader).item()
same = (again.timeline.start == timeline.start).all() and (again.timeline.end == timeline.end).all()
print(f"{len(timeline)} spans, all at the same nanosecond as before: {same}")

# %% [markdown]
# What it does **not** promise: microseconds. It tells you what the bottleneck is and what waits for what. On a real GPU
# the numbers will be different. Every number of the model has a source, or it is called "assumed":

# %%
gpu = Gpu.preset(GPU)
for name, unit in {"h2d": "GB/s", "pageable": "GB/s", "memory_bandwidth": "GB/s", "copy_latency": "µs"}.items():
    value = getattr(gpu, name) / (1e9 if unit == "GB/s" else 1e3)
    print(textwrap.fill(f"{name}: {value:g} {unit} ({gpu.source(name)})", 110, subsequent_indent="    "))

# %% [markdown]
# ## The same code on a real GPU
#
# The function `train` is ordinary PyTorch, so it runs on a real GPU as it is. The lessons end with such a cell.
# It is skipped where there is no GPU.

# %% tags=["gpu"]
if torch.cuda.is_available():
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    train(loader)  # once before the clock runs: memory, kernels
    begin.record()
    train(loader)
    end.record()
    torch.cuda.synchronize()
    print(f"{torch.cuda.get_device_name()}: {begin.elapsed_time(end) / len(loader):.3f} ms a step")
else:
    print("Skipped: PyTorch sees no CUDA GPU here. On a machine with one, this cell times the loop on it.")

# %% [markdown]
# ## Try
#
# Set `GPU = "a100"` at the top and run all cells again. The A100 computes much faster.
# Which of the four loaders gains from it, and which does not?
#
# ## Recap
#
# * `lv.record(on="laptop")` records; `recording.timeline.figure()` draws; `lv.summarize` gives numbers.
# * `lv.compare({...})` puts several timelines on one time axis.
# * Look for different colours at the same time. That is overlap.
# * The emulated GPU promises order and bottleneck, not microseconds.
#
# Next: [1. The blocking copy](01_blocking_copy.ipynb)
