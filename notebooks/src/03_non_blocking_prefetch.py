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
# ![Pinned batches, copied by calls that wait: the host is blocked by "synchronize", and in the rows of the GPU
# copies and computing take turns.](pictures/03_non_blocking_prefetch.png)
#
# **The question of this lesson: what is needed so that the copy of the next batch runs while the GPU computes?**
#
# After it you can write a prefetcher with a side stream, recognise a forgotten wait, and say when a prefetcher wins
# nothing.
#
# Time: about 50 minutes, half of them for the exercises. Before it: [2. Pinned memory](02_pin_memory.ipynb).

# %%
import itertools

import torch
from IPython.display import display

import loaderviz as lv
from loaderviz import words
from loaderviz.loaders import BlockingLoader, PinnedLoader, PrefetchLoader
from loaderviz.workshop import lesson03, loop, predict
from loaderviz.workshop.lessons.lesson03 import claim, copy_ahead
from loaderviz.workshop.loop import GPU, HOST, WARM_UP, make_batches, new_model, steps, train_step, watch

# %% [markdown]
# ## Three loops
#
# `non_blocking=True` means: queue the copy, do not wait for its end. "It makes every copy asynchronous", say some;
# "with pinned memory it hides the copy", say others. The plain loop, with two switches:


# %%
def pinned(batches):
    """Return the batches in pinned memory. In a real program `DataLoader(pin_memory=True)` does it."""
    return [(x.pin_memory(), y.pin_memory()) for x, y in batches]


def one_stream_loop(batches, non_blocking, pin=False):
    """Copy and compute in the same stream."""
    model, optimizer = new_model()
    for x, y in steps(pinned(batches) if pin else batches):
        x, y = x.to("cuda", non_blocking=non_blocking), y.to("cuda", non_blocking=non_blocking)
        loss = train_step(model, optimizer, x, y)
    return loss


# %%
guess_hidden = predict(
    "Three loops: blocking, non_blocking from ordinary memory, non_blocking from pinned memory. "
    "Which of them hides a part of the copy under computing?",
    ["none of the three", "only the one with pinned memory", "both that are non_blocking"],
    answer=lambda: 1 + sum(lv.summarize(timeline).overlap > 0 for timeline in (not_pinned, one_stream)),
)
guess_hidden

# %%
batches = make_batches()
blocking = watch(one_stream_loop, batches, False)
not_pinned = watch(one_stream_loop, batches, True)
one_stream = watch(one_stream_loop, batches, True, True)
three = {"blocking": blocking, "non_blocking, not pinned": not_pinned, "pinned, one stream": one_stream}
lv.compare(three, verdict=False)

# %%
guess_hidden.reveal()

# %% [markdown]
# A click on a name shows the lanes of that loop.
#
# **Not pinned.** In the lanes of the second loop the host is still blocked. **R7: a pageable copy must be staged, so
# the driver may wait for the stream, and the host does the staging.** No error, no warning.
#
# **One stream.** In the lanes of the third loop the host is free, and some batches ahead. But the GPU still copies
# *or* computes. **R16: a stream is a queue; what is in it runs in order, one after the other.** The copy of batch 5
# stands in the queue behind the computing of batch 4. So a hidden copy needs three things:
#
# 1. the source is **pinned**, so that the copy engine can work without the host;
# 2. the call is **non-blocking**, so that the host can go on;
# 3. the copy is in **another stream** than the computing.
#
# ## A second stream, and no wait
#
# Inside `with torch.cuda.stream(side):` calls go to that queue. The function below copies there, and computes a sum in
# the main stream.


# %%
def sum_on_gpu(x, wait=False, copies="on_wait"):
    """Copy `x` in a side stream, add it up in the main stream; return the sum, and the hazards of the program."""
    with lv.record(on=GPU, host=HOST, copies=copies) as recording:
        side, source = torch.cuda.Stream(), x.pin_memory()
        with torch.cuda.stream(side):
            on_gpu = source.to("cuda", non_blocking=True)
        if wait:
            torch.cuda.current_stream().wait_stream(side)
        total = on_gpu.sum().item()
    return total, recording.hazards


