"""Damage to a log on real files: whoever opens the queue, and `casque queue verify`, name the object and what to do."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from casque import CorruptQueueError, Queue
from casque.cli.main import app
from casque.codec import snapshot
from casque.codec.log import (
    LogHead,
    Segment,
    decode_head,
    digest,
    encode_head,
    encode_segment,
    segment_key,
)
from casque.journal.log import contention, pace, snapshots

RUN = CliRunner()
COMMITS = 40


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log with segments, several snapshots, a floor and fences above and below it."""
    root = tmp_path_factory.mktemp("made") / "queue"

    async def fill() -> None:
        async with Queue.open(root.as_uri(), layout="log", retention=timedelta(milliseconds=1)) as q:
            for n in range(COMMITS):
                await q.enqueue("send", b"%d" % n, key=f"k{n}")
                if n % 3 == 0:
                    for job in await q.dequeue("send"):
                        await job.ack()
        # From here on nothing more is collected.
        async with Queue.open(root.as_uri(), retention=timedelta(days=1)) as q:
            for n in range(COMMITS):
                await q.enqueue("send", b"%d" % n)
                await until_quiet(q)
            # And after the newest snapshot come some segments.
            pace.SNAPSHOT_SEGMENTS = 10_000
            for n in range(6):
                await q.enqueue("send", b"%d" % n)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pace, "SNAPSHOT_SEGMENTS", 8)
        patch.setattr(contention, "ALONE_COMMITS", 6)
        asyncio.run(fill())
    head = head_of(root)
    assert head.floor > 0
    assert len(head.kept) > 2
    assert head.snapshot is not None
    assert segment_key(head.snapshot.position) < tail_segment(root)
    return root


async def until_quiet(queue: Queue[bytes]) -> None:
    """Let a snapshot that is being written be finished."""
    group = queue._group
    assert group is not None
    if group._maintenance is not None:
        await asyncio.wait({group._maintenance})


@pytest.fixture
def root(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "queue")
    return tmp_path / "queue"


def head_of(root: Path) -> LogHead:
    return decode_head("queue.json", (root / "queue.json").read_bytes())


def fences_of(root: Path) -> list[int]:
    newest = head_of(root).snapshot
    assert newest is not None
    return list(json.loads((root / newest.key).read_bytes())["tip"]["fences"])


def overwrite(path: Path, body: bytes) -> None:
    path.unlink()
    path.write_bytes(body)


def verify(root: Path) -> tuple[int, str]:
    result = RUN.invoke(app, ["queue", "verify", root.as_uri()])
    return result.exit_code, " ".join(result.output.split())


async def open_it(root: Path) -> None:
    async with Queue.open(root.as_uri()):
        pass


def test_a_queue_that_is_whole_is_said_to_be(root: Path) -> None:
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    code, said = verify(root)
    assert code == 0, said
    assert "whole" in said
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before

    result = RUN.invoke(app, ["queue", "verify", root.as_uri(), "--json"])
    verdict = json.loads(result.output)
    head = head_of(root)
    assert (verdict["layout"], verdict["snapshots"]) == ("log", len(head.kept) + 1)
    assert verdict["replayed"] >= len(head.kept), "all but the first can be compared with a replay"
    assert verdict["fences"] == len(fences_of(root)) >= 2
    assert verdict["segments"] == verdict["position"] - head.floor


# --- Damage that keeps a queue from being opened ---


def tail_segment(root: Path, back: int = 2) -> str:
    """A segment after the newest snapshot, with others behind it."""
    last = max((root / "log").iterdir()).name
    return segment_key(int(last) - back)


def cut(root: Path) -> str:
    key = tail_segment(root)
    overwrite(root / key, (root / key).read_bytes()[:-25])
    return key


def emptied(root: Path) -> str:
    key = tail_segment(root)
    overwrite(root / key, b"")
    return key


def missing(root: Path) -> str:
    key = tail_segment(root)
    (root / key).unlink()
    return key


