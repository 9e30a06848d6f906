"""What a cloud store says about credentials that are missing."""

from __future__ import annotations

import pytest

from casque.errors import StoreAccessError
from casque.storage.cloud import CloudStore

ASKED_THE_MACHINE = {
    "s3": "Generic S3 error: Error performing PUT http://169.254.169.254/latest/api/token in 5 ms - Server returned",
    "gs": "Generic GCS error: Error performing GET http://metadata.google.internal/computeMetadata/v1 in 5 ms",
    "az": "Generic MicrosoftAzure error: Error performing GET http://169.254.169.254/metadata/identity in 5 ms",
}


@pytest.mark.parametrize(
    ("scheme", "said"),
    [
        ("s3", "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
        ("gs", "Set GOOGLE_APPLICATION_CREDENTIALS"),
        ("az", "Set AZURE_STORAGE_ACCOUNT_KEY"),
    ],
)
def test_a_store_without_credentials_says_which_to_set(scheme: str, said: str) -> None:
    options = {"account_name": "shop"} if scheme == "az" else {}
    store = CloudStore(scheme, "bucket", "orders", options=options)

    error = store._translate(Exception(ASKED_THE_MACHINE[scheme]), "read 'queue.json'")

    assert isinstance(error, StoreAccessError)
    assert f"could not read 'queue.json': no credentials were found, and this machine has no role. {said}" in str(error)
    assert "169.254" not in str(error)
    assert "metadata" not in str(error)