# %%
guess_sum = predict(
    "x.sum() of the copy, without any wait between the two streams: what does it show?",
    ["the right sum: .item() waits for the GPU", "zero: the memory is still empty", "nan: not a number"],
    answer=lambda: 1 if forgotten == x.sum().item() else 2 if forgotten == 0 else 3,
)
guess_sum

# %%
x = batches[0][0]
print(f"the sum, on the host: {x.sum().item():.1f}")
forgotten, hazards = sum_on_gpu(x)
print(f"the sum, on the GPU:  {forgotten:.1f}, {len(hazards)} hazard: {hazards[0].kind}")
lucky, lucky_hazards = sum_on_gpu(x, copies="eager")
print(f"the sum, on a lucky day: {lucky:.1f}, {len(lucky_hazards)} hazard: {lucky_hazards[0].kind}")
print(f"the sum, with the wait:  {sum_on_gpu(x, wait=True)[0]:.1f}")
display(hazards[0], guess_sum.reveal())

# %% [markdown]
# **R15: PyTorch's streams do not wait for each other.** `.item()` waits for the stream in which it is called (R25),
# and the copy is in the other one. On a real GPU this program is right on one day and wrong on another. The emulator
# shows this mistake *every time*: until something waits for a copy, its destination holds `nan`. On the lucky day
# (`copies="eager"`) the number is right, and the hazard is found all the same, with both calls and the missing line.
#
# **`wait_stream` does not stop the host.** It puts a note into the queue: "go on when the other queue is this far".
#
# ## By hand
#
# Four calls make a copy that is safe: the copy in the side stream, an *event* there (a mark in a queue), the wait of
# the main stream for it, and **R36: `record_stream` tells PyTorch that another stream reads this memory, too**; else
# the next copy may get it as soon as our variable is gone. Type them once.

# %%
lesson03.by_hand


# %% tags=["starter"]
# Exercise 3.0
def to_gpu(batch, side, main):
    """Return the batch on the GPU: copied in `side`, safe to use in `main`."""
    copies = [part.to("cuda", non_blocking=True) for part in batch]  # in which stream?
    ...
    return copies


# %% tags=["exercise"]
# Exercise 3.0
def to_gpu(batch, side, main):
    """Return the batch on the GPU: copied in `side`, safe to use in `main`."""
    with torch.cuda.stream(side):
        copies = [part.to("cuda", non_blocking=True) for part in batch]
        arrived = side.record_event()
    main.wait_event(arrived)
    for part in copies:
        part.record_stream(main)
    return copies


# %%
lesson03.by_hand.check(to_gpu)

# %% [markdown]
# ## Prefetch: copy the next batch, then compute on this one
#
# Two functions from the package have these calls. In the loop below, the order of the lines matters: why does
# `copy_ahead` come *before* `train_step`?

# %%
loop.show_code(copy_ahead, claim)


# %%
def prefetch_loop(batches, step=train_step):
    """While the GPU computes on a batch, the next one is copied."""
    batches, (model, optimizer) = pinned(batches), new_model()
    side, main = torch.cuda.Stream(), torch.cuda.current_stream()
    copies, arrived = copy_ahead(batches[0], side, 0)
    for number, _ in enumerate(steps(batches), 1):
        main.wait_event(arrived)  # this batch must be there before we compute on it
        x, y = claim(copies, main)
        copies, arrived = copy_ahead(batches[number % len(batches)], side, number)  # at the end, the first one again
        loss = step(model, optimizer, x, y)
    return loss


# %%
overlapped = watch(prefetch_loop, batches)
lv.compare({"blocking": blocking, "pinned, one stream": one_stream, "prefetch": overlapped})

# %% [markdown]
# Click on `prefetch` and look at one moment: the `copy engine to GPU` has the colour of a *later* batch, the stream
# that computes has the colour of *this* one. That is overlap. In the table, `headroom` near 1 means: a better way of
# copying cannot help any more.
#
# **The order.** Below are two lines swapped: first compute on this batch, then copy the next one. And many loops read
# the loss in every step, for a progress bar: `reading_step` does it. What does each of the two do to the hidden
# share?


