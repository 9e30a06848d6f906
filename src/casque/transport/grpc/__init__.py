"""gRPC: a server in front of a `Host`, and a client that is a `QueueService`.

Three services share a port: `casque.v1.Queue` for programs in any language, `osqueue.v1.QueueService` for clients of
osqueue, and health with reflection. casque's own client uses one stream of the first, `Exchange`, on which calls and
answers travel many per message. Nothing here knows where a queue is stored or who leads it.
"""

from __future__ import annotations

import os

# While a channel is busy, gRPC's handlers break every fifth or so process that is forked here, also those that are only
# to become another program: Spark starts its Java so. Channels of asyncio survive no fork with them either. Whoever
# needs them sets the variable, or imports grpc first.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")

try:
    import google.protobuf  # noqa: F401
    import grpc  # noqa: F401
except ImportError as missing:
    raise ImportError(
        f'gRPC needs packages that are not installed ({missing.name}): pip install "casque[server]"'
    ) from missing
