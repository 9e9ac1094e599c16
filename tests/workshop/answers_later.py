"""What learners hand in, lessons 5 to 8; see `answers`."""

import inspect
import itertools
from functools import partial

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    get_worker_info,
)

import loaderviz as lv
from loaderviz import intervals
from loaderviz.experiment import Images, as_it_is
from loaderviz.loaders import PrefetchLoader
from loaderviz.timeline import Kind
from loaderviz.workshop import suspects
from loaderviz.workshop.lessons.lesson11 import SIZE, Augmented, augment

from .answers import (
    STEP,
    all_at_once,
    changed,
    forgotten_wait,
    kept_until_used,
    labels_out_of_step,
    loader_consumer,
    loader_record_stream,
    loader_ring,
    on_gpu_loader,
    shuffle_slices,
    transformed,
    waits_for_the_next_one,
)

# Lesson 5

F = "from loaderviz.workshop.lessons.lesson03 import claim\n\n\n" + inspect.getsource(suspects.loader_f)
NEEDED = "arrived.synchronize()  # the host needs the number now"
RECORD = "            arrived = side.record_event()\n"
ASKED = '            brightest = images.amax().to("cpu", non_blocking=True)\n'

synchronize_before = changed("synchronize_before", (STEP, "        torch.cuda.synchronize()\n" + STEP))


def keeping(count):
    keep = f"ready = [copies]\n        kept = [*kept, copies][-{count}:]"
    return changed(f"keep_{count}", ("ready = [claim(copies, main)]", keep), (", []\n", ", []\n    kept = []\n"))


claim_for_the_wrong_stream = changed("claim_for_the_wrong_stream", ("claim(copies, main)", "claim(copies, side)"))
event_after_the_number = changed("event_after_the_number", (RECORD + ASKED, ASKED + RECORD), code=F)
number_in_the_side_stream = changed(
    "number_in_the_side_stream",  # `.item()` waits for the stream that it is called in, and that has only the copies
    (ASKED, "            brightest = images.amax().item()\n"),
    (NEEDED, "pass"),
    ("brightest.item()", "brightest"),
    code=F,
)
by_numpy = changed("by_numpy", (NEEDED, "pass"), ("brightest.item()", "float(brightest.numpy())"), code=F)
after_a_sleep = changed("after_a_sleep", (NEEDED, "__import__('time').sleep(0.01)"), code=F)
number_in_the_main_stream = changed(
    "number_in_the_main_stream",
    (
        "ready = [claim(copies, main)]",
        "images, labels = claim(copies, main)\n        ready = [(images / images.amax().item(), labels)]",
    ),
)


def memory_of_the_main_stream(batches):
    side, main, ready = torch.cuda.Stream(), torch.cuda.current_stream(), []
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


# Lesson 6


def expression(arguments):
    """Return what makes the answer that is an expression of these arguments."""
    return lambda text: eval(f"lambda {arguments}: {text}", {"np": np, "itertools": itertools})


formula = expression("fetch, pin, copy, compute")
step_formula = expression("fetch, workers, pin, copy, compute")
locked_formula = expression("fetch, held, threads, host, compute")


def refused(made, answers):
    """Pair the answer of each text with what is said of it."""
    return [(made(text), said) for text, said in answers.items()]


def rows_of(data, size):
    return BatchSampler(SequentialSampler(data), size, drop_last=False)


def whole(batch):
    return batch


class OneRead(Dataset):
    """Answers DataLoader's question for many samples."""

    def __init__(self, data):
        self.data = data

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return self.data[index]

    def __getitems__(self, indices):
        return self.data[indices]


