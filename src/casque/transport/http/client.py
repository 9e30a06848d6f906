"""A `QueueService` that calls a broker over HTTP.

It follows no leader and repeats no call: a call that could not be sent raises BrokerUnreachableError, and one whose
answer was lost raises UnknownOutcomeError. The caller decides what to do about it.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from typing import Any, Literal, Self, TypeVar, Unpack, cast
from urllib.parse import quote, urlencode, urlsplit

import msgspec
from msgspec import UNSET

from casque.errors import (
    BrokerUnreachableError,
    CasqueError,
    InvalidInputError,
    JobNotFoundError,
    UnknownOutcomeError,
)
from casque.service import FAILURES, ArchivedJob, ArchiveFilter, Lease, Outcome, OutcomeKind, QueueEvent, QueueService
from casque.service.requests import (
    Ack,
    Dequeue,
    Enqueue,
    Find,
    GiveBack,
    Heartbeat,
    Heartbeats,
    ListJobs,
    ListZones,
    Nack,
    PeekZones,
    Request,
    SetSchedule,
    Settle,
    is_empty,
)
from casque.transport.errors import WireError, from_wire
from casque.transport.http.connections import Answer, Connections, Headers, Unheard
from casque.transport.http.messages import (
    PAGE_MAX,
    AckRequest,
    Beats,
    Claim,
    HeartbeatRequest,
    HeartbeatsRequest,
    Job,
    Jobs,
    JobsPage,
    LeaseOf,
    MaybeJob,
    NackRequest,
    OutcomeOf,
    PeekedZones,
    ScheduleOf,
    Settled,
    SettleRequest,
    Zones,
    ZoneToken,
    from_backoff,
    from_job,
    from_peeked,
    from_progress,
    from_schedule,
    from_schedule_spec,
    from_spec,
    from_zone,
)
from casque.transport.http.simple_verbs import SimpleVerb, from_maybe_job, segment, simple_verb_for
from casque.transport.http.sse import Reader, to_event
from casque.transport.settling import answers_to
from casque.types import (
    JobRecord,
    JobState,
    PeekedZone,
    Schedule,
    ZoneStanding,
)

A = TypeVar("A")
T = TypeVar("T")

MARGIN_S = 30.0
"""Time on top of a call's own wait: for a commit on a slow store, and the round trip."""
SILENCE_S = 60.0
"""A feed that is silent for this long is dead: a live server sends a comment every few seconds."""
Query = list[tuple[str, str]]
_PLAIN = "".join(map(chr, range(33, 127))).replace("%", "")


