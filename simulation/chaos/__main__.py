"""`python -m simulation.chaos`."""

from __future__ import annotations

import sys

from simulation.chaos.command import main

if __name__ == "__main__":
    sys.exit(main())
