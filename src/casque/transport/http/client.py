"""A queue behind one HTTP address, as a `QueueService`.

It follows nobody and repeats nothing: a call that could not be sent is refused with BrokerUnreachableError, and one
whose answer was lost with UnknownOutcomeError. Whoever stands above decides what to do about it.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from typing import Any, Literal, Self, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import msgspec
from msgspec import UNSET, UnsetType

from casque.errors import (
    BrokerUnreachableError,
    CasqueError,
    InvalidInputError,
    JobNotFoundError,
    ScheduleNotFoundError,
    UnknownOutcomeError,
)
from casque.service import ArchivedJob, Lease, Outcome, QueueEvent, Stats
from casque.transport.errors import WireError, from_wire
from casque.transport.http.connections import Answer, Connections, Headers, Unheard
from casque.transport.http.messages import (
    PAGE_MAX,
    AckRequest,
    AdmitRequest,
    Beats,
    Claim,
    GateRequest,
    GiveBackRequest,
    HeartbeatRequest,
    HeartbeatsRequest,
    Job,
    Jobs,
    JobsPage,
    LeaseOf,
    MaybeJob,
    MaybeZoneLease,
    NackRequest,
    Nothing,
    OutcomeOf,
    Part,
    PeekedZones,
    Purged,
    PurgeRequest,
    Requeued,
    RequeueRequest,
    ScheduleOf,
    Schedules,
    Settled,
    SettleRequest,
    ZoneLeaseOf,
    ZoneLeaseRequest,
    ZoneRequest,
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
    from_zone_lease,
)
from casque.transport.http.sse import Reader, to_event
from casque.transport.settling import answers_to
from casque.types import (
    Admission,
    Backoff,
    Gate,
    JobRecord,
    JobSpec,
    JobState,
    PeekedZone,
    Schedule,
    ScheduleSpec,
    StagedPart,
    ZoneLease,
    ZoneRules,
    ZoneStanding,
)

T = TypeVar("T")

MARGIN_S = 30.0
"""How much longer than a call may wait its answer may take: a commit on a slow store, and the way there and back."""
ADMIT_S = 60.0
"""A broker reads a million jobs before it admits them."""
SILENCE_S = 60.0
"""A feed that is silent for so long is dead: a server that lives says so every few seconds."""
Query = list[tuple[str, str]]
_PLAIN = "".join(map(chr, range(33, 127))).replace("%", "")


class HttpService:
    """Satisfies `QueueService` against one broker.

    `address` is `host:port` or a URL. `tls` is a context for clients: with the broker's authority, and with a
    certificate of its own where the broker asks for one. `server_name` is what the broker's certificate says, if that
    is not the name in the address. `margin_s` is how much longer than a call may wait its answer may take.
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

    # --- Producing ---

    async def enqueue(self, specs: Sequence[JobSpec], *, request_id: str | None = None) -> Sequence[JobRecord]:
        if not specs:
            return ()
        answer = await self._post("/v1/jobs", [from_spec(spec) for spec in specs], Jobs, request_id)
        return _records(answer)

    async def admit(
        self, source: str, batch: int, parts: Sequence[StagedPart], *, skip_known: bool = False
    ) -> Admission:
        named = [Part(part.key, part.sha256, part.jobs, part.bytes) for part in parts]
        body = AdmitRequest(source, batch, named, skip_known)
        return await self._post("/v1/admit", body, Admission, wait_s=ADMIT_S)

    # --- Working ---

    async def dequeue(
        self,
        *,
        entrypoints: tuple[str, ...] | None,
        limit: int,
        first: bool = False,  # noqa: ARG002  only a ring would make use of it
        lease_ms: int | None = None,
        worker: str | None = None,
        wait_s: float = 0.0,
        request_id: str | None = None,
        zones: tuple[str, ...] | None = None,
        zone_lease: ZoneLease | None = None,
    ) -> list[JobRecord]:
        names = None if entrypoints is None else list(entrypoints)
        lease = None if lease_ms is None else lease_ms / 1000
        shown = None if zone_lease is None else ZoneToken(zone_lease.zone, zone_lease.token)
        loop = asyncio.get_running_loop()
        ends = loop.time() + wait_s
        while True:
            of = None if zones is None else list(zones)
            claim = Claim(names, limit, max(wait_s, 0.0), lease, worker, of, shown)
            # With a request id, whoever repeats the request gets the claims that this caller did not hear of.
            unheard = self._give_all_back if request_id is None else None
            answer = await self._post("/v1/jobs/claim", claim, Jobs, request_id, wait_s=claim.wait, unheard=unheard)
            found = _records(answer)
            # A server waits no longer than it likes, lest a proxy cut the line; the rest of the wait is another call.
            wait_s = ends - loop.time()
            if found or wait_s <= 0:
                return found

    async def _give_all_back(self, status: int, body: bytes) -> None:
        """The caller left while these claims were on their way to it: nobody would work on the jobs."""
        if status == 200:
            for job in _decoded(body, Jobs).jobs:
                with suppress(CasqueError):  # one that cannot go back does not keep the others
                    await self.give_back(job.id, token=job.token)

    async def ack(
        self, job_id: str, *, token: int | None = None, result: bytes | None = None, request_id: str | None = None
    ) -> None:
        body = AckRequest(token, UNSET if result is None else result)
        await self._post(_of(job_id, "ack"), body, None, request_id)

    async def nack(
        self,
        job_id: str,
        *,
        token: int | None = None,
        delay_ms: int | None = None,
        backoff: Backoff | None = None,
        error: str | None = None,
        request_id: str | None = None,
    ) -> JobRecord | None:
        if delay_ms is None and backoff is None:
            delay_ms = 0  # said explicitly: what is left out, the broker fills in
        body = NackRequest(
            token,
            None if delay_ms is None else delay_ms / 1000,
            None if backoff is None else from_backoff(backoff),
            error,
        )
        return _maybe(await self._post(_of(job_id, "nack"), body, MaybeJob, request_id))

    async def settle(self, outcomes: Sequence[Outcome], *, request_id: str | None = None) -> list[CasqueError | None]:
        if not outcomes:
            return []
        body = SettleRequest([_outcome(one) for one in outcomes])
        return answers_to(outcomes, (await self._post("/v1/settle", body, Settled, request_id)).refused)

    async def heartbeat(self, job_id: str, *, token: int | None = None) -> JobRecord:
        return from_job(await self._post(_of(job_id, "heartbeat"), HeartbeatRequest(token), Job))

    async def heartbeats(self, leases: Sequence[Lease]) -> list[JobRecord | CasqueError]:
        body = HeartbeatsRequest(
            [LeaseOf(lease.job_id, lease.token, from_progress(lease.progress)) for lease in leases]
        )
        answer = await self._post("/v1/heartbeats", body, Beats)
        return [_beaten(beat.job, beat.error) for beat in answer.answers]

    async def give_back(self, job_id: str, *, token: int) -> None:
        await self._post(_of(job_id, "give-back"), GiveBackRequest(token), None)

    # --- Managing ---

    async def cancel(self, job_id: str, *, request_id: str | None = None) -> None:
        await self._post(_of(job_id, "cancel"), Nothing(), None, request_id)

    async def retry(self, job_id: str, *, request_id: str | None = None) -> JobRecord | None:
        return _maybe(await self._post(_of(job_id, "retry"), Nothing(), MaybeJob, request_id))

    async def purge(
        self, *, entrypoint: str | None = None, request_id: str | None = None, zone: str | None = None
    ) -> int:
        return (await self._post("/v1/purge", PurgeRequest(entrypoint, zone), Purged, request_id)).purged

    async def requeue_stale(
        self,
        older_ms: int,
        *,
        entrypoint: str | None = None,
        request_id: str | None = None,
        zone: str | None = None,
    ) -> int:
        body = RequeueRequest(older_ms / 1000, entrypoint, zone)
        return (await self._post("/v1/requeue", body, Requeued, request_id)).requeued

    # --- Schedules ---

    async def set_schedule(self, spec: ScheduleSpec) -> Schedule:
        return from_schedule(await self._post("/v1/schedules", from_schedule_spec(spec), ScheduleOf))

    async def schedules(self) -> list[Schedule]:
        return [from_schedule(one) for one in (await self._get("/v1/schedules", Schedules)).schedules]

    async def pause_schedule(self, name: str, *, paused: bool) -> Schedule:
        path = _of(name, "pause" if paused else "resume", "schedules")
        return from_schedule(await self._post(path, Nothing(), ScheduleOf))

    async def drop_schedule(self, name: str) -> None:
        await self._post(_of(name, "drop", "schedules"), Nothing(), None)

    async def set_gate(self, gate: Gate, *, entrypoint: str | None = None, request_id: str | None = None) -> None:
        await self._post("/v1/gate", GateRequest(gate, entrypoint), None, request_id)

    async def set_zone(self, zone: str, rules: ZoneRules, *, request_id: str | None = None) -> None:
        body = ZoneRequest(zone, rules.weight, rules.running_max, rules.per_second, rules.paused)
        await self._post("/v1/zones", body, None, request_id)

    async def lease_zone(
        self, zone: str, *, lease_ms: int | None = None, worker: str | None = None, request_id: str | None = None
    ) -> ZoneLease | None:
        body = ZoneLeaseRequest(zone, None if lease_ms is None else lease_ms / 1000, worker)
        answer = await self._post("/v1/zones/lease", body, MaybeZoneLease, request_id)
        return None if answer.lease is None else from_zone_lease(answer.lease)

    async def heartbeat_zone(self, zone: str, *, token: int) -> ZoneLease:
        return from_zone_lease(await self._post("/v1/zones/heartbeat", ZoneToken(zone, token), ZoneLeaseOf))

    async def release_zone(self, zone: str, *, token: int) -> None:
        await self._post("/v1/zones/release", ZoneToken(zone, token), None)

    # --- Looking ---

    async def peek_zones(
        self,
        *,
        entrypoints: tuple[str, ...] | None = None,
        names: frozenset[str] | None = None,
        limit: int = 100,
    ) -> list[PeekedZone]:
        if names is not None and not names:
            return []  # on the wire, no names are all of them
        query = [
            ("limit", str(limit)),
            *(("name", name) for name in sorted(names or ())),
            *(("entrypoint", name) for name in entrypoints or ()),
        ]
        return [from_peeked(one) for one in (await self._get("/v1/zones/peek", PeekedZones, query)).zones]

    async def zones(self, *, names: frozenset[str] | None = None, limit: int = 100) -> list[ZoneStanding]:
        if names is not None and not names:
            return []  # on the wire, no names are all of them
        query = [("limit", str(limit)), *(("name", name) for name in sorted(names or ()))]
        return [from_zone(one) for one in (await self._get("/v1/zones", Zones, query)).zones]

    async def find(self, job_id: str) -> JobRecord | None:
        try:
            return from_job(await self._get(_of(job_id), Job))
        except JobNotFoundError:
            return None

    async def jobs(
        self,
        *,
        states: frozenset[JobState] | None = None,
        entrypoint: str | None = None,
        limit: int | None = None,
        after: int = 0,
    ) -> list[JobRecord]:
        found: list[JobRecord] = []
        if states is not None and not states:
            return found
        query = _query(states, entrypoint)
        while True:
            size = PAGE_MAX if limit is None else min(PAGE_MAX, limit - len(found))
            page = await self._get("/v1/jobs", JobsPage, [*query, ("limit", str(size)), ("after", str(after))])
            found += [from_job(job) for job in page.jobs]
            if page.next is None or len(found) == limit:
                return found
            after = page.next

    async def stats(self) -> Stats:
        return await self._get("/v1/stats", Stats)

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

    async def archive(
        self,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        entrypoint: str | None = None,
        states: frozenset[JobState] | None = None,
    ) -> AsyncGenerator[ArchivedJob]:
        if states is not None and not states:
            return
        query = _query(states, entrypoint)
        query += [(name, _text(moment)) for name, moment in (("since", since), ("until", until)) if moment is not None]
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
        """The answer, if it is not a refusal."""
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
        said = f"it answered with the status {status}, and not as a broker does"
        if status >= 500:
            return UnknownOutcomeError(f"{self._url}: {said}; something on the way may have passed the call on")
        return BrokerUnreachableError(self._url, said)


