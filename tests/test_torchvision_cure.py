"""The import cure for torchvision: the broken pair, the healthy one, and the errors that it must not swallow."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parent.parent

# torchvision's own way of describing an operator of its library; it fails if the operator does not exist.
DESCRIBE_NMS = """
import torch
@torch.library.register_fake("torchvision::nms")
def _(dets, scores, iou_threshold):
    return dets.new_empty(0, dtype=torch.long)
"""

# What loading the compiled library does: the operator is there, with a kernel (here one that returns 42).
COMPILED_LIBRARY = """
import torch
torch.library.define("torchvision::nms", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
@torch.library.impl("torchvision::nms", "CPU")
def _(dets, scores, iou_threshold):
    return torch.tensor([42])
def _has_ops():
    return True
"""


def run_python(code, *search_path):
    path = os.pathsep.join(str(folder) for folder in (*search_path, PROJECT))
    finished = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def fake_torchvision(folder, init, extension):
    package = folder / "torchvision"
    package.mkdir()
    (package / "__init__.py").write_text(init)
    (package / "extension.py").write_text(extension)
    return folder


@pytest.mark.slow
def test_the_installed_torchvision_can_be_imported_twice_and_works():
    # Whichever pair is installed. Where the library is missing, its operators must still say so, not give nonsense.
    output = run_python("""
from loaderviz.imports import import_torchvision
torchvision = import_torchvision()
assert import_torchvision() is torchvision
import torch, torchvision as imported_plainly
assert imported_plainly is torchvision
assert torchvision.transforms.functional.hflip(torch.tensor([[1, 2]])).tolist() == [[2, 1]]
assert issubclass(torchvision.datasets.FashionMNIST, torchvision.datasets.MNIST)
boxes = torch.tensor([[0.0, 0, 2, 2], [0, 0, 2, 2]])
try:
    assert torchvision.ops.nms(boxes, torch.tensor([1.0, 0.5]), 0.5).tolist() == [0]
except RuntimeError as error:
    assert not torchvision.extension._has_ops() and "load custom C++ ops" in str(error), error
print("fine")
""")
    assert output == "fine\n"


@pytest.mark.slow
def test_a_missing_library_is_cured(tmp_path):
    init = "from . import extension\n" + DESCRIBE_NMS + "complete = True\n"
    folder = fake_torchvision(tmp_path, init, "def _has_ops():\n    return False\n")
    output = run_python(
        """
import torch
try:
    import torchvision
    raise SystemExit("this pair is not broken, so the test would show nothing")
except RuntimeError as error:
    assert "operator torchvision::nms does not exist" in str(error)
from loaderviz.imports import import_torchvision
module = import_torchvision()
assert module.complete and import_torchvision() is module
for name in ("nms", "qnms"):
    schema = str(getattr(torch.ops.torchvision, name).default._schema)
    assert schema == f"torchvision::{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor", schema
print(module.__file__)
""",
        folder,
    )
    assert Path(output.strip()).is_relative_to(tmp_path)


@pytest.mark.slow
def test_a_healthy_torchvision_is_left_alone(tmp_path):
    init = "import builtins\nbuiltins.imports = getattr(builtins, 'imports', 0) + 1\n"
    folder = fake_torchvision(tmp_path, init + "from . import extension\n" + DESCRIBE_NMS, COMPILED_LIBRARY)
    output = run_python(
        """
import builtins, torch
from loaderviz.imports import import_torchvision
import_torchvision(), import_torchvision()
kept = torch.ops.torchvision.nms(torch.zeros(1, 4), torch.zeros(1), 0.5).tolist()
print(builtins.imports, kept, hasattr(torch.ops.torchvision, "qnms"))
""",
        folder,
    )
    assert output == "1 [42] False\n"


@pytest.mark.parametrize(
    "fault",
    [
        "import surely_not_a_module",
        "raise RuntimeError('different CUDA major versions')",
        # The library is loaded and an operator is missing all the same: a fault that the cure would only hide.
        "from . import extension; raise RuntimeError('operator torchvision::nms does not exist')",
    ],
)
def test_other_faults_pass_through(fault, tmp_path):
    folder = fake_torchvision(tmp_path, fault, "def _has_ops():\n    return True\n")
    output = run_python(
        """
from loaderviz.imports import import_torchvision
try:
    import_torchvision()
except Exception as error:
    print(type(error).__name__)
""",
        folder,
    )
    assert output == ("ModuleNotFoundError\n" if "surely" in fault else "RuntimeError\n")
