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
# # 9. What the articles say
#
# ![A picture of a training as a popular article prints it: four workers, copies that wait for the GPU, and a GPU that
# waits for the copies; no copy runs beside a kernel.](pictures/09_what_the_articles_say.png)
#
# **The question of this lesson: is it true what people repeat about feeding a GPU?**
#
# You search for "PyTorch data loading slow" and find articles. Five of them made this course necessary. Below are
# twelve of their sentences, in our words, with their numbers. For each one: say what you think, read the experiment,
# run it. No verdict here is typed: each is computed from recordings on four emulated GPUs and on a machine without one.
#
# After it you can
#
# * turn a sentence about speed into an experiment, and find where it holds;
# * say what decides, as a formula, instead of "it depends".
#
# Time: about 40 minutes. You need no GPU. Before it: [3. Prefetch](03_non_blocking_prefetch.ipynb), [4. The data set on
# the GPU](04_gpu_resident_slicing.ipynb), [6. Workers](06_workers.ipynb).

# %%
import os
import warnings

import torch
from torch.utils.data import DataLoader

import loaderviz as lv
from loaderviz import words
from loaderviz.loaders import PrefetchLoader
from loaderviz.workshop import articles, claims, predict
from loaderviz.workshop.lessons.claims import HERE, Samples
from loaderviz.workshop.loop import gpu_milliseconds, show_code

warnings.filterwarnings("ignore", "This DataLoader will create")  # its processes do little here

# %% [markdown]
# ## The machines
#
# `machine.train(loader)` trains a small network on one of five machines. `.step` is the time of a step in ns, `.hidden`
# the share of the copies that runs under kernels, `.busy` the share of the time in which the GPU computes. A sample of
# `Samples(count, shape, cost)` takes `cost` seconds to load. First look at what we talk about: a program as article 1
# prints it, and the same data through a prefetcher.

# %%
laptop = claims.MACHINES[0]
printed = laptop.train(DataLoader(Samples(64 * 10, (3, 64, 64)), 64, num_workers=4), non_blocking=True)
repaired = laptop.train(PrefetchLoader(DataLoader(Samples(64 * 10, (3, 64, 64)), 64, num_workers=4, pin_memory=True)))
lv.compare({"as printed": printed.timeline, "with a prefetcher": repaired.timeline})

# %% [markdown]
# ## `non_blocking=True`

# %%
prefetch = claims.card("prefetch")
prefetch


# %%
def hidden(machine):
    loader = DataLoader(Samples(64 * 10, (3, 64, 64)), 64, num_workers=4)
    return machine.train(loader, non_blocking=True).hidden


prefetch.judge(hidden)

# %%
slow_loading = claims.card("slow loading")
slow_loading


# %%
def more_when_slow(machine):
    gain = []
    for cost in (0.001, 0):
        data = Samples(64 * 10, cost=cost)
        step = [machine.train(DataLoader(data, 64, num_workers=4), non_blocking=nb).step for nb in (False, True)]
        gain.append(step[0] / step[1] - 1)
    return gain[0] - gain[1]


slow_loading.judge(more_when_slow)

# %% [markdown]
# ## Workers
#
# The first one has nothing to do with time, so it is tried on this computer: who loads a sample? Each one is the number
# of the process that made it.

# %%
threads = claims.card("threads")
threads


# %%
def loaded_here(machine):
    found = torch.cat(list(DataLoader(claims.Processes(16), 4, num_workers=2)))
    return (found == os.getpid()).float().mean().item()


threads.judge(loaded_here, HERE)

# %%
factor = claims.card("factor")
factor


# %%
def two_against_eight(machine):
    data = Samples(64 * 12, cost=0.0001)
    loaders = [DataLoader(data, 64, num_workers=2, prefetch_factor=factor) for factor in (2, 8)]
    two, eight = (machine.train(loader).step for loader in loaders)
    return two / eight


factor.judge(two_against_eight)

# %%
cache = claims.card("cache")
cache


# %%
def later_epochs(machine):
    found = {}
    for name, workers, stay in (("no workers", 0, False), ("2 workers", 2, False), ("2 that stay", 2, True)):
        data = [Samples(64 * 8, cost=0.0001, cache=True) for _ in range(2)]
        loaders = [DataLoader(each, 64, num_workers=workers, persistent_workers=stay) for each in data]
        found[name] = machine.train(loaders[0]).step / machine.train(loaders[1], epochs=3).step
    return found


cache.judge(later_epochs)

# %% [markdown]
# ## Pinned memory

# %%
gpu_memory = claims.card("GPU memory")
gpu_memory


