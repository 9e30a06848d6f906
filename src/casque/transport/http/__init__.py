"""The queue over HTTP and JSON: a server, and a client that looks like any other `QueueService`.

`routes` is the one table of what can be asked; the server serves it and `openapi` describes it. Bytes travel as base64,
times as RFC 3339, spans as seconds. Every refusal has a body that says which of casque's errors it is.

It never knows who leads a queue or where it is stored, it installs no signal handlers, and it logs no requests: a
broker has those for all of its wires.
"""

from __future__ import annotations

from importlib.util import find_spec

if missing := [name for name in ("h11", "starlette", "uvicorn") if find_spec(name) is None]:
    raise ModuleNotFoundError(f'HTTP needs {" and ".join(missing)}: pip install "casque[server]"', name=missing[0])
