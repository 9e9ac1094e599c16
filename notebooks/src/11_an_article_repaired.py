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
# # 11. An article repaired
#
# ![The program of an article: four workers are busy all the time, and the GPU works for a small part of
# it.](pictures/11_an_article_repaired.png)
#
# **The question of this lesson: in which order do you repair a program?**
#
# An article trains on pictures in files, and recommends four workers and `pin_memory=True`. Here is its program,
# written anew. You repair it in three steps.
#
# Time: about 30 minutes. Before it: [4. The data set on the GPU](04_gpu_resident_slicing.ipynb),
# [6. Workers](06_workers.ipynb).

# %%
import torch
from torch.utils.data import DataLoader

import loaderviz as lv
from loaderviz.loaders import PrefetchLoader
from loaderviz.workshop import lesson11, predict, recall
from loaderviz.workshop.lessons.lesson11 import Augmented, article, augment, watch
from loaderviz.workshop.loop import gpu_milliseconds, new_model, show_code, steps, train_step

show_code(lesson11.Photos, augment, Augmented, article)

# %%
recall(11)

# %% [markdown]
# `watch` records the second epoch, and compares it with the GPU's own work.

# %%
before = watch(article)
before.view()

# %%
lesson11.look


# %% tags=["starter"]
# Exercise 11.0
def slowest():
    """Return "fetch", "pin", "copy" or "compute"."""
    return ...


# %% tags=["exercise"]
# Exercise 11.0
def slowest():
    """Return "fetch", "pin", "copy" or "compute"."""
    return "fetch"


# %%
lesson11.look.check(slowest)

# %%
guess_prefetch = predict(
    "Prefetch first: a step becomes …",
    ["less than 1.2x as fast", "1.2x to 2x", "more than 2x"],
    answer=lambda: 1 + sum(before.duration / after.duration > gain for gain in (1.2, 2)),
)
guess_prefetch


# %%
def prefetch_first(photos, epochs):
    """Copy ahead."""
    loader = DataLoader(Augmented(photos), 64, shuffle=True, num_workers=4, pin_memory=True)
    for _ in range(epochs):
        yield from PrefetchLoader(loader)


after = watch(prefetch_first)
guess_prefetch.reveal()

# %% [markdown]
# A repair elsewhere than at the slowest station wins little. So first: the workers.
#
# ## 1. The processor augments
#
# *Augmentation* changes each picture a little, anew in each epoch.

# %%
guess_augment = predict(
    "Augment on the GPU: a step becomes …",
    ["less than 1.2x as fast", "1.2x to 2x", "more than 2x"],
    answer=lambda: 1 + sum(before.duration / augmented.duration > gain for gain in (1.2, 2)),
)
guess_augment

# %%
lesson11.on_gpu


# %% tags=["starter"]
# Exercise 11.1
from torch.utils.data import DataLoader

from loaderviz.workshop.lessons.lesson11 import Augmented, augment


def load(photos, epochs):
    """Yield each batch on the GPU."""
    loader = DataLoader(Augmented(photos), 64, shuffle=True, num_workers=4, pin_memory=True)
    for _ in range(epochs):
        for images, labels in loader:
            yield images.cuda(), labels.cuda()


# %% tags=["exercise"]
# Exercise 11.1
from torch.utils.data import DataLoader

from loaderviz.workshop.lessons.lesson11 import augment


def load(photos, epochs):
    """Yield each batch on the GPU."""
    loader = DataLoader(photos, 64, shuffle=True, num_workers=4, pin_memory=True)
    for _ in range(epochs):
        for images, labels in loader:
            yield augment(images.cuda()), labels.cuda()


# %%
lesson11.on_gpu.check(load)

# %%
augmented = watch(load)
guess_augment.reveal()

# %% [markdown]
# ## 2. The workers decode again
#
# To *decode* is to make pixels of a compressed file.

# %%
guess_decode = predict(
    "Decode once: a step becomes …",
    ["less than 1.2x as fast", "1.2x to 2x", "more than 2x"],
    answer=lambda: 1 + sum(augmented.duration / decoded.duration > gain for gain in (1.2, 2)),
)
guess_decode

# %%
lesson11.once

# %% tags=["starter"]
# Exercise 11.2
from torch.utils.data import DataLoader, TensorDataset

from loaderviz.workshop.lessons.lesson11 import augment


def load(photos, epochs):
    """Yield each batch on the GPU."""
    loader = DataLoader(photos, 64, shuffle=True, num_workers=4, pin_memory=True)
    for _ in range(epochs):
        for images, labels in loader:
            yield augment(images.cuda()), labels.cuda()


# %% tags=["exercise"]
# Exercise 11.2
from torch.utils.data import DataLoader, TensorDataset

from loaderviz.workshop.lessons.lesson11 import augment


def load(photos, epochs):
    """Yield each batch on the GPU."""
    decoded = zip(*DataLoader(photos, 64, num_workers=4), strict=True)  # all images, and all labels
    loader = DataLoader(TensorDataset(*map(torch.cat, decoded)), 64, shuffle=True, num_workers=4, pin_memory=True)
    for _ in range(epochs):
        for images, labels in loader:
            yield augment(images.cuda()), labels.cuda()


# %%
lesson11.once.check(load)

# %%
decoded = watch(load)
guess_decode.reveal()

# %% [markdown]
# ## 3. The GPU waits for copies

# %%
guess_copy = predict(
    "No exposed copy: a step becomes …",
    ["less than 1.2x as fast", "1.2x to 2x", "more than 2x"],
    answer=lambda: 1 + sum(decoded.duration / repaired.duration > gain for gain in (1.2, 2)),
)
guess_copy

