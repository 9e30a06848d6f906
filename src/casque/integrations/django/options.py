"""`OPTIONS` of the backend in Django's settings."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any

import msgspec
from django.core.exceptions import ImproperlyConfigured

from casque.errors import CasqueError
from casque.functions.app import App

ARCHIVE_INTERVAL = timedelta(seconds=1)
"""Results are read from the archive, so that it is written sooner than usual."""

Seconds = Annotated[float, msgspec.Meta(ge=0)]


class BackendOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `OPTIONS` may have. Without `url`, CASQUE_URL or casque.toml names the queue."""

    url: str | None = None
    options: dict[str, str] = {}
    """Options of the store, such as its region."""
    via: str | None = None
    """`"broker"`: through the broker that leads the queue."""
    token: str | None = None
    settings: dict[str, Any] = {}
    """Settings of the queue, by their names in `casque.QueueSettings`."""
    max_attempts: Annotated[int, msgspec.Meta(ge=1)] = 1
    """Failed attempts after which a task has failed. Django's tasks are not retried unless you raise it."""
    max_crashes: Annotated[int, msgspec.Meta(ge=1)] = 5
    """Workers that a task may kill before it has failed. These are no attempts."""
    backoff: Seconds | list[Seconds] = 1.0
    """Seconds before the next attempt, doubled each time; or a list of waits, of which the last one repeats."""
    timeout: Annotated[float, msgspec.Meta(gt=0)] | None = None
    """Seconds after which an attempt has failed."""
    enqueue_on_commit: bool = True
    """Whether a task that is enqueued in a transaction waits for its commit."""
    database: str = "default"
    """The database whose transactions count."""

    def archive_interval(self) -> timedelta:
        """How soon a finished task is in the archive."""
        found: timedelta = self.settings.get("archive_interval", ARCHIVE_INTERVAL)
        return found

    def located(self) -> tuple[Any, Mapping[str, Any]]:
        """URL and other arguments for `Queue.open`.

        Raises:
            InvalidInputError: no URL was given, or a setting is unknown.
        """
        app = App(
            self.url,
            options=self.options or None,
            via=self.via,
            token=self.token,
            **{**self.settings, "archive_interval": self.archive_interval()},
        )
        return app.located()


def backend_options(alias: str, given: Mapping[str, Any]) -> BackendOptions:
    """
    Raises:
        ImproperlyConfigured: names the option and what it takes.
    """
    try:
        found = msgspec.convert(dict(given), BackendOptions)
        App(found.url, **found.settings)  # an unknown setting is reported when the server starts, not at the first task
    except (msgspec.ValidationError, CasqueError) as error:
        raise ImproperlyConfigured(f"TASKS[{alias!r}]['OPTIONS']: {error}") from error
    return found
