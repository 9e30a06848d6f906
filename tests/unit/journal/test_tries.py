"""How long a write is tried, and what is said in the end."""

from __future__ import annotations

import errno
import os
from datetime import timedelta

import pytest

from casque.environment import Environment
from casque.errors import StorageError, UnknownOutcomeError
from casque.journal.tries import Tries
from casque.settings import QueueSettings
from casque.storage.port import Outcome, Unknown
from casque.testing.clock import ManualClock

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


async def full() -> Outcome:
    raise StorageError("could not create 'log/2'", FULL)


async def unanswered() -> Outcome:
    return Unknown(TimeoutError("no answer"))


def impatient(clock: ManualClock) -> Tries:
    """Without time for a second attempt."""
    settings = QueueSettings(storage_patience=timedelta(milliseconds=1))
    return Tries("commit 2", Environment(settings, clock=clock).patience)


async def test_a_full_disk_is_reported_at_once() -> None:
    clock = ManualClock()
    tries = Tries("commit 2", Environment(clock=clock).patience)
    before = clock.monotonic_ms()

    with pytest.raises(StorageError, match="the disk is full, and commit 2 was not written") as failed:
        await tries.attempt(full)

    assert failed.value.cause is FULL
    assert clock.monotonic_ms() == before


async def test_a_full_disk_after_an_attempt_without_an_answer_leaves_the_outcome_open() -> None:
    tries = impatient(ManualClock())
    tries.sent = True

    with pytest.raises(UnknownOutcomeError, match="did not say whether commit 2 landed"):
        await tries.attempt(full)


async def test_a_store_without_an_answer_is_tried_until_time_is_up() -> None:
    tries = impatient(ManualClock())

    with pytest.raises(UnknownOutcomeError, match="no answer"):
        await tries.attempt(unanswered)
