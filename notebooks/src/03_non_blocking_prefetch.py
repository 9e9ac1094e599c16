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
# **The question of this lesson: how is a batch copied while the GPU computes?**
#
# Time: about 45 minutes.

# %%
from itertools import islice

import torch
from IPython.display import display

import loaderviz as lv
from loaderviz.workshop import lesson03, loop, predict, recall
from loaderviz.workshop.lessons.lesson03 import claim, copy_ahead
from loaderviz.workshop.loop import GPU, HOST, make_batches, new_model, steps, train_step, watch

# %%
recall(3)

# %% [markdown]
# ## Three loops
#
# `non_blocking=True` means: queue the copy, do not wait for its end.


# %%
def pinned(batches):
    """Pin all batches."""
    return [(x.pin_memory(), y.pin_memory()) for x, y in batches]


def one_stream_loop(batches, non_blocking, pin=False):
    """Copy and compute."""
    model, optimizer = new_model()
    for x, y in steps(pinned(batches) if pin else batches):
        x, y = x.to("cuda", non_blocking=non_blocking), y.to("cuda", non_blocking=non_blocking)
        loss = train_step(model, optimizer, x, y)
    return loss


# %%
guess_hidden = predict(
    "Blocking; non_blocking; pinned and non_blocking: which hide a part of the copy?",
    ["none of the three", "the pinned one", "both that are non_blocking"],
    answer=lambda: 1 + sum(lv.summarize(timeline).overlap > 0 for timeline in (not_pinned, one_stream)),
)
guess_hidden

# %%
batches = make_batches()
blocking = watch(one_stream_loop, batches, False)
not_pinned = watch(one_stream_loop, batches, True)
one_stream = watch(one_stream_loop, batches, True, True)
three = {"blocking": blocking, "non_blocking, not pinned": not_pinned, "pinned, one stream": one_stream}
display(lv.compare(three, verdict=False), guess_hidden.reveal())

# %% [markdown]
# **Not pinned (R7):** the host stages the copy.
#
# **One stream (R16):** kernels and copies queue together.

# %%
lesson03.go_on


# %% tags=["starter"]
# Exercise 3.a
def load(batches):
    """Yield each batch on the GPU."""
    for x, y in batches:
        yield x.to("cuda"), y.to("cuda")


# %% tags=["exercise"]
# Exercise 3.a
def load(batches):
    """Yield each batch on the GPU."""
    for x, y in batches:
        yield x.to("cuda", non_blocking=True), y.to("cuda", non_blocking=True)


# %%
lesson03.go_on.check(load)

# %%
lesson03.go_on.show()

# %% [markdown]
# ## A second stream
#
# Inside `with torch.cuda.stream(side):` calls go to the queue `side`.

# %%
lesson03.leave


# %% tags=["starter"]
# Exercise 3.b
def copy(x, side):
    """Return x on the GPU."""
    return x.to("cuda", non_blocking=True)


# %% tags=["exercise"]
# Exercise 3.b
def copy(x, side):
    """Return x on the GPU."""
    with torch.cuda.stream(side):
        return x.to("cuda", non_blocking=True)


# %%
lesson03.leave.check(copy)

# %%
lesson03.leave.show()


# %%
def sum_on_gpu(x, wait=False, copies="on_wait"):
    """Copy in `side`, add up in the main stream."""
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
    "Nobody waits for the copy. What does the sum show?",
    ["the right sum", "zero", "nan: not a number"],
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
# **R15: streams do not wait for each other.** An access without an order is a *hazard*.
#
# An *event* marks a place in a queue, for which others can wait. **R36: `record_stream` tells PyTorch that another
# stream still uses this memory.**

# %%
lesson03.by_hand


# %% tags=["starter"]
# Exercise 3.0
def to_gpu(batch, side, main):
    """Return the batch on the GPU."""
    copies = [part.to("cuda", non_blocking=True) for part in batch]
    ...
    return copies


