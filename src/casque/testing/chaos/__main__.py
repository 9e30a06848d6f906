"""`python -m casque.testing.chaos`."""

from __future__ import annotations

import sys

from casque.testing.chaos.command import main

if __name__ == "__main__":
    sys.exit(main())
