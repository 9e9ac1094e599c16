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
# # 5. Find the bug
#
# ![The forgotten wait of lesson 3: a cross marks where the main stream reads a tensor that another stream has not
# written yet.](pictures/05_find_the_bug.png)
#
# **The question of this lesson: this prefetcher passed all its tests. Is it right?**
#
# Time: about 25 minutes. Before it: [3. Prefetch](03_non_blocking_prefetch.ipynb).

# %%
import torch
from IPython.display import display

from loaderviz.workshop import break_it, lesson05, predict, recall, suspects
from loaderviz.workshop.lessons.lesson05 import count_wrong, table, try_out
from loaderviz.workshop.loop import gpu_milliseconds, make_batches, show_code

# %%
recall(5)

# %% [markdown]
# ## Four orders
#
# Host, copying stream and computing stream do not wait for each other. A prefetcher must make four orders:
#
# 1. a kernel reads a batch **after** its copy (R16);
# 2. a copy writes into memory **after** the kernels that read it (R35);
# 3. the host fills a pinned buffer **after** the copy out of it (R42);
# 4. the host reads a result **after** its copy to the host (R32).
#
# A missing order is a *race* (in reports: *hazard*).
#
# ## A: who waits?

# %%
show_code(suspects.loader_a)

# %% [markdown]
# `try_out` lets a loop take 16 batches. Both sides of the race have a black frame; the dashed arrow is the missing
# order.

# %%
trials = {name: try_out(loader) for name, loader in suspects.LOADERS.items()}
display(trials["A"].hazards[0], trials["A"].view())

# %%
lesson05.wait

# %% tags=["starter"]
# Exercise 5.1
from loaderviz.workshop.lessons.lesson03 import claim


def prefetch(batches):
    """One batch ahead. An event says when a batch has arrived."""
    side, main, ready = torch.cuda.Stream(), torch.cuda.current_stream(), []
    for batch in batches:
        with torch.cuda.stream(side):
            copies = [part.to("cuda", non_blocking=True) for part in batch]
            arrived = side.record_event()
            arrived.wait()  # no work on a batch before it has arrived
        yield from ready
        ready = [claim(copies, main)]
    yield from ready


# %% tags=["exercise"]
# Exercise 5.1
from loaderviz.workshop.lessons.lesson03 import claim


def prefetch(batches):
    """One batch ahead. An event says when a batch has arrived."""
    side, main, ready = torch.cuda.Stream(), torch.cuda.current_stream(), []
    for batch in batches:
        with torch.cuda.stream(side):
            copies = [part.to("cuda", non_blocking=True) for part in batch]
            arrived = side.record_event()
        yield from ready  # the work on this batch is queued before `main` waits for the next one
        main.wait_event(arrived)
        ready = [claim(copies, main)]
    yield from ready


# %%
lesson05.wait.check(prefetch)

# %% [markdown]
# ## B and C: how long is long enough?
#
# B copies into three sets of buffers in turn. C keeps references to its last four batches.

# %%
show_code(suspects.loader_b, suspects.loader_c)

# %%
guess_right = predict(
    "Which of the two is right?",
    ["only B", "only C", "both", "neither"],
    answer=lambda: 1 + (not trials["C"].hazards) + 2 * bool(trials["B"].hazards),
)
guess_right

# %%
display(table({name: trials[name] for name in "BC"}), trials["C"].hazards[0], trials["C"].view())
guess_right.reveal()

# %% [markdown]
# C drops a reference while the GPU still reads that batch. The *allocator*, which hands out the GPU's memory, gives
# the block to the next copy at once (R35). **Right numbers are no proof.**

# %%
lesson05.kept

# %% tags=["starter"]
# Exercise 5.2
from collections import deque

from loaderviz.workshop.lessons.lesson03 import copy_ahead


def prefetch_kept(batches):
    """One batch ahead. Memory that has a reference is not given away, so the last four batches are kept."""
    side, main, ready = torch.cuda.Stream(), torch.cuda.current_stream(), []
    kept = deque(maxlen=4)
    for batch in batches:
        copies, arrived = copy_ahead(batch, side)
        kept.append(copies)
        yield from ready
        main.wait_event(arrived)
        ready = [copies]
    yield from ready


# %% tags=["exercise"]
# Exercise 5.2
from loaderviz.workshop.lessons.lesson03 import copy_ahead


