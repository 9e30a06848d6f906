"""The rules of a ring, for one zone: adopting, adding, leasing, admitting, and forgetting older sizes.

One zone is enough, because shards decide about each zone by itself, and what is promised is about each of them: it is
never in two shards, always where the root would look for it, and what was asked for once comes once. Everybody stalls
between any two requests. A request to a shard is one step: its answer and its effect are one commit of that shard.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple, TypeAlias, assert_never


class RingRule(StrEnum):
    """Each can be dropped."""

    TELL_FIRST = "tell-first"
    """Older homes are told of the caller's ring before they are asked for anything."""
    COMPARE_GENERATIONS = "compare-generations"
    """A shard makes a zone only for callers that know its ring, not merely if it is the home."""
    OLDER_HOMES = "older-homes"
    """Jobs are offered to the older homes first."""
    LEASES_COUNT = "leases-count"
    """A leased zone is there although it has no jobs."""
    LEASES_SHOWN = "leases-shown"
    """The same for those who only look, as an admission does."""
    LOOK_FOR_REQUESTS = "look-for-requests"
    """Older homes are asked whether they know a request, before it is carried out."""
    REQUESTS_OF_THIS_RING = "requests-of-this-ring"
    """A shard carries out a request with an id only for callers that know its ring, also where the zone is."""
    CLEAR_MEANS_EMPTY = "clear-means-empty"
    """Sizes are noted as not needed only if no shard holds what is at home elsewhere."""
    CLEAR_MEANS_TOLD = "clear-means-told"
    """And only when every shard knows the newest ring."""
    SETTLE = "settle"
    """They are forgotten when no request that was carried out before can be repeated any more."""
    SHARES_WRITTEN = "shares-written"
    """Which shard admits a row is decided once, and written down before the shard is asked."""
    SHARE_GENERATION = "share-generation"
    """A share is admitted with the generation by which it was decided, not with the newest."""
    GIVE_UP = "give-up"
    """A share that is refused is given up in the history of the shard before its rows go elsewhere."""
    REFUSAL_WRITTEN = "refusal-written"
    """A refusal of an admission is written to the book: it loses to one that has begun, and ends the others."""


ALL_RING_RULES = frozenset(RingRule)

ROW = "x"
"""The job that an admission brings."""


class Shard(NamedTuple):
    told: int = 0
    """The newest generation that it has adopted."""
    jobs: frozenset[str] = frozenset()
    leased: bool = False
    requests: frozenset[str] = frozenset()
    shares: tuple[tuple[int, bool], ...] = ()
    """Shares of the batch that it has answered: the number, and whether their row came."""


class Root(NamedTuple):
    generation: int = 1
    sizes: tuple[int, ...] = (1,)
    """The generations whose sizes zones may still be found by, newest last."""
    clear: bool = False


class Book(NamedTuple):
    """What is written down about the batch."""

    version: int = 0
    number: int = 0
    """Of the share; 0: not begun."""
    shard: int = 0
    generation: int = 0
    done: bool = False
    refused: bool = False


class Process(NamedTuple):
    """Where a caller stands. Which of the fields mean something depends on what it does next."""

    does: str = "begin"
    head: Root = Root()
    at: int = 0
    """Which of the homes, or shards, is next."""
    found: int = -1
    book: Book = Book()
    first: int = 0
    """The version of the book when this attempt began."""


class State(NamedTuple):
    root: Root
    shards: tuple[Shard, ...]
    processes: tuple[Process, ...]
    book: Book = Book()
    drained: bool = False
    added: tuple[str, ...] = ()
    """Every job that was ever added, in order."""
    bound: frozenset[int] = frozenset()
    """Attempts at the batch that had begun when it was refused: they must not begin it any more."""
    broken: str = ""
    """What was done or said that is not true for ever."""
    leases: int = 0


Steps: TypeAlias = Iterator[tuple[str, State]]


class RingRole(StrEnum):
    PRODUCER = "producer"
    """Adds a job without a request id."""
    ENQUEUER = "enqueuer"
    TIDIER = "tidier"
    DRIVER = "driver"


