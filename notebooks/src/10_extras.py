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
# # 10. Extras
#
# ![A convolutional network in training: the stream computes nearly all the time, the copies between the steps are
# short.](pictures/10_extras.png)
#
# **The question of this notebook: what else is there?**
#
# Take what you need, in any order.
#
# Time: about 10 minutes. Before it: [4. The data set on the GPU](04_gpu_resident_slicing.ipynb).

# %%
from dataclasses import replace

import torch
from torch.cuda._sanitizer import EventHandler

import loaderviz as lv
from loaderviz import mnist, words
from loaderviz.emulator import Gpu
from loaderviz.loaders import ResidentLoader
from loaderviz.workshop import loop, predict, recall
from loaderviz.workshop.loop import GPU, WARM_UP, gpu_milliseconds, make_batches, new_model, steps, train_step, watch

# %%
recall(10)

# %% [markdown]
# ## A small part of the step
#
# Many networks compute for a long time on each byte. In the loop below the copy blocks, and nothing is hidden.
# `lv.what_if` takes the recorded loop and replays it with another loader.


# %%
def convolving_loop(batches, channels=24):
    """Train a convolutional network; each copy blocks."""
    torch.manual_seed(0)
    first, second = torch.nn.Conv2d(1, channels, 3, padding=1), torch.nn.Conv2d(channels, channels, 3, padding=1)
    last = torch.nn.Flatten(), torch.nn.Linear(channels * 28 * 28, 10)
    model = torch.nn.Sequential(first, torch.nn.ReLU(), second, torch.nn.ReLU(), *last).to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in steps(batches):
        loss = train_step(model, optimizer, x[:, None].to("cuda"), y.to("cuda"))
    return loss


# %%
guess_gain = predict(
    "How many per cent of a step could the best prefetcher save here?",
    ["fewer than ten", "ten to thirty", "more than thirty"],
    answer=lambda: 1 + (saved > 0.1) + (saved > 0.3),
    why="It cannot save more than the copy and the waits around it. Look for something larger.",
)
guess_gain

# %%
convolving = watch(convolving_loop, make_batches(128))
convolving.view(verdict=False)

# %%
now, then = lv.summarize(convolving), lv.summarize(lv.what_if(convolving, pinned=True, prefetch=2))
saved = 1 - then.step / now.step
print(f"the copy takes {words.share(now.copy_share)} of the time, the GPU computes {words.share(now.compute_share)}")
print(f"a step {words.duration(now.step)}, with a prefetcher {words.duration(then.step)}: {words.share(saved)} saved")
guess_gain.reveal()

# %% [markdown]
# First look at the share of the copy.
#
# ## A host that is too slow: CUDA graphs
#
# With batches of 64 the GPU waits for launches (lesson 1). A *CUDA graph* notes all kernels of a step once, and then
# starts all of them with one call (R34). The price: shapes and addresses are fixed, so each batch is copied into the
# same two tensors. On a real GPU `torch.compile(mode="reduce-overhead")` does this for you.


# %%
def launching_loop(batches):
    """Launch each kernel of each step."""
    model, optimizer = new_model()
    for x, y in steps(batches):
        loss = train_step(model, optimizer, x.to("cuda"), y.to("cuda"))
    return loss


# %%
def graphed_loop(batches):
    """Capture one step, then replay it for each batch."""
    (model, optimizer), (x, y) = new_model(), (part.to("cuda") for part in batches[0])
    graph = torch.cuda.CUDAGraph()
    train_step(model, optimizer, x, y)  # the first step allocates memory
    with torch.cuda.graph(graph):
        loss = train_step(model, optimizer, x, y)
    for images, labels in steps(batches):
        x.copy_(images), y.copy_(labels)
        graph.replay()
    return loss


# %%
small = make_batches(64, WARM_UP + 20)
launched = watch(launching_loop, small)
print(lv.advise(launched)[0])
with lv.record(on=GPU, host=loop.HOST):
    took = [gpu_milliseconds(each, small) for each in (launching_loop, graphed_loop)]
prefetched = lv.summarize(lv.what_if(launched, pinned=True, prefetch=2)).step / 1e6
print(f"launched {took[0]:.3f} ms a step, with a prefetcher {prefetched:.3f} ms, as a graph {took[1]:.3f} ms")

# %% [markdown]
# ## A data set that is larger than the GPU
#
# Then it is moved in *chunks*: as many samples as fit, shuffled among themselves. The price is the order: samples of
# different chunks never meet in a batch.


