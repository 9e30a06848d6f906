"""Which queue a command works on, and how it is opened.

The URL argument, `--queue`, CASQUE_URL or a file names it; see `casque.client.config`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, TypeVar, Unpack

import msgspec
import typer

from casque.cli.command import Options
from casque.cli.options import StoreOptions, parse_options
from casque.cli.output import say
from casque.cli.reaching import Brokers, watch
from casque.client.config import QueueConfig, default_queue, default_queue_hint, named_queue, queue_names
from casque.client.connecting import ClientTlsFiles
from casque.client.head import MISSING
from casque.client.leading import is_led, look_up
from casque.client.opening import as_store
from casque.client.queue import Queue
from casque.errors import InvalidInputError
from casque.settings import SettingsChanges
from casque.storage.port import Store
from casque.storage.url import is_address, open_store

R = TypeVar("R")

PATHS = ("/", "./", "../", "~/")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def complete_queue_names(incomplete: str) -> list[str]:
    """For shells that complete `--queue`. A broken file has no names; the command itself reports it."""
    try:
        return [name for name in queue_names() if name.startswith(incomplete)]
    except InvalidInputError:
        return []


QueueUrl = Annotated[
    str | None,
    typer.Argument(
        metavar="URL",
        help="The queue's bucket (s3://bucket/prefix, file:///path) or brokers (grpc://host:port). May be left out if "
        "--queue, CASQUE_URL or casque.toml names it.",
        show_default=False,
    ),
]


QueueName = Annotated[
    str | None,
    typer.Option(
        "--queue",
        "-q",
        metavar="NAME",
        help="A queue that casque.toml names, instead of a URL.",
        autocompletion=complete_queue_names,
    ),
]
BrokerCa = Annotated[
    str | None,
    typer.Option(
        "--ca",
        metavar="FILE",
        help="The authority that signed the certificate of the brokers, PEM; `system` for those of this machine.",
    ),
]


class AppQueue(QueueConfig, frozen=True):
    """The queue of an app."""

    given: SettingsChanges = msgspec.field(default_factory=SettingsChanges)
    token: str | None = None

    def changes(self) -> SettingsChanges:
        return self.given


def with_ca(tls: ClientTlsFiles | None, ca: str) -> ClientTlsFiles:
    """The client's side of TLS, with the authority of `--ca`."""
    return msgspec.structs.replace(tls or ClientTlsFiles(), ca=None if ca == "system" else ca)


class Target(Options, frozen=True, kw_only=True):
    """A queue, by its URL or by a name."""

    options_last: ClassVar[bool] = True
    url: QueueUrl = None
    queue: QueueName = None
    app: Annotated[
        str | None,
        typer.Option("--app", metavar="MODULE:APP", help="The queue of this app, for example shop.jobs:app."),
    ] = None
    option: StoreOptions = None

    def separate(self, *others: str | None, count: int | None = None, usage: str = "") -> tuple[Self, list[str]]:
        """Separate the URL from the arguments after it. It may be left out, and then the first one is in its place.

        Raises:
            InvalidInputError: there are not `count` others; the message is `usage`.
        """
        given = [one for one in (self.url, *others) if one is not None]
        if given and given[0].startswith(PATHS) and self._expects_url(given[0]):
            path = Path(given[0]).expanduser().absolute()
            raise InvalidInputError(f"{given[0]!r} is a path, and a queue is named by a URL: write {path.as_uri()}")
        url = given.pop(0) if given and _SCHEME.match(given[0]) else None
        if count is not None and len(given) != count:
            raise InvalidInputError(usage)
        return msgspec.structs.replace(self, url=url), given

    def resolve(self) -> QueueConfig:
        """Find the queue. Store options of the command line win over those of a file.

        Raises:
            InvalidInputError: no queue was named, or a file is invalid.
        """
        place = self._named()
        return msgspec.structs.replace(place, options=place.options | parse_options(self.option))

    def _expects_url(self, path: str) -> bool:
        """Whether a path is in the place of the URL. The name of a job or an entrypoint may look like one."""
        named = self.queue is not None or self.app is not None
        return not named and (Path(path).expanduser().is_dir() or default_queue() is None)

    def _named(self) -> QueueConfig:
        named = [one for one in (self.url, self.queue, self.app) if one is not None]
        if len(named) > 1:
            raise InvalidInputError("give one of a URL, --queue and --app, not several")
        if self.url is not None:
            return QueueConfig(self.url)
        if self.queue is not None:
            return named_queue(self.queue)
        if self.app is not None:
            return _queue_of_app(self.app)
        if (known := default_queue()) is not None:
            return known
        raise InvalidInputError(f"which queue? Give its URL as the first argument, {default_queue_hint()}")


