"""`python -m statebed.cli` is the same as `statebed`."""

import sys

from statebed.cli import main

if __name__ == "__main__":
    sys.exit(main())
