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
# Time: about 25 minutes.

# %%
import time

import torch

import loaderviz as lv
from loaderviz import words
from loaderviz.workshop import lesson01, loop, predict, recall
from loaderviz.workshop.loop import GPU, gpu_milliseconds, make_batches, new_model, steps, train_step, watch

# %%
recall(1)

# %% [markdown]
# ## The loop
#
# The batches are ready, in host memory. The GPU has a memory of its own, so each batch must travel.


# %%
def blocking_loop(batches):
    """Copy, then train."""
    model, optimizer = new_model()
    for x, y in steps(batches):
        x = x.to("cuda")
        y = y.to("cuda")
        loss = train_step(model, optimizer, x, y)
    return loss


# %%
busy = predict(
    "In which share of the time does the GPU compute?",
    ["more than nine tenths", "more than half", "less than half"],
    answer=lambda: 1 + (summary.compute_share < 0.9) + (summary.compute_share < 0.5),
    why="The rest is mostly the copy. Nothing of it is hidden, that is, copied while the GPU computes.",
)
busy

# %%
batches = make_batches()
blocking = watch(blocking_loop, batches)
blocking.view(verdict=False)

# %% [markdown]
# ## See
#
# Follow one colour down:
#
# 1. `main thread: CUDA calls`: the long bar is the copy call. The host is blocked (hatched).
# 2. `copy engine to GPU`: the batch travels.
# 3. `default stream`: the GPU computes (thick bars).

# %%
summary = lv.summarize(blocking)
print(f"a step takes       {words.duration(summary.step)}")
print(f"the GPU computes   {words.share(summary.compute_share)} of the time")
print(f"the copy takes     {words.share(summary.copy_share)} of the time")
print(f"hidden of the copy {words.share(summary.overlap)}")
busy.reveal()

# %% [markdown]
# ## The host runs ahead
#
# **R27: the host runs ahead.** `a @ a` only queues a *kernel*, a function of the GPU, and returns.

# %%
lesson01.wait


# %% tags=["starter"]
# Exercise 1.a
def finish(step):
    """Return when the GPU has done the work of step()."""
    step()


# %% tags=["exercise"]
# Exercise 1.a
def finish(step):
    """Return when the GPU has done the work of step()."""
    step()
    torch.cuda.synchronize()


# %%
lesson01.wait.check(finish)

# %%
lesson01.wait.show()

# %% [markdown]
# ## Explain
#
# * **R1: a copy from ordinary memory is staged.** The system may move such *pageable* memory, so the host first copies
#   it into a fixed buffer of the driver.
# * **R30: a blocking `.to` waits for its *stream***, the queue of the GPU.
# * **R22: a copy takes a start time, and then its bytes / the bandwidth.**
#
# So a step is a *sum*: copy, then compute. The *limit* is the longer one of the two.

# %%
for part, time_ns in summary.breakdown.items():
    print(f"{part:40} {words.duration(time_ns / summary.batches):>9} a step")
limit = summary.limit / summary.batches
print(f"a step now {words.duration(summary.step)}, the limit {words.duration(limit)}: {words.times(summary.headroom)}")

# %% [markdown]
# ## Walk through it
#
# At which line is the host while a batch travels?

# %%
lv.step_through(blocking)

# %% [markdown]
# ## Batches of 64