@dataclass(frozen=True, kw_only=True)
class RingScenario:
    name: str
    homes: tuple[int, ...]
    """The home of the zone on the ring of each generation, from 1."""
    processes: tuple[tuple[RingRole, str], ...]
    """Who takes part; of an enqueuer, which request it sends. Two that send the same one repeat it."""
    leases: int = 0
    forgets: bool = False
    drains: bool = False
    """Whether admissions may be refused for a while."""
    begins_with: str = ""
    """A job that is there from the beginning, at the first home."""


class RingModel:
    """Every step that may follow a state, and what is wrong with it."""

    def __init__(self, scenario: RingScenario, rules: frozenset[RingRule] = ALL_RING_RULES) -> None:
        self._scenario = scenario
        self._rules = rules
        shards = [Shard(told=1) for _ in range(max(scenario.homes) + 1)]
        if scenario.begins_with:
            first = scenario.homes[0]
            shards[first] = shards[first]._replace(jobs=frozenset({scenario.begins_with}))
        self.first = State(Root(), tuple(shards), tuple(Process() for _ in scenario.processes))

    def violation(self, state: State) -> str:
        """What must never be, if it is."""
        held = [number for number, shard in enumerate(state.shards) if shard.jobs or shard.leased]
        if len(held) > 1:
            return f"the zone is in the shards {held}"
        lost = [number for number in held if number not in self._homes(state.root)]
        if lost:
            return f"the zone is in shard {lost[0]}, and nobody would look there: {state.root.sizes}"
        twice = next((job for job in state.added if state.added.count(job) > 1), None)
        if twice is not None:
            return f"{twice} was added twice"
        return state.broken

    def steps(self, state: State) -> Steps:
        yield from self._others(state)
        for number, (role, request) in enumerate(self._scenario.processes):
            process = state.processes[number]
            if process.does == "over":
                continue
            name = f"{role}{number}"
            match role:
                case RingRole.PRODUCER | RingRole.ENQUEUER:
                    following = self._enqueue(state, process, request, with_id=role is RingRole.ENQUEUER)
                case RingRole.TIDIER:
                    following = self._tidy(state, process)
                case RingRole.DRIVER:
                    following = self._admit(state, process, number)
                case _:
                    assert_never(role)
            for words, after, moved in following:
                processes = (*after.processes[:number], moved, *after.processes[number + 1 :])
                yield f"{name} {words}", after._replace(processes=processes)

    # --- What happens without anybody of interest ---

    def _others(self, state: State) -> Steps:
        root = state.root
        if root.generation < len(self._scenario.homes):
            generation = root.generation + 1
            yield (
                f"resize to generation {generation}",
                state._replace(root=Root(generation, (*root.sizes, generation), False)),
            )
        for number, shard in enumerate(state.shards):
            for job in sorted(shard.jobs):
                yield f"{job} is done in shard {number}", _with(state, number, shard._replace(jobs=shard.jobs - {job}))
            if shard.leased:
                yield f"the zone is released in shard {number}", _with(state, number, shard._replace(leased=False))
            elif shard.jobs and state.leases < self._scenario.leases:
                leased = _with(state, number, shard._replace(leased=True))
                yield f"the zone is leased in shard {number}", leased._replace(leases=state.leases + 1)
        if self._scenario.forgets and root.clear and len(root.sizes) > 1 and self._is_settled(state):
            yield "older sizes are forgotten", state._replace(root=Root(root.generation, (root.generation,), False))
        if self._scenario.drains:
            yield (
                ("opened", state._replace(drained=False))
                if state.drained
                else ("drained", state._replace(drained=True))
            )

    def _is_settled(self, state: State) -> bool:
        """Time has passed since the shards were found clear: whoever repeats a request has done so by then."""
        if RingRule.SETTLE not in self._rules:
            return True
        carried_out = {request for shard in state.shards for request in shard.requests}
        return not any(
            role is RingRole.ENQUEUER and request in carried_out and state.processes[number].does != "over"
            for number, (role, request) in enumerate(self._scenario.processes)
        )

    # --- Shards ---

    def _homes(self, root: Root) -> list[int]:
        homes = [self._scenario.homes[generation - 1] for generation in root.sizes]
        return [*dict.fromkeys(home for home in homes if home != homes[-1]), homes[-1]]

    def _holds(self, shard: Shard, *, looking: bool = False) -> bool:
        rule = RingRule.LEASES_SHOWN if looking else RingRule.LEASES_COUNT
        return bool(shard.jobs) or (shard.leased and rule in self._rules)

    def _takes(self, number: int, shard: Shard, generation: int) -> bool:
        """Whether a shard takes a job of the zone from a caller that knows this generation."""
        if self._holds(shard):
            return True
        same = generation == shard.told or RingRule.COMPARE_GENERATIONS not in self._rules
        return same and self._scenario.homes[shard.told - 1] == number

    def _told(self, state: State, number: int, generation: int, *, older: bool = False) -> State:
        shard = state.shards[number]
        if (older and RingRule.TELL_FIRST not in self._rules) or shard.told >= generation:
            return state
        return _with(state, number, shard._replace(told=generation))

    # --- Adding ---

    def _enqueue(
        self, state: State, p: Process, request: str, *, with_id: bool
    ) -> Iterator[tuple[str, State, Process]]:
        if p.does == "begin":
            asks = with_id and len(self._homes(state.root)) > 1 and RingRule.LOOK_FOR_REQUESTS in self._rules
            yield "reads the root", state, Process("tell" if asks else "offer", state.root)
            return
        homes = self._homes(p.head)
        if RingRule.OLDER_HOMES not in self._rules:
            homes = homes[-1:]
        number = homes[p.at]
        generation = p.head.generation
        if p.does in ("tell", "offer") and state.shards[number].told > generation:
            yield f"hears of a newer ring from shard {number}", state, Process()
            return
        last = p.at + 1 == len(homes)
        if p.does == "tell":
            told = self._told(state, number, generation, older=not last)
            moved = p._replace(does="look", at=0) if last else p._replace(at=p.at + 1)
            yield f"tells shard {number} of generation {generation}", told, moved
        elif p.does == "look":
            if request in state.shards[number].requests:
                yield f"finds {request} in shard {number}", state, Process("over")
            else:
                moved = p._replace(does="offer", at=0) if last else p._replace(at=p.at + 1)
                yield f"does not find {request} in shard {number}", state, moved
        elif p.does == "offer":
            told = self._told(state, number, generation, older=not last)
            yield f"tells shard {number} of generation {generation}", told, p._replace(does="add")
        else:
            shard = state.shards[number]
            if request in shard.requests:
                yield f"is answered by shard {number} as before", state, Process("over")
            elif self._takes(number, shard, generation) and (
                not with_id or generation == shard.told or RingRule.REQUESTS_OF_THIS_RING not in self._rules
            ):
                remembered = shard.requests | {request} if with_id else shard.requests
                added = shard._replace(jobs=shard.jobs | {request}, requests=remembered)
                after = _with(state, number, added)._replace(added=(*state.added, request))
                yield f"adds {request} in shard {number}", after, Process("over")
            else:
                again = last or shard.told > generation
                moved = Process() if again else p._replace(does="offer", at=p.at + 1)
                yield f"is refused by shard {number}", state, moved

    # --- Forgetting ---

    def _tidy(self, state: State, p: Process) -> Iterator[tuple[str, State, Process]]:
        if p.does == "begin":
            if len(state.root.sizes) > 1 and not state.root.clear:
                yield "reads the root", state, Process("judge", state.root)
            return
        generation = p.head.generation
        if p.at < len(state.shards):
            shard = state.shards[p.at]
            if RingRule.CLEAR_MEANS_TOLD in self._rules and shard.told < generation:
                shard = shard._replace(told=generation)
            after = _with(state, p.at, shard)
            misplaced = self._holds(shard) and self._scenario.homes[generation - 1] != p.at
            newer = shard.told > generation
            if newer or (misplaced and RingRule.CLEAR_MEANS_EMPTY in self._rules):
                yield f"finds shard {p.at} not clear", after, Process()
            else:
                yield f"finds shard {p.at} clear", after, p._replace(at=p.at + 1)
        elif state.root == p.head:
            yield (
                "notes that the shards are clear",
                state._replace(root=state.root._replace(clear=True)),
                Process("over"),
            )
        else:
            yield "is late: the root has changed", state, Process()

    # --- Admitting ---

    def _admit(self, state: State, p: Process, number: int) -> Iterator[tuple[str, State, Process]]:
        match p.does:
            case "begin":
                yield "reads the book", state, Process("check", book=state.book, first=state.book.version)
            case "check":
                yield from self._checked(state, p)
            case "target" | "see":
                yield from self._target(state, p)
            case "write":
                yield from self._write(state, p, number)
            case "share":
                newest = state.root.generation
                told = self._told(state, p.book.shard, newest)
                yield f"tells shard {p.book.shard} of generation {newest}", told, p._replace(does="have admitted")
            case "have admitted":
                yield from self._share(state, p)
            case "give up":
                shard = state.shards[p.book.shard]
                answered = dict(shard.shares)
                if p.book.number not in answered and RingRule.GIVE_UP in self._rules:
                    shard = shard._replace(shares=(*shard.shares, (p.book.number, False)))
                came = answered.get(p.book.number, False)
                moved = (
                    p._replace(does="finish") if came else p._replace(does="target", head=state.root, at=0, found=-1)
                )
                yield f"gives share {p.book.number} up", _with(state, p.book.shard, shard), moved
            case "finish":
                if state.book.version == p.book.version:
                    done = state.book._replace(version=state.book.version + 1, done=True)
                    yield "writes that the batch is done", state._replace(book=done), Process("over")
                else:
                    yield "finds the book changed", state, p._replace(does="check", book=state.book)
            case _:
                raise AssertionError(p.does)

    def _checked(self, state: State, p: Process) -> Iterator[tuple[str, State, Process]]:
        book = p.book
        if book.done:
            yield "hears that the batch is done", state, Process("over")
        elif book.number and RingRule.SHARES_WRITTEN in self._rules:
            yield "goes on with what was begun", state, p._replace(does="share")
        elif book.refused and book.version > p.first and RingRule.REFUSAL_WRITTEN in self._rules:
            yield "ends: the batch was refused meanwhile", state, Process("over")
        elif state.drained or ROW in state.added:
            # The row is there already, or nothing may be added: a reason to refuse.
            if RingRule.REFUSAL_WRITTEN not in self._rules:
                yield "refuses the batch", self._refused(state), Process("over")
            elif state.book.version == book.version:
                refused = book._replace(version=book.version + 1, refused=True)
                yield "writes that it is refused", self._refused(state)._replace(book=refused), Process("over")
            else:
                yield "finds the book changed", state, p._replace(book=state.book)
        else:
            yield "reads the root", state, p._replace(does="target", head=state.root, at=0, found=-1)

    def _refused(self, state: State) -> State:
        """A caller is told that nothing was admitted, and nothing will be by those who have begun."""
        begun = frozenset(
            number
            for number, (role, _) in enumerate(self._scenario.processes)
            if role is RingRole.DRIVER and state.processes[number].does != "begin"
        )
        wrong = "an admission was refused, and its row is there" if ROW in state.added else state.broken
        return state._replace(bound=state.bound | begun, broken=wrong)

    def _target(self, state: State, p: Process) -> Iterator[tuple[str, State, Process]]:
        """Look for the zone in its older homes, which know the ring by then."""
        homes, generation = self._homes(p.head), p.head.generation
        if p.at == len(homes) - 1 or p.found >= 0:
            yield "has a target", state, p._replace(does="write", found=p.found if p.found >= 0 else homes[-1])
            return
        number = homes[p.at]
        shard = state.shards[number]
        if p.does == "target" and shard.told > generation:
            yield f"hears of a newer ring from shard {number}", state, p._replace(head=state.root, at=0)
        elif p.does == "target":
            told = self._told(state, number, generation, older=True)
            yield f"tells shard {number} of generation {generation}", told, p._replace(does="see")
        elif self._holds(shard, looking=True):
            yield f"sees the zone in shard {number}", state, p._replace(does="target", found=number)
        else:
            yield f"does not see the zone in shard {number}", state, p._replace(does="target", at=p.at + 1)

    def _write(self, state: State, p: Process, number: int) -> Iterator[tuple[str, State, Process]]:
        book = p.book
        if number in state.bound and not book.number:
            begun = state._replace(broken="a batch was refused, and an attempt that had begun before begins it")
        else:
            begun = state
        share = Book(book.version + 1, book.number + 1, p.found, p.head.generation)
        if RingRule.SHARES_WRITTEN not in self._rules:
            # Everybody goes by what they have found out, and a shard knows its share by its own number.
            alone = p._replace(does="share", book=share._replace(version=0, number=1))
            yield f"decides for shard {p.found}", begun, alone
        elif state.book.version == book.version:
            written = begun._replace(book=share)
            yield f"writes that shard {p.found} admits it", written, p._replace(does="share", book=share)
        else:
            yield "finds the book changed", state, p._replace(does="check", book=state.book)

    def _share(self, state: State, p: Process) -> Iterator[tuple[str, State, Process]]:
        book, shard = p.book, state.shards[p.book.shard]
        answered = dict(shard.shares).get(book.number)
        if answered is not None:
            moved = (
                p._replace(does="finish") if answered else p._replace(does="target", head=state.root, at=0, found=-1)
            )
            yield f"is answered by shard {book.shard} as before", state, moved
            return
        generation = book.generation if RingRule.SHARE_GENERATION in self._rules else shard.told
        if self._takes(book.shard, shard, generation):
            admitted = shard._replace(jobs=shard.jobs | {ROW}, shares=(*shard.shares, (book.number, True)))
            after = _with(state, book.shard, admitted)._replace(added=(*state.added, ROW))
            yield f"has share {book.number} admitted by shard {book.shard}", after, p._replace(does="finish")
        else:
            yield f"is refused by shard {book.shard}", state, p._replace(does="give up")


