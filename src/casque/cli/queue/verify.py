"""`casque queue verify`: check every object of a queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from casque.cli.command import command
from casque.cli.options import Json
from casque.cli.output import Terminal, answer, counted_steps, print_facts
from casque.cli.target import BucketTarget
from casque.environment import Environment
from casque.storage.port import Store

if TYPE_CHECKING:
    from casque.journal.verify import Verdict


@command(
    "queue verify",
    examples=[
        "casque queue verify file:///var/lib/orders",
        "casque queue verify s3://bucket/orders -o region=eu-central-1 --json",
    ],
)
def verify(target: BucketTarget, json: Json = False) -> None:
    """Read a whole queue and check that it is consistent.

    Replays the log from its oldest kept object to its end. Checks every checksum, every link of the chain, that every
    snapshot equals what the segments before it add up to, that no job appears or vanishes, and that every fence is
    there; of a ring, all of its shards. Names the first object that is wrong and says what to do. Never writes, and
    works beside a running queue.

    Exit code 0: the queue is whole. 1: it is damaged. 2: cannot tell.
    """

    from casque.journal.verify import Verifier

    async def work(store: Store) -> Verdict:
        with counted_steps(wanted=not json) as progress:
            verifier = Verifier(store, Environment(), progress=progress)
            return await verifier.verify()

    verdict = target.run_on_store(work)
    answer(verdict, lambda: _print_verdict(verdict), json=json)


def _print_verdict(verdict: Verdict) -> None:
    is_log = verdict.layout != "document"
    print_facts(
        {
            "layout": verdict.layout,
            "position": f"{verdict.position:,}",
            "jobs": f"{verdict.jobs:,}",
            "shards": f"{verdict.shards}, all there" if verdict.shards else "",
            "segments": f"{verdict.segments:,} in an unbroken chain" if is_log else "",
            "snapshots": f"{verdict.snapshots}, of which {verdict.replayed} equal a replay of the segments"
            if is_log
            else "",
            "fences": f"{verdict.fences}, all there" if is_log else "",
            "archive": f"{verdict.archived:,} objects, no range twice" if verdict.archived else "",
            "digest": verdict.digest,
        }
    )
    console = Terminal()
    for note in verdict.notes:
        console.print(f"note: {note}", style="yellow", highlight=False, soft_wrap=True)
    console.print("whole: every object is what it must be", style="green")
