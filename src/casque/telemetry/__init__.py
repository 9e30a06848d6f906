"""What casque reports about itself: one logger per part, under the name `casque`, and numbers in `metrics`.

Every layer may use it. Nothing here decides where logs and numbers go.
"""

from __future__ import annotations

import logging


def logger(part: str) -> logging.Logger:
    """The logger of one part; silent unless the application configures logging."""
    return logging.getLogger(f"casque.{part}")


logging.getLogger("casque").addHandler(logging.NullHandler())
