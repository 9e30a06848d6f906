"""Options of a new job, for `casque enqueue` and `casque cron set`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from casque.cli.command import Options
from casque.cli.options import parse_pairs
from casque.client.new_jobs import NewJob


class NewJobOptions(Options, frozen=True, kw_only=True):
    """What a job is enqueued with, besides its entrypoint and payload."""

    priority: Annotated[int, typer.Option("--priority", "-p", help="Lower runs first.")] = 0
    key: Annotated[
        str | None, typer.Option("--key", "-k", help="While an unfinished job holds this key, nothing is added.")
    ] = None
    zone: Annotated[
        str | None, typer.Option("--zone", "-z", help="Whose job it is: zones take turns, see `casque zones`.")
    ] = None
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", metavar="NAME=VALUE", help="Stored with the job; may be repeated."),
    ] = None
    max_attempts: Annotated[
        int | None, typer.Option("--max-attempts", min=1, help="The job is dead after this many; 25 unless set.")
    ] = None
    max_crashes: Annotated[
        int | None,
        typer.Option(
            "--max-crashes",
            min=1,
            help="Quarantine it after it killed this many workers; they do not count as attempts.",
        ),
    ] = None

    tag: Annotated[
        list[str] | None,
        typer.Option("--tag", "-t", metavar="TEXT", help="To find the job by; may be repeated."),
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
            **more,
        )
