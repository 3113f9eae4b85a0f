"""`python -m windrow` is `windrow`."""

import sys

from windrow.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