# %%
def late_loop(batches, step=train_step):
    """The other order: compute on this batch, then copy the next one."""
    batches, (model, optimizer) = pinned(batches), new_model()
    side, main = torch.cuda.Stream(), torch.cuda.current_stream()
    copies, arrived = copy_ahead(batches[0], side, 0)
    for number, _ in enumerate(steps(batches), 1):
        main.wait_event(arrived)
        loss = step(model, optimizer, *claim(copies, main))
        copies, arrived = copy_ahead(batches[number % len(batches)], side, number)
    return loss


# %%
def reading_step(*arguments):
    """Train on one batch and read the loss."""
    loss = train_step(*arguments)
    loss.item()
    return loss


reading = watch(prefetch_loop, batches, reading_step)
late = watch(late_loop, batches, reading_step)
lv.compare({"prefetch": overlapped, "with .item()": reading, "with .item(), copy queued late": late})

# %% [markdown]
# `.item()` waits for the end of the step (R25). In the right order the next copy is queued before that, so most of it
# is still hidden. In the other order it is queued when the GPU has finished: nothing is hidden. So queue the copy
# first, and read the loss now and then.
#
# ## Exercises
#
# Any design that meets the target passes. After a check, `lesson03.overlap.show()` draws your run.
#
# 1. Write the loop above as a generator, so that a plain `for` can use it.
# 2. Copy more than one batch ahead. Now it matters that `wait_stream` waits for *everything* that is queued (R16).
# 3. The other end of the copy: **R42: until it is done, nobody may write into its pinned source.**

# %%
lesson03.overlap

# %% tags=["starter"]
# Exercise 3.1
from loaderviz.workshop.lessons.lesson03 import claim, copy_ahead


def prefetch(batches):
    """Yield each batch on the GPU; copy the next one while the GPU works on this one."""
    side, main, coming = torch.cuda.Stream(), torch.cuda.current_stream(), None
    for batch in batches:
        ...  # fill this in; you may change every line
        yield batch


# %% tags=["exercise"]
# Exercise 3.1
from loaderviz.workshop.lessons.lesson03 import claim, copy_ahead


def prefetch(batches):
    """Yield each batch on the GPU; copy the next one while the GPU works on this one."""
    side, main, coming = torch.cuda.Stream(), torch.cuda.current_stream(), None
    for batch in batches:
        copies, arrived = copy_ahead(batch, side)
        if coming is not None:
            yield coming  # the copy of the batch after it is queued already
        main.wait_event(arrived)  # what `main` does from here on, it does after this copy
        coming = claim(copies, main)
    yield coming


# %%
lesson03.overlap.check(prefetch)

# %%
lesson03.uneven

# %% tags=["starter"]
# Exercise 3.2
from itertools import islice

from loaderviz.workshop.lessons.lesson03 import claim, copy_ahead


def prefetch_deep(batches, depth):
    """Yield each batch on the GPU; up to `depth` later ones are on their way."""
    side, main, source = torch.cuda.Stream(), torch.cuda.current_stream(), iter(batches)
    ahead = [copy_ahead(batch, side) for batch in islice(source, depth)]
    while ahead:
        copies, arrived = ahead.pop(0)
        ...  # wait for the right copy, queue one more, hand out the batch


# %% tags=["exercise"]
# Exercise 3.2
from itertools import islice

from loaderviz.workshop.lessons.lesson03 import claim, copy_ahead


def prefetch_deep(batches, depth):
    """Yield each batch on the GPU; up to `depth` later ones are on their way."""
    side, main, source = torch.cuda.Stream(), torch.cuda.current_stream(), iter(batches)
    ahead = [copy_ahead(batch, side) for batch in islice(source, depth)]
    while ahead:
        copies, arrived = ahead.pop(0)
        main.wait_event(arrived)  # this copy only, not those behind it
        ahead += [copy_ahead(batch, side) for batch in islice(source, 1)]  # one more, if there is one
        yield claim(copies, main)


# %%
lesson03.uneven.check(prefetch_deep)

# %%
lesson03.refill

# %% tags=["starter"]
# Exercise 3.3
from loaderviz.workshop.lessons.lesson03 import claim, copy_ahead