class HttpService(QueueService):
    """Satisfies `QueueService` against one broker.

    `address` is `host:port` or a URL. `tls` is a client context: with the broker's authority, and with a client
    certificate where the broker asks for one. `server_name` is the name in the broker's certificate, if it differs from
    the address. `margin_s` is how much longer than its own wait a call may take.
    """

    def __init__(
        self,
        address: str,
        *,
        token: str | None = None,
        tls: ssl.SSLContext | None = None,
        server_name: str | None = None,
        margin_s: float = MARGIN_S,
    ) -> None:
        self.address = address
        self._url = _url(address, secure=tls is not None)
        self._margin_s = margin_s
        headers = [(b"Accept", b"application/json, text/event-stream, application/jsonl")]
        if token is not None:
            headers.append((b"Authorization", f"Bearer {_printable(token)}".encode()))
        self._connections = Connections(self._url, tls, headers, server_name=server_name)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._connections.close()

    def call(self, request: Request[A]) -> Awaitable[A]:
        if (verb := simple_verb_for(request)) is not None:
            return cast("Awaitable[A]", self._call_simple(verb, request))
        return cast("Awaitable[A]", getattr(self, _METHODS[type(request)])(request))

    async def _call_simple(self, verb: SimpleVerb, request: Request[Any]) -> Any:
        path, kind = verb.path(request), verb.route.answer
        if verb.route.method == "GET":
            return verb.decode_answer(await self._get(path, kind))
        request_id: str | None = getattr(request, "request_id", None)
        return verb.decode_answer(await self._post(path, verb.body(request), kind, request_id, wait_s=verb.patience_s))

    # --- Producing ---

    async def _enqueue(self, r: Enqueue) -> Sequence[JobRecord]:
        if not r.specs:
            return ()
        answer = await self._post("/v1/jobs", [from_spec(spec) for spec in r.specs], Jobs, r.request_id)
        return _records(answer)

    # --- Working ---

    async def _dequeue(self, r: Dequeue) -> list[JobRecord]:
        names = None if r.entrypoints is None else list(r.entrypoints)
        lease = None if r.lease_ms is None else r.lease_ms / 1000
        zone_token = None if r.zone_lease is None else ZoneToken(*r.zone_lease)
        loop = asyncio.get_running_loop()
        wait_s, ends = r.wait_s, loop.time() + r.wait_s
        while True:
            of = None if r.zones is None else list(r.zones)
            claim = Claim(names, r.limit, max(wait_s, 0.0), lease, r.worker, of, zone_token)
            # With a request id, a repeated request returns the claims whose answer was lost.
            unheard = self._give_all_back if r.request_id is None else None
            answer = await self._post("/v1/jobs/claim", claim, Jobs, r.request_id, wait_s=claim.wait, unheard=unheard)
            found = _records(answer)
            # A server caps the wait, to answer before a proxy cuts the connection; another call waits for the rest.
            wait_s = ends - loop.time()
            if found or wait_s <= 0:
                return found

    async def _give_all_back(self, status: int, body: bytes) -> None:
        """Give back jobs claimed for a caller that was cancelled: no worker would run them."""
        if status == 200:
            for job in _decoded(body, Jobs).jobs:
                with suppress(CasqueError):  # one failure does not keep the others from going back
                    await self.call(GiveBack(job.id, job.token))

    async def _ack(self, r: Ack) -> None:
        body = AckRequest(r.token, UNSET if r.result is None else r.result)
        await self._post(_of(r.job_id, "ack"), body, None, r.request_id)

    async def _nack(self, r: Nack) -> JobRecord | None:
        delay_ms = r.delay_ms
        if delay_ms is None and r.backoff is None:
            delay_ms = 0  # explicit: the broker fills in what is left out
        body = NackRequest(
            r.token,
            None if delay_ms is None else delay_ms / 1000,
            None if r.backoff is None else from_backoff(r.backoff),
            r.error,
        )
        return from_maybe_job(await self._post(_of(r.job_id, "nack"), body, MaybeJob, r.request_id))

    async def _settle(self, r: Settle) -> list[CasqueError | None]:
        if not r.outcomes:
            return []
        body = SettleRequest([_outcome(one) for one in r.outcomes])
        return answers_to(r.outcomes, (await self._post("/v1/settle", body, Settled, r.request_id)).refused)

    async def _heartbeat(self, r: Heartbeat) -> JobRecord:
        if r.progress is None:
            return from_job(await self._post(_of(r.job_id, "heartbeat"), HeartbeatRequest(r.token), Job))
        [beaten] = await self._heartbeats(Heartbeats((Lease(r.job_id, r.token, r.progress),)))
        if isinstance(beaten, CasqueError):
            raise beaten
        return beaten

    async def _heartbeats(self, r: Heartbeats) -> list[JobRecord | CasqueError]:
        body = HeartbeatsRequest(
            [LeaseOf(lease.job_id, lease.token, from_progress(lease.progress)) for lease in r.leases]
        )
        answer = await self._post("/v1/heartbeats", body, Beats)
        return [_beaten(beat.job, beat.error) for beat in answer.answers]

    # --- Managing ---

    # --- Schedules ---

    async def _set_schedule(self, r: SetSchedule) -> Schedule:
        return from_schedule(await self._post("/v1/schedules", from_schedule_spec(r.spec), ScheduleOf))

    # --- Looking ---

    async def _peek_zones(self, r: PeekZones) -> list[PeekedZone]:
        if is_empty(r):
            return []
        query = [
            ("limit", str(r.limit)),
            *(("name", name) for name in sorted(r.names or ())),
            *(("entrypoint", name) for name in r.entrypoints or ()),
        ]
        return [from_peeked(one) for one in (await self._get("/v1/zones/peek", PeekedZones, query)).zones]

    async def _list_zones(self, r: ListZones) -> list[ZoneStanding]:
        if is_empty(r):
            return []
        query = [("limit", str(r.limit)), *(("name", name) for name in sorted(r.names or ()))]
        return [from_zone(one) for one in (await self._get("/v1/zones", Zones, query)).zones]

    async def _find(self, r: Find) -> JobRecord | None:
        try:
            return from_job(await self._get(_of(r.job_id), Job))
        except JobNotFoundError:
            return None

    async def _list_jobs(self, r: ListJobs) -> list[JobRecord]:
        found: list[JobRecord] = []
        if r.states is not None and not r.states:
            return found
        query, after = _query(r.states, r.entrypoint), r.after
        while True:
            size = PAGE_MAX if r.limit is None else min(PAGE_MAX, r.limit - len(found))
            page = await self._get("/v1/jobs", JobsPage, [*query, ("limit", str(size)), ("after", str(after))])
            found += [from_job(job) for job in page.jobs]
            if page.next is None or len(found) == r.limit:
                return found
            after = page.next

    async def events(self, *, from_position: int | None = None, follow: bool = True) -> AsyncGenerator[QueueEvent]:
        query = [("follow", "true" if follow else "false")]
        if from_position is not None:
            query.append(("from_position", str(from_position)))
        async with self._asked("GET", _with("/v1/events", query), patience_s=SILENCE_S) as answer:
            reader = Reader()
            async for piece in answer.pieces():
                for frame in reader.feed(piece):
                    if frame.event == "end":
                        return
                    if frame.event == "failure":
                        raise from_wire(_decoded(frame.data.encode(), WireError))
                    if (event := to_event(frame)) is not None:
                        yield event
        raise UnknownOutcomeError(f"{self._url} ended the feed without a word; go on from the last position")

    async def archive(self, **asked: Unpack[ArchiveFilter]) -> AsyncGenerator[ArchivedJob]:
        states = asked.get("states")
        if states is not None and not states:
            return
        query = _query(states, asked.get("entrypoint"))
        moments = (("since", asked.get("since")), ("until", asked.get("until")))
        query += [(name, _text(moment)) for name, moment in moments if moment is not None]
        rest = b""
        async with self._asked("GET", _with("/v1/archive", query)) as answer:
            async for piece in answer.pieces():
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    yield _decoded(line, ArchivedJob)

    # --- The wire ---

    async def _post(
        self,
        path: str,
        body: Any,
        kind: type[T] | None,
        request_id: str | None = None,
        *,
        wait_s: float = 0.0,
        unheard: Unheard | None = None,
    ) -> T:
        headers = [(b"Content-Type", b"application/json")]
        if request_id is not None:
            headers.append((b"Idempotency-Key", quote(request_id, safe=_PLAIN).encode()))
        patience_s = wait_s + self._margin_s
        raw = msgspec.json.encode(body)
        async with self._asked("POST", path, headers, raw, patience_s=patience_s, unheard=unheard) as answer:
            raw = await answer.whole()
        return _decoded(raw, kind)

    async def _get(self, path: str, kind: type[T], query: Query | None = None) -> T:
        async with self._asked("GET", _with(path, query or [])) as answer:
            raw = await answer.whole()
        return _decoded(raw, kind)

    @asynccontextmanager
    async def _asked(
        self,
        method: str,
        target: str,
        headers: Headers | None = None,
        body: bytes = b"",
        *,
        patience_s: float | None = None,
        unheard: Unheard | None = None,
    ) -> AsyncIterator[Answer]:
        """The answer; raises the error if it is a refusal."""
        patience_s = self._margin_s if patience_s is None else patience_s
        async with self._connections.exchange(
            method, target, headers or [], body, patience_s=patience_s, unheard=unheard
        ) as answer:
            if not 200 <= answer.status < 300:
                raise self._refusal(answer.status, await answer.whole())
            yield answer

    def _refusal(self, status: int, body: bytes) -> CasqueError:
        try:
            return from_wire(msgspec.json.decode(body, type=WireError))
        except msgspec.DecodeError:
            pass
        problem = f"it answered with the status {status}, and not as a broker does"
        if status >= 500:
            return UnknownOutcomeError(f"{self._url}: {problem}; something on the way may have passed the call on")
        return BrokerUnreachableError(self._url, problem)