def _url(address: str, *, secure: bool) -> str:
    url = address if "://" in address else f"{'https' if secure else 'http'}://{address}"
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
        raise InvalidInputError(f"address must be host:port, or a URL with http or https, not {address!r}")
    if secure and parts.scheme == "http":
        raise InvalidInputError(f"{address!r} is without TLS, but TLS parameters are given: write https://")
    return url.rstrip("/")


def _of(job_id: str, verb: str | None = None, things: str = "jobs") -> str:
    if not job_id:
        raise JobNotFoundError(job_id) if things == "jobs" else ScheduleNotFoundError(job_id)
    # A path may not have segments of dots alone: everybody on the way would resolve them.
    segment = quote(job_id, safe="") if job_id.strip(".") else job_id.replace(".", "%2E")
    return f"/v1/{things}/{segment}" if verb is None else f"/v1/{things}/{segment}/{verb}"


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
        return None  # type: ignore[return-value]  # whoever asks for nothing takes nothing
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.DecodeError as error:
        raise UnknownOutcomeError(f"the answer is not what a broker sends: {error}") from error


def _records(answer: Jobs) -> list[JobRecord]:
    return [from_job(job) for job in answer.jobs]


def _maybe(answer: MaybeJob) -> JobRecord | None:
    return None if answer.job is None else from_job(answer.job)


def _outcome(one: Outcome) -> OutcomeOf:
    delay_ms = one.delay_ms
    if one.error is not None and delay_ms is None and one.backoff is None and not (one.cancelled or one.declined):
        delay_ms = 0  # said explicitly: what is left out, the broker fills in
    return OutcomeOf(
        one.job_id,
        one.token,
        error=UNSET if one.error is None else one.error,
        result=UNSET if one.result is None else one.result,
        delay=UNSET if delay_ms is None else delay_ms / 1000,
        backoff=UNSET if one.backoff is None else from_backoff(one.backoff),
        final=True if one.final else UNSET,
        how=_how(one),
    )


def _how(one: Outcome) -> Literal["crashed", "snoozed", "cancelled", "declined"] | UnsetType:
    if one.crashed:
        return "crashed"
    if one.snoozed:
        return "snoozed"
    if one.cancelled:
        return "cancelled"
    return "declined" if one.declined else UNSET


def _beaten(job: Job | None, error: WireError | None) -> JobRecord | CasqueError:
    if job is not None:
        return from_job(job)
    return from_wire(error) if error is not None else UnknownOutcomeError("the broker gave no answer to a heartbeat")
