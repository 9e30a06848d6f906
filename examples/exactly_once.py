"""An effect that happens once, although its job runs twice: a worker is killed after the work, before it could say so.

A job may always run again. What a database can do about it: write the effect and the job's id in one transaction.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import sys
from contextlib import closing
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

import casque
from casque import JobContext

PLACE = Path(os.environ.get("EXACTLY_ONCE_PLACE", "."))
app = casque.App((PLACE / "queue").absolute().as_uri())


def bank() -> sqlite3.Connection:
    return sqlite3.connect(PLACE / "bank.db", isolation_level=None, timeout=30)


@app.job()
def pay_twice(context: JobContext, account: str, amount: int) -> None:
    """As one would write it at first. It is wrong."""
    with closing(bank()) as db:
        db.execute("UPDATE accounts SET balance = balance + ? WHERE name = ?", [amount, account])
    die_once(context)


@app.job()
def pay_once(context: JobContext, account: str, amount: int) -> None:
    with closing(bank()) as db:
        db.execute("BEGIN IMMEDIATE")
        new = db.execute("INSERT INTO done (job_id) VALUES (?) ON CONFLICT DO NOTHING", [context.job_id]).rowcount
        if new:
            db.execute("UPDATE accounts SET balance = balance + ? WHERE name = ?", [amount, account])
        db.execute("COMMIT")
    die_once(context)


def die_once(context: JobContext) -> None:
    """The worst moment: the database has it, the queue does not know yet."""
    runs = PLACE / context.job_id
    with runs.open("a") as file:
        file.write("ran\n")
    if runs.read_text().count("ran") == 1:
        os.kill(os.getpid(), signal.SIGKILL)


async def a_worker() -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "casque.cli", "worker", "exactly_once:app", "--lease", "1", "--json"),
        cwd=Path(__file__).parent,
        stdout=asyncio.subprocess.DEVNULL,
    )


async def main() -> None:
    with closing(bank()) as db:
        db.execute("CREATE TABLE accounts (name TEXT PRIMARY KEY, balance INTEGER NOT NULL)")
        db.execute("CREATE TABLE done (job_id TEXT PRIMARY KEY)")
        db.execute("INSERT INTO accounts VALUES ('ada', 0), ('bob', 0)")
    async with app:
        for function, account in ((pay_twice, "ada"), (pay_once, "bob")):
            job = await function.enqueue(account, 100)
            killed = await (await a_worker()).wait()
            another = await a_worker()
            await job.result(timeout=50)
            another.terminate()
            await another.wait()
            with closing(bank()) as db:
                [[balance]] = db.execute("SELECT balance FROM accounts WHERE name = ?", [account])
            runs = (PLACE / job.id).read_text().count("ran")
            print(f"{job.entrypoint}: a worker killed by signal {-killed}, {runs} runs, {account} has {balance}")


if __name__ == "__main__":
    with TemporaryDirectory() as place:
        os.environ["EXACTLY_ONCE_PLACE"] = place
        again = import_module("exactly_once")  # as the workers do
        asyncio.run(again.main())
