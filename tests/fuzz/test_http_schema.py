"""Requests made from the OpenAPI document, right and wrong ones, for as long as one likes: `CASQUE_FUZZ=1000`.

The normal run has a few of them in `tests/integration/over_http/test_openapi.py`.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

from tests.integration.over_http.test_openapi import TOKEN, api, as_program, schema

EXAMPLES = int(os.environ.get("CASQUE_FUZZ", "0"))

__all__ = ["api"]


@pytest.mark.skipif(not EXAMPLES, reason="for long runs: CASQUE_FUZZ=<examples>")
@schema.parametrize()
@settings(
    max_examples=max(EXAMPLES, 1),
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_every_answer_is_as_described(case: Any) -> None:
    as_program(case)

    case.call_and_validate(headers={"Authorization": TOKEN})
