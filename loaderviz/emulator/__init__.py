"""The emulator: a CUDA GPU in virtual time. `Runtime` alone needs no torch; `torch_cuda` puts PyTorch on it."""

from loaderviz.emulator.hardware import Gpu, Host
from loaderviz.emulator.runtime import Runtime

__all__ = ["Gpu", "Host", "Runtime"]
