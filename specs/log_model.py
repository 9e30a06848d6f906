"""The protocol as a transition system: states, the steps between them, and what must hold in each.

One step is one request to the store, together with what the process decides from the answer. Between two steps a
process may stall for as long as the search likes, so a pause, a slow network and a crash (a stall that never ends)
need no steps of their own. A request without an answer is one whose process has not moved on yet: resending the same
bytes changes nothing but the moment at which they land.

Views, segments and everything else in a state are shared: equal means identical, which keeps hashing cheap.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

FENCE = 0  # the operation of a segment without events
OPS = "-abcdefgh"


class Rule(StrEnum):
    """What can be dropped, one at a time, to see what it is for."""

    CLAIM_FIRST = "claim-first"  # replace the head before probing the log
    RECHECK = "recheck"  # read the head again after the fence
    SAME_BYTES = "same-bytes"  # resend the same bytes to the same slot
    HEAD_AFTER_WIN = "head-after-win"  # open mode: read the head after every win
    CHAIN = "chain"  # apply a segment only if its `prev` is my chain, otherwise reload
    FLOOR_FIRST = "floor-first"  # raise the floor, then delete
    KEEP_FENCES = "keep-fences"  # never collect a fence
    KEEP_HEAD = "keep-head"  # never collect the head
    HEAD_AFTER_TAIL = "head-after-tail"  # followers: read the head after the tail
    PUBLISH_OWN_EPOCH = "publish-own-epoch"  # publish a snapshot only into a head of my own epoch
    MEET_FENCE = "meet-fence"  # open mode: an entry of a higher epoch means: read the head before writing
    REPORT_FORGOTTEN = "report-forgotten"  # a batch that the table of writers may have forgotten is unknown, not absent
    FIRST_ATTEMPT = "first-attempt"  # what may be forgotten is judged by the first slot tried, not by the last one
    # Rules of the addition `exclusive`.
    FLIP_FIRST = "flip-first"  # a newcomer flips the head before it puts its fence
    FENCE_AFTER_FLIP = "fence-after-flip"  # a flip is followed by a fence at all
    EVERYONE_FENCES = "everyone-fences"  # whoever finds the head's epoch without its fence puts the fence first
    OPEN_AFTER_LOSS = "open-after-loss"  # an exclusive writer that loses a slot goes on in open mode


ALL_RULES = frozenset(Rule)


class Segment:
    """One object of the log. Two attempts with the same fields are the same bytes: writer and chain are the nonce."""

    __slots__ = ("epoch", "op", "prev", "writer")

    def __init__(self, prev: View, epoch: int, writer: int, op: int) -> None:
        self.prev = prev
        self.epoch = epoch
        self.writer = writer
        self.op = op

    def __str__(self) -> str:
        return f"{OPS[self.op]}.{self.epoch}" if self.op else f"fence.{self.epoch}"


class View:
    """A state, as the sequence of segments it was made from. Every sequence exists once: compare with `is`."""

    __slots__ = ("_bodies", "_next", "_tables", "epoch", "falls", "line", "ops", "position", "segment", "twice")

    def __init__(self, before: View | None = None, segment: Segment | None = None) -> None:
        self.position: int = before.position + 1 if before else 0
        self.segment = segment
        self.line: tuple[View, ...] = (*before.line, self) if before else (self,)
        self.epoch = segment.epoch if segment else 0
        # Epochs never decrease along the log; one request id, one effect.
        self.falls: bool = before is not None and (before.falls or self.epoch < before.epoch)
        bit = 1 << segment.op if segment and segment.op else 0
        self.ops: int = (before.ops if before else 0) | bit
        self.twice: int = before.twice | (before.ops & bit) if before else 0
        self._next: dict[Segment, View] = {}
        self._bodies: dict[tuple[int, int, int], Segment] = {}
        self._tables: dict[int, Table] = {}

    def table(self, size: int) -> Table:
        """The last batch of each of the `size` writers that wrote last, as every replica keeps it at this position."""
        table = self._tables.get(size)
        if table is None:
            table = self._tables[size] = self.line[-2].table(size).then(self, size) if self.segment else Table()
        return table

    def then(self, segment: Segment) -> View:
        """The state after applying one more segment."""
        after = self._next.get(segment)
        if after is None:
            after = self._next[segment] = View(self, segment)
        return after

    def body(self, epoch: int, writer: int, op: int) -> Segment:
        """The bytes a writer at this view would put into the next slot."""
        key = (epoch, writer, op)
        found = self._bodies.get(key)
        if found is None:
            found = self._bodies[key] = Segment(self, epoch, writer, op)
        return found

    def __str__(self) -> str:
        return "[" + " ".join(str(view.segment) for view in self.line[1:]) + "]"


class Table(NamedTuple):
    """Writers with the operation and the position of their last batch, the one silent for longest first."""

    writers: tuple[tuple[int, int, int], ...] = ()
    forgotten: int = 0  # the highest position of a batch whose writer was dropped

    def then(self, view: View, size: int) -> Table:
        """The table after one more segment. A fence is no batch."""
        segment = view.segment
        if segment is None or segment.op == FENCE:
            return self
        others = [one for one in self.writers if one[0] != segment.writer]
        dropped = others[: max(len(others) + 1 - size, 0)]
        forgotten = max((self.forgotten, *(position for _, _, position in dropped)))
        return Table((*others[len(dropped) :], (segment.writer, segment.op, view.position)), forgotten)


EMPTY = View()


class Mode(StrEnum):
    """What the head says about who may write."""

    OPEN = "open"
    LED = "led"
    EXCLUSIVE = "exclusive"


class Head(NamedTuple):
    """`queue.json`. Its version is left out: a replace is one step here, taken only from the head as it then is, and
    that is exactly when a conditional replace wins. The nonce is the epoch: each claim has its own."""

    mode: Mode
    epoch: int
    snapshot: View
    floor: int


class Phase(StrEnum):
    """Which request a process sends next, or that it has nothing to do."""

    READY = "ready"
    SENDING = "create sent"
    READING_BACK = "lost, about to read the slot"
    CONFIRMING = "won, about to read the head"
    FOLLOWING = "reading the tail"
    LOOKING = "at the end of the tail, about to read the head"
    RELOADING = "about to read the head and its snapshot"
    SHUT = "ready, the head said exclusive"
    FLIPPING = "about to flip the head to open"
    STANDBY = "standby"
    PROBING = "claimed, reading the tail"
    CLAIMING = "probed, about to claim"
    RECHECKING = "fenced, about to read the head"
    DONE = "stopped"


class Stance(StrEnum):
    """What a win means to a process: read the head next (open), my fence is in (taking), answer (leading)."""

    OPEN = "open"
    TAKING = "taking"
    LEADING = "leading"
    READING = "reading"


class Process(NamedTuple):
    """One writer, broker or follower."""

    phase: Phase
    stance: Stance = Stance.OPEN
    view: View = EMPTY  # what it has applied
    verified: int = 0  # up to where it knows that the view is the history
    epoch: int = 0  # of the head it read or claimed last
    op: int = 0  # what a caller waits for
    tried: int = 0  # the first slot that was tried for it
    body: Segment | None = None  # what it tries to put into the slot after its view; never changed once sent
    written: View | None = None  # a snapshot that is written and not yet named by the head
    must: int = 0  # follower: what was acknowledged before its request arrived
    flipped: bool = False  # it flipped the head itself, and its fence is not in yet


class Fate(StrEnum):
    """What became of an operation, as far as a writer can tell."""

    LANDED = "landed"
    ABSENT = "absent"
    UNKNOWN = "unknown"


class Role(StrEnum):
    """What a process is there for."""

    WRITER = "writer"  # embedded, open mode
    SOLE = "sole"  # embedded, and may take the queue for itself
    HOLDER = "holder"  # embedded, and has the queue for itself when the search begins
    NEWCOMER = "newcomer"  # embedded, has just found someone else to have the queue for itself
    GONE = "gone"  # embedded, has the queue for itself when the search begins, and never comes back
    LEADER = "leader"  # a broker that leads when the search begins
    BROKER = "broker"  # a standby that may take the lead, once
    FOLLOWER = "follower"


class State(NamedTuple):
    """The store, the network, the processes, and what an onlooker remembers."""

    head: Head
    log: tuple[Segment | None, ...]
    processes: tuple[Process, ...]
    flight: tuple[tuple[int, Segment], ...]  # creates that no process waits for: they land late or never
    history: View  # what was put into each slot first: the one history there may be
    acked: int  # operations answered with success
    failed: int  # operations answered with failure
    asked: int  # how many operations callers have asked for
    again: int  # how many more times a caller may ask again elsewhere
    snapshots: int  # how many more snapshots may be published
    copies: int  # how many more creates may leave a copy in the network
    broken: str = ""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """Who takes part, and how far the search goes."""

    name: str
    processes: tuple[tuple[str, Role], ...]
    slots: int
    ops: int
    snapshots: int = 2
    again: int = 0
    copies: int = 0
    epochs: int = 3
    failures: bool = True  # writers may give up and report failure
    snapshotters: str = ""  # who writes snapshots, by name; everyone if empty
    remembered: int = 0  # writers whose last batch the state remembers; all of them if 0
    orphans: int = 0  # writers that died at the start, each with its create of log/1 still on the way


Step = tuple[str, State]


class Model:
    """One scenario under a set of rules."""

    def __init__(self, scenario: Scenario, rules: frozenset[Rule] = ALL_RULES) -> None:
        self.scenario = scenario
        self.rules = rules
        self.names = [name for name, _ in scenario.processes]
        self.roles = [role for _, role in scenario.processes]
        self.first = self._first()
        self._may_fail = scenario.failures and not scenario.again
        self._snapshots = [name in (scenario.snapshotters or name) for name in self.names]

    # What may happen next

    def steps(self, state: State) -> Iterator[Step]:
        """Every step that some process, the network or a collector can take."""
        for me, process in enumerate(state.processes):
            if self._interchangeable(state, me):
                continue
            yield from self._moves(state, me, process)
            if self._snapshots[me]:
                yield from self._snapshot(state, me, process)
        yield from self._land(state)
        yield from self._collect(state)

    def _moves(self, state: State, me: int, my: Process) -> Iterator[Step]:
        match my.phase:
            case Phase.READY if my.stance is Stance.READING:
                yield from self._request_arrives(state, me, my)
            case Phase.READY | Phase.SHUT:
                yield from self._ask(state, me, my)
                yield from self._take_for_myself(state, me, my)
            case Phase.SENDING:
                yield from self._create(state, me, my)
            case Phase.READING_BACK:
                yield self._read_back(state, me, my)
            case Phase.CONFIRMING | Phase.LOOKING:
                yield from self._read_head(state, me, my)
            case Phase.FOLLOWING:
                yield self._read_tail(state, me, my)
            case Phase.RELOADING:
                yield self._reload(state, me, my)
            case Phase.FLIPPING:
                yield from self._flip(state, me, my)
            case Phase.STANDBY:
                yield from self._stand_by(state, me)
            case Phase.PROBING:
                yield self._probe(state, me, my)
            case Phase.CLAIMING:
                yield from self._claim(state, me, Mode.LED, my.view)
            case Phase.RECHECKING:
                yield self._recheck(state, me, my)
            case Phase.DONE:
                pass

    # Callers

    def _ask(self, state: State, me: int, my: Process) -> Iterator[Step]:
        """A caller asks for a new operation, or asks again, with the same request id, for one asked elsewhere before.

        New operations are numbered as they come: which is which makes no difference."""
        if my.view.position == self.scenario.slots:
            return
        if state.asked < self.scenario.ops:
            new = state._replace(asked=state.asked + 1)
            yield self._begin(new, me, my, state.asked + 1, "is asked for")
        if state.again:
            for op in range(1, state.asked + 1):
                if not state.failed >> op & 1:
                    retried = state._replace(again=state.again - 1)
                    yield self._begin(retried, me, my, op, "is asked again for")

    def _begin(self, state: State, me: int, my: Process, op: int, words: str) -> Step:
        if my.view.ops >> op & 1:
            return f"{self.names[me]} {words} {OPS[op]} and answers from its state", self._answer(state, op)
        if my.phase is Phase.SHUT:
            return f"{self.names[me]} {words} {OPS[op]}", self._put(state, me, self._shut_out(me, my._replace(op=op)))
        my = self._freeze(me, my._replace(op=op))
        return f"{self.names[me]} {words} {OPS[op]}: tries {self._slot(my)} with {my.body}", self._put(state, me, my)

    def _answer(self, state: State, op: int) -> State:
        return state._replace(acked=state.acked | 1 << op)

    def _fate(self, me: int, my: Process) -> Fate:
        """What my view tells of the operation that I have tried to write: all that a writer can go by.

        Where everything is remembered this is exact, also of operations that were asked for elsewhere (request ids)."""
        if not self.scenario.remembered:
            return Fate.LANDED if my.view.ops >> my.op & 1 else Fate.ABSENT
        table = my.view.table(self.scenario.remembered)
        last = next((op for writer, op, _ in table.writers if writer == me), None)
        if last is not None:
            return Fate.LANDED if last == my.op else Fate.ABSENT
        # Forgotten up to below my first attempt: had it landed, it would be in the table.
        if Rule.REPORT_FORGOTTEN in self.rules and table.forgotten >= my.tried > 0:
            return Fate.UNKNOWN
        return Fate.ABSENT

    # Committing

    def _freeze(self, me: int, my: Process) -> Process:
        """Serialise once, for the slot after my view. Its fence goes in before the first batch of an epoch."""
        if my.view.position == self.scenario.slots:
            return Process(Phase.DONE)  # the end of the modelled log
        op = FENCE if my.stance is Stance.TAKING or self._fence_is_due(my) else my.op
        tried = my.tried if Rule.FIRST_ATTEMPT in self.rules else 0
        tried = tried or (my.view.position + 1 if op else 0)
        return my._replace(phase=Phase.SENDING, body=my.view.body(my.epoch, me, op), tried=tried)

    def _fence_is_due(self, my: Process) -> bool:
        if my.stance is not Stance.OPEN or my.view.epoch >= my.epoch or Rule.FENCE_AFTER_FLIP not in self.rules:
            return False
        return Rule.EVERYONE_FENCES in self.rules or my.flipped

    def _create(self, state: State, me: int, my: Process) -> Iterator[Step]:
        """`create log/next`: it lands or not, and the answer comes or not; no answer leaves the process where it is."""
        assert my.body
        name, slot = self.names[me], my.view.position
        if state.log[slot] is None:
            landed = _land(state, slot, my.body)
            yield f"{name} creates log/{slot + 1} with {my.body}: won", self._won(landed, me, my)
            yield f"{name} creates log/{slot + 1} with {my.body}: it lands, the reply is lost", landed
        else:
            yield (
                f"{name} creates log/{slot + 1} with {my.body}: lost",
                self._put(state, me, my._replace(phase=Phase.READING_BACK)),
            )
        if state.copies and (slot, my.body) not in state.flight:
            flight = _in_order((*state.flight, (slot, my.body)))
            yield (
                f"a copy of {name}'s create of log/{slot + 1} with {my.body} stays in the network",
                state._replace(flight=flight, copies=state.copies - 1),
            )
        if Rule.SAME_BYTES not in self.rules and my.stance is Stance.LEADING and state.asked < self.scenario.ops:
            other = self._freeze(me, my._replace(op=state.asked + 1))
            yield (
                f"{name} has no answer and puts other bytes into log/{slot + 1}: {other.body}",
                self._put(state._replace(asked=state.asked + 1), me, other),
            )

    def _read_back(self, state: State, me: int, my: Process) -> Step:
        """Lost: read the slot. My nonce means won. Never conclude anything from "not found"."""
        found = state.log[my.view.position]
        words = f"{self.names[me]} reads log/{my.view.position + 1}"
        if found is None:
            return f"{words}: not found, sends the same bytes again", self._put(
                state, me, my._replace(phase=Phase.SENDING)
            )
        if found is my.body:
            return f"{words}: its own {found}, so it won", self._won(state, me, my)
        return f"{words}: {found} of {self._writer(found)}", self._put(state, me, self._lost_to(found, me, my))

    def _won(self, state: State, me: int, my: Process) -> State:
        assert my.body
        view = my.view.then(my.body)
        won = my._replace(view=view, body=None)
        match my.stance:
            case Stance.LEADING:
                # A deposed leader never gets here: its next slot holds its successor's fence.
                won = won._replace(phase=Phase.READY, verified=view.position, op=0, tried=0)
                return self._accept(self._answer(state, my.op), me, won)
            case Stance.TAKING:
                if Rule.RECHECK not in self.rules:
                    return self._accept(state, me, self._leading(won))
                return self._put(state, me, won._replace(phase=Phase.RECHECKING))
            case _:
                if Rule.HEAD_AFTER_WIN not in self.rules:
                    return self._proceed(state, me, won, Mode.OPEN)
                return self._put(state, me, won._replace(phase=Phase.CONFIRMING))

    def _lost_to(self, found: Segment, me: int, my: Process) -> Process:
        """A slot lost to someone else's entry: step down, stop, or (open mode) apply it and try the next slot."""
        embedded = self.roles[me] in (Role.WRITER, Role.SOLE, Role.HOLDER, Role.NEWCOMER)
        my = my._replace(body=None)
        if my.stance is Stance.LEADING:
            if not embedded:
                return Process(Phase.DONE)  # the callers get *unknown*
            if Rule.OPEN_AFTER_LOSS not in self.rules:
                return self._freeze(me, my._replace(view=my.view.then(found), epoch=max(my.epoch, found.epoch)))
            my = my._replace(stance=Stance.OPEN)
        if my.stance is Stance.TAKING:
            if found.epoch < my.epoch and self._links(my.view, found):
                return self._freeze(me, my._replace(view=my.view.then(found)))
            return self._superseded(me, my)
        if not self._links(my.view, found):
            return my._replace(phase=Phase.RELOADING)
        my = my._replace(view=my.view.then(found))
        if found.epoch > my.epoch and Rule.MEET_FENCE in self.rules:
            return my._replace(phase=Phase.LOOKING)
        if my.op and self._fate(me, my) is not Fate.ABSENT:
            return my._replace(phase=Phase.LOOKING)  # someone else did it: answer once that is certain
        return self._freeze(me, my._replace(epoch=max(my.epoch, found.epoch)))

    def _links(self, view: View, found: Segment) -> bool:
        return found.prev is view or Rule.CHAIN not in self.rules

    # Open mode: the head decides whether what was read and won is the history

    def _read_head(self, state: State, me: int, my: Process) -> Iterator[Step]:
        """After a win `floor >= position`, after a tail `floor > n`: something there may have been collected."""
        head = state.head
        won = my.phase is Phase.CONFIRMING
        words = f"{self.names[me]} reads the head (floor {head.floor}, {head.mode}, epoch {head.epoch})"
        if head.floor >= my.view.position if won else head.floor > my.verified:
            yield f"{words}: collected on the way, reloads", self._put(state, me, self._loaded(head, my))
            return
        my = my._replace(epoch=head.epoch)
        if my.op and self._may_fail and self._fate(me, my) is Fate.ABSENT:
            # It is certain now that no attempt of mine is in the history, and I make no other. (Where callers ask
            # again elsewhere, the operation may well be there: then failure is about this attempt only.)
            gone = my._replace(op=0, tried=0)
            failed = state._replace(failed=state.failed | 1 << my.op)
            yield f"{words} and reports {OPS[my.op]} as failed", self._proceed(failed, me, gone, head.mode)
        yield f"{words}: fine", self._proceed(state, me, my, head.mode)

    def _proceed(self, state: State, me: int, my: Process, mode: Mode) -> State:
        """What I applied is the history: answer, then go on with what is still to be written, as the mode allows."""
        my = my._replace(verified=my.view.position)
        if my.op and (fate := self._fate(me, my)) is not Fate.ABSENT:
            # Unknown: the caller hears just that, and nothing is written again.
            state = self._answer(state, my.op) if fate is Fate.LANDED else state
            my = my._replace(op=0)
        # Others' entries stand in all slots that were tried, for good: what is forgotten later concerns none of them.
        my = my._replace(tried=0)
        if my.stance is Stance.READING:
            if my.must & ~my.view.ops:
                late = _named(my.must & ~my.view.ops)
                state = state._replace(
                    broken=f"{self.names[me]} reads {my.view}, without {late}, acknowledged before it asked"
                )
            return self._accept(state, me, my._replace(phase=Phase.READY, must=0))
        if mode is Mode.LED:
            return self._put(self._accept(state, me, my), me, Process(Phase.DONE))
        if my.view.epoch >= my.epoch:
            my = my._replace(flipped=False)
        if mode is Mode.EXCLUSIVE:
            my = self._shut_out(me, my)
        else:
            my = self._freeze(me, my) if my.op else my._replace(phase=Phase.READY)
        return self._accept(state, me, my)

    def _loaded(self, head: Head, my: Process) -> Process:
        return my._replace(
            phase=Phase.FOLLOWING,
            view=head.snapshot,
            verified=head.snapshot.position,
            epoch=head.epoch,
            body=None,
        )

    def _reload(self, state: State, me: int, my: Process) -> Step:
        return f"{self.names[me]} reloads from snapshot {state.head.snapshot}", self._put(
            state, me, self._loaded(state.head, my)
        )

    # Following

    def _request_arrives(self, state: State, me: int, my: Process) -> Iterator[Step]:
        following = my._replace(phase=Phase.FOLLOWING, must=state.acked)
        yield f"{self.names[me]} is asked to read, at position {my.verified}", self._put(state, me, following)

    def _read_tail(self, state: State, me: int, my: Process) -> Step:
        """Read `log/n+1 ...` up to the first missing slot, then the head."""
        slot = my.view.position
        found = state.log[slot] if slot < self.scenario.slots else None
        words = f"{self.names[me]} reads log/{slot + 1}"
        if found is None:
            if my.stance is Stance.READING and Rule.HEAD_AFTER_TAIL not in self.rules:
                return f"{words}: missing, accepts {my.view}", self._proceed(state, me, my, Mode.OPEN)
            return f"{words}: missing", self._put(state, me, my._replace(phase=Phase.LOOKING))
        if not self._links(my.view, found):
            return f"{words}: {found} of another chain", self._put(state, me, my._replace(phase=Phase.RELOADING))
        return f"{words}: {found}", self._put(state, me, my._replace(view=my.view.then(found)))

    # Taking the lead

    def _stand_by(self, state: State, me: int) -> Iterator[Step]:
        if Rule.CLAIM_FIRST in self.rules:
            yield from self._claim(state, me, Mode.LED, state.head.snapshot)
        else:
            probing = Process(Phase.PROBING, Stance.TAKING, state.head.snapshot)
            yield f"{self.names[me]} loads snapshot {state.head.snapshot}", self._put(state, me, probing)

    def _take_for_myself(self, state: State, me: int, my: Process) -> Iterator[Step]:
        """A sole embedded writer takes the lead as a broker would, so that its commits need no head read."""
        if self.roles[me] is Role.SOLE and my.stance is Stance.OPEN and state.head.mode is not Mode.LED:
            head = state.head
            # What it knows to be the history it need not load again, unless something after it may be gone.
            yield from self._claim(state, me, Mode.EXCLUSIVE, my.view if head.floor <= my.verified else head.snapshot)

    def _claim(self, state: State, me: int, mode: Mode, view: View) -> Iterator[Step]:
        """Replace the head with epoch + 1: from now on its old owner can neither publish nor raise the floor."""
        epoch = state.head.epoch + 1
        if epoch > self.scenario.epochs:
            return
        my = Process(Phase.PROBING, Stance.TAKING, view, epoch=epoch)
        if state.processes[me].phase is Phase.CLAIMING:
            my = self._freeze(me, my)
        claimed = state._replace(head=state.head._replace(mode=mode, epoch=epoch))
        yield f"{self.names[me]} claims the head: {mode}, epoch {epoch}, loads {view}", self._put(claimed, me, my)

    def _probe(self, state: State, me: int, my: Process) -> Step:
        slot = my.view.position
        found = state.log[slot] if slot < self.scenario.slots else None
        words = f"{self.names[me]} reads log/{slot + 1}"
        if found is None:
            my = my._replace(phase=Phase.CLAIMING) if not my.epoch else self._freeze(me, my)
            return f"{words}: missing", self._put(state, me, my)
        if (my.epoch and found.epoch > my.epoch) or not self._links(my.view, found):
            return f"{words}: {found}, superseded", self._put(state, me, self._superseded(me, my))
        return f"{words}: {found}", self._put(state, me, my._replace(view=my.view.then(found)))

    def _recheck(self, state: State, me: int, my: Process) -> Step:
        words = f"{self.names[me]} reads the head (epoch {state.head.epoch})"
        if state.head.epoch != my.epoch:
            return f"{words}: superseded", self._put(state, me, self._superseded(me, my))
        return f"{words}: still its own, leads", self._accept(state, me, self._leading(my))

    def _leading(self, my: Process) -> Process:
        return my._replace(phase=Phase.READY, stance=Stance.LEADING, verified=my.view.position, body=None)

    def _superseded(self, me: int, my: Process) -> Process:
        if self.roles[me] is Role.SOLE:
            return Process(Phase.RELOADING, epoch=my.epoch)
        return Process(Phase.DONE)

    # Exclusive, the addition

    def _shut_out(self, me: int, my: Process) -> Process:
        """The head says that someone else has the queue for itself: to write, flip it back to open first."""
        if not my.op:
            return my._replace(phase=Phase.SHUT)
        if Rule.FLIP_FIRST in self.rules or my.view.epoch > my.epoch:
            return my._replace(phase=Phase.FLIPPING)
        return self._freeze(me, my._replace(epoch=my.epoch + 1, flipped=True))

    def _flip(self, state: State, me: int, my: Process) -> Iterator[Step]:
        """Replace the head with `mode: open` and epoch + 1, then read the tail and put a fence after it."""
        head = state.head
        if head.mode is not Mode.OPEN:
            if head.epoch == self.scenario.epochs:
                return
            head = head._replace(mode=Mode.OPEN, epoch=head.epoch + 1)
            words = f"{self.names[me]} flips the head to open, epoch {head.epoch}"
            my = my._replace(flipped=True)
        else:
            words = f"{self.names[me]} finds the head open, epoch {head.epoch}"
        my = my._replace(epoch=head.epoch)
        my = self._loaded(head, my) if head.floor > my.verified else my._replace(phase=Phase.FOLLOWING)
        yield words, self._put(state._replace(head=head), me, my)

    # Snapshots and collection

    def _snapshot(self, state: State, me: int, my: Process) -> Iterator[Step]:
        """Write the snapshot; then one replace of the head names it and makes the previous one's position the floor.

        It runs beside the commits: a process may do this while a create of its own is under way."""
        name, head = self.names[me], state.head
        if my.written is not None:
            yield self._publish(state, me, my, my.written)
        elif (
            my.phase in (Phase.READY, Phase.SENDING)
            and my.stance in (Stance.OPEN, Stance.LEADING)
            and state.snapshots
            and head.snapshot.position < my.view.position == my.verified
        ):
            yield f"{name} writes snapshot {my.view}", self._put(state, me, my._replace(written=my.view))

    def _publish(self, state: State, me: int, my: Process, written: View) -> Step:
        name, head = self.names[me], state.head
        state = self._put(state, me, my._replace(written=None))
        mine = head.epoch == my.epoch and (head.mode is Mode.OPEN or my.stance is Stance.LEADING)
        mine = mine or Rule.PUBLISH_OWN_EPOCH not in self.rules
        if not mine or not state.snapshots or written.position <= head.snapshot.position:
            return f"{name} cannot publish its snapshot {written}", state
        head = head._replace(snapshot=written, floor=head.snapshot.position)
        return f"{name} publishes snapshot {written}, floor {head.floor}", state._replace(
            head=head, snapshots=state.snapshots - 1
        )

    def _collect(self, state: State) -> Iterator[Step]:
        """Delete segments at or below the floor, in any order, at any time after: the floor never falls.

        Whether a slot holds a fence the collector knows from the history, not from what lies there when the delete
        lands: a delete can be late as well."""
        head = state.head
        limit = head.floor
        if Rule.FLOOR_FIRST not in self.rules and any(process.written for process in state.processes):
            limit = head.snapshot.position  # what the floor will be once that snapshot is published
        for slot in range(limit):
            first = state.history.line[slot + 1].segment
            assert first
            if state.log[slot] is None or (first.op == FENCE and Rule.KEEP_FENCES in self.rules):
                continue
            log = (*state.log[:slot], None, *state.log[slot + 1 :])
            yield f"log/{slot + 1} ({state.log[slot]}) is collected", state._replace(log=log)
        if Rule.KEEP_HEAD not in self.rules and head.floor:
            anew = Head(head.mode, 0, EMPTY, 0)
            yield "the head is collected, and created anew by whoever comes next", state._replace(head=anew)

    def _land(self, state: State) -> Iterator[Step]:
        """A request that was under way for long, or a copy made by a client library, reaches the store."""
        for late in state.flight:
            slot, body = late
            if state.log[slot] is None:
                flight = tuple(other for other in state.flight if other is not late)
                landed = _land(state._replace(flight=flight), slot, body)
                yield f"a late create of log/{slot + 1} with {body} of {self._writer(body)} lands", landed

    # What must hold

    def violation(self, state: State) -> str:
        """What is wrong with this state, or nothing."""
        head = state.head
        recovered = head.snapshot
        for segment in state.log[recovered.position :]:
            if segment is None:
                break
            recovered = recovered.then(segment)
        if lost := state.acked & ~recovered.ops:
            return f"acknowledged {_named(lost)} is lost: a fresh recovery reads {recovered}"
        if state.broken:
            return state.broken
        if recovered.twice:
            return f"{_named(recovered.twice)} has two effects: a fresh recovery reads {recovered}"
        if present := state.failed & recovered.ops:
            return f"{_named(present)} was reported as failed: a fresh recovery reads {recovered}"
        if recovered.falls:
            return f"epochs decrease along the log: {recovered}"
        if recovered is not state.history:
            return f"snapshot and tail are {recovered}, a full replay is {state.history}"
        if Rule.FLOOR_FIRST in self.rules and Rule.KEEP_HEAD in self.rules:
            for view in state.history.line[head.floor + 1 :]:
                if state.log[view.position - 1] is not view.segment:
                    return f"log/{view.position} is above the floor {head.floor} and is no longer {view.segment}"
        return ""

    def _accept(self, state: State, me: int, my: Process) -> State:
        """One history: any view that someone relies on is a prefix of it."""
        line = state.history.line
        view = my.view
        if not state.broken and not (view.position < len(line) and line[view.position] is view):
            missing = _named(line[min(view.position, len(line) - 1)].ops & ~view.ops) or "its own entries"
            words = f"{self.names[me]} relies on {view}, the history is {state.history}: {missing} lost to it"
            state = state._replace(broken=words)
        return self._put(state, me, my)

    # The rest

    def _first(self) -> State:
        processes = []
        head = Head(Mode.OPEN, 0, EMPTY, 0)
        first: list[Segment | None] = [None] * self.scenario.slots
        history = EMPTY
        for me, role in enumerate(self.roles):
            match role:
                case Role.LEADER | Role.HOLDER | Role.GONE:
                    mode = Mode.LED if role is Role.LEADER else Mode.EXCLUSIVE
                    fence = EMPTY.body(1, me, FENCE)
                    head, first[0], history = Head(mode, 1, EMPTY, 0), fence, EMPTY.then(fence)
                    leads = Process(Phase.READY, Stance.LEADING, history, 1, 1)
                    processes.append(leads if role is not Role.GONE else Process(Phase.DONE))
                case Role.NEWCOMER:
                    processes.append(Process(Phase.SHUT, Stance.OPEN, history, 1, 1))
                case Role.BROKER:
                    processes.append(Process(Phase.STANDBY))
                case Role.FOLLOWER:
                    processes.append(Process(Phase.READY, Stance.READING))
                case _:
                    processes.append(Process(Phase.READY))
        orphans = range(1, self.scenario.orphans + 1)
        return State(
            head=head,
            log=tuple(first),
            processes=tuple(processes),
            flight=tuple((0, EMPTY.body(0, -op, op)) for op in orphans),
            history=history,
            acked=0,
            failed=0,
            asked=len(orphans),
            again=self.scenario.again,
            snapshots=self.scenario.snapshots,
            copies=self.scenario.copies,
        )

    def _interchangeable(self, state: State, me: int) -> bool:
        """Of two that play the same part and have not moved yet, let the first one begin."""
        return (
            me > 0
            and self.roles[me] is self.roles[me - 1]
            and self._snapshots[me] is self._snapshots[me - 1]
            and state.processes[me] is self.first.processes[me]
            and state.processes[me - 1] is self.first.processes[me - 1]
        )

    def _put(self, state: State, me: int, my: Process) -> State:
        others = state.processes
        processes = (*others[:me], my, *others[me + 1 :])
        return State._make((state.head, state.log, processes, *state[3:]))  # faster than _replace: most steps end here

    def _slot(self, my: Process) -> str:
        return f"log/{my.view.position + 1}"

    def _writer(self, segment: Segment) -> str:
        return self.names[segment.writer] if segment.writer >= 0 else "a dead writer"


def _land(state: State, slot: int, body: Segment) -> State:
    """A create finds its slot empty: for the first time, or again after collection. Create-if-absent cannot tell."""
    history = state.history.then(body) if slot == state.history.position else state.history
    return state._replace(log=(*state.log[:slot], body, *state.log[slot + 1 :]), history=history)


def _in_order(flight: tuple[tuple[int, Segment], ...]) -> tuple[tuple[int, Segment], ...]:
    return tuple(sorted(flight, key=lambda late: (late[0], late[1].epoch, late[1].writer, late[1].op)))


def _named(ops: int) -> str:
    return ", ".join(OPS[op] for op in range(1, len(OPS)) if ops >> op & 1)