def prefetch_refilled(batches):
    """Yield each batch on the GPU; copy the next one while the GPU works on this one."""
    side, main, coming = torch.cuda.Stream(), torch.cuda.current_stream(), None
    for batch in batches:
        copies, arrived = copy_ahead(batch, side)
        if coming is not None:
            yield coming  # the copy of the batch after it is queued already
        main.wait_event(arrived)  # what `main` does from here on, it does after this copy
        coming = claim(copies, main)
    yield coming


# %% tags=["exercise"]
# Exercise 3.3
from loaderviz.workshop.lessons.lesson03 import claim, copy_ahead


def prefetch_refilled(batches):
    """Yield each batch on the GPU; the source overwrites batch k when asked for batch k + 2."""
    side, main, coming, done = torch.cuda.Stream(), torch.cuda.current_stream(), None, None
    for batch in batches:
        copies, arrived = copy_ahead(batch, side)
        if coming is not None:
            yield coming
            done.synchronize()  # the copy of the batch just used: the source overwrites that memory next
        main.wait_event(arrived)
        coming, done = claim(copies, main), arrived
    yield coming


# %%
lesson03.refill.check(prefetch_refilled)

# %% [markdown]
# ## Batches of 64 again
#
# `PrefetchLoader` is such a prefetcher. In lesson 1, with batches of 64, the GPU was idle most of the time.


# %%
def small_loop(make_loader, batches):
    """A plain loop over batches of 64; the loader brings them to the GPU."""
    (model, optimizer), loader = new_model(), make_loader(pinned(batches))
    for number, (x, y) in enumerate(itertools.islice(loader, len(batches) - 2)):  # the prefetcher is two ahead
        loss = train_step(model, optimizer, x, y)
        if number == WARM_UP - 1:
            torch.cuda.synchronize()
    return loss


# %%
guess_small = predict(
    "Batches of 64: how much faster than PinnedLoader (one stream) is PrefetchLoader (a side stream)?",
    ["not at all: less than a twentieth", "a tenth to a third faster", "about twice as fast"],
    answer=lambda: 1 if step[1] / step[2] < 1.05 else 2 if step[1] / step[2] < 1.5 else 3,
)
guess_small

# %%
small = make_batches(64, WARM_UP + 22)
loaders = BlockingLoader, PinnedLoader, PrefetchLoader
runs = [lv.summarize(watch(small_loop, loader, small)) for loader in loaders]
step = [run.step for run in runs]
print(f"with PrefetchLoader the GPU computes {words.share(runs[2].compute_share)} of the time")
print(f"PinnedLoader is {words.times(step[0] / step[1])} as fast as BlockingLoader,", end=" ")
print(f"PrefetchLoader {words.times(step[1] / step[2])} as fast as PinnedLoader")
guess_small.reveal()

# %% [markdown]
# Here the host is the slowest part: it needs more time to queue the work of a step than the GPU needs to do it. So it
# helps not to wait for copies any more, as with `PinnedLoader`. But the calls for the side stream are more work for the
# slowest part. First look at what the GPU waits for, then choose the cure.
#
# ## Try
#
# * Take `main.wait_event(arrived)` out of `prefetch_loop`. What happens, and in which line? (Labels have no `nan`: they
#   hold the largest number, and `cross_entropy` refuses it.)
# * Take out `pinned(...)` there. Which part is hidden now, and who does the staging meanwhile?
#
# ## The same code on a real GPU
#
# If this computer has one, the next cell times two of the loops on it.

# %% tags=["gpu"]
if torch.cuda.is_available():
    print(f"{torch.cuda.get_device_name()}, batches of {len(batches[0][0])}, pinned before the loop")
    print(f"one stream {loop.gpu_milliseconds(one_stream_loop, batches, True, True):.3f} ms a step")
    print(f"prefetch   {loop.gpu_milliseconds(prefetch_loop, batches):.3f} ms a step")
else:
    print("Skipped: PyTorch sees no CUDA GPU here. On a machine with one, this cell times both loops on it.")

# %% [markdown]
# ## Recap
#
# * A hidden copy needs three things: pinned memory, a non-blocking call, a stream of its own.
# * A second stream needs a wait, for an event of *this* batch, or the numbers are wrong, today or another day.
# * Queue the next copy before the computing of this batch.
# * When the host or the loader is the slowest part, a prefetcher wins nothing.
#
# Next: [4. The data set on the GPU](04_gpu_resident_slicing.ipynb). The best copy is no copy.

