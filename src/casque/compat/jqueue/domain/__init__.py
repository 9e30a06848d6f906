"""The values and errors of jqueue's API; no I/O."""
