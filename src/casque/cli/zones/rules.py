"""`casque zones set|pause|resume`: the rules of a zone."""

from __future__ import annotations

from collections.abc import Callable
from types import EllipsisType
from typing import Annotated, Any

import msgspec
import typer

from casque.cli.command import command
from casque.cli.options import Json
from casque.cli.output import answer
from casque.cli.target import QueueTarget
from casque.cli.zones.view import Zone, describe_rules, name_zone
from casque.client.queue import Queue
from casque.errors import InvalidInputError
from casque.types import ZoneRules

NO_LIMIT = "none"


class ZoneRulesView(msgspec.Struct, frozen=True):
    """The rules of a zone from now on."""

    zone: str
    weight: float
    running_max: int | None
    per_second: float | None
    paused: bool


@command(
    "zones set",
    examples=[
        "casque zones set acme --weight 3",
        "casque zones set grpc://broker:7700 giant --running-max 20 --per-second 5",
        "casque zones set giant --running-max none --per-second none --weight 1",
    ],
    audited=True,
)
def set_(
    target: QueueTarget,
    zone: Zone = None,
    weight: Annotated[
        float | None,
        typer.Option("--weight", "-w", metavar="X", help="Its share of the turns: 2 has twice the jobs of 1."),
    ] = None,
    running_max: Annotated[
        str | None,
        typer.Option("--running-max", "-r", metavar="N|none", help="How many of its jobs may run at a time."),
    ] = None,
    per_second: Annotated[
        str | None,
        typer.Option("--per-second", "-p", metavar="X|none", help="How many of its jobs may be claimed in a second."),
    ] = None,
    json: Json = False,
) -> None:
    """Change the share of a zone among those that have jobs waiting, and its limits. What is not given stays as it is,
    `none` removes a limit, and a zone may be set up before its first job comes.

    The weight is 1 unless set. It is about turns while others wait: a zone that is alone gets everything, up to its
    limits. Limits hold for the whole queue, however many workers there are.

    Exit code 0: it is set. 1: the queue is damaged. 2: it cannot be done, or makes no sense. 4: the outcome is unknown.
    """
    target, name = name_zone(target, "set", zone)
    if weight is None and running_max is None and per_second is None:
        raise InvalidInputError("what is to be set? --weight, --running-max or --per-second")
    most: int | EllipsisType | None = _parse_limit("--running-max", running_max, int)
    rate: float | EllipsisType | None = _parse_limit("--per-second", per_second, float)
    rules = target.run(lambda q: q.set_zone(name, weight=weight, running_max=most, per_second=rate))
    _report(name, rules, f"{name!r}: {describe_rules(rules)}", json)


@command("zones pause", examples=["casque zones pause acme"], audited=True)
def pause(target: QueueTarget, zone: Zone = None, json: Json = False) -> None:
    """Stop all claims of a zone's jobs until it is resumed. Running jobs go on, and jobs may be added.

    Exit code 0: it is paused. 1: the queue is damaged. 2: it cannot be done. 4: the outcome is unknown.
    """
    _set_paused(target, "pause", zone, json)


@command("zones resume", examples=["casque zones resume grpc://broker:7700 acme"], audited=True)
def resume(target: QueueTarget, zone: Zone = None, json: Json = False) -> None:
    """Let the jobs of a paused zone be claimed again. Its weight and its limits are as before.

    Exit code 0: it goes on. 1: the queue is damaged. 2: it cannot be done. 4: the outcome is unknown.
    """
    _set_paused(target, "resume", zone, json)


def _set_paused(target: QueueTarget, verb: str, zone: str | None, json: bool) -> None:
    paused = verb == "pause"
    target, name = name_zone(target, verb, zone)

    async def work(q: Queue[bytes]) -> tuple[bool, ZoneRules]:
        was = any(one.rules.paused for one in await q.zones(name))
        return was is paused, await q.set_zone(name, paused=paused)

    again, rules = target.run(work)
    already = " already" if again else ""
    state = f"is paused{already}: none of its jobs are claimed" if paused else f"is open{already}"
    _report(name, rules, f"{name!r} {state}", json)


def _report(name: str, rules: ZoneRules, text: str, json: bool) -> None:
    view = ZoneRulesView(name, rules.weight, rules.running_max, rules.per_second, rules.paused)
    answer(view, text, json=json)


def _parse_limit(option: str, text: str | None, number: Callable[[str], Any]) -> Any:
    """A number, None for no limit, `...` if the option was not given."""
    if text is None:
        return ...
    if text.lower() == NO_LIMIT:
        return None
    try:
        return number(text)
    except ValueError:
        kind = "a whole number" if number is int else "a number"
        raise InvalidInputError(f"{option} takes {kind}, or none for no limit, not {text!r}") from None
