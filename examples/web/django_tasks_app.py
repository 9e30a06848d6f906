"""Django's own Tasks on casque: settings, a model, a task and a view in one file.

In a real project these are several, and `manage.py casque_worker` runs the tasks. With Django 6 the decorator comes
from `django.tasks`; with Django 5.2 from the package django-tasks.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import django
from django.conf import settings

DIRECTORY = TemporaryDirectory()
PLACE = Path(DIRECTORY.name)

# --- settings.py ---

settings.configure(
    ALLOWED_HOSTS=["testserver"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": PLACE / "shop.db"}},
    DEFAULT_AUTO_FIELD="django.db.models.AutoField",
    INSTALLED_APPS=["casque.integrations.django"],
    LOGGING={"version": 1, "loggers": {"django": {"level": "CRITICAL"}}},
    ROOT_URLCONF=__name__,
    TASKS={
        "default": {
            "BACKEND": "casque.integrations.django.CasqueBackend",
            "OPTIONS": {"url": (PLACE / "queue").as_uri(), "max_attempts": 3},
        }
    },
    USE_TZ=True,
)
django.setup()

from django.db import connection, models, transaction  # noqa: E402
from django.http import HttpRequest, JsonResponse  # noqa: E402
from django.test import Client  # noqa: E402
from django.urls import path  # noqa: E402
from django.views.decorators.http import require_POST  # noqa: E402

try:
    from django.tasks import task
except ImportError:
    from django_tasks import task

from casque.integrations.django.connection import close_all  # noqa: E402
from casque.integrations.django.handlers import TaskHandlers  # noqa: E402
from casque.worker import Worker  # noqa: E402

# --- models.py ---


class Order(models.Model):
    item = models.TextField()
    state = models.TextField(default="new")

    class Meta:
        app_label = "shop"


# --- tasks.py ---


@task(priority=10)
def ship(order_id: int) -> str:
    order = Order.objects.get(pk=order_id)
    order.state = "shipped"
    order.save()
    return f"{order.item} is on its way"


# --- views.py ---


@require_POST
def add(request: HttpRequest) -> JsonResponse:
    with transaction.atomic():
        order = Order.objects.create(item=request.POST["item"])
        result = ship.enqueue(order.pk)  # when the transaction is committed: the worker must find the order
        if order.item == "nothing":
            raise ValueError("nothing cannot be shipped")  # no commit: no order, and no task
    return JsonResponse({"task": result.id}, status=202)


def look(_: HttpRequest, task_id: str) -> JsonResponse:
    result = ship.get_result(task_id)
    return JsonResponse({"status": result.status, "result": result.return_value if result.is_finished else None})


urlpatterns = [path("orders", add), path("tasks/<str:task_id>", look)]


def main() -> None:
    with connection.schema_editor() as tables:
        tables.create_model(Order)
    web = Client()
    task_id = web.post("/orders", {"item": "a pen"}).json()["task"]
    with suppress(ValueError):
        web.post("/orders", {"item": "nothing"})
    print("before:", web.get(f"/tasks/{task_id}").json()["status"])
    worker = Worker(TaskHandlers(ship.get_backend()), burst=True)  # what manage.py casque_worker --burst runs
    print("the worker:", asyncio.run(worker.run()).done, "done")
    print("after:", web.get(f"/tasks/{task_id}").json())
    print("the table:", list(Order.objects.values_list("item", "state")))
    close_all()
    connection.close()


if __name__ == "__main__":
    main()
    DIRECTORY.cleanup()
