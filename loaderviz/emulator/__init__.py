"""The emulator: a CUDA GPU in virtual time. All but `torch/` works without torch.

hardware.py  presets, and the source of each number    host.py    when a DataLoader fetches, pins, hands out
costs.py     copies and host work in ns                replay.py  a training loop without data
device.py    streams and engines                       hazards/   races and lints
runtime.py   CUDA's calls                              torch/     puts PyTorch on it
memory.py    the caching allocators                    kernels.py what an operator's kernels cost, by class
"""

from loaderviz.emulator.hardware import Gpu, Host
from loaderviz.emulator.runtime import Runtime

__all__ = ["Gpu", "Host", "Runtime"]
