"""Trace files and real runs -> Timeline. Only live and workers import torch.

read.py      `loaderviz.read`: one file, a folder of ranks, or a list of files
source.py    the bytes of a file, gzip or not, damaged or not, as a stream of event texts in bounded memory
kineto.py    torch.profiler's file -> RawTrace: event texts -> numpy columns
nsight.py    an Nsight Systems export -> RawTraces
assemble.py  RawTraces, one per rank -> Timeline: lanes, launches, waits, notes on the quality
steps.py     which batch each span is for, and which steps are kept
live.py      a real run: torch.profiler, and what the main thread's DataLoaders do (`loaderviz.record`)
workers.py   what their workers and pin thread do, noted there
merge.py     the trace of a real run + these notes -> Timeline
"""
