"""`casque.scan` under its earlier name."""

from casque.scan import *  # noqa: F403