def _with(state: State, number: int, shard: Shard) -> State:
    return state._replace(shards=(*state.shards[:number], shard, *state.shards[number + 1 :]))


def _scenario(name: str, *processes: tuple[RingRole, str], **bounds: object) -> RingScenario:
    return replace(RingScenario(name=name, homes=(0, 1), processes=processes), **bounds)  # type: ignore[arg-type]


_A, _B = (RingRole.ENQUEUER, "a"), (RingRole.ENQUEUER, "b")
_P, _Q = (RingRole.PRODUCER, "p"), (RingRole.PRODUCER, "q")
_T, _D = (RingRole.TIDIER, ""), (RingRole.DRIVER, "")

RING_SCENARIOS = (
    _scenario("added", _P, _Q, _A, homes=(0, 1, 0, 1)),
    _scenario("added-far", _A, _B, _P, homes=(0, 1, 2)),
    _scenario("repeated", _A, _A, _B, homes=(0, 1, 0, 1)),
    _scenario("leased", _A, _P, homes=(0, 1), leases=2, begins_with="z"),
    _scenario("tidied", _P, _Q, _T, homes=(0, 1), forgets=True),
    _scenario("tidied-repeated", _A, _A, _T, homes=(0, 1), forgets=True),
    _scenario("admitted", _D, _D, _P, homes=(0, 1, 0)),
    _scenario("admitted-leased", _D, homes=(0, 1), leases=1, begins_with="z"),
    _scenario("refused", _D, _D, homes=(0, 1), drains=True),
)

RING_FOUND_IN: dict[RingRule, str] = {
    RingRule.TELL_FIRST: "added",
    RingRule.COMPARE_GENERATIONS: "added",
    RingRule.OLDER_HOMES: "added",
    RingRule.LEASES_COUNT: "leased",
    RingRule.LEASES_SHOWN: "admitted-leased",
    RingRule.LOOK_FOR_REQUESTS: "repeated",
    RingRule.REQUESTS_OF_THIS_RING: "repeated",
    RingRule.CLEAR_MEANS_EMPTY: "tidied",
    RingRule.CLEAR_MEANS_TOLD: "tidied",
    RingRule.SETTLE: "tidied-repeated",
    RingRule.SHARES_WRITTEN: "admitted",
    RingRule.SHARE_GENERATION: "admitted",
    RingRule.GIVE_UP: "admitted",
    RingRule.REFUSAL_WRITTEN: "refused",
}
