"""The app's entry in INSTALLED_APPS, which brings the management command."""

from __future__ import annotations

from django.apps import AppConfig


class CasqueConfig(AppConfig):
    name = "casque.integrations.django"
    label = "casque"
    verbose_name = "casque"
