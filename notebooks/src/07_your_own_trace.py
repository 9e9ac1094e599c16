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
# So far every timeline came from the emulated GPU. Now we read files that a profiler wrote, and record a real run.
# After this lesson you can
#
# * read a trace of `torch.profiler`, and say first how good it is and which part of the training it shows;
# * find the part that matters, and judge advice about it;
# * record your own loop, with the workers that no profiler shows.
#
# Time: about 30 minutes. You need no GPU. Before it: [6. Workers](06_workers.ipynb).

# %%
import tempfile
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.data import DataLoader

import loaderviz as lv
from loaderviz import mnist, notebooks, words
from loaderviz.emulator import Gpu
from loaderviz.timeline import Kind
from loaderviz.workshop import lesson06, lesson07, predict
from loaderviz.workshop.loop import gpu_milliseconds

# %% [markdown]
# ## A trace that exists
#
# Others recorded AlexNet on an A100 and published the file; [here](traces/README.md) is where it comes from.
# `lv.read` makes a timeline of it. Read the notes before the picture: they say what is missing, how fine the clock is,
# and what is not drawn.

# %%
trace = lv.read(notebooks.trace("alexnet_pageable_2023.json.gz"))
print(f"{trace!r}\nclock: {trace.context.clock}")
for note in trace.context.notes:
    print("-", note)

# %%
guess = predict(
    "In which share of this recording does the A100 compute?",
    ["more than half", "less than half, but more than a hundredth", "less than a hundredth"],
    answer=lambda: 1 if summary.compute_share > 0.5 else 2 if summary.compute_share > 0.01 else 3,
)
guess

# %%
trace.view(color="kind", verdict=False)

# %%
summary = lv.summarize(trace)
print(summary, lv.advise(trace), sep="\n\n")
guess.reveal()

# %% [markdown]
# This recording is nearly all *start*: the first call of CUDA (the long bar in the picture) takes most of it, then
# kernels are loaded and memory is allocated for the first time (R13). Whoever records without a warm-up sees the
# warm-up, and little else. `lv.advise` takes care of that: it judges from the GPU's first work on, and names the start
# separately, as `start-up`.
#
# ## Which part is it?
#
# In the picture above there is one short stretch of exposed copies, the orange bars at the end of the long call.
# `summary` says that nothing of them is hidden. Is that bad? It depends on what they carry. `between(start, end)` cuts
# this part out.

# %%
guess_copies = predict(
    "What do these copies carry?",
    ["batches of images", "the weights of the network", "results"],
    answer=lambda: 2 if {4 * 9216 * 4096, 4 * 4096 * 4096, 4 * 4096 * 1000} <= set(sizes) else 1,
    why="The largest ones have 9216 × 4096, 4096 × 4096 and 4096 × 1000 numbers of 4 bytes: the three fully connected "
    "layers of AlexNet. For each layer there is a small copy, too: its bias.",
)
guess_copies

# %%
copies = list(trace.rows(Kind.COPY_H2D))
sizes = sorted((copy.nbytes for copy in copies), reverse=True)
print(f"{len(copies)} copies: {', '.join(words.size(size) for size in sizes)}")
moving = trace.between(copies[0].start, copies[-1].end)
moving.view(color="kind")

# %% [markdown]
# Pageable copies, one after the other, the host blocked in staging (R1), nothing hidden. In the loop of a training that
# would be worth a repair. For something that is moved once it is not. The picture is right in both cases; only you know
# which part of your program it shows.
#
# How long would the same copies take on the emulated A100?

# %%
real, a100 = lv.summarize(moving), Gpu.preset("a100")
emulated = sum(a100.copy_time(size, a100.pageable) for size in sizes)
print(f"recorded {words.duration(real.copy)} ({real.bandwidth['H2D pageable'] / 1e9:.1f} GB/s), ", end="")
print(f"emulated {words.duration(emulated)} ({a100.pageable / 1e9:.1f} GB/s: {a100.source('pageable')})")
guess_copies.reveal()

