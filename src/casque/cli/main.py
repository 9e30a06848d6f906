"""The commands and how they are found."""

from __future__ import annotations

import typer

app = typer.Typer(
    name="casque",
    help="A durable job queue whose only infrastructure is a bucket.",
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode="rich",
)


@app.callback()
def casque() -> None:
    """A durable job queue whose only infrastructure is a bucket."""


def main() -> None:
    app()
