"""`torch.compile` inside a recording: the eager operators run, and the timeline says so."""

import inspect

import pytest
import torch

import loaderviz as lv
from loaderviz.timeline import Kind

NOTE = "torch.compile: compiled code is emulated as its eager operators, so nothing is fused"


def double_and_add(x, y=1.0):
    return x * 2 + y


def decorated_with_options(x):
    @torch.compile(mode="reduce-overhead", fullgraph=True, dynamic=False)
    def inner(x, y):
        return double_and_add(x, y)

    torch.compiler.cudagraph_mark_step_begin()
    return inner(x, 1.0)


FORMS = {
    "function": lambda x: torch.compile(double_and_add)(x, y=1.0),
    "options": lambda x: torch.compile(double_and_add, options={"epilogue_fusion": True}, backend="inductor")(x),
    "decorator": lambda x: torch.compile()(double_and_add)(x),
    "decorator with options": decorated_with_options,
}


def kernels(call):
    with lv.record(on="a100") as recording:
        result = call(torch.arange(3.0, device="cuda")).tolist()
    return result, [span.name for span in recording.timeline.rows(Kind.COMPUTE)], recording.timeline.context.notes


@pytest.mark.parametrize("name", FORMS)
def test_compiled_code_runs_as_its_eager_operators(name):
    result, names, notes = kernels(FORMS[name])
    assert (result, names, ()) == kernels(double_and_add) == kernels(torch.compiler.disable(double_and_add))
    assert kernels(torch.compile(double_and_add, disable=True)) == (result, names, ())
    assert result == [1.0, 3.0, 5.0]
    assert notes == (NOTE,)


def test_a_compiled_function_keeps_what_inspect_asks():
    with lv.record(on="a100"):
        compiled = torch.compile(double_and_add)
        torch.compiler.reset()  # on a real GPU it would ask for parts that only torch's builds for CUDA have
        assert not torch.compiler.is_compiling()
    assert (compiled.__name__, compiled.__module__) == (double_and_add.__name__, __name__)
    assert inspect.signature(compiled) == inspect.signature(double_and_add)
    assert compiled(torch.ones(1)).item() == 3  # after the recording, too


@pytest.mark.parametrize("options", [{}, {"fullgraph": True}, {"dynamic": True}])
def test_what_was_compiled_before_the_recording_runs_eagerly_inside_and_compiled_after(options):
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    compiled, model = (torch.compile(code, backend=backend, **options) for code in (double_and_add, torch.nn.ReLU()))
    assert kernels(compiled) == ([1.0, 3.0, 5.0], kernels(double_and_add)[1], (NOTE,))
    assert kernels(lambda x: model(x - 1)) == ([0.0, 0.0, 1.0], ["arange", "sub", "relu"], (NOTE,))
    assert graphs == []
    assert compiled(torch.ones(2)).tolist() == [3.0, 3.0]
    assert len(graphs) == 1
    assert kernels(compiled) == ([1.0, 3.0, 5.0], kernels(double_and_add)[1], (NOTE,))  # compiled and used before
    assert len(graphs) == 1