def _url(address: str, *, secure: bool) -> str:
    url = address if "://" in address else f"{'https' if secure else 'http'}://{address}"
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
        raise InvalidInputError(f"address must be host:port, or a URL with http or https, not {address!r}")
    if secure and parts.scheme == "http":
        raise InvalidInputError(f"{address!r} is without TLS, but TLS parameters are given: write https://")
    return url.rstrip("/")


def _of(job_id: str, verb: str | None = None) -> str:
    path = f"/v1/jobs/{segment(job_id, '/v1/jobs/')}"
    return path if verb is None else f"{path}/{verb}"


def _query(states: frozenset[JobState] | None, entrypoint: str | None) -> Query:
    query = [("state", state.value) for state in sorted(states or ())]
    return query if entrypoint is None else [*query, ("entrypoint", entrypoint)]


def _with(path: str, query: Query) -> str:
    return f"{path}?{urlencode(query)}" if query else path


def _printable(token: str) -> str:
    if not token.isascii() or not token.isprintable() or not token or " " in token:
        raise InvalidInputError("token must be printable ASCII without spaces")
    return token


def _text(moment: datetime) -> str:
    return moment.isoformat()


def _decoded(raw: bytes, kind: type[T] | None) -> T:
    if kind is None:
        return None  # type: ignore[return-value]  # the caller expects no value
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.DecodeError as error:
        raise UnknownOutcomeError(f"the answer is not what a broker sends: {error}") from error


