"""`python -m benchmarks.images`: what `make bench-image` runs."""

import sys

from benchmarks.images import main

if __name__ == "__main__":
    sys.exit(main())
