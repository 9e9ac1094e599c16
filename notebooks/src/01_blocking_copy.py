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
# ![One call of x.to("cuda") in time: the call in a row of the host, below it the host's wait, and the copy in the
# rows of the GPU, all three equally long.](pictures/01_blocking_copy.png)
#
# **The question of this lesson: what does `x.to("cuda")` cost in a training loop?**
#
# After it you can say which share of a step is the copy and whether that matters, time GPU code correctly, and make a
# copy cheaper.
#
# Time: about 25 minutes. Before it: [0. Start here](00_start_here.ipynb).

# %%
import time

import torch

import loaderviz as lv
from loaderviz import words
from loaderviz.workshop import lesson01, loop, predict
from loaderviz.workshop.loop import GPU, gpu_milliseconds, make_batches, new_model, show_code, steps, train_step, watch

# %% [markdown]
# ## The parts of the loop
#
# The digits are in host memory. The GPU has a memory of its own, so every batch must travel. To look at the copy
# alone, we prepare all batches before the loop starts. `steps` hands them to the loop, and gives each batch its
# colour; `watch` records a loop on the emulated GPU.

# %%
batches = make_batches()
print(f"{len(batches)} batches, {words.size(sum(part.nbytes for part in batches[0]))} each, {batches[0][0].dtype}")
show_code(steps, watch)

# %% [markdown]
# The loop of this lesson is in nearly every first PyTorch program:


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
# In lesson 0 the making of the batches took most of the time. Here they are ready.

# %%
busy = predict(
    "In which share of the time does the GPU compute?",
    ["nearly always: more than nine tenths", "more than half of the time", "less than half of the time"],
    answer=lambda: 1 + (summary.compute_share < 0.9) + (summary.compute_share < 0.5),
    why="The rest is mostly the copy. Nothing of it is hidden, that is, copied while the GPU computes.",
)
busy

# %% [markdown]
# ## Run

# %%
blocking = watch(blocking_loop, batches)
blocking.view(verdict=False)

# %% [markdown]
# ## See
#
# Follow one colour down through the lanes:
#
# 1. `main thread: CUDA calls`: the long call is the copy; where `main thread waits` is hatched, the host is blocked.
# 2. `copy engine to GPU`: the batch travels.
# 3. `default stream`: the thick bars are kernels: the GPU computes on the batch. (The thin bars are the copies again:
#    they are in this queue.)
#
# Only then does the next colour begin in the lanes of the GPU. The host is there earlier, and waits twice: until the
# GPU has computed the batch before, then for the copy itself.

# %%
summary = lv.summarize(blocking)
print(f"a step takes       {words.duration(summary.step)}")
print(f"the GPU computes   {words.share(summary.compute_share)} of the time")
print(f"the copy takes     {words.share(summary.copy_share)} of the time")
print(f"hidden of the copy {words.share(summary.overlap)}")
busy.reveal()

# %% [markdown]
# ## Explain
#
# Three rules make this picture:
#
# * **R1: a copy from ordinary memory is staged.** Ordinary host memory is *pageable*: the operating system may move it,
#   so the GPU cannot read it safely. The host copies the data into a buffer of the driver, piece by piece, and the GPU
#   fetches the pieces from there.
# * **R30: a blocking `.to` waits for its stream.** A *stream* is a queue of GPU work, done in order. PyTorch waits for
#   the copy, and for everything before it.
# * **R22: a copy takes a fixed start time, and then its bytes / the bandwidth.** For the labels, few bytes, that is
#   nearly all start time.
#
# While the host waits, it cannot give the GPU new work. While the GPU has no work, it is idle. So the step is a
# *sum*: copy, then compute, then copy again. With the copy completely hidden it would be the longer one of the two:
# the *limit*. `headroom` says how far above it the loop is.

# %%
for part, time_ns in summary.breakdown.items():
    print(f"{part:40} {words.duration(time_ns / summary.batches):>9} a step")
limit = summary.limit / summary.batches
print(f"a step now {words.duration(summary.step)}, the limit {words.duration(limit)}: {words.times(summary.headroom)}")

# %% [markdown]
# ## Walk through it
#
# Click into the picture, or drag the slider: the stepper shows the line of your loop, and what each stream and engine
# does at that moment. Stop in the middle of a copy. Which line is the host at? When has the GPU the most work in its
# queue?

# %%
lv.step_through(blocking)

# %% [markdown]
# ## The same loop with batches of 64
#
# Many MNIST examples use batches of 64. A copy of a small batch is short, and so is its computing.

