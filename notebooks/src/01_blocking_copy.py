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
# # 1. The blocking copy
#
# **The question of this lesson: what does `x.to("cuda")` cost in a training loop?**
#
# After it you can
#
# * see in a timeline when the host works, when data is copied, and when the GPU computes;
# * say which share of a step is the copy, and decide whether that share matters;
# * time GPU code correctly, and know why most first attempts are wrong.
#
# Time: about 20 minutes. You need no GPU. Before it: [0. Start here](00_start_here.ipynb).

# %%
import itertools
import time

import torch
from torch.profiler import record_function

import loaderviz as lv
from loaderviz import mnist, words

# %% [markdown]
# ## The parts of the loop
#
# The digits are in the main memory of the computer, the *host* memory.
# The GPU, the *device*, has a memory of its own, so every batch must travel.
# To look at the copy alone, we prepare all batches before the loop starts.
# Where batches come from is a question for a later lesson.

# %%
GPU = "laptop"  # the GPU to emulate; other names: "t4", "a100", "h100", "h200"
BATCH, WARM_UP, STEPS = 2048, 3, 4  # samples in a batch; steps before we look; steps in the picture
images, labels = mnist.tensors(train=True)
print(f"images {tuple(images.shape)}, {images.dtype}: {words.size(images.nbytes)} in host memory")


# %%
def make_batches(size=BATCH, count=WARM_UP + STEPS):
    """Return batches in host memory: images float32, as most tutorials use them, and labels."""
    pairs = zip(images.split(size), labels.split(size), strict=True)
    return [(x.float() / 255, y) for x, y in itertools.islice(pairs, count)]


# %%
batches = make_batches()
print(f"one batch: {words.size(sum(part.nbytes for part in batches[0]))}")


# %% [markdown]
# A small network, and one training step. Nothing here is special.


# %%
def new_model(hidden=384):
    """Return a small network on the GPU and its optimizer."""
    torch.manual_seed(0)
    layers = torch.nn.Linear(784, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, 10)
    model = torch.nn.Sequential(torch.nn.Flatten(), *layers).to("cuda")
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


# %%
def train_step(model, optimizer, x, y):
    """Train on one batch that is on the GPU already; return the loss, still on the GPU."""
    loss = torch.nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


# %% [markdown]
# `steps` gives the batches to the loop, one by one.
# It writes the number of the batch into the recording, so that each batch gets its colour.
# Before the first step that we look at, it waits until the GPU has finished all earlier work.


# %%
def steps(batches):
    """Hand out the batches, each under its name."""
    for number, batch in enumerate(batches):
        if number == WARM_UP:
            torch.cuda.synchronize()
        with record_function(f"batch {number}: {len(batch[-1])} samples"):
            yield batch


# %% [markdown]
# And here is the loop of this lesson. Almost every first PyTorch program has these lines.


# %%
def blocking_loop(batches):
    """Copy a batch, train on it, copy the next one."""
    model, optimizer = new_model()
    for x, y in steps(batches):
        x = x.to("cuda")
        y = y.to("cuda")
        loss = train_step(model, optimizer, x, y)
    return loss


# %% [markdown]
# ## Predict
#
# Before you run the next cell, write down your answers:
#
# 1. In which share of the time does the GPU compute: nearly always, about half of the time, or less?
# 2. Can the GPU compute batch 4 while batch 5 is being copied?
#
# ## Run
#
# `watch` records a loop on the emulated GPU. Time in there is *virtual*: it does not depend on your computer.


# %%
def watch(loop, *arguments):
    """Record a loop on the emulated GPU; return the timeline without the warm-up."""
    with lv.record(on=GPU) as recording:
        loss = loop(*arguments)
        torch.cuda.synchronize()
    print(f"{loop.__name__}: loss of the last batch {loss.item():.4f}")
    return recording.timeline.from_batch(WARM_UP)


# %%
blocking = watch(blocking_loop, batches)
blocking.figure(color="batch")

