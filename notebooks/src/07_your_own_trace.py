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
# # 7. Your own trace
#
# ![A part of a real recording from an A100: long calls of cudaMalloc in the host's row, and between them short
# kernels in the GPU's rows.](pictures/07_your_own_trace.png)
#
# **The question of this lesson: what does a trace of a real training tell you, and what does it hide?**
#
# Time: about 25 minutes. You need no GPU. Before it: [6. Workers](06_workers.ipynb).

# %%
import tempfile
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.data import DataLoader

import loaderviz as lv
from loaderviz import mnist, notebooks, words
from loaderviz.analysis.ranks import rank_table
from loaderviz.timeline import Kind
from loaderviz.workshop import lesson06, lesson07, predict, recall
from loaderviz.workshop.loop import gpu_milliseconds

# %%
recall(7)

# %% [markdown]
# ## Two tools of your own
#
# You trust a number more when you could compute it yourself.

# %%
lesson07.exposed_copy


# %% tags=["starter"]
# Exercise 7.1
def exposed(copies, kernels):
    """Return for how many ns only copies run."""
    return sum(end - start for start, end in copies)  # all of the copy


# %% tags=["exercise"]
# Exercise 7.1
from itertools import pairwise


def exposed(copies, kernels):
    """Return for how many ns only copies run."""
    edges = sorted({edge for pair in copies + kernels for edge in pair})
    total = 0
    for left, right in pairwise(edges):  # between two edges nothing begins and nothing ends
        runs = [any(start <= left < end for start, end in some) for some in (copies, kernels)]
        total += (right - left) * (runs == [True, False])
    return total


# %%
lesson07.exposed_copy.check(exposed)

# %%
lesson07.find_cause

# %% tags=["starter"]
# Exercise 7.2
import loaderviz as lv


def cause(timeline):
    """Return what keeps the GPU from computing."""
    summary = lv.summarize(timeline)
    return ...


# %% tags=["exercise"]
# Exercise 7.2
import loaderviz as lv


def cause(timeline):
    """Return what keeps the GPU from computing."""
    summary = lv.summarize(timeline)
    if summary.compute_share > 0.95:
        return "nothing"
    if summary.breakdown.get("idle: host blocked, waiting for data", 0) > summary.exposed_copy:
        return "data"
    return "pageable copy" if "H2D pageable" in summary.bandwidth else "one stream"


# %%
lesson07.find_cause.check(cause)

# %% [markdown]
# ## Record your own loop: torch.profiler
#
# A small loop on the CPU, with the slow files of exercise 6.2. The first steps of a program load libraries and
# allocate memory. `schedule` leaves them out: the profiler waits, warms up, and then records.

# %%
import os

os.environ["KINETO_LOG_LEVEL"] = "99"  # else the profiler prints what it does
images, labels = mnist.tensors(train=True)
files = lesson06.Files(images[:3072].flatten(1), labels[:3072])


def train(loader, device="cpu", after_step=lambda: None):
    """Train a very small network; call `after_step` after each step."""
    network = torch.nn.Linear(784, 10).to(device)
    for x, y in loader:
        loss = torch.nn.functional.cross_entropy(network(x.to(device).float() / 255), y.to(device))
        loss.backward()
        after_step()


# %% tags=["measured"]
with tempfile.TemporaryDirectory() as place:
    file, plan = f"{place}/own.json.gz", schedule(wait=2, warmup=1, active=5, repeat=1)
    save = {"on_trace_ready": lambda profiler: profiler.export_chrome_trace(file), "acc_events": True}
    with profile(activities=[ProfilerActivity.CPU], schedule=plan, **save) as profiler:
        train(DataLoader(files, 256, num_workers=2), after_step=profiler.step)
    own = lv.read(file)
own.view()

# %% [markdown]
# The main thread waits. Two worker processes work for it, but the profiler sees only one process. `lv.record` runs the
# same profiler, and the workers note when they do what. `on="cpu"` records this computer, `on="cuda"` a GPU.

# %%
guess_workers = predict(
    "While the main thread waits, what do the two workers do?",
    ["both fetch, nearly all the time", "on average one of them fetches", "mostly they wait for orders"],
    answer=lambda: 1 if busy > 0.75 else 2 if busy > 0.3 else 3,
)
guess_workers

# %% tags=["measured"]
with lv.record(on="cpu", wait=3, steps=6) as recording:
    train(DataLoader(files, 256, num_workers=2))
recorded = recording.timeline
recorded.view()

# %%
busy = sum(span.duration for span in recorded.rows(Kind.FETCH)) / (2 * recorded.duration)
print(f"the two workers fetch for {words.share(busy)} of the time")
guess_workers.reveal()

# %% [markdown]
# The same loop on the emulated GPU has the same rows, and those of a GPU below.

# %% tags=["measured"]
with lv.record(on="a100", host="laptop", wait=3, steps=6) as recording:
    train(DataLoader(files, 256, num_workers=2), "cuda")
for name, each in {"recorded": recorded, "emulated": recording.timeline}.items():
    fetch = words.duration(lesson06.stations(each)["fetch"])
    print(f"{name}: fetch {fetch:>8} a batch; lanes {', '.join(lane.name for lane in each.lanes)}")

# %% [markdown]
# ## A real training on two GPUs
#
# Two processes, called *ranks*, trained one network on two A100s. Each wrote a file. `lv.read` takes both and aligns
# their clocks. Some kernels exchange gradients. They end together, so the rank that comes early waits inside them.