# %% tags=["exercise"]
# Exercise 3.0
def to_gpu(batch, side, main):
    """Return the batch on the GPU."""
    with torch.cuda.stream(side):
        copies = [part.to("cuda", non_blocking=True) for part in batch]
        arrived = side.record_event()
    main.wait_event(arrived)
    for part in copies:
        part.record_stream(main)
    return copies


# %%
lesson03.by_hand.check(to_gpu)

# %%
lesson03.by_hand.show()

# %% [markdown]
# ## Prefetch
#
# `copy_ahead` and `claim` have these calls.

# %%
loop.show_code(copy_ahead, claim)


def prefetch_loop(batches):
    """Copy ahead."""
    batches, (model, optimizer) = pinned(batches), new_model()
    side, main = torch.cuda.Stream(), torch.cuda.current_stream()
    copies, arrived = copy_ahead(batches[0], side, 0)
    for number, _ in enumerate(steps(batches), 1):
        main.wait_event(arrived)
        x, y = claim(copies, main)
        copies, arrived = copy_ahead(batches[number % len(batches)], side, number)
        loss = train_step(model, optimizer, x, y)
    return loss


# %%
overlapped = watch(prefetch_loop, batches)
lv.compare({"blocking": blocking, "pinned, one stream": one_stream, "prefetch": overlapped})

# %%
lesson03.order

# %% tags=["starter"]
# Exercise 3.c
from itertools import islice

from loaderviz.workshop.lessons.lesson03 import claim, copy_ahead


def prefetch(batches):
    """Yield each batch on the GPU."""
    side, main, source = torch.cuda.Stream(), torch.cuda.current_stream(), iter(batches)
    ahead = [copy_ahead(next(source), side)]
    while ahead:
        copies, arrived = ahead.pop()
        main.wait_event(arrived)
        yield claim(copies, main)
        ahead += [copy_ahead(batch, side) for batch in islice(source, 1)]


# %% tags=["exercise"]
# Exercise 3.c
from itertools import islice

from loaderviz.workshop.lessons.lesson03 import claim, copy_ahead


def prefetch(batches):
    """Yield each batch on the GPU."""
    side, main, source = torch.cuda.Stream(), torch.cuda.current_stream(), iter(batches)
    ahead = [copy_ahead(next(source), side)]
    while ahead:
        copies, arrived = ahead.pop()
        main.wait_event(arrived)
        ahead += [copy_ahead(batch, side) for batch in islice(source, 1)]  # before the loop queues its work
        yield claim(copies, main)


# %%
lesson03.order.check(prefetch)

# %%
lesson03.order.show()

# %% [markdown]
# ## Exercises

# %%
lesson03.overlap

# %% tags=["starter"]
# Exercise 3.1
from loaderviz.workshop.lessons.lesson03 import claim, copy_ahead


def prefetch(batches):
    """Yield each batch on the GPU."""
    side, main, coming = torch.cuda.Stream(), torch.cuda.current_stream(), None
    for batch in batches:
        ...
        yield batch


# %% tags=["exercise"]
# Exercise 3.1
from loaderviz.workshop.lessons.lesson03 import claim, copy_ahead


def prefetch(batches):
    """Yield each batch on the GPU."""
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
    """Yield each batch on the GPU; copy `depth` ahead."""
    side, main, source = torch.cuda.Stream(), torch.cuda.current_stream(), iter(batches)
    ahead = [copy_ahead(batch, side) for batch in islice(source, depth)]
    while ahead:
        copies, arrived = ahead.pop(0)
        ...


# %% tags=["exercise"]
# Exercise 3.2
from itertools import islice

from loaderviz.workshop.lessons.lesson03 import claim, copy_ahead


