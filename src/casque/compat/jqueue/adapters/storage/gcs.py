"""One object on Google Cloud Storage."""

from __future__ import annotations

from typing import Any

from casque.compat.jqueue.domain.errors import translated
from casque.storage import cloud_single


class GCSStorage(cloud_single.GCSStorage):
    """`client` is a `google.cloud.storage.Client`; without one Google's package is not needed."""

    def __init__(self, bucket_name: str, blob_name: str, client: Any = None) -> None:
        super().__init__(bucket_name, blob_name, client=client)
        self.bucket_name = bucket_name
        self.blob_name = blob_name
        self.client = client

    async def read(self) -> tuple[bytes, str | None]:
        with translated():
            return await super().read()

    async def write(self, content: bytes, if_match: str | None = None) -> str:
        with translated():
            return await super().write(content, if_match)