# %% tags=["picture"]
# the loop of lesson 2 that pins before it begins, and still waits for each copy
from stills import batches, train

from loaderviz.loaders import BlockingLoader

timeline = train(lambda: BlockingLoader(batches(6, pinned=True)))
timeline.view(title="Lesson 2: the batches are pinned, the calls still wait")

# %% tags=["claims"]
assert lv.summarize(not_pinned).step > 0.95 * lv.summarize(blocking).step
assert lv.summarize(not_pinned).overlap == lv.summarize(one_stream).overlap == 0
assert "staging" in lv.summarize(not_pinned).host_blocked and "staging" not in lv.summarize(one_stream).host_blocked
assert lv.summarize(overlapped).overlap > 0.9 and lv.summarize(overlapped).headroom < 1.1
assert lv.summarize(reading).overlap > 0.7 and lv.summarize(reading).step > lv.summarize(overlapped).step
assert lv.summarize(late).overlap == 0
assert len(hazards) == len(lucky_hazards) == 1
assert step[1] < step[0] and step[2] > 0.9 * step[1]
assert any(row.lane.number != 7 and row.kind.name == "COPY_H2D" for row in overlapped.rows())
# one batch, one number, in the copy and in the kernels: a copy hides under an earlier batch
assert {row.batch for row in overlapped.rows() if row.kind.name == "COMPUTE"} == {3, 4, 5, 6}
assert {row.batch for row in overlapped.rows() if row.kind.name == "COPY_H2D"} == {4, 5, 6, 7}

# %% [markdown] tags=["guide"]
# ### 3. Non-blocking copies and prefetch
#
# Asks: what hides a copy?
#
# Idea: Pinned, `non_blocking`, a stream of its own, and one wait in the right place.
#
# Exercises: 3.0 (4), 3.1 (15), 3.2 (10), 3.3 (8)
#
# * **Say:** "Three conditions: pinned, `non_blocking`, another stream. And one duty: who reads must wait for the copy."
# * **Stuck:** 3.1 has four classic first tries, and the check names each: the wait for the next copy before this step
#   is queued (nothing overlaps); the copy queued after the step (too late); no `record_stream` (`early-reuse`); the
#   last batch forgotten. The first two look right as long as nobody reads the loss: then the host runs ahead of the GPU
#   by itself. So 3.1 and 3.2 are judged a second time, in a loop with `.item()` in each step. Draw two lines for two
#   streams on the board and let them put arrows.
# * **Ask:** "`wait_event` returns at once. Who waits?" The stream, not the host.

# %% [markdown] tags=["answers"]
# ## 3. Non-blocking copies and prefetch
#
# <!-- guess_hidden e93468a5 -->
# * *Three loops: blocking, non_blocking from ordinary memory, non_blocking from pinned memory. Which of them hides a
#   part of the copy under computing?* **none of the three**: what is not pinned is staged by the host (R7), and one
#   stream is one queue (R16).
#
# <!-- guess_sum eee7d354 -->
# * *x.sum() of the copy, without any wait between the two streams: what does it show?* **nan: not a number**, on every
#   run; on a real GPU mostly the right number, which is worse.
#
# <!-- guess_small acd57f6a -->
# * *Batches of 64: how much faster than PinnedLoader (one stream) is PrefetchLoader (a side stream)?* **not at all:
#   less than a twentieth** (<!--=step[1] / step[2]:.2f-->0.98<!---->x): the copy is not what the GPU waits for.
#
# * **Exercise 3.0:** `with torch.cuda.stream(side)` around the copies and the event; then `main.wait_event`, and
#   `record_stream(main)` for each part.
# * **Exercise 3.1:** keep one batch back: queue the copy of the next one, hand out the former one, then `wait_event`
#   and `record_stream`.
# * **Exercise 3.2:** `depth` copies ahead, each with an event of its own; `wait_stream` would wait for all of them.
# * **Exercise 3.3:** before asking the source for more, let the host wait for the event of the copy out of the buffer
#   that is overwritten next (R42).
