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
# # 3. Non-blocking copies and prefetch
#
# **The question of this lesson: what is needed so that the copy of the next batch runs while the GPU computes?**
#
# After it you can
#
# * name the three conditions, and show that two of them are not enough;
# * write a prefetch loop with a side stream, and put the wait in the right place;
# * recognise the sign of a forgotten wait: wrong numbers;
# * say when a prefetcher is not worth it.
#
# Time: about 25 minutes. You need no GPU. Before it: [2. Pinned memory](02_pin_memory.ipynb).

# %%
import itertools

import torch
from torch.profiler import record_function

import loaderviz as lv
from loaderviz import mnist, words
from loaderviz.loaders import BlockingLoader, PinnedLoader, PrefetchLoader, marks

# %% [markdown]
# ## The same parts as in lesson 1
#
# Batches in host memory, a small network, one training step. Run the cells; there is nothing new in them.

# %%
GPU = "laptop"  # the GPU to emulate; other names: "t4", "a100", "h100", "h200"
BATCH, WARM_UP, STEPS = 2048, 3, 4  # samples in a batch; steps before we look; steps in the picture
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
def steps(batches):
    """Hand out the batches, each under its name; before the first that we look at, wait for the GPU."""
    for number, batch in enumerate(batches):
        if number == WARM_UP:
            torch.cuda.synchronize()
        with record_function(f"batch {number}: {len(batch[-1])} samples"):
            yield batch


# %%
def watch(loop, *arguments):
    """Record a loop on the emulated GPU; return the timeline without the warm-up."""
    with lv.record(on=GPU) as recording:
        loss = loop(*arguments)
        torch.cuda.synchronize()
    print(f"{loop.__name__}: loss of the last batch {loss.item():.4f}")
    return recording.timeline.from_batch(WARM_UP)


# %%
def say(name, timeline):
    """Print the numbers of this lesson."""
    each = lv.summarize(timeline)
    print(f"{name:28} step {words.duration(each.step):>9}   copy hidden {words.share(each.overlap):>6}   ", end="")
    print(f"GPU computes {words.share(each.compute_share)}")


# %% [markdown]
# ## First failure: `non_blocking=True` alone
#
# `non_blocking=True` means: queue the copy, do not wait for its end.
# **Predict:** the memory is ordinary, pageable memory. Is the loop faster now?


# %%
def one_stream_loop(batches, non_blocking):
    """Copy and compute in the same stream."""
    model, optimizer = new_model()
    for x, y in steps(batches):
        x = x.to("cuda", non_blocking=non_blocking)
        y = y.to("cuda", non_blocking=non_blocking)
        loss = train_step(model, optimizer, x, y)
    return loss


# %%
batches = make_batches()
blocking = watch(one_stream_loop, batches, False)
not_pinned = watch(one_stream_loop, batches, True)
not_pinned.figure(color="batch")

# %%
say("blocking", blocking)
say("non_blocking, not pinned", not_pinned)

# %% [markdown]
# **R7: a pageable copy must be staged, so the driver may wait for the stream, and the host does the staging.**
# PyTorch did ask for an asynchronous copy. The driver cannot do it: the host is blocked all the same.
# There is no error and no warning. The lane `main · waits` shows it.
#
# ## Second failure: pinned and `non_blocking`, but one stream
#
# Now the batches are pinned before the loop starts. **Predict:** which share of the copy is hidden?


# %%
def pinned(batches):
    """Return the batches in pinned memory. In a real program `DataLoader(pin_memory=True)` does it."""
    return [(x.pin_memory(), y.pin_memory()) for x, y in batches]


# %%
def pinned_one_stream_loop(batches):
    """Pinned batches, non-blocking copies, and still the same stream."""
    return one_stream_loop(pinned(batches), True)


# %%
one_stream = watch(pinned_one_stream_loop, batches)
one_stream.figure(color="batch")

# %%
say("blocking", blocking)
say("pinned, one stream", one_stream)

# %% [markdown]
# The host is free now: in the lane `main · calls` it is some batches ahead of the GPU. That is good.
# But the GPU still copies *or* computes. Why?
#
# **R16: a stream is a queue; what is in it runs in order, one after the other.**
# The copy of batch 5 is in the queue behind the computing of batch 4, so it cannot start earlier.
# Copy and compute have two different engines on the GPU, but one queue uses only one at a time.
#
# So three conditions are needed for a copy to be hidden:
#
# 1. the source is **pinned**, so that the copy engine can work without the host;
# 2. the call is **non-blocking**, so that the host can go on;
# 3. the copy is in **another stream** than the computing, so that it can run at the same time.
#
# ## Third failure: a forgotten wait
#
# A second stream is one line: `side = torch.cuda.Stream()`. Calls inside `torch.cuda.stream(side)` go to that queue.
#
# **Predict:** what does the second `print` show?

# %%
x = batches[0][0]
print(f"the sum, on the host: {x.sum().item():.1f}")
with lv.record(on=GPU):
    side, source = torch.cuda.Stream(), x.pin_memory()
    with torch.cuda.stream(side):
        on_gpu = source.to("cuda", non_blocking=True)
    print(f"the sum, on the GPU:  {on_gpu.sum().item():.1f}")