# %% [markdown]
# ## See
#
# Time goes from left to right. Every batch has one colour. Follow one colour down through the lanes:
#
# 1. `main · calls`: the host calls CUDA. The long call is the copy. `main · waits`: in the hatched parts it is blocked.
# 2. `H2D engine`: the batch travels from the host to the device.
# 3. `stream 7 (default)`: the GPU computes on the batch. (The thin bars are the copies again: they are in this queue.)
#
# Then the next colour begins. The strip `GPU state` has colours of its own, see the legend:
# the GPU computes, or a copy keeps it from computing, or it has nothing to do at all.

# %%
summary = lv.summarize(blocking)
print(f"a step takes       {words.duration(summary.step)}")
print(f"the GPU computes   {words.share(summary.compute_share)} of the time")
print(f"the copy takes     {words.share(summary.copy_share)} of the time")
print(f"hidden of the copy {words.share(summary.overlap)}")

# %% [markdown]
# <details><summary><b>Compare with your prediction</b></summary>
#
# 1. The line "the GPU computes" gives the share. The rest of the step is mostly the copy.
# 2. No. "Hidden" means: copied while the GPU computes. The last line says how much of the copy is.
#
# </details>
#
# ## Explain
#
# Two rules make this picture. The numbers R… are those of the rules that the emulator follows.
#
# * **R1: A copy from ordinary memory is staged.**
#   Ordinary host memory is *pageable*: the operating system may move it, so the GPU cannot read it safely.
#   The driver first copies the data into a buffer of its own. The host does this work, so the host waits.
# * **R30: A blocking `.to` waits for its stream.**
#   A *stream* is a queue of GPU work, done in order. `.to` puts the copy into the queue and waits for the end of it.
#
# While the host waits, it cannot give the GPU new work. While the GPU has no work, it is idle.
# So the step is a *sum*: copy, then compute, then copy again.

# %%
for part, time_ns in summary.breakdown.items():
    print(f"{part:40} {words.duration(time_ns / summary.batches):>9} a step")

# %% [markdown]
# ## How much could we win?
#
# If the copy were completely hidden under the computing, a step could not be shorter than the longer one of the two.
# This is the limit. `headroom` says how far above the limit the loop is.

# %%
longer = max(summary.compute, summary.copy) / summary.batches
print(f"a step now {words.duration(summary.step)}, the limit {words.duration(longer)}: ", end="")
print(f"{words.times(summary.headroom)} the limit")

# %% [markdown]
# ## The same loop with batches of 64
#
# Most MNIST examples use small batches. **Predict:** is the copy a smaller or a larger part of the step now?

# %%
small = watch(blocking_loop, make_batches(64))
small.figure(color="kind")

# %%
tiny = lv.summarize(small)
print(f"a step {words.duration(tiny.step)}: copy {words.share(tiny.copy_share)}, ", end="")
print(f"compute {words.share(tiny.compute_share)}, idle {words.share(tiny.idle / tiny.window)}")
best = tiny.step - min(tiny.copy, tiny.compute) / tiny.batches
print(f"if all of the smaller of the two were hidden: {words.duration(best)}, {words.times(tiny.step / best)} as fast")
for part, time_ns in tiny.breakdown.items():
    print(f"  {part:40} {words.duration(time_ns / tiny.batches):>9} a step")

# %% [markdown]
# With small batches the largest part of the step is not the copy: it is the idle time.
# Each step calls many small operators. The host needs some microseconds for each of them (**R23: a launch costs host
# time**), and the GPU finishes each one before the next one arrives. Hiding the copy does not change that.
#
# The "as fast" above is an upper limit, and the calls that hide a copy cost host time, too.
# The host is already the slowest part here. Lesson 3 tries it and measures what the overlap wins at batch 64.
# So look at the share of the copy before you work on it.
# These lessons use large batches, because there the copy is a large part of the step.
#
# ## "The copy is slow": is it?
#
# Many people measure the line `x.to("cuda")` alone. Let us do it twice: with an idle GPU and with a busy one.
# Inside `record`, `time.perf_counter()` shows the virtual time of the emulated machine.


# %%
def milliseconds(action):
    """Return how long the host needs for `action`."""
    begin = time.perf_counter()
    action()
    return 1e3 * (time.perf_counter() - begin)


# %%
x = batches[0][0]
with lv.record(on=GPU):
    square = torch.randn(2048, 2048, device="cuda")
    torch.cuda.synchronize()
    idle_ms = milliseconds(lambda: x.to("cuda"))
    square = square @ square  # give the GPU some work; the host does not wait for it
    busy_ms = milliseconds(lambda: x.to("cuda"))
