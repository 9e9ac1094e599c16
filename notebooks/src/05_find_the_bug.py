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
# written yet; a dashed line is the order that is missing.](pictures/05_find_the_bug.png)
#
# **The question of this lesson: this prefetcher passed all its tests. Is it right?**
#
# After it you can name the four orders that a prefetcher needs, read the report of a race, and repair it without losing
# the overlap.
#
# Time: about 30 minutes, half of them for the exercises. Before it: [3. Prefetch](03_non_blocking_prefetch.ipynb).

# %%
import torch
from IPython.display import display

from loaderviz.workshop import break_it, lesson05, predict, suspects
from loaderviz.workshop.lessons.lesson05 import count_wrong, table, try_out
from loaderviz.workshop.loop import gpu_milliseconds, make_batches, show_code

# %% [markdown]
# ## Six loaders
#
# Host, copying stream and computing stream do not wait for each other. The code must make four orders:
#
# 1. a kernel reads a batch **after** its copy (R16);
# 2. the memory of a batch is written again **after** the kernels that read it (R35, R36);
# 3. a pinned buffer is filled again **after** the copy out of it (R42);
# 4. the host reads a result **after** its copy to the host (R32).
#
# Four of these six prefetchers are wrong: each lacks one order, and has something that looks safe. **For each pair of
# accesses: what makes sure that one is over before the other begins?** Ten minutes, in pairs. (`copy_ahead` and `claim`
# are those of lesson 3. Only D gets batches that are not pinned.)

# %%
show_code(*suspects.LOADERS.values())

# %%
guess_right = predict(
    "Which two are right?",
    ["A and D", "B and C", "B and E", "C and E", "E and F"],
    answer=lambda: " and ".join(name for name, trial in trials.items() if not trial.hazards),
)
guess_right

# %% [markdown]
# `try_out` lets a loop take 16 batches; it never waits, so the host gets far ahead. *Overwritten in use*: batches whose
# memory got other bytes before the GPU was done with them. A *hazard* can make numbers wrong; a *lint* does nothing, or
# costs time.

# %%
trials = {name: try_out(loader) for name, loader in suspects.LOADERS.items()}
display(table(trials), guess_right.reveal())

# %% [markdown]
# ## A: who waits?
#
# The report has both sides of the race, and the line to add. In the picture both sides have a black frame; a dashed
# arrow is the order that nobody made.

# %%
display(trials["A"].hazards[0], trials["A"].lints[0], trials["A"].view())

# %% [markdown]
# `arrived.wait()` names no stream, so the *current* stream waits, and inside `with torch.cuda.stream(side)` that is
# `side`. It waits for its own event: no order at all. In B the same call is right: there the copy must wait.
#
# ## C: how long is long enough?
#
# "Memory that has a reference is not given away": true. But the host drops the reference at *its* time. **R35: the
# block is free at once, whatever the GPU still reads.** In the two frames: which batch is computed, and which one is
# copied into its memory?

# %%
display(trials["C"].hazards[0], trials["C"].view())

# %% [markdown]
# And all batches were right? The emulator computes the numbers of a kernel when it is queued, so it shows this damage
# in time, not in numbers. **Right numbers are no proof.** Four references or a hundred: each number only says how far
# the host may be ahead.
#
# ## D and F: the host takes part
#
# In D the *stream* waits. But who fills the buffer? In F the host does wait. For what? **R16: an event stands for what
# was queued before it was recorded.**

# %%
for name in "DF":
    display(trials[name].hazards[0], trials[name].view())

# %% [markdown]
# In D most batches have the values of the batch after it. In F look at where `synchronize` ends: the brightest pixel
# comes after that, and by then the host is already reading.
#
# ## E: right, and as slow as no prefetcher
#
# `claim` protects the memory; `side.wait_stream(main)` protects it again, and makes the copy wait for exactly the work
# that it should hide under. **The most careful loader is the slowest.**

# %%
display(trials["E"].lints[0], trials["E"].view())

