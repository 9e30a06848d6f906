"""Assigns shards to brokers: all brokers that know the same members compute the same result, without communication."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from hashlib import blake2b


def shares(members: Iterable[str], shards: int) -> dict[int, str]:
    """Each shard's member. The numbers of shards differ by at most one, and few shards move when a member comes or
    goes.

    Rendezvous hashing: each member has a fixed score for each shard, and the highest scores are served first. A member
    that has its share is skipped, which keeps the shares even.

    >>> shares(["a", "b"], 4)
    {0: 'a', 1: 'b', 2: 'a', 3: 'b'}
    """
    names = sorted(set(members))
    if not names:
        return {}
    least, larger = divmod(shards, len(names))
    lots = sorted(((_lot(name, shard), name, shard) for name in names for shard in range(shards)), reverse=True)
    led: dict[int, str] = {}
    has: Counter[str] = Counter()
    for _, name, shard in lots:
        if shard in led or has[name] > least or (has[name] == least and not larger):
            continue
        larger -= has[name] == least
        has[name] += 1
        led[shard] = name
    return dict(sorted(led.items()))


def next_in_line(members: Iterable[str], shard: int, *, after: str) -> str | None:
    """The member that leads a shard if the assigned one does not."""
    others = [name for name in set(members) if name != after]
    return max(others, key=lambda name: (_lot(name, shard), name), default=None)


def _lot(member: str, shard: int) -> int:
    return int.from_bytes(blake2b(f"{member} {shard}".encode(), digest_size=8).digest(), "big")
