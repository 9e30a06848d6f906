"""The queue over HTTP and JSON: a server, and a client that is a `QueueService`.

`routes` is the one table of all endpoints; the server serves it and `openapi` describes it. Bytes travel as base64,
times as RFC 3339, durations as seconds. The body of every refusal names one of casque's errors.

This package does not know who leads a queue or where it is stored, installs no signal handlers, and logs no requests: a
broker does that for all of its wires.
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
