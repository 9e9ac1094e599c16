"""`python -m loaderviz`: see `loaderviz.cli`."""

import sys

from loaderviz.cli import main

if __name__ == "__main__":
    sys.exit(main())
