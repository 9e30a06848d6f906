"""The command line: `casque`. Thin: it reads arguments, calls the library and shows what came of it."""

from __future__ import annotations

from casque.cli.main import main

__all__ = ["main"]
