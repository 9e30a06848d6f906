"""What casque says about itself while it runs: one logger per part, under the name `casque`."""

from __future__ import annotations

import logging


def logger(part: str) -> logging.Logger:
    """The logger of one part; silent unless the application configures logging."""
    return logging.getLogger(f"casque.{part}")


logging.getLogger("casque").addHandler(logging.NullHandler())
