"""What callers are told, held against what has landed at that moment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from casque.errors import CasqueError, InvalidInputError, JobNotFoundError, LeaseLostError, ZoneLeaseLostError
from casque.state.job_life import LEASE_RAN_OUT
from casque.types import PLAIN_RULES, Admission, Ending, JobState, ZoneLease
from simulation.world.asked import Call, Request, Told, Verb
from simulation.world.history import Claim, Fate, History
from simulation.world.invariants import Invariant
from simulation.world.settings import demand_same_settings, last_asked


class Answers:
    """Run whenever a call ends."""

    def __init__(self, history: History) -> None:
        self._h = history
        self.counted: Counter[tuple[Verb, str]] = Counter()

    def answered(self, call: Call, answer: Any) -> None:
        call.told, call.ended_at = Told.ANSWERED, self._h.now()
        self.counted[call.request.verb, Told.ANSWERED] += 1
        match call.request.verb:
            case Verb.ENQUEUE:
                self._enqueued(call.request, answer)
            case Verb.ADMIT:
                self._admitted(call.request, answer)
            case Verb.DEQUEUE:
                self._dequeued(call.request, answer)
            case Verb.ACK | Verb.CANCEL | Verb.WITHDRAW:
                self._ended(call.request)
            case Verb.NACK | Verb.SNOOZE | Verb.DECLINE:
                self._nacked(call.request)
            case Verb.SETTLE:
                self._settled(call, answer)
            case Verb.SEVERAL:
                self._several(call, answer)
            case Verb.GIVE_BACK:
                self._given_back(call.request)
            case Verb.HEARTBEAT:
                self._beaten(call)
            case Verb.RETRY:
                self._revived(call)
            case Verb.RESCHEDULE:
                self._rescheduled(call.request)
            case Verb.PURGE:
                self._purged(call, answer)
            case Verb.GATE:
                self._gated(call)
            case Verb.ZONE:
                self._zoned(call)
            case Verb.RESIZE:
                self._resized()
            case Verb.TIDY:
                pass  # what the root forgets is judged when it does
            case Verb.REQUEUE:
                self._requeued(call, answer)
            case Verb.LOOK:
                self._looked(call, answer)
            case Verb.SCHEDULE:
                self._scheduled(call.request)
            case Verb.LEASE_ZONE:
                self._zone_leased(call.request, answer)
            case Verb.BEAT_ZONE:
                self._zone_beaten(call)
            case Verb.RELEASE_ZONE:
                self._zone_released(call.request)

    def refused(self, call: Call, error: BaseException) -> None:
        """It never happened, says the answer."""
        call.told, call.ended_at = Told.REFUSED, self._h.now()
        for part in call.parts:
            self.refused(part, error)
        request, h = call.request, self._h
        self.counted[request.verb, type(error).__name__] += 1
        self._check_reason(request, error)
        if request.verb is Verb.ADMIT and isinstance(error, InvalidInputError):
            # However often it was sent, and wherever: this says that nothing of the batch was admitted.
            h.demand(
                not request.effects,
                Invariant.ABSENT,
                lambda: f"{request} was refused ({error}), and admitted: {request.effects}",
            )
        if request.possible:
            return  # the same request was sent elsewhere too
        if isinstance(error, InvalidInputError) and not h.must_remember(request):
            return  # its id was forgotten, and another request has it now
        h.demand(
            not request.effects,
            Invariant.ABSENT,
            lambda: f"{request} was refused ({error}), and acted: {request.effects}",
        )
        if request.verb is Verb.PURGE:
            for fate in h.fates.values():
                self._exonerate(request, fate, error)
        elif request.job_id is not None and (concerned := h.fates.get(request.job_id)) is not None:
            self._exonerate(request, concerned, error)

    def _exonerate(self, request: Request, fate: Fate, error: BaseException) -> None:
        """This one did not take the job out, if it has left: then another one has."""
        if fate.endings is not None and request in fate.endings:
            fate.endings.remove(request)
            self._h.demand(
                bool(fate.endings),
                Invariant.ABSENT,
                lambda: f"{request} was refused ({error}), but only it can have taken job {fate.job_id[:8]} out",
            )

    def _check_reason(self, request: Request, error: BaseException) -> None:
        """Who asks about a job has heard of it, and what has ended never comes back."""
        if self._h.is_ring and request.verb is not Verb.ADMIT:
            self._h.demand(
                not isinstance(error, InvalidInputError) or request.job_id in self._h.expiring,
                Invariant.EXPECTED,
                lambda: f"{request} was refused for good ({error}), and there is nothing wrong with it",
            )
        if isinstance(error, ZoneLeaseLostError):
            self._h.demand(
                not self._h.holds_zone(error.zone, error.token),
                Invariant.CURRENT,
                lambda: f"{request} was refused ({error}), and the lease goes on",
            )
        self._h.demand(
            request.verb is not Verb.DECLINE or not isinstance(error, InvalidInputError),
            Invariant.EXPECTED,
            lambda: f"{request} was refused ({error}), and says nothing but why",
        )
        if request.job_id is None:
            return
        record = self._h.record(request.job_id)
        if isinstance(error, JobNotFoundError):
            # Its name may have been given again by a request that was forgotten and came a second time, perhaps in this
            # very commit: no token of the job that ended is one of the new one's.
            is_another = record is not None and request.token is not None and record.token < request.token
            self._h.demand(
                record is None or is_another,
                Invariant.CURRENT,
                lambda: f"{request} was refused ({error}), and the job is there",
            )
        elif isinstance(error, LeaseLostError):
            held = record is not None and record.state is JobState.RUNNING and request.token in (None, record.token)
            self._h.demand(
                not held or request.token is None,
                Invariant.CURRENT,
                lambda: f"{request} was refused ({error}), and the lease goes on",
            )

    def unknown(self, call: Call, told: Told) -> None:
        call.told = told
        for part in call.parts:
            part.told = told
        self.counted[call.request.verb, told] += 1

    # --- By verb ---

    def _enqueued(self, request: Request, ids: tuple[str, ...]) -> None:
        h = self._h
        for index, job_id in enumerate(ids):
            h.demand(
                job_id in h.fates, Invariant.DURABLE, lambda: f"{request} was answered {ids}, and one is not stored"
            )
            own = request.effects.get(index)
            h.demand(
                not request.borrowed or own is not None,
                Invariant.DURABLE,
                lambda: f"{request} was answered {ids}, which another request with that id has added",
            )
            h.demand(
                own is None or own == job_id or not h.must_remember(request),
                Invariant.ONE_EFFECT,
                lambda: f"{request} added {own} and was told {ids[index]}",  # noqa: B023  called at once
            )
        self._same_answer(request, ids)

    def _admitted(self, request: Request, admission: Admission) -> None:
        h = self._h
        if h.is_ring:
            self._admitted_by_shards(request, admission)
            return
        last = h.state.admissions.get(request.source)
        h.demand(
            last is not None and last.batch >= request.number,
            Invariant.DURABLE,
            lambda: f"{request} was answered {admission}, and the queue knows of {last}",
        )
        own = last is not None and last.batch == request.number
        # A later batch of the source may have been faster: then an older one stays away for ever. Or it came between
        # the answer and now: then the answer still tells of this one.
        h.demand(
            admission.jobs == len(request.effects) or (admission.repeated and not own and not admission.jobs),
            Invariant.ADMITTED,
            lambda: f"{request} was answered {admission}, and brought {request.effects}",
        )

    def _admitted_by_shards(self, request: Request, admission: Admission) -> None:
        whole = admission.jobs + admission.skipped == request.items
        self._h.demand(
            (admission.jobs == len(request.effects) and whole) or (admission.repeated and not admission.jobs),
            Invariant.ADMITTED,
            lambda: f"{request} was answered {admission}, and brought {request.effects}",
        )

    def _dequeued(self, request: Request, leases: tuple[tuple[str, int], ...]) -> None:
        h = self._h
        for job_id, token in leases:
            claim = h.claim(token)
            if claim is None:
                fate = h.fates.get(job_id)
                h.demand(
                    fate is not None and h.own(token) in fate.hidden,
                    Invariant.DURABLE,
                    lambda: f"{request} was told of {leases}, and not all of it is stored",
                )
                continue
            h.demand(
                claim.job_id == job_id and any(claim.life in call.via for call in request.calls),
                Invariant.DURABLE,
                lambda: f"{request} was told of {leases}, which are not its own",
            )
            h.demand(
                claim.holder is None or claim.holder is request,
                Invariant.TOKENS,
                lambda: f"{request} and another were told of one lease: {leases}",
            )
            claim.holder = request
            h.demand(
                claim.under is None or claim.under == request.zone_token,
                Invariant.LEASED,
                lambda: f"{request} got a job of {claim.zone}, which the lease {claim.under} had",  # noqa: B023
            )
            if not claim.fifo:
                self._check_order(request, claim)
        if request.request_id is not None and leases:
            first = request.answer = request.answer or leases
            # A repeated dequeue gets those of its leases that it still has; of those with large payloads, any that can
            # be read. One commit made them all.
            made_by = {claim.batch for _, token in (*first, *leases) if (claim := h.claim(token)) is not None}
            h.demand(
                set(leases) <= set(first)
                or set(first) <= set(leases)
                or len(made_by) == 1
                or not h.keeps_claims
                or not h.must_remember(request),
                Invariant.ONE_EFFECT,
                lambda: f"{request} was told {first} and then {leases}",
            )

    def _check_order(self, request: Request, claim: Claim) -> None:
        """What it got was better than what was left of the same zone; zones take turns within a priority."""
        left = [
            (key if zone == claim.zone else key[:1], zone)
            for (name, zone), key in claim.best_left.items()
            if (request.entrypoints is None or name in request.entrypoints)
            and (request.zones is None or zone in request.zones)
        ]
        self._h.demand(
            all(claim.key[: len(key)] <= key for key, _ in left),
            Invariant.ORDER,
            lambda: f"{request} got {claim.key} of {claim.zone}, and {left} were left",
        )

    def _ended(self, request: Request) -> None:
        h = self._h
        assert request.job_id is not None
        fate = h.fates.get(request.job_id)
        endings = None if fate is None else fate.endings
        if fate is None or endings is None:
            h.broken(Invariant.DURABLE, f"{request} was answered, and the job is still there")
        h.demand(
            request in endings,
            Invariant.ONE_EFFECT if len(endings) == 1 else Invariant.TOKENS,
            lambda: f"{request} was answered, but {endings[0]} took the job out",
        )
        fate.endings = [request]

    def _settled(self, call: Call, answers: Sequence[CasqueError | None]) -> None:
        for part, refused in zip(call.parts, answers, strict=True):
            if refused is None:
                self.answered(part, None)
            else:
                self.refused(part, refused)
        told = [type(refused).__name__ for refused in answers]
        if self._h.is_ring:
            # Each shard remembers its part. One that was refused as a whole is refused anew, perhaps in other words.
            told = ["carried out" if refused is None else "refused" for refused in answers]
        # Where nothing was carried out, nothing is remembered.
        if call.request.answer is not None or any(refused is None for refused in answers):
            self._same_answer(call.request, tuple(told))

    def _several(self, call: Call, answers: Sequence[CasqueError | None]) -> None:
        for part, refused in zip(call.parts, answers, strict=True):
            if refused is None:
                self.answered(part, None)
            elif isinstance(refused, (LeaseLostError, JobNotFoundError)):
                self.refused(part, refused)
            else:
                self.unknown(part, Told.UNKNOWN)  # one that was not answered in time may still be carried out

    def _given_back(self, request: Request) -> None:
        self._h.demand(
            not self._h.goes_on(request.job_id or "", request.token),
            Invariant.DURABLE,
            lambda: f"{request} was answered, and the lease goes on",
        )

    def _failed_so(self, request: Request) -> bool:
        """Somebody else had told the same failure of the same lease, which is no reason to refuse this one."""
        return any(
            tried.token == request.token
            and (tried.how is Ending.FAILED or not (tried.error or "").endswith(LEASE_RAN_OUT))
            for record in self._h.lately(request.job_id or "")
            for tried in record.tries
        )

    def _nacked(self, request: Request) -> None:
        self._h.demand(
            bool(request.effects) or request.may_have_acted or self._failed_so(request),
            Invariant.DURABLE,
            lambda: f"{request} was answered, and the lease goes on",
        )

    def _beaten(self, call: Call) -> None:
        request = call.request
        assert request.job_id is not None
        fate = self._h.fates.get(request.job_id)
        self._h.demand(
            fate is not None and (fate.beaten_at >= call.asked_at or self._acted_covered(call)),
            Invariant.DURABLE,
            lambda: f"{request} was answered, and the lease was not renewed",
        )

    def _acted_covered(self, call: Call) -> bool:
        """A heartbeat in the very commit that then ended the lease leaves no trace."""
        assert call.request.job_id is not None
        record = self._h.record(call.request.job_id)
        return call.request.may_have_acted or record is None or record.token != call.request.token or not record.worker

    def _revived(self, call: Call) -> None:
        request = call.request
        assert request.job_id is not None
        fate = self._h.fates.get(request.job_id)
        first = min(other.asked_at for other in request.calls)
        self._h.demand(
            fate is not None and (fate.revived_at >= first or request.may_have_acted),
            Invariant.DURABLE,
            lambda: f"{request} was answered, and the job is as dead as before",
        )

    def _is_as_asked(self, request: Request) -> bool:
        """A job that had that time and priority already is not changed."""
        assert request.job_id is not None
        record = self._h.record(request.job_id)
        if record is None or record.spec.run_at_ms != request.run_at_ms:
            return False
        return request.priority in (None, record.spec.priority)

    def _rescheduled(self, request: Request) -> None:
        self._h.demand(
            bool(request.effects) or request.may_have_acted or self._is_as_asked(request),
            Invariant.DURABLE,
            lambda: f"{request} was answered, and the job waits as before",
        )

    def _purged(self, call: Call, count: int) -> None:
        if not count:
            return
        request, h = call.request, self._h
        first = min(other.asked_at for other in request.calls)
        landed = [
            purged for at, life, purged in h.purged if at >= first and any(life in other.via for other in request.calls)
        ]
        h.demand(
            any(purged >= count for purged in landed) or (h.is_ring and sum(landed) >= count),
            Invariant.DURABLE,
            lambda: f"{request} was answered {count}, and {landed} were purged",
        )
        self._same_answer(request, count)

    def _gated(self, call: Call) -> None:
        request, h = call.request, self._h
        first = min(other.asked_at for other in request.calls)
        decides = last_asked([one for one in h.gates if one.scope == request.scope], request) is request
        for shard in h.walked(first):
            gate = shard.state.gates.of(request.scope)
            h.demand(
                gate is request.gate or (not decides and shard.gated.get(request.scope, -1.0) >= first),
                Invariant.DURABLE,
                lambda: f"{request} was answered, and the gate is {gate}",  # noqa: B023  called at once
            )

    def _zoned(self, call: Call) -> None:
        request, h = call.request, self._h
        first = min(other.asked_at for other in request.calls)
        decides = last_asked(h.zonings[request.source], request) is request
        for shard in h.walked(first):
            rules = shard.state.rules.get(request.source, PLAIN_RULES)
            h.demand(
                rules == request.rules or (not decides and shard.zoned.get(request.source, -1.0) >= first),
                Invariant.DURABLE,
                lambda: f"{request} was answered, and the rules of {request.source} are {rules}",  # noqa: B023
            )

    def _resized(self) -> None:
        h = self._h
        if not any(request.open_ended for request in h.resizes):
            demand_same_settings(h, h.walked())

    def _requeued(self, call: Call, count: int) -> None:
        request, h = call.request, self._h
        first = min(other.asked_at for other in request.calls)
        landed = sum(
            n for at, life, n in h.expired if at >= first and any(life in other.via for other in request.calls)
        )
        h.demand(landed >= count, Invariant.DURABLE, lambda: f"{request} was answered {count}, and {landed} landed")
        if not h.is_ring:  # a shard that is new has not heard of it
            self._same_answer(request, count)
        if request.by_hand and len(request.calls) == 1:
            self._check_none_stale(call)

    def _check_none_stale(self, call: Call) -> None:
        """By every clock there is, nothing is left that is as old as that."""
        request, h = call.request, self._h
        old_ms = call.earliest_wall_ms - request.timeout_ms
        for shard in h.walked(call.asked_at):
            left = [
                job.token
                for job in shard.state.leases()
                if (job.beat_ms or 0) <= old_ms
                and h.fates[job.id].touched_at < call.asked_at
                and (request.entrypoints is None or job.spec.entrypoint in request.entrypoints)
                and (request.zones is None or job.spec.zone in request.zones)
            ]
            h.demand(not left, Invariant.DURABLE, lambda: f"{request} was answered, and the leases {left} go on")  # noqa: B023

    def _scheduled(self, request: Request) -> None:
        self._h.demand(
            any(request.source in state.schedules for state in self._h.everything()),
            Invariant.DURABLE,
            lambda: f"{request} was answered, and there is no schedule {request.source}",
        )

    # --- Leases of zones ---

    def _zone_leased(self, request: Request, lease: ZoneLease | None) -> None:
        if lease is None:
            return
        h, tenancy = self._h, self._h.tenancy(lease.token)
        h.demand(
            tenancy is not None and tenancy.zone == request.source == lease.zone,
            Invariant.DURABLE,
            lambda: f"{request} was answered {lease}, which is not stored",
        )
        assert tenancy is not None
        h.demand(
            tenancy.holder is None or tenancy.holder is request,
            Invariant.TOKENS,
            lambda: f"{request} and {tenancy.holder} were given one lease: {lease}",
        )
        tenancy.holder = request
        self._same_answer(request, lease.token)

    def _zone_beaten(self, call: Call) -> None:
        request, h = call.request, self._h
        tenancy = h.tenancy(request.token or 0)
        h.demand(
            tenancy is not None
            and (tenancy.beaten_at >= call.asked_at or not h.holds_zone(request.source, request.token or 0)),
            Invariant.DURABLE,
            lambda: f"{request} of {request.source} was answered, and the lease was not renewed",
        )

    def _zone_released(self, request: Request) -> None:
        self._h.demand(
            not self._h.holds_zone(request.source, request.token or 0),
            Invariant.DURABLE,
            lambda: f"{request} of {request.source} was answered, and the lease goes on",
        )

    def _looked(self, call: Call, position: int) -> None:
        self._h.demand(
            (self._h.is_ring or call.landed <= position) and position <= self._h.position,
            Invariant.CURRENT,
            lambda: f"{call.request} saw position {position}, and {call.landed} had landed when it was asked",
        )

    def _same_answer(self, request: Request, answer: Any) -> None:
        if request.request_id is None:
            return
        first = request.answer = request.answer or answer
        self._h.demand(
            first == answer or not self._h.must_remember(request),
            Invariant.ONE_EFFECT,
            lambda: f"{request} was answered {first} and then {answer}",
        )
