"""CUDA graphs: what a capture notes and refuses, and that replays give the numbers of eager code with one launch."""

import copy
from functools import partial
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from programs import cnn, data, mlp, same, sgd
from torch import nn

import loaderviz as lv
from loaderviz.emulator.hardware import Gpu
from loaderviz.emulator.runtime import CudaError
from loaderviz.errors import NotModelledError
from loaderviz.timeline import ArrowKind, Kind

SIZE = 16


def batches(count):
    images, labels = (tensor.split(SIZE) for tensor in data(count * SIZE).tensors)
    return [(a.pin_memory(), b.pin_memory()) for a, b in zip(images, labels, strict=True)]


def train(way, make, optimizer, count=6):
    """Train on static inputs, the last steps by replays of one graph if `way` says so; return losses and weights."""
    model, steps = make().to("cuda"), None
    steps = optimizer(model.parameters())
    images, labels = torch.zeros(SIZE, 1, 12, 12, device="cuda"), torch.zeros(SIZE, dtype=torch.long, device="cuda")

    def step():
        steps.zero_grad(set_to_none=True)
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        steps.step()
        return loss

    def fill(batch):
        images.copy_(batch[0], non_blocking=True)
        labels.copy_(batch[1], non_blocking=True)

    losses, side, graph = [], torch.cuda.Stream(), torch.cuda.CUDAGraph()
    for number, batch in enumerate(batches(count)):
        fill(batch)
        if way == "eager" or number < 3:
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):  # warming up
                loss = step()
            torch.cuda.current_stream().wait_stream(side)
        else:
            if number == 3:
                steps.zero_grad(set_to_none=True)
                with torch.cuda.graph(graph):
                    static = step()
            graph.replay()
            loss = static
        losses.append(loss.item())
    return losses, [entry.detach().cpu() for entry in model.state_dict().values()]


@pytest.mark.parametrize(
    "optimizer", [sgd, partial(torch.optim.Adam, lr=0.01, foreach=True, capturable=True)], ids=["sgd", "adam"]
)
@pytest.mark.parametrize("make", [mlp, cnn])
def test_a_whole_step_as_a_graph_gives_the_numbers_of_eager_code(make, optimizer):
    """With dropout, whose numbers are new in each replay, and statistics of batch norm, which a capture keeps."""
    results, launches = {}, {}
    for way in ("eager", "graph"):
        with lv.record(on="a100") as recording:
            results[way] = train(way, make, optimizer)
        assert not recording.hazards
        launches[way] = [span.name for span in recording.timeline.rows(Kind.API)]
    assert same(results["eager"], results["graph"])
    assert (launches["eager"].count("cudaGraphLaunch"), launches["graph"].count("cudaGraphLaunch")) == (0, 3)


def test_a_replay_is_one_launch_of_all_kernels_and_the_host_is_between_none_of_them():
    with lv.record(on="a100") as recording:
        x, graph = torch.arange(4.0, device="cuda"), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = x * 2
            z = (y + 1).neg_()
            del y
        graph.replay()
        graph.replay()
        assert z.tolist() == [-1.0, -3.0, -5.0, -7.0]
    timeline = recording.timeline
    kernels = list(timeline.rows(Kind.COMPUTE))
    assert [span.name for span in kernels] == ["arange", *["mul", "add", "neg_"] * 2]
    launches = [index for index in range(len(timeline)) if timeline.row(index).name == "cudaGraphLaunch"]
    tails = timeline.arrows["tail"][timeline.arrows["kind"] == ArrowKind.LAUNCH].tolist()
    assert [tails.count(index) for index in launches] == [3, 3]
    for first in (1, 4):
        part = kernels[first : first + 3]
        gaps = [after.start - before.end for before, after in pairwise(part)]
        assert gaps == [Gpu.preset("a100").queue_gap] * 2


def test_a_capture_changes_nothing_and_its_results_are_poison_before_the_first_replay(recording):
    x, graph = torch.ones(3, device="cuda"), torch.cuda.CUDAGraph()
    state = torch.get_rng_state()
    with torch.cuda.graph(graph):
        assert torch.cuda.is_current_stream_capturing() and torch.cuda.current_stream().is_capturing()
        y = x.add_(1) + torch.rand(3, device="cuda")
        with torch.cuda.stream(torch.cuda.Stream()):  # this one takes no part
            z = torch.ones(3, device="cuda") * 5
    torch.cuda.synchronize()
    assert not torch.cuda.is_current_stream_capturing()
    assert (x.tolist(), z.tolist(), y.isnan().all().item()) == ([1.0] * 3, [5.0] * 3, True)
    assert torch.equal(torch.get_rng_state(), state)
    for count in (2, 3):
        graph.replay()
        torch.set_rng_state(state) if count == 2 else None
        assert x.tolist() == [float(count)] * 3
    graph.reset()
    with pytest.raises(CudaError, match="without a preceding successful capture"):
        graph.replay()


