"""Django's tasks on casque, as a suite that Django runs. `test_django.py` starts it once for each Tasks API.

python django_side.py        every test
python django_side.py SPEC   arguments of Django's test runner
"""

# ruff: noqa: E402, PT009, PT027 (unittest is what Django runs, and its models need its settings first)

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import urllib.request
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import django
from django.conf import settings

PLACE = Path(os.environ.get("DJANGO_SIDE") or tempfile.mkdtemp(prefix="casque-django-"))
API = "django.tasks" if django.VERSION >= (6, 0) else "django_tasks"
BACKEND = "casque.integrations.django.CasqueBackend"


def tasks(**options: Any) -> dict[str, Any]:
    """TASKS with a queue of its own, and these OPTIONS."""
    given = {"url": (PLACE / f"queue-{len(list(PLACE.iterdir()))}").as_uri(), **options}
    Path(given["url"].removeprefix("file://")).mkdir(exist_ok=True)
    return {
        "default": {"BACKEND": BACKEND, "QUEUES": ["default", "mail"], "OPTIONS": given},
        "else": {"BACKEND": f"{API}.backends.dummy.DummyBackend"},
    }


settings.configure(
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": PLACE / "shop.db"}},
    DEFAULT_AUTO_FIELD="django.db.models.AutoField",
    INSTALLED_APPS=["casque.integrations.django", *([API] if API == "django_tasks" else [])],
    USE_TZ=True,
    TASKS={
        "default": {
            "BACKEND": BACKEND,
            "QUEUES": ["default", "mail"],
            "OPTIONS": {"url": os.environ.get("DJANGO_SIDE_URL") or (PLACE / "queue").as_uri()},
        }
    },
)
if __name__ == "__main__":
    # The tasks are looked up by the module's name, which must not be that of a script.
    sys.modules["django_side"] = sys.modules["__main__"]
    __name__ = "django_side"
django.setup()

from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command
from django.db import transaction
from django.test import SimpleTestCase, TransactionTestCase, override_settings
from django.test.utils import get_runner
from django.utils import timezone
from django.utils.module_loading import import_string

from casque import InvalidInputError, JobState, Queue, SyncQueue
from casque.integrations.django.connection import close_all
from casque.integrations.django.handlers import TaskHandlers
from casque.integrations.django.tasks_api import (
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_backends,
    task_enqueued,
    task_finished,
    task_started,
)
from casque.worker import Worker

task = import_string(f"{API}.task")
TaskResultMismatch = import_string(f"{API}.exceptions.TaskResultMismatch")
seen: list[Any] = []
MANAGE = [sys.executable, "-c", "import django_side; django_side.main()"]
SOON = timedelta(milliseconds=40)
"""For tests that ask for what is not there: a result is waited for until it would be archived."""


class CardRefusedError(Exception):
    """An error of the shop's own."""


@task
def add(a: int, b: int = 1) -> int:
    return a + b


@task(queue_name="mail", priority=10)
async def greet(name: str) -> str:
    await asyncio.sleep(0)  # noqa: TID251 (a coroutine that really waits)
    return f"hello {name}"


@task
def pay(amount: int) -> None:
    seen.append(amount)
    raise CardRefusedError(f"no {amount}")


@task(takes_context=True)
def third_time(context: Any, word: str) -> list[Any]:
    seen.append((context.attempt, len(context.task_result.errors), context.task_result.id))
    if context.attempt < 3:
        raise ValueError(word)
    return [context.attempt, word]


@task
def unserialisable() -> object:
    return object()


@task
def enqueue_another() -> str:
    found: str = add.enqueue(40, b=2).id
    return found


@task
def note(what: str) -> None:
    seen.append(what)


def work(**options: Any) -> Any:
    """What `manage.py casque_worker --burst` does, in this process."""
    handlers = TaskHandlers(task_backends["default"], options.pop("queues", ()))
    worker = Worker(handlers, burst=True, **options)
    handlers.worker_name = worker.name
    return asyncio.run(worker.run())


