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
# **The question of this lesson: what does pinned memory change, and what does it not change?**
#
# After it you can
#
# * say why a copy from pinned memory is faster;
# * show that pinning alone hides nothing;
# * avoid the most common mistake, `pin_memory()` inside the loop;
# * read the lanes of a `DataLoader` with `pin_memory=True`.
#
# Time: about 20 minutes. You need no GPU. Before it: [1. The blocking copy](01_blocking_copy.ipynb).

# %%
import itertools
import time

import torch
from torch.profiler import record_function
from torch.utils.data import DataLoader

import loaderviz as lv
from loaderviz import mnist, words

# %% [markdown]
# ## The same parts as in lesson 1
#
# Batches in host memory, a small network, one training step. Run the cells; there is nothing new in them.

# %%
GPU = "laptop"  # the GPU to emulate; other names: "t4", "a100", "h100", "h200"
BATCH, WARM_UP, STEPS = 2048, 3, 4  # samples in a batch; steps before we look; steps in the picture
LOADER_WARM_UP = 10  # a DataLoader needs more steps until all its memory has been used before
images, labels = mnist.tensors(train=True)


# %%
def make_batches(size=BATCH, count=WARM_UP + STEPS):
    """Return batches in host memory: images float32, as most tutorials use them, and labels."""
    pairs = zip(images.split(size), labels.split(size), strict=True)
    return [(x.float() / 255, y) for x, y in itertools.islice(pairs, count)]


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


# %%
def steps(batches, warm_up=WARM_UP):
    """Hand out the batches, each under its name; before the first that we look at, wait for the GPU."""
    for number, batch in enumerate(batches):
        if number == warm_up:
            torch.cuda.synchronize()
        with record_function(f"batch {number}: {len(batch[-1])} samples"):
            yield batch


# %%
def watch(loop, *arguments, warm_up=WARM_UP):
    """Record a loop on the emulated GPU; return the timeline without the warm-up."""
    with lv.record(on=GPU) as recording:
        loss = loop(*arguments)
        torch.cuda.synchronize()
    print(f"{loop.__name__}: loss of the last batch {loss.item():.4f}")
    return recording.timeline.from_batch(warm_up)


# %% [markdown]
# ## One copy, two kinds of memory
#
# *Pinned* (or *page-locked*) memory is host memory that the operating system promises not to move.
# The GPU can read it directly, without the host. `x.pin_memory()` returns a pinned copy of `x`.
#
# **Predict:** how much faster is the copy from pinned memory?

# %%
batches = make_batches()
x = batches[0][0]
with lv.record(on=GPU) as recording:
    pinned_x = x.pin_memory()
    for source in (x, pinned_x):
        torch.cuda.synchronize()
        source.to("cuda")
    print(f"x is pinned: {x.is_pinned()}, pinned_x is pinned: {pinned_x.is_pinned()}")

# %%
for kind, rate in lv.summarize(recording.timeline).bandwidth.items():
    print(f"{kind:13} {rate / 1e9:5.1f} GB/s")

# %% [markdown]
# * **R1: a copy from pageable memory is staged.** The host copies every byte into the buffer of the driver first.
# * **R2, R8: a copy from pinned memory is not staged.** The copy engine of the GPU fetches the bytes itself.
#
# The numbers are those of the emulated machine. On some machines the two differ by much less, so measure yours.
#
# ## Pinning has a price
#
# **R43: `pin_memory()` copies, and the host waits for it.** The price has two parts: new memory must be page-locked
# (**R44: this is slow, but PyTorch keeps the memory and uses it again**), and the data must be copied into it.
#
# **Predict:** which of these calls is the cheapest?


# %%
def milliseconds(action):
    """Return how long the host needs for `action`, in the virtual time of the emulated machine."""
    begin = time.perf_counter()
    action()
    return 1e3 * (time.perf_counter() - begin)