class OfBatches(Dataset):
    """Has whole batches as its items."""

    def __init__(self, data, size):
        self.data, self.size = data, size

    def __len__(self):
        return -(-len(self.data) // self.size)

    def __getitem__(self, batch):
        return self.data[range(batch * self.size, min((batch + 1) * self.size, len(self.data)))]


class Stream(IterableDataset):
    """Each worker reads every n-th batch."""

    def __init__(self, data, size):
        self.batches = OfBatches(data, size)

    def __iter__(self):
        worker = get_worker_info()
        return (self.batches[number] for number in range(worker.id, len(self.batches), worker.num_workers))


def plain(**options):
    return lambda data, size: DataLoader(data, size, pin_memory=True, **options)


def in_batches(**options):
    more = {"pin_memory": True} | options
    return lambda data, size: DataLoader(data, batch_size=None, sampler=rows_of(data, size), **more)


def shuffled(data, size):
    rows = BatchSampler(RandomSampler(data), size, drop_last=False)
    return DataLoader(data, batch_size=None, sampler=rows, num_workers=2, pin_memory=True)


class Zeros(OneRead):
    def __getitems__(self, indices):
        return torch.zeros(len(indices), 784, dtype=torch.uint8), torch.zeros(len(indices), dtype=torch.int64)


class NotRead(OneRead):
    """Takes the values from behind the data set's back."""

    def __getitems__(self, indices):
        return tuple(part[indices] for part in self.data._disk)


def read_by(kind):
    return lambda data, size: DataLoader(kind(data), size, num_workers=2, collate_fn=whole, pin_memory=True)


# Lesson 7


def union(pairs):
    merged = []
    for start, end in sorted(pairs):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(end, merged[-1][1])
        else:
            merged.append([start, end])
    return merged


def overlap(one, other):
    return sum(max(0, min(a[1], b[1]) - max(a[0], b[0])) for a in one for b in other)


def length(pairs):
    return sum(end - start for start, end in pairs)


def merge_and_intersect(copies, kernels):
    copies, kernels = union(copies), union(kernels)
    return length(copies) - overlap(copies, kernels)


def with_numpy(copies, kernels):
    copies, kernels = (intervals.union(*np.array(some).T) for some in (copies, kernels))
    return np.int64(intervals.length(intervals.subtract(copies, kernels)))


def brute_force(copies, kernels):
    """Ask for each piece between two neighbouring edges what runs in it."""

    def runs(some, time):
        return any(start <= time < end for start, end in some)

    edges = sorted({edge for pair in copies + kernels for edge in pair})
    pieces = itertools.pairwise(edges)
    return sum(right - left for left, right in pieces if runs(copies, left) and not runs(kernels, left))


MISTAKES = {
    "everything": lambda copies, kernels: length(copies),
    "all copy time": lambda copies, kernels: length(union(copies)),
    "each copy alone": lambda copies, kernels: sum(merge_and_intersect([copy], kernels) for copy in copies),
    "each kernel alone": lambda copies, kernels: length(union(copies)) - overlap(union(copies), kernels),
    "hidden": lambda copies, kernels: overlap(union(copies), union(kernels)),
    "only in order": lambda copies, kernels: (  # compares the n-th copy with the n-th kernel
        length(copies) - sum(overlap([one], [other]) for one, other in zip(copies, kernels, strict=False))
    ),
}


def by_advice(timeline):
    names = {
        "waiting-for-data": "data",
        "pageable-copy": "pageable copy",
        "hidden-sync": "pageable copy",
        "copy-not-hidden": "one stream",
    }
    return names.get(lv.advise(timeline)[0].kind, "nothing")


def by_columns(timeline):
    copies = list(timeline.rows(Kind.COPY_H2D))
    kernels = {span.lane for span in timeline.rows(Kind.COMPUTE)}
    if any(span.pinned is False for span in copies):
        return "pageable copy"
    if any(span.lane in kernels for span in copies):
        return "one stream"
    busy = sum(span.end - span.start for span in timeline.rows(Kind.COMPUTE))
    return "nothing" if busy > 0.9 * timeline.duration else "data"


def by_largest_loss(timeline):
    summary = lv.summarize(timeline)
    lost = {part: time for part, time in summary.breakdown.items() if part != "compute"}
    largest = max(lost, key=lost.get)
    if lost[largest] < 0.05 * summary.window:
        return "nothing"
    staged = "staging" in summary.host_blocked
    return "data" if "data" in largest else "pageable copy" if staged else "one stream"


def any_wait_is_bad(timeline):
    summary = lv.summarize(timeline)
    if summary.host_blocked.get("waiting for data", 0) > summary.window / 4:
        return "data"
    return "pageable copy" if summary.host_blocked.get("staging") else "nothing"


# Lesson 8


def float_on_the_gpu(images, labels, size, epochs):
    images, labels = images.to("cuda").float() / 255, labels.to("cuda")
    for _ in range(epochs):
        for rows in torch.randperm(len(images)).to("cuda").split(size):
            yield images.index_select(0, rows), labels.index_select(0, rows)


def workers_of(images, labels, size, workers=2):
    data, more = TensorDataset(images, labels), {"pin_memory": True, "persistent_workers": True}
    return DataLoader(data, size, shuffle=True, num_workers=workers, **more)


def bytes_prefetched(images, labels, size, epochs, workers=2):
    """Nothing stays on the GPU: workers, a pin thread, a side stream, and a quarter of the bytes."""
    loader = workers_of(images, labels, size, workers)
    for _ in range(epochs):
        yield from PrefetchLoader(loader)


def whole_batches(workers):
    def load(images, labels, size, epochs):
        more = {"pin_memory": True, "persistent_workers": True, "collate_fn": as_it_is, "num_workers": workers}
        loader = DataLoader(Images(images, labels), size, shuffle=True, **more)
        for _ in range(epochs):
            yield from PrefetchLoader(loader)

    return load


def flip_some(batch, chance=0.5):
    images, labels = batch
    return torch.where(torch.rand(len(images), 1, 1, device=images.device) < chance, images.flip(2), images), labels


def flip_by_mask(batch):
    images, labels = batch
    turned = torch.randint(2, (len(images), 1, 1), device="cuda", dtype=torch.uint8)
    return images * (1 - turned) + images.flip(2) * turned, labels


def flip_the_same(batch):
    """The pattern is that of the labels, which are the same in each epoch."""
    images, labels = batch
    return torch.where((labels % 2 == 0)[:, None, None], images.flip(2), images), labels


def from_files(flip, workers=4, on_host=False):
    def load(data, size, epochs):
        data, more = (Flipping(data) if on_host else data), {"pin_memory": True, "persistent_workers": workers > 0}
        rows = BatchSampler(RandomSampler(data), size, drop_last=False)
        loader = DataLoader(data, batch_size=None, sampler=rows, num_workers=workers, **more)
        for _ in range(epochs):
            yield from PrefetchLoader(loader, transform=flip)

    load.__name__ = f"files_{getattr(flip, '__name__', 'on_host')}_{workers}"
    return load


class Flipping(OneRead):
    """Flips each picture of a batch where it is read."""

    def __getitem__(self, rows):
        return flip_some(self.data[rows])


def files_by_getitems(data, size, epochs):
    more = {"collate_fn": whole, "pin_memory": True, "persistent_workers": True}
    loader = DataLoader(OneRead(data), size, shuffle=True, num_workers=4, **more)
    for _ in range(epochs):
        yield from PrefetchLoader(loader, transform=flip_some)


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


def blocking_floats(images, labels, size, epochs):
    for _ in range(epochs):
        for rows in torch.randperm(len(images)).split(size):
            yield (images[rows].float() / 255).to("cuda"), labels[rows].to("cuda")


def floats_prefetched(images, labels, size, epochs):
    """The third rung of the lesson: the copy is hidden, and the loop waits for data."""
    return bytes_prefetched(images.float() / 255, labels, size, epochs)


def digits_without_wait(images, labels, size, epochs):
    loader = workers_of(images, labels, size)
    return itertools.chain.from_iterable(forgotten_wait(loader) for _ in range(epochs))


def constant_digits(images, labels, size, epochs):
    for _ in range(epochs * len(images) // size):
        yield torch.zeros(size, 28, 28, device="cuda"), torch.zeros(size, dtype=torch.int64, device="cuda")


def one_batch(images, labels, size, epochs):
    """Nearly nothing travels."""
    x, y = images[:size].to("cuda"), labels[:size].to("cuda")
    for _ in range(epochs * len(images) // size):
        yield x, y


# Lesson 9


def saved_by_pinning(machine, data, size, workers):
    loaders = {pin: DataLoader(data, size, num_workers=workers, pin_memory=pin) for pin in (False, True)}
    step = {pin: machine.train(loader).step for pin, loader in loaders.items()}
    return 1 - step[True] / step[False]


def step_by_step(machine, data, size, workers):
    return saved_by_pinning(machine, data, size, workers) >= 0.1


def sent(images, labels, size, epochs, change, drop=0):
    """The first loader, which sends images as `change` makes them."""
    count = len(labels) - drop
    for _ in range(epochs):
        for x, y in DataLoader(TensorDataset(change(images[:count]), labels[:count]), size, shuffle=True):
            x = x.to("cuda")
            yield x if x.dtype == torch.uint8 else x.float(), y.to("cuda")


# Lesson 11


def batches_of(data, epochs, change=lambda images: images, **options):
    """Yield shuffled batches of a data set, as the article does; `change` is made on the GPU."""
    loader = DataLoader(data, SIZE, shuffle=True, num_workers=4, pin_memory=True, **options)
    for _ in range(epochs):
        for images, labels in loader:
            yield change(images.cuda()), labels.cuda()


def without_a_repair(photos, epochs):
    return batches_of(Augmented(photos), epochs, persistent_workers=True)


def only_augmented_elsewhere(photos, epochs):
    return batches_of(photos, epochs, augment)


def decoded_once(photos, epochs):
    decoded = map(torch.cat, zip(*DataLoader(photos, SIZE, num_workers=4), strict=True))
    return batches_of(TensorDataset(*decoded), epochs, augment, prefetch_factor=8)


def kept_on_the_gpu(photos, epochs):
    images, labels = (torch.cat(part).cuda() for part in zip(*DataLoader(photos, SIZE, num_workers=4), strict=True))
    for _ in range(epochs):
        for rows in torch.randperm(len(labels), device="cuda").split(SIZE):
            yield augment(images[rows]), labels[rows]


RIGHT = {
    "11.0": [lambda: "fetch"],
    "11.1": [only_augmented_elsewhere],
    "11.2": [decoded_once],
    "11.3": [kept_on_the_gpu],
    "9.1": [step_by_step],
    "5.1": [loader_consumer, loader_ring],
    "5.2": [loader_record_stream, kept_until_used, memory_of_the_main_stream, loader_ring],
    "5.3": [
        event_after_the_number,
        transformed(lambda x: x / x.amax()),
        transformed(lambda x: x.div(x.flatten().max())),
    ],
    "6.0": [
        step_formula("max(fetch / workers, pin, copy, compute)"),
        step_formula("max(-(-fetch // workers), max(pin, copy, compute))"),
        step_formula("np.max([fetch / workers, pin, copy, compute])"),
        step_formula("sorted((pin, copy, compute, fetch / workers))[-1]"),
    ],
    "6.1": [
        formula("next(n for n in itertools.count(1) if fetch / n <= max(pin, copy, compute))"),
        formula("-(-fetch // max(pin, copy, compute))"),
        formula("float(-(-fetch // max(pin, copy, compute)))"),
    ],
    "6.2": [
        read_by(OneRead),
        lambda data, size: DataLoader(OfBatches(data, size), batch_size=None, num_workers=3, pin_memory=True),
        lambda data, size: DataLoader(Stream(data, size), batch_size=None, num_workers=2, pin_memory=True),
        in_batches(num_workers=4, prefetch_factor=1, pin_memory=False),
    ],
    "6.3": [
        locked_formula("max(fetch / threads, held + host, compute)"),
        locked_formula("max(-(-fetch // threads), host + held, compute)"),
        locked_formula("float(np.max([compute, np.sum([held, host]), fetch / threads]))"),
        locked_formula("max((fetch - held) / threads + held / threads, held + host, compute)"),
    ],
    "7.1": [merge_and_intersect, brute_force, with_numpy],
    "7.2": [by_advice, by_columns, by_largest_loss],
    "8.0": [on_gpu_loader, float_on_the_gpu, whole_batches(2), partial(sent, change=lambda x: x)],
    "8.1": [on_gpu_loader, float_on_the_gpu, moved_in_pieces, whole_batches(2), partial(bytes_prefetched, workers=4)],
    "8.2": [whole_batches(2), whole_batches(3), partial(bytes_prefetched, workers=4)],
    "8.3": [from_files(flip_some), from_files(flip_by_mask), from_files(None, on_host=True), files_by_getitems],
}
WRONG = {
    "9.1": [
        (lambda machine, data, size, workers: True, r"4 of 7 verdicts are wrong. You said True each time. One of them"),
        (
            lambda machine, data, size, workers: step_by_step(machine, data, size, 2),
            r"verdicts? (is|are) wrong.*0 workers, [\d.]+ GB/s from ordinary memory and [\d.]+ from pinned",
        ),
        (lambda machine, data, size, workers: None, r"returned None. A verdict is wanted: True or False"),
        (saved_by_pinning, r"returned -?0\.\d+. A verdict is wanted"),
    ],
    "5.1": [
        (
            waits_for_the_next_one,
            r"With the loss read in each step: The copy of batch 0 .* waited for the copy of batch 1 as well",
        ),
        (
            synchronize_before,
            r"times the host waited until the GPU had nothing left to compute; one of these waits runs from .* line",
        ),
        (suspects.loader_a, r"Batch 0 was read before its copy was complete: its copy runs from .*R15"),
        (suspects.loader_e, r"copy of batch 1 runs from .* exposed.*its stream waited until .*wait_stream"),
    ],
    "5.2": [
        (keeping(2), r"copy of batch \d+ runs from .* writes into the memory of batch \d+, but kernels.*R35"),
        (keeping(8), r"writes into the memory of batch \d+|is written again"),
        (keeping(32), r"Memory for 3[12]\.\d batches was held at the same time; 6 are allowed.*R35"),
        (all_at_once, r"Memory for 32\.\d batches was held"),
        (claim_for_the_wrong_stream, r"writes into the memory of batch \d+"),
        (suspects.loader_e, r"exposed.*its stream waited until"),
    ],
    "5.3": [
        (by_numpy, r"Batch 0 is not a number.*numpy\?.*R32"),
        (after_a_sleep, r"early-host-read at .*: the host reads a float32 scalar before.*R32"),
        (number_in_the_main_stream, r"exposed|host waits for the GPU.*R25|nothing to do from"),
        (transformed(lambda x: x / 255), r"not hold the values.*each value / the brightest pixel of its own"),
        (lambda batches: PrefetchLoader(batches), r"Batch 0 does not hold the values"),
        (suspects.loader_f, r"early-host-read at suspects.py.*R32"),
        (number_in_the_side_stream, r"With the loss read in each step"),
    ],
    "6.0": refused(
        step_formula,
        {
            "fetch / workers + pin + copy + compute": r"With 1 worker a step takes .* You added the stations",
            "max(fetch, pin, copy, compute)": r"With \d workers a step takes .* That is the time of one worker",
            "max(fetch, pin, copy, compute) / workers": r"That is fetch / workers. Another station takes longer",
            "max(fetch / workers, copy, compute)": r"That is fetch / workers. Another station takes longer",
            "max(fetch / workers, compute)": r"With \d workers a step takes .*as fast as its slowest station",
            "min(fetch / workers, pin, copy, compute)": r"With 1 worker a step takes .* You said [\d,]+ ns",
            "max(fetch / workers, pin, copy, compute) / 1000": r"a step takes .* You said [\d,]+ ns",
            "float('nan')": r"You said nan ns",
            "float('inf')": r"You said inf ns",
            "-fetch": r"You said -[\d,]+ ns",
            "'fetch'": r"returned 'fetch'. The time of a step is wanted, a number of ns",
            "(fetch, pin)": r"returned \(.*The time of a step is wanted",
        },
    ),
    "6.1": refused(
        formula,
        {
            "-(-fetch // compute)": r"fetch .*, pin .*, copy .*, compute .* You said \d+ workers.* With \d+ it",
            "-(-fetch // max(copy, compute))": r"With \d+ it takes the same.*as fast as its slowest station",
            "-(-fetch // max(pin, compute))": r"With \d+ it takes the same.*as fast as its slowest station",
            "max(1, round(fetch / max(pin, copy, compute)))": r"a step takes [\d.]+ .s, with more of them "
            r"[\d.]+ .s. The loop waits for batch \d+ from [\d,]+ µs",
            "-(-fetch // (pin + copy + compute))": r"with more of them [\d.]+ .s",
            "4": r"You said 4 workers",
            "64": r"You said 64 workers.* With 63 it takes the same.*takes memory and a core",
            "0": r"You said 0 workers; give a number from 1 to 64",
            "fetch / max(pin, copy, compute)": r"Your function returned \d\.\d+. A whole number",
        },
    ),
    "6.2": [
        (
            plain(num_workers=4),
            r"fetch a batch takes 3\.\d+ ms, and 4 workers do it.*one is ready every 8\d\d.* µs.*and waits",
        ),
        (plain(num_workers=8), r"8 workers, but the machine of this task has 4 cores"),
        (plain(num_workers=2, prefetch_factor=16), r"2 workers do it.*as fast as its slowest station"),
        (in_batches(), r"takes 5\d\d.* µs, and the main thread does it itself"),
        (in_batches(num_workers=1), r"takes 5\d\d.* µs, and 1 worker does it"),
        (lambda data, size: [data[rows] for rows in rows_of(data, size)], r"The GPU has nothing to do from 0 µs to"),
        (shuffled, r"Batch 0 does not hold|As number 0 you handed out|holds values of batch"),
        (read_by(Zeros), r"Batch 0 does not hold the values"),
        (read_by(NotRead), r"were fetched in [\d.]+ ms; to read all files takes [\d.]+ ms"),
        (lambda data, size: None, r"returned nothing \(None\). Return a DataLoader"),
        (lambda data, size: size, r"returned a int. Return a DataLoader"),
    ],
    "6.3": refused(
        locked_formula,
        {
            "max(fetch / threads, compute)": r"held .* You left the lock out",
            "max(fetch / threads, host, compute)": r"With \d threads a step takes .* You left the lock out",
            "max(fetch / threads, held, compute)": r"The loop runs Python, too",
            "max(fetch / threads, held / threads + host, compute)": r"there is one lock, however many threads",
            "fetch / threads + held + host + compute": r"You added the stations",
            "max(fetch, held + host, compute)": r"With \d threads a step takes .*the lock is a station of all threads",
            "max((fetch - held) / threads, held + host, compute)": r"With \d threads a step takes .* You said",
            "max(fetch / threads, held * threads + host, compute)": r"You said [\d,]+ ns",
            "held + host": r"You said [\d,]+ ns.*R53",
            "None": r"returned None. The time of a step is wanted",
            "float('nan')": r"You said nan ns",
            "threads": r"You said \d ns",
        },
    ),
    "7.1": [
        (
            MISTAKES["everything"],
            r"Yours is (the sum of all copies|all .* a copy runs), the hidden part as well",
        ),
        (
            MISTAKES["all copy time"],
            r"hidden part as well. The longest exposed stretch is from [\d,]+ µs to [\d,]+",
        ),
        (
            MISTAKES["hidden"],
            r"You returned 0 ns; [\d,]+ ns are exposed. (Yours is the hidden part|The longest exposed)",
        ),
        (MISTAKES["each copy alone"], r"right for each copy alone, but where two copies run at once it counts twice"),
        (MISTAKES["each kernel alone"], r"right for each kernel alone, but where two kernels run at once"),
        (MISTAKES["only in order"], r"You returned [\d,]+ ns; [\d,]+ ns are exposed"),
        (lambda *both: merge_and_intersect(*both) / 1000, r"ns are exposed. The longest exposed stretch"),
        (lambda *both: str(merge_and_intersect(*both)), r"Your function returned '\d+'. A number of ns is wanted"),
        (lambda copies, kernels: 0, r"You returned 0 ns"),
    ],
    "7.2": [
        (any_wait_is_bad, r"It is '.*but the GPU is (idle for [\d.]+ .s of it only|never idle)|It is 'one stream'"),
        (
            lambda timeline: by_largest_loss(timeline).replace("nothing", "one stream"),
            r"It is 'nothing'. The GPU computes .* of the time",
        ),
        (
            lambda timeline: by_largest_loss(timeline).replace("one stream", "pageable copy"),
            r"It is 'one stream'. The copy of batch \d+ runs .* and so are the kernels.*R16",
        ),
        (lambda timeline: "data", r"you said 'data'. It is '(pageable copy|one stream|nothing)'"),
        (lambda timeline: 1, r"returned 1; wanted is one of 'data', 'pageable copy'"),
        (lambda timeline: "slow loader", r"returned 'slow loader'; wanted is one of"),
    ],
    "8.2": [
        (on_gpu_loader, r"Memory for 1\d\.\d batches was held at the same time; 10 are allowed"),
        (bytes_prefetched, r"idle for \d+ % .*waiting for data.*slowest station"),
        (whole_batches(8), r"You have 8 workers, but the machine has 4 cores"),
        (one_batch, r"some samples come twice"),
        (labels_out_of_step, r"has labels that do not belong to its images"),
        (constant_digits, r"has labels that do not belong|has images that are not those"),
    ],
    "8.3": [
        (from_files(None), r"In epoch 0 0 % of the pictures are flipped"),
        (from_files(lambda batch: (batch[0].flip(2), batch[1])), r"In epoch 0 100 % of the pictures are flipped"),
        (
            from_files(lambda batch: flip_some(batch, 0.1)),
            r"In epoch 0 1\d % of the pictures are flipped|In epoch 0 9 %",
        ),
        (from_files(flip_the_same), r"In epoch 1 0 % of the pictures are flipped unlike the epoch before"),
        (from_files(flip_some, workers=2), r"idle for \d+ % .*waiting for data.*slowest station"),
        (from_files(flip_some, workers=8), r"You have 8 workers, but the machine has 4 cores"),
        (from_files(lambda batch: (batch[0], batch[1].flip(0))), r"has labels that do not belong to its images"),
    ],
    "8.0": [
        (partial(sent, change=lambda x: x.float() / 255), r"sent 38\.\d+ MB to the GPU.*digits have 9\.\d+ MB.*R22"),
        (partial(sent, change=lambda x: x.half() / 255), r"sent 19\.\d+ MB|wrong"),
        (partial(sent, change=lambda x: x, drop=256), r"44 batches were handed out, but 48 were wanted"),
        (partial(sent, change=lambda x: x.flip(2)), r"Batch 0 has images that are not those of the data set"),
        (partial(sent, change=lambda x: x[:, ::2, ::2]), r"\(256, 14, 14\)"),
    ],
    "8.1": [
        (blocking_floats, r"idle for \d+ % of the time.*Against the limit .*x its time"),
        (bytes_prefetched, r"idle for \d+ % of the time"),  # near: 1.5x the limit
        (floats_prefetched, r"largest part of that: .*waiting for data .*slowest station.*baseline .* as fast"),
        (digits_without_wait, r"Batch 0 was read before its copy was complete.*R15"),
        (shuffle_slices, r"has 256 of the samples of batch"),
        (lambda *data: ((x, y + 1) for x, y in on_gpu_loader(*data)), r"Batch 0 has labels that are no digits"),
    ],
    "11.0": [(lambda: "pin", "The station 'pin' takes"), (lambda: 3.5, "You returned 3.5. The name of a station")],
    "11.1": [(without_a_repair, "augments, picture by picture")],
    "11.2": [(only_augmented_elsewhere, "pictures that were decoded in the epoch before")],
    "11.3": [(decoded_once, "exposed|idle|waits")],
}
