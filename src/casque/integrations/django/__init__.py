"""A backend for Django's Tasks (Django 6, or django-tasks on Django 5.2), and `manage.py casque_worker`.

    INSTALLED_APPS = [..., "casque.integrations.django"]
    TASKS = {
        "default": {
            "BACKEND": "casque.integrations.django.CasqueBackend",
            "QUEUES": ["default", "mail"],
            "OPTIONS": {"url": "s3://bucket/tasks"},
        }
    }

A task is a job whose entrypoint is `django.` and the name of its queue; its payload names the function and its
arguments. In this package `backend` enqueues and looks up, `handlers` runs tasks in a worker, `results` shows a job as
Django's `TaskResult`, and `connection` keeps one queue open in each process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from casque.integrations.django.backend import CasqueBackend

__all__ = ["CasqueBackend"]


def __getattr__(name: str) -> object:
    # Django imports this package to set up its apps, before anything that needs them can be imported.
    if name == "CasqueBackend":
        from casque.integrations.django.backend import CasqueBackend

        return CasqueBackend
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