class QueueTarget(Target, frozen=True, kw_only=True):
    """A queue: its bucket, or its brokers."""

    ca: BrokerCa = None

    def resolve(self) -> QueueConfig:
        place = super().resolve()
        return place if self.ca is None else msgspec.structs.replace(place, tls=with_ca(place.tls, self.ca))

    def run(
        self,
        work: Callable[[Queue[bytes]], Awaitable[R]],
        *,
        worker: str | None = None,
        creates: bool = False,
    ) -> R:
        """Open the queue, through the broker that leads it if there is one, and work on it.

        `creates`: make a queue if there is none. Otherwise that is an error: a wrong URL must not look like an empty
        queue.
        """
        place = self.resolve()

        async def run() -> R:
            queue, brokers = await _open(place, worker, creates=creates)

            async def call() -> R:
                async with queue:
                    return await work(queue)

            return await watch(call(), brokers)

        return asyncio.run(run())


class BucketTarget(Target, frozen=True, kw_only=True):
    """A queue whose bucket the command reads or writes itself."""

    url: Annotated[
        str | None,
        typer.Argument(
            metavar="URL",
            help="Where the queue is: s3://bucket/prefix, gs://, az:// or file:///path. May be left out if --queue, "
            "CASQUE_URL or casque.toml names it.",
            show_default=False,
        ),
    ] = None

    def followed_by(self, last: str | None, usage: str) -> tuple[Self, str]:
        """Separate the URL from the argument after it, which is a URL too. The first may be left out.

        Raises:
            InvalidInputError: the last one is missing; the message is `usage`.
        """
        if last is not None:
            return self, last
        if self.url is None:
            raise InvalidInputError(usage)
        return msgspec.structs.replace(self, url=None), self.url

    def run_on_store(self, work: Callable[[Store], Awaitable[R]]) -> R:
        """Open the store, and work on it."""

        async def run() -> R:
            place = self.resolve()
            store = open_store(place.url, options=place.options)
            try:
                return await work(store)
            finally:
                await store.close()

        return asyncio.run(run())


def _queue_of_app(name: str) -> QueueConfig:
    from casque.cli.apps import load_app
    from casque.worker.worker import located

    url, opening = located(load_app(name))
    if not isinstance(url, str):
        raise InvalidInputError(f"the queue of {name!r} has no URL that another process can open: give one to its App")
    settings: Any = {name: value for name, value in opening.items() if name in SettingsChanges.__annotations__}
    return AppQueue(
        url, dict(opening.get("options") or {}), tls=opening.get("tls"), given=settings, token=opening.get("token")
    )


def refuse_store_options(place: QueueConfig) -> None:
    if place.options:
        raise InvalidInputError("store options are for a bucket, and the URL is that of a broker: leave them out")


def short_lived(place: QueueConfig) -> SettingsChanges:
    """The settings of a command that has a queue open for a moment: it must not add the jobs of schedules."""
    return {"ticks": False, **place.changes()}


def open_brokers(place: QueueConfig, worker: str | None = None, **settings: Unpack[SettingsChanges]) -> Queue[bytes]:
    """The queue behind the brokers that a URL names. Raises InvalidInputError for options of a store."""
    refuse_store_options(place)
    return Queue.open(place.url, tls=place.tls, token=_token(place), worker=worker, **settings)


def _token(place: QueueConfig) -> str | None:
    """The token that an app has of its own; otherwise that of the environment is sent."""
    return place.token if isinstance(place, AppQueue) else None


async def _open(place: QueueConfig, worker: str | None, *, creates: bool) -> tuple[Queue[bytes], Brokers | None]:
    opening: dict[str, Any] = {**short_lived(place), "worker": worker}
    if is_address(place.url):
        return open_brokers(place, worker, **short_lived(place)), Brokers.of(place.url, place.tls)
    store = as_store(place.url, place.options)
    try:
        found = await look_up(store)
        if not found.exists:
            if not creates:
                raise InvalidInputError(f"{MISSING}. Is {place.url} right? `casque queue create` makes one")
            say(f"there was no queue at {place.url}: making one", err=True)
        led = await is_led(store, found)
    finally:
        await store.close()
    if not led:
        return Queue.open(place.url, options=place.options, **opening), None
    queue: Queue[bytes] = Queue.open(
        place.url, via="broker", options=place.options, tls=place.tls, token=_token(place), **opening
    )
    known = () if found.leader is None else (found.leader,)
    return queue, Brokers(known, tls=place.tls, from_bucket=True)
