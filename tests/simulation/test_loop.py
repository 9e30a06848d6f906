"""The clockwork of a world."""

from __future__ import annotations

from collections.abc import Callable

from simulation.world.loop import VirtualLoop


def test_a_timer_that_is_cancelled_while_its_process_is_stopped_never_fires() -> None:
    loop, held, fired = VirtualLoop(), list[Callable[[], object]](), list[str]()
    loop.route = lambda callback: lambda: held.append(callback)
    kept, dropped = (loop.call_at(1.0, fired.append, name) for name in ("kept", "dropped"))
    loop.call_later(2.0, loop.stop)
    loop.run_forever()
    dropped.cancel()
    for callback in held:
        callback()
    loop.close()
    assert (len(held), fired, kept.cancelled()) == (2, ["kept"], False)
