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
# # 4. The data set on the GPU
#
# **The question of this lesson: if the data set is small, why carry it to the GPU in every epoch?**
#
# After it you can
#
# * decide by arithmetic whether a data set fits on the GPU;
# * train from slices of it, without any copy, and say what is wrong with slices;
# * shuffle correctly on the GPU, and avoid changing the data set by accident;
# * read a GPU utilisation curve.
#
# Time: about 25 minutes. You need no GPU.
# Before it: [3. Non-blocking copies and prefetch](03_non_blocking_prefetch.ipynb).

# %%
import itertools
import random
import textwrap
from dataclasses import replace

import torch
from torch.profiler import record_function
from torch.utils.data import DataLoader, TensorDataset

import loaderviz as lv
from loaderviz import mnist, words
from loaderviz.emulator import Gpu
from loaderviz.loaders import ResidentLoader

# %%
GPU = "laptop"  # the GPU to emulate; other names: "t4", "a100", "h100", "h200"
BATCH, WARM_UP, STEPS = 2048, 3, 8  # samples in a batch; steps before we look; steps in the picture
images, labels = mnist.tensors(train=True)

# %% [markdown]
# ## How large is MNIST?

# %%
memory = Gpu.preset(GPU).memory
for dtype in (torch.uint8, torch.float16, torch.float32):
    size = images.numel() * dtype.itemsize + labels.nbytes
    print(f"{dtype!s:14} {words.size(size):>9}, {words.share(size / memory)} of the memory of this GPU")

# %% [markdown]
# All of it fits many times. The advice "keep it as it is stored" saves a factor of four: `uint8` on the GPU,
# and only the batch becomes `float32`, also on the GPU.
#
# ## First: the usual loop
#
# A `DataLoader` over a `TensorDataset`, as in many tutorials. **Predict:** in which share of the time does the GPU
# compute? (In lesson 1 the batches were ready before the loop started. Here they are not.)


# %%
def new_model(hidden=384):
    """Return a small network and its optimizer, on the CPU."""
    torch.manual_seed(0)
    layers = torch.nn.Linear(784, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, 10)
    model = torch.nn.Sequential(torch.nn.Flatten(), *layers)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