# %%
def peaks(machine):
    if machine.device == "cpu":
        return None
    loaders = [DataLoader(Samples(64 * 10), 64, pin_memory=pin) for pin in (False, True)]
    return machine.train(loaders[0]).peak / machine.train(loaders[1]).peak


gpu_memory.judge(peaks)

# %%
rate = claims.card("rate")
rate


# %%
def rates(machine):
    if machine.device == "cpu":
        return None
    sizes = {"10 kB": 10**4, "100 kB": 10**5, "1 MB": 10**6, "10 MB": 10**7}
    return {name: machine.copy(n, pinned=False) / machine.copy(n, pinned=True) for name, n in sizes.items()}


rate.judge(rates)

# %%
saving = claims.card("saving")
saving


# %%
def saved(machine):
    found = {}
    for name, shape, size in (("text", (512,), 64), ("digits", (1, 28, 28), 256), ("photos", (3, 96, 96), 64)):
        data = Samples(size * 10, shape)
        step = [machine.train(DataLoader(data, size, num_workers=4, pin_memory=pin)).step for pin in (False, True)]
        found[name] = 1 - step[1] / step[0]
    return found


saving.judge(saved)

# %%
memory = claims.card("memory")
memory


# %%
def lowered(machine):
    if machine.device == "cpu":
        return None
    changes = {"checkpoints": {"checkpoints": 3}, "half precision": {"half": True}}
    plain = {size: claims.peak(machine, size) for size in (16, 1024)}
    return {f"{name}, {n}": plain[n] / claims.peak(machine, n, **changes[name]) for name in changes for n in plain}


memory.judge(lowered)

# %% [markdown]
# ## The data set on the GPU

# %%
forty = claims.card("forty")
forty


# %%
def busiest(machine):
    if machine.device == "cpu":
        return None
    loaders = [DataLoader(Samples(128 * 10), 128, num_workers=workers) for workers in (0, 2, 8)]
    return {f"{hidden} wide": max(machine.train(each, hidden).busy for each in loaders) for hidden in (128, 2048)}


forty.judge(busiest)

# %%
slices = claims.card("slices")
slices


# %%
def a_sample(machine):
    x, y = torch.zeros(128 * 10, 784), torch.zeros(128 * 10, dtype=torch.int64)
    sliced = {size: machine.train(claims.Slices(x, y, size, machine.device)).step / size for size in (64, 128)}
    step = {n: machine.train(DataLoader(Samples(128 * 10), 128, num_workers=n)).step / 128 for n in (0, 2)}
    found = {f"{n} workers": step[n] / sliced[64] for n in step}  # batches of 128 against slices of 64, as printed
    return found | {f"{n}, equal batches": step[n] / sliced[128] for n in step}


slices.judge(a_sample)

# %%
order = claims.card("order")
order


# %%
def company(machine):
    met = {"slices": set(), "samples": set()}
    for epoch in range(10):
        met["slices"] |= set(range(64))  # the slice of sample 0, whatever its turn
        rows = torch.randperm(640, generator=torch.Generator().manual_seed(epoch))
        met["samples"] |= next(set(part.tolist()) for part in rows.split(64) if 0 in part)
    return (len(met["slices"]) - 1) / (len(met["samples"]) - 1)


order.judge(company, HERE)

# %% [markdown]
# ## The articles' programs
#
# Each article prints a program. Here are the five, written anew with the same calls and settings. The first talks of
# copies that do not block, the second to fourth of pinned memory, the fifth of many small copies. What is it really?
# In brackets: the first finding. One is shown; `show_code(articles.article_1, articles.repaired_1)` opens another.

# %%
guess_copies = predict(
    "In how many of the five programs is a copy what costs most, as `lv.advise` sees it?",
    ["in none", "in one or two", "in three or more"],
    answer=lambda: 1 + (of_copies > 0) + (of_copies > 2),
    why="One program copies from pageable memory. The others wait for their data set, which no faster copy helps.",
)
guess_copies

# %%
causes = {}
for name, (printed_one, repaired_one) in articles.PROGRAMS.items():
    before, after = articles.run(printed_one), articles.run(repaired_one)
    kinds = [finding.kind for finding in lv.advise(before) if finding.kind != "unpriced"]
    causes[name], step = kinds[0], [lv.summarize(each).step for each in (before, after)]
    print(f"{name}: {words.duration(step[0])} a step ({causes[name]}), ", end="")
    print(f"repaired {words.duration(step[1])}: {step[0] / step[1]:.1f}x as fast")
of_copies = sum("copy" in cause for cause in causes.values())
guess_copies.reveal()

# %%
show_code(articles.article_5, articles.repaired_5)

# %% [markdown]
# ## Your own experiment
#
# A sentence is tested by two runs with one difference between them. Write one that gives a verdict. The check changes
# the GPU, the link, the data and the workers behind your back and sees whether your verdict follows.