def _records(answer: Jobs) -> list[JobRecord]:
    return [from_job(job) for job in answer.jobs]


def _outcome(one: Outcome) -> OutcomeOf:
    delay_ms = one.delay_ms
    if one.kind in FAILURES and delay_ms is None and one.backoff is None:
        delay_ms = 0  # explicit: the broker fills in what is left out
    return OutcomeOf(
        one.job_id,
        one.token,
        error=UNSET if one.error is None else one.error,
        result=UNSET if one.result is None else one.result,
        delay=UNSET if delay_ms is None else delay_ms / 1000,
        backoff=UNSET if one.backoff is None else from_backoff(one.backoff),
        final=True if one.kind is OutcomeKind.FINAL else UNSET,
        how=_HOWS.get(one.kind, UNSET),
    )


_HOWS: dict[OutcomeKind, Literal["crashed", "snoozed", "cancelled", "declined"]] = {
    OutcomeKind.CRASHED: "crashed",
    OutcomeKind.SNOOZED: "snoozed",
    OutcomeKind.CANCELLED: "cancelled",
    OutcomeKind.DECLINED: "declined",
}


def _beaten(job: Job | None, error: WireError | None) -> JobRecord | CasqueError:
    if job is not None:
        return from_job(job)
    return from_wire(error) if error is not None else UnknownOutcomeError("the broker gave no answer to a heartbeat")


_METHODS: dict[type[Request[Any]], str] = {
    Enqueue: "_enqueue",
    Dequeue: "_dequeue",
    Ack: "_ack",
    Nack: "_nack",
    Settle: "_settle",
    Heartbeat: "_heartbeat",
    Heartbeats: "_heartbeats",
    PeekZones: "_peek_zones",
    SetSchedule: "_set_schedule",
    ListZones: "_list_zones",
    ListJobs: "_list_jobs",
    Find: "_find",
}