# %%
with lv.record(on=GPU):
    x.to("cuda")  # the first copy allocates memory on the GPU; the ones below use it again
    print(f"pin_memory(), new memory          {milliseconds(lambda: x.pin_memory()):.3f} ms")
    print(f"pin_memory(), memory used before  {milliseconds(lambda: x.pin_memory()):.3f} ms")
    pinned_x = x.pin_memory()
    print(f"pin_memory(), pinned already      {milliseconds(lambda: pinned_x.pin_memory()):.3f} ms")
    print(f"the blocking copy, not pinned     {milliseconds(lambda: x.to('cuda')):.3f} ms")
    print(f"the blocking copy, pinned         {milliseconds(lambda: pinned_x.to('cuda')):.3f} ms")

# %% [markdown]
# Compare the second line plus the last line with the line before the last:
# that is the comparison between "pin, then copy" and "just copy".
#
# ## The mistake: pinning inside the loop
#
# You find this advice often: write `.pin_memory()` before `.to("cuda")`.
# **Predict:** is this loop faster or slower than the plain one?


# %%
def blocking_loop(batches):
    """Copy a batch, train on it, copy the next one."""
    model, optimizer = new_model()
    for x, y in steps(batches):
        loss = train_step(model, optimizer, x.to("cuda"), y.to("cuda"))
    return loss


# %%
def pin_in_the_loop(batches, non_blocking=False):
    """Pin each batch just before it is copied."""
    model, optimizer = new_model()
    for x, y in steps(batches):
        x = x.pin_memory().to("cuda", non_blocking=non_blocking)
        y = y.pin_memory().to("cuda", non_blocking=non_blocking)
        loss = train_step(model, optimizer, x, y)
    return loss


# %%
plain = watch(blocking_loop, batches)
pinning = watch(pin_in_the_loop, batches)
lv.compare({"plain": plain, "pin in the loop": pinning}).figure()

# %%
runs = {"plain": plain, "pin in the loop": pinning, "the same, non_blocking": watch(pin_in_the_loop, batches, True)}
for name, timeline in runs.items():
    each = lv.summarize(timeline)
    speed = words.times(lv.summarize(plain).step / each.step)
    print(f"{name:23} {words.duration(each.step)} a step, {speed} the speed of plain, ", end="")
    print(f"copy hidden {words.share(each.overlap)}")

# %% [markdown]
# The host copy did not go away. It moved: first the driver copied into its buffer, now `pin_memory()` copies into
# pinned memory, and our own thread does it, in the loop. The copy to the GPU comes on top of it.
# In the figure the long bars in `main · calls`, with the number of the batch, are `pin_memory()`.
# The GPU is idle in the meantime.
#
# With `non_blocking=True` (lesson 3) the host may run ahead: it pins the next batch while the GPU computes.
# That wins back the time of the pinning, but look at the last number: nothing of the copy itself is hidden.
#
# ## Pinned before the loop: is anything hidden now?
#
# Suppose that somebody else has pinned all batches before the loop starts. We keep the blocking `.to("cuda")`.
#
# **Predict:** which share of the copy is hidden now?


# %%
def pinned_blocking_loop(batches):
    """Pin all batches first, then run the blocking loop."""
    return blocking_loop([(x.pin_memory(), y.pin_memory()) for x, y in batches])


# %%
pinned = watch(pinned_blocking_loop, batches)
pinned.figure(color="batch")

# %%
before, now = lv.summarize(plain), lv.summarize(pinned)
print(f"copy a step: plain {words.duration(before.copy / STEPS)}, pinned {words.duration(now.copy / STEPS)}")
print(f"step: plain {words.duration(before.step)}, pinned {words.duration(now.step)}")
print(f"hidden: plain {words.share(before.overlap)}, pinned {words.share(now.overlap)}")
print(f"still {words.times(now.headroom)} the limit")

# %% [markdown]
# <details><summary><b>Compare with your prediction</b></summary>
#
# The copy is shorter, because it is not staged any more. But nothing is hidden: the step is still a *sum*.
# Pinned memory makes overlap *possible*. It does not make overlap.
#
# </details>
#
# **R30: a blocking `.to` waits for its stream**, pinned or not. Look at `main · waits`: the cause is not "staging" now,
# it is "synchronize". The host waits for the copy, so nobody gives the GPU work in the meantime.
#
# ## Who should pin? The DataLoader
#
# **R45: `DataLoader(pin_memory=True)` pins in a thread of its own.** The worker processes make the batches, the pin
# thread copies each into pinned memory, and the training loop only takes them. So the pinning costs the loop nothing,
# as long as the pin thread keeps up.


