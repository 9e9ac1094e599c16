"""What holds for all tests: no data from outside; and one thread for torch, the faster way on a busy machine."""

import os

from hypothesis import settings

os.environ.setdefault("LOADERVIZ_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # also for the processes that tests start

# The same random programs in every run, so that a red run can be repeated; HYPOTHESIS_PROFILE=search tries new ones.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("search", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))
