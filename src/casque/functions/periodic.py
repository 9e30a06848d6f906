"""Schedules that `@app.cron` declares, and their registration with the queue."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from casque.client.queue import Queue
from casque.errors import InvalidInputError, NotAllowedError
from casque.functions.job import JobCall
from casque.telemetry import logger
from casque.types import Missed, Schedule

log = logger("functions")


class Periodic(msgspec.Struct, frozen=True):
    """A call of a function that is due at every tick."""

    name: str
    cron: str
    call: JobCall[Any]
    tz: str
    missed: Missed

    @property
    def origin(self) -> str:
        """The module that declares it."""
        return str(self.call.definition.function.__module__)


async def register(queue: Queue[bytes], declared: Mapping[str, Periodic], modules: Iterable[str]) -> list[Schedule]:
    """Register the declared schedules. One that the queue has stays as it is, with its next tick and its pause.

    Returns schedules that these modules declared before and no longer do. They continue until they are dropped by hand:
    an older release of the program may still run elsewhere.
    """
    known = {schedule.name: schedule for schedule in await queue.schedules()}
    for one in declared.values():
        before = known.get(one.name)
        now = await queue.set_schedule(
            one.name, one.cron, one.call.new, tz=one.tz, missed=one.missed, origin=one.origin
        )
        if before is None:
            log.info("the schedule %s is new: %s, first at %s", one.name, one.cron, now.next_at)
        elif before.spec != now.spec:
            log.info("the schedule %s has changed: %s, next at %s", one.name, one.cron, now.next_at)
    vanished = [one for one in known.values() if one.spec.origin in set(modules) and one.name not in declared]
    for schedule in vanished:
        log.warning(
            "the schedule %s is no longer declared in %s, and goes on: `casque cron drop %s` ends it",
            schedule.name,
            schedule.spec.origin,
            schedule.name,
        )
    return vanished


async def register_if_possible(queue: Queue[bytes], declared: Mapping[str, Periodic], modules: Iterable[str]) -> None:
    """For a worker, which also works without: if it lacks the right to register, or, when nothing is declared, if the
    broker does not support schedules."""
    try:
        await register(queue, declared, modules)
    except NotAllowedError as error:
        if declared:
            log.warning("the schedules of this app were not set; those that the queue has go on: %s", error)
    except InvalidInputError:
        if declared:
            raise
