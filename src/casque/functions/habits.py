"""Names that other task queues use, and what casque calls them: for messages about a wrong name."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from functools import wraps
from typing import NoReturn, ParamSpec, TypeVar

from casque.errors import InvalidInputError

P = ParamSpec("P")
R = TypeVar("R")

_ATTEMPTS = "max_attempts=, which counts the first attempt too"
_TIMEOUT = "timeout="
_BACKOFF = "backoff="
_RESULTS = "result_ttl=0 to keep no results"
_KEY = "key="
OPTIONS = {
    "retries": _ATTEMPTS,
    "max_retries": _ATTEMPTS,
    "retry": _ATTEMPTS,
    "attempts": _ATTEMPTS,
    "max_tries": _ATTEMPTS,
    "time_limit": _TIMEOUT,
    "soft_time_limit": _TIMEOUT,
    "job_timeout": _TIMEOUT,
    "retry_backoff": _BACKOFF,
    "retry_delay": _BACKOFF,
    "default_retry_delay": _BACKOFF,
    "min_backoff": _BACKOFF,
    "retry_backoff_max": "backoff_cap=",
    "max_backoff": "backoff_cap=",
    "ignore_result": _RESULTS,
    "store_results": _RESULTS,
    "unique": _KEY,
    "unique_key": _KEY,
    "queueing_lock": _KEY,
    "tenant": "zone=",
    "queue": "zone= for tenants, or another casque.App for another queue",
    "bind": "a first parameter annotated with casque.JobContext",
    "pass_context": "a first parameter annotated with casque.JobContext",
    "delay": "function.delay(seconds).enqueue(...) for one call",
}
"""Options of decorators."""
METHODS = {
    "apply_async": "enqueue(...), or delay(seconds).enqueue(...)",
    "s": "bind(...)",
    "si": "bind(...)",
    "signature": "bind(...)",
    "send": "enqueue(...)",
    "send_with_options": "using(...).enqueue(...)",
    "defer": "enqueue_sync(...), or await enqueue(...)",
    "defer_async": "enqueue(...)",
    "configure": "using(...)",
    "retry": "an exception: a job that raises one is tried again",
}
"""Methods of decorated functions."""


def refuse_unknown_options(what: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Explain an option that a decorator does not have, and what to write instead.

    Raises, when the decorated function is called:
        InvalidInputError: there is no such option.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        known = [name for name in inspect.signature(function).parameters if name != "self"]

        @wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            for name in kwargs:
                if name not in known:
                    _refuse(what, name, known)
            return function(*args, **kwargs)

        return checked

    return decorate


def _refuse(what: str, name: str, known: list[str]) -> NoReturn:
    near = difflib.get_close_matches(name, known, n=1)
    if name in OPTIONS:
        hint = f"use {OPTIONS[name]}"
    elif near:
        hint = f"did you mean {near[0]}=?"
    else:
        hint = f"there are {', '.join(known)}"
    raise InvalidInputError(f"{what} has no option {name!r}: {hint}")
