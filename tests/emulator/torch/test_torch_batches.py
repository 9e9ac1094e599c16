"""Which batch each span is for, and the ranges that say at which batch the loop is."""

from itertools import islice, pairwise

import pytest
import torch
from prefetchers import PREFETCHERS
from programs import data, mlp, to_device
from torch.utils.data import DataLoader

import loaderviz as lv
from loaderviz.batches import LOADER_NEXT
from loaderviz.emulator.torch import handed_out, last_writers, now
from loaderviz.emulator.torch.session import NoRecordingError
from loaderviz.loaders import BlockingLoader, PinnedLoader, PrefetchLoader, ResidentLoader
from loaderviz.timeline import Kind

SIZE = 16  # six batches


def loader(**options):
    return DataLoader(data(), batch_size=SIZE, **options)


def ranges(timeline):
    return [span for span in timeline.rows(Kind.RANGE) if span.name.startswith("batch ")]


def step(model, images, labels):
    torch.nn.functional.cross_entropy(model(images), labels).backward()


def annotated(batches):
    """The loop says itself at which batch it is, as the lessons' do."""
    for number, batch in enumerate(batches):
        with torch.profiler.record_function(f"batch {number}: {SIZE} samples"):
            yield [each.to("cuda") for each in batch]


WAYS = {
    "to": lambda **options: to_device(loader(**options), "cuda"),
    "to non_blocking": lambda **options: to_device(loader(**options), "cuda", True),
    "annotated": lambda **options: annotated(loader(**options)),
    "blocking": lambda **options: BlockingLoader(loader(**options), "cuda"),
    "pinned": lambda **options: PinnedLoader(loader(**options), "cuda"),
    "prefetch": lambda **options: PrefetchLoader(loader(**options), "cuda", depth=2),
    "one ahead": lambda **options: PREFETCHERS["one ahead, record_stream"].make(loader(**options)),
    "event per batch": lambda **options: PREFETCHERS["event per batch, record_stream"].make(loader(**options)),
    "in place": lambda **options: PREFETCHERS["in place"].make(loader(**options)),
    "refilled buffers": lambda **options: PREFETCHERS["pinned slots, waits for copy"].make(loader(**options)),
}


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"pin_memory": True}], ids=["main", "workers", "pinned"])
@pytest.mark.parametrize("way", WAYS)
def test_spans_carry_the_batch_of_their_data(way, options):
    with lv.record(on="a100") as recording:
        model = mlp().cuda()
        for images, labels in WAYS[way](**({"pin_memory": True} if way == "pinned" else options)):
            step(model, images, labels)
    timeline = recording.timeline
    fetches = [span.batch for span in timeline.rows(Kind.FETCH)]
    assert sorted(fetches) == list(range(6))
    copies = [span.batch for span in timeline.rows(Kind.COPY_H2D) if span.nbytes == SIZE * 144 * 4]
    assert copies == list(range(6))
    forward = [span.batch for span in timeline.rows(Kind.COMPUTE) if span.name == "addmm"]
    assert forward == [batch for batch in range(6) for _ in range(2)]
    backward = [span.batch for span in timeline.rows(Kind.COMPUTE) if span.name == "threshold_backward"]
    assert backward == list(range(6))
    asked = [span.batch for span in timeline.rows(Kind.RANGE) if span.name.startswith(LOADER_NEXT)]
    assert asked[:6] == list(range(6))  # each is for the batch that it gives; the last finds that there is none
    assert timeline.context.samples == 96
    steps = ranges(timeline)
    assert [span.name for span in steps] == [f"batch {number}: 16 samples" for number in range(6)]
    assert all(first.end == second.start for first, second in pairwise(steps))
    assert steps[-1].end >= max(span.start for span in timeline.rows(Kind.API))


EPOCHS = {
    "to": lambda: to_device(loader(), "cuda"),
    "prefetch": lambda: PrefetchLoader(loader(pin_memory=True), "cuda"),
    "resident": lambda: ResidentLoader(tuple(data().tensors), SIZE, shuffle=None, device="cuda"),
}


