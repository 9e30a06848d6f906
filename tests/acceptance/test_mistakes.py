"""Mistakes that people make at a shell: each ends with a sentence that names the mistake and the fix.

One table, a row for each mistake: what happened, what was typed, what is said, how it ends. `{q}` is a queue, `{gone}`
a place without one, `{other}` a second queue, `{dir}` the working directory. Rows run in this process;
`test_mistakes_in_processes.py` has those that need a process of their own.
"""

from __future__ import annotations

import shlex
import socket
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import pytest
import trustme
from typer.main import get_command
from typer.testing import CliRunner

from casque.cli.main import app
from tests.support.command_lines import commands

RUN = CliRunner()
MISTAKES_MIN = 5
LIMIT_S = 60.0
"""Generous: the sentence comes within seconds, also on a busy machine."""

APP = """
import casque

app = casque.App("file://{dir}/queue")


@app.job(max_crashes=2)
def send(to: str) -> str:
    return to
"""
MODULES = {
    "shop.py": APP,
    "needs.py": "import flask_of_nobody\nimport casque\napp = casque.App()\n",
    "broken.py": "import casque\napp = casque.App(\n",
    "retries.py": "import casque\napp = casque.App()\n@app.job(retries=3)\ndef f() -> None: ...\n",
    "raises.py": "import casque\napp = casque.App()\nraise OSError('no database')\n",
    "empty.py": "",
    "notes.txt": "remember the milk",
}


class Mistake(NamedTuple):
    situation: str
    typed: str
    said: str
    code: int = 2


# Commands that name a queue, with the other arguments that they need.
NAMES_QUEUE = (
    *("enqueue URL send", "dequeue URL", "ack URL id 7", "nack URL id 7", "tail URL --no-follow", "top URL --once"),
    *("jobs list URL", "jobs show URL id", "jobs cancel URL id --yes", "jobs retry URL id"),
    *("jobs reschedule URL id --delay 1m", "jobs purge URL --yes", "jobs requeue URL --stale 60 --yes"),
    *("queue info URL", "queue create URL", "queue resize URL --shards 4", "queue pause URL", "queue resume URL"),
    *("queue drain URL", "queue convert URL --to log", "queue verify URL", "queue release URL"),
    *("archive cat URL", "archive list URL", "archive erase URL --zone z --yes", "archive erasures URL"),
    *("cron list URL", "cron set URL nightly @daily -e send", "cron pause URL nightly", "cron resume URL nightly"),
    *("cron trigger URL nightly", "cron drop URL nightly --yes"),
    *("zones list URL", "zones show URL z", "zones peek URL", "zones set URL z --weight 2", "zones pause URL z"),
    *("zones resume URL z", "zones purge URL z --yes", "zones export URL z"),
    *("doctor URL", "bench URL", "serve URL"),
)
MAKES_QUEUE = ("enqueue", "queue create", "doctor", "bench", "serve", "queue release")
"""They work where no queue is, or make one."""


def about_the_queue() -> Iterator[Mistake]:
    """The same mistakes for every command that names a queue."""
    for command in NAMES_QUEUE:
        name = command.partition(" URL")[0]
        yield Mistake(f"{name}: no queue is named", command.replace(" URL", ""), "which queue? Give its URL")
        yield Mistake(
            f"{name}: a path instead of a URL", command.replace("URL", "/nowhere/queue"), "file:///nowhere/queue"
        )
        yield Mistake(
            f"{name}: an unknown scheme", command.replace("URL", "redis://localhost"), "no store speaks redis://"
        )
        yield Mistake(f"{name}: a relative file URL", command.replace("URL", "file://queue"), "needs an absolute path")
        yield Mistake(f"{name}: an unknown name", command.replace("URL", "-q mail"), "no queue is called 'mail'")
        yield Mistake(f"{name}: an option that it does not have", f"{command} --colour", "No such option: --colour")
        if name not in MAKES_QUEUE:
            yield Mistake(
                f"{name}: there is no queue",
                command.replace("URL", "{gone}"),
                "there is no ring here" if name == "queue resize" else "there is no queue here",
            )