# %% [markdown]
# <details><summary><b>Compare with your prediction</b></summary>
#
# It shows `nan`, "not a number". The sum was computed before the copy was complete.
#
# </details>
#
# **R15: PyTorch's streams do not wait for each other.** Nothing said that the sum must wait for the copy.
#
# On a real GPU this program gives the right sum on one day and a wrong one on another day: it depends on who is faster.
# The emulator makes the mistake visible *every time*: until something waits for a copy, its destination holds `nan`.
# With `copies="eager"` it behaves like the lucky day:

# %%
with lv.record(on=GPU, copies="eager") as recording:
    side, source = torch.cuda.Stream(), x.pin_memory()
    with torch.cuda.stream(side):
        on_gpu = source.to("cuda", non_blocking=True)
    print(f"the sum, on a lucky day: {on_gpu.sum().item():.1f}")

# %% [markdown]
# The `HazardWarning` under both cells says that loaderviz saw the mistake, also on the lucky day. Its report names the
# two calls and the line that is missing:

# %%
print(recording.hazards[0])

# %% [markdown]
# The repair is one line: the stream that computes must wait for the stream that copies.
# **`wait_stream` does not stop the host.** It puts a note into the queue: "go on when the other queue is this far".

# %%
with lv.record(on=GPU):
    side, source = torch.cuda.Stream(), x.pin_memory()
    with torch.cuda.stream(side):
        on_gpu = source.to("cuda", non_blocking=True)
    torch.cuda.current_stream().wait_stream(side)
    print(f"the sum, with the wait:  {on_gpu.sum().item():.1f}")

# %% [markdown]
# ## Prefetch: copy the next batch, then compute this one
#
# Now we have all the parts. `copy_ahead` queues the copy of a batch on the side stream.
# (`marks.prefetching` only tells the recording which batch the copy is for.)


# %%
def copy_ahead(side, number, batch):
    """Queue the copy of a batch on the side stream; return at once."""
    with torch.cuda.stream(side), marks.prefetching(number):
        return [part.to("cuda", non_blocking=True) for part in batch]


# %% [markdown]
# In the loop the order is important. **Predict:** why does `copy_ahead` come *before* `train_step`?


# %%
def prefetch_loop(batches):
    """While the GPU computes on a batch, the next one is copied."""
    model, optimizer = new_model()
    side, main = torch.cuda.Stream(), torch.cuda.current_stream()
    coming = copy_ahead(side, 0, batches[0])
    for number, _ in enumerate(steps(batches)):
        main.wait_stream(side)  # this batch must have arrived before we compute on it
        x, y = claim(coming, main)
        following = (number + 1) % len(batches)  # after the last batch, the first one again
        coming = copy_ahead(side, number + 1, batches[following])
        loss = train_step(model, optimizer, x, y)
    return loss


# %% [markdown]
# One line is still to be written: `claim`. The memory of a batch was taken in the side stream, and PyTorch may give it
# to another tensor of that stream as soon as our variable is gone. **R36: `record_stream` tells PyTorch that the other
# stream uses it, too**, so the memory is given away only when both are done.


# %%
def claim(batch, stream):
    """Tell the allocator that `stream` uses the batch, too."""
    for part in batch:
        part.record_stream(stream)
    return batch


# %%
def pinned_prefetch_loop(batches):
    """All three conditions: pinned, non-blocking, a stream of its own."""
    return prefetch_loop(pinned(batches))


# %%
prefetch = watch(pinned_prefetch_loop, batches)
prefetch.figure(color="batch")

# %% [markdown]
# Look at one moment on the left, and go down through the lanes: the `H2D engine` has the colour of a *later* batch,
# the stream that computes has the colour of *this* one. That is overlap.

# %%
ladder = {"blocking": blocking, "non_blocking only": not_pinned, "pinned, one stream": one_stream, "prefetch": prefetch}
for name, timeline in ladder.items():
    say(name, timeline)

# %%
comparison = lv.compare({"blocking": blocking, "pinned, one stream": one_stream, "prefetch": prefetch})
comparison.figure()

# %% [markdown]
# All loops have the same loss: they compute the same, only at other times.
#
# How far can we still go? When the copy is hidden, the step is as long as the computing. `headroom` near 1 means:
# a better way of copying cannot help any more.

# %%
best = lv.summarize(prefetch)
print(f"{words.times(best.headroom)} the limit; exposed copy {words.duration(best.exposed_copy)} in {STEPS} steps")

# %% [markdown]
# ## Why the next copy is queued first
#
# Here is the same loop with the two lines in the other order. Many loops also read the loss in every step, with
# `.item()`, for a progress bar. **Predict** what both do to the hidden share of the copy.


