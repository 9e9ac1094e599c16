"""Real runs -> Timeline. Their traces: torch.profiler's (Kineto) JSON, Nsight Systems SQLite, loaderviz's own exports.

    source.py    the bytes of a file, gzip or not, damaged or not; what a foreign file looks like
    chunks.py    a trace document as a stream of event texts, in bounded memory
    salvage.py   damaged events, one by one
    names.py     the words of the profilers: categories, copies, calls
    skim.py      which events are needed at all            alike.py     events that differ in their numbers only
    columns.py   event texts -> numpy columns, most of them by these two, the others by the JSON parser
    kineto.py    a whole Kineto file -> RawTrace          nsight.py    an Nsight Systems export -> RawTrace
    assemble.py  RawTraces (one per rank) -> Timeline     exported.py  loaderviz's own export, read back exactly

`loaderviz.reading.read` is the front door of these. And real runs, whose trace is read by the same code:

    profiler.py  a real run through torch.profiler        window.py    which steps of it
    loading.py   what the main thread's DataLoaders do     workers.py   what its workers and pin thread do, in them
    fetches.py   the records that workers write           clocks.py    their clock and the profiler's
    merge.py     trace + records -> Timeline

`loaderviz.record` is their front door. Only profiler, loading and workers import torch; nothing here draws.
"""
