"""Functions that are due again and again: what `@app.cron` declares, and how the queue hears of it."""

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
    """Tell the queue what is declared. One that it knows stays as it is, its next tick and a pause included.

    Returns schedules that these modules declared before and do not any longer. They go on until somebody drops them:
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
    """For a worker, which can work all the same: without the right to do this, and, if nothing is declared, with a
    broker that knows nothing of schedules."""
    try:
        await register(queue, declared, modules)
    except NotAllowedError as error:
        if declared:
            log.warning("the schedules of this app were not set; those that the queue has go on: %s", error)
    except InvalidInputError:
        if declared:
            raise
