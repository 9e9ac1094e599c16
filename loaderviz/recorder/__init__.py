"""Traces of real runs -> Timeline: torch.profiler's (Kineto) JSON, Nsight Systems SQLite, and loaderviz's own exports.

    source.py    the bytes of a file, gzip or not, damaged or not; what a foreign file looks like
    chunks.py    a trace document as a stream of event texts, in bounded memory
    salvage.py   damaged events, one by one
    names.py     the words of the profilers: categories, copies, calls
    columns.py   event texts -> numpy columns (the fast part; with msgspec, where it is installed, faster)
    kineto.py    a whole Kineto file -> RawTrace          nsight.py    an Nsight Systems export -> RawTrace
    assemble.py  RawTraces (one per rank) -> Timeline     exported.py  loaderviz's own export, read back exactly

`loaderviz.reading.read` is the front door. Nothing here imports torch or draws.
"""