# %%
def late_prefetch_loop(batches, read_loss):
    """The wrong order: compute on this batch first, then copy the next one."""
    batches, (model, optimizer) = pinned(batches), new_model()
    side, main = torch.cuda.Stream(), torch.cuda.current_stream()
    coming = copy_ahead(side, 0, batches[0])
    for number, _ in enumerate(steps(batches)):
        main.wait_stream(side)
        loss = train_step(model, optimizer, *claim(coming, main))
        if read_loss:
            loss.item()
        coming = copy_ahead(side, number + 1, batches[(number + 1) % len(batches)])
    return loss


# %%
late = watch(late_prefetch_loop, batches, False)
late_and_reading = watch(late_prefetch_loop, batches, True)
say("prefetch, the right order", prefetch)
say("copy queued after the step", late)
say("the same, and .item()", late_and_reading)

# %% [markdown]
# The host needs time to queue a step, so a copy that is queued after it starts later. And `.item()` waits for the whole
# step (R25): a copy that is queued after *that* starts when the GPU has finished. Then nothing can be hidden any more.
#
# ## The same with a loader class
#
# `PrefetchLoader` contains the loop above, and the cases that the loop does not handle: errors, an early `break`,
# more than one batch ahead. Your training loop stays a plain `for`.


# %%
def loader_loop(make_loader, batches):
    """A plain loop; the loader brings the batches to the GPU."""
    (model, optimizer), loader = new_model(), make_loader(batches)
    trained = itertools.islice(loader, len(batches) - 2)  # not the last two: the prefetcher is two ahead
    for number, (x, y) in enumerate(trained):
        loss = train_step(model, optimizer, x, y)
        if number == WARM_UP - 1:
            torch.cuda.synchronize()
    return loss


# %%
def blocking_loader(batches):
    """The blocking copy, from pageable memory."""
    return BlockingLoader(batches, "cuda")


def pinned_loader(batches):
    """Pinned and non-blocking, in one stream."""
    return PinnedLoader(pinned(batches), "cuda")


def prefetch_loader(batches):
    """All three conditions, two batches ahead."""
    return PrefetchLoader(pinned(batches), "cuda", depth=2)


# %%
say("PrefetchLoader", watch(loader_loop, prefetch_loader, make_batches(count=WARM_UP + STEPS + 2)))

# %% [markdown]
# ## When prefetching is not worth it
#
# In lesson 1 we saw batches of 64, with a GPU that is idle most of the time.
# **Predict:** what do pinned memory and the prefetcher win there?

# %%
small_batches = make_batches(64, WARM_UP + 22)
small = {}
for loader in (blocking_loader, pinned_loader, prefetch_loader):
    small[loader.__name__] = watch(loader_loop, loader, small_batches)
    say(f"{loader.__name__}, batch 64", small[loader.__name__])

# %%
step = {name: lv.summarize(timeline).step for name, timeline in small.items()}
print(f"pinned is {words.times(step['blocking_loader'] / step['pinned_loader'])} as fast as blocking,")
print(f"prefetch is {words.times(step['pinned_loader'] / step['prefetch_loader'])} as fast as pinned")

# %%
small["prefetch_loader"].from_batch(WARM_UP + 17).figure(color="kind")

# %% [markdown]
# The host is the slowest part: it queues the work of a step more slowly than the GPU does it. So the host gains when it
# need not wait for copies any more: that is the first number. The second number is what the overlap adds to it.
# A copy can only be hidden under computing, and here there is little of it; and the calls for the side stream are more
# work for the slowest part.
#
# ## Try
#
# * Take out the line `main.wait_stream(side)`. What happens, and in which line? (The labels are whole numbers, they
#   have no `nan`: the emulator uses the largest number instead.)
# * Give `prefetch_loop` batches that are *not* pinned, as in the next cell. Which part is hidden now, and who does the
#   staging meanwhile?

# %%
side_not_pinned = watch(prefetch_loop, batches)
say("prefetch, not pinned", side_not_pinned)
blocked = lv.summarize(side_not_pinned).host_blocked
print({cause: words.duration(time) for cause, time in blocked.items()})

# %% [markdown]
# ## The same code on a real GPU


# %%
def gpu_milliseconds(loop, batches):
    """Return the time of one step of a loop, measured by events in the stream."""
    loop(batches)  # the first run allocates memory and loads kernels
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    loop(batches)
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / len(batches)


# %% tags=["gpu"]
if torch.cuda.is_available():
    ready = pinned(batches)
    print(f"{torch.cuda.get_device_name()}, pinned before the loop")
    print(f"one stream {gpu_milliseconds(lambda b: one_stream_loop(b, True), ready):.3f} ms a step")
    print(f"prefetch   {gpu_milliseconds(prefetch_loop, ready):.3f} ms a step")
else:
    print("Skipped: PyTorch sees no CUDA GPU here. On a machine with one, this cell times both loops on it.")

# %% [markdown]
# ## Recap
#
# * A hidden copy needs three things: pinned memory, a non-blocking call, a stream of its own.
# * A second stream needs a wait, or the numbers are wrong, today or another day.
# * Queue the next copy before you queue the computing of this batch.
# * When the host or the loader is the slowest part, a prefetcher wins nothing.
#
# Next: [4. The data set on the GPU](04_gpu_resident_slicing.ipynb). The best copy is no copy.