# %% [markdown]
# The emulated copies are faster: the computer of the trace stages more slowly than those that the preset's number comes
# from. `lv.calibrate(trace)` takes the numbers of a trace instead.
#
# ## The part that was meant
#
# The authors put annotations around what they wanted to measure. Here is the part under the last one.

# %%
marked = [span for span in trace.rows(Kind.RANGE) if "measure" in span.name]
measured = trace.between(marked[-1].start, marked[-1].end)
print("the last annotations:", [span.name for span in trace.rows(Kind.RANGE)][-2:], end="\n\n")
print(lv.advise(measured))
measured.view(color="kind")

# %% [markdown]
# The finding names first calls and `cudaMalloc`, which a program usually pays once. The annotation before it, with
# `clear_cache` in its name, suggests that this one empties the allocator's cache before it measures, and pays again.
# Perhaps the authors wanted that. A finding is a question about the program, not an order to change it.
#
# ## A training loop on two GPUs
#
# Two processes, *ranks*, trained one network on two A100s, and each wrote a file. `lv.read` takes both, aligns their
# clocks, and gives each rank its lanes. The kernels that exchange gradients, the *collectives*, end together: who comes
# early waits inside them. So first ask who is late; a repair of the other one gains nothing.

# %%
from loaderviz.analysis.ranks import rank_table

ranks = lv.read([notebooks.trace(f"two_ranks_{rank}.json.gz") for rank in (0, 1)])
print(rank_table(ranks), lv.summarize(ranks).step / 1e6, "ms a step")
ranks.view()

# %% [markdown]
# ## Damaged files
#
# A job was killed, or a disk was full: half a file is better than none, if the reader says so. The second is no trace.

