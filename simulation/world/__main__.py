"""`python -m simulation.world`. The code is elsewhere, because worker processes cannot import a `__main__`."""

from __future__ import annotations

import sys

from simulation.world.many import main

if __name__ == "__main__":
    sys.exit(main())