print(f"x.to('cuda') on an idle GPU {idle_ms:.3f} ms, behind a matrix product {busy_ms:.3f} ms")

# %% [markdown]
# The copy is the same. The second number is larger because the copy waits in the queue behind the matrix product (R30).
# `.to`, `.cpu()` and `.item()` often look slow, because they are the first lines that *wait*.
#
# **R25: `.item()` waits.** It brings one number to the host, so it must wait for everything before it in the stream.
#
# ## Timing without a synchronise measures only the launch
#
# **Predict:** which of the three numbers below is the time of the matrix product?

# %%
with lv.record(on=GPU):
    a = torch.randn(2048, 2048, device="cuda")
    a @ a  # the first one also loads and allocates
    torch.cuda.synchronize()
    launch_ms = milliseconds(lambda: a @ a)
    torch.cuda.synchronize()
    whole_ms = milliseconds(lambda: (a @ a, torch.cuda.synchronize()))
    item_ms = milliseconds(lambda: (a @ a)[0, 0].item())
print(f"no synchronise {launch_ms:.3f} ms, with synchronise {whole_ms:.3f} ms, with .item() {item_ms:.3f} ms")

# %% [markdown]
# **R27: the host runs ahead.** An operator on the GPU returns to the host when its work is *queued*, not when it is
# done. So the first number is only the launch. To time GPU work, either call `torch.cuda.synchronize()` before you
# read the clock, or use two events: marks in the stream, to which the GPU itself writes the time.


# %%
def gpu_milliseconds(loop, *arguments):
    """Return the time of one step of a loop, measured by events in the stream."""
    loop(*arguments)  # the first run allocates memory and loads kernels
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    loop(*arguments)
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / len(arguments[0])


# %%
with lv.record(on=GPU):
    print(f"emulated: {gpu_milliseconds(blocking_loop, batches):.3f} ms a step, the making of the model included")

# %% [markdown]
# ## Try: send fewer bytes
#
# The digits are stored as `uint8`, one byte for a pixel. We made `float32` of them on the host: four bytes.
# Send the bytes as they are, and convert them on the GPU. What do you expect for the copy, and for the step?


# %%
def bytes_loop(batches):
    """Copy the images as uint8 and convert them on the GPU."""
    model, optimizer = new_model()
    for x, y in steps(batches):
        x = x.to("cuda").float() / 255
        y = y.to("cuda")
        loss = train_step(model, optimizer, x, y)
    return loss


# %%
as_bytes = [((x * 255).round().to(torch.uint8), y) for x, y in batches]
both = lv.compare({"float32": blocking, "uint8": watch(bytes_loop, as_bytes)})
both.figure()

# %%
for name, each in both.summaries().items():
    print(f"{name:8} copy {words.duration(each.copy / each.batches):>9} a step, step {words.duration(each.step):>9}")

# %% [markdown]
# The cheapest copy is the one that you do not make. This change needs no stream and no pinned memory.
#
# Now change something yourself: `GPU = "a100"` in the second code cell, or `hidden=2048` in `new_model`. Run all again.
#
# ## The same code on a real GPU
#
# The functions above are ordinary PyTorch. If this computer has a CUDA GPU, the next cell runs them there.

# %% tags=["gpu"]
if torch.cuda.is_available():
    print(f"{torch.cuda.get_device_name()}: float32 {gpu_milliseconds(blocking_loop, batches):.3f} ms a step")
    print(f"{torch.cuda.get_device_name()}: uint8   {gpu_milliseconds(bytes_loop, as_bytes):.3f} ms a step")
else:
    print("Skipped: PyTorch sees no CUDA GPU here. On a machine with one, this cell times both loops on it.")

# %% [markdown]
# ## Recap
#
# * A blocking copy from ordinary memory makes the step a sum: copy + compute. Nothing is hidden.
# * First look at the share of the copy. If it is small, the copy is not your problem.
# * A line that waits looks slow, although the work before it is what takes the time.
# * Time GPU code with a synchronise or with events.
#
# Next: [2. Pinned memory](02_pin_memory.ipynb). Why is ordinary memory staged, and what changes if it is not?
