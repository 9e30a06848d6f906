"""`python -m casque.cli` is `casque`."""

from __future__ import annotations

from casque.cli.main import main

main()
