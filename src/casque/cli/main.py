"""The commands and how they are found."""

from __future__ import annotations

from typing import Annotated

import typer

from casque import __version__
from casque.cli.demo import demo
from casque.cli.doctor import doctor

app = typer.Typer(
    name="casque",
    help="A durable job queue whose only infrastructure is a bucket.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(demo)
app.command()(doctor)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"casque {__version__}")
        raise typer.Exit


@app.callback()
def casque(
    version: Annotated[
        bool, typer.Option("--version", help="Say which release this is.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """A durable job queue whose only infrastructure is a bucket."""


def main() -> None:
    app()
