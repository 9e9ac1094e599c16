"""What holds for all tests: no data from outside; and one thread for torch, the faster way on a busy machine."""

import os

os.environ.setdefault("LOADERVIZ_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # also for the processes that tests start