def prefetch_kept(batches):
    """One batch ahead. Each copy waits for the work on the batch that was dropped last: it may get its memory."""
    side, main, ready, used = torch.cuda.Stream(), torch.cuda.current_stream(), [], torch.cuda.Event()
    for batch in batches:
        side.wait_event(used)  # recorded one step ago: the work of this step runs beside the copy
        copies, arrived = copy_ahead(batch, side)
        yield from ready
        used = main.record_event()  # after the work on the batch that was just handed out
        main.wait_event(arrived)
        ready = [copies]
    yield from ready


# %%
lesson05.kept.check(prefetch_kept)

# %% [markdown]
# ## F: what does the host wait for?
#
# An event stands for what was queued before it was recorded (R16).

# %%
show_code(suspects.loader_f)

# %%
display(trials["F"].hazards[0], trials["F"].view())

# %%
lesson05.scaled

# %% tags=["starter"]
# Exercise 5.3
from loaderviz.workshop.lessons.lesson03 import claim


def prefetch_scaled(batches):
    """One batch ahead, divided by its brightest pixel; the host asks for that number without blocking."""
    side, main, ready = torch.cuda.Stream(), torch.cuda.current_stream(), []
    for batch in batches:
        with torch.cuda.stream(side):
            images, labels = (part.to("cuda", non_blocking=True) for part in batch)
            arrived = side.record_event()
            brightest = images.amax().to("cpu", non_blocking=True)
        claim((images, labels), main)
        yield from ready
        main.wait_event(arrived)
        arrived.synchronize()  # the host needs the number now
        ready = [(images / brightest.item(), labels)]
    yield from ready


# %% tags=["exercise"]
# Exercise 5.3
from loaderviz.workshop.lessons.lesson03 import claim, copy_ahead


def prefetch_scaled(batches):
    """One batch ahead, divided by its brightest pixel: a number that the host need not know."""
    side, main, ready = torch.cuda.Stream(), torch.cuda.current_stream(), []
    for batch in batches:
        copies, arrived = copy_ahead(batch, side)
        yield from ready
        main.wait_event(arrived)
        images, labels = claim(copies, main)
        ready = [(images / images.amax(), labels)]  # the number stays on the GPU: nobody waits for it
    yield from ready


# %%
lesson05.scaled.check(prefetch_scaled)

# %% [markdown]
# ## E: a wait too many
#
# In E `side.wait_stream(main)` lets each copy wait for the very work that it should run beside.

# %%
display(trials["E"].lints[0], trials["E"].view())

# %% [markdown]
# ## On a lucky day
#
# With `copies="eager"` the bytes of a copy arrive at once.

# %%
guess_lucky = predict(
    "The wrong loaders on a lucky day: what will the table show?",
    ["wrong numbers, and the hazards", "right numbers, and the hazards", "right numbers, and no hazards"],
    answer=lambda: 1 + all(all(trial.right) for trial in lucky.values()) + (not lucky["A"].hazards),
)
guess_lucky

# %%
lucky = {name: try_out(loader, copies="eager") for name, loader in suspects.LOADERS.items()}
printing = try_out(suspects.loader_c, read=True)
display(table(lucky | {"C, and .item() in each step": printing}), guess_lucky.reveal())

# %% [markdown]
# In the last row `.item()` waits for the GPU (R25), so C is right there.
#
# ## Break it
#
# Five cards: name the race, or say "nothing". Count points.

# %%
cards = break_it.deal(seed=1)
for card in cards:
    display(card.code, card)

# %%
break_it.points(cards)

# %% [markdown]
# ## Try
#
# * Loader D: `show_code(suspects.loader_d)`. Which of the four orders is missing? Then `try_out(suspects.loader_d)`.
# * Loader E without its needless line: is it still right?
#
# ## The same code on a real GPU

# %% tags=["gpu"]
if torch.cuda.is_available():
    pinned = [(x.pin_memory(), y.pin_memory()) for x, y in make_batches()]
    for loader in (suspects.loader_b, suspects.loader_e):
        print(f"{loader.__name__}: {gpu_milliseconds(suspects.train, pinned, loader):.3f} ms a step")
    for loader in (suspects.loader_a, suspects.loader_c):
        print(f"{loader.__name__}: {count_wrong(loader, pinned)} of {len(pinned)} batches wrong")
