"""Errors of tasks, raised again on the driver: Spark passes them on only as the text of a traceback."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from casque import errors
from casque.errors import CasqueError, CorruptQueueError, StorageError

_RAISED = re.compile(r"^casque\.errors\.(\w+): (.*)$", re.MULTILINE)


@contextmanager
def as_raised() -> Iterator[None]:
    """Raise the CasqueError of a task again as what it was; other errors of Spark pass unchanged.

    Raises:
        CasqueError: as in the task.
    """
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        found = _RAISED.findall(str(error))
        if not found:
            raise
        name, text = found[-1]
        raise _made(name, text) from error


def _made(name: str, text: str) -> CasqueError:
    kind = getattr(errors, name, None)
    if kind is CorruptQueueError:
        key, _, problem = text.partition(": ")
        return CorruptQueueError(key, problem)
    if isinstance(kind, type) and issubclass(kind, CasqueError) and kind.__init__ == CasqueError.__init__:
        return kind(text)
    return StorageError(text)
