"""jqueue 1.0's API on top of casque: change the package's name in the imports, and nothing else.

    from casque.compat.jqueue import BrokerQueue, HeartbeatManager, InMemoryStorage
    from casque.compat.jqueue.adapters.storage.s3 import S3Storage

The modules have jqueue's paths, arguments and order of arguments. The queue underneath is casque's small API on a
document that jqueue can read. Where jqueue loses or repeats work, casque's behaviour stays: first writes are
conditional, lost replies are settled, and `ack`, `nack` and `heartbeat` are refused for a job that was claimed here and
has gone to another worker since.

`Job` and `QueueState` are pydantic models as in jqueue, so this package needs `pip install "casque[jqueue]"`.

>>> import asyncio
>>> from casque.compat.jqueue import BrokerQueue, HeartbeatManager, InMemoryStorage
>>> async def main():
...     async with BrokerQueue(InMemoryStorage()) as q:
...         await q.enqueue("send_email", b"to ada")
...         [job] = await q.dequeue("send_email")
...         async with HeartbeatManager(q, job.id):
...             print(job.payload)
...         await q.ack(job.id)
...         return (await q.read_state()).jobs
>>> asyncio.run(main())
b'to ada'
()
"""

from __future__ import annotations

from casque.errors import NotInstalledError

try:
    import pydantic as _pydantic
except ImportError as error:
    raise NotInstalledError(
        "casque.compat.jqueue needs pydantic", 'install it with `pip install "casque[jqueue]"`'
    ) from error
else:
    del _pydantic

from casque import __version__
from casque.compat.jqueue.adapters.storage.filesystem import LocalFileSystemStorage
from casque.compat.jqueue.adapters.storage.memory import InMemoryStorage
from casque.compat.jqueue.core.broker import BrokerQueue
from casque.compat.jqueue.core.direct import DirectQueue
from casque.compat.jqueue.core.heartbeat import HeartbeatManager
from casque.compat.jqueue.domain.errors import CASConflictError, JobNotFoundError, JQueueError, StorageError
from casque.compat.jqueue.domain.models import Job, JobStatus, QueueState
from casque.compat.jqueue.ports.storage import ObjectStoragePort

__all__ = [
    "BrokerQueue",
    "CASConflictError",
    "DirectQueue",
    "HeartbeatManager",
    "InMemoryStorage",
    "JQueueError",
    "Job",
    "JobNotFoundError",
    "JobStatus",
    "LocalFileSystemStorage",
    "ObjectStoragePort",
    "QueueState",
    "StorageError",
    "__version__",
]