def renamed(root: Path) -> str:
    key = tail_segment(root)
    overwrite(root / key, (root / tail_segment(root, 1)).read_bytes())
    return key


def foreign(root: Path) -> str:
    key = tail_segment(root)
    body = json.loads((root / key).read_bytes())
    body["queue_id"] = "another"
    segment = msgspec.convert(body, Segment, strict=False)
    fields = {name: getattr(segment, name) for name in ("position", "epoch", "writer", "batch", "prev", "events")}
    overwrite(root / key, encode_segment(queue_id="another", at_ms=segment.at, **fields))
    return key


def swapped_snapshot(root: Path) -> str:
    head = head_of(root)
    assert head.snapshot is not None
    overwrite(root / head.snapshot.key, (root / head.kept[0].key).read_bytes())
    return head.snapshot.key


def missing_snapshot(root: Path) -> str:
    head = head_of(root)
    assert head.snapshot is not None
    (root / head.snapshot.key).unlink()
    return head.snapshot.key


def deleted_head(root: Path) -> str:
    (root / "queue.json").unlink()
    return "queue.json"


def cut_head(root: Path) -> str:
    overwrite(root / "queue.json", (root / "queue.json").read_bytes()[:100])
    return "queue.json"


def newer_head(root: Path) -> str:
    overwrite(root / "queue.json", (root / "queue.json").read_bytes().replace(b'"format": 1', b'"format": 9'))
    return "queue.json"


OPENING: list[Callable[[Path], str]] = [
    cut,
    emptied,
    missing,
    renamed,
    foreign,
    swapped_snapshot,
    missing_snapshot,
    deleted_head,
    cut_head,
    newer_head,
]
WHAT_TO_DO = ("estore", "backup", "Upgrade")


@pytest.mark.parametrize("damage", OPENING)
def test_damage_is_named_by_whoever_opens_the_queue_and_by_verify(damage: Callable[[Path], str], root: Path) -> None:
    key = damage(root)
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file() and ".casque" not in path.parts}

    with pytest.raises(CorruptQueueError) as caught:
        asyncio.run(open_it(root))
    code, said = verify(root)

    assert caught.value.key == key
    assert any(word in caught.value.problem for word in WHAT_TO_DO), caught.value.problem
    assert code == 1
    assert f"damaged {key}" in said
    assert any(word in said for word in WHAT_TO_DO), said
    after = {path: path.read_bytes() for path in root.rglob("*") if path.is_file() and ".casque" not in path.parts}
    assert after == before, "nothing is written over damage"


# --- Damage that only verify can see ---


def old_segment_cut(root: Path) -> str:
    key = segment_key(head_of(root).kept[1].position - 1)
    overwrite(root / key, (root / key).read_bytes()[:-25])
    return key


def old_segment_missing(root: Path) -> str:
    key = segment_key(head_of(root).kept[1].position)
    (root / key).unlink()
    return key


def kept_snapshot_missing(root: Path) -> str:
    key = head_of(root).kept[1].key
    (root / key).unlink()
    return key


def kept_snapshot_cut(root: Path) -> str:
    key = head_of(root).kept[1].key
    overwrite(root / key, (root / key).read_bytes()[:-25])
    return key


def kept_snapshot_swapped_with_the_heads_consent(root: Path) -> str:
    """Whole and well-formed, named by the head with its right digest, and yet not the history."""
    head = head_of(root)
    ref = head.kept[1]
    body = (root / ref.key).read_bytes().replace(b'"entrypoint":"send"', b'"entrypoint":"sent"', 1)
    overwrite(root / ref.key, body)
    changed = msgspec.structs.replace(ref, sha256=digest(body))
    kept = tuple(changed if one == ref else one for one in head.kept)
    overwrite(root / "queue.json", encode_head(msgspec.structs.replace(head, kept=kept)))
    return ref.key


def fence_missing(root: Path) -> str:
    head = head_of(root)
    below = [position for position in fences_of(root) if position <= head.floor]
    key = segment_key(below[0])
    (root / key).unlink()
    return key


