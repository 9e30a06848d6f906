"""A web application with Django whose requests enqueue jobs: settings, a model, a view and a job in one file.

In a real project these are several: the docs say where each belongs. `casque worker` runs the jobs.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import django
from django.conf import settings
from django.db import close_old_connections, connection, models, transaction
from django.http import HttpRequest, JsonResponse
from django.test import Client
from django.urls import path
from django.views.decorators.http import require_POST

import casque
from casque.worker import Worker

DIRECTORY = TemporaryDirectory()
PLACE = Path(DIRECTORY.name)

# --- settings.py ---

settings.configure(
    ALLOWED_HOSTS=["testserver"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": PLACE / "shop.db"}},
    DEFAULT_AUTO_FIELD="django.db.models.AutoField",
    ROOT_URLCONF=__name__,
)
django.setup()


# --- models.py ---


class Order(models.Model):
    item = models.TextField()
    state = models.TextField(default="new")

    class Meta:
        app_label = "shop"


# --- jobs.py ---

app = casque.App((PLACE / "queue").as_uri())


@app.job(key="order-{order_id}")
def ship(order_id: int) -> str:
    close_old_connections()  # a worker's threads live longer than a database keeps a silent connection
    order = Order.objects.get(pk=order_id)
    order.state = "shipped"
    order.save()
    return f"{order.item} is on its way"


# --- views.py ---


@require_POST
def add(request: HttpRequest) -> JsonResponse:
    with transaction.atomic():
        order = Order.objects.create(item=request.POST["item"])
        # After the commit: the worker must find the order.
        transaction.on_commit(lambda: ship.enqueue_sync(order.pk))
        if order.item == "nothing":
            raise ValueError("nothing cannot be shipped")  # no commit: no order, and no job
    return JsonResponse({"order": order.pk}, status=202)


urlpatterns = [path("orders", add)]


def main() -> None:
    with connection.schema_editor() as tables:
        tables.create_model(Order)
    with app:  # in wsgi.py, for as long as the server runs
        web = Client()
        print("a request:", web.post("/orders", {"item": "a pen"}).json())
        with suppress(ValueError):
            web.post("/orders", {"item": "nothing"})
    summary = asyncio.run(Worker(app, burst=True).run())  # or casque worker shop.worker:app
    print("the worker:", summary.done, "done")
    print("the table:", list(Order.objects.values_list("item", "state")))
    connection.close()


if __name__ == "__main__":
    main()
    DIRECTORY.cleanup()