# %%
whole = notebooks.trace("alexnet_pageable_2023.json.gz").read_bytes()
with tempfile.TemporaryDirectory() as place:
    for name, content in {"half.json.gz": whole[: len(whole) // 2], "notes.txt": b"Dear diary, today"}.items():
        file = Path(place, name)
        file.write_bytes(content)
        try:
            print(f"{name}: {(half := lv.read(file))!r}\n  {half.context.notes[0]}")
        except lv.LoadervizError as problem:
            print(str(problem).replace(str(file), name))

# %% [markdown]
# ## Record your own loop: torch.profiler
#
# A small loop on the CPU, so that it runs here; the data set is that of exercise 6.2, whose files are slow to read.
# `schedule` leaves the first steps out: the profiler waits, warms up, and then records.

# %%
import os

os.environ["KINETO_LOG_LEVEL"] = "99"  # else the profiler prints what it does
images, labels = mnist.tensors(train=True)
files = lesson06.Files(images[:3072].flatten(1), labels[:3072])


def train(loader, device="cpu", after_step=lambda: None):
    """Run a very small network on each batch, forward and backward; call `after_step` after each."""
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
# Five steps, each with its range. The main thread waits. For whom? Two worker processes work for this loop, but the
# profiler shows neither of them: it sees one process. `lv.record(on="cpu")`, or `on="cuda"` with a GPU, runs the same
# profiler, *and* the workers and the pin thread note when they do what.

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

# %% [markdown]
# Now the workers have lanes, on the profiler's clock; the subtitle says how exact that is. This is your computer as it
# is: run the cell again and the numbers differ.
#
# The same loop on the emulated GPU has the same lanes, with the same names, and a GPU besides. There a fetch takes just
# what the data set and the preset of the host say. A real computer sleeps longer than it is told to, and has other
# things to do.

# %% tags=["measured"]
with lv.record(on="a100", host="laptop", wait=3, steps=6) as recording:
    train(DataLoader(files, 256, num_workers=2), "cuda")
for name, each in {"recorded": recorded, "emulated": recording.timeline}.items():
    fetch = words.duration(lesson06.stations(each)["fetch"])
    print(f"{name}: fetch {fetch:>8} a batch; lanes {', '.join(lane.name for lane in each.lanes)}")
busy = sum(span.duration for span in recorded.rows(Kind.FETCH)) / (2 * recorded.duration)
guess_workers.reveal()

# %% [markdown]
# You can also read or record with one line: in a terminal `python -m loaderviz view trace.json.gz` or
# `python -m loaderviz run train.py`; in a notebook `%load_ext loaderviz`, and then `%%timeline on=cpu` as the first
# line of a cell.
#
# ## Exercises: write the tools yourself
#
# You trust a tool more when you could compute its numbers yourself.

# %%
lesson07.exposed_copy


# %% tags=["starter"]
# Exercise 7.1
def exposed(copies, kernels):
    """Return for how many ns a copy runs and no kernel; both are lists of (start, end) in ns."""
    return sum(end - start for start, end in copies)  # all of the copy: which part is hidden?


# %% tags=["exercise"]
# Exercise 7.1
from itertools import pairwise


def exposed(copies, kernels):
    """Return for how many ns a copy runs and no kernel; both are lists of (start, end) in ns."""
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
    """Return what keeps the GPU from computing: "data", "pageable copy", "one stream" or "nothing"."""
    summary = lv.summarize(timeline)
    return ...


# %% tags=["exercise"]
# Exercise 7.2
import loaderviz as lv


def cause(timeline):
    """Return what keeps the GPU from computing: "data", "pageable copy", "one stream" or "nothing"."""
    summary = lv.summarize(timeline)
    if summary.compute_share > 0.95:
        return "nothing"
    if summary.breakdown.get("idle: host blocked, waiting for data", 0) > summary.exposed_copy:
        return "data"
    return "pageable copy" if "H2D pageable" in summary.bandwidth else "one stream"


# %%
lesson07.find_cause.check(cause)

# %% [markdown]
# ## Try
#
# * `lv.read(notebooks.trace("event_sync_2023.json.gz"))` is another real trace. What does the host wait for in it?
# * Give `train` a loader with `num_workers=0` and record it with `on="cpu"`. Which lane has the fetches now?
# * Read a trace of your own. `lv.read` also takes a folder of ranks, and what `nsys export --type sqlite` writes
#   ([extras](10_extras.ipynb)).
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
# * Read the notes first: what is missing, how fine is the clock, which part of the program is it?
# * Leave the start out: `schedule(wait=..., warmup=...)`, or `lv.record(wait=...)`.
# * A number such as "nothing is hidden" is bad news only in the part that repeats.
# * A profiler shows one process. The workers are others: `lv.record(on="cuda")` or `on="cpu"` shows them.
# * A wait of the host costs nothing while the GPU still has work.
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
assert summary.compute_share < 0.01 and summary.overlap == 0
assert [each.kind for each in lv.advise(trace)][-1] == "start-up"
assert len(sizes) == 16 and len({size for size in sizes if size < 10**5}) < 8 and not lv.summarize(moving).compute
assert real.copy > 1.5 * emulated
assert lv.advise(measured)[0].kind == "warm-up" and "cudaMalloc" in lv.advise(measured)[0].evidence
assert "clear_cache" in [span.name for span in trace.rows(Kind.RANGE)][-2]
assert rank_table(ranks).late[0].row.rank == "1" and lv.summarize(ranks).batches == 2
assert 100 < len(half) < len(trace)
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
# * **Stuck:** in 7.1 overlapping kernels are taken away twice. In 7.2 `host_blocked["waiting for data"]` is large in
#   the healthy training, too: the loop runs ahead and waits, and it costs nothing.
# * **Bring** a trace of your own group. It makes the best twenty minutes of the day.

# %% [markdown] tags=["answers"]
# ## 7. Your own trace
#
# <!-- guess 7c076751 -->
# * *In which share of this recording does the A100 compute?* **less than a hundredth**: it is nearly all start.
#
# <!-- guess_copies 258b8e02 -->
# * *What do these copies carry?* **the weights of the network**: the sizes of the 16 copies say so.
#
# * *While the main thread waits, what do the two workers do?* It is a real run, so it depends on the machine; most
#   often both fetch all the time.
# * **Exercise 7.1:** cut the time at every start and end; add the pieces in which a copy runs and no kernel.
# * **Exercise 7.2:** look at `compute_share`, then at what of the *idle* time is waiting for data, then at the memory
#   the copies come from.