def head_from_before_the_last_fence(root: Path) -> str:
    head = head_of(root)
    overwrite(root / "queue.json", encode_head(msgspec.structs.replace(head, epoch=0)))
    return "queue.json"


def floor_above_the_snapshot(root: Path) -> str:
    head = head_of(root)
    overwrite(root / "queue.json", encode_head(msgspec.structs.replace(head, floor=10_000)))
    return "queue.json"


VERIFYING: list[Callable[[Path], str]] = [
    old_segment_cut,
    old_segment_missing,
    kept_snapshot_missing,
    kept_snapshot_cut,
    kept_snapshot_swapped_with_the_heads_consent,
    fence_missing,
    head_from_before_the_last_fence,
    floor_above_the_snapshot,
]


@pytest.mark.parametrize("damage", VERIFYING)
def test_verify_finds_what_opening_does_not_read(damage: Callable[[Path], str], root: Path) -> None:
    key = damage(root)
    code, said = verify(root)
    assert code == 1, said
    assert f"damaged {key}" in said
    assert any(word in said for word in WHAT_TO_DO), said


# --- Snapshots in parts ---


@pytest.fixture(scope="module")
def made_in_parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("parts") / "queue"

    async def fill() -> None:
        async with Queue.open(root.as_uri(), retention=timedelta(days=1)) as q:
            for n in range(COMMITS):
                await q.enqueue("send", b"%d" % n)
                await until_quiet(q)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pace, "SNAPSHOT_SEGMENTS", 8)
        patch.setattr(snapshots, "PART_BYTES", 600)
        patch.setattr(snapshot, "PIECE_JOBS", 3)
        asyncio.run(fill())
    return root


def parts_of(root: Path, which: int) -> list[str]:
    """Of the newest snapshot (-1), or of an older one."""
    head = head_of(root)
    assert head.snapshot is not None
    key = [*head.kept, head.snapshot][which].key
    return sorted(str(path.relative_to(root)) for path in (root / "snapshots").iterdir() if f"{key}." in str(path))


@pytest.mark.parametrize("which", [-1, 1], ids=["newest", "kept"])
@pytest.mark.parametrize("damage", ["missing", "cut", "swapped"])
def test_a_damaged_part_of_a_snapshot_is_named(damage: str, which: int, made_in_parts: Path, tmp_path: Path) -> None:
    root = tmp_path / "queue"
    shutil.copytree(made_in_parts, root)
    assert verify(root)[0] == 0
    key, other = parts_of(root, which)[:2]
    if damage == "missing":
        (root / key).unlink()
    else:
        overwrite(root / key, (root / key).read_bytes()[:-9] if damage == "cut" else (root / other).read_bytes())

    code, said = verify(root)

    assert code == 1
    assert f"damaged {key}" in said
    assert any(word in said for word in WHAT_TO_DO), said
    if which == -1:
        with pytest.raises(CorruptQueueError) as caught:
            asyncio.run(open_it(root))
        assert caught.value.key == key


def test_a_document_that_was_edited_is_named(tmp_path: Path) -> None:
    async def fill() -> None:
        async with Queue.open(tmp_path.as_uri(), layout="document") as q:
            await q.enqueue_many([("send", b"1"), ("send", b"2")])
            await q.dequeue("send", batch_size=2)

    asyncio.run(fill())
    assert verify(tmp_path)[0] == 0
    document: dict[str, Any] = json.loads((tmp_path / "queue.json").read_bytes())
    for changes, says in [
        ({"token": 9}, "never given out"),
        ({"token": 1}, "same lease token"),
        ({"sequence": 1}, "same enqueue number"),
    ]:
        jobs = [document["jobs"][0], document["jobs"][1] | changes]
        overwrite(tmp_path / "queue.json", json.dumps(document | {"jobs": jobs}).encode())
        code, said = verify(tmp_path)
        assert (code, says in said) == (1, True), said
        assert "damaged queue.json" in said


def test_what_is_no_queue_is_no_damage(tmp_path: Path) -> None:
    code, said = verify(tmp_path)
    assert code == 2
    assert "no queue" in said
