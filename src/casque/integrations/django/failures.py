"""An exception of a task as the text that a job keeps of its error, and back.

The text begins with the full path of the exception's class, which Django wants to know, and goes on with the message
and the innermost frames of the traceback, which is what a job keeps.
"""

from __future__ import annotations

import re

from casque.integrations.django.tasks_api import TaskError

_KNOWN = re.compile(r"([A-Za-z_][\w.]*\.[\w<>]+): ", re.ASCII)
_BUILTIN = re.compile(r"([A-Z]\w*(?:Error|Exception|Exit|Interrupt)): ", re.ASCII)
UNKNOWN = "casque.errors.JobFailedError"
"""For a task that ended without an exception of its own: its worker was killed, or it was cancelled."""


class TaskFailed(Exception):  # noqa: N818 (its subclasses have the names of others)
    """A task's exception under its full path; see `as_failure`."""


def as_failure(error: BaseException) -> TaskFailed:
    """The error to raise instead of `error`, whose class has the full path as its name."""
    kind = type(error)
    named = type(f"{kind.__module__}.{kind.__qualname__}", (TaskFailed,), {})
    failure: TaskFailed = named(str(error)).with_traceback(error.__traceback__)
    return failure


def as_task_error(text: str) -> TaskError:
    """What Django shows of an attempt that ended with this text."""
    said, _, frames = text.partition("\n")
    if (full := _KNOWN.match(text)) is not None:
        path = full[1]
    elif (short := _BUILTIN.match(text)) is not None:
        path = f"builtins.{short[1]}"
    else:
        return TaskError(exception_class_path=UNKNOWN, traceback=text)
    trace = f"Traceback (most recent call last):\n{frames}\n{said}" if frames.startswith("  File ") else text
    return TaskError(exception_class_path=path, traceback=trace)