else:
    print("Skipped: PyTorch sees no CUDA GPU here. On a machine with one, this cell runs four of the loaders on it.")

# %% [markdown]
# ## Recap
#
# * For each wait ask: *who* waits, and for *what*?
# * References and luck are no order.
# * A wait too many costs the overlap.
#
# Next: [6. Workers](06_workers.ipynb)

# %% tags=["picture"]
# the forgotten wait of lesson 3
import torch
from stills import batches

import loaderviz as lv
from loaderviz.timeline import Kind
from loaderviz.workshop.loop import GPU, HOST

x = batches(1)[0][0]
with lv.record(on=GPU, host=HOST) as recording:
    torch.ones(4).to("cuda").sum().item()  # the first memory is slow to get: without it the copy is over before
    side, source = torch.cuda.Stream(), x.pin_memory()
    with torch.cuda.stream(side):
        on_gpu = source.to("cuda", non_blocking=True)
    on_gpu.sum().item()
timeline = recording.timeline
*_, copy = timeline.rows(Kind.COPY_H2D)
part = timeline.between(copy.start - 40_000, int(timeline.end.max()))
part.view(color="kind", title="Lesson 3: a wait was forgotten")

# %% tags=["claims"]
assert trials["A"].run.seen[5][0].isnan().all() and trials["F"].run.seen[5][0].isnan().all()
# of the next; the others in tests/workshop/test_lesson05.py
assert trials["D"].run.seen[5][1].tolist() == trials["D"].run.data.batches[6][1].tolist()
assert trials["C"].overwritten and trials["C"].hazards[0].overlap > 0
assert all(trials[name].hidden > 0.9 for name in "ABCDF")
assert printing.hazards == []
assert len({break_it.found(card.trial) for card in cards}) > 2

# %% [markdown] tags=["guide"]
# ### 5. Find the bug
#
# Asks: which loader is wrong?
#
# Idea: Right numbers do not prove that a loader is right. An order between two accesses does.
#
# Exercises: 5.1 (6), 5.2 (6), 5.3 (5)
#
# * **Say:** "Read like a reviewer. For each pair of accesses: what makes sure that one is over before the other
#   begins?" Show all six loaders with `show_code(*suspects.LOADERS.values())`. Let people read in pairs for ten
#   minutes. Then they vote, and then you run the loaders. Four are wrong.
# * **Stuck:** people put `torch.cuda.synchronize()` everywhere. That removes the hazards, but it also removes the
#   overlap, so the target refuses it.
# * **On a real GPU** an `early-read` reads an old batch now and then. An `early-reuse` is a loss that jumps once a day.
#   With an `early-refill` some batches come twice and others never. An `early-host-read` is right in the debugger.
# * **A game for the room:** each pair breaks loader B so that it still looks right: on a lucky day all its numbers are
#   right. The pair reads its code aloud, the room votes, and the detector judges. A wrong vote is a point for the pair,
#   and a right vote is a point for the room. These are the calls: `room = break_it.Room()`,
#   `room.hand_in("Ada and Bo", their_loader)`, `room.vote("Ada and Bo", {"early-read": 3, "nothing": 8})`,
#   `room.judge()`.

# %% [markdown] tags=["answers"]
# ## 5. Find the bug
#
# <!-- guess_right 80128c5c -->
# * *Which of the two is right?* **only B**: C keeps four references, which is luck (`early-reuse`); in B the copy waits
#   for the work on the batch that had these buffers before.
#
# <!-- guess_lucky f138c938 -->
# * *The wrong loaders on a lucky day: what will the table show?* **right numbers, and the hazards**: the detector looks
#   at orders, not at numbers.
#
# * **Exercise 5.1:** `main.wait_event(arrived)`, after the former batch was handed out.
# * **Exercise 5.2:** let the next copy wait for the work that still reads (an event recorded in `main`), or use
#   `record_stream`.
# * **Exercise 5.3:** leave the number on the GPU: `images / images.amax()`.
# * *(Under "Try")* D lacks the third order (`early-refill`): the stream waits, but the host fills the buffer. E stays
#   right without its line, and is as fast as the others. A: `arrived.wait()` lets the wrong stream wait (`early-read`).
#   F: the event was recorded before the copy to the host (`early-host-read`).
