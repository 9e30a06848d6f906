"""The queue over HTTP and JSON: a server, and a client that looks like any other `QueueService`.

`routes` is the one table of what can be asked; the server serves it and `openapi` describes it. Bytes travel as base64,
times as RFC 3339, spans as seconds. Every refusal has a body that says which of casque's errors it is.

It never knows who leads a queue or where it is stored, it installs no signal handlers, and it logs no requests: a
broker has those for all of its wires.
"""

from __future__ import annotations

try:
    import h11  # noqa: F401
    import starlette  # noqa: F401
    import uvicorn  # noqa: F401
except ImportError as missing:
    raise ImportError(
        f'HTTP needs packages that are not installed ({missing.name}): pip install "casque[server]"'
    ) from missing
