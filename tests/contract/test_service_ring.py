"""The suite for services on a ring of four shards, as far as a ring promises the same as a queue.

What it promises differently is named here, with the reason; `tests/unit/ring/test_ring.py` has tests for that.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from casque.client.opening import Parts, as_store
from casque.client.queue import DEFAULTS
from casque.service import Host
from casque.testing import ServiceSuite
from casque.testing.hosting import FixedHost

NUMBERS = "numbers and tokens have the shard in their lowest digits, and do not begin at 1"
COMMITS = "each shard has commits of its own"
APART = "ids are looked for in the shard that the job goes to; casque's own are random"
STAGED = "each shard admits its own jobs, at a position of its own"
HISTORIES = "each shard has a history of its own, with positions of its own"
SCHEDULED = "the job of a schedule has no zone and no key"
ARCHIVES = "the suite makes a queue without shards for it"
TURNS = "zones take turns within each shard"
IN_TURNS = "listings are in order within each shard"

DIFFERS = {
    "test_an_added_job_is_what_was_asked_for": NUMBERS,
    "test_jobs_of_one_call_are_added_in_order": NUMBERS,
    "test_a_claim_has_a_lease": NUMBERS,
    "test_an_id_that_is_taken_is_refused_and_nothing_is_added": APART,
    "test_staged_jobs_are_admitted_together_and_in_order": STAGED,
    "test_a_batch_is_admitted_once": STAGED,
    "test_a_known_id_refuses_all_unless_it_is_to_be_skipped": IN_TURNS,
    "test_a_dequeue_that_waits_gets_an_admitted_job": STAGED,
    "test_an_admission_is_an_event_before_those_of_its_jobs": STAGED,
    "test_many_outcomes_have_an_answer_each": COMMITS,
    "test_outcomes_that_are_told_again_are_answered_as_before": COMMITS,
    "test_thousands_are_claimed_and_settled_at_once": COMMITS,
    "test_a_schedule_is_set_changed_paused_and_dropped": SCHEDULED,
    "test_events_tell_of_schedules": HISTORIES,
    "test_events_tell_what_happened": HISTORIES,
    "test_events_go_on_where_a_reader_stopped": HISTORIES,
    "test_many_events_come_whole_and_in_order": HISTORIES,
    "test_the_archive_has_what_is_finished": ARCHIVES,
    "test_the_archive_is_read_by_time_state_and_entrypoint": ARCHIVES,
    "test_zones_take_turns_and_can_be_claimed_by_name": TURNS,
    "test_a_listing_is_by_state_and_entrypoint": IN_TURNS,
    "test_purging_may_be_for_one_zone": IN_TURNS,
    "test_a_long_listing_comes_whole": IN_TURNS,
}


class TestRingInMemory(ServiceSuite):
    @pytest.fixture(autouse=True)
    def _as_far_as_it_applies(self, request: pytest.FixtureRequest) -> None:
        if (why := DIFFERS.get(request.node.originalname)) is not None:
            pytest.skip(why)

    @pytest_asyncio.fixture
    async def host(self, place: str) -> AsyncIterator[Host]:
        parts = Parts(as_store(place), DEFAULTS)
        await parts.builder().create(4)
        ring = parts.ring()
        await ring.start()
        try:
            yield FixedHost(ring)
        finally:
            await ring.stop()
            await parts.store.close()


class TestRingOnFiles(TestRingInMemory):
    @pytest.fixture
    def place(self, tmp_path: Path) -> str:
        return f"file://{tmp_path}/queue"
