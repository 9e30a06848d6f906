"""`Queue`, the one class that does everything."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from datetime import datetime, timedelta
from types import EllipsisType
from typing import Any, Generic, TypeVar, Unpack, cast, overload

import msgspec

from casque import checks, cron
from casque.client.connecting import ClientTlsFiles, by_address, by_bucket
from casque.client.forks import Origin
from casque.client.job import Job
from casque.client.new_jobs import NewJob, SpecMaker, as_new_job
from casque.client.opening import Parts, as_store
from casque.client.past import open_past, past_ring
from casque.client.payloads import PayloadCodec, codec_for
from casque.client.remote import RemoteQueue
from casque.client.ring_history import ring_archive, ring_events
from casque.client.verbs import LeaseVerbs
from casque.clock import Clock, Random, SystemClock, new_id, system_random
from casque.codec.staged import checked_parts
from casque.engine.group import GroupCommit
from casque.engine.history import History
from casque.engine.ticker import triggered
from casque.environment import Environment
from casque.errors import CasqueError, InvalidInputError, QueueClosedError, RingError, ScheduleNotFoundError
from casque.ring.service import RingService
from casque.service import ArchivedJob, ArchiveFilter, Lease, QueueEvent, QueueService, Stats, requests
from casque.settings import QueueSettings, SettingsChanges
from casque.storage.url import is_address
from casque.tasks import Background
from casque.telemetry import logger
from casque.types import (
    Admission,
    Gate,
    JobRecord,
    JobState,
    Missed,
    PeekedZone,
    Progress,
    Schedule,
    ScheduleSpec,
    StagedPart,
    ZoneLease,
    ZoneRules,
    ZoneStanding,
)

T = TypeVar("T")

log = logger("client")

DEFAULTS = QueueSettings(max_attempts=25)
BEATS_MAX = 10_000
"""Leases in one call; the limit of a broker."""
RELEASE_S = 5.0
"""How long closing a queue waits for zones to be released whose callers left."""


class Queue(LeaseVerbs, Generic[T]):
    """A queue on any store: `memory://`, `file://`, `s3://`, `gs://`, `az://`.

    >>> import asyncio
    >>> from casque import Queue
    >>> async def main():
    ...     async with Queue.open("memory://queue-example") as q:
    ...         await q.enqueue("send", b"hello")
    ...         await q.enqueue_many([("send", b"1"), ("send", b"2")])
    ...         for job in await q.dequeue("send", batch_size=10, wait=5.0):
    ...             print(job.payload)
    ...             await job.ack()
    >>> asyncio.run(main())
    b'hello'
    b'1'
    b'2'
    """

    def __init__(
        self,
        parts: Environment,
        codec: PayloadCodec[T],
        *,
        remote: RemoteQueue | None = None,
        worker: str | None = None,
        as_of: int | datetime | None = None,
        owns_store: bool = False,
    ) -> None:
        """Use `Queue.open`; this is for tests that bring their own parts."""
        self._parts = parts
        self._local = parts if isinstance(parts, Parts) else None
        self._remote = remote
        self._as_of = as_of
        self._codec = codec
        self._new = SpecMaker(parts, codec)
        self._worker = worker or new_id(parts.rng)
        self._owns_store = owns_store
        self._group: GroupCommit | None = None
        self._ring: RingService | None = None
        self._embedded: QueueService | None = None
        self._origin = Origin()
        self._releasing = Background()

    @overload
    @classmethod
    def open(
        cls,
        url: Any,
        *,
        layout: str | None = None,
        options: Mapping[str, str] | None = None,
        via: str | None = None,
        token: str | None = None,
        tls: ClientTlsFiles | None = None,
        worker: str | None = None,
        as_of: int | datetime | None = None,
        clock: Clock | None = None,
        rng: Random | None = None,
        **settings: Unpack[SettingsChanges],
    ) -> Queue[bytes]: ...

    @overload
    @classmethod
    def open(
        cls,
        url: Any,
        *,
        type: type[T],
        layout: str | None = None,
        options: Mapping[str, str] | None = None,
        via: str | None = None,
        token: str | None = None,
        tls: ClientTlsFiles | None = None,
        worker: str | None = None,
        as_of: int | datetime | None = None,
        clock: Clock | None = None,
        rng: Random | None = None,
        **settings: Unpack[SettingsChanges],
    ) -> Queue[T]: ...

    @classmethod
    def open(
        cls,
        url: Any,
        *,
        type: Any = None,  # noqa: A002  the natural name: Queue.open(url, type=Email)
        layout: str | None = None,
        options: Mapping[str, str] | None = None,
        via: str | None = None,
        token: str | None = None,
        tls: ClientTlsFiles | None = None,
        worker: str | None = None,
        as_of: int | datetime | None = None,
        clock: Clock | None = None,
        rng: Random | None = None,
        **settings: Unpack[SettingsChanges],
    ) -> Queue[Any]:
        """A queue to enter with `async with`. Nothing is read or written before that.

        `type` makes payloads typed: a msgspec struct, a pydantic model, a dataclass, or an annotation; they are
        validated on the way in and out. `layout` applies to a queue that does not exist yet: `log`, the default, or
        `document`, which stores the whole queue as one readable object and is the only layout for a single-object
        storage. `as_of` opens the past of a log queue, by position or by time, read-only. `options` go to the store
        (endpoint, region, credentials).

        A queue that brokers lead is opened by their address, `grpc://host:port` (several with commas between them,
        `grpcs://` with TLS; `http://` and `https://` reach the HTTP port), or by its store with `via="broker"`: the
        bucket names the leader. Calls follow the leader through failovers and are never carried out twice. `token` is
        the broker's, by default that in the variable CASQUE_TOKEN; `tls` names certificate files.

        Every field of `QueueSettings` may be given by name, for example `stale_timeout=timedelta(seconds=30)`.
        """
        changed = DEFAULTS.with_changes(settings)
        name = None if worker is None else checks.name("worker", worker, checks.NAME_MAX)
        if via not in (None, "broker"):
            raise InvalidInputError(f"via must be 'broker', or left out for a queue in this process, not {via!r}")
        if via is None and not is_address(url):
            if token is not None or tls is not None:
                raise InvalidInputError("token and tls are for brokers: add via='broker', or open a broker's address")
            parts = Parts(as_store(url, options), changed, layout=layout, clock=clock, rng=rng)
            return Queue(parts, codec_for(type), worker=name, as_of=as_of, owns_store=isinstance(url, str))
        if as_of is not None or layout is not None:
            raise InvalidInputError("layout and as_of are for a queue that is opened without a broker")
        env = Environment(changed, clock or SystemClock(), rng or system_random())
        if is_address(url):
            remote = by_address(url, token=token, tls=tls, env=env)
        else:
            store, owns = as_store(url, options), isinstance(url, str)
            remote = by_bucket(store, owns_store=owns, token=token, tls=tls, env=env)
        return Queue(env, codec_for(type), remote=remote, worker=name)

    async def __aenter__(self) -> Queue[T]:
        if self._embedded is not None:
            raise QueueClosedError("this queue was opened before; make a new one with Queue.open")
        self._origin = Origin()
        if self._local is None:
            assert self._remote is not None
            self._embedded = self._remote
            return self
        try:
            if self._as_of is not None:
                self._embedded = await self._past(self._local, self._as_of)
                return self
            try:
                group = self._local.group()
                await group.start()
                self._group, self._embedded = group, self._local.service(group)
            except RingError:
                ring = self._local.ring()
                await ring.start()
                self._ring = self._embedded = ring
        except BaseException:
            await self._let_go()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._origin.is_elsewhere():
            return  # what is under way is the parent's
        await self._releasing.ended(RELEASE_S)
        if self._group is not None:
            await self._group.stop()
        if self._ring is not None:
            await self._ring.stop()
        await self._let_go()

    async def _past(self, local: Parts, as_of: int | datetime) -> QueueService:
        try:
            return local.service(await open_past(local, as_of))
        except RingError:
            self._ring = past_ring(local, as_of)
            await self._ring.start()
            await self._ring.stats()  # raise errors about unreadable shards now, not later
            return self._ring

    @property
    def leader(self) -> str | None:
        """The broker that answered last; None for an embedded queue, and before the first call."""
        return None if self._remote is None else self._remote.leader

    # --- Producing ---

    async def enqueue(
        self,
        entrypoint: str,
        payload: T,
        *,
        priority: int = 0,
        delay: float | timedelta | None = None,
        run_at: datetime | None = None,
        key: str | None = None,
        max_attempts: int | None = None,
        headers: Mapping[str, str] | None = None,
        zone: str | None = None,
        max_crashes: int | None = None,
        fifo: bool = False,
        tags: Sequence[str] = (),
        expires: float | timedelta | datetime | None = None,
        id: str | None = None,  # noqa: A002  the natural name: enqueue("send", payload, id="mail-17")
        request_id: str | None = None,
    ) -> Job[T]:
        """Add a job; it is durable when this returns.

        `priority`: lower runs first. `delay` or `run_at`: not before then. `key`: while an unfinished job holds the
        same key, that job is returned and nothing is added. If the call is repeated and that job has ended since, it
        comes back without its payload. `max_attempts`: the job is dead after this many claims. `max_crashes`: the job
        is dead after its worker process died this many times, and crashes do not count as attempts; without it, a crash
        is a failed attempt. `zone`: the tenant that the job belongs to; zones take turns. `fifo`: the jobs of this zone
        run strictly in enqueue order, one at a time, whatever their priorities. `tags`: up to 16 short texts, without
        commas, to find the job by. `expires`: a job that no worker has claimed by then, or this long after its enqueue,
        is cancelled with the reason `expired`; one that is running may finish, but is not tried again. `id`: the job's
        id, 1 to 256 printable characters, instead of a random one.

        Raises:
            InvalidInputError: a job in the queue has this id, or a value is out of its range. Nothing was added.
        """
        new = NewJob(
            entrypoint,
            payload,
            priority,
            delay,
            run_at,
            key,
            max_attempts,
            headers,
            zone,
            max_crashes,
            fifo,
            tags,
            expires,
            id,
        )
        spec = self._new.spec(new_id(self._parts.rng), new)
        [record] = await self._service.call(requests.Enqueue((spec,), checks.request_id(request_id)))
        return Job(record, self._codec)

    async def enqueue_many(
        self, jobs: Iterable[tuple[str, T] | NewJob[T]], *, request_id: str | None = None
    ) -> list[Job[T]]:
        """Add jobs in one commit: all of them or none."""
        specs = self._new.specs(list(jobs))
        added = await self._service.call(requests.Enqueue(tuple(specs), checks.request_id(request_id)))
        codec = self._codec
        return [Job(record, codec) for record in added]

    async def admit(
        self, source: str, batch: int, parts: Sequence[StagedPart], *, skip_known: bool = False
    ) -> Admission:
        """Add the jobs of staged parts in one commit: all of them or none, and once however often this is called.

        `parts` come from `casque.client.staging.Stager`, on any machine. `source` names the producer, and `batch`
        numbers its batches in rising order: the same batch again, or an older one, adds nothing and returns `repeated`.
        A job whose id is already in the queue refuses the whole batch, unless `skip_known` is set, which skips such
        jobs; a job whose unique key an unfinished job holds is skipped, as with `enqueue`.

        On a ring each shard admits its own jobs in its own commit, all or none. If some shards have theirs and others
        do not, this raises `UnknownOutcomeError`: repeating the batch completes it, and adds nothing twice.

        >>> import asyncio
        >>> from casque import Queue
        >>> from casque.client.staging import StagedJobs, Stager
        >>> with Stager("memory://admit-example") as stager:
        ...     part = stager.stage(StagedJobs(["1", "2"], "send", [b"hello", b"world"]))
        >>> async def main():
        ...     async with Queue.open("memory://admit-example") as q:
        ...         print(await q.admit("nightly", 1, [part]))
        ...         print((await q.admit("nightly", 1, [part])).repeated)
        >>> asyncio.run(main())
        Admission(jobs=2, skipped=0, repeated=False, position=1)
        True

        Raises:
            InvalidInputError: a part is missing, changed or older than 12 hours, or an id is known. Nothing was added.
        """
        return await self._service.call(
            requests.Admit(
                checks.source(source),
                checks.batch(batch),
                checked_parts(parts),
                skip_known=checks.flag("skip_known", skip_known),
            )
        )

    # --- Working ---

    async def dequeue(
        self,
        entrypoint: str | Sequence[str] | None = None,
        *,
        batch_size: int = 1,
        wait: float | timedelta = 0.0,
        lease: float | timedelta | None = None,
        zone: str | Sequence[str] | None = None,
        zone_lease: ZoneLease | None = None,
        request_id: str | None = None,
    ) -> list[Job[T]]:
        """Claim up to `batch_size` jobs of one entrypoint, of several, or of any.

        `wait`: seconds to wait for a first job; without it an empty queue returns at once. `lease`: how long the claim
        lasts without a heartbeat, instead of the queue's `stale_timeout`. `zone`: claim only from this zone, or from
        these; otherwise all zones take turns, and jobs without a zone count as one. `zone_lease`: claim from the zone
        leased with `lease_zone`.

        Raises:
            ZoneLeaseLostError: this caller no longer holds the zone; nothing was claimed.
        """
        zones = checks.zones(zone)
        records = await self._service.call(
            requests.Dequeue(
                entrypoints=checks.entrypoints(entrypoint),
                limit=checks.batch_size(batch_size),
                lease_ms=None if lease is None else max(1, checks.span_ms("lease", lease)),
                worker=self._worker,
                wait_s=checks.span_ms("wait", wait) / 1000,
                request_id=checks.request_id(request_id),
                zones=zones,
                zone_lease=None if zone_lease is None else checks.zone_lease(zone_lease, zones),
            )
        )
        return [Job(record, self._codec, self) for record in records]

    async def heartbeats(self, jobs: Sequence[Job[T] | Lease]) -> list[CasqueError | None]:
        """Renew the leases of these jobs to their full length. Returns one entry per job: None, or the error; a lost
        lease does not affect the others."""
        leases = [_lease(job) for job in jobs]
        answers = await asyncio.gather(
            *(self._service.heartbeats(leases[at : at + BEATS_MAX]) for at in range(0, len(leases), BEATS_MAX))
        )
        return [answer if isinstance(answer, CasqueError) else None for several in answers for answer in several]

    async def give_back(self, jobs: Sequence[Job[T] | Lease]) -> list[CasqueError | None]:
        """Return claimed jobs to the queue without counting an attempt. Returns one entry per job: None if it went back
        or was no longer this caller's, or the error."""
        leases = [_lease(job) for job in jobs]
        returning = (self._service.give_back(one.job_id, token=checks.lease_token(one.token)) for one in leases)
        answers = await asyncio.gather(*returning, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, CasqueError):
                raise answer
        return cast("list[CasqueError | None]", answers)

    # --- Managing ---

    async def cancel(self, job_id: str, *, request_id: str | None = None) -> None:
        """Take a waiting or running job out of the queue; its worker notices at its next heartbeat or ack."""
        await self._service.call(requests.Cancel(checks.job_id(job_id), request_id=checks.request_id(request_id)))

    async def retry(self, job_id: str, *, request_id: str | None = None) -> None:
        """Give a dead job a fresh set of attempts."""
        await self._service.call(requests.Retry(checks.job_id(job_id), request_id=checks.request_id(request_id)))

    async def reschedule(
        self,
        job_id: str,
        *,
        run_at: datetime | None = None,
        delay: float | timedelta | None = None,
        priority: int | None = None,
        request_id: str | None = None,
    ) -> None:
        """Change when a waiting job runs (`run_at`, or `delay` from now), its priority, or both. What is not given
        stays as it is; a time in the past means now.

        Raises:
            JobNotFoundError: it is not in the queue (any more).
            JobStateError: it is not waiting: it is running, or dead.

        >>> import asyncio
        >>> from casque import Queue
        >>> async def main():
        ...     async with Queue.open("memory://reschedule-example") as q:
        ...         job = await q.enqueue("send", b"hello", delay=3600)
        ...         await q.reschedule(job.id, delay=0)
        ...         print(len(await q.dequeue("send")))
        >>> asyncio.run(main())
        1
        """
        run_at_ms = self._new.run_at_ms(delay, run_at)
        priority = None if priority is None else checks.priority(priority)
        asked = requests.Reschedule(checks.job_id(job_id), run_at_ms, priority, checks.request_id(request_id))
        asked.check()
        await self._service.call(asked)

    async def purge(
        self, entrypoint: str | None = None, *, zone: str | None = None, request_id: str | None = None
    ) -> int:
        """Remove dead jobs for good, of one entrypoint, of one zone, or all; returns their number."""
        return await self._service.call(
            requests.Purge(
                entrypoint=None if entrypoint is None else checks.entrypoint(entrypoint),
                request_id=checks.request_id(request_id),
                zone=None if zone is None else checks.zone(zone),
            )
        )

    async def requeue_stale(
        self,
        older: float | timedelta,
        *,
        entrypoint: str | None = None,
        zone: str | None = None,
        request_id: str | None = None,
    ) -> int:
        """Take back running jobs whose last claim or heartbeat was written longer ago than `older`; returns their
        number. For operators who know that their workers are gone.

        Leases that run out are judged by monotonic clocks. This call compares written times with the clock of the
        process that carries it out: if that clock is wrong, it takes jobs from workers that are alive.

        >>> import asyncio
        >>> from casque import Queue
        >>> async def main():
        ...     async with Queue.open("memory://requeue-example") as q:
        ...         await q.enqueue("send", b"hello")
        ...         await q.dequeue("send")
        ...         return await q.requeue_stale(3600)
        >>> asyncio.run(main())
        0
        """
        return await self._service.call(
            requests.RequeueStale(
                checks.span_ms("older", older),
                entrypoint=None if entrypoint is None else checks.entrypoint(entrypoint),
                request_id=checks.request_id(request_id),
                zone=None if zone is None else checks.zone(zone),
            )
        )

    async def pause(self, entrypoint: str | None = None, *, request_id: str | None = None) -> None:
        """Stop claims from the queue, or from one entrypoint, until it is resumed. Running jobs continue, and jobs can
        be added.

        >>> import asyncio
        >>> from casque import Queue
        >>> async def main():
        ...     async with Queue.open("memory://pause-example") as q:
        ...         await q.enqueue("send", b"hello")
        ...         await q.pause("send")
        ...         print(len(await q.dequeue("send")), (await q.stats()).gates.of("send").value)
        ...         await q.resume("send")
        ...         print(len(await q.dequeue("send")))
        >>> asyncio.run(main())
        0 paused
        1
        """
        await self._set_gate(Gate.PAUSED, entrypoint, request_id)

    async def drain(self, entrypoint: str | None = None, *, request_id: str | None = None) -> None:
        """Refuse new jobs for the queue, or for one entrypoint, until it is resumed: `enqueue` raises
        QueueDrainingError. Existing jobs are processed; this does not wait for them."""
        await self._set_gate(Gate.DRAINING, entrypoint, request_id)

    async def resume(self, entrypoint: str | None = None, *, request_id: str | None = None) -> None:
        """Reopen the queue, or one entrypoint. An entrypoint that was paused by itself stays paused when the queue is
        resumed."""
        await self._set_gate(Gate.OPEN, entrypoint, request_id)

    async def _set_gate(self, gate: Gate, entrypoint: str | None, request_id: str | None) -> None:
        chosen = None if entrypoint is None else checks.entrypoint(entrypoint)
        await self._service.call(requests.SetGate(gate, entrypoint=chosen, request_id=checks.request_id(request_id)))

    # --- Zones ---

    async def set_zone(
        self,
        zone: str,
        *,
        weight: float | None = None,
        running_max: int | EllipsisType | None = ...,
        per_second: float | EllipsisType | None = ...,
        paused: bool | None = None,
        request_id: str | None = None,
    ) -> ZoneRules:
        """Change a zone's share of the turns, and its limits; what is not given stays as it is.

        `weight`: twice the weight, twice the jobs. `running_max`: how many of its jobs run at a time. `per_second`: how
        many are claimed per second. None removes a limit. `paused`: none of its jobs are claimed.

        >>> import asyncio
        >>> from casque import Queue
        >>> async def main():
        ...     async with Queue.open("memory://zone-example") as q:
        ...         await q.set_zone("giant", running_max=1)
        ...         for n in range(3):
        ...             await q.enqueue("send", b"%d" % n, zone="giant")
        ...         await q.enqueue("send", b"hello", zone="small")
        ...         print([job.zone for job in await q.dequeue("send", batch_size=4)])
        ...         for zone in await q.zones():
        ...             print(zone.zone, zone.ready, zone.running)
        >>> asyncio.run(main())
        ['giant', 'small']
        giant 2 1
        small 0 1
        """
        name = checks.zone(zone)
        standing = await self._service.call(requests.ListZones(names=frozenset((name,)), limit=1))
        rules = standing[0].rules if standing else ZoneRules()
        changes: dict[str, Any] = {"weight": weight, "paused": paused}
        given = {field: value for field, value in changes.items() if value is not None}
        given |= {
            field: value
            for field, value in (("running_max", running_max), ("per_second", per_second))
            if value is not ...
        }
        rules = checks.zone_rules(msgspec.structs.replace(rules, **given))
        await self._service.call(requests.SetZone(name, rules, request_id=checks.request_id(request_id)))
        return rules

    async def zones(self, zone: str | Sequence[str] | None = None, *, limit: int = 100) -> list[ZoneStanding]:
        """Zones that have jobs or rules, those whose jobs have been due longest first: one, several, or the first
        `limit` of all."""
        names = checks.zones(zone)
        return await self._service.call(
            requests.ListZones(
                names=None if names is None else frozenset(names),
                limit=checks.whole("limit", limit, 1, checks.ZONES_SHOWN_MAX),
            )
        )

    async def peek_zones(
        self,
        entrypoint: str | Sequence[str] | None = None,
        *,
        zone: str | Sequence[str] | None = None,
        limit: int = 100,
    ) -> list[PeekedZone]:
        """The top-level queue: unleased zones with work that no limit holds back, those whose jobs have been due
        longest first. Zones whose jobs are not due yet (`due` is False) follow, in order.

        Takes nothing and writes nothing. On a ring every call starts one shard further.
        """
        names = checks.zones(zone)
        return await self._service.call(
            requests.PeekZones(
                entrypoints=checks.entrypoints(entrypoint),
                names=None if names is None else frozenset(names),
                limit=checks.whole("limit", limit, 1, checks.ZONES_SHOWN_MAX),
            )
        )

    async def lease_zone(
        self, zone: str, *, lease: float | timedelta | None = None, request_id: str | None = None
    ) -> ZoneLease | None:
        """Lease a whole zone: until `release_zone`, or until `lease` has passed without a heartbeat, only a `dequeue`
        with this lease gets its jobs. None if the zone is leased already, or has no jobs. A call that is cancelled
        releases the zone, unless it has a `request_id`.

        >>> import asyncio
        >>> from casque import Queue
        >>> async def main():
        ...     async with Queue.open("memory://zone-lease-example") as q:
        ...         await q.enqueue("send", b"hello", zone="acme")
        ...         for zone in await q.peek_zones():
        ...             lease = await q.lease_zone(zone.zone, lease=30)
        ...             print(zone.zone, await q.dequeue(), await q.lease_zone(zone.zone))
        ...             for job in await q.dequeue(batch_size=10, zone_lease=lease):
        ...                 await job.ack()
        ...             await q.release_zone(lease)
        >>> asyncio.run(main())
        acme [] None
        """
        request = requests.LeaseZone(
            checks.zone(zone),
            lease_ms=None if lease is None else max(1, checks.span_ms("lease", lease)),
            worker=self._worker,
            request_id=checks.request_id(request_id),
        )
        if request_id is not None:
            return await self._service.call(request)  # a repeated request gets the lease
        asking = asyncio.ensure_future(self._service.call(request))
        try:
            return await asyncio.shield(asking)
        except asyncio.CancelledError:
            # It may still be granted, and would keep the zone from others until it runs out.
            self._releasing.start(self._release_unseen(asking))
            raise

    async def _release_unseen(self, asking: asyncio.Future[ZoneLease | None]) -> None:
        """Release a lease whose caller left before it was granted."""
        try:
            if (lease := await asking) is not None:
                await self._service.call(requests.ReleaseZone(lease.zone, lease.token))
        except CasqueError as error:
            log.info("a lease of a zone that its caller left was not released; it runs out: %s", error)

    async def heartbeat_zone(self, lease: ZoneLease) -> ZoneLease:
        """Renew the lease of the zone to its full length.

        Raises:
            ZoneLeaseLostError: it ran out, or was released. Jobs claimed under it stay claimed.
        """
        return await self._service.call(requests.HeartbeatZone(*checks.zone_lease(lease)))

    async def release_zone(self, lease: ZoneLease) -> None:
        """Release the zone to others, from the moment its next job is due. Does nothing if the lease has ended
        already."""
        await self._service.call(requests.ReleaseZone(*checks.zone_lease(lease)))

    # --- Schedules ---

    async def set_schedule(
        self,
        name: str,
        expression: str,
        job: tuple[str, T] | NewJob[T],
        *,
        tz: str = "UTC",
        missed: Missed | str = Missed.ONE,
        origin: str | None = None,
    ) -> Schedule:
        """Add a job at every tick of a cron expression: one job per tick, whichever process notices it.

        `job`: entrypoint and payload, or a `NewJob` without a time; with a unique key, nothing is added while the job
        of an earlier tick is unfinished. `tz`: the time zone of the expression. `missed`: how to treat ticks that are
        more than a minute late: `skip` forgets them, `one` adds one job for all of them, `all` one for each. `origin`:
        what declared the schedule, to find schedules that are no longer declared.

        An identical schedule of this name stays unchanged; a different one is replaced. Jobs have the headers
        `casque-schedule` and `casque-tick`, and an id made of both.

        >>> import asyncio
        >>> from casque import Queue
        >>> async def main():
        ...     async with Queue.open("memory://schedule-example") as q:
        ...         await q.set_schedule("nightly", "0 3 * * *", ("report", b"all"), tz="Europe/Berlin")
        ...         [schedule] = await q.schedules()
        ...         print(schedule.name, schedule.spec.cron, schedule.next_at.minute)
        >>> asyncio.run(main())
        nightly 0 3 * * * 0
        """
        new = as_new_job(job)
        if new.delay is not None or new.run_at is not None:
            raise InvalidInputError("the job of a schedule has no delay and no run_at: each tick is its time")
        if isinstance(new.expires, datetime):
            raise InvalidInputError("expires must be a span, such as timedelta(minutes=10): it counts from each tick")
        if new.id is not None:
            raise InvalidInputError("the job of a schedule has no id: each tick makes one")
        spec = self._new.spec("", new)
        checks.blob("payload", spec.payload, checks.SCHEDULED_BYTES_MAX)
        cron.parse(checks.text("expression", expression, cron.EXPRESSION_MAX), cron.zone(tz))
        return await self._service.call(
            requests.SetSchedule(
                ScheduleSpec(
                    checks.schedule(name),
                    expression,
                    spec,
                    tz,
                    checks.missed(missed),
                    None if origin is None else checks.name("origin", origin, checks.NAME_MAX),
                )
            )
        )

    async def schedules(self) -> list[Schedule]:
        """All schedules, in the order in which they were first set."""
        return await self._service.call(requests.ListSchedules())

    async def pause_schedule(self, name: str) -> Schedule:
        """Stop its ticks until it is resumed. Raises ScheduleNotFoundError."""
        return await self._service.call(requests.PauseSchedule(checks.schedule(name), paused=True))

    async def resume_schedule(self, name: str) -> Schedule:
        """Resume its ticks from now on; those missed during the pause are skipped. Raises ScheduleNotFoundError."""
        return await self._service.call(requests.PauseSchedule(checks.schedule(name), paused=False))

    async def drop_schedule(self, name: str) -> None:
        """Remove a schedule; jobs that it added stay. Raises ScheduleNotFoundError."""
        await self._service.call(requests.DropSchedule(checks.schedule(name)))

    async def trigger_schedule(self, name: str) -> Job[T]:
        """Add the job of a schedule now, in addition to its ticks. Raises ScheduleNotFoundError."""
        for schedule in await self._service.call(requests.ListSchedules()):
            if schedule.name == checks.schedule(name):
                [record] = await self._service.call(requests.Enqueue((triggered(schedule, new_id(self._parts.rng)),)))
                return Job(record, self._codec)
        raise ScheduleNotFoundError(name)

    async def find(self, job_id: str) -> Job[T] | None:
        """The job, if it is in the queue (waiting, running or dead)."""
        record = await self._service.call(requests.Find(checks.job_id(job_id)))
        return None if record is None else self._job(record)

    async def jobs(
        self,
        *,
        states: Iterable[JobState] | None = None,
        entrypoint: str | None = None,
        limit: int | None = None,
        after: int = 0,
    ) -> list[Job[T]]:
        """Jobs in the queue in enqueue order, by state and entrypoint.

        To page through many, pass `limit`, and as `after` the `record.sequence` of the last job so far.
        """
        found = await self._service.call(
            requests.ListJobs(
                states=checks.states(states),
                entrypoint=None if entrypoint is None else checks.entrypoint(entrypoint),
                limit=checks.limit(limit),
                after=checks.whole("after", after, 0),
            )
        )
        return [self._job(record) for record in found]

    async def stats(self) -> Stats:
        """The position and the number of jobs in each state."""
        return await self._service.call(requests.GetStats())

    async def events(
        self, *, from_position: int | Mapping[int, int] | None = None, follow: bool = True
    ) -> AsyncGenerator[QueueEvent]:
        """The events of this queue, in order. Never writes.

        Only a queue in the log layout has a history to follow. `from_position`: begin after this commit, 0 for the very
        beginning; without it, from now on. `follow=False` ends at the end of the log instead of waiting for more. The
        queue need not be entered for this. To resume where a program stopped, remember `event.position`.

        A ring has a history in each of its shards: `event.shard` names the shard, events are in order within each, and
        `from_position` is 0 or a position for each shard, `{0: 41, 1: 7}`; a shard that is not named starts at its
        beginning.

        Raises:
            NoHistoryError: the queue has the document layout.
            HistoryGoneError: the requested or the next events have been deleted; `retention` says how soon.
        """
        try:
            async with aclosing(self._feed(_begin(from_position), follow)) as events:
                async for event in events:
                    yield event
        finally:
            if self._embedded is None:
                await self._let_go()

    async def _feed(self, begin: int | dict[int, int] | None, follow: bool) -> AsyncGenerator[QueueEvent]:
        if self._ring is None and not isinstance(begin, dict):
            try:
                async with aclosing(self._looking().events(from_position=begin, follow=follow)) as events:
                    async for event in events:
                        yield event
            except RingError:
                # The queue was not entered, and this is before the first event.
                if self._local is None:
                    raise
            else:
                return
        feed = (
            self._ring.events(from_position=begin, follow=follow)
            if self._ring
            else ring_events(self._local, begin, follow=follow)
        )
        async with aclosing(feed) as events:
            async for event in events:
                yield event

    async def archive(
        self,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        entrypoint: str | None = None,
        states: Iterable[JobState] | None = None,
    ) -> AsyncGenerator[ArchivedJob]:
        """Finished jobs, `done`, `dead` and `cancelled`, each finish once, hour by hour as they were committed.

        `since` and `until` (exclusive) refer to when they finished, by the clock of the process that committed it.
        Payloads and results are the stored bytes, whatever the queue's type. A job appears within `archive_interval`,
        or when the queue that finished it is closed. The queue need not be entered for this, and nothing is written.

        >>> import asyncio
        >>> from casque import Queue
        >>> async def main():
        ...     async with Queue.open("memory://archive-example") as q:
        ...         await q.enqueue("send", b"hello")
        ...         for job in await q.dequeue("send"):
        ...             await job.ack(result=b"sent")
        ...     async for job in Queue.open("memory://archive-example").archive():
        ...         print(job.entrypoint, job.state.value, job.attempts, job.result)
        >>> asyncio.run(main())
        send done 1 b'sent'
        """
        asked: ArchiveFilter = {
            "since": None if since is None else checks.moment("since", since),
            "until": None if until is None else checks.moment("until", until),
            "entrypoint": None if entrypoint is None else checks.entrypoint(entrypoint),
            "states": checks.finished_states(states),
        }
        try:
            try:
                async with aclosing(self._looking().archive(**asked)) as jobs:
                    async for job in jobs:
                        yield job
            except RingError:
                # The queue was not entered, and this is before the first job.
                assert self._local is not None
                async with aclosing(await ring_archive(self._local, asked)) as jobs:
                    async for job in jobs:
                        yield job
        finally:
            if self._embedded is None:
                await self._let_go()

    @property
    def archives(self) -> bool:
        """True if this queue archives finished jobs, as far as this process knows: brokers decide for themselves."""
        return self._local is None or self._local.settings.archive

    # --- Inside ---

    async def _let_go(self) -> None:
        """Close the store if this queue opened it; a store that was passed in belongs to its creator."""
        if self._remote is not None:
            await self._remote.close()
        if self._owns_store and self._local is not None:
            await self._local.store.close()

    @property
    def _service(self) -> QueueService:
        if self._embedded is None:
            raise QueueClosedError("use the queue inside `async with Queue.open(...) as q:`")
        self._origin.check()
        return self._embedded

    def _looking(self) -> QueueService | History:
        """What can be read without entering the queue."""
        if self._embedded is not None:
            return self._embedded
        if self._local is not None:
            return self._local.history()
        assert self._remote is not None
        return self._remote

    def _job(self, record: JobRecord) -> Job[T]:
        """A read-only job: its handle cannot finish it, because it was not claimed."""
        return Job(record, self._codec)


def _begin(position: int | Mapping[int, int] | None) -> int | dict[int, int] | None:
    if isinstance(position, Mapping):
        return {checks.whole("shard", one, 0): checks.position("from_position", at) for one, at in position.items()}
    return None if position is None else checks.position("from_position", position)


def _lease(held: Job[Any] | Lease) -> Lease:
    """A lease with values of the right types: the queue itself does not check them."""
    if not isinstance(held, Lease):
        return Lease(held.id, held.token)
    said = held.progress
    if said is not None and not isinstance(said, Progress):
        raise InvalidInputError(f"progress must be a Progress, not {checks.shown(said)}")
    return Lease(
        checks.job_id(held.job_id),
        checks.token(held.token),
        None if said is None else checks.progress(said.done, said.total, said.note),
    )
