"""The border and a ring treat every request that they do not list as one that names a job, and no lease."""

from __future__ import annotations

from typing import Any

import pytest

from casque.ring import service as ring
from casque.service.requests import EVERY, Request, Scope, verb_of
from casque.transport import border

KINDS = [kind for kind in EVERY if kind.scope is not Scope.PEER]


@pytest.mark.parametrize("kind", KINDS, ids=verb_of)
@pytest.mark.parametrize("listed", [border._METHODS, ring._METHODS], ids=["border", "ring"])
def test_a_request_that_is_not_listed_names_one_job(kind: type[Request[Any]], listed: dict[Any, str]) -> None:
    if kind not in listed:
        assert kind.naming
        assert "job_id" in kind.__struct_fields__
        assert "token" not in kind.__struct_fields__


@pytest.mark.parametrize(("listed", "owner"), [(border._METHODS, border.Border), (ring._METHODS, ring.RingService)])
def test_what_is_listed_is_there(listed: dict[type[Request[Any]], str], owner: type) -> None:
    assert all(hasattr(owner, name) for kind, name in listed.items() if kind.scope is not Scope.PEER)