# %%
def in_chunks(images, labels, size, rows):
    """Move `rows` samples at a time; yield shuffled batches of them."""
    for start in range(0, len(images), rows):
        x, y = (part[start : start + rows].to("cuda") for part in (images, labels))
        for chosen in torch.randperm(len(x)).to("cuda").split(size):
            yield x.index_select(0, chosen), y.index_select(0, chosen)


def train(batches):
    """Train on batches that are on the GPU, uint8 as they are stored."""
    model, optimizer = new_model()
    for x, y in steps(batches):
        loss = train_step(model, optimizer, x.float() / 255, y)
    return loss


# %%
images, labels = (part[: 24 * 1024] for part in mnist.tensors(train=True))
tiny = replace(Gpu.preset(GPU), name="a tiny GPU", memory=580 * 2**20)
try:
    with lv.record(on=tiny, host=loop.HOST):
        ResidentLoader((images.float(), labels), 1024)
except MemoryError as problem:
    print(str(problem).split(";")[0])
chunked = watch(lambda: train(in_chunks(images, labels, 1024, 6 * 1024)), on=tiny)
print(f"in chunks: {words.duration(lv.summarize(chunked).step)} a step")
chunked.view()

# %% [markdown]
# ## Augmentation: on the host, or on the GPU?
#
# A random flip of each picture is work of the loop on the host; on the GPU it is a kernel more.


# %%
def flipped(x):
    """Flip about half of the pictures."""
    return torch.where(torch.rand(len(x), 1, 1, device=x.device) < 0.5, x.flip(2), x)


def augmenting_loop(batches, on_gpu):
    """Train on flipped pictures."""
    model, optimizer = new_model()
    for x, y in steps(batches):
        x = flipped(x.to("cuda")) if on_gpu else flipped(x).to("cuda")
        loss = train_step(model, optimizer, x, y.to("cuda"))
    return loss


# %%
guess_place = predict(
    "How much faster is the loop if the GPU flips, and not the loop's own thread?",
    ["not at all", "less than twice", "twice, or more"],
    answer=lambda: 1 if gain < 1.05 else 2 if gain < 2 else 3,
)
guess_place

# %%
flips = {place: lv.summarize(watch(augmenting_loop, make_batches(), place == "GPU")) for place in ("host", "GPU")}
gain = flips["host"].step / flips["GPU"].step
for place, each in flips.items():
    print(f"flipped on the {place}: {words.duration(each.step)} a step, GPU busy {words.share(each.compute_share)}")
guess_place.reveal()

# %% [markdown]
# ## A file of Nsight Systems
#
# `nsys profile python train.py`, then `nsys export --type sqlite`, makes a database, and `lv.read` takes it. No GPU is
# here to profile, so this cell writes such tables from the first loop above.

# %%
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

from loaderviz.timeline import Kind

NSYS = """
CREATE TABLE StringIds (id, value);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, end, deviceId, streamId, shortName);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start, end, deviceId, streamId, bytes, copyKind, srcKind, dstKind);
"""


# %%
def as_nsight(timeline, file):
    """Write kernels and copies as `nsys export` does."""
    with closing(sqlite3.connect(file)) as export:
        export.executescript(NSYS)
        for number, span in enumerate(timeline.rows(Kind.COMPUTE, Kind.COPY_H2D)):
            kernel, times = span.kind == Kind.COMPUTE, (span.start, span.end, 0, 7)
            row = (*times, number) if kernel else (*times, span.nbytes, 1, 0, 2)
            table = f"CUPTI_ACTIVITY_KIND_{'KERNEL' if kernel else 'MEMCPY'}"
            export.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)
            export.execute("INSERT INTO StringIds VALUES (?, ?)", (number, span.name))
        export.commit()


# %%
with tempfile.TemporaryDirectory() as place:
    as_nsight(convolving, Path(place, "run.sqlite"))
    nsight = lv.read(Path(place, "run.sqlite"))
print(*nsight.context.notes, *lv.advise(nsight), sep="\n")
nsight.view(verdict=False)

# %% [markdown]
# The host is not in it. Without its rows nobody can say what the GPU waits for.
#
# ## What a race detector does not see
#
# PyTorch has one: `TORCH_CUDA_SANITIZER=1`. It forgets memory that is freed, so it misses loader C of lesson 5. It does
# not look at the host's memory, so it misses D and F. Here we tell its core of a read, and then of a copy into the
# same block.


