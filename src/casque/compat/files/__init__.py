"""The stored queues of jqueue and osqueue, read as jobs that can be enqueued.

Each format has a module with its fields, all of them: a field that is not listed is a refusal that names it, because a
job that is understood in part would run wrong. Nothing here opens, writes or locks anything: bytes go in, jobs come
out.
"""

from __future__ import annotations

from casque.compat.files.foreign import ForeignFile, ForeignJob, ForeignStatus, Kind
from casque.compat.files.reading import read_foreign

__all__ = ["ForeignFile", "ForeignJob", "ForeignStatus", "Kind", "read_foreign"]