# %%
claims.pays

# %% tags=["starter"]
# Exercise 9.1
from torch.utils.data import DataLoader


def holds(machine, data, size, workers):
    """Return whether `pin_memory=True` saves at least a tenth of a step."""
    step = machine.train(DataLoader(data, size, num_workers=workers)).step
    return ...


# %% tags=["exercise"]
# Exercise 9.1
from torch.utils.data import DataLoader


def holds(machine, data, size, workers):
    """Return whether `pin_memory=True` saves at least a tenth of a step."""
    step = machine.train(DataLoader(data, size, num_workers=workers)).step
    pinned = machine.train(DataLoader(data, size, num_workers=workers, pin_memory=True)).step
    return 1 - pinned / step >= 0.1


# %%
claims.pays.check(holds)

# %% [markdown]
# ## Try
#
# * Take the sentence that surprised you most, and change its experiment until the verdict changes.
# * Give `Samples` a `cost` in the experiment of *saving*. Does its verdict care?
# * Fifty more sentences, with their experiments and verdicts: docs/claims.md, a chapter of the book.
#
# ## The same code on a real GPU

# %% tags=["gpu"]
if torch.cuda.is_available():
    x = torch.zeros(10**7, dtype=torch.uint8)
    for name, part in {"ordinary": x, "pinned": x.pin_memory()}.items():
        took = gpu_milliseconds(lambda parts: [part.to("cuda") for part in parts], [part] * 10)
        print(f"{torch.cuda.get_device_name()}, 10 MB from {name} memory: {took:.3f} ms a step")
else:
    print("Skipped: PyTorch sees no CUDA GPU here. On a machine with one, this cell times a copy on it.")

# %% [markdown]
# ## Recap
#
# * Each of these sentences was written by somebody who saw it, once, on one machine.
# * A claim about speed has a range: a machine, a size, a network. Ask which one.
# * The formula that decides is short. Measure its terms before you take a tip.
#
# Next: [8. Capstone](08_capstone.ipynb), or your own [trace](07_your_own_trace.ipynb).

# %% tags=["picture"]
# a program as an article prints it: four workers, `non_blocking`, and nothing pinned
from torch.utils.data import DataLoader

from loaderviz.workshop import claims

loader = DataLoader(claims.Samples(64 * 10, (3, 64, 64)), 64, num_workers=4)
trained = claims.MACHINES[0].train(loader, non_blocking=True)
trained.timeline.view(title="As an article prints it: copies and kernels take turns")

# %% tags=["claims"]
assert printed.hidden == 0 < repaired.hidden and repaired.step < printed.step
assert {claims.CLAIMS[key].key for key in claims.CLAIMS} == {
    each.claim.key for each in list(globals().values()) if isinstance(each, claims.Card)
}
assert all(each._verdict.word == "false" for each in (prefetch, slow_loading, threads, factor, gpu_memory, order))
assert all(each._verdict.word == "it depends" for each in (cache, rate, saving, forty, slices, memory))
assert of_copies == 1 and set(causes) == set("12345")

# %% [markdown] tags=["guide"]
# ### 9. What the articles say
#
# Asks: is it true?
#
# Idea: A claim about speed has a range; an experiment finds it.
#
# Exercises: 9.1 (10)
#
# * **Say:** "Somebody saw this, once, on one machine. Where is it true?"
# * **Stuck:** people forget to pass `workers` on, and are right until a case has none.
# * **The programs:** all five articles write about copies. Let the room vote what costs most before the table is there.
# * **In a short session** take four: *prefetch*, *threads*, *rate*, *forty*. Ask for a sentence that somebody has read
#   himself, and write its experiment together.

# %% [markdown] tags=["answers"]
# ## 9. What the articles say
#
# * Each of the twelve cards is a prediction: true, false, or it depends. The verdicts are computed in the notebook: six
#   are false everywhere, six depend (the cache, the rate, the saving, the memory, 40 %, two to three times), and none
#   is true everywhere.
#
# <!-- guess_copies eb0f5dbe -->
# * *In how many of the five programs is a copy what costs most, as `lv.advise` sees it?* **in one or two**:
#   <!--=causes['1']:-->pageable-copy<!----> in program 1, <!--=causes['2']:-->waiting-for-data<!----> in 2,
#   <!--=causes['3']:-->fetch-in-loop<!----> in 3, <!--=causes['4']:-->waiting-for-data<!----> in 4,
#   <!--=causes['5']:-->waiting-for-data<!----> in 5.
#
# * **Exercise 9.1:** two trainings that differ in `pin_memory` only; `1 - pinned / step >= 0.1`.