class OnCasque(TransactionTestCase):
    """A queue of its own for each test."""

    options: ClassVar[dict[str, Any]] = {}

    def setUp(self) -> None:
        seen.clear()
        self.use(**self.options)

    def use(self, **options: Any) -> None:
        changed = override_settings(TASKS=tasks(**options))
        changed.enable()
        self.addCleanup(close_all)
        self.addCleanup(changed.disable)

    @property
    def url(self) -> str:
        found: str = settings.TASKS["default"]["OPTIONS"]["url"]
        return found


class Results(OnCasque):
    def test_a_task_is_enqueued_run_and_has_a_result(self) -> None:
        result = add.enqueue(2, b=3)
        self.assertEqual((result.status, result.attempts, result.is_finished), (TaskResultStatus.READY, 0, False))
        self.assertIsNotNone(result.enqueued_at)
        with self.assertRaises(ValueError):
            print(result.return_value)

        self.assertEqual(work().done, 1)

        result.refresh()
        self.assertEqual((result.status, result.return_value), (TaskResultStatus.SUCCESSFUL, 5))
        self.assertEqual((result.attempts, len(result.worker_ids), result.errors), (1, 1, []))
        self.assertLessEqual(result.enqueued_at, result.started_at)
        self.assertLessEqual(result.started_at, result.finished_at)
        self.assertEqual(result.started_at, result.last_attempted_at)

    def test_a_result_is_found_by_its_id_in_another_process(self) -> None:
        result = greet.enqueue("ada")
        close_all()  # another process has nothing open

        waiting = greet.get_result(result.id)
        self.assertEqual((waiting.status, waiting.args, waiting.kwargs), (TaskResultStatus.READY, ["ada"], {}))
        self.assertEqual((waiting.task.queue_name, waiting.task.priority), ("mail", 10))
        self.assertEqual(waiting.task.func, greet.func)
        self.assertEqual(waiting.enqueued_at, result.enqueued_at)
        work()
        self.assertEqual(greet.get_result(result.id).return_value, "hello ada")
        with self.assertRaises(TaskResultMismatch):
            add.get_result(result.id)

    def test_an_unknown_id_has_no_result(self) -> None:
        self.use(settings={"archive_interval": SOON})
        for unknown in ("nothing", "", "7f2c", f"{'0' * 36}-{0:011x}"):
            with self.assertRaises(TaskResultDoesNotExist):
                add.get_result(unknown)

    def test_a_job_that_is_not_a_task_has_no_result(self) -> None:
        with SyncQueue.open(self.url) as queue:
            job = queue.enqueue("django.default", b"not json")
        with self.assertRaises(TaskResultDoesNotExist):
            add.get_result(job.id)
        self.assertEqual(work().failed, 1)

    def test_a_running_task_says_so(self) -> None:
        result = add.enqueue(1)

        async def claim() -> None:
            async with Queue.open(self.url, worker="w-1") as queue:
                await queue.dequeue("django.default")

        asyncio.run(claim())
        result.refresh()
        self.assertEqual((result.status, result.worker_ids), (TaskResultStatus.RUNNING, ["w-1"]))
        self.assertIsNotNone(result.started_at)
        self.assertIsNone(result.finished_at)

    def test_a_cancelled_task_has_failed(self) -> None:
        result = add.enqueue(1)
        with SyncQueue.open(self.url) as queue:
            queue.cancel(result.id)
        result.refresh()
        self.assertEqual(result.status, TaskResultStatus.FAILED)
        self.assertEqual([error.exception_class_path for error in result.errors], ["casque.errors.JobFailedError"])

    def test_the_asynchronous_calls(self) -> None:
        async def use() -> Any:
            result = await greet.aenqueue("bob")
            return await greet.aget_result(result.id)

        result = asyncio.run(use())
        self.assertEqual(result.status, TaskResultStatus.READY)
        work()
        asyncio.run(result.arefresh())
        self.assertEqual(result.return_value, "hello bob")

    @override_settings(USE_TZ=False)
    def test_without_time_zones_times_are_naive(self) -> None:
        result = add.enqueue(1)
        deferred = add.using(run_after=timezone.now() + timedelta(hours=1)).enqueue(2)
        work()
        result.refresh()
        self.assertTrue(timezone.is_naive(result.finished_at))
        self.assertTrue(timezone.is_naive(add.get_result(deferred.id).task.run_after))
        with SyncQueue.open(self.url) as queue:
            found = queue.find(deferred.id)
        assert found is not None
        self.assertEqual(found.state, JobState.DELAYED)