# %%
largest = predict(
    "Batches of 64: what is the largest part of a step?",
    ["the GPU computes", "the copy", "the GPU is idle: it has nothing to do"],
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
print(f"with a perfect overlap: {words.duration(best)} a step, {words.times(tiny.step / best)} as fast")
largest.reveal()

# %% [markdown]
# **R23: a launch costs host time.** The GPU is done with each small kernel before the next one comes. A hidden copy
# would change little. So first look at the share of the copy.
#
# ## Is the copy slow?


# %%
def milliseconds(action):
    """Time the host."""
    begin = time.perf_counter()
    action()
    return 1e3 * (time.perf_counter() - begin)


x = batches[0][0]

# %%
with lv.record(on=GPU, host=loop.HOST):
    a = torch.randn(2048, 2048, device="cuda")
    a @ a, x.to("cuda")
    torch.cuda.synchronize()
    idle_ms = milliseconds(lambda: x.to("cuda"))
    launch_ms = milliseconds(lambda: a @ a)
    busy_ms = milliseconds(lambda: x.to("cuda"))
    whole_ms = milliseconds(lambda: (a @ a, torch.cuda.synchronize()))
    item_ms = milliseconds(lambda: (a @ a)[0, 0].item())
print(f"x.to('cuda') on an idle GPU {idle_ms:.3f} ms, behind a matrix product {busy_ms:.3f} ms")
print(f"a @ a: {launch_ms:.3f} ms, with synchronise {whole_ms:.3f} ms, with .item() {item_ms:.3f} ms")

# %% [markdown]
# Behind the product the copy waits in the queue. **R25: `.item()` waits**, too.

# %%
lesson01.timing

# %% tags=["starter"]
# Exercise 1.1
import time

import torch


def gpu_ms(step):
    """Return the milliseconds of step()."""
    begin = time.perf_counter()
    step()
    ...  # what is missing here, and above?
    return 1000 * (time.perf_counter() - begin)


# %% tags=["exercise"]
# Exercise 1.1
import time

import torch


def gpu_ms(step):
    """Return the milliseconds of step()."""
    torch.cuda.synchronize()  # earlier work must not count
    begin = time.perf_counter()
    step()
    torch.cuda.synchronize()  # the work must be done, not only queued
    return 1000 * (time.perf_counter() - begin)


# %%
lesson01.timing.check(gpu_ms)

# %% [markdown]
# ## The cheapest bytes
#
# A stored pixel has one byte (`uint8`), as `float32` it has four.

# %%
lesson01.one_byte


# %% tags=["starter"]
# Exercise 1.b
def copy(x):
    """Return x as float32 on the GPU."""
    return x.float().to("cuda")


# %% tags=["exercise"]
# Exercise 1.b
def copy(x):
    """Return x as float32 on the GPU."""
    return x.to("cuda").float()


# %%
lesson01.one_byte.check(copy)

# %%
lesson01.one_byte.show()

# %%
lesson01.fewer_bytes


# %% tags=["starter"]
# Exercise 1.2
def load(batches):
    """Yield each batch on the GPU."""
    for images, labels in batches:
        images = images.float() / 255
        yield images.to("cuda"), labels.to("cuda")


# %% tags=["exercise"]
# Exercise 1.2
def load(batches):
    """Yield each batch on the GPU."""
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
# * `lv.summarize(watch(blocking_loop, batches, on="a100"))`: is the share of the copy larger there?
# * A larger network, `new_model(hidden=2048)`: is the copy still worth hiding?
#
# ## The same code on a real GPU

# %% tags=["gpu"]
if torch.cuda.is_available():
    print(f"{torch.cuda.get_device_name()}, batches of 2048: {gpu_milliseconds(blocking_loop, batches):.3f} ms a step")
    print(f"batches of 64: {gpu_milliseconds(blocking_loop, make_batches(64, 50)):.3f} ms a step")
else:
    print("Skipped: PyTorch sees no CUDA GPU here. On a machine with one, this cell times both loops on it.")

# %% [markdown]
# ## Recap
#
# * A blocking copy makes the step a sum. First look at its share.
# * Synchronise before *and* after what you time.
# * Send what is stored, convert on the GPU.
#
# Next: [2. Pinned memory](02_pin_memory.ipynb)

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
# Exercises: 1.a (1), 1.1 (8), 1.b (1), 1.2 (5)
#
# * **Say:** "Two machines that wait for each other are one slow machine."
# * **Stuck:** in 1.1 nearly everybody forgets the first synchronise. The check then says "the GPU did earlier work, and
#   you timed that, too". In 1.2 people write `images.float().to("cuda")`, which converts on the host.
# * **More, if asked:** the labels have few bytes, so their copy is nearly all start time (R22). The thin bars in the
#   stream are the same copies once more, because the copies stand in that queue.
# * **Ask:** "`.item()` is slow. What does it do all that time?" It waits for work that was queued before (R25).

# %% [markdown] tags=["answers"]
# ## 1. The blocking copy
#
# <!-- busy edaa947a -->
# * *In which share of the time does the GPU compute?* **less than half**
#   (<!--=summary.compute_share:.0%-->43 %<!---->); the copy takes <!--=summary.copy_share:.0%-->51 %<!---->, none of it
#   hidden.
#
# <!-- largest e5b6e44a -->
# * *Batches of 64: what is the largest part of a step?* **the GPU is idle: it has nothing to do**: launching work takes
#   longer than doing it.
#
# * **Exercise 1.a:** `torch.cuda.synchronize()` after `step()`.
# * **Exercise 1.1:** `torch.cuda.synchronize()` before the clock starts *and* before it stops; or two events (R27).
# * **Exercise 1.b:** `x.to("cuda").float()`: the stored bytes travel, the GPU converts.
# * **Exercise 1.2:** copy the `uint8`, convert on the GPU: a quarter of the bytes travel.
