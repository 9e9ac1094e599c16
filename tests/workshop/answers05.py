"""What learners hand in for lesson 5; see `answers`."""

from __future__ import annotations

import time
from collections import deque

import torch

from loaderviz.loaders import PrefetchLoader
from loaderviz.workshop import suspects
from loaderviz.workshop.lesson03 import claim, copy_ahead

from . import answers


def streams():
    return torch.cuda.Stream(), torch.cuda.current_stream()


# 5.1


def wait_named(batches):
    """The line stays where it is, and says who waits."""
    (side, main), ready = streams(), []
    for batch in batches:
        with torch.cuda.stream(side):
            copies = answers.copied(batch)
            side.record_event().wait(main)
        yield from ready
        ready = [claim(copies, main)]
    yield from ready


def host_waits_for_the_copy(batches):
    """The host waits for each copy, under the work on the batch before."""
    (side, main), ready = streams(), []
    for batch in batches:
        copies, arrived = copy_ahead(batch, side)
        yield from ready
        arrived.synchronize()
        ready = [claim(copies, main)]
    yield from ready


def synchronize_each_step(batches):
    (side, main), ready = streams(), []
    for batch in batches:
        copies, _ = copy_ahead(batch, side)
        torch.cuda.synchronize()
        yield from ready
        ready = [claim(copies, main)]
        torch.cuda.synchronize()
    yield from ready


def copies_in_the_main_stream(batches):
    main, ready = torch.cuda.current_stream(), []
    for batch in batches:
        copies, arrived = copy_ahead(batch, main)
        yield from ready
        main.wait_event(arrived)
        ready = [copies]
    yield from ready


def event_of_the_batch_before(batches):
    (side, main), ready, before = streams(), [], torch.cuda.Event()
    for batch in batches:
        copies, arrived = copy_ahead(batch, side)
        yield from ready
        main.wait_event(before)
        ready, before = [claim(copies, main)], arrived
    yield from ready


def no_claim(batches):
    (side, main), ready = streams(), []
    for batch in batches:
        copies, arrived = copy_ahead(batch, side)
        yield from ready
        main.wait_event(arrived)
        ready = [copies]
    yield from ready


def not_handed_out_last(batches):
    (side, main), ready = streams(), []
    for batch in batches:
        copies, arrived = copy_ahead(batch, side)
        yield from ready
        main.wait_event(arrived)
        ready = [claim(copies, main)]


# 5.2


def claimed(batches):
    return answers.loader_record_stream(batches)


def kept_until_done(batches):
    """References, each with the event that says when it may go."""
    (side, main), ready, kept = streams(), [], deque()
    for batch in batches:
        if len(kept) > 2:
            kept.popleft()[1].synchronize()
        copies, arrived = copy_ahead(batch, side)
        yield from ready
        if ready:
            kept.append((ready, main.record_event()))
        main.wait_event(arrived)
        ready = [copies]
    yield from ready


def memory_of_the_main_stream(batches):
    (side, main), ready = streams(), []
    for batch in batches:
        copies = [torch.empty_like(part, device="cuda") for part in batch]
        side.wait_stream(main)
        with torch.cuda.stream(side):
            for copy, part in zip(copies, batch, strict=True):
                copy.copy_(part, non_blocking=True)
            arrived = side.record_event()
        yield from ready
        main.wait_event(arrived)
        ready = [copies]
    yield from ready


def keeping(count):
    def keep(batches):
        (side, main), ready, kept = streams(), [], deque(maxlen=count)
        for batch in batches:
            copies, arrived = copy_ahead(batch, side)
            kept.append(copies)
            yield from ready
            main.wait_event(arrived)
            ready = [copies]
        yield from ready

    keep.__name__ = f"keep_{count}"
    return keep


def claim_for_the_wrong_stream(batches):
    """`record_stream` of the stream that owns the memory says nothing."""
    (side, main), ready = streams(), []
    for batch in batches:
        with torch.cuda.stream(side):
            copies = claim(answers.copied(batch), torch.cuda.current_stream())
            arrived = side.record_event()
        yield from ready
        main.wait_event(arrived)
        ready = [copies]
    yield from ready


# 5.3


def event_after_the_number(batches):
    (side, main), ready = streams(), []
    for batch in batches:
        with torch.cuda.stream(side):
            images, labels = answers.copied(batch)
            brightest = images.amax().to("cpu", non_blocking=True)
            arrived = side.record_event()
        claim((images, labels), main)
        yield from ready
        main.wait_event(arrived)
        arrived.synchronize()
        ready = [(images / brightest.item(), labels)]
    yield from ready


