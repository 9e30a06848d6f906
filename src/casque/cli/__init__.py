"""The command line: `casque`. It reads arguments, calls the library and shows the result.

A noun that has commands is a file or a folder (`jobs/`, `queue/`, `zones/`, `spark/`, `archive`, `cron`, `token`,
`pipeline`); a verb without a noun has a file or folder of its own (`enqueue`, `worker`, `serve`, `top/`, ...). `main`
lists them all. What they share: `command` (how one is declared), `options`, `target` (which queue, and how it is
opened), `head`, `output`, `formats`, `job_view`, `exits`, `audit`, `logs`, `process` and `files`.
"""

from __future__ import annotations

from casque.cli.main import main

__all__ = ["main"]
