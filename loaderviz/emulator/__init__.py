"""The emulator: a CUDA GPU in virtual time. All but `torch/` works without torch.

hardware.py  presets, what copies and host work cost   kernels.py what an operator's kernels cost, by class
device.py    streams and engines                       host.py    cores, disk, costs; its DataLoader
runtime.py   CUDA's calls                              replay.py  a training loop without data
memory.py    the caching allocators                    hazards/   races and lints
kept.py      spawned workers that go on to other work  torch/     puts PyTorch on it
"""

from loaderviz.emulator.hardware import Gpu, Host
from loaderviz.emulator.runtime import Runtime

__all__ = ["Gpu", "Host", "Runtime"]