class Failures(OnCasque):
    def test_a_task_that_raises_has_failed_at_once_with_its_error(self) -> None:
        result = pay.enqueue(7)

        self.assertEqual(work().failed, 1)

        result.refresh()
        self.assertEqual((result.status, result.attempts, seen), (TaskResultStatus.FAILED, 1, [7]))
        self.assertIsNotNone(result.finished_at)
        [error] = result.errors
        self.assertEqual(error.exception_class, CardRefusedError)
        self.assertIn("Traceback (most recent call last):\n  File ", error.traceback)
        self.assertTrue(error.traceback.endswith("CardRefusedError: no 7"), error.traceback)
        self.assertIn("in pay", error.traceback)
        with self.assertRaises(ValueError):
            print(result.return_value)

    def test_a_worker_that_dies_does_not_fail_its_task(self) -> None:
        result = add.enqueue(1)

        async def claim_and_die() -> None:
            async with Queue.open(self.url, worker="w-1") as queue:
                await queue.dequeue("django.default")
                await queue.requeue_stale(0)

        asyncio.run(claim_and_die())
        result.refresh()
        self.assertEqual((result.status, result.worker_ids), (TaskResultStatus.READY, ["w-1"]))
        while not result.is_finished:
            work()
            result.refresh()
        self.assertEqual((result.status, result.return_value), (TaskResultStatus.SUCCESSFUL, 2))
        self.assertEqual((result.attempts, result.worker_ids[0]), (2, "w-1"))
        [error] = result.errors
        self.assertIn("lease", error.traceback)

    def test_a_return_value_that_is_not_json_is_a_failure(self) -> None:
        result = unserialisable.enqueue()
        work()
        result.refresh()
        [error] = result.errors
        self.assertEqual((result.status, error.exception_class), (TaskResultStatus.FAILED, TypeError))

    def test_arguments_that_are_not_json_are_refused(self) -> None:
        with self.assertRaises(TypeError):
            add.enqueue(object())

    def test_a_task_of_another_version_of_the_program_goes_back(self) -> None:
        with SyncQueue.open(self.url) as queue:
            queue.enqueue("django.default", b'{"task": "django_side.not_yet", "args": [], "kwargs": {}}')
        summary = work()
        self.assertEqual((summary.done, summary.failed), (0, 0))
        with SyncQueue.open(self.url) as queue:
            [job] = queue.jobs()
        self.assertEqual(job.state, JobState.DELAYED)


class Attempts(OnCasque):
    options: ClassVar[dict[str, Any]] = {"max_attempts": 3, "backoff": [0.0]}

    def test_a_task_is_tried_again_and_sees_its_context(self) -> None:
        result = third_time.enqueue("word")
        while not seen or seen[-1][0] < 3:
            work()

        self.assertEqual(seen, [(1, 0, result.id), (2, 1, result.id), (3, 2, result.id)])
        result.refresh()
        self.assertEqual((result.status, result.return_value), (TaskResultStatus.SUCCESSFUL, [3, "word"]))
        self.assertEqual((result.attempts, len(result.errors)), (3, 2))
        self.assertEqual({error.exception_class for error in result.errors}, {ValueError})

    def test_it_has_failed_after_the_last_attempt(self) -> None:
        result = pay.enqueue(1)
        work()
        while len(seen) < 3:
            work()
        result.refresh()
        self.assertEqual((result.status, len(result.errors), result.attempts), (TaskResultStatus.FAILED, 3, 3))


