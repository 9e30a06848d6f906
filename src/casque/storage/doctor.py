"""Checks whether a store keeps the promises that a queue relies on, by trying to break them.

Many S3-compatible servers accept conditional writes and ignore the condition, or check and write in two steps that
another writer fits between. Both look fine until jobs get lost. So each refusal is tested once without contention, and
then many clients race for the same keys, with small bodies and with large ones, which keep a careless server between
its two steps for longer.

Everything happens below one random prefix and is removed afterwards.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager

import msgspec

from casque.clock import Clock, Random, SystemClock, new_nonce, system_random
from casque.errors import CasqueError, StorageError
from casque.storage.port import Lost, Missing, Outcome, Store, Stored, Unchanged, Unknown, Won
from casque.storage.url import open_store

Progress = Callable[[str, int, int], None]
"""Called before each check with its title, its number and the total."""

ATTEMPTS_MAX = 4
COUNT_ATTEMPTS_MAX = 2000


class Effort(msgspec.Struct, frozen=True):
    """How hard to try. On a distant bucket the large races take longest: each uploads `large_bytes` per client."""

    clients: int = 12
    small_rounds: int = 12
    large_clients: int = 6
    large_rounds: int = 4
    large_bytes: int = 8 * 1024 * 1024
    race_seconds_max: float = 20.0
    """No new round of a race begins after this time. Some servers make contending writers wait for seconds."""
    counters: int = 6
    counts: int = 8


class Finding(msgspec.Struct, frozen=True):
    """One promise, whether it held, and what its failure means for a queue."""

    promise: str
    held: bool
    detail: str = ""
    consequence: str = ""


class Latency(msgspec.Struct, frozen=True):
    verb: str
    calls: int
    median_ms: float
    worst_ms: float


class Report(msgspec.Struct, frozen=True):
    store: str
    safe: bool
    verdict: str
    findings: tuple[Finding, ...]
    latencies: tuple[Latency, ...]
    leftover: str = ""
    """Where objects of the examination may be left, if they could not be removed."""


class BrokenPromiseError(Exception):
    """A check failed. Internal to the examination."""


async def examine(
    url: str,
    *,
    options: dict[str, str] | None = None,
    effort: Effort | None = None,
    progress: Progress | None = None,
    clock: Clock | None = None,
    rng: Random | None = None,
) -> Report:
    """Examine the store at `url`, and clean up.

    Raises:
        InvalidInputError: `url` is not a store URL, or the store does not take these options.
        StoreAccessError: the store denies access, so nothing is known about its safety.
        StorageError: the store does not answer well enough to be examined.
    """
    first = open_store(url, options=options)
    # A memory store without a name is a new one each time it is opened.
    shared = url.startswith("memory:")
    effort = effort or Effort()
    count = max(effort.clients, effort.large_clients, effort.counters)
    stores = [first, *(first if shared else open_store(url, options=options) for _ in range(count - 1))]
    ward = _Examination(stores, effort, clock or SystemClock(), rng or system_random(), progress or (lambda *_: None))
    leftover = ""
    try:
        findings = await ward.run()
    finally:
        leftover = await ward.clean_up()
        for store in stores:
            await store.close()
    broken = [finding for finding in findings if not finding.held]
    return Report(
        store=repr(first),
        safe=not broken,
        verdict=_verdict(broken),
        findings=tuple(findings),
        latencies=tuple(ward.timings.latencies()),
        leftover=leftover,
    )


def _verdict(broken: list[Finding]) -> str:
    if not broken:
        return "safe: this store kept every promise that a queue needs"
    worst = broken[0]
    return f"unsafe: {worst.detail}: {worst.consequence}"


class _Timings:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._spent: dict[str, list[float]] = {}

    @contextmanager
    def measure(self, verb: str) -> Iterator[None]:
        start = self._clock.monotonic_ms()
        yield
        self._spent.setdefault(verb, []).append(self._clock.monotonic_ms() - start)

    def latencies(self) -> Iterator[Latency]:
        for verb, spent in self._spent.items():
            ordered = sorted(spent)
            yield Latency(verb, len(ordered), ordered[len(ordered) // 2], ordered[-1])


class _Examination:
    def __init__(self, stores: list[Store], effort: Effort, clock: Clock, rng: Random, progress: Progress) -> None:
        self._stores = stores
        self._one = stores[0]
        self._other = stores[1]
        self._effort = effort
        self._clock = clock
        self._rng = rng
        self._progress = progress
        self._root = f"casque-doctor-{new_nonce(rng)}"
        self._keys: set[str] = set()
        self.timings = _Timings(clock)

    async def run(self) -> list[Finding]:
        checks: list[tuple[str, str, Callable[[], Awaitable[str]]]] = [
            ("what was written can be read", "jobs would be lost", self._reads_own_writes),
            ("a second create is refused", "jobs would be lost", self._refuses_second_create),
            ("a replace of an old version is refused", "jobs would be lost", self._refuses_stale),
            ("a replace of nothing is refused", "a removed queue could come back half", self._refuses_missing),
            ("other clients see a write at once", "jobs would run twice", self._is_seen_by_others),
            ("a listing is complete and in order", "clean-up could miss objects", self._lists_in_order),
            ("one of many creates wins", "jobs would be lost", self._small_races),
            ("one of many large writes wins", "jobs would be lost", self._large_races),
            ("no acknowledged change gets lost", "jobs would be lost", self._counts),
        ]
        findings: list[Finding] = []
        for number, (promise, consequence, check) in enumerate(checks):
            self._progress(promise, number, len(checks))
            try:
                detail = await check()
            except BrokenPromiseError as broken:
                findings.append(Finding(promise, held=False, detail=str(broken), consequence=consequence))
            else:
                findings.append(Finding(promise, held=True, detail=detail))
            if number == 5 and not all(finding.held for finding in findings):
                break  # already broken without contention: races would only take time
        self._progress("done", len(checks), len(checks))
        return findings

    async def clean_up(self) -> str:
        """Remove all test objects; returns where to look if that failed."""
        try:
            keys = self._keys | {key async for key in self._one.list(f"{self._root}/")}
            for key in keys:
                await self._one.delete(key)
        except CasqueError:
            return self._root
        return ""

    # --- Without contention ---

    async def _reads_own_writes(self) -> str:
        for _ in range(5):
            key, body = self._new_key(), self._body("own")
            etag = await self._created(self._one, key, body)
            await self._expect(self._one, key, body, "a write was acknowledged and then not there to read")
            body = self._body("own, again")
            await self._replaced(self._one, key, body, etag)
            await self._expect(self._one, key, body, "a replace was acknowledged and then not there to read")
        return "5 objects written, replaced and read back"

    async def _refuses_second_create(self) -> str:
        key, body = self._new_key(), self._body("first")
        await self._created(self._one, key, body)
        if isinstance(await self._settle(lambda: self._other.create(key, self._body("second"))), Won):
            raise BrokenPromiseError("this store accepted a second create of the same key")
        await self._expect(self._one, key, body, "a refused create changed the object")
        return "refused, and the first object is untouched"

    async def _refuses_stale(self) -> str:
        key, body = self._new_key(), self._body("second")
        old = await self._created(self._one, key, self._body("first"))
        new = await self._replaced(self._one, key, body, old)
        if new == old:
            raise BrokenPromiseError("this store gave two versions of an object the same version token")
        outcome = await self._settle(lambda: self._other.replace(key, self._body("third"), expected=old))
        if isinstance(outcome, Won):
            raise BrokenPromiseError("this store replaced an object although its version had changed")
        await self._expect(self._one, key, body, "a refused replace changed the object")
        return "refused, and the newer version is untouched"

    async def _refuses_missing(self) -> str:
        key = self._new_key()
        etag = await self._created(self._one, key, self._body("first"))
        await self._one.delete(key)
        outcome = await self._settle(lambda: self._one.replace(key, self._body("second"), expected=etag))
        if isinstance(outcome, Won) or not isinstance(await self._one.get(key), Missing):
            raise BrokenPromiseError("this store replaced an object that had been removed")
        return "refused, and nothing was created"

    async def _is_seen_by_others(self) -> str:
        for _ in range(10):
            key, body = self._new_key(), self._body("first")
            etag = await self._created(self._one, key, body)
            await self._expect(self._other, key, body, "a new object was not visible to another client")
            if not isinstance(await self._other.get(key, unless=etag), Unchanged):
                raise BrokenPromiseError("this store does not recognise a version that it gave out itself")
            body = self._body("second")
            await self._replaced(self._one, key, body, etag)
            await self._expect(self._other, key, body, "another client was shown an old version")
        return "10 objects, each seen at once, new and changed"

    async def _lists_in_order(self) -> str:
        folder = f"{self._root}/list/"
        names = [f"{folder}{name}" for name in ("a.b", "a/2", "a/10", "b", "log/01", "log/02")]
        for name in names:
            self._keys.add(name)
            await self._created(self._one, name, self._body(name))
        with self.timings.measure("list"):
            listed = [key async for key in self._one.list(folder)]
        if listed != sorted(names):
            raise BrokenPromiseError(f"a listing showed {len(listed)} keys instead of {len(names)} in order")
        after = [key async for key in self._other.list(f"{folder}log/", after=names[4])]
        if after != [names[5]]:
            raise BrokenPromiseError(f"a listing after {names[4]!r} showed {after} instead of {names[5:]}")
        return f"{len(names)} keys"

    # --- Races ---

    async def _small_races(self) -> str:
        return await self._races(self._effort.small_rounds, self._effort.clients, b"")

    async def _large_races(self) -> str:
        padding = bytes(self._effort.large_bytes)
        return await self._races(self._effort.large_rounds, self._effort.large_clients, padding)

    async def _races(self, rounds_max: int, clients: int, padding: bytes) -> str:
        deadline = self._clock.monotonic_ms() + self._effort.race_seconds_max * 1000
        rounds = 0
        while rounds < rounds_max and (rounds == 0 or self._clock.monotonic_ms() < deadline):
            await self._race(clients, padding)
            rounds += 1
        return f"{rounds} rounds of {clients} clients, one winner in each"

    async def _race(self, clients: int, padding: bytes) -> None:
        """All create one key at once, then all replace that version at once."""
        key = self._new_key()
        await self._contest(
            key, clients, padding, lambda store, body: store.create(key, body), "creates of the same key"
        )
        found = await self._one.get(key)
        if not isinstance(found, Stored):
            return  # every create ended unknown and none landed: nothing to race for
        await self._contest(
            key,
            clients,
            padding,
            lambda store, body: store.replace(key, body, expected=found.etag),
            "replaces of the same version",
        )

    async def _contest(
        self,
        key: str,
        clients: int,
        padding: bytes,
        write: Callable[[Store, bytes], Awaitable[Outcome]],
        what: str,
    ) -> None:
        bodies = [self._body(f"racer {number}") + padding for number in range(clients)]
        pairs = zip(self._stores, bodies, strict=False)
        outcomes = await asyncio.gather(*(write(store, body) for store, body in pairs))
        winners = [number for number, outcome in enumerate(outcomes) if isinstance(outcome, Won)]
        if len(winners) > 1:
            raise BrokenPromiseError(f"this store accepted {len(winners)} {what} at once")
        if winners:
            await self._expect(self._one, key, bodies[winners[0]], "the winner of a race was overwritten")

    async def _counts(self) -> str:
        key = self._new_key()
        await self._created(self._one, key, msgspec.json.encode([]))
        clients = self._stores[: self._effort.counters]
        await asyncio.gather(*(self._count(store, key) for store in clients))
        found = await self._one.get(key)
        marks = msgspec.json.decode(found.body, type=list[str]) if isinstance(found, Stored) else []
        expected = len(clients) * self._effort.counts
        if len(marks) != expected or len(set(marks)) != expected:
            lost = expected - len(set(marks))
            raise BrokenPromiseError(f"{lost} of {expected} acknowledged changes to one object got lost")
        return f"{expected} changes to one object by {len(clients)} clients"

    async def _count(self, store: Store, key: str) -> None:
        for _ in range(self._effort.counts):
            mark = new_nonce(self._rng)
            async for marks, etag in self._versions(store, key):
                if mark in marks:
                    break
                outcome = await store.replace(key, msgspec.json.encode([*marks, mark]), expected=etag)
                if isinstance(outcome, Won):
                    break
                if isinstance(outcome, Unknown):
                    # Google allows about one write per second to one object: wait before asking again.
                    await self._clock.sleep(self._rng.uniform(0.1, 1.0))

    async def _versions(self, store: Store, key: str) -> AsyncIterator[tuple[list[str], str]]:
        for _ in range(COUNT_ATTEMPTS_MAX):
            found = await store.get(key)
            if not isinstance(found, Stored):
                raise BrokenPromiseError("an object vanished while it was being replaced")
            yield msgspec.json.decode(found.body, type=list[str]), found.etag
        raise StorageError(f"no change to one object succeeded in {COUNT_ATTEMPTS_MAX} attempts")

    # --- Steps ---

    def _new_key(self) -> str:
        key = f"{self._root}/{new_nonce(self._rng)}"
        self._keys.add(key)
        return key

    def _body(self, text: str) -> bytes:
        # Some stores derive the version token from the content: never write the same twice.
        return f"{new_nonce(self._rng)} {text}\n".encode()

    async def _created(self, store: Store, key: str, body: bytes) -> str:
        with self.timings.measure("create"):
            outcome = await self._settle(lambda: store.create(key, body))
        return await self._landed(store, key, body, outcome)

    async def _replaced(self, store: Store, key: str, body: bytes, expected: str) -> str:
        with self.timings.measure("replace"):
            outcome = await self._settle(lambda: store.replace(key, body, expected=expected))
        return await self._landed(store, key, body, outcome)

    async def _landed(self, store: Store, key: str, body: bytes, outcome: Outcome) -> str:
        if isinstance(outcome, Won):
            return outcome.etag
        # A write that ended unknown may have landed before the one that lost.
        found = await store.get(key)
        if isinstance(found, Stored) and found.body == body:
            return found.etag
        raise BrokenPromiseError("this store refused a write whose condition held")

    async def _settle(self, write: Callable[[], Awaitable[Outcome]]) -> Outcome:
        outcome: Outcome = Lost()
        for attempt in range(ATTEMPTS_MAX):
            outcome = await write()
            if not isinstance(outcome, Unknown):
                return outcome
            await self._clock.sleep(0.2 * 2**attempt)
        assert isinstance(outcome, Unknown)
        raise StorageError(
            f"the store did not answer a write in {ATTEMPTS_MAX} attempts: {outcome.cause}", outcome.cause
        )

    async def _expect(self, store: Store, key: str, body: bytes, otherwise: str) -> None:
        with self.timings.measure("get"):
            found = await store.get(key)
        if not isinstance(found, Stored) or found.body != body:
            raise BrokenPromiseError(otherwise)