MISTAKES = [
    *about_the_queue(),
    # --- Which queue ---
    Mistake("a URL and a name", "jobs list {q} -q mail", "give one of a URL, --queue and --app"),
    Mistake("s3:/ with one slash", "jobs list s3:/bucket/queue", "names no bucket: write s3://bucket/prefix"),
    Mistake("an option that no store has", "jobs list s3://b/q -o regoin=x", "did you mean 'region'?"),
    Mistake("an option without a value", "jobs list s3://b/q -o region", "an option is written NAME=VALUE"),
    Mistake("options for local files", "jobs list {q} -o region=x", "file:// takes no options"),
    Mistake("options for a broker", "jobs list grpc://127.0.0.1:1 -o region=x", "store options are for a bucket"),
    Mistake("a broker's URL without a port", "jobs list grpc://", "write grpc://host:port"),
    Mistake("an authority without TLS", "jobs list grpc://127.0.0.1:1 --ca {dir}/ca.pem", "write grpcs:// instead"),
    Mistake("an authority that is not there", "jobs list grpcs://127.0.0.1:1 --ca {dir}/no.pem", "No such file"),
    # --- enqueue ---
    Mistake("no entrypoint", "enqueue {q}", "no entrypoint: write casque enqueue [URL] ENTRYPOINT [PAYLOAD]"),
    Mistake("a payload without quotes", "enqueue send hello world", "Put quotes around a payload with spaces"),
    Mistake("a file that is not there", "enqueue {q} send @no.json", "No such file or directory"),
    Mistake("a delay in words", "enqueue {q} send --delay soon", "--delay"),
    Mistake("a delay and a time", "enqueue {q} send --delay 1m --at 2030-01-01", "either --delay or --at"),
    Mistake("an order without a zone", "enqueue {q} send --fifo", "say which one with --zone"),
    Mistake("a header without a value", "enqueue {q} send -H trace", "--header is written NAME=VALUE"),
    Mistake("no attempts", "enqueue {q} send --max-attempts 0", "Invalid value for '--max-attempts'"),
    Mistake(
        "a function that the app does not have", "enqueue --app shop:app sned", "has no function 'sned': it has send"
    ),
    Mistake("a payload that does not fit", "enqueue --app shop:app send {{}}", "argument 'to' is missing"),
    Mistake("a payload that is no JSON", "enqueue --app shop:app send ada", "a payload is a JSON object"),
    # --- dequeue, ack, nack ---
    Mistake("nothing is due", "dequeue {q} send", "nothing to claim now", 3),
    Mistake("no jobs at once", "dequeue {q} --batch 0", "Invalid value for '--batch'"),
    Mistake("a lease in words", "dequeue {q} --job-lease long", "--job-lease"),
    Mistake("no token", "ack {q} id", "needs the job and the token that dequeue printed"),
    Mistake("a token that is no number", "ack {q} id abc", "TOKEN is the number that dequeue printed"),
    Mistake("a job that is not there", "ack {q} id 7", "is not in the queue: it was finished or never enqueued", 1),
    Mistake("no job", "nack {q}", "needs the job and the token that dequeue printed"),
    Mistake("later, and never", "nack {q} id 7 --delay 1m --final", "--delay for a job that is tried again"),
    # --- jobs ---
    Mistake("a state that does not exist", "jobs list {q} --state done", "'done' is not one of"),
    Mistake("none shown", "jobs list {q} --limit 0", "Invalid value for '--limit'"),
    Mistake("an empty queue is not a failure", "jobs list {q}", "no jobs in this queue", 0),
    Mistake("no job matches, which is not a failure", "jobs list {q} -e send", "no jobs match", 0),
    Mistake("no id", "jobs show {q}", "which job?"),
    Mistake("an id that is not there", "jobs show {q} id", "is not in the queue", 1),
    Mistake("neither an id nor all", "jobs cancel {q} --yes", "--all"),
    Mistake("an id and all", "jobs retry {q} id --all", "--all"),
    Mistake("no answer to a question", "jobs cancel {q} id", "add --yes to go ahead without asking"),
    Mistake("no new time", "jobs reschedule {q} id", "--at"),
    # --- queue ---
    Mistake("a layout that does not exist", "queue create {q} --layout table", "'table' is not one of"),
    Mistake("shards of a queue without shards", "queue resize {q} --shards 4", "no ring of shards"),
    Mistake("no target", "queue backup", "needs the URL of an empty place"),
    Mistake("the same place twice", "queue clone {q} {q}", "source and target are the same place"),
    Mistake("a setting that does not exist", "serve {q} -s retain=3", "retain"),
    # --- archive, cron, zones, token ---
    Mistake("an empty archive is not a failure", "archive {q}", "no finished jobs in the archive", 0),
    Mistake("no objects, which is not a failure", "archive list {q}", "no finished jobs in the archive", 0),
    Mistake("a time in words", "archive {q} --since yesterday", "--since"),
    Mistake("a state that no finished job has", "archive {q} --state ready", "'ready' is not one of"),
    Mistake("neither a zone nor an id", "archive erase {q} --yes", "--id"),
    Mistake("no schedules, which is not a failure", "cron list {q}", "this queue has no schedules", 0),
    Mistake("a cron expression with four fields", "cron set {q} nightly '0 3 * *' -e send", "cron"),
    Mistake("a time zone that does not exist", "cron set {q} n @daily -e send --tz Berlin", "Berlin"),
    Mistake("a schedule that is not there", "cron pause {q} nightly", "there is no schedule 'nightly'", 1),
    Mistake("arguments that are no JSON", "cron set {q} n @daily -e send --args x", "--args"),
    Mistake("no zones, which is not a failure", "zones list {q}", "no zone has jobs or rules", 0),
    Mistake("a zone that is not there", "zones show {q} acme", "'acme' has neither jobs nor rules", 1),
    Mistake("a limit in words", "zones set {q} acme --running-max few", "--running-max"),
    Mistake("nothing to set", "zones set {q} acme", "--weight"),
    Mistake("no file of tokens", "token list --file {dir}/no.json", "no.json"),
    Mistake("no name", "token new --file {dir}/t.json --scope read", "Missing option '--name'"),
    Mistake(
        "a scope that does not exist", "token new --file {dir}/t.json --name a --scope write", "'write' is not one of"
    ),
    Mistake("a token that is not there", "token revoke --file {dir}/no.json --name a", "no.json"),
    # --- tail, top ---
    Mistake("an event that does not exist", "tail {q} --kind deid", "did you mean died?"),
    Mistake("a position in words", "tail {q} --from yesterday --no-follow", "--from takes a position"),
    Mistake("no interval", "top {q} --once --interval 0", "--interval"),
    # --- worker ---
    Mistake("a file instead of a module", "worker shop.py:app", "an app is named by its module: write shop:app"),
    Mistake("a path instead of a module", "worker jobs/shop.py:app", "write jobs.shop:app"),
    Mistake("no app", "worker shop", "an app is written module:app"),
    Mistake(
        "another name of the app", "worker shop:application", "the module 'shop' has no 'application': its apps are app"
    ),
    Mistake("a function instead of an app", "worker shop:send", "is a JobFunction, not an app"),
    Mistake("a module without an app", "worker empty:app", "it has no casque.App"),
    Mistake("a module that is not there", "worker shpo:app", "there is no module 'shpo' in"),
    Mistake(
        "an import that is missing",
        "worker needs:app",
        "'flask_of_nobody' is not installed here ({dir}/needs.py, line 1)",
    ),
    Mistake("a syntax error", "worker broken:app", "was never closed ({dir}/broken.py, line 2)"),
    Mistake("an option of another queue", "worker retries:app", "no option 'retries': use max_attempts="),
    Mistake("a module that fails", "worker raises:app", "OSError: no database ({dir}/raises.py, line 3)"),
    Mistake("an entrypoint that the app does not have", "worker shop:app -e sned", "sned"),
    Mistake("no jobs at once, of a worker", "worker shop:app -c 0", "concurrency"),
    Mistake("a queue by URL and by name", "worker shop:app --url {q} -q mail", "give --url or --queue, not both"),
    # --- serve ---
    Mistake(
        "a port that is in use",
        "serve {q} --listen 127.0.0.1:{taken}",
        "{taken} is in use; choose another address with --listen",
    ),
    Mistake(
        "an HTTP port that is in use",
        "serve {q} --listen 127.0.0.1:0 --http 127.0.0.1:{taken}",
        "is in use; choose another address with --http",
    ),
    Mistake("no port", "serve {q} --listen localhost", "--listen must be HOST:PORT"),
    Mistake("an open port", "serve {q} --listen 0.0.0.0:0 --advertise a:1", "--insecure"),
    Mistake("a key without its certificate", "serve {q} --tls-key key.pem", "--tls-cert is missing"),
    Mistake("no file of tokens, of a broker", "serve {q} --listen 127.0.0.1:0 --tokens {dir}/no.json", "no.json"),
    Mistake("a lease of nothing", "serve {q} --leader-lease 0", "--leader-lease must be more than 0"),
    # --- queue backup, restore, clone, import ---
    Mistake("a source and no target", "queue backup {q}", "queue backup SOURCE TARGET: {q} is taken for the target"),
    Mistake("a backup of nothing", "queue backup {gone} file://{dir}/b", "there is no queue here"),
    Mistake("a backup to a path", "queue backup {q} /backups", "for this path: file:///backups"),
    Mistake("a backup over another queue", "queue backup {q} {other}", "is in the way: a queue is copied to a place"),
    Mistake("a backup of a name", "queue backup -q mail file://{dir}/b", "no queue is called 'mail'"),
    Mistake("a backup with options of a file", "queue backup {q} file://{dir}/b -o region=x", "takes no options"),
    Mistake("no backup", "queue restore", "Missing argument 'BACKUP'"),
    Mistake("a backup and no target", "queue restore {q}", "Missing argument 'TARGET'"),
    Mistake("a backup that is not there", "queue restore {gone} file://{dir}/r", "there is no queue here"),
    Mistake("a backup onto itself", "queue restore {q} {q}", "source and target are the same place"),
    Mistake("a restore over another queue", "queue restore {q} {other}", "is in the way: a queue is copied to a place"),
    Mistake("a restore to a broker", "queue restore {q} grpc://127.0.0.1:1", "is the address of a broker"),
    Mistake("a clone without a target", "queue clone {q}", "queue clone SOURCE TARGET: {q} is taken for the target"),
    Mistake("a clone of nothing", "queue clone {gone} file://{dir}/c", "there is no queue here"),
    Mistake("a clone over another queue", "queue clone {q} {other}", "is in the way: a queue is copied to a place"),
    Mistake("a clone to a broker", "queue clone {q} http://127.0.0.1:1", "is the address of a broker, and not a store"),
    Mistake("an option of the target without a value", "queue clone {q} s3://b/c --target-option region", "NAME=VALUE"),
    Mistake("nothing to import", "queue import", "Missing argument 'SOURCE'"),
    Mistake("a file to import that is not there", "queue import no.json {q}", "no.json: No such file or directory"),
    Mistake("a file of another kind", "queue import notes.txt {q}", "is not the JSON of jqueue or osqueue"),
    Mistake("a file of a queue that is unknown", "queue import notes.txt {q} --from celery", "'celery' is not one of"),
    Mistake("a directory to import", "queue import {q} {q}", "name the file in it, such as {q}/queue.json"),
    Mistake("dead jobs kept", "queue import notes.txt {q} --dead keep", "'keep' is not one of 'skip', 'retry'"),
    # --- zones consume ---
    Mistake("no app to consume for", "zones consume", "Missing argument 'MODULE:APP'"),
    Mistake("an app without its name", "zones consume shop", "an app is written module:app"),
    Mistake("an app's module that is not there", "zones consume shpo:app", "there is no module 'shpo' in"),
    Mistake("an app with a syntax error", "zones consume broken:app", "was never closed ({dir}/broken.py, line 2)"),
    Mistake("no managers", "zones consume shop:app --managers 0", "managers must be a whole number from 1 to 1000"),
    Mistake("an entrypoint without a function", "zones consume shop:app -e sned", "did you mean 'send'?"),
    Mistake("a share of two", "zones consume shop:app --selection-frac 2", "must be a number from 0 to 1, not 2.0"),
    # --- token ---
    Mistake("no scope", "token new --file {dir}/t.json --name a", "Missing option '--scope'"),
    Mistake("no file for tokens", "token new --name a --scope read", "Missing option '--file'"),
    Mistake("an end in words", "token new -f {dir}/t.json -n a -s read --expires soon", "--expires takes a time"),
    Mistake("an end in the past", "token new -f {dir}/t.json -n a -s read --expires 2020-01-01", "is in the past"),
    Mistake("a directory that is not there", "token new -f {dir}/no/t.json -n a -s read", "cannot be written"),
    Mistake("a file that has no tokens", "token new -f notes.txt -n a -s read", "notes.txt is not a token file"),
    Mistake("no file to list", "token list", "Missing option '--file'"),
    Mistake("a list of something else", "token list -f notes.txt", "notes.txt is not a token file"),
    Mistake("a directory of tokens", "token list -f {dir}", "cannot be read: Is a directory"),
    Mistake("a file without its option", "token list tokens.json", "Missing option '--file'"),
    Mistake("no name to revoke", "token revoke -f {dir}/no.json", "Missing option '--name'"),
    Mistake("no file to revoke in", "token revoke -n a", "Missing option '--file'"),
    Mistake("a token of something else", "token revoke -f notes.txt -n a", "notes.txt is not a token file"),
    Mistake("a name without its option", "token revoke a -f tokens.json", "Missing option '--name'"),
    # --- demo, cost ---
    Mistake("a demo without jobs", "demo --jobs 0", "Invalid value for '--jobs'"),
    Mistake("a demo with one worker", "demo --workers 1", "Invalid value for '--workers'"),
    Mistake("jobs in words", "demo --jobs many", "Invalid value for '--jobs'"),
    Mistake("a demo in a file", "demo --data notes.txt", "File exists; name a directory with --data", 1),
    Mistake("a demo at a port", "demo --port 1", "No such option: --port"),
    Mistake("a rate in words", "cost --rate fast", "Invalid value for '--rate'"),
    Mistake("less than no jobs", "cost --rate -1", "Invalid value for '--rate'"),
    Mistake("a store without prices", "cost --store s4", "'s4' is not one of 's3'"),
    Mistake("a run in words", "cost --run long", "--run takes a span such as 500ms, 30s"),
    Mistake("a write that takes no time", "cost --latency 0", "Invalid value for '--latency'"),
    Mistake("the cost of one queue", "cost s3://bucket/orders", "unexpected extra argument"),
    # --- Spark ---
    Mistake("no warehouse", "pipeline run", "casque pipeline run [URL] WAREHOUSE"),
    Mistake("a warehouse and no queue", "pipeline run file://{dir}/warehouse", "which queue?"),
    Mistake("a page without a name", "report file://{dir}/warehouse", "--output report.html"),
    Mistake("tables in the queue itself", "pipeline run {q} {q}", "give its tables a place of their own"),
    Mistake("tables of nothing", "pipeline run {gone} file://{dir}/w", "there is no queue here"),
    Mistake("tables nowhere", "pipeline run {q} redis://localhost", "no store speaks redis://"),
    Mistake("a trigger in words", "pipeline run {q} file://{dir}/w --trigger often", "--trigger takes a span"),
    Mistake("no models", "pipeline run {q} file://{dir}/w --models {dir}/no", "there are no .sql files in"),
    Mistake("a Spark setting without a value", "pipeline run {q} file://{dir}/w --conf spark.x", "NAME=VALUE"),
    Mistake("a server of Spark by its name", "pipeline run {q} file://{dir}/w --remote host", "such as sc://host"),
    Mistake("no warehouse to check", "pipeline check", "Missing argument"),
    Mistake("a warehouse without tables", "pipeline check {gone}", "`casque pipeline run` makes them"),
    Mistake("a warehouse nowhere", "pipeline check redis://localhost", "no store speaks redis://"),
    Mistake("a warehouse by its path", "pipeline check /warehouse", "for this path: file:///warehouse"),
    Mistake("an option of a check", "pipeline check {q} --colour", "No such option: --colour"),
    Mistake("no warehouse to report on", "report", "Missing argument"),
    Mistake("a report since a word", "report {gone} --output r.html --from yesterday", "--from takes a time in UTC"),
    Mistake("a comparison with one time", "report {gone} --output r.html --compare 2026", "two dots between them"),
    Mistake("a report into a directory", "report {gone} --output {dir}", "is a directory"),
    Mistake("an option of a report", "report {gone} --colour", "No such option: --colour"),
    Mistake("Spark for a name", "spark doctor -q mail", "no queue is called 'mail'"),
    Mistake("a Spark server by its name", "spark doctor --remote host", "such as sc://host, not 'host'"),
    Mistake("an option of the doctor", "spark doctor --colour", "No such option: --colour"),
    Mistake("two queues for the doctor", "spark doctor {q} -q mail", "give one of a URL, --queue"),
    Mistake("a store option without a value", "spark doctor -o region", "an option is written NAME=VALUE"),
    Mistake("a replay since a word", "spark replay {q} --where true --since yesterday", "--since takes a time"),
    Mistake("a replay of a name", "spark replay -q mail --where true", "no queue is called 'mail'"),
    Mistake("a replay on a server's name", "spark replay {q} --where true --remote host", "such as sc://host"),
    Mistake("a replay of no queue", "spark replay --where true", "which queue?"),
    Mistake("an option of a replay", "spark replay {q} --where true --colour", "No such option: --colour"),
    Mistake("a handler without its function", "spark work {q} --handler shop", "a handler is written module:function"),
    Mistake("a handler's module", "spark work {q} --handler shpo:send", "there is no handler 'shpo:send'"),
    Mistake("a handler's name", "spark work {q} --handler shop:sned", "has no attribute 'sned'"),
    Mistake("a handler and an app", "spark work {q} --handler shop:send --app shop:app", "or --app module:app"),
    Mistake("a handler of rows", "spark work {q} --handler shop:send --kind row", "'row' is not one of 'job'"),
    Mistake("work on a server's name", "spark work {q} --handler shop:send --remote host", "such as sc://host"),
    Mistake("neither a handler nor an app", "spark work {q}", "--handler module:function or --app module:app"),
    Mistake("a condition is missing", "spark replay {q}", "Missing option '--where'"),
    # --- The command itself ---
    Mistake("a command that does not exist", "enqeue {q} send", "Did you mean 'enqueue'"),
    Mistake("a verb that does not exist", "jobs delete {q}", "No such command 'delete'"),
]


