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
# # 2. Pinned memory
#
# ![The loop of lesson 1: for each batch the host is blocked by staging while the copy engine works; then the GPU
# computes, and so on in turns.](pictures/02_pin_memory.png)
#
# **The question of this lesson: what does pinned memory change, and what does it not change?**
#
# Time: about 25 minutes.

# %%
import time

import torch
from torch.utils.data import DataLoader

import loaderviz as lv
from loaderviz import experiment, mnist, words
from loaderviz.workshop import lesson02, loop, predict, recall
from loaderviz.workshop.loop import GPU, STEPS, gpu_milliseconds, make_batches, new_model, steps, train_step, watch

# %%
recall(2)

# %% [markdown]
# ## One copy, two kinds of memory
#
# *Pinned* (*page-locked*) host memory cannot move, so the GPU reads it directly. `x.pin_memory()` returns a pinned
# copy.

# %%
faster = predict(
    "How fast is the same copy from pinned memory?",
    ["as fast as before", "up to twice as fast", "more than twice as fast"],
    answer=lambda: 1 + sum(rate["H2D pinned"] > times * rate["H2D pageable"] for times in (1.05, 2)),
    why="This is the emulated machine. On some machines the two differ by much less, so measure yours.",
)
faster

# %%
batches = make_batches()
x = batches[0][0]
with lv.record(on=GPU, host=loop.HOST) as recording:
    pinned_x = x.pin_memory()
    for source in (x, pinned_x):
        torch.cuda.synchronize()
        source.to("cuda")
    print(f"x is pinned: {x.is_pinned()}, pinned_x is pinned: {pinned_x.is_pinned()}")
rate = lv.summarize(recording.timeline).bandwidth
print(", ".join(f"{kind}: {value / 1e9:.1f} GB/s" for kind, value in rate.items()))
faster.reveal()

# %% [markdown]
# * **R1: a copy from pageable memory is staged.** The host carries each byte into a buffer of the driver.
# * **R2, R8: a copy from pinned memory is not.** The copy engine fetches the bytes itself.

# %%
lesson02.pin_one


# %% tags=["starter"]
# Exercise 2.a
def copy(x):
    """Return x on the GPU."""
    return x.to("cuda")


# %% tags=["exercise"]
# Exercise 2.a
def copy(x):
    """Return x on the GPU."""
    return x.pin_memory().to("cuda")


# %%
lesson02.pin_one.check(copy)

# %%
lesson02.pin_one.show()

# %% [markdown]
# ## How pinned memory is made
#
# **R43: `pin_memory()` copies, and the host waits for it. R44: page-locking new memory is slow**, so PyTorch uses it
# again. Which of these five calls is the cheapest?


# %%
def milliseconds(action):
    """Time the host."""
    begin = time.perf_counter()
    action()
    return 1e3 * (time.perf_counter() - begin)


# %%
with lv.record(on=GPU, host=loop.HOST):
    pinned_x = x.pin_memory()
    pinned_x.to("cuda")
    print(f"pin_memory(), new memory          {milliseconds(lambda: x.pin_memory()):.3f} ms")
    print(f"pin_memory(), memory used before  {milliseconds(lambda: x.pin_memory()):.3f} ms")
    print(f"pin_memory(), pinned already      {milliseconds(lambda: pinned_x.pin_memory()):.3f} ms")
    print(f"the copy to the GPU, not pinned   {milliseconds(lambda: x.to('cuda')):.3f} ms")
    print(f"the copy to the GPU, pinned       {milliseconds(lambda: pinned_x.to('cuda')):.3f} ms")

# %% [markdown]
# ## Pinning inside the loop
#
# Some advise you to write `.pin_memory()` before each `.to("cuda")`.


# %%
def blocking_loop(batches):
    """Copy, train, read the loss."""
    model, optimizer = new_model()
    for x, y in steps(batches):
        loss = train_step(model, optimizer, x.to("cuda"), y.to("cuda"))
        loss.item()
    return loss


# %%
def pin_in_the_loop(batches, non_blocking=False):
    """Pin, then copy."""
    model, optimizer = new_model()
    for x, y in steps(batches):
        x = x.pin_memory().to("cuda", non_blocking=non_blocking)
        y = y.pin_memory().to("cuda", non_blocking=non_blocking)
        loss = train_step(model, optimizer, x, y)
        loss.item()
    return loss


# %%
advice = predict(
    "Pinning inside the loop: the loop becomes …",
    ["faster", "slower", "neither: less than a twentieth of difference"],
    answer=lambda: "faster" if slower < 0.95 else "slower" if slower > 1.05 else 3,
)
advice

# %%
plain = watch(blocking_loop, batches)
pinning = watch(pin_in_the_loop, batches)
lv.compare({"plain": plain, "pin in the loop": pinning}, verdict=False, folded=False)

