"""The change feed: what happened to which job, in which commit. Reads the log independently of the commit loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import msgspec

from casque.engine.held_commits import HeldCommits, Stretch
from casque.engine.pulse import Pulse
from casque.environment import Environment
from casque.fields import SPEC
from casque.journal.log.follower import Follower
from casque.service import EventKind, QueueEvent
from casque.settings import milliseconds
from casque.state import Added, Admitted, Advanced, Event, Scheduled
from casque.state.events import subject
from casque.storage.port import Store
from casque.types import from_ms


async def follow(
    store: Store,
    position: int | None,
    env: Environment,
    *,
    for_ever: bool,
    pulse: Pulse | None = None,
    turns: asyncio.Semaphore | None = None,
    held: HeldCommits | None = None,
) -> AsyncGenerator[QueueEvent]:
    """The events after a position, or from now on. With a pulse, reads only when there is something new. `turns` limits
    concurrent reads: decoding blocks the loop, and many readers at once would delay all other calls. `held` bounds the
    memory of all readers that consume more slowly than they read."""
    turns = turns or asyncio.Semaphore(1)
    follower = Follower(store, env)
    poll_min, poll_max = milliseconds(env.settings.poll_min), milliseconds(env.settings.poll_max)
    delay_ms = poll_min
    started = False
    stretch = Stretch(held or HeldCommits(env.clock))
    try:
        while True:
            if not started and not (started := await follower.start(position)):
                position = position or 0  # a queue that does not exist yet is followed from its beginning
            if started:
                async with turns:
                    found = await stretch.fill(follower)
                if found:
                    delay_ms = poll_min
                    while (event := _next_of(stretch)) is not None:
                        yield event
                    continue
            if not for_ever:
                return
            if pulse is not None:
                await pulse.after(follower.position)
                continue
            pause_ms = max(delay_ms * (0.5 + env.rng.random() / 2), env.budget.poll_spacing_ms())
            await env.clock.sleep(pause_ms / 1000)
            delay_ms = min(delay_ms * 2, poll_max)
    finally:
        stretch.let_go()


def _next_of(stretch: Stretch) -> QueueEvent | None:
    """Keep only the event while its reader is busy with it."""
    if (found := stretch.next()) is None:
        return None
    commit, index = found
    event = commit.events[index]
    return QueueEvent(commit.position, index, from_ms(commit.at), _kind(event), subject(event), _fields(event))


_ADDED = tuple(field.logged or field.name for field in SPEC)
"""The names of a job's fields in the feed: those of the log."""


def _kind(event: Event) -> EventKind:
    return EventKind(str(event.__struct_config__.tag))


def _fields(event: Event) -> dict[str, Any]:
    fields = msgspec.structs.asdict(event)
    fields.pop("job_id", None)
    if isinstance(event, Admitted):
        # In the same form as on every wire.
        fields["parts"] = [msgspec.structs.asdict(part) for part in event.parts]
        fields["skipped"] = [list(run) for run in event.skipped]
    if isinstance(event, Scheduled):
        del fields["spec"]
        fields = msgspec.to_builtins(event.spec) | fields
    if isinstance(event, Advanced):
        fields["progress"] = msgspec.structs.asdict(event.progress)
    if isinstance(event, Added):
        # Show the fields of the job, not the spec that wraps them.
        del fields["spec"]
        fields = dict(zip(_ADDED, msgspec.structs.astuple(event.spec), strict=True)) | fields
        del fields["id"]
        if event.spec.blob is None:
            del fields["blob"], fields["blob_bytes"]
    return fields