@pytest.mark.parametrize("way", EPOCHS)
def test_batches_are_numbered_through_epochs_breaks_and_validation(way):
    with lv.record(on="a100") as recording:
        model = mlp().cuda()
        for count in (None, 3):  # a whole epoch, and one that is left after three batches
            for images, labels in islice(EPOCHS[way](), count):
                step(model, images, labels)
            with torch.no_grad():
                for images, _ in islice(EPOCHS[way](), 2):
                    model(images)
    steps = ranges(recording.timeline)
    numbers = [span.batch for span in steps]
    assert len(numbers) == 6 + 2 + 3 + 2
    assert len(set(numbers)) == len(numbers)
    assert numbers == sorted(numbers)
    assert recording.timeline.context.samples == 13 * SIZE
    kernels = [span.batch for span in recording.timeline.rows(Kind.COMPUTE) if span.name == "addmm"]
    assert kernels == [number for number in numbers for _ in range(2)]


def test_the_program_may_say_itself_at_which_batch_it_is():
    with lv.record(on="a100") as recording:
        for number in range(3):
            with torch.profiler.record_function(f"batch {number}: 5 samples"):
                torch.ones(5).to("cuda").sum()
    assert [span.batch for span in recording.timeline.rows(Kind.COPY_H2D)] == [0, 1, 2]
    assert [span.name for span in ranges(recording.timeline)] == [f"batch {number}: 5 samples" for number in range(3)]
    assert recording.timeline.context.samples == 15


def test_without_a_loader_there_are_no_batches():
    with lv.record(on="a100") as recording:
        torch.ones(5).to("cuda").sum().item()
    assert set(recording.timeline.batch.tolist()) == {-1}
    assert not ranges(recording.timeline)


def test_spans_name_the_callers_line():
    with lv.record(on="a100") as recording:
        torch.ones(5).to("cuda")
        mlp().cuda()(torch.ones(1, 144, device="cuda")).sum().backward()
    lines = {span.source.rsplit("/", 1)[-1].split(":")[0] for span in recording.timeline.rows(Kind.API)}
    assert lines == {"test_torch_batches.py"}


@pytest.mark.parametrize("asks", [True, False])
def test_a_program_that_asked_for_a_gpu_too_early_is_told_its_line(asks, tmp_path):
    chosen = "cuda" if asks else "cpu"
    code = f'import torch\n\ndevice = "cuda" if torch.{chosen}.is_available() and False else "cpu"\n'
    path = tmp_path / "program.py"
    path.write_text(code + "def train():\n    torch.ones(3).to(device).sum()\n", encoding="utf-8")
    program = {}
    exec(compile(path.read_text(encoding="utf-8"), path, "exec"), program)
    with lv.record(on="a100") as recording:
        program["train"]()
    notes = recording.timeline.context.notes
    assert [("program.py:3" in note, "device = 'cuda'" in note) for note in notes] == [(True, True)] * asks
    assert ("program.py:3" in lv.advise(recording.timeline)[0].change) == asks
    with lv.record(on="a100") as recording:
        program["train"]()
        torch.ones(1, device="cuda")
    assert recording.timeline.context.notes == ()


# What others may ask of a recording


def test_a_recording_tells_its_time_and_who_wrote_last_and_hands_out_batches_that_carry_their_numbers():
    with lv.record(on="a100", host="laptop") as recording:
        begin, source = now(), [torch.full((1000,), float(number)).pin_memory() for number in range(3)]
        batches = [batch.to("cuda", non_blocking=True) for batch in handed_out(source)]
        summed = sum(batches)
        assert now() > begin
        assert [{each.kind for each in last_writers(tensor)} for tensor in (batches[1], summed)] == [
            {Kind.COPY_H2D},
            {Kind.COMPUTE},
        ]
    assert [copy.batch for copy in recording.timeline.rows(Kind.COPY_H2D)] == [0, 1, 2]
    for ask in (now, lambda: next(handed_out([])), lambda: last_writers(torch.ones(1))):
        with pytest.raises(NoRecordingError, match="belongs to an emulated GPU whose recording has ended"):
            ask()
