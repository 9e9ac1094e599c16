"""Ordinary PyTorch code for CUDA, on the emulated runtime: `EmulatedCuda` is a context manager for one recording.

Inside it `torch.cuda`, `.to("cuda")`, `DataLoader(pin_memory=True)` and `time.perf_counter` belong to the emulated
machine; after it everything is as it was, also after an exception.
"""

from loaderviz.emulator.torch_cuda.recording import EmulatedCuda

__all__ = ["EmulatedCuda"]
