"""What learners hand in for the capstone: right loaders of different design, and wrong ones with the fact they get."""

from __future__ import annotations

import torch
from torch.utils.data import DataLoader, TensorDataset

from loaderviz.loaders import PinnedLoader, PrefetchLoader, ResidentLoader

from .answers import labels_out_of_step, on_gpu_loader, order_made_on_the_gpu, shuffle_slices, with_replacement

# Right


def permuted(images, labels, size, epochs):
    loader = ResidentLoader((images, labels), size, seed=3, method="permute")
    for _ in range(epochs):
        yield from loader


def float_on_the_gpu(images, labels, size, epochs):
    images, labels = images.to("cuda").float() / 255, labels.to("cuda")
    for _ in range(epochs):
        for rows in torch.randperm(len(images)).to("cuda").split(size):
            yield images.index_select(0, rows), labels.index_select(0, rows)


def workers_of(images, labels, size):
    data, more = TensorDataset(images, labels), {"pin_memory": True, "persistent_workers": True}
    return DataLoader(data, size, shuffle=True, num_workers=2, **more)


def bytes_prefetched(images, labels, size, epochs):
    """Nothing stays on the GPU: workers, a pin thread, a side stream, and a quarter of the bytes."""
    loader = workers_of(images, labels, size)
    for _ in range(epochs):
        yield from PrefetchLoader(loader)


def moved_in_pieces(images, labels, size, epochs):
    """The first epoch trains on the pieces as they arrive; the later ones on what is there."""
    x, y = torch.empty_like(images, device="cuda"), torch.empty_like(labels, device="cuda")
    side, main = torch.cuda.Stream(), torch.cuda.current_stream()
    side.wait_stream(main)
    for start in range(0, len(images), size):
        piece = slice(start, start + size)
        pinned = images[piece].pin_memory(), labels[piece].pin_memory()
        with torch.cuda.stream(side):
            for target, source in zip((x, y), pinned, strict=True):
                target[piece].copy_(source, non_blocking=True)
            main.wait_event(side.record_event())
        yield x[piece], y[piece]
    for _ in range(epochs - 1):
        for rows in torch.randperm(len(images)).to("cuda").split(size):
            yield x.index_select(0, rows), y.index_select(0, rows)


# Wrong


def blocking(images, labels, size, epochs):
    for _ in range(epochs):
        for rows in torch.randperm(len(images)).split(size):
            yield (images[rows].float() / 255).to("cuda"), labels[rows].to("cuda")


def floats_prefetched(images, labels, size, epochs):
    """The third rung of the lesson: the copy is hidden, and the loop waits for data."""
    return bytes_prefetched(images.float() / 255, labels, size, epochs)


def one_stream(images, labels, size, epochs):
    loader = workers_of(images, labels, size)
    for _ in range(epochs):
        yield from PinnedLoader(loader)


def forgotten_wait(images, labels, size, epochs):
    side, loader = torch.cuda.Stream(), workers_of(images, labels, size)
    for _ in range(epochs):
        for x, y in loader:
            with torch.cuda.stream(side):
                batch = x.to("cuda", non_blocking=True), y.to("cuda", non_blocking=True)
            yield batch


def one_epoch_again_and_again(images, labels, size, epochs):
    kept = list(order_made_on_the_gpu(images, labels, size, 1))
    return kept * epochs


def half_of_the_data(images, labels, size, epochs):
    return order_made_on_the_gpu(images[: len(images) // 2], labels[: len(labels) // 2], size, 2 * epochs)


def one_batch(images, labels, size, epochs):
    """Nearly nothing travels."""
    x, y = images[:size].to("cuda"), labels[:size].to("cuda")
    for _ in range(epochs * len(images) // size):
        yield x, y


def constants(images, labels, size, epochs):
    for _ in range(epochs * len(images) // size):
        yield torch.zeros(size, 28, 28, device="cuda"), torch.zeros(size, dtype=torch.int64, device="cuda")


def not_scaled(images, labels, size, epochs):
    return ((x.float(), y) for x, y in on_gpu_loader(images, labels, size, epochs))


def labels_plus_one(images, labels, size, epochs):
    return ((x, y + 1) for x, y in on_gpu_loader(images, labels, size, epochs))


def too_few(images, labels, size, epochs):
    return on_gpu_loader(images, labels, size, epochs - 1)


RIGHT = {"8.1": [on_gpu_loader, permuted, float_on_the_gpu, bytes_prefetched, moved_in_pieces]}
WRONG = {
    "8.1": [
        (blocking, r"idle for \d+ % of the time.*Against the limit .*x its time"),
        (floats_prefetched, r"largest part of that: .*waiting for data .*slowest stage.*baseline .* as fast"),
        (one_stream, r"No kernel runs from .*|idle for \d+ %"),
        (forgotten_wait, r"Batch 0 was read before its copy was complete.*R15"),
        (shuffle_slices, r"same samples as one of the epoch before"),
        (one_epoch_again_and_again, r"same samples as one of the epoch before"),
        (with_replacement, r"some samples come twice"),
        (half_of_the_data, r"some samples come twice"),
        (one_batch, r"some samples come twice"),
        (labels_out_of_step, r"has images or labels that are wrong"),
        (constants, r"has images or labels that are wrong"),
        (not_scaled, r"has images or labels that are wrong"),
        (labels_plus_one, r"Batch 0 has labels that are no digits"),
        (too_few, r"36 batches were handed out, but 48 were wanted"),
    ],
}