class Order(OnCasque):
    def test_higher_priorities_run_first(self) -> None:
        for name, priority in (("low", -5), ("high", 100), ("usual", 0)):
            note.using(priority=priority).enqueue(name)
        work(concurrency=1)
        self.assertEqual(seen, ["high", "usual", "low"])

    def test_a_deferred_task_waits(self) -> None:
        moment = timezone.now() + timedelta(hours=1)
        result = note.using(run_after=moment).enqueue("later")
        self.assertEqual(work().claimed, 0)
        shown = note.get_result(result.id)
        self.assertEqual(shown.status, TaskResultStatus.READY)
        self.assertLess(abs(shown.task.run_after - moment), timedelta(milliseconds=2))

    def test_a_worker_takes_only_the_queues_it_was_given(self) -> None:
        add.enqueue(1)
        greet.enqueue("ada")
        self.assertEqual(work(queues=["mail"]).done, 1)
        self.assertEqual(work(queues=["default"]).done, 1)

    def test_a_backend_that_allows_any_queue_name_has_its_worker_told_which(self) -> None:
        changed = {**settings.TASKS, "default": {**settings.TASKS["default"], "QUEUES": []}}
        with override_settings(TASKS=changed):
            note.using(queue_name="reports").enqueue("weekly")
            with self.assertRaisesRegex(InvalidInputError, "name those to work on"):
                work()
            self.assertEqual(work(queues=["reports"]).done, 1)
        self.assertEqual(seen, ["weekly"])

    def test_a_task_enqueues_another_through_the_workers_queue(self) -> None:
        result = enqueue_another.enqueue()
        self.assertEqual(work().done, 2)
        result.refresh()
        self.assertEqual(add.get_result(result.return_value).return_value, 42)


class Transactions(OnCasque):
    def test_a_task_waits_for_the_commit(self) -> None:
        self.use(settings={"archive_interval": SOON})
        with transaction.atomic():
            result = note.enqueue("after")
            self.assertIsNone(result.enqueued_at)
            with self.assertRaises(TaskResultDoesNotExist):
                note.get_result(result.id)
        self.assertIsNotNone(result.enqueued_at)
        self.assertEqual(note.get_result(result.id).status, TaskResultStatus.READY)
        work()
        self.assertEqual(seen, ["after"])

    def test_a_rollback_enqueues_nothing(self) -> None:
        def fail() -> None:
            with transaction.atomic():
                note.enqueue("never")
                raise KeyError

        self.assertRaises(KeyError, fail)
        self.assertEqual(work().claimed, 0)

    def test_it_can_be_turned_off(self) -> None:
        self.use(enqueue_on_commit=False)
        with transaction.atomic():
            result = note.enqueue("at once")
            self.assertEqual(note.get_result(result.id).status, TaskResultStatus.READY)


class Signals(OnCasque):
    def test_signals_are_sent_for_each_step(self) -> None:
        heard: list[tuple[str, str]] = []

        def hear(name: str) -> Any:
            def receive(sender: Any, task_result: Any, **_: Any) -> None:
                heard.append((name, str(task_result.status)))

            return receive

        for name, sent in (("enqueued", task_enqueued), ("started", task_started), ("finished", task_finished)):
            receiver = hear(name)
            sent.connect(receiver)
            self.addCleanup(sent.disconnect, receiver)
        add.enqueue(1)
        work()
        pay.enqueue(1)
        work()
        self.assertEqual(
            heard,
            [
                ("enqueued", "READY"),
                ("started", "RUNNING"),
                ("finished", "SUCCESSFUL"),
                ("enqueued", "READY"),
                ("started", "RUNNING"),
                ("finished", "FAILED"),
            ],
        )