# %%
ranks = lv.read([notebooks.trace(f"two_ranks_{rank}.json.gz") for rank in (0, 1)])
for note in ranks.context.notes:
    print("-", note)
ranks.view()

# %%
guess_late = predict(
    "Which rank does the other one wait for?",
    ["rank 0", "rank 1", "neither"],
    answer=lambda: f"rank {late[0].row.rank}" if (late := rank_table(ranks).late) else "neither",
)
guess_late

# %%
print(rank_table(ranks))
guess_late.reveal()

# %% [markdown]
# A repair of the early rank gains nothing.
#
# ## Damaged files
#
# A job was killed: half its file is missing, and the reader says so. The second file is no trace.

# %%
whole = notebooks.trace("event_sync_2023.json.gz").read_bytes()
with tempfile.TemporaryDirectory() as place:
    for name, content in {"half.json.gz": whole[: len(whole) // 2], "notes.txt": b"Dear diary, today"}.items():
        file = Path(place, name)
        file.write_bytes(content)
        try:
            print(f"{name}: {(half := lv.read(file))!r}\n  {half.context.notes[0]}")
        except lv.LoadervizError as problem:
            print(str(problem).replace(str(file), name))

# %% [markdown]
# ## Try
#
# * `lv.read(notebooks.trace("alexnet_pageable_2023.json.gz"))` is nearly all *start*. Print its `context.notes` first,
#   then look at it: `.view(color="kind")`.
# * Read a trace of your own: `python -m loaderviz view trace.json.gz`.
#
# ## The same code on a real GPU

# %% tags=["gpu"]
if torch.cuda.is_available():
    step = gpu_milliseconds(train, DataLoader(files, 256, num_workers=2, pin_memory=True), "cuda")
    print(f"{torch.cuda.get_device_name()}: {step:.3f} ms a step")
    print('To see it: with lv.record(on="cuda", wait=3, steps=6) as recording: train(...)')
else:
    print("Skipped: PyTorch sees no CUDA GPU here. On a machine with one, this cell times the loop on it.")

# %% [markdown]
# ## Recap
#
# * Read the notes first: what is missing, and which part of the program is it?
# * Leave the start out. A bad number matters only in the part that repeats.
# * A profiler shows one process. `lv.record` shows the workers, too.
#
# Next: [8. The capstone](08_capstone.ipynb)

# %% tags=["picture"]
# the end of the recording that the lesson reads: one pass forward
from stills import FOLDER

import loaderviz as lv
from loaderviz.timeline import Kind

trace = lv.read(FOLDER / "traces" / "alexnet_pageable_2023.json.gz")
*_, last = trace.rows(Kind.RANGE)
trace.between(last.start, last.end).view(color="kind", title="A real recording: its last pass forward")

# %% tags=["claims"]
assert rank_table(ranks).late[0].row.rank == "1" and lv.summarize(ranks).batches == 2
assert 0 < len(half) < len(lv.read(notebooks.trace("event_sync_2023.json.gz")))
assert sum("ProfilerStep" in span.name for span in own.rows(Kind.RANGE)) == 5
assert {lane.role for lane in own.lanes} == {"main"}
assert {lane.role for lane in recorded.lanes} == {"main", "worker"}
assert sorted(lane.name for lane in recorded.lanes) == sorted(
    lane.name for lane in recording.timeline.lanes if lane.group == "host"
)
assert lesson06.stations(recorded)["fetch"] >= 256 * 48_000

# %% [markdown] tags=["guide"]
# ### 7. Your own trace
#
# Asks: what does my training do?
#
# Idea: First ask which part of the program a trace shows, and how good it is.
#
# Exercises: 7.1 (8), 7.2 (8)
#
# * **Say:** "A trace without its notes is a rumour. What is missing, how fine is the clock, which part is it?"
# * **Stuck:** in 7.1 people subtract overlapping kernels twice. In 7.2 `host_blocked["waiting for data"]` is large in
#   the healthy training, too. There the loop runs ahead and waits, which costs nothing.
# * **The AlexNet trace** under "Try" is nearly all start. `trace.between(start, end)` cuts out the part that was meant.
# * **Bring** a trace of your own group. It makes the best twenty minutes of the day.

# %% [markdown] tags=["answers"]
# ## 7. Your own trace
#
# * *While the main thread waits, what do the two workers do?* It is a real run, so it depends on the machine; most
#   often both fetch all the time.
# <!-- guess_late d94a68c3 -->
# * *Which rank does the other one wait for?* **rank 1**: it comes late to the exchange of gradients, and rank 0 waits
#   inside its kernel.
#
# * **Exercise 7.1:** cut the time at every start and end; add the pieces in which a copy runs and no kernel.
# * **Exercise 7.2:** look at `compute_share`, then at what of the *idle* time is waiting for data, then at the memory
#   the copies come from.
# * *(Under "Try")* In the AlexNet trace the A100 computes less than a hundredth of the time: the first call of CUDA
#   takes most of it (R13). The 16 copies carry the weights of the network, which are moved once. Its last part names
#   `cudaMalloc`, since the authors empty the allocator's cache before they measure. A finding is a question about the
#   program, not an order to change it. `lv.calibrate(trace)` takes a trace's rates for the emulated GPU.
