"""`casque ack` and `casque nack`: settle a claimed job."""

from __future__ import annotations

from typing import Annotated

import typer

from casque.cli.command import command
from casque.cli.options import Json, parse_span, read_payload
from casque.cli.output import answer
from casque.cli.target import QueueTarget
from casque.client.queue import Queue
from casque.errors import InvalidInputError
from casque.service import Lease, Outcome, OutcomeKind

JobId = Annotated[str | None, typer.Argument(metavar="ID", help="The job that was claimed.", show_default=False)]
Token = Annotated[
    str | None,
    typer.Argument(metavar="TOKEN", help="The token of its lease, as dequeue printed it.", show_default=False),
]


@command(
    "ack",
    examples=[
        "casque ack file:///var/lib/orders 05789eba-9c3a-4b4b-967a-84db93d181bf 10",
        "casque ack 05789eba-9c3a-4b4b-967a-84db93d181bf 10 --result @out.json",
    ],
)
def ack(
    target: QueueTarget,
    job_id: JobId = None,
    token: Token = None,
    result: Annotated[
        str | None,
        typer.Option("--result", metavar="TEXT", help="Result for the archive: text, - for standard input, or @FILE."),
    ] = None,
    json: Json = False,
) -> None:
    """Settle a claimed job as done: it leaves the queue, and goes to the archive.

    Exit code 0: done. 1: it is not in the queue any more, or another process holds its lease; nothing was changed. 2:
    it cannot be done. 4: the outcome is unknown; asking again does no harm.
    """
    target, lease = _parse_lease(target, "ack", job_id, token)
    content = None if result is None else read_payload(result)
    target.run(lambda q: q.ack(lease.job_id, lease.token, result=content))
    _report(lease, "done", json)


@command(
    "nack",
    examples=[
        "casque nack file:///var/lib/orders 05789eba-9c3a-4b4b-967a-84db93d181bf 10 --error 'no such user'",
        "casque nack 05789eba-9c3a-4b4b-967a-84db93d181bf 10 --delay 5m",
        "casque nack 05789eba-9c3a-4b4b-967a-84db93d181bf 10 --final --error 'there is no such order'",
    ],
)
def nack(
    target: QueueTarget,
    job_id: JobId = None,
    token: Token = None,
    delay: Annotated[
        str | None,
        typer.Option(
            "--delay",
            metavar="SPAN",
            help="Wait this long before the next attempt: 30s, 5m, 0; a growing back-off unless set.",
        ),
    ] = None,
    error: Annotated[
        str | None, typer.Option("--error", metavar="TEXT", help="Reason of the failure, kept with the job.")
    ] = None,
    final: Annotated[
        bool, typer.Option("--final", help="Make the job dead now, even if it has attempts left.")
    ] = False,
    json: Json = False,
) -> None:
    """Settle a claimed job as failed: it is tried again later, or kept as dead if that was its last attempt or --final.

    Exit code 0: recorded. 1: it is not in the queue any more, or another process holds its lease; nothing was changed.
    2: it cannot be done. 4: the outcome is unknown; asking again does no harm.
    """
    target, lease = _parse_lease(target, "nack", job_id, token)
    pause = None if delay is None else parse_span("--delay", delay)
    if final and pause is not None:
        raise InvalidInputError("give --delay for a job that is tried again, or --final for one that is not")

    async def work(q: Queue[bytes]) -> None:
        if not final:
            await q.nack(lease.job_id, lease.token, delay=pause, error=error)
            return
        assert lease.token is not None
        [refused] = await q.settle([Outcome(lease.job_id, lease.token, error or "given up", how=OutcomeKind.FINAL)])
        if refused is not None:
            raise refused

    target.run(work)
    _report(lease, "dead" if final else "failed", json)


def _parse_lease(target: QueueTarget, verb: str, *given: str | None) -> tuple[QueueTarget, Lease]:
    usage = f"casque {verb} [URL] ID TOKEN: needs the job and the token that dequeue printed"
    target, [job_id, token] = target.separate(*given, count=2, usage=usage)
    if not (token.isascii() and token.isdecimal()):
        raise InvalidInputError(f"TOKEN is the number that dequeue printed, not {token!r}")
    return target, Lease(job_id, int(token))


def _report(lease: Lease, outcome: str, json: bool) -> None:
    answer({"id": lease.job_id, "token": lease.token, "outcome": outcome}, f"{lease.job_id} {outcome}", json=json)
