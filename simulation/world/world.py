"""Nodes, a bucket between them, and what befalls them: one run from the first request to the last lease."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from casque.clock import Random
from casque.codec.blobs import BLOBS
from casque.codec.head import KEY
from casque.codec.ring import shard_prefix
from casque.types import JobState
from simulation.world.answers import Answers
from simulation.world.asked import Told, Verb
from simulation.world.badges import Tokens
from simulation.world.broker import LEASE_S
from simulation.world.bucket import Bucket
from simulation.world.calendar import FAR_MS
from simulation.world.clock import EPOCH_MS
from simulation.world.crew import Knowledge
from simulation.world.history import Claim, History
from simulation.world.invariants import Invariant, Violation
from simulation.world.layout import Layout
from simulation.world.life import Life, Node, routed, task_factory
from simulation.world.loop import VirtualLoop
from simulation.world.onlooker import Effect
from simulation.world.profile import RING_STEP_S, STEP_S, Fault, Profile
from simulation.world.readers import Reader
from simulation.world.reigns import Reigns
from simulation.world.ring import RingHistory, RingSteps
from simulation.world.server import ServedBroker
from simulation.world.shelves import Shelves
from simulation.world.steps import Steps
from simulation.world.trace import Trace

GRACE_S = 1.0
"""What a takeover may take beside waiting: reading, claiming, and a lost race or two."""
HEARD_S = 3.0
"""By then a broker knows of a shard that was added: it looks twice a second here, and some looks fail."""
SETTLED_S = 4.0
"""After the faults, and well before leases run out: by then whoever left has given back."""


class World:
    """Use `simulate`."""

    def __init__(self, seed: int, profile: Profile, layout: Layout) -> None:
        self.seed = seed
        self.profile = replace(
            profile,
            settings=replace(profile.settings, **layout.settings),
            large=max(profile.large, layout.large),
        )
        self.layout = layout
        self.loop = VirtualLoop()
        self.loop.set_task_factory(task_factory)
        self.loop.set_exception_handler(self._unhandled)
        self.loop.route = routed
        self.trace = Trace(self.loop)
        self.faults: Counter[Fault] = Counter()
        self.zoned = layout.ring or seed % 2 == 1
        """Whether there are zones."""
        self.restless = layout.ring and seed % 2 == 0
        """Whether the ring is resized all the time, and its zones are busy."""
        self.skew_s = min(profile.skew_s, layout.skew_max_s)
        self.history, self._steps = self._watched()
        self.answers = Answers(self.history)
        self.known = Knowledge()
        self.bucket = Bucket(self._landed, self._deleted)
        self.places = 0
        """Buckets beside this one."""
        self.violation: Violation | None = None
        self.tokens = Tokens(self)
        self.followers: dict[Reader, Life] = {}
        """Those who follow the events, and in which process."""
        self._healed_at: float | None = None
        self._fewest_left: int | None = None
        self._progress_at = 0.0
        self._away = ""
        """What the keys of a shard begin with that cannot be reached."""
        self._reigns = Reigns(self.history, layout)
        self._rng = Random(f"{seed}/world")
        self.nodes = [Node(self, number) for number in range(1, profile.nodes + 1)]

    def _watched(self) -> tuple[History, Steps | RingSteps]:
        if self.layout.ring:
            ring = RingHistory(self.loop.time, led=self.layout.led)
            return ring, RingSteps(ring, self.layout)
        history = History(self.loop.time)
        history.forgetful = self.layout.forgetful
        return history, Steps(history, self.layout)

    def run(self, duration_s: float) -> None:
        """Faults for so long, then peace until all work is done."""
        for node in self.nodes:
            self.loop.call_later(self._rng.uniform(0.0, 0.3), node.start)
            for fault, mean_s in self.profile.every_s.items():
                self._expect(node, fault, mean_s)
        if self.layout.guarded:
            self.loop.call_later(duration_s / 2, self.tokens.revoke)
        self.loop.call_later(duration_s, self._heal)
        try:
            self.loop.run_forever()
        finally:
            self._end()

    # --- Finding out that something is wrong ---

    @contextmanager
    def watching(self) -> Iterator[None]:
        """A violation found inside ends the run; the first one counts."""
        try:
            yield
        except Violation as violation:
            if self.violation is None:
                self.violation = violation
                self.trace.note("world", str(violation))
                self.loop.stop()
            raise

    def _landed(self, key: str, sender: Life) -> None:
        with self.watching():
            changed = self.history.changed
            self._steps.landed(self.bucket.objects, key, sender)
            if self.layout.led and not self.layout.ring:
                self._reigns.landed(key, self.bucket.objects[key].body, self.loop.time())
                # In a document the claim of a successor is a commit like others: there the silence is judged.
                if self.layout.followed and self.history.changed != changed:
                    self._check_nobody_else_is_sure(sender)
        self.trace.note(sender.name, f"landed {key} {self.history.position} {self.bucket.objects[key].etag}")

    def _check_nobody_else_is_sure(self, sender: Life) -> None:
        """Whoever led before would miss this commit, and answer those who ask as if it was not there."""
        others = [node.life for node in self.nodes if node.life is not None and node.life is not sender]
        sure = [life.name for life in others if life.trusts_its_memory]
        self.history.demand(
            not sure, Invariant.CURRENT, lambda: f"{sender.name} has committed, and {sure} still trust their memory"
        )

    def _deleted(self, key: str, sender: Life) -> None:
        with self.watching():
            self._steps.deleted(key)
        self.trace.note(sender.name, f"deleted {key}")

    def _unhandled(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, Violation) or "never retrieved" in context["message"] or self.violation is not None:
            return  # noted already; or an answer to a caller that has gone
        self.found(Invariant.EXPECTED, f"{context['message']}: {error!r}")

    def found(self, invariant: Invariant, detail: str) -> None:
        """Something is wrong, and nobody is there to be told but the end of the run."""
        if self.violation is None:
            self.violation = Violation(invariant, detail)
            self.loop.stop()

    # --- What befalls nodes ---

    def _expect(self, node: Node, fault: Fault, mean_s: float) -> None:
        self.loop.call_later(node.rng.expovariate(1 / mean_s), self._strike, node, fault, mean_s)

    def _strike(self, node: Node, fault: Fault, mean_s: float) -> None:
        if self.healed:
            return
        self._expect(node, fault, mean_s)
        life = node.life
        if life is None:
            return
        self.faults[fault] += 1
        match fault:
            case Fault.CRASH:
                if node.rng.random() < 0.5:
                    node.crash()
                else:
                    life.die_when_told(rounds=node.rng.randrange(12))
            case Fault.CLOSE:
                if node.rng.random() < 0.5:
                    node.close()
                else:
                    life.close_when_told(rounds=node.rng.randrange(12))
            case Fault.PAUSE if self.profile.nap_s is not None:
                if not life.stopped and life.broker is not None and life.broker.epoch is not None:
                    life.stop()
                    self.loop.call_later(node.rng.uniform(*self.profile.nap_s), life.go_on)
            case Fault.PAUSE:
                life.stop()
                self.loop.call_later(node.rng.uniform(0.05, 1.7 * self.profile.lease_s), life.go_on)
            case Fault.SLEEP:
                life.sleep_over_a_write()
            case Fault.PARTITION:
                node.cut_off = True
                self.loop.call_later(node.rng.uniform(0.1, self.profile.lease_s), self._rejoin, node)
            case Fault.OUTAGE:
                node.refused = True
                self.loop.call_later(node.rng.uniform(0.1, self.profile.lease_s), self._serve_again, node)
            case Fault.FAILOVER_STEP:
                for other in self.nodes:
                    if other is not node:
                        other.clock.set_wall(node.rng.uniform(0.8, 1.0) * self.skew_s)
                node.crash()
            case Fault.CLOCK_JUMP:
                node.clock.set_wall(node.rng.uniform(-self.skew_s, self.skew_s))
            case Fault.POWER:
                for each in self.nodes:
                    each.crash()
                self.bucket.lose(node.rng)
            case Fault.SHARD_AWAY:
                self._send_away(node.rng)
            case Fault.CLOCK_STEP if not self.layout.ring or self.layout.fleet:
                # To a ring of this world, minutes are days.
                least_s, most_s = (1.0, RING_STEP_S) if self.layout.ring else (60.0, STEP_S)
                node.clock.set_wall(node.rng.choice((-1, 1)) * node.rng.uniform(least_s, most_s))
                self.loop.call_later(node.rng.uniform(0.2, 4.0), self._set_right, node)
                if node.rng.random() < 0.3:
                    node.crash()  # whoever takes over, or comes back, has another time
            case Fault.CLOCK_STEP:
                node.crash()
            case _:
                raise AssertionError(f"{fault} does not befall a node")

    def _set_right(self, node: Node) -> None:
        if not self.healed:
            node.clock.set_wall(0.0)

    def earliest_wall_ms(self) -> int:
        """By now no wall clock of this world is behind this, however it is set."""
        steps_s = STEP_S if Fault.CLOCK_STEP in self.profile.every_s else 0.0
        return int(EPOCH_MS + (self.loop.time() - max(self.skew_s, steps_s)) * 1000)

    def _send_away(self, rng: Random) -> None:
        """One at a time. The others have to do without it."""
        if isinstance(self.history, RingHistory) and self.history.shards and not self._away:
            token = rng.choice(sorted(self.history.shards))
            seconds = rng.uniform(0.5, 2.0) * self.profile.lease_s
            self._away = shard_prefix(token)
            self.history.shards[token].away_until = self.loop.time() + seconds
            self.loop.call_later(seconds, self._come_back)

    def _come_back(self) -> None:
        self._away = ""

    def is_away(self, key: str) -> bool:
        return bool(self._away) and key.startswith(self._away)

    def is_gone(self, key: str) -> bool:
        """Whether this is a large payload that was deleted by mistake. Its name decides, so that nothing is drawn that
        others draw from."""
        if not self.layout.gone or not key.startswith(BLOBS):
            return False
        gone = Random(f"{self.seed}/{key}").random() < self.layout.gone
        if gone:
            self.faults[Fault.GONE] += 1
            self.history.gone.add(key)
        return gone

    def _rejoin(self, node: Node) -> None:
        node.cut_off = False

    def _serve_again(self, node: Node) -> None:
        node.refused = False

    # --- The end of a run ---

    @property
    def effects(self) -> Counter[Effect]:
        return self._steps.effects

    @property
    def healed(self) -> bool:
        return self._healed_at is not None

    def healed_for(self, seconds: float) -> bool:
        return self._healed_at is not None and self.loop.time() >= self._healed_at + seconds

    def _heal(self) -> None:
        self._healed_at = self.loop.time()
        self.trace.note("world", "the faults are over")
        wall_s = self._furthest_s()
        for node in self.nodes:
            node.cut_off = node.refused = False
            node.clock.set_wall(wall_s)
            node.start()
            if node.life is not None:
                node.life.go_on()
        if self.layout.led:
            self._later(self._settled_s, self._check_leaders)
        elif not self.layout.ring:
            # On a ring a claim that cannot be given back at once comes back when its lease runs out. Where the clocks
            # have just leapt, direct calls first collect all that is old by now.
            self._later(SETTLED_S * (2 if wall_s else 1), self._check_nobody_left_a_claim)
        self._later(SETTLED_S + 1.0, self._check_done)

    def _furthest_s(self) -> float:
        """How far the clocks are ahead in the peace. What a clock far ahead has put off for later would be waited for
        else, for many minutes in which nothing happens."""
        if Fault.CLOCK_STEP not in self.profile.every_s:
            return 0.0
        furthest_ms = max(node.clock.highest_wall_ms for node in self.nodes)
        return max((furthest_ms - EPOCH_MS) / 1000 - self.loop.time(), 0.0)

    def _later(self, seconds: float, check: Callable[[], None]) -> None:
        def watched() -> None:
            with self.watching():
                check()

        self.loop.call_later(seconds, watched)

    @property
    def _settled_s(self) -> float:
        return (5 if self.layout.ring else 3) * LEASE_S + GRACE_S

    def _check_leaders(self) -> None:
        """A process that was closing when the faults ended comes back later, and shards move to it once more."""
        latest = max(node.life.began_at if node.life is not None else self.loop.time() for node in self.nodes)
        wait_s = latest + self._settled_s - self.loop.time()
        if wait_s > 0:
            self._later(wait_s, self._check_leaders)
        elif self.layout.ring:
            self._check_all_led()
        else:
            self._check_one_leads()

    def _check_one_leads(self) -> None:
        epoch, _ = self.layout.leader(self.bucket.objects[KEY].body)
        leaders = [
            node.name
            for node in self.nodes
            if node.life is not None and node.life.broker is not None and node.life.broker.epoch == epoch
        ]
        self.history.demand(
            len(leaders) == 1, Invariant.LIVE, lambda: f"three leases after the last fault, {leaders or 'nobody'} led"
        )

    def _check_all_led(self) -> None:
        brokers = [node.life.broker for node in self.nodes if node.life is not None]
        led = {token for broker in brokers if isinstance(broker, ServedBroker) for token in broker.led()}
        assert isinstance(self.history, RingHistory)
        shards = range(0 if self.history.root is None else self.history.root.shards)
        self.history.demand(
            led == {*shards}, Invariant.LIVE, lambda: f"five leases after the last fault, of {shards} {led} were led"
        )

    def _check_nobody_left_a_claim(self) -> None:
        for job in self.history.state.leases():
            claim = self.history.claims[job.token]
            self.history.demand(
                self._may_be_kept(claim),
                Invariant.GIVEN_BACK,
                lambda: f"nobody was told of the lease {claim.token}, and {claim.life.name} keeps it",  # noqa: B023
            )

    def _may_be_kept(self, claim: Claim) -> bool:
        """Somebody has it or may ask for it again, or it is too early to tell, or its process cannot know of it."""
        life = claim.life
        gone = life.dead or life.closing
        rest_s = self.profile.settings.poll_max.total_seconds()
        return (
            claim.holder is not None
            or claim.promised
            or gone
            or claim.batch in life.in_doubt
            or self._is_unreadable(claim)
            or life.may_have_tried(claim.batch[0], claim.landed_at)
            or self._is_awaited(claim)
            or self.loop.time() - claim.landed_at < SETTLED_S / 2
            # A commit that lost every race, against others that are as busy, is tried again after a rest.
            or self.loop.time() - life.failed_at.get(claim.batch[0], 0.0) < rest_s + GRACE_S
        )

    def _is_unreadable(self, claim: Claim) -> bool:
        """Whether its payload is gone: if the queue cannot fail the job, the lease runs out."""
        record = self.history.record(claim.job_id)
        return record is not None and record.spec.blob in self.history.gone

    def _is_awaited(self, claim: Claim) -> bool:
        """Whether it may be that of a direct call whose caller still waits: before such a call answers, it does its
        share of the upkeep (snapshot, archive, collection), which takes long after a busy time."""
        if claim.life.direct is None or claim.life.writers[claim.batch[0]] is not None:
            return False
        calls = [call for one in self.history.requests if one.verb is Verb.DEQUEUE for call in one.calls]
        return any(
            call.life is claim.life and call.told is Told.PENDING and call.asked_at <= claim.landed_at for call in calls
        )

    def _check_done(self) -> None:
        states = self.history.everything()
        behind = [place for reader in self.followers if (place := reader.behind) is not None]
        idle = not any(state.waiting or state.running for state in states) and not self._ticks_are_left()
        idle = idle and not behind
        if idle and self._steps.archive_is_complete(self.bucket.objects):
            self.history.checked[Invariant.LIVE] += 1
            self.loop.stop()
            return
        left = [
            f"{job.id[:8]} {job.state} {job.spec.entrypoint} {job.spec.zone or ''}"
            for state in states
            for job in state.jobs.values()
            if _unfinished(job.state)
        ]
        if self._fewest_left is None or len(left) < self._fewest_left:
            self._fewest_left, self._progress_at = len(left), self.loop.time()
        self.history.demand(
            self.loop.time() < self._progress_at + self.profile.recovery_s,
            Invariant.ARCHIVED if idle else Invariant.LIVE,
            lambda: (
                f"{self.profile.recovery_s:.0f} s after the last finish there are left: {', '.join(left[:5])}"
                + "".join(f", somebody has not seen the event {place}" for place in behind[:1])
            ),
        )
        self._later(1.0, self._check_done)

    def parts(self) -> list[tuple[int | None, History, Shelves]]:
        """The queue, or the shards of a ring that brokers have had time to hear of."""
        if isinstance(self._steps, Steps):
            return [(None, self.history, self._steps.shelves)]
        assert isinstance(self.history, RingHistory)
        known = [walked for at, walked in self.history.roots if at < self.loop.time() - HEARD_S][-1:]
        return [
            (token, self.history.shard(token), shelves)
            for token, shelves in self._steps.shelves.items()
            if token < sum(known)
        ]

    def _ticks_are_left(self) -> bool:
        schedules = [one for state in self.history.everything() for one in state.schedules.values()]
        return any(schedule.next_ms < FAR_MS and not schedule.paused for schedule in schedules)

    def _end(self) -> None:
        """Every task unwinds, so that nothing of this world runs in the next."""
        tasks: list[asyncio.Task[Any]] = []
        for life in [node.life for node in self.nodes]:
            if life is not None:
                tasks += life.tasks
                life.kill()
        if tasks:
            self.loop.run_until_complete(asyncio.wait(tasks))
        self.loop.close()


def _unfinished(state: JobState) -> bool:
    return state is not JobState.DEAD
