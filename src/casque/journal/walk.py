"""Walks along a log, from its floor to its end, and checks everything that can be checked. Decides; never reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from msgspec.structs import replace

from casque.codec.admission import Staged, expanded
from casque.codec.digest import compared_facets
from casque.codec.head import KEY
from casque.codec.log import (
    START,
    LogHead,
    SnapshotRef,
    Tip,
    decode_segment,
    digest,
    previous,
    replay,
    segment_key,
)
from casque.codec.stored import end_alike
from casque.errors import CorruptQueueError
from casque.state import Limits, State
from casque.state.staged import Named
from casque.types import Finished, JobRecord, JobState

LIMITS = Limits(finished=True)
RESTORE = "Restore it from a backup or an older version"


class Walk:
    """Takes segments one after the other, and each snapshot at its position. The first inconsistency raises."""

    def __init__(self, head: LogHead) -> None:
        assert head.queue_id is not None
        self._head = head
        self._queue_id = head.queue_id
        self.refs = [*head.kept, *([head.snapshot] if head.snapshot is not None else [])]
        self.checked = 0
        """Snapshots that were read."""
        self.replayed = 0
        """Snapshots that equal the state replayed up to them."""
        self.position = head.floor
        # From the very beginning everything can be replayed. Above a floor only the links can be checked, up to the
        # first snapshot.
        self._state: State | None = None if head.floor else State(LIMITS)
        self._tip: Tip | None = None if head.floor else Tip()
        self._chain: str | None = None if head.floor else START
        self.finished: list[Finished] = []
        """Every job that finished after `knows_from`."""
        self.knows_from: int | None = None if head.floor else 0
        self._check_head()

    def _check_head(self) -> None:
        positions = [ref.position for ref in self.refs]
        if positions != sorted(set(positions)):
            raise CorruptQueueError(KEY, f"its snapshots are not in order: it was edited by hand. {RESTORE}")
        if self._head.floor > self.reaches:
            raise CorruptQueueError(KEY, f"its floor is above its snapshot: it was edited by hand. {RESTORE}")

    @property
    def reaches(self) -> int:
        """The position that the log must reach, because a snapshot includes it."""
        return self.refs[-1].position if self.refs else 0

    @property
    def steps(self) -> int:
        """Number of objects checked."""
        return self.position - self._head.floor + self.checked

    @property
    def ref(self) -> SnapshotRef | None:
        """The next snapshot on the way."""
        return self.refs[self.checked] if self.checked < len(self.refs) else None

    def step(self, body: bytes, staged: Staged) -> None:
        """Process the next segment, and the jobs that it names."""
        slot = self.position + 1
        prev = previous(body) if self._chain is None else self._chain
        segment = decode_segment(body, queue_id=self._queue_id, position=slot, prev=prev)
        segment = expanded(segment, staged)
        self._chain = digest(body)
        self.position = slot
        if self._state is None or self._tip is None:
            return
        if segment.epoch < self._tip.epoch:
            raise CorruptQueueError(
                segment_key(slot), f"its epoch {segment.epoch} is older than the {self._tip.epoch} before it. {RESTORE}"
            )
        if segment.epoch > self._tip.epoch and not segment.is_fence:
            raise CorruptQueueError(segment_key(slot), f"its epoch begins without a fence. {RESTORE}")
        replay(self._state, segment)
        self.finished += self._state.finished
        self._state.shed(slot)
        self._tip.advance(segment, self._chain)

    def checkpoint(self, state: State, tip: Tip) -> None:
        """Process the snapshot of this position."""
        ref = self.ref
        assert ref is not None
        self.checked += 1
        if (problem := flaw(state)) is not None:
            raise CorruptQueueError(ref.key, f"{problem}. {RESTORE}")
        if ref.position < self.position:
            return
        if self._chain not in (None, tip.chain):
            raise CorruptQueueError(ref.key, f"it does not follow {segment_key(self.position)}. {RESTORE}")
        if self._state is not None:
            if not _same(state, self._state) or tip != self._tip:
                raise CorruptQueueError(
                    ref.key,
                    "it is not what the segments before it add up to. Report this; until then, restore "
                    f"{KEY} from a version that does not name it, while the segments are there",
                )
            archived = max(self._head.archived_to, self.knows_from or 0)
            if not _same_ends(_after(archived, state.finished), _after(archived, self.finished)):
                raise CorruptQueueError(ref.key, f"it does not tell what is yet to be archived. {RESTORE}")
            if _named_after(self._head.floor, state) != _named_after(self._head.floor, self._state):
                raise CorruptQueueError(ref.key, f"it does not tell which staged objects are still needed. {RESTORE}")
            self.replayed += 1
        state.shed(ref.position)
        self._state, self._tip, self._chain = state, tip, tip.chain
        if self.knows_from is None:
            self.knows_from = ref.position

    def finish(self) -> tuple[State, Tip]:
        """The end of the log: returns the current queue."""
        assert self._state is not None, "the head names a snapshot at or above its floor"
        assert self._tip is not None
        if self._tip.epoch > self._head.epoch:
            raise CorruptQueueError(
                KEY, f"its epoch is older than that of the log: an old version was put back. {RESTORE}"
            )
        if (problem := flaw(self._state)) is not None:
            raise CorruptQueueError(segment_key(self.position), f"after it, {problem}. {RESTORE}")
        return self._state, self._tip


def flaw(state: State) -> str | None:
    """The first rule that this state breaks, or None."""
    if (problem := state.violation()) is not None:
        return problem
    jobs, counters = state.jobs.values(), state.counters
    if counters.tokens < max((job.token for job in jobs), default=0):
        return "a job has a lease token that was never given out"
    if counters.sequence < max((job.sequence for job in jobs), default=0):
        return "a job has an enqueue number that was never given out"
    if _twice(job.sequence for job in jobs):
        return "two jobs have the same enqueue number"
    # Claims by jqueue have no token.
    if _twice(job.token for job in jobs if job.state is JobState.RUNNING and job.token):
        return "two running jobs have the same lease token"
    if _twice(job.spec.key for job in jobs if job.spec.key is not None and job.state is not JobState.DEAD):
        return "two unfinished jobs hold the same unique key"
    return None


def _same(kept: State, replayed: State) -> bool:
    """Equivalent to comparing digests, and a good deal faster."""
    return (
        (kept.jobs == replayed.jobs or _same_jobs(kept.jobs, replayed.jobs))
        and kept.counters == replayed.counters
        and list(kept.writers.items()) == list(replayed.writers.items())
        # A release that did not record what its table forgot is assumed to have forgotten more.
        and kept.writers_forgotten >= replayed.writers_forgotten
        and _same_requests(kept, replayed)
        and compared_facets(kept) == compared_facets(replayed)
        and list(kept.admissions) == list(replayed.admissions)  # the first one is forgotten first
    )


def _same_jobs(kept: dict[str, JobRecord], replayed: dict[str, JobRecord]) -> bool:
    return kept.keys() == replayed.keys() and all(_same_job(job, replayed[i]) for i, job in kept.items())


def _same_requests(kept: State, replayed: State) -> bool:
    """Earlier releases forgot by the clock, which a replay does not; and, when there were too many, the oldest of all
    and not those of the caller with the most."""
    one, other = list(kept.requests.items()), list(replayed.requests.items())
    if end_alike(one, other):
        return True
    if len(one) != len(other) or len(one) < LIMITS.requests_max:
        return False
    common = kept.requests.keys() & replayed.requests.keys()
    return [each for each in one if each[0] in common] == [each for each in other if each[0] in common]


def _same_ends(kept: list[Finished], replayed: list[Finished]) -> bool:
    return len(kept) == len(replayed) and all(
        one == other or (_same_job(one.job, other.job) and replace(one, job=other.job) == other)
        for one, other in zip(kept, replayed, strict=True)
    )


def _same_job(kept: JobRecord, replayed: JobRecord) -> bool:
    return kept == replayed or (
        end_alike(kept.tries, replayed.tries) and replace(kept, tries=()) == replace(replayed, tries=())
    )


def _after(position: int, finished: Iterable[Finished]) -> list[Finished]:
    return [one for one in finished if one.position > position]


def _named_after(position: int, state: State) -> list[Named]:
    return [one for one in state.staged if one.position > position]


def _twice(values: Iterable[int | str]) -> bool:
    return max(Counter(values).values(), default=0) > 1
