"""Options of a new job, for `casque enqueue` and `casque cron set`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from casque.cli.command import Options
from casque.cli.options import parse_pairs, parse_span
from casque.client.new_jobs import NewJob


class NewJobOptions(Options, frozen=True, kw_only=True):
    """What a job is enqueued with, besides its entrypoint and payload."""

    priority: Annotated[int, typer.Option("--priority", "-p", help="Lower runs first.")] = 0
    key: Annotated[
        str | None, typer.Option("--key", "-k", help="Add nothing while an unfinished job has this key.")
    ] = None
    zone: Annotated[
        str | None, typer.Option("--zone", "-z", help="The tenant of the job: zones take turns, see `casque zones`.")
    ] = None
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", metavar="NAME=VALUE", help="Stored with the job; may be repeated."),
    ] = None
    max_attempts: Annotated[
        int | None,
        typer.Option("--max-attempts", min=1, help="Failed attempts after which the job is dead; 25 unless set."),
    ] = None
    max_crashes: Annotated[
        int | None,
        typer.Option(
            "--max-crashes",
            min=1,
            help="Quarantine the job after this many worker crashes, which do not count as attempts.",
        ),
    ] = None

    tag: Annotated[
        list[str] | None,
        typer.Option("--tag", "-t", metavar="TEXT", help="A text to find the job by; may be repeated."),
    ] = None

    expires: Annotated[
        str | None,
        typer.Option("--expires", metavar="SPAN", help="Cancel the job if no worker claims it in time: 30s, 10m, 2h."),
    ] = None

    def job(self, entrypoint: str, payload: bytes, **more: Any) -> NewJob[bytes]:
        """Raises InvalidInputError."""
        return NewJob(
            entrypoint,
            payload,
            priority=self.priority,
            key=self.key,
            zone=self.zone,
            headers=parse_pairs(self.header, "--header is written NAME=VALUE, not {!r}") or None,
            max_attempts=self.max_attempts,
            max_crashes=self.max_crashes,
            tags=tuple(self.tag or ()),
            expires=None if self.expires is None else parse_span("--expires", self.expires),
            **more,
        )
