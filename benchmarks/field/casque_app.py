"""The app that `casque worker` runs for `of_casque`, which says in the environment what is wanted."""

from __future__ import annotations

import json
import os

import casque
from benchmarks.field.desk import Task, handler_of

TASK = "FIELD_TASK"

_task = Task(**json.loads(os.environ[TASK]))
_handle = handler_of(_task)
app = casque.App(_task.place)


@app.job(_task.kind)
async def noop(payload: str) -> None:
    _handle(payload)