@pytest.fixture(scope="module")
def around(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A working directory with a queue and some modules, and no other settings. One for all: a mistake changes
    nothing."""
    here = tmp_path_factory.mktemp("mistakes")
    for name, text in MODULES.items():
        (here / name).write_text(text.replace("{dir}", str(here)))
    trustme.CA().cert_pem.write_to_path(here / "ca.pem")
    url = (here / "queue").as_uri()
    with pytest.MonkeyPatch.context() as patch, taken_port() as port:
        for variable in ("CASQUE_URL", "CASQUE_TOKEN"):
            patch.delenv(variable, raising=False)
        patch.setenv("XDG_CONFIG_HOME", str(here / "home"))
        patch.setenv("COLUMNS", "300")
        patch.chdir(here)
        patch.syspath_prepend(str(here))
        other = (here / "other").as_uri()
        for created in (url, other):
            assert RUN.invoke(app, ["queue", "create", created]).exit_code == 0
        yield {"q": url, "other": other, "gone": (here / "gone").as_uri(), "dir": str(here), "taken": str(port)}
    for name in MODULES:
        sys.modules.pop(name.removesuffix(".py"), None)


@contextmanager
def taken_port() -> Iterator[int]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield taken.getsockname()[1]


def test_every_command_has_five_mistakes() -> None:
    names = [
        name.removeprefix("casque ") for name, command in commands("casque", get_command(app)) if not command.hidden
    ]
    of = Counter(
        max((n for n in names if f"{one.typed} ".startswith(f"{n} ")), key=len, default="") for one in MISTAKES
    )
    assert {name: of[name] for name in names if of[name] < MISTAKES_MIN} == {}


@pytest.mark.timeout(LIMIT_S)
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.situation)
def test_a_mistake_is_named_with_its_fix(mistake: Mistake, around: dict[str, str]) -> None:
    result = RUN.invoke(app, shlex.split(mistake.typed.format(**around)))

    said = " ".join(result.output.split())
    assert mistake.said.format(**around) in said
    assert "Traceback" not in said
    assert result.exit_code == mistake.code, said
