"""`python -m loaderviz`: see `loaderviz.cli`."""

import sys

from loaderviz.cli import main
from loaderviz.stopping import leave_soon

if __name__ == "__main__":
    if (status := main()) > 128:  # a signal has ended it
        leave_soon(status)
    sys.exit(status)
