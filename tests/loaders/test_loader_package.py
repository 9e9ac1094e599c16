"""The package stands alone, and its benchmark runs."""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path

import torch

import loaderviz.loaders

FOLDER = Path(loaderviz.loaders.__file__).parent
BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "resident.py"


def test_it_imports_only_torch_and_the_standard_library():
    for path in FOLDER.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            for name in names:
                top = name.split(".")[0]
                assert top == "torch" or top in sys.stdlib_module_names, f"{path.name} imports {name}"


def test_the_benchmark_prints_each_way_with_its_ratio(capsys):
    spec = importlib.util.spec_from_file_location("resident_benchmark", BENCHMARK)
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    benchmark.main(["--samples", "64", "--batch-size", "16", "--epochs", "1"])
    lines = capsys.readouterr().out.splitlines()
    assert "64 images, batch 16, cpu" in lines[0]
    assert [line.split()[-1] for line in lines[2:3]] == ["1.0x"]
    assert len(lines) == 2 + 6 and all(float(line.split()[-2]) > 0 for line in lines[2:])
    images, labels = benchmark.drawn_mnist(5)
    assert (images.shape, images.dtype, labels.dtype) == ((5, 28, 28), torch.uint8, torch.int64)