# %%
lesson11.to_the_limit

# %% tags=["starter"]
# Exercise 11.3
from torch.utils.data import DataLoader, TensorDataset

from loaderviz.loaders import PrefetchLoader
from loaderviz.workshop.lessons.lesson11 import augment


def load(photos, epochs):
    """Yield each batch on the GPU."""
    decoded = zip(*DataLoader(photos, 64, num_workers=4), strict=True)
    loader = DataLoader(TensorDataset(*map(torch.cat, decoded)), 64, shuffle=True, num_workers=4, pin_memory=True)
    for _ in range(epochs):
        for images, labels in loader:
            yield augment(images.cuda()), labels.cuda()


# %% tags=["exercise"]
# Exercise 11.3
from torch.utils.data import DataLoader, TensorDataset

from loaderviz.loaders import PrefetchLoader
from loaderviz.workshop.lessons.lesson11 import augment


def load(photos, epochs):
    """Yield each batch on the GPU."""
    decoded = zip(*DataLoader(photos, 64, num_workers=4), strict=True)
    loader = DataLoader(TensorDataset(*map(torch.cat, decoded)), 64, shuffle=True, num_workers=4, pin_memory=True)
    for _ in range(epochs):
        for images, labels in PrefetchLoader(loader):  # the pictures are not much: they could stay on the GPU, too
            yield augment(images), labels


# %%
lesson11.to_the_limit.check(load)

# %%
repaired = watch(load)
guess_copy.reveal()

# %%
lv.compare({"the article": before, "augmented on the GPU": augmented, "decoded once": decoded, "repaired": repaired})

# %% [markdown]
# ## Try
#
# Take your last `load`, and let the workers decode again. What does prefetching win then?
#
# ## The same code on a real GPU


# %% tags=["gpu"]
def train(batches):
    """Train on augmented pictures."""
    model, optimizer = new_model()
    for images, labels in steps(batches):
        pixels = augment(images.cuda(non_blocking=True))[:, 0, :28, :28].contiguous()
        loss = train_step(model, optimizer, pixels, labels.cuda(non_blocking=True) % 10)
    return loss


if torch.cuda.is_available():
    photos = [(torch.randint(256, (64, 3, 96, 96), dtype=torch.uint8), torch.arange(64)) for _ in range(16)]
    print(f"{torch.cuda.get_device_name()}: augmented on it {gpu_milliseconds(train, photos):.3f} ms a step")
else:
    print("Skipped: PyTorch sees no CUDA GPU here. On a machine with one, this cell times the augmentation on it.")

# %% [markdown]
# ## Recap
#
# * Repair the slowest station; then look again: another one is slowest.
# * Send what is stored (R22), and decode once.
# * Hide copies last.
#
# Next: [8. The capstone](08_capstone.ipynb)

# %% tags=["picture"]
# the article's program, as the first picture of the lesson has it
from loaderviz.workshop.lessons import lesson11

lesson11.watch(lesson11.article).view(title="The article's program: four workers, and a GPU that waits")

# %% tags=["claims"]
assert before.duration > 1.25 * augmented.duration > 2 * decoded.duration > 2.4 * repaired.duration
assert before.duration / after.duration < 1.2
assert lv.summarize(before).overlap == 0 and lv.summarize(before).compute_share < 0.2
assert lv.summarize(repaired).compute_share > 0.8

# %% [markdown] tags=["guide"]
# ### 11. An article repaired
#
# Asks: what comes first?
#
# Idea: The slowest station first, then look again.
#
# Exercises: 11.0 (1), 11.1 (6), 11.2 (6), 11.3 (6)
#
# * **Say:** "Everybody wants to begin with the stream. Begin with the station that is slowest."
# * **Stuck:** in 11.1 people call `augment` before `.cuda()`: then floats travel, and the main thread works. In 11.2 a
#   dictionary in the data set does not help: each worker has its own, and it ends with the epoch. In 11.3 both ways are
#   right: a prefetcher, or all pictures on the GPU, which is a little faster.
# * **Be honest:** a millisecond for a picture is declared, with `lv.costs`; the operators of the augmentation have the
#   prices of the emulated machine. Read the article's picture once more at the end: the copies were never the problem.
# * **Ask:** "When do you stop?" When the GPU computes all the time, or when nobody waits for it any more.

# %% [markdown] tags=["answers"]
# ## 11. An article repaired
#
# <!-- guess_prefetch 0d8dbb33 -->
# * *Prefetch first: a step becomes …* **less than 1.2x as fast**: the copies were a small part, and the workers set the
#   pace.
#
# <!-- guess_augment 2920618a -->
# * *Augment on the GPU: a step becomes …* **1.2x to 2x**: the workers only decode now, and a quarter of the bytes
#   travels.
#
# <!-- guess_decode 9865a423 -->
# * *Decode once: a step becomes …* **more than 2x**: from the second epoch on there is nothing to decode.
#
# <!-- guess_copy b8e25bb2 -->
# * *No exposed copy: a step becomes …* **1.2x to 2x**: the copy took nearly as long as the computing, and now it runs
#   beside it.
#
# * *(Under "Try")* Nothing: while the workers decode, the GPU waits for them, and a copy is short beside that.
# * **Exercise 11.0:** `fetch`: a worker takes longest for a batch, even divided by four.
# * **Exercise 11.1:** `DataLoader(photos, …)`, and `augment(images.cuda())`.
# * **Exercise 11.2:** join the batches of one pass over `photos` with `torch.cat`, and load from a `TensorDataset`.
# * **Exercise 11.3:** `PrefetchLoader(loader)`, or all pictures on the GPU and an order drawn there (lesson 4).