# %%
runs = {"plain": plain, "pin in the loop": pinning, "the same, non_blocking": watch(pin_in_the_loop, batches, True)}
for name, timeline in runs.items():
    each = lv.summarize(timeline)
    speed = words.times(lv.summarize(plain).step / each.step)
    print(f"{name:23} {words.duration(each.step):>9} a step, {speed} the speed of plain, ", end="")
    print(f"copy hidden {words.share(each.overlap)}")
slower = lv.summarize(pinning).step / lv.summarize(plain).step
advice.reveal()

# %% [markdown]
# The host's work only moved to `pin_memory()`. The GPU is idle meanwhile. `non_blocking=True` (lesson 3)
# hides nothing.

# %%
lesson02.pin_once


# %% tags=["starter"]
# Exercise 2.1
def load(batches, epochs):
    """Yield all batches on the GPU."""
    for epoch in range(epochs):
        for images, labels in batches:
            images, labels = images.pin_memory(), labels.pin_memory()
            yield images.to("cuda"), labels.to("cuda")


# %% tags=["exercise"]
# Exercise 2.1
def load(batches, epochs):
    """Yield all batches on the GPU."""
    pinned = [(images.pin_memory(), labels.pin_memory()) for images, labels in batches]  # once
    for epoch in range(epochs):
        for images, labels in pinned:
            yield images.to("cuda"), labels.to("cuda")


# %%
lesson02.pin_once.check(load)

# %% [markdown]
# ## Pinned before the loop

# %%
hidden = predict(
    "Pinned before the loop, blocking copies: which share of the copy is hidden?",
    ["nothing", "about half of it", "nearly all of it"],
    answer=lambda: 1 + (now.overlap > 0.1) + (now.overlap > 0.9),
    why="Pinned memory makes overlap possible. It does not make overlap.",
)
hidden


# %%
def pinned_blocking_loop(batches):
    """Pin before the loop."""
    return blocking_loop([(x.pin_memory(), y.pin_memory()) for x, y in batches])


# %%
pinned = watch(pinned_blocking_loop, batches)
pinned.view(verdict=False)

# %%
before, now = lv.summarize(plain), lv.summarize(pinned)
print(f"copy a step: plain {words.duration(before.copy / STEPS)}, pinned {words.duration(now.copy / STEPS)}")
print(f"step: plain {words.duration(before.step)}, pinned {words.duration(now.step)}")
print(f"still {words.times(now.headroom)} the limit")
print(f"the host is blocked by: plain {', '.join(before.host_blocked)}; pinned {', '.join(now.host_blocked)}")
hidden.reveal()

# %% [markdown]
# The copy is shorter, but the step is still a *sum*. **R30: a blocking `.to` waits**, pinned or not.
#
# ## Who should pin? The DataLoader
#
# **R45: a `DataLoader` with workers pins in a thread of its own.**

# %%
lesson02.let_pin

# %% tags=["starter"]
# Exercise 2.b
from torch.utils.data import DataLoader


def loader(data):
    """Return a loader."""
    return DataLoader(data, batch_size=64, num_workers=2)


# %% tags=["exercise"]
# Exercise 2.b
from torch.utils.data import DataLoader


def loader(data):
    """Return a loader."""
    return DataLoader(data, batch_size=64, num_workers=2, pin_memory=True)


# %%
lesson02.let_pin.check(loader)

# %%
lesson02.let_pin.show()


# %%
def fed_by_a_dataloader(pin_memory):
    """Train on batches of two workers."""
    data = experiment.Images(*(part[: 16 * 2048] for part in mnist.tensors(train=True)))
    loader = DataLoader(data, 2048, num_workers=2, collate_fn=experiment.as_it_is, pin_memory=pin_memory)
    model, optimizer = new_model()
    for x, y in steps(loader, warm_up=10):
        x = x.to("cuda", non_blocking=True).float() / 255
        loss = train_step(model, optimizer, x, y.to("cuda", non_blocking=True))
        loss.item()
    return loss


# %%
from_loader = watch(fed_by_a_dataloader, True, warm_up=10)
fed = lv.summarize(from_loader)
print(f"a step {words.duration(fed.step)}; hidden of the copy {words.share(fed.overlap)}")
from_loader.view()

# %% [markdown]
# The workers fetch, the `pin thread` pins, `main` calls the copy, the engine copies. Nothing is hidden: in which
# *stream* is the copy?
#
# ## Do not lose it again
#
# A conversion on the host makes a *new* tensor, which is not pinned.

# %%
lesson02.half

# %% tags=["starter"]
# Exercise 2.2
import torch


def load(batches):
    """Yield each batch on the GPU."""
    for images, labels in batches:
        images = images.to("cuda", torch.float16)  # change this line
        yield images, labels.to("cuda")


