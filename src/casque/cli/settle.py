"""`casque ack URL ID TOKEN` and `casque nack URL ID TOKEN`: what became of a claimed job."""

from __future__ import annotations

from typing import Annotated

import typer

from casque.cli.enqueue import payload_of, span
from casque.cli.place import QueueName, apart, find_place
from casque.cli.running import Json, OptionalUrl, StoreOptions, clear_ends, on_queue
from casque.cli.terminal import print_json, say
from casque.client.queue import Queue
from casque.errors import InvalidInputError
from casque.service import Lease, Outcome

EXAMPLES_ACK = """
[bold]Examples[/]

  casque ack file:///var/lib/orders 05789eba-9c3a-4b4b-967a-84db93d181bf 10

  casque ack 05789eba-9c3a-4b4b-967a-84db93d181bf 10 --result @out.json
"""
EXAMPLES_NACK = """
[bold]Examples[/]

  casque nack file:///var/lib/orders 05789eba-9c3a-4b4b-967a-84db93d181bf 10 --error 'no such user'

  casque nack 05789eba-9c3a-4b4b-967a-84db93d181bf 10 --delay 5m

  casque nack 05789eba-9c3a-4b4b-967a-84db93d181bf 10 --final --error 'there is no such order'
"""

JobId = Annotated[str | None, typer.Argument(metavar="ID", help="The job that was claimed.", show_default=False)]
Token = Annotated[
    str | None,
    typer.Argument(metavar="TOKEN", help="The token of its lease, as dequeue printed it.", show_default=False),
]


def ack(
    url: OptionalUrl = None,
    job_id: JobId = None,
    token: Token = None,
    result: Annotated[
        str | None, typer.Option("--result", help="For the archive: text, - for standard input, or @FILE.")
    ] = None,
    json: Json = False,
    queue: QueueName = None,
    option: StoreOptions = None,
) -> None:
    """A claimed job is done: it leaves the queue, and goes to the archive.

    Exit code 0: done. 1: it is not in the queue any more, or the lease is somebody else's; nothing was changed. 2: it
    cannot be done. 4: nobody knows whether it was done; asking again does no harm.
    """
    with clear_ends():
        address, rest = apart(url, job_id, token)
        lease = _lease(rest, "ack")
        said = None if result is None else payload_of(result)
        place = find_place(address, queue, option)
    on_queue(place, lambda q: q.ack(lease.job_id, lease.token, result=said))
    _tell(lease, "done", json)


def nack(
    url: OptionalUrl = None,
    job_id: JobId = None,
    token: Token = None,
    delay: Annotated[
        str | None,
        typer.Option("--delay", metavar="SPAN", help="Again after this: 30s, 5m, 0; a growing back-off unless set."),
    ] = None,
    error: Annotated[str | None, typer.Option("--error", help="Why; kept with the job.")] = None,
    final: Annotated[
        bool, typer.Option("--final", help="Trying again will not help: it is dead, whatever attempts it has left.")
    ] = False,
    json: Json = False,
    queue: QueueName = None,
    option: StoreOptions = None,
) -> None:
    """A claimed job has failed: it is tried again later, or kept as dead if that was its last attempt or --final.

    Exit code 0: taken note of. 1: it is not in the queue any more, or the lease is somebody else's; nothing was
    changed. 2: it cannot be done. 4: nobody knows whether it was done; asking again does no harm.
    """
    with clear_ends():
        address, rest = apart(url, job_id, token)
        lease = _lease(rest, "nack")
        pause = None if delay is None else span("--delay", delay)
        if final and pause is not None:
            raise InvalidInputError("give --delay for a job that is tried again, or --final for one that is not")
        place = find_place(address, queue, option)

    async def work(q: Queue[bytes]) -> None:
        if not final:
            await q.nack(lease.job_id, lease.token, delay=pause, error=error)
            return
        assert lease.token is not None
        [refused] = await q.settle([Outcome(lease.job_id, lease.token, error=error or "given up", final=True)])
        if refused is not None:
            raise refused

    on_queue(place, work)
    _tell(lease, "dead" if final else "failed", json)


def _lease(rest: list[str], verb: str) -> Lease:
    if len(rest) != 2:
        raise InvalidInputError(f"casque {verb} [URL] ID TOKEN: needs the job and the token that dequeue printed")
    job_id, token = rest
    if not (token.isascii() and token.isdecimal()):
        raise InvalidInputError(f"TOKEN is the number that dequeue printed, not {token!r}")
    return Lease(job_id, int(token))


def _tell(lease: Lease, outcome: str, json: bool) -> None:
    if json:
        print_json({"id": lease.job_id, "token": lease.token, "outcome": outcome})
    else:
        say(f"{lease.job_id} {outcome}")
