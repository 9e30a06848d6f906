"""One of many clients that count on the same key: `python -m casque.testing.contender URL KEY ROUNDS`.

It prints `ready`, waits for a line (a JSON object with the store's options, which may be secret and therefore
are no arguments), counts, and prints how many of its rounds were acknowledged. If the store keeps its
promises, the sum over all contenders is the total on the key, whatever replies were lost.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping

import msgspec

from casque.clock import new_nonce, system_random
from casque.errors import StorageError, StoreAccessError
from casque.storage.port import Missing, Read, Store, Stored, Won
from casque.storage.url import open_store

ATTEMPTS_MAX = 100_000


class Tally(msgspec.Struct, frozen=True):
    """What the contended object says."""

    total: int = 0
    last: dict[str, str] = {}
    """The nonce of each contender's last round, so that it can recognise a write of its own for good."""


async def contend(store: Store, key: str, rounds: int) -> int:
    """Count `rounds` times; the number that was acknowledged."""
    me = new_nonce(system_random())
    acknowledged = 0
    for _ in range(rounds):
        await count_once(store, key, me, new_nonce(system_random()))
        acknowledged += 1
    return acknowledged


async def count_once(store: Store, key: str, me: str, nonce: str) -> None:
    """Add one, exactly once, however many replies are lost.

    Lost and unknown are treated alike: look again, and stop if one's own nonce is already there.
    """
    for _ in range(ATTEMPTS_MAX):
        found = await _read(store, key)
        tally = msgspec.json.decode(found.body, type=Tally) if isinstance(found, Stored) else Tally()
        if tally.last.get(me) == nonce:
            return
        body = msgspec.json.encode(Tally(tally.total + 1, {**tally.last, me: nonce}))
        if isinstance(found, Stored):
            outcome = await store.replace(key, body, expected=found.etag)
        else:
            outcome = await store.create(key, body)
        if isinstance(outcome, Won):
            return
    raise StorageError(f"no round on {key!r} could be won in {ATTEMPTS_MAX} attempts")


async def read_tally(store: Store, key: str) -> Tally:
    found = await _read(store, key)
    return msgspec.json.decode(found.body, type=Tally) if isinstance(found, Stored) else Tally()


async def _read(store: Store, key: str) -> Stored | Missing:
    for _ in range(ATTEMPTS_MAX):
        try:
            found: Read = await store.get(key)
        except StoreAccessError:
            raise
        except StorageError:
            continue
        assert isinstance(found, Stored | Missing)
        return found
    raise StorageError(f"{key!r} could not be read in {ATTEMPTS_MAX} attempts")


async def _run(url: str, key: str, rounds: int, options: Mapping[str, str]) -> int:
    store = open_store(url, options=options)
    try:
        return await contend(store, key, rounds)
    finally:
        await store.close()


def main() -> None:
    url, key, rounds = sys.argv[1:]
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    options = msgspec.json.decode(sys.stdin.readline(), type=dict[str, str])
    sys.stdout.write(f"{asyncio.run(_run(url, key, int(rounds), options))}\n")


if __name__ == "__main__":
    main()