# %%
largest = predict(
    "Batches of 64: what is the largest part of a step?",
    ["the GPU computes", "the copy keeps it from computing", "the GPU is idle: it has nothing to do"],
    answer=lambda: 1 + max(range(3), key=[tiny.compute, tiny.exposed_copy, tiny.idle].__getitem__),
)
largest

# %%
small = watch(blocking_loop, make_batches(64))
small.view(color="kind", verdict=False)

# %%
tiny = lv.summarize(small)
print(f"a step {words.duration(tiny.step)}: copy {words.share(tiny.copy_share)}, ", end="")
print(f"compute {words.share(tiny.compute_share)}, idle {words.share(tiny.idle / tiny.window)}")
best = tiny.step - min(tiny.copy, tiny.compute) / tiny.batches
print(f"with the shorter of the two hidden: {words.duration(best)} a step, {words.times(tiny.step / best)} as fast")
largest.reveal()

# %% [markdown]
# Each step calls many small operators. The host needs some microseconds for each (**R23: a launch costs host time**),
# and the GPU finishes each one before the next one arrives. Hiding the copy does not change that.
#
# So look at the share of the copy before you work on it. To hide a small part of the step can only win a little; these
# lessons use large batches, where it is large.
#
# ## "The copy is slow": is it?
#
# Let us time the line `x.to("cuda")` alone, with an idle GPU and with a busy one. (Inside `record`,
# `time.perf_counter()` shows the emulated machine's time.)


# %%
def milliseconds(action):
    """Return how long the host needs for `action`."""
    begin = time.perf_counter()
    action()
    return 1e3 * (time.perf_counter() - begin)


x = batches[0][0]

# %%
with lv.record(on=GPU, host=loop.HOST):
    a = torch.randn(2048, 2048, device="cuda")
    a @ a, x.to("cuda")  # the first ones also load and allocate
    torch.cuda.synchronize()
    idle_ms = milliseconds(lambda: x.to("cuda"))
    launch_ms = milliseconds(lambda: a @ a)  # give the GPU some work; the host does not wait for it
    busy_ms = milliseconds(lambda: x.to("cuda"))
    whole_ms = milliseconds(lambda: (a @ a, torch.cuda.synchronize()))
    item_ms = milliseconds(lambda: (a @ a)[0, 0].item())
print(f"x.to('cuda') on an idle GPU {idle_ms:.3f} ms, behind a matrix product {busy_ms:.3f} ms")
print(f"a @ a: {launch_ms:.3f} ms, with synchronise {whole_ms:.3f} ms, with .item() {item_ms:.3f} ms")

# %% [markdown]
# The copy is the same both times. It is "slow" behind a product because it waits in the queue (R30). `.to`, `.cpu()`
# and `.item()` often look slow, because they are the first lines that *wait*: **R25: `.item()` waits** for everything
# before it in the stream.
#
# The product alone looks fast, because nobody waits. **R27: the host runs ahead.** An operator on the GPU returns when
# its work is *queued*, not when it is done: the first number of the second line is only the launch.
#
# ## Exercise: time it right
#
# `milliseconds` times the host. Write a function that times the GPU, also when the GPU is still busy at the start.

# %%
lesson01.timing

# %% tags=["starter"]
# Exercise 1.1
import time

import torch


def gpu_ms(step):
    """Return how many milliseconds the GPU works on step()."""
    begin = time.perf_counter()
    step()
    ...  # what is missing here, and above?
    return 1000 * (time.perf_counter() - begin)


# %% tags=["exercise"]
# Exercise 1.1
import time

import torch


def gpu_ms(step):
    """Return how many milliseconds the GPU works on step()."""
    torch.cuda.synchronize()  # earlier work must not count
    begin = time.perf_counter()
    step()
    torch.cuda.synchronize()  # the work must be done, not only queued
    return 1000 * (time.perf_counter() - begin)


# %%
lesson01.timing.check(gpu_ms)

# %% [markdown]
# ## Exercise: the cheapest bytes
#
# The digits are stored as `uint8`, one byte for a pixel. We made `float32` of them on the host: four bytes each. The
# cheapest byte is the one that does not travel. (The check also counts *hazards*: lesson 3 explains them.)

# %%
lesson01.fewer_bytes


# %% tags=["starter"]
# Exercise 1.2
def load(batches):
    """Yield each batch on the GPU: images float32 from 0 to 1, labels as they are."""
    for images, labels in batches:
        images = images.float() / 255  # change this, and the next line
        yield images.to("cuda"), labels.to("cuda")