# %%
def sanitizer_reports(freed):
    """Count the reports of torch's sanitizer."""
    sanitizer, main, side, block = EventHandler(), 7, 13, 4096
    sanitizer._handle_memory_allocation(block)
    sanitizer._handle_kernel_launch(main, {block}, set(), set(), "the work reads", {block: []})
    if freed:
        sanitizer._handle_memory_deallocation(block)
        sanitizer._handle_memory_allocation(block)
    return len(sanitizer._handle_kernel_launch(side, set(), {block}, set(), "the copy writes", {block: []}))


print(f"reports if the block is kept: {sanitizer_reports(False)}, if it is freed in between: {sanitizer_reports(True)}")

# %% [markdown]
# Ours does not see **what numpy reads**: it reports no hazard, but numpy gets `nan`. And a **false alarm** is possible:
# a view with gaps and more than 64 rows counts as one piece. Below, two streams share not one byte.

# %%
with lv.record(on=GPU, host=loop.HOST) as unseen:
    total = torch.ones(1000, device="cuda").sum().to("cpu", non_blocking=True)
    print(f"read by numpy: {total.numpy()}")
with lv.record(on=GPU, host=loop.HOST) as alarm:
    side, columns = torch.cuda.Stream(), torch.zeros(100, 8, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        columns[:, :4].add_(1)
    columns[:, 4:].add_(1)
print(f"numpy: {unseen.hazards!r}\nhalves: {alarm.hazards[0].line}")

# %% [markdown]
# ## Try
#
# * `convolving_loop` with `channels=4`: how large is the share of the copy now?
# * Let `in_chunks` copy the next chunk in a side stream. Which two orders does it need?
#
# ## The same code on a real GPU

# %% tags=["gpu"]
if torch.cuda.is_available():
    print(f"{torch.cuda.get_device_name()}, batches of 64")
    for each in (launching_loop, graphed_loop):
        print(f"{each.__name__}: {gpu_milliseconds(each, small):.3f} ms a step")
else:
    print("Skipped: PyTorch sees no CUDA GPU here. On a machine with one, this cell times both kinds of step on it.")

# %% [markdown]
# ## Recap
#
# * A copy that is a small part of the step is not your problem.
# * A host that is too slow needs fewer launches: larger batches, or a graph.
# * A detector without a report is no proof.
#
# [0. Start here](00_start_here.ipynb) has the list of all lessons.

# %% tags=["picture"]
# a network that computes for a long time on each byte
import torch

from loaderviz.workshop.loop import make_batches, steps, train_step, watch


def loop():
    """Train a convolutional network."""
    torch.manual_seed(0)
    net = [torch.nn.Conv2d(1, 24, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(24 * 26 * 26, 10)]
    model = torch.nn.Sequential(*net).to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in steps(make_batches(256, 6)):
        loss = train_step(model, optimizer, x[:, None].to("cuda"), y.to("cuda"))
    return loss


watch(loop).view(title="A convolutional network: copies between long steps")

# %% tags=["claims"]
assert 0.01 < now.copy_share < 0.03 and now.overlap == 0 and saved < 0.1
assert lv.advise(launched)[0].kind == "host-bound" and took[1] < 0.6 * took[0]
# a prefetcher does not help there
assert 0.9 * took[0] < prefetched
assert lv.summarize(chunked).compute_share > 0.5
assert flips["host"].step > flips["GPU"].step
assert lv.summarize(nsight).copy == lv.summarize(convolving).copy > 0
assert {lane.group for lane in nsight.lanes} == {"device"}
assert [sanitizer_reports(freed) for freed in (False, True)] == [1, 0]
assert unseen.hazards == [] and len(alarm.hazards) == 1

# %% [markdown] tags=["guide"]
# ### 10. Extras
#
# Asks: what else is there?
#
# Idea: Graphs, chunks, augmentation, Nsight, and what a detector misses. This lesson is in no plan.
#
# Exercises: –
#
# * **A `needless-wait`** is only true for one run. If what the code does depends on the data, look at the other cases
#   before you take a wait out.
# * **Say:** "Before you hide a copy, say how long it is."
# * **Stuck:** a graph replays addresses, and not Python. If you make a new tensor for each batch, the graph still
#   computes on the first one.

# %% [markdown] tags=["answers"]
# ## 10. Extras
#
# <!-- guess_gain 59bc77f6 -->
# * *How many per cent of a step could the best prefetcher save here?* **fewer than ten**
#   (<!--=saved:.1%-->4.7 %<!---->): the copy is a small part of it.
#
# <!-- guess_place 21c87fdf -->
# * *How much faster is the loop if the GPU flips, and not the loop's own thread?* **less than twice**
#   (<!--=gain:.2f-->1.89<!---->x): on the host the flip is work of the loop, but a copy is left in both.