def test_copies_in_a_graph_read_and_fill_pinned_memory_at_each_replay(recording):
    source, target = torch.zeros(4).pin_memory(), torch.zeros(4).pin_memory()
    x, graph = torch.zeros(4, device="cuda"), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x.copy_(source, non_blocking=True)
        target.copy_(x * 2, non_blocking=True)
    for value in (1.0, 2.0):
        source.fill_(value)
        graph.replay()
        torch.cuda.synchronize()
        assert target.tolist() == [2 * value] * 4


@pytest.mark.filterwarnings("ignore::loaderviz.HazardWarning")  # the race is meant
@pytest.mark.parametrize("waits", [True, False])
def test_a_graph_that_reads_an_input_that_is_still_on_its_way_is_a_hazard(waits):
    with lv.record(on="a100") as recording:
        x, graph, side = torch.zeros(4, device="cuda"), torch.cuda.CUDAGraph(), torch.cuda.Stream()
        with torch.cuda.graph(graph):
            y = x * 2
        with torch.cuda.stream(side):
            x.copy_(torch.ones(4).pin_memory(), non_blocking=True)
        if waits:
            torch.cuda.current_stream().wait_stream(side)
        graph.replay()
        assert (y.tolist() == [2.0] * 4) == waits
    assert [hazard.kind for hazard in recording.hazards] == ["early-read"] * (not waits)


def test_branches_join_and_are_noted():
    with lv.record(on="a100") as recording:
        x, graph, side = torch.ones(2, device="cuda"), torch.cuda.CUDAGraph(), torch.cuda.Stream()
        with torch.cuda.graph(graph):
            main = torch.cuda.current_stream()
            side.wait_stream(main)
            with torch.cuda.stream(side):
                y = x + 1
            main.wait_stream(side)
            z = y * 2
        graph.replay()
        assert z.tolist() == [4.0, 4.0]
    assert any("branches" in note for note in recording.timeline.context.notes)


def fork_without_join(x):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        x.add(1)


def wait_for_the_outside(x):
    event = torch.cuda.Event()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(1000)
        event.record()
    event.wait()


REFUSED = {
    "item": lambda x: x.sum().item(),
    "synchronize": lambda x: torch.cuda.synchronize(),
    "query": lambda x: torch.cuda.current_stream().query(),
    "mask": lambda x: x[x > 0],
    "pageable": lambda x: x.copy_(torch.ones(4), non_blocking=True),
    "from a list": lambda x: torch.tensor([1.0], device="cuda"),
    "unjoined work": fork_without_join,
    "dependency created on uncaptured work": wait_for_the_outside,
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_may_not_be_captured_is_refused_as_cuda_does(name, recording):
    """R34 among them. The capture has failed, whatever the program makes of the error."""
    call, text = REFUSED[name], name if "work" in name else "not permitted when stream is capturing"
    x, graph, stream = torch.ones(4, device="cuda"), torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.stream(stream):
        graph.capture_begin()
        x.add_(1)
        if call is fork_without_join:
            call(x)
        else:
            with pytest.raises(CudaError, match=text):
                call(x)
            text = "previous error during capture"
        with pytest.raises(CudaError, match=text):
            graph.capture_end()
    assert not torch.cuda.is_current_stream_capturing()
    assert x.tolist() == [1.0] * 4
    with pytest.raises(CudaError, match="without a preceding successful capture"):
        graph.replay()


def test_other_misuse(recording):
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(CudaError, match="non-default stream"):
        graph.capture_begin()
    with pytest.warns(UserWarning, match="CUDA Graph is empty"), torch.cuda.graph(graph):
        pass
    with pytest.raises(CudaError, match="already owns a captured graph"), torch.cuda.graph(graph):
        pass
    for call in (graph.debug_dump, lambda _: graph.raw_cuda_graph()):
        with pytest.raises(NotModelledError, match="cudaGraph_t"):
            call("x")
    assert isinstance(graph, torch.cuda.CUDAGraph) and graph.pool() != copy.copy(torch.cuda.graph_pool_handle())


def test_a_graph_belongs_to_its_recording():
    with lv.record(on="a100"):
        x, graph = torch.ones(2, device="cuda"), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            x.add_(1)
    with lv.record(on="a100"), pytest.raises(NotModelledError, match="earlier recording"):
        graph.replay()


def test_marked_batches_count_although_only_the_warm_up_calls_an_optimizer():
    with lv.record(on="a100") as recording:
        model = nn.Linear(4, 4).cuda()
        optimizer, x, graph = torch.optim.SGD(model.parameters(), 0.1), torch.ones(2, 4).cuda(), torch.cuda.CUDAGraph()

        def train():
            model(x).sum().backward()
            optimizer.step()

        train()
        with torch.cuda.graph(graph):
            train()
        for number in range(5):
            with torch.profiler.record_function(f"batch {number}"):
                x.copy_(torch.full((2, 4), float(number)))
                graph.replay()
    kernels = [span.batch for span in recording.timeline.rows(Kind.COMPUTE) if span.name == "addmm"]
    assert kernels[1:] == list(range(5))
    assert lv.summarize(recording.timeline).batches == 4  # the first is warm-up