# %% tags=["exercise"]
# Exercise 1.2
def load(batches):
    """Yield each batch on the GPU: images float32 from 0 to 1, labels as they are."""
    for images, labels in batches:
        images = images.to("cuda").float() / 255
        yield images, labels.to("cuda")


# %%
lesson01.fewer_bytes.check(load)

# %%
lesson01.fewer_bytes.show()

# %% [markdown]
# ## Try
#
# * A faster GPU: `lv.summarize(watch(blocking_loop, batches, on="a100"))`. How large is the share of the copy there?
#   What does a faster GPU win in this loop?
# * A larger network: write `new_model(hidden=2048)` into `blocking_loop`. Is the copy still worth hiding?
# * At which batch size does the idle time become larger than the copy?
#   `lv.summarize(watch(blocking_loop, make_batches(512)))` is a start.
#
# ## The same code on a real GPU
#
# If this computer has a CUDA GPU, the next cell runs both loops there.

# %% tags=["gpu"]
if torch.cuda.is_available():
    print(f"{torch.cuda.get_device_name()}, batches of 2048: {gpu_milliseconds(blocking_loop, batches):.3f} ms a step")
    print(f"batches of 64: {gpu_milliseconds(blocking_loop, make_batches(64, 50)):.3f} ms a step")
else:
    print("Skipped: PyTorch sees no CUDA GPU here. On a machine with one, this cell times both loops on it.")

# %% [markdown]
# ## Recap
#
# * A blocking copy from ordinary memory makes the step a sum: copy + compute. Nothing is hidden.
# * First look at the share of the copy. If it is small, the copy is not your problem.
# * Time GPU code with a synchronise before *and* after, or with events. Send what is stored, convert on the GPU.
#
# Next: [2. Pinned memory](02_pin_memory.ipynb). What changes if memory need not be staged?

# %% tags=["picture"]
# one call of `x.to("cuda")`, on a GPU that does nothing else
from stills import batches
from torch.profiler import record_function

import loaderviz as lv
from loaderviz.workshop.loop import GPU, HOST

x = batches(1)[0][0]
with lv.record(on=GPU, host=HOST) as recording:
    for number in range(2):
        with record_function(f"batch {number}: 2048 samples"):
            x.to("cuda")
recording.timeline.from_batch(1).view(color="kind", title='One call of x.to("cuda"), and its copy')

# %% tags=["claims"]
assert summary.overlap == 0 and summary.compute_share < 0.5
assert sorted(summary.breakdown, key=summary.breakdown.get)[-2:] == ["compute", "copy exposed"]
assert summary.limit == max(summary.compute, summary.copy)
# the batches are large because there the copy is
assert summary.copy_share > tiny.copy_share
assert max(tiny.idle, tiny.copy, tiny.compute) == tiny.idle
assert busy_ms > 2 * idle_ms
assert launch_ms * 10 < whole_ms <= item_ms

# %% [markdown] tags=["guide"]
# ### 1. The blocking copy
#
# Asks: what does `x.to("cuda")` cost?
#
# Idea: `.to("cuda")` makes host and GPU wait for each other, and most timings of it are wrong.
#
# Exercises: 1.1 (8), 1.2 (5)
#
# * **Say:** "Two machines that wait for each other are one slow machine."
# * **Stuck:** in 1.1 nearly everybody forgets the first synchronise. The check says "the GPU did earlier work, and you
#   timed that, too". In 1.2: `images.float().to("cuda")` converts on the host.
# * **Ask:** "`.item()` is slow. What does it do all that time?" It waits for work that was queued before (R25).

# %% [markdown] tags=["answers"]
# ## 1. The blocking copy
#
# <!-- busy 6c0a4fae -->
# * *In which share of the time does the GPU compute?* **less than half of the time**
#   (<!--=summary.compute_share:.0%-->43 %<!---->); the copy takes <!--=summary.copy_share:.0%-->51 %<!---->, none of it
#   hidden.
#
# <!-- largest def14041 -->
# * *Batches of 64: what is the largest part of a step?* **the GPU is idle: it has nothing to do**: launching work takes
#   longer than doing it.
#
# * **Exercise 1.1:** `torch.cuda.synchronize()` before the clock starts *and* before it stops; or two events (R27).
# * **Exercise 1.2:** copy the `uint8`, convert on the GPU: a quarter of the bytes travel.
