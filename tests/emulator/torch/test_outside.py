"""PyTorch as others use it: every snippet answers on the emulated GPU what it answers on the CPU, or what a GPU does.

The snippets were written from PyTorch's documentation alone, by somebody who had not read this library.
"""

import linecache
import random
import re
import warnings

import numpy as np
import pytest
import torch
from outside_snippets import AUTOCAST, CUDA_ONLY, PRELUDE, SAME

import loaderviz as lv

pytestmark = [  # what PyTorch itself says about its older interfaces is not this test's matter
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]


COMPILED = "compiled code is emulated as its eager operators, and the timeline's notes say so"
NUMBERS = "a GPU draws the CPU's random numbers, so that values can be compared with a run on the CPU: README says so"
KNOWN = {  # what the emulated GPU is known to answer otherwise, and why
    "compilers: a backend of one's own sees the device": COMPILED,
    "compilers: graph breaks explained": COMPILED,
    "compilers: what a compiler refuses": COMPILED,
    "compilers: code that knows that it is compiled": COMPILED,
    "compilers: traced with a constant of its device": "torch traces on the CPU; the traced code runs on the device",
    "compilers: a graph of ahead-of-time autograd": "backward through FakeTensors is refused by name",
    "tools: a profile with shapes": "the emulated profile has no shapes",
    "facts: flash attention has no kernel for float32": "the CPU's kernel, which computes the values, has one",
    "tensors: what has no deterministic implementation": "the CPU's kernels, which compute the values, have one",
    "tensors: numpy does not take a GPU's DLPack": "the memory is the CPU's, which numpy finds",
    "tensors: a generator's state is a seed and an offset": NUMBERS,
    "tensors: the CPU's seed is another": NUMBERS,
    "tensors: the CPU's random numbers are others": NUMBERS,
}


def snippets(kinds):
    """One pytest parameter for every snippet: its name is the comment in its first line."""
    codes = [(kind, code) for kind, text in kinds.items() for code in text.strip().split("\n\n")]
    names = [f"{kind}: {code.splitlines()[0].removeprefix('# ')}" for kind, code in codes]
    marks = [[pytest.mark.xfail(reason=KNOWN[name])] if name in KNOWN else [] for name in names]
    return [
        pytest.param(name, code, id=name.replace(" ", "_"), marks=mark)
        for name, (_, code), mark in zip(names, codes, marks, strict=True)
    ]


def run(name, code, device):
    """What the snippet leaves in `out`, on the CPU; jit's script reads the source from linecache."""
    names = {"device": device, "__name__": "outside"}
    for file, source in ((f"outside/{device}/prelude.py", PRELUDE), (f"outside/{device}/{name}.py", code)):
        linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
        exec(compile(source, file, "exec"), names)
    out = on_cpu(names.get("out"))
    for one in [one for one in names if not one.startswith("__")]:  # the functions among them hold all of them
        del names[one]
    return out


def on_cpu(value):
    """The same, with every tensor on the CPU, and tuples and nested tensors as lists."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        return list(value.unbind()) if value.is_nested else value
    if isinstance(value, dict):
        return {key: on_cpu(one) for key, one in value.items()}
    return [on_cpu(one) for one in value] if isinstance(value, list | tuple) else value


def compare(got, want, within, where="out"):
    """Equal in type, shape, dtype and value; a text may say cuda:0 where the CPU's says cpu."""
    assert type(got) is type(want), f"{where}: {got!r} instead of {want!r}"
    if isinstance(want, torch.Tensor):
        torch.testing.assert_close(got, want, rtol=within, atol=within, equal_nan=True, check_stride=False)
    elif isinstance(want, dict | list):
        got, want = (one if isinstance(one, dict) else dict(enumerate(one)) for one in (got, want))
        assert set(got) == set(want), f"{where}: {got!r} instead of {want!r}"
        for key in want:
            compare(got[key], want[key], within, f"{where}[{key!r}]")
    elif isinstance(want, float):
        assert got == pytest.approx(want, rel=within, abs=within, nan_ok=True), where
    else:
        assert re.sub(r"cuda(:0)?", "cpu", str(got)) == str(want), where


@pytest.fixture(autouse=True)
def clean():
    """Each snippet may do as it likes with what is global, and leaves it as it was."""
    seeds, dtype = (random.getstate(), np.random.get_state(), torch.get_rng_state()), torch.get_default_dtype()
    sources = linecache.cache.copy()
    with warnings.catch_warnings():
        yield
    random.setstate(seeds[0])
    np.random.set_state(seeds[1])
    torch.set_rng_state(seeds[2])
    torch.set_default_dtype(dtype)
    torch.set_default_device(None)
    torch.set_grad_enabled(True)
    torch.use_deterministic_algorithms(False)
    torch._dynamo.reset()
    linecache.cache.clear()
    linecache.cache.update(sources)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "code"), snippets(SAME))
def test_same(name, code):
    within = float(re.search(r"within (\S+)", name)[1]) if "within" in name else 0
    torch.manual_seed(0)
    want = run(name, code, "cpu")
    with lv.record(on="a100"):
        torch.manual_seed(0)
        got = run(name, code, "cuda")
    assert want is not None
    compare(got, want, within)


@pytest.mark.parametrize(("name", "code"), snippets(CUDA_ONLY))
def test_cuda_only(name, code):
    with lv.record(on="a100"):
        torch.manual_seed(0)
        run(name, code, "cuda")


@pytest.mark.parametrize("kind", AUTOCAST)
def test_autocast(kind):
    """The lists of docs.pytorch.org's "Autocast Op Reference" for CUDA, line by line."""
    start, lines = AUTOCAST[kind].split("\n\n")
    wrong = []
    with lv.record(on="a100"):
        names = {"device": "cuda"}
        exec(PRELUDE + start, names)
        for line in lines.splitlines():
            if line.startswith("F.rms_norm") and torch.__version__ < (2, 11):  # torch put it into its list later
                continue
            try:
                with torch.autocast("cuda"):
                    got = eval(line, names).dtype
            except RuntimeError as error:
                got = error
            if str(got) != f"torch.{kind.split()[0]}":
                wrong.append(f"{line}: {got}")
    assert not wrong, "\n".join(wrong)