def number_in_the_side_stream(batches):
    """`.item()` waits for the stream that it is called in, and that has only the copies."""
    (side, main), ready = streams(), []
    for batch in batches:
        with torch.cuda.stream(side):
            images, labels = answers.copied(batch)
            arrived, brightest = side.record_event(), images.amax().item()
        claim((images, labels), main)
        yield from ready
        main.wait_event(arrived)
        ready = [(images / brightest, labels)]
    yield from ready


def scaled_on_the_way(batches):
    return PrefetchLoader(batches, transform=lambda batch: (batch[0] / batch[0].amax(), batch[1]))


def number_of_the_host(batches):
    (side, main), ready = streams(), []
    for batch in batches:
        copies, arrived = copy_ahead(batch, side)
        brightest = batch[0].amax().item()
        yield from ready
        main.wait_event(arrived)
        images, labels = claim(copies, main)
        ready = [(images / brightest, labels)]
    yield from ready


def by_numpy(batches):
    """The detector does not see what numpy reads."""
    (side, main), ready = streams(), []
    for batch in batches:
        with torch.cuda.stream(side):
            images, labels = answers.copied(batch)
            arrived = side.record_event()
            brightest = images.amax().to("cpu", non_blocking=True)
        claim((images, labels), main)
        yield from ready
        main.wait_event(arrived)
        ready = [(images / float(brightest.numpy()), labels)]
    yield from ready


def after_a_sleep(batches):
    (side, main), ready = streams(), []
    for batch in batches:
        with torch.cuda.stream(side):
            images, labels = answers.copied(batch)
            arrived = side.record_event()
            brightest = images.amax().to("cpu", non_blocking=True)
        claim((images, labels), main)
        yield from ready
        main.wait_event(arrived)
        time.sleep(0.01)
        ready = [(images / brightest.item(), labels)]
    yield from ready


def number_in_the_main_stream(batches):
    (side, main), ready = streams(), []
    for batch in batches:
        copies, arrived = copy_ahead(batch, side)
        yield from ready
        main.wait_event(arrived)
        images, labels = claim(copies, main)
        ready = [(images / images.amax().item(), labels)]
    yield from ready


def by_255(batches):
    return PrefetchLoader(batches, transform=lambda batch: (batch[0] / 255, batch[1]))


def not_divided(batches):
    return PrefetchLoader(batches)


RIGHT = {
    "5.1": [wait_named, host_waits_for_the_copy, answers.loader_consumer, answers.loader_ring, answers.Preloader],
    "5.2": [claimed, kept_until_done, memory_of_the_main_stream, answers.loader_ring, answers.Preloader],
    "5.3": [event_after_the_number, number_in_the_side_stream, scaled_on_the_way, number_of_the_host],
}
WRONG = {
    "5.1": [
        (synchronize_each_step, r"copy of batch \d+ runs from .* exposed.*R(16|25|30)"),
        (copies_in_the_main_stream, r"It is in stream 7 \(default\), and so are the kernels.*R16"),
        (event_of_the_batch_before, r"Batch \d was read before its copy was complete"),
        (no_claim, r"copy of batch \d+ runs from .* writes into the memory of batch \d+, but kernels.*R35"),
        (not_handed_out_last, r"31 batches were handed out, but 32"),
        (suspects.loader_a, r"Batch 0 was read before its copy was complete: its copy runs from .*R15"),
        (suspects.loader_e, r"copy of batch 1 runs from .* exposed.*its stream waited until .*wait_stream"),
        (answers.constants, r"Batch 0 does not hold the values"),
    ],
    "5.2": [
        (keeping(2), r"copy of batch \d+ runs from .* writes into the memory of batch \d+, but kernels.*R35"),
        (keeping(8), r"writes into the memory of batch \d+|early-reuse"),
        (keeping(32), r"Memory for 3[12]\.\d batches was held at the same time; 6 are allowed.*R35"),
        (answers.all_at_once, r"Memory for 32\.\d batches was held"),
        (claim_for_the_wrong_stream, r"writes into the memory of batch \d+"),
        (suspects.loader_e, r"exposed.*its stream waited until"),
        (answers.too_few, r"31 batches were handed out, but 32"),
    ],
    "5.3": [
        (by_numpy, r"Batch 0 is not a number.*numpy\?.*R32"),
        (after_a_sleep, r"early-host-read at answers05.py:\d+: the host reads a float32 scalar before.*R32"),
        (number_in_the_main_stream, r"exposed|host waits for the GPU.*R25|nothing to do from"),
        (by_255, r"Batch \d+ does not hold the values"),
        (not_divided, r"Batch 0 does not hold the values"),
        (suspects.loader_f, r"early-host-read at suspects.py.*R32"),
        (answers.in_host_memory, r"still in host memory"),
    ],
}