# %%
def train_step(model, optimizer, x, y):
    """Train on a batch of uint8 images; return the loss."""
    loss = torch.nn.functional.cross_entropy(model(x.float() / 255), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


# %%
def train(batches, count=WARM_UP + STEPS):
    """Train on `count` batches, from wherever they come; return the last loss."""
    model, optimizer = new_model()
    model.to("cuda")
    for number, (x, y) in zip(range(count), batches, strict=False):
        loss = train_step(model, optimizer, x.to("cuda"), y.to("cuda"))
        if number == WARM_UP - 1:
            torch.cuda.synchronize()  # what comes now is in the picture
    return loss


# %%
def watch(make_batches, *arguments):
    """Record training on the emulated GPU; return the timeline without the warm-up."""
    with lv.record(on=GPU) as recording:
        train(make_batches(), *arguments)
        torch.cuda.synchronize()
    return recording.timeline.from_batch(WARM_UP)


# %%
def data_loader():
    """Return the usual loader: each sample is taken alone, then they are put together."""
    return DataLoader(TensorDataset(images, labels), BATCH, shuffle=True)


# %%
usual = watch(data_loader)
usual.figure(color="batch")

# %%
summary = lv.summarize(usual)
print(f"a step {words.duration(summary.step)}: GPU computes {words.share(summary.compute_share)}, ", end="")
print(f"copy {words.share(summary.copy_share)}")
for part, time_ns in summary.breakdown.items():
    print(f"  {part:40} {words.share(time_ns / summary.window):>6}")

# %% [markdown]
# Here it is not the copy at all. Read the breakdown: the host makes the batches, sample by sample, and the GPU waits.
# Pinned memory and streams cannot help against that.
#
# ## Slices of a tensor that is on the GPU already
#
# Move the data set once, before training. A batch is then a *slice*: two numbers, the start and the end.
# To have some randomness, we shuffle the order of these pairs in every epoch.


# %%
def slices():
    """Yield slices of the data set on the GPU, epoch after epoch; the order of the slices is shuffled."""
    on_gpu = images.to("cuda"), labels.to("cuda")  # once
    pairs = [(start, start + BATCH) for start in range(0, len(images) - BATCH + 1, BATCH)]
    order, number = random.Random(0), itertools.count()
    while True:
        order.shuffle(pairs)
        for start, end in pairs:
            with record_function(f"batch {next(number)}"):  # its name in the picture
                yield tuple(part[start:end] for part in on_gpu)


# %%
sliced = watch(slices)
sliced.figure(color="batch")

# %%
both = lv.summarize(usual), lv.summarize(sliced)
for name, each in zip(("DataLoader", "slices"), both, strict=True):
    print(f"{name:10} step {words.duration(each.step):>9}, GPU computes {words.share(each.compute_share):>6}, ", end="")
    print(f"copies {words.duration(each.copy)}")
print(f"{words.times(both[0].step / both[1].step)} as fast")

# %% [markdown]
# There is no copy to hide, and no host work to wait for. A slice is a *view*: it costs no kernel and no memory.
# `.to("cuda")` in `train` does nothing, because the slice is on the GPU.
#
# ## What is wrong with slices?
#
# **Predict:** after ten epochs, how many different samples has sample 0 met in its batches?
# Take batches of 256, once with shuffled slices and once with a new order of all samples in each epoch.


# %%
def batch_mates(order_of, size=256, epochs=10):
    """Return how many other samples were in one batch with sample 0, in all epochs together."""
    met = torch.zeros(len(images), dtype=torch.bool)
    for epoch in range(epochs):
        order = order_of(torch.Generator().manual_seed(epoch), size)
        batch = int((order == 0).nonzero()) // size
        met[order[batch * size : (batch + 1) * size]] = True
    return int(met.sum()) - 1


# %%
def shuffled_slices(generator, size):
    """Shuffle the slices; the inside of a slice stays as it is."""
    whole = torch.arange(len(images) // size * size).reshape(-1, size)
    return whole[torch.randperm(len(whole), generator=generator)].flatten()


def shuffled_samples(generator, size):
    """Shuffle all samples."""
    return torch.randperm(len(images), generator=generator)


# %%
print(f"shuffled slices:  {batch_mates(shuffled_slices):5} different batch-mates in 10 epochs")
print(f"shuffled samples: {batch_mates(shuffled_samples):5}")

# %% [markdown]
# With slices the *composition* of a batch never changes: a sample has the same batch-mates in every epoch.
# With a file in random order this may be harmless. With a file that is sorted by class it is not.
# Let us sort a part of MNIST by class, as files on disk often are, and look into the batches.

# %%
part = labels[:12_800].argsort(stable=True)
sorted_images, sorted_labels = images[part], labels[part]
classes = [len(batch.unique()) for batch in sorted_labels.split(256)]
print(f"classes in a batch of 256: {min(classes)} to {max(classes)}; ", end="")
print(f"{sum(count == 1 for count in classes)} of {len(classes)} batches have one class only")

# %% [markdown]
# **Predict:** what does that do to the accuracy? This is arithmetic only, so we train on the CPU, without the emulator.

# %%
test_images, test_labels = mnist.tensors(train=False)


# %%
def accuracy_with(batch_order, epochs=3, size=256):
    """Train on the sorted part, one epoch after the other; return the share of test digits that are right."""
    model, optimizer = new_model()
    for epoch in range(epochs):
        for rows in batch_order(torch.Generator().manual_seed(epoch), size):
            train_step(model, optimizer, sorted_images[rows], sorted_labels[rows])
    return float((model(test_images.float() / 255).argmax(1) == test_labels).float().mean())


# %%
def slices_of_the_part(generator, size):
    """Return the rows of each batch: slices in random order."""
    rows = torch.arange(len(part)).split(size)
    return [rows[k] for k in torch.randperm(len(rows), generator=generator)]


def samples_of_the_part(generator, size):
    """Return the rows of each batch: all samples in random order."""
    return torch.randperm(len(part), generator=generator).split(size)


# %%
print(f"shuffled slices:  {accuracy_with(slices_of_the_part):.1%} of the test digits are right")
print(f"shuffled samples: {accuracy_with(samples_of_the_part):.1%}")

# %% [markdown]
# <details><summary><b>Compare with your prediction</b></summary>
#
# The same samples, the same number of steps, the same start. Only the order differs. A batch of one class pulls the
# network towards this class, and the next batch pulls it away again.
#
# </details>
#
# ## Shuffle on the GPU
#
# A new order in each epoch, and one *gather* for each batch: `index_select` collects the rows of the batch on the GPU.
# Only the order travels, once per epoch. **Predict:** how much slower is a step than with slices?


# %%
def gathered():
    """Yield batches in a new order of all samples in each epoch."""
    on_gpu = images.to("cuda"), labels.to("cuda")  # once
    generator, number = torch.Generator().manual_seed(0), itertools.count()
    while True:
        order = torch.randperm(len(images), generator=generator).to("cuda")
        for rows in order.split(BATCH):
            with record_function(f"batch {next(number)}"):
                yield tuple(part.index_select(0, rows) for part in on_gpu)


# %%
timelines = {"slices": sliced, "gather": watch(gathered)}
for name, timeline in timelines.items():
    each = lv.summarize(timeline)
    kernels = words.duration(each.compute / each.batches)
    print(f"{name:8} step {words.duration(each.step):>9}, of it kernels {kernels:>9}")

# %% [markdown]
# The difference between the two lines is the price of a correct shuffle.
#
# ## The same with a loader class
#
# `ResidentLoader` does this. It has the wrong shuffle, too, under its true name: `shuffle="batches"`.


# %%
def resident(**options):
    """Return batches of a ResidentLoader, epoch after epoch."""
    loader = ResidentLoader((images, labels), BATCH, seed=0, drop_last=True, **options)
    while True:
        yield from loader


# %%
for shuffle in ("samples", "blocks", "batches"):
    each = lv.summarize(watch(lambda shuffle=shuffle: resident(shuffle=shuffle)))
    print(f"shuffle={shuffle!r:10} step {words.duration(each.step):>9}, GPU computes {words.share(each.compute_share)}")

# %% [markdown]
# ## A slice is the data set
#
# A slice shares its memory with the data set. An operation that works *in place* (its name ends with `_`) on the batch
# changes the data set, for every later epoch. **Predict:** the mean after one and after two epochs of the loop below?

# %%
with lv.record(on=GPU):
    data = images[: 10 * BATCH].float().to("cuda")
    for epoch in range(3):
        print(f"epoch {epoch}: mean of the data {data.mean().item():9.5f}")
        for start in range(0, len(data), BATCH):
            x = data[start : start + BATCH]
            x.div_(255)  # meant for this batch only

# %% [markdown]
# Nothing fails, the numbers are just wrong. The gather makes a copy, so it has no such problem.
# `ResidentLoader` notices it and says so:

# %%
with lv.record(on=GPU):
    floats = images[: 10 * BATCH].float()
    loader = ResidentLoader((floats, labels[: 10 * BATCH]), BATCH, shuffle="batches")
    try:
        for x, _ in loader:
            x.div_(255)
    except RuntimeError as problem:
        print(textwrap.fill(str(problem), 110))

# %% [markdown]
# ## When it does not fit
#
# Let us take a GPU with very little memory. `ResidentLoader` asks how much is free *before* it moves anything.

# %%
tiny_gpu = replace(Gpu.preset(GPU), name="a tiny GPU", memory=650 * 2**20)
for data in (images, images.float()):
    with lv.record(on=tiny_gpu):
        try:
            ResidentLoader((data, labels), 256)
            print(f"{data.dtype}: fits")
        except MemoryError as problem:
            print(textwrap.fill(f"{data.dtype}: {problem}", 110))

# %% [markdown]
# ## The GPU utilisation curve
#
# This is the curve that `nvidia-smi` and most monitors show: in each short window, the share of the time in which
# at least one kernel runs. **Predict** the two curves, then run. The resident loader makes many more steps here,
# so that both run for about the same time.

# %%
steps_in_the_same_time = round(lv.summarize(usual).window / lv.summarize(timelines["gather"]).step)
long_run = watch(resident, WARM_UP + steps_in_the_same_time)
print(f"DataLoader: {STEPS} steps, ResidentLoader: {steps_in_the_same_time} steps")
comparison = lv.compare({"DataLoader": usual, "ResidentLoader": long_run})
comparison.utilization()

# %% [markdown]
# A low curve with regular peaks: the GPU gets a batch, computes, and starves. A high flat curve: it always has work.
# If the curve of your own training looks like the first one, look at the loader before you buy a faster GPU.
#
# One warning: the curve counts *time with a kernel*, not how well the kernel uses the GPU.
# A full curve does not mean that nothing can be faster.
#
# ## Try
#
# * Change `BATCH` to 256 and run all again. Is the resident curve still flat? What does the GPU wait for now?
# * Give `DataLoader` the argument `num_workers=2` in `data_loader`. Which lanes are new, and is it faster?
# * Use `resident(method="permute")`: one gather per epoch instead of one per batch. What is its price?
#
# ## The same code on a real GPU


# %%
def gpu_milliseconds(make_batches, count):
    """Return the time of one step, measured by events in the stream."""
    train(make_batches(), WARM_UP)  # the first run allocates memory and loads kernels
    batches, (begin, end) = make_batches(), [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    begin.record()
    train(batches, count)
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / count


# %% tags=["gpu"]
if torch.cuda.is_available():
    print(f"{torch.cuda.get_device_name()}: DataLoader {gpu_milliseconds(data_loader, 20):.3f} ms a step")
    print(f"ResidentLoader {gpu_milliseconds(resident, 20):.3f} ms a step")
else:
    print("Skipped: PyTorch sees no CUDA GPU here. On a machine with one, this cell times both loops on it.")

# %% [markdown]
# ## Recap
#
# * A small data set belongs on the GPU, in the type in which it is stored.
# * Slices cost nothing, but batches of slices never change. Shuffle samples, not slices: one gather per batch.
# * A slice is a view. Never change it in place.
# * A low, periodic utilisation curve means: the GPU waits for its loader.
#
# You have now seen the whole way, from the blocking copy to no copy at all.
# Go back to [0. Start here](00_start_here.ipynb) for the four loaders in one picture, and change its batch size.