# %% tags=["exercise"]
# Exercise 2.2
import torch


def load(batches):
    """Yield each batch on the GPU."""
    for images, labels in batches:
        images = images.to("cuda").half()  # from pinned memory; then the GPU converts
        yield images, labels.to("cuda")


# %%
lesson02.half.check(load)

# %%
lesson02.half.show()

# %% [markdown]
# ## Try
#
# * Take `loss.item()` out of both loops. Now pinning inside the loop wins. Why?
# * `watch(fed_by_a_dataloader, False, warm_up=10)`: who is blocked by what?
#
# ## The same code on a real GPU

# %% tags=["gpu"]
if torch.cuda.is_available():
    print(f"{torch.cuda.get_device_name()}: plain {gpu_milliseconds(blocking_loop, batches):.3f} ms a step")
    print(f"pin in the loop {gpu_milliseconds(pin_in_the_loop, batches):.3f} ms a step")
    print(f"pinned before the loop {gpu_milliseconds(pinned_blocking_loop, batches):.3f} ms a step")
else:
    print("Skipped: PyTorch sees no CUDA GPU here. On a machine with one, this cell times the three loops on it.")

# %% [markdown]
# ## Recap
#
# * `pin_memory()` is a copy by the host. Let a `DataLoader` with workers pin.
# * Send the tensor that you got, convert it on the GPU.
# * Pinning alone hides nothing.
#
# Next: [3. Non-blocking copies and prefetch](03_non_blocking_prefetch.ipynb)

# %% tags=["picture"]
# the loop of lesson 1
from stills import batches, train

from loaderviz.loaders import BlockingLoader

train(lambda: BlockingLoader(batches(6))).view(title="The loop of lesson 1: the host is blocked by each copy")

# %% tags=["claims"]
assert rate["H2D pinned"] > rate["H2D pageable"]
assert lv.summarize(pinning).step > lv.summarize(plain).step
assert lv.summarize(runs["the same, non_blocking"]).step < lv.summarize(pinning).step
assert all(lv.summarize(each).overlap == 0 for each in (plain, pinning, pinned, from_loader))
assert now.copy < before.copy
assert "staging" in before.host_blocked and list(now.host_blocked) == ["synchronize"]
assert {lane.role for lane in from_loader.lanes} == {"main", "worker", "pin", "stream"}
# drawn, too
assert {row.lane.role for row in from_loader.rows()} == {"main", "worker", "pin", "stream"}

# %% [markdown] tags=["guide"]
# ### 2. Pinned memory
#
# Asks: what does it change?
#
# Idea: Pinned memory makes copies faster and overlap possible. By itself it makes no overlap.
#
# Exercises: 2.a (1), 2.1 (6), 2.b (1), 2.2 (6)
#
# * **Say:** "The GPU's copy engine can only read memory that cannot move away. For other memory somebody must carry
#   each byte to such a place first, and that somebody is your main thread."
# * **Stuck:** in 2.1 people keep the batches on the GPU. The check then says which batch was not copied again. The task
#   says that the data do not fit on the GPU.
# * **If asked:** PyTorch keeps pinned memory in blocks whose sizes are powers of two, so a pinned batch can take twice
#   its bytes (R39). A worker cannot pin a batch for the main process, because memory is pinned for one process only,
#   and the worker is another one. Without workers the loop itself pins. If a batch has lost its pinning, a profiler
#   shows its copy as "Pageable".

# %% [markdown] tags=["answers"]
# ## 2. Pinned memory
#
# <!-- faster bc11a972 -->
# * *How fast is the same copy from pinned memory?* **more than twice as fast**
#   (<!--=rate['H2D pinned'] / rate['H2D pageable']:.1f-->2.5<!---->x; published measurements of real machines go from
#   1.2x to 5x, so measure).
#
# <!-- advice 1ecfd46c -->
# * *Pinning inside the loop: the loop becomes …* **neither: less than a twentieth of difference** (a step takes
#   <!--=slower:.2f-->1.04<!---->x): `pin_memory()` is a copy by the host (R43), so the work only moves. In a loop that
#   never reads the loss it wins, because the host has time.
#
# <!-- hidden 5cdeb2da -->
# * *Pinned before the loop, blocking copies: which share of the copy is hidden?* **nothing**: a blocking call waits for
#   its copy, so nothing computes meanwhile.
#
# * **Exercise 2.a:** `x.pin_memory().to("cuda")`: what `pin_memory()` returns is pinned, not `x`.
# * **Exercise 2.1:** pin each batch once, before the first epoch, and keep the list.
# * **Exercise 2.b:** `pin_memory=True`.
# * **Exercise 2.2:** first `.to("cuda")`, then `.half()`; a blocking `.to("cuda", torch.float16)` converts on the host
#   into memory that is not pinned (R31).
