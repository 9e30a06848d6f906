"""Checks the arguments of requests: types, sizes and ranges, the same for every caller.

Each check raises InvalidInputError. The border runs them before a request reaches the queue, which trusts its callers.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import msgspec

from casque import checks
from casque.errors import InvalidInputError
from casque.fields import SPEC, SetBy
from casque.service import Outcome, check_outcome
from casque.transport.limits import Limits
from casque.types import JobSpec, Progress

_PRIORITY = 2**63
SPAN_MS_MAX = checks.LONGEST_S * 1000
_OTHERS = tuple(field for field in SPEC if field.gained or field.set_by is not SetBy.PRODUCER)
_others = attrgetter(*(field.spec or "" for field in _OTHERS))
_NO_OTHERS = tuple(field.default for field in _OTHERS)
"""Fields that few jobs have, and those that the queue itself adds to a job, such as the location of a payload."""


def check_specs(specs: Any, limits: Limits) -> None:
    """Accept all specs or none. A plain job costs no function call in this loop, to keep a bulk of 10,000 cheap."""
    if not isinstance(specs, list | tuple):
        raise InvalidInputError(f"specs must be a list of jobs, not {type(specs).__name__}")
    if len(specs) > limits.jobs_per_enqueue:
        raise InvalidInputError(
            f"specs must be at most {limits.jobs_per_enqueue:,} jobs in one enqueue, not {len(specs):,}; "
            "enqueue them in several calls"
        )
    payload_max = limits.payload_bytes
    # Most jobs of a bulk share these values, so each distinct one is checked once. The list is a start value that
    # equals none of them.
    checked: object = specs
    attempts: object = specs
    crashes: object = specs
    for spec in specs:
        if type(spec) is not JobSpec:
            raise InvalidInputError(f"specs must be jobs, not {type(spec).__name__}")
        job_id, payload, priority = spec.id, spec.payload, spec.priority
        if type(job_id) is not str or not 0 < len(job_id) <= checks.NAME_MAX or not job_id.isprintable():
            checks.name("id", job_id, checks.NAME_MAX)
        if spec.entrypoint is not checked:
            checked = checks.entrypoint(spec.entrypoint)
        if type(payload) is not bytes or len(payload) > payload_max:
            checks.blob("payload", payload, payload_max)
        if type(priority) is not int or not -_PRIORITY <= priority < _PRIORITY:
            checks.whole("priority", priority, -_PRIORITY)
        if spec.run_at_ms is not None:
            checks.whole("run_at_ms", spec.run_at_ms, *checks.MOMENTS_MS)
        if spec.max_attempts is not None and spec.max_attempts is not attempts:
            attempts = checks.whole("max_attempts", spec.max_attempts, 1)
        if spec.max_crashes is not None and spec.max_crashes is not crashes:
            crashes = checks.max_crashes(spec.max_crashes)
        if spec.key is not None:
            checks.name("key", spec.key, checks.KEY_MAX)
        if spec.headers is not None:
            if type(spec.headers) is not dict:
                raise InvalidInputError(f"headers must map str to str, not be a {type(spec.headers).__name__}")
            checks.few_headers(spec.headers)
        if spec.zone is not None:
            checks.zone(spec.zone)
        if spec.fifo is not False:
            checks.flag("fifo", spec.fifo)
        if _others(spec) != _NO_OTHERS:
            _check_others(spec)


def _check_others(spec: JobSpec) -> None:
    for field, value, default in zip(_OTHERS, _others(spec), _NO_OTHERS, strict=True):
        if value == default:
            continue
        if field.set_by is not SetBy.PRODUCER or field.check is None:
            raise InvalidInputError(f"{field.spec} is for the queue to set, not for its callers")
        if field.check(value) != value:
            raise InvalidInputError(f"{field.name} must be a {type(default).__name__}, not a {type(value).__name__}")


def check_entrypoints(entrypoints: Any, limits: Limits) -> None:
    if not isinstance(entrypoints, tuple) or not 1 <= len(entrypoints) <= limits.entrypoints_per_dequeue:
        raise InvalidInputError(
            f"entrypoints must be a tuple of 1 to {limits.entrypoints_per_dequeue} names, or None for any"
        )
    for entrypoint in entrypoints:
        checks.entrypoint(entrypoint)


def check_zones(zones: Any) -> None:
    if not isinstance(zones, tuple) or not 1 <= len(zones) <= checks.ZONES_MAX:
        raise InvalidInputError(f"zones must be a tuple of 1 to {checks.ZONES_MAX} names, or None for all")
    for zone in zones:
        checks.zone(zone)


def checked_zones(names: Any) -> frozenset[str]:
    if not isinstance(names, frozenset) or len(names) > checks.ZONES_MAX:
        raise InvalidInputError(f"names must be a frozenset of at most {checks.ZONES_MAX} zones, or None")
    return frozenset(checks.zone(name) for name in names)


def checked_outcomes(outcomes: Any, limits: Limits) -> list[Outcome]:
    """A plain ack costs no function call in this loop, to keep a hundred thousand of them cheap."""
    most, result_max = limits.outcomes_per_settle, limits.result_bytes
    if not isinstance(outcomes, list | tuple) or len(outcomes) > most:
        raise InvalidInputError(f"outcomes must be a list of at most {most:,}; settle the rest in another call")
    checked: list[Outcome] = []
    for outcome in outcomes:
        if type(outcome) is not Outcome:
            raise InvalidInputError(f"outcomes must be outcomes, not {type(outcome).__name__}")
        job_id, token = outcome.job_id, outcome.token
        if type(job_id) is not str or not job_id.isascii() or len(job_id) > checks.KEY_MAX:
            check_job_id(job_id)
        if type(token) is not int or not 0 <= token < _PRIORITY:
            checks.whole("token", token, 0)
        if outcome.result is not None:
            checks.blob("result", outcome.result, result_max)
        failed = outcome.error is not None or outcome.delay_ms is not None or outcome.backoff is not None
        if failed or outcome.how is not None:
            outcome = _checked_outcome(outcome)  # noqa: PLW2901
        checked.append(outcome)
    return checked


def _checked_outcome(outcome: Outcome) -> Outcome:
    check_outcome(outcome)
    if outcome.error is not None and type(outcome.error) is not str:
        raise InvalidInputError(f"error must be a str, not {type(outcome.error).__name__}")
    if outcome.delay_ms is not None:
        checks.whole("delay_ms", outcome.delay_ms, 0, SPAN_MS_MAX)
    if outcome.backoff is not None:
        checks.backoff(outcome.backoff)
    return msgspec.structs.replace(outcome, error=checks.error_text(outcome.error))


def check_job_id(job_id: Any) -> None:
    if type(job_id) is not str or not job_id.isascii() or len(job_id) > checks.KEY_MAX:
        checks.text("job_id", job_id, checks.KEY_MAX)


def check_progress(progress: Any) -> None:
    if progress is not None:
        if type(progress) is not Progress:
            raise InvalidInputError(f"progress must be a Progress, not {type(progress).__name__}")
        checks.progress(progress.done, progress.total, progress.note)


def check_lease(job_id: Any, token: Any) -> None:
    check_job_id(job_id)
    if token is not None:
        checks.whole("token", token, 0)
