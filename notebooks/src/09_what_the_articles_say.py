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
# Time: about 25 minutes. Before it: [6. Workers](06_workers.ipynb).

# %%
import os
import warnings

import torch
from torch.utils.data import DataLoader

import loaderviz as lv
from loaderviz import words
from loaderviz.loaders import PrefetchLoader
from loaderviz.workshop import articles, claims, predict, recall
from loaderviz.workshop.lessons.claims import HERE, Samples
from loaderviz.workshop.loop import gpu_milliseconds, show_code

warnings.filterwarnings("ignore", "This DataLoader will create")

# %%
recall(9)

# %% [markdown]
# ## The machines
#
# `machine.train(loader)` trains a small network on one of five machines. `Samples(count, shape)` is a data set.

# %%
laptop = claims.MACHINES[0]
printed = laptop.train(DataLoader(Samples(64 * 10, (3, 64, 64)), 64, num_workers=4), non_blocking=True)
repaired = laptop.train(PrefetchLoader(DataLoader(Samples(64 * 10, (3, 64, 64)), 64, num_workers=4, pin_memory=True)))
lv.compare({"as printed": printed.timeline, "with a prefetcher": repaired.timeline})

# %%
claims.pays

# %% tags=["starter"]
# Exercise 9.1
from torch.utils.data import DataLoader


def holds(machine, data, size, workers):
    """Does pinning save a tenth of a step?"""
    step = machine.train(DataLoader(data, size, num_workers=workers)).step
    return ...


# %% tags=["exercise"]
# Exercise 9.1
from torch.utils.data import DataLoader


def holds(machine, data, size, workers):
    """Does pinning save a tenth of a step?"""
    step = machine.train(DataLoader(data, size, num_workers=workers)).step
    pinned = machine.train(DataLoader(data, size, num_workers=workers, pin_memory=True)).step
    return 1 - pinned / step >= 0.1


# %%
claims.pays.check(holds)

# %% [markdown]
# ## Four sentences
#
# Five articles made this course necessary. Here are four of their sentences, in our words. Say what you think, read
# the experiment, and run it. The verdict is computed on all five machines.

# %%
prefetch = claims.card("prefetch")
prefetch


# %%
def hidden(machine):
    loader = DataLoader(Samples(64 * 10, (3, 64, 64)), 64, num_workers=4)
    return machine.train(loader, non_blocking=True).hidden


prefetch.judge(hidden)

# %% [markdown]
# The next one has nothing to do with time: which process loads a sample? It is tried on this computer.

# %%
threads = claims.card("threads")
threads


# %%
def loaded_here(machine):
    found = torch.cat(list(DataLoader(claims.Processes(16), 4, num_workers=2)))
    return (found == os.getpid()).float().mean().item()


threads.judge(loaded_here, HERE)

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
forty = claims.card("forty")
forty


# %%
def busiest(machine):
    if machine.device == "cpu":
        return None
    loaders = [DataLoader(Samples(128 * 10), 128, num_workers=workers) for workers in (0, 2, 8)]
    return {f"{hidden} wide": max(machine.train(each, hidden).busy for each in loaders) for hidden in (128, 2048)}


forty.judge(busiest)

# %% [markdown]
# ## The articles' programs
#
# Each article prints a program. Here are the five, written anew with the same calls and settings. All five articles
# write about copies. In brackets stands the first finding.

# %%
guess_copies = predict(
    "In how many of the five programs does a copy cost most, says `lv.advise`?",
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
# ## Try
#
# * `show_code(articles.article_1, articles.repaired_1)` opens another program.
# * Take the sentence that surprised you most, and change its experiment until the verdict changes.
# * Many more sentences, with their experiments and verdicts, are in docs/claims.md, a chapter of the book.
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
# * Somebody saw each of these sentences come true, once, on one machine.
# * A claim about speed has a range: a machine, a size, a network. Ask which one.
# * Test it by two runs with one difference between them.
#
# Next: [10. Extras](10_extras.ipynb)

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
assert all(each._verdict.word == "false" for each in (prefetch, threads))
assert all(each._verdict.word == "it depends" for each in (rate, forty))
assert of_copies == 1 and set(causes) == set("12345")

# %% [markdown] tags=["guide"]
# ### 9. What the articles say
#
# Asks: is it true?
#
# Idea: A claim about speed is true in a range. An experiment finds the range.
#
# Exercises: 9.1 (10)
#
# * **Say:** "Somebody saw this, once, on one machine. Where is it true?"
# * **Stuck:** people forget to pass `workers` on. Their experiment is right until a case has no workers.
# * **The programs:** all five articles write about copies. Let the room vote on what costs most before you show the
#   table.
# * **More sentences:** docs/claims.md has more sentences with their experiments. Ask for a sentence that somebody in
#   the room has read, and write its experiment together.

# %% [markdown] tags=["answers"]
# ## 9. What the articles say
#
# * Each of the four cards is a prediction: true, false, or it depends. The verdicts are computed in the notebook: of
#   `non_blocking` and of the threads it is false everywhere; the rate and the 40 % depend on the machine and the size.
#
# <!-- guess_copies 7193b872 -->
# * *In how many of the five programs does a copy cost most, says `lv.advise`?* **in one or two**:
#   <!--=causes['1']:-->pageable-copy<!----> in program 1, <!--=causes['2']:-->waiting-for-data<!----> in 2,
#   <!--=causes['3']:-->fetch-in-loop<!----> in 3, <!--=causes['4']:-->waiting-for-data<!----> in 4,
#   <!--=causes['5']:-->waiting-for-data<!----> in 5.
#
# * **Exercise 9.1:** two trainings that differ in `pin_memory` only; `1 - pinned / step >= 0.1`.
