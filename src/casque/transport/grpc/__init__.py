"""gRPC: a server in front of a `Host`, and a client that is a `QueueService`.

Three services share a port: `casque.v1.Queue` for programs in any language, `osqueue.v1.QueueService` for clients of
osqueue, and health with reflection. casque's own client uses one stream of the first, `Exchange`, on which calls and
answers travel many per message. Nothing here knows where a queue is stored or who leads it.
"""

from __future__ import annotations

import os

# While a channel is busy, gRPC's fork handlers break about every fifth process that is forked here, even one that only
# executes another program: Spark starts its Java that way. asyncio channels do not survive a fork with the handlers
# either. To enable them, set the variable or import grpc first.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")

try:
    import google.protobuf  # noqa: F401
    import grpc  # noqa: F401
except ImportError as missing:
    raise ImportError(
        f'gRPC needs packages that are not installed ({missing.name}): pip install "casque[server]"'
    ) from missing