# %%
class Digits(torch.utils.data.Dataset):
    """MNIST, where the DataLoader asks for a whole batch at once."""

    def __len__(self):
        return BATCH * (LOADER_WARM_UP + STEPS + 2)

    def __getitems__(self, indices):
        rows = torch.tensor(indices)
        return images[rows], labels[rows]


# %%
def fed_by_a_dataloader(pin_memory):
    """Train on batches from two worker processes; the images travel as uint8, and become float32 on the GPU."""
    loader = DataLoader(Digits(), BATCH, num_workers=2, collate_fn=tuple, pin_memory=pin_memory)
    model, optimizer = new_model()
    for x, y in steps(loader, LOADER_WARM_UP):
        x = x.to("cuda", non_blocking=True).float() / 255
        loss = train_step(model, optimizer, x, y.to("cuda", non_blocking=True))
        loss.item()  # for a progress bar: the host waits for the end of the step
    return loss


# %%
from_loader = watch(fed_by_a_dataloader, True, warm_up=LOADER_WARM_UP)
from_loader.figure(color="batch")

# %% [markdown]
# Read the picture from top to bottom, as a batch travels: `worker 0` and `worker 1` fetch, the `pin thread` pins,
# `main` takes the batch and calls the copy, the `H2D engine` copies, the stream computes.
# The workers are some batches ahead: the colours in their lanes are those of batches that come later.
# On the right their lanes are empty, because the data set ends there.

# %%
for lane in from_loader.lanes:
    print(f"{lane.group:7} {lane.name}")
fed = lv.summarize(from_loader)
print(f"a step {words.duration(fed.step)}; hidden of the copy {words.share(fed.overlap)}")

# %% [markdown]
# Pinned, not blocking, a thread that pins, workers that work ahead. And still the copy is not hidden.
# The reason is the topic of the next lesson. (Hint: in which *stream* is the copy?)
#
# ## Try: how a copy loses its pinned memory
#
# **R31: a blocking `.to` that also changes the type converts on the host first**, into new memory that is not pinned.
# The line below has a pinned source. Which of the two is faster, and by how much?

# %%
with lv.record(on=GPU):
    pinned_x = x.pin_memory()
    torch.cuda.synchronize()
    print(f".to('cuda', torch.float16)  {milliseconds(lambda: pinned_x.to('cuda', torch.float16)):.3f} ms")
    print(f".to('cuda').half()          {milliseconds(lambda: pinned_x.to('cuda').half()):.3f} ms")

# %% [markdown]
# Now change something yourself: set `GPU = "t4"` in the second code cell. Its link is older and slower.
# Is pinning inside the loop still a bad idea there? Or call
# `watch(fed_by_a_dataloader, False, warm_up=LOADER_WARM_UP)` and look for the pin thread.
#
# ## The same code on a real GPU


# %%
def gpu_milliseconds(loop, *arguments):
    """Return the time of one step of a loop, measured by events in the stream; pinning before the loop included."""
    loop(*arguments)  # the first run allocates memory and loads kernels
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    loop(*arguments)
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / len(arguments[0])


# %% tags=["gpu"]
if torch.cuda.is_available():
    print(f"{torch.cuda.get_device_name()}: plain {gpu_milliseconds(blocking_loop, batches):.3f} ms a step")
    print(f"pin in the loop {gpu_milliseconds(pin_in_the_loop, batches):.3f} ms a step")
    ready = [(x.pin_memory(), y.pin_memory()) for x, y in batches]
    print(f"pinned before the loop {gpu_milliseconds(blocking_loop, ready):.3f} ms a step")
else:
    print("Skipped: PyTorch sees no CUDA GPU here. On a machine with one, this cell times the three loops on it.")

# %% [markdown]
# ## Recap
#
# * Pinned memory is memory that the GPU can read itself: the copy is not staged, and the host is free.
# * `pin_memory()` is a copy by the host. Inside the loop it only moves the work to another line.
# * Let the `DataLoader` pin: it has a thread for it.
# * Pinning alone hides nothing. It is one of three conditions. The next lesson has the other two.
#
# Next: [3. Non-blocking copies and prefetch](03_non_blocking_prefetch.ipynb)
