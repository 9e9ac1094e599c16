"""What is wrong in an emulated program, and what is right but useless or slow.

happens_before.py  what is certain to be over when something else begins: vector clocks; who touched each byte last
races.py           two accesses that nothing orders: a Hazard
lints.py           waits for nothing, waits without need, hidden synchronisation: a Lint
reports.py         what both are in words
"""
