"""How a setting (a gate, the rules of a zone) reaches every shard of a ring that is being resized.

One setting is enough, because a shard keeps each by itself. Setters write it to every shard; resizers copy it from the
first shard to the others before these take jobs. Processes stall between any two requests: a resizer that died is one
that stalls for ever. A request to a shard is one step, and a commit of that shard.

Positions are not numbered here. A write to a shard overtakes each copy that was decided by an earlier read of it: such
a copy is refused for ever, so it is dropped. Commits of anything else make no difference.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple, TypeAlias


class SettingsRule(StrEnum):
    """Each can be dropped."""

    FIRST_SHARD_FIRST = "first-shard-first"
    """A setter writes to the first shard before it writes to any other."""
    ANNOUNCE_FIRST = "announce-first"
    """A resizer writes the new number of shards to the root before it copies settings."""
    LOOK_AGAIN = "look-again"
    """A setter reads the root again after its writes, and goes on with the shards that were added."""
    COPY_IF_UNWRITTEN = "copy-if-unwritten"
    """A copy is refused if the setting was written since it was read there. Dropped: if its value is another one."""
    SAME_VALUE_COUNTS = "same-value-counts"
    """Setting the value that a shard has already is a write, too."""
    HERE_THEN_FIRST = "here-then-first"
    """A resizer reads a shard before it reads the first one."""


ALL_SETTINGS_RULES = frozenset(SettingsRule)

OPEN, PAUSED = "open", "paused"


class Root(NamedTuple):
    shards: int
    """Shards that setters write to. Never falls."""
    used: int
    """Shards that take jobs, or did once: a smaller ring leaves zones where they are, and settings apply to them."""


class Copy(NamedTuple):
    """A request to a shard that was sent. It arrives at any later time, any number of times, or never."""

    shard: int
    value: str
    seen: str
    """The value that the shard had when it was read."""


class Setter(NamedTuple):
    does: str = "begin"
    known: int = 0
    """Number of shards when it last read the root."""
    left: frozenset[int] = frozenset()
    """Shards that it has yet to write to."""
    crossed: bool = False
    """Another one was under way at the same time."""


class Resizer(NamedTuple):
    does: str = "begin"
    shards: int = 0
    """Number of shards that it compares with the first."""
    at: int = 1
    seen: str = ""
    """The value of the one that it has read, of the two that it compares."""
    overtaken: bool = False
    """That one was written since."""
    crossed: bool = False
    """A setter was under way since it announced its shards."""


class State(NamedTuple):
    root: Root
    shards: tuple[str, ...]
    """The value that each has."""
    setters: tuple[Setter, ...]
    resizers: tuple[Resizer, ...]
    copies: frozenset[Copy] = frozenset()
    promised: str = ""
    """The value that every shard with jobs must have; none while setters are under way, or if they crossed."""
    halfway: bool = False
    """A setter gave up, and none was answered since that began later."""


Steps: TypeAlias = Iterator[tuple[str, State]]


@dataclass(frozen=True, kw_only=True)
class SettingsScenario:
    name: str
    shards: tuple[str, ...]
    """Values at the beginning, also of shards that are not announced yet: nothing shows when these were created."""
    announced: int = 1
    used: int = 1
    setters: tuple[str, ...]
    """The value that each sets. They may come in any order, cross each other, and give up."""
    resizers: tuple[int, ...]
    """The size that each resizes to."""


class SettingsModel:
    """Every step that may follow a state, and what is wrong with it.

    A setter that gave up has no request on its way any more. One with a request that may still arrive has not given up:
    it is one that stalls before its next write, and is under way."""

    def __init__(self, scenario: SettingsScenario, rules: frozenset[SettingsRule] = ALL_SETTINGS_RULES) -> None:
        self._scenario = scenario
        self._rules = rules
        self.first = State(
            Root(scenario.announced, scenario.used),
            scenario.shards,
            (Setter(),) * len(scenario.setters),
            (Resizer(),) * len(scenario.resizers),
            promised=scenario.shards[0],
        )

    def violation(self, state: State) -> str:
        """What must never be, if it is."""
        for number, value in enumerate(state.shards[: state.root.used]):
            if state.promised not in ("", value):
                return f"shard {number} has jobs and is {value}, but {state.promised} was promised"
        return ""

    def steps(self, state: State) -> Steps:
        for copy in state.copies:
            if self._is_accepted(copy, state.shards[copy.shard]):
                yield (
                    f"a copy arrives: shard {copy.shard} is {copy.value}",
                    self._written(state, copy.shard, copy.value),
                )
        for number, (setter, value) in enumerate(zip(state.setters, self._scenario.setters, strict=True)):
            for words, after, moved in self._set(state, setter, value):
                setters = (*after.setters[:number], moved, *after.setters[number + 1 :])
                yield f"setter{number} {words}", after._replace(setters=setters)
        for number, (resizer, size) in enumerate(zip(state.resizers, self._scenario.resizers, strict=True)):
            for words, after, one in self._resize(state, resizer, size):
                resizers = (*after.resizers[:number], one, *after.resizers[number + 1 :])
                yield f"resizer{number} {words}", after._replace(resizers=resizers)

    # --- Shards ---

    def _is_accepted(self, copy: Copy, value: str) -> bool:
        return SettingsRule.COPY_IF_UNWRITTEN in self._rules or value == copy.seen

    def _written(self, state: State, number: int, value: str) -> State:
        same = state.shards[number] == value
        written = state._replace(shards=(*state.shards[:number], value, *state.shards[number + 1 :]))
        if SettingsRule.COPY_IF_UNWRITTEN not in self._rules:
            return written
        if same and SettingsRule.SAME_VALUE_COUNTS not in self._rules:
            return written
        return written._replace(
            copies=frozenset(copy for copy in state.copies if copy.shard != number),
            resizers=tuple(
                one._replace(overtaken=True) if one.does == "decide" and one.at == number else one
                for one in state.resizers
            ),
        )

    # --- Setting ---

    def _set(self, state: State, p: Setter, value: str) -> Iterator[tuple[str, State, Setter]]:
        match p.does:
            case "begin":
                yield self._begun(state, value)
            case "write":
                first = 0 in p.left and SettingsRule.FIRST_SHARD_FIRST in self._rules
                for number in [0] if first else sorted(p.left):
                    left = p.left - {number}
                    moved = p._replace(does="write" if left else "look", left=left)
                    yield f"writes {value} to shard {number}", self._written(state, number, value), moved
            case "look":
                known = state.root.shards
                if known > p.known and SettingsRule.LOOK_AGAIN in self._rules:
                    more = p._replace(does="write", known=known, left=frozenset(range(p.known, known)))
                    yield f"reads the root again: {known} shards", state, more
                elif p.crossed:
                    yield "is answered", state, Setter("over")
                else:
                    yield "is answered", state._replace(promised=value, halfway=False), Setter("over")
        if p.does in ("write", "look"):
            yield "gives up", state._replace(halfway=True), Setter("over")

    def _begun(self, state: State, value: str) -> tuple[str, State, Setter]:
        shards = state.root.shards
        crossing = _is_any_under_way(state)
        setters = tuple(one._replace(crossed=True) if _is_under_way(one) else one for one in state.setters)
        resizers = tuple(one._replace(crossed=one.does not in ("begin", "over")) for one in state.resizers)
        after = state._replace(setters=setters, resizers=resizers, promised="")
        moved = Setter("write", shards, frozenset(range(shards)), crossing)
        return f"is to set {value}, reads the root: {shards} shards", after, moved

    # --- Resizing ---

    def _resize(self, state: State, p: Resizer, size: int) -> Iterator[tuple[str, State, Resizer]]:
        root = Root(max(state.root.shards, size), state.root.used)
        match p.does:
            case "begin":
                does = "compare" if root.shards > 1 else "resize"
                moved = Resizer(does, root.shards, crossed=_is_any_under_way(state))
                if SettingsRule.ANNOUNCE_FIRST in self._rules:
                    yield f"announces {root.shards} shards", state._replace(root=root), moved
                else:
                    yield f"creates shards up to {root.shards}", state, moved
            case "compare":
                number = p.at if SettingsRule.HERE_THEN_FIRST in self._rules else 0
                seen = state.shards[number]
                yield f"reads shard {number}: {seen}", state, p._replace(does="decide", seen=seen)
            case "decide":
                yield self._decided(state, p)
            case "resize":
                yield (
                    f"resizes to {size}",
                    self._resized(state, p, root._replace(used=max(root.used, size))),
                    Resizer("over"),
                )

    def _decided(self, state: State, p: Resizer) -> tuple[str, State, Resizer]:
        """The second of the two reads, and the copy that is sent if they differ. It is not waited for: the two are
        compared again in any case."""
        if SettingsRule.HERE_THEN_FIRST in self._rules:
            number, here, first, overtaken = 0, p.seen, state.shards[0], p.overtaken
        else:
            number, here, first, overtaken = p.at, state.shards[p.at], p.seen, False
        words = f"reads shard {number}: {state.shards[number]}"
        compared = p._replace(seen="", overtaken=False)
        if here == first:
            last = p.at + 1 == p.shards
            return words, state, compared._replace(does="resize" if last else "compare", at=p.at + 1)
        copies = state.copies if overtaken else state.copies | {Copy(p.at, first, here)}
        return (
            f"{words}, sends a copy to shard {p.at}",
            state._replace(copies=copies),
            compared._replace(does="compare"),
        )

    def _resized(self, state: State, p: Resizer, root: Root) -> State:
        """It repairs what setters left that crossed each other, if none crossed it."""
        repaired = not p.crossed and not state.halfway
        return state._replace(root=root, promised=state.shards[0] if repaired else state.promised)


def _is_under_way(setter: Setter) -> bool:
    return setter.does in ("write", "look")


def _is_any_under_way(state: State) -> bool:
    return any(map(_is_under_way, state.setters))


def _scenario(name: str, *shards: str, **bounds: object) -> SettingsScenario:
    usual = SettingsScenario(name=name, shards=shards, setters=(PAUSED, OPEN), resizers=(2, 2))
    return replace(usual, **bounds)  # type: ignore[arg-type]


SETTINGS_SCENARIOS = (
    _scenario("set-grown", OPEN, OPEN),
    _scenario("set-grown-far", OPEN, OPEN, OPEN, resizers=(3,)),
    _scenario("set-grown-both", OPEN, OPEN, OPEN, resizers=(2, 3)),
    _scenario("set-regrown", OPEN, PAUSED, announced=2),
    _scenario("set-same-size", OPEN, OPEN, announced=2, used=2),
    _scenario("set-crossed", OPEN, OPEN, announced=2, used=2, setters=(PAUSED, OPEN, PAUSED)),
)

SETTINGS_FOUND_IN: dict[SettingsRule, str] = {
    SettingsRule.FIRST_SHARD_FIRST: "set-same-size",
    SettingsRule.ANNOUNCE_FIRST: "set-grown",
    SettingsRule.LOOK_AGAIN: "set-grown",
    SettingsRule.COPY_IF_UNWRITTEN: "set-same-size",
    SettingsRule.SAME_VALUE_COUNTS: "set-same-size",
    SettingsRule.HERE_THEN_FIRST: "set-same-size",
}
