"""One call as its caller saw it: what was asked, when, and what came back."""

from __future__ import annotations

from enum import StrEnum

import msgspec

FOREVER_MS = 2**62


class Outcome(StrEnum):
    """How a call ended."""

    OK = "ok"
    REFUSED = "refused"
    """Understood and turned down: it changed nothing and never will."""
    FAILED = "failed"
    """This attempt changed nothing."""
    UNKNOWN = "unknown"
    """It may have taken effect, or may still. A call whose process died is one of these."""


class Wish(msgspec.Struct, frozen=True, omit_defaults=True):
    """A job that an enqueue or an admission asks for. `tag` is its payload, and no two wishes share one."""

    tag: str
    key: str | None = None
    zone: str | None = None
    fifo: bool = False
    entrypoint: str = ""
    once: bool = False
    """It has one attempt: when that fails it is dead, until it is retried."""


class Claim(msgspec.Struct, frozen=True, omit_defaults=True):
    """One job in the answer of an enqueue, a dequeue or a read. `tag` is empty where only its id is known any more."""

    job: str
    tag: str
    token: int = 0
    state: str = ""
    """In a read: waiting, running, dead, done or cancelled."""


class Asked(msgspec.Struct, frozen=True, omit_defaults=True):
    """The first line of a call."""

    call: str
    verb: str
    at_ms: int
    wishes: tuple[Wish, ...] = ()
    job: str | None = None
    token: int = 0
    zone: str | None = None
    lease_ms: int = 0
    request: str | None = None
    """Calls with the same request id are attempts at one thing. For an admission: its source and batch."""
    whole: bool = False
    """Whether its wishes come true together or not at all."""
    entrypoint: str | None = None
    gate: str | None = None
    """What the gate of the entrypoint is to be: open, paused (nothing is claimed) or draining (nothing is added)."""
    shards: int = 0
    """How many a ring is to have."""


class Answered(msgspec.Struct, frozen=True, omit_defaults=True):
    """The second line of a call. A process that is killed never writes it."""

    call: str
    at_ms: int
    outcome: Outcome
    claims: tuple[Claim, ...] = ()
    token: int = 0
    error: str | None = None
    repeated: bool = False
    """Of an admission: it says that this batch was admitted before."""
    jobs: int = 0
    """Of an admission: how many it says that it added."""


class Call(msgspec.Struct, frozen=True):
    """Both lines together."""

    asked: Asked
    answered: Answered | None = None

    @property
    def verb(self) -> str:
        return self.asked.verb

    @property
    def began_ms(self) -> int:
        return self.asked.at_ms

    @property
    def ended_ms(self) -> int:
        """When its caller knew; for an unknown outcome, never."""
        if self.answered is None or self.answered.outcome is Outcome.UNKNOWN:
            return FOREVER_MS
        return self.answered.at_ms

    @property
    def outcome(self) -> Outcome:
        return Outcome.UNKNOWN if self.answered is None else self.answered.outcome

    @property
    def is_ok(self) -> bool:
        return self.outcome is Outcome.OK

    @property
    def may_have_acted(self) -> bool:
        return self.outcome in (Outcome.OK, Outcome.UNKNOWN)

    @property
    def claims(self) -> tuple[Claim, ...]:
        return () if self.answered is None else self.answered.claims

    @property
    def token(self) -> int:
        """That it was asked with, or that a lease of a zone was given."""
        return self.asked.token or (self.answered.token if self.answered is not None else 0)

    def __str__(self) -> str:
        """One line of an explanation."""
        end = "never answered" if self.answered is None else f"{self.answered.at_ms} {self.outcome.value}"
        error = f" {self.answered.error}" if self.answered is not None and self.answered.error else ""
        token = f" token {self.token}" if self.token else ""
        return f"[{self.began_ms} .. {end}{error}] {self.verb}{token} ({self.asked.call})"
