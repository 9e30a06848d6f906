"""Schedules are set, changed, paused and dropped, and events report it."""

from __future__ import annotations

from contextlib import aclosing

import msgspec
import pytest

from casque.errors import ScheduleNotFoundError
from casque.service import EventKind, QueueService
from casque.testing.service_suite.jobs import UNICODE
from casque.types import JobSpec, Missed, ScheduleSpec


class ScheduleTests:
    async def test_a_schedule_is_set_changed_paused_and_dropped(self, service: QueueService) -> None:
        job = JobSpec(
            "", "report", b"\x00all", 3, None, 2, "k", {"a": UNICODE}, "north", max_crashes=4, tags=("t", "grüße")
        )
        spec = ScheduleSpec("näctly/1", "0 0 1 1 *", job, "Europe/Berlin", Missed.ALL, "shop.jobs")

        first = await service.set_schedule(spec)
        again = await service.set_schedule(spec)

        assert (first.spec, first.paused, first.last_ms) == (spec, False, None)
        assert again == first
        assert await service.schedules() == [first]
        assert await service.pause_schedule("näctly/1", paused=True) == msgspec.structs.replace(first, paused=True)
        changed = await service.set_schedule(msgspec.structs.replace(spec, cron="0 0 2 1 *"))
        assert (changed.paused, changed.next_ms - first.next_ms) == (True, 86_400_000)
        assert (await service.pause_schedule("näctly/1", paused=False)).next_ms == changed.next_ms
        await service.drop_schedule("näctly/1")
        assert await service.schedules() == []
        with pytest.raises(ScheduleNotFoundError):
            await service.drop_schedule("näctly/1")
        with pytest.raises(ScheduleNotFoundError):
            await service.pause_schedule("näctly/1", paused=True)
        assert (await service.stats()).totals.enqueued == 0

    async def test_events_tell_of_schedules(self, service: QueueService) -> None:
        spec = ScheduleSpec("nightly", "@yearly", JobSpec("", "report", b"all"))
        scheduled = await service.set_schedule(spec)
        await service.drop_schedule("nightly")

        async with aclosing(service.events(from_position=0, follow=False)) as events:
            told = [event async for event in events]

        assert [(event.kind, event.job_id) for event in told] == [
            (EventKind.SCHEDULED, None),
            (EventKind.UNSCHEDULED, None),
        ]
        assert told[0].fields["name"] == told[1].fields["name"] == "nightly"
        assert (told[0].fields["cron"], told[0].fields["next_ms"]) == ("@yearly", scheduled.next_ms)
        assert told[0].fields["job"]["entrypoint"] == "report"
