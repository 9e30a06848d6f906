"""List prices of requests to object stores, in US dollars. For estimates only."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Prices(msgspec.Struct, frozen=True):
    """Prices of one request. Deleting is free at all of these, and so is transfer within a region.

    >>> round(S3.dollars(puts=1_000_000, gets=1_000_000), 2)
    5.4
    """

    put: float
    """A write or a listing."""
    get: float
    round_trip_ms: float
    """Approximate time of a small write from a machine in the same region."""

    def dollars(self, *, puts: float, gets: float) -> float:
        return puts * self.put + gets * self.get


class StoreKind(StrEnum):
    S3 = "s3"
    S3_EXPRESS = "s3-express"
    GCS = "gcs"
    R2 = "r2"
    FILES = "files"


S3 = Prices(0.005 / 1000, 0.0004 / 1000, 25)
PRICES = {
    StoreKind.S3: S3,
    StoreKind.S3_EXPRESS: Prices(0.00113 / 1000, 0.00003 / 1000, 7),
    StoreKind.GCS: Prices(0.005 / 1000, 0.0004 / 1000, 40),
    StoreKind.R2: Prices(4.50 / 1_000_000, 0.36 / 1_000_000, 60),
    StoreKind.FILES: Prices(0, 0, 0.5),
}
"""As published in 2026: S3 Standard and S3 Express One Zone in us-east-1, Google's Standard class in one region,
Cloudflare's R2."""