# %% [markdown]
# | report | missing order | how it looks on a real GPU |
# |---|---|---|
# | `early-read` | the kernel after the copy | now and then an old batch, or half of one |
# | `early-reuse` | the next copy after the kernel | a loss that jumps once a day |
# | `early-refill` | the host's write after the copy | some batches come twice, others never |
# | `early-host-read` | the host's read after the copy | an old number; right in the debugger |
# | `needless-wait` | none | no overlap |
# | `wait-on-nothing` | what the line was meant to order | nothing |
#
# ## On a lucky day
#
# With `copies="eager"` the bytes of a copy arrive at once. And a test loop often prints the loss in each step, as in
# the last row.

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
# On the lucky day a test that looks at numbers is content. The detector asks for each two accesses of the same bytes:
# **is it certain that one is over when the other begins?** An event or a wait makes it certain; being fast does not.
#
# In the last row there is no hazard: `.item()` waits for the GPU in each step (R25), so C is right. Take the `.item()`
# out, and the race is back. (What the detector does not see: [Extras](10_extras.ipynb).)
#
# ## Break it
#
# **In a room:** each pair takes loader B and breaks it so that it looks right: on a lucky day all numbers must be. It
# reads its code aloud, the room votes, the detector judges. A wrong vote is a point for the pair, a right one for the
# room. **Alone:** five cards; on some of them something was changed. Choose, and count your points.


# %%
cards = break_it.deal(seed=1)
for card in cards:
    display(card.code, card)

# %%
break_it.points(cards)

# %%
room = break_it.Room()
room.hand_in("Ada and Bo", suspects.loader_c)  # yours instead
room.vote("Ada and Bo", {"early-read": 3, "early-reuse": 1, "nothing": 8})  # hands
room.judge()

# %% [markdown]
# ## Exercises: repair them
#
# The target: no hazard, every batch correct and in order, and **the overlap is kept**. `torch.cuda.synchronize()`
# around each copy removes most hazards, and the overlap with them.

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
# ## Try
#
# * Repair D in a cell of your own (one line is enough), and look: `try_out(my_loader).hazards`.
# * Loader E without its needless line: how fast is it then? Is it still right?
# * Your own prefetcher: `with lv.record(on="a100") as recording:` around ten steps of your training, then
#   `print(recording.hazards, recording.lints)`.
#
# ## The same code on a real GPU
#
# On one, this cell times the two right loaders, and counts the batches that two others get wrong. It may be none: so
# such a bug lives for years.

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
# * For each wait ask: *who* waits (which stream, or the host), and for *what* (queued before the event).
# * References and luck are no order, and a test with `.item()` hides the race.
# * A wait too many costs the overlap.
#
# Next: [6. Workers](06_workers.ipynb). Where is the bottleneck before the copy?

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
assert set(room.judge()["the detector"]) == {"early-reuse"} and room.judge()["points of the pair"].tolist() == [11]
assert len({break_it.found(card.trial) for card in cards}) > 2

# %% [markdown] tags=["guide"]
# ### 5. Find the bug
#
# Asks: which loader is wrong?
#
# Idea: Right numbers are no proof; an order between two accesses is.
#
# Exercises: 5.1 (6), 5.2 (6), 5.3 (5)
#
# * **Say:** "Read like a reviewer. For each pair of accesses: what makes sure that one is over before the other
#   begins?" Ten minutes in pairs, then vote, then run.
# * **Stuck:** `torch.cuda.synchronize()` everywhere removes the hazards and the overlap; the target refuses that.

# %% [markdown] tags=["answers"]
# ## 5. Find the bug
#
# <!-- guess_right 0454d3cc -->
# * *Which two are right?* **B and E**. E is right and as slow as no prefetcher. A: `arrived.wait()` lets the wrong
#   stream wait (`early-read`). C: keeping four references is luck (`early-reuse`). D: the buffer is refilled by the
#   host (`early-refill`). F: the host reads a result that is still on its way (`early-host-read`).
#
# <!-- guess_lucky f138c938 -->
# * *The wrong loaders on a lucky day: what will the table show?* **right numbers, and the hazards**: the detector looks
#   at orders, not at numbers.
#
# * **Exercise 5.1:** `main.wait_event(arrived)`, after the former batch was handed out.
# * **Exercise 5.2:** let the next copy wait for the work that still reads (an event recorded in `main`), or use
#   `record_stream`.
# * **Exercise 5.3:** leave the number on the GPU: `images / images.amax()`.