class Settings(SimpleTestCase):
    def test_a_wrong_option_is_reported_by_name(self) -> None:
        for options, said in (
            ({"urll": "memory://x"}, "urll"),
            ({"max_attempts": 0}, "max_attempts"),
            ({"backoff": "1s"}, "backoff"),
            ({"settings": {"archive_intervall": 1}}, "archive_intervall"),
        ):
            with (
                override_settings(TASKS={"default": {"BACKEND": BACKEND, "OPTIONS": options}}),
                self.assertRaisesRegex(ImproperlyConfigured, f"TASKS\\['default'\\].*{said}"),
            ):
                print(task_backends["default"])

    def test_a_queue_without_a_url_is_found_by_the_system_check(self) -> None:
        with override_settings(TASKS={"default": {"BACKEND": BACKEND}}):
            [problem] = task_backends["default"].check()
            self.assertEqual(problem.id, "casque.E001")
            self.assertIn("CASQUE_URL", problem.msg)
        with override_settings(TASKS=tasks()):
            self.assertEqual(task_backends["default"].check(), [])


class Commands(OnCasque):
    def test_the_worker_runs_as_a_process_and_says_what_it_did(self) -> None:
        result = add.enqueue(1, b=1)
        close_all()
        ran = subprocess.run(
            [*MANAGE, "casque_worker", "--burst", "--json"],
            cwd=Path(__file__).parent,
            env={**os.environ, "DJANGO_SIDE": str(PLACE), "DJANGO_SIDE_URL": self.url},
            capture_output=True,
            text=True,
        )
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertEqual(json.loads(ran.stdout)["done"], 1)
        result.refresh()
        self.assertEqual(result.return_value, 2)

    def test_a_worker_that_waits_for_tasks_stops_cleanly_when_asked(self) -> None:
        close_all()
        with subprocess.Popen(
            [*MANAGE, "casque_worker", "--json", "-v", "2", "--metrics", "127.0.0.1:0"],
            cwd=Path(__file__).parent,
            env={**os.environ, "DJANGO_SIDE": str(PLACE), "DJANGO_SIDE_URL": self.url},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as worker:
            result = add.enqueue(20, b=1)
            assert worker.stderr is not None
            try:
                address = ""
                for line in worker.stderr:
                    if line.startswith("metrics at "):
                        address = line.removeprefix("metrics at ").strip()
                    if result.id in line and "done" in line:
                        break
                with urllib.request.urlopen(address, timeout=30) as page:
                    metrics = page.read().decode()
                worker.send_signal(signal.SIGTERM)
                said, _ = worker.communicate(timeout=30)
            finally:
                worker.kill()
        self.assertEqual((worker.returncode, json.loads(said)["done"]), (0, 1))
        self.assertIn("casque_worker_jobs_claimed_total 1", metrics)
        result.refresh()
        self.assertEqual(result.return_value, 21)

    def test_a_child_that_was_forked_opens_the_queue_for_itself(self) -> None:
        add.enqueue(1)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                add.enqueue(2)
                close_all()
                code = 0
            finally:
                os._exit(code)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
        add.enqueue(3)
        self.assertEqual(work().done, 3)

    def test_mistakes_are_answered_with_what_to_do(self) -> None:
        for arguments, said in (
            (["--backend", "else"], "DummyBackend"),
            (["--queue-name", "post"], "has no queue 'post'; it has default, mail"),
            (["--concurrency", "0"], "concurrency"),
        ):
            with self.assertRaisesRegex(CommandError, said):
                call_command("casque_worker", *arguments)


def main() -> None:
    """`manage.py` of a project that has these tasks; DJANGO_SIDE_URL names its queue."""
    call_command(*sys.argv[1:])


if __name__ == "django_side" and sys.modules.get("__main__") is sys.modules.get("django_side"):
    runner = get_runner(settings)(verbosity=1, interactive=False)
    sys.exit(bool(runner.run_tests(sys.argv[1:] or ["django_side"])))