def prefetch_deep(batches, depth):
    """Yield each batch on the GPU; copy `depth` ahead."""
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
    """Yield each batch on the GPU."""
    side, main, coming = torch.cuda.Stream(), torch.cuda.current_stream(), None
    for batch in batches:
        copies, arrived = copy_ahead(batch, side)
        if coming is not None:
            yield coming
        main.wait_event(arrived)
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
# ## Try
#
# `watch(prefetch_loop, make_batches(64))`: what does the GPU wait for?
#
# ## The same code on a real GPU

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
# * A hidden copy needs pinned memory, a non-blocking call, a stream of its own.
# * The stream that reads must wait for *this* batch.
# * Queue the next copy before the computing.
#
# Next: [4. The data set on the GPU](04_gpu_resident_slicing.ipynb)

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
assert len(hazards) == len(lucky_hazards) == 1
assert any(row.lane.number != 7 and row.kind.name == "COPY_H2D" for row in overlapped.rows())
# one batch, one number, in the copy and in the kernels: a copy hides under an earlier batch
assert {row.batch for row in overlapped.rows() if row.kind.name == "COMPUTE"} == {3, 4, 5, 6}
assert {row.batch for row in overlapped.rows() if row.kind.name == "COPY_H2D"} == {4, 5, 6, 7}

# %% [markdown] tags=["guide"]
# ### 3. Non-blocking copies and prefetch
#
# Asks: what hides a copy?
#
# Idea: A hidden copy needs pinned memory, `non_blocking`, a stream of its own, and one wait in the right place.
#
# Exercises: 3.a (1), 3.b (1), 3.0 (4), 3.c (2), 3.1 (15), 3.2 (10), 3.3 (8)
#
# * **Say:** "Three conditions: pinned, `non_blocking`, another stream. And one duty: who reads must wait for the copy."
# * **Stuck:** 3.1 has four classic first tries, and the check names each of them. First, the loop waits for the next
#   copy before this step is queued, so nothing overlaps. Second, the copy is queued after the step, which is too late.
#   Third, `record_stream` is missing (`early-reuse`). Fourth, the last batch is forgotten. The first two look right as
#   long as nobody reads the loss, because the host then runs ahead of the GPU by itself. So 3.1 and 3.2 are judged a
#   second time, in a loop with `.item()` in each step. Draw two lines for the two streams on the board, and let people
#   add the arrows.
# * **If nothing is won:** with batches of 64 the host is the slowest part, and the calls for the side stream give it
#   more work. First look at what the GPU waits for (lesson 1).
# * **If asked:** `wait_stream` and `wait_event` do not stop the host. They put a note into the queue. Labels are whole
#   numbers, so they cannot be `nan`. A forgotten wait leaves the largest number in them, and `cross_entropy` refuses
#   it.
# * **Ask:** "`wait_event` returns at once. Who waits?" The stream waits, and not the host.

# %% [markdown] tags=["answers"]
# ## 3. Non-blocking copies and prefetch
#
# <!-- guess_hidden 96bdffb0 -->
# * *Blocking; non_blocking; pinned and non_blocking: which hide a part of the copy?* **none of the three**: what is not
#   pinned is staged by the host (R7), and one stream is one queue (R16).
#
# <!-- guess_sum b2307d73 -->
# * *Nobody waits for the copy. What does the sum show?* **nan: not a number**, on every run; on a real GPU mostly the
#   right number, which is worse.
#
# * **Exercise 3.a:** `non_blocking=True` for the images *and* for the labels.
# * **Exercise 3.b:** `with torch.cuda.stream(side):` around the copy.
# * **Exercise 3.0:** `with torch.cuda.stream(side)` around the copies and the event; then `main.wait_event`, and
#   `record_stream(main)` for each part.
# * **Exercise 3.c:** the line that queues the next copy goes before the `yield`: during the `yield` the loop queues its
#   step, and may wait for it.
# * **Exercise 3.1:** keep one batch back: queue the copy of the next one, hand out the former one, then `wait_event`
#   and `record_stream`.
# * **Exercise 3.2:** `depth` copies ahead, each with an event of its own; `wait_stream` would wait for all of them.
# * **Exercise 3.3:** before asking the source for more, let the host wait for the event of the copy out of the buffer
#   that is overwritten next (R42).
