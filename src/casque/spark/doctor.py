"""Checks everything that casque on Spark depends on, and says for each part whether it works and how to fix it.

Goes from the bottom up: Python and its packages, Java, a session, the session's workers, the data source, the store.
Parts that depend on a failed one are skipped: they would only repeat its failure.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.metadata
import platform
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from casque.client.leading import leader_of
from casque.errors import CasqueError
from casque.spark.java import find_java
from casque.spark.session import SETTINGS, local_session
from casque.storage.url import open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

INSTALL = 'pip install "casque[spark]"'
PACKAGES: dict[str, tuple[tuple[int, ...], tuple[int, ...] | None]] = {
    "pyspark": ((4, 0), (5,)),
    "pyarrow": ((18,), None),
    "pandas": ((2, 2), (3,)),
}
"""Each with the oldest version that works, and the first that does not."""
ARROW_STREAMS = (4, 1)
"""Since this version Spark passes the batches of a stream to a writer as Arrow."""
WANTED = {
    "spark.sql.execution.arrow.pyspark.enabled": ("true", "toPandas and createDataFrame go row by row"),
}

Progress = Callable[[str], None]


class Health(StrEnum):
    """`note` works, but could be better."""

    WELL = "well"
    NOTE = "note"
    FAILED = "failed"


class Finding(msgspec.Struct, frozen=True):
    """One part, its state, and how to fix it."""

    part: str
    health: Health
    detail: str
    fix: str = ""


class Report(msgspec.Struct, frozen=True):
    well: bool
    findings: tuple[Finding, ...]


def examine(
    url: str | None = None,
    *,
    options: Mapping[str, str] | None = None,
    remote: str | None = None,
    progress: Progress = lambda _: None,
) -> Report:
    """Check this machine, or with `remote` a Connect server; with a URL also that store."""
    findings = tuple(_look(url, dict(options or {}), remote, progress))
    return Report(all(finding.health is not Health.FAILED for finding in findings), findings)


def _look(url: str | None, options: dict[str, str], remote: str | None, progress: Progress) -> Iterator[Finding]:
    progress("looking at packages")
    packages = [_package(name, *bounds) for name, bounds in PACKAGES.items()]
    yield Finding("python", Health.WELL, f"{platform.python_version()} ({sys.executable})")
    yield from packages
    discovered = _discovery()
    yield discovered
    java = _java() if remote is None else Finding("java", Health.WELL, "is the server's business")
    yield java
    if url is not None:
        progress("asking the store")
        yield _store(url, options)
    if any(finding.health is Health.FAILED for finding in (*packages, java)):
        return
    progress("starting a session")
    try:
        session = _session(remote)
    except Exception as error:  # noqa: BLE001  Spark and Java raise many kinds
        where = "Connect server" if remote else "session"
        yield Finding(where, Health.FAILED, _first_line(error), "see the lines that Spark wrote above, and SPARK_HOME")
        return
    try:
        yield Finding("session", Health.WELL, f"Spark {session.version}, {_place(session, remote)}")
        yield from _settings(session)
        progress("running a task")
        workers = _workers(session)
        yield workers
        if workers.health is Health.FAILED:
            return
        if discovered.health is not Health.FAILED:
            yield _found_by_spark(session)
        if url is not None:
            progress("asking the store from a task")
            yield _store_from_a_task(session, url, options)
    finally:
        session.stop()


# --- Without a session ---


def _package(name: str, oldest: tuple[int, ...], first_bad: tuple[int, ...] | None) -> Finding:
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return Finding(name, Health.FAILED, "is not installed", INSTALL)
    numbers = _numbers(version)
    if numbers < oldest:
        return Finding(name, Health.FAILED, f"{version} is too old: {_dotted(oldest)} or newer", INSTALL)
    if first_bad is not None and numbers >= first_bad:
        fix = f'pip install "{name}<{_dotted(first_bad)}"'
        return Finding(name, Health.NOTE, f"{version} is newer than what was tried (below {_dotted(first_bad)})", fix)
    if name == "pyspark" and numbers < ARROW_STREAMS:
        return Finding(name, Health.NOTE, f"{version} writes no streams to a queue", 'pip install "pyspark>=4.1"')
    return Finding(name, Health.WELL, version)


def _discovery() -> Finding:
    """Whether Spark would find the data source by itself: it imports every package named `pyspark_*`."""
    fix = "install casque where the session runs, or call casque.spark.register(spark)"
    try:
        source = importlib.import_module("pyspark_casque").DefaultSource
    except (ImportError, AttributeError) as error:
        return Finding("discovery", Health.FAILED, f"pyspark_casque brings no data source ({error})", fix)
    return Finding("discovery", Health.WELL, f"pyspark_casque brings the data source {source.name()!r}")


def _java() -> Finding:
    try:
        java = find_java()
    except CasqueError as error:
        return Finding("java", Health.FAILED, str(error), 'set JAVA_HOME, or pip install "casque[spark-java]"')
    return Finding("java", Health.WELL, f"{java.version} ({java.found}: {java.home})")


def _store(url: str, options: dict[str, str]) -> Finding:
    try:
        return Finding("store", Health.WELL, asyncio.run(ask_store(url, options)))
    except CasqueError as error:
        return Finding(
            "store", Health.FAILED, str(error), "correct the URL or its options; `casque doctor URL` checks the store"
        )


async def ask_store(url: str, options: Mapping[str, str]) -> str:
    """Describe the queue there by reading one object. Also runs in tasks."""
    store = open_store(url, options=options)
    try:
        leader = (await leader_of(store)).address
        return "can be read" if leader is None else f"can be read; a broker leads the queue: {leader}"
    finally:
        await store.close()


# --- With a session ---


def _session(remote: str | None) -> SparkSession:
    if remote is not None:
        return local_session("casque doctor", remote=remote)
    # Our session must find these settings as the user's own sessions do, so it must not set them.
    ours = {key: value for key, value in SETTINGS.items() if key not in WANTED and "timeZone" not in key}
    return local_session("casque doctor", master="local[1]", settings={**ours, "spark.log.level": "ERROR"}, plain=True)


def _place(session: SparkSession, remote: str | None) -> str:
    return f"on {remote.partition(';')[0]}" if remote else f"master {session.conf.get('spark.master')}"


def _settings(session: SparkSession) -> Iterator[Finding]:
    for key, (wanted, otherwise) in WANTED.items():
        value = _setting(session, key)
        name = key.removeprefix("spark.sql.")
        if value == wanted:
            yield Finding("setting", Health.WELL, f"{name} is {value}")
        else:
            fix = f'spark.conf.set("{key}", "{wanted}")'
            yield Finding("setting", Health.NOTE, f"{name} is {value or 'not set'}: {otherwise}", fix)
    zone = _setting(session, "spark.sql.session.timeZone") or "not set"
    text = f"session time zone is {zone}"
    if zone not in ("UTC", "Etc/UTC", "GMT"):
        text += ": instants stay what they are, Spark shows and parses them in that zone"
    yield Finding("setting", Health.WELL, text)


def _setting(session: SparkSession, key: str) -> str:
    """Empty for a setting that this Spark does not know."""
    try:
        return session.conf.get(key) or ""
    except Exception:  # noqa: BLE001  each kind of session has its own
        return ""


def _workers(session: SparkSession) -> Finding:
    """Send one row through a Python worker as Arrow, as every read and write does."""
    try:
        [row] = session.range(1).mapInArrow(describe_worker, "python string, casque string").collect()
    except Exception as error:  # noqa: BLE001  a worker may raise anything
        fix = "install the same Python and casque[spark] where tasks run; set PYSPARK_PYTHON"
        return Finding("task", Health.FAILED, _first_line(error), fix)
    ours = platform.python_version()
    text = f"Python {row.python} with casque {row.casque}"
    if row.python.split(".")[:2] != ours.split(".")[:2]:
        fix = f"run tasks on Python {'.'.join(ours.split('.')[:2])} too: set PYSPARK_PYTHON"
        return Finding("task", Health.FAILED, f"{text}, and the driver has Python {ours}", fix)
    return Finding("task", Health.WELL, text)


def describe_worker(batches: Iterable[Any]) -> Iterator[Any]:
    import pyarrow as pa

    from casque import __version__

    for _ in batches:
        row = {"python": platform.python_version(), "casque": __version__}
        yield pa.RecordBatch.from_pylist([row])


def _found_by_spark(session: SparkSession) -> Finding:
    try:
        columns = session.read.format("casque").option("table", "jobs").load("file:///casque-doctor").columns
    except Exception as error:  # noqa: BLE001  Spark may raise anything
        fix = "casque.spark.register(spark); look for a package pyspark_* that fails to import"
        return Finding("data source", Health.FAILED, _first_line(error), fix)
    return Finding("data source", Health.WELL, f"Spark finds format('casque'); table jobs has {len(columns)} columns")


def _store_from_a_task(session: SparkSession, url: str, options: dict[str, str]) -> Finding:
    try:
        [row] = session.range(1).mapInArrow(partial(ask_from_task, url, options), "answer string").collect()
    except Exception as error:  # noqa: BLE001  a worker may raise anything
        fix = "give tasks the same credentials and network as the driver"
        return Finding("store, from a task", Health.FAILED, _first_line(error), fix)
    if row.answer.startswith("failed: "):
        fix = "give tasks the same credentials and network as the driver"
        return Finding("store, from a task", Health.FAILED, row.answer.removeprefix("failed: "), fix)
    return Finding("store, from a task", Health.WELL, row.answer)


def ask_from_task(url: str, options: dict[str, str], batches: Iterable[Any]) -> Iterator[Any]:
    import pyarrow as pa

    for _ in batches:
        try:
            answer = asyncio.run(ask_store(url, options))
        except CasqueError as error:
            answer = f"failed: {error}"
        yield pa.RecordBatch.from_pylist([{"answer": answer}])


# --- Text ---


def _numbers(version: str) -> tuple[int, ...]:
    """Without what follows them, such as `.dev1` or `rc1`."""
    return tuple(map(int, re.findall(r"\d+", re.split(r"[^\d.]", version)[0])))


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))


def _first_line(error: BaseException) -> str:
    """Spark's errors contain pages of Java stack traces."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__
