"""Each alert in `deploy/prometheus` fires when it should and stays quiet otherwise, as Prometheus evaluates it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.support.deploy_tools import promtool

RULES = Path(__file__).parents[2] / "deploy" / "prometheus" / "casque.rules.yml"
CASES = Path(__file__).parent / "casque.rules.test.yml"
ALERTS = {rule["alert"] for rule in yaml.safe_load(RULES.read_text())["groups"][0]["rules"]}


def evaluated(cases: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([promtool(), "test", "rules", cases], capture_output=True, text=True)


def failed(place: Path, expression: str) -> set[str]:
    """The alerts whose cases fail when all of them have this expression instead, and fire at once."""
    rules = yaml.safe_load(RULES.read_text())
    for rule in rules["groups"][0]["rules"]:
        rule["expr"] = expression
        rule.pop("for", None)
    cases = yaml.safe_load(CASES.read_text()) | {"rule_files": ["changed.yml"]}
    (place / "changed.yml").write_text(yaml.safe_dump(rules))
    (place / "cases.yml").write_text(yaml.safe_dump(cases))
    done = evaluated(place / "cases.yml")
    assert done.returncode == 1
    return set(re.findall(r"alertname: (\w+)", done.stdout + done.stderr))


def test_every_alert_fires_and_stays_quiet_as_its_cases_say() -> None:
    done = evaluated(CASES)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("expression", ["vector(0) > 1", "vector(1)"], ids=["never", "always"])
def test_no_alert_could_be_quiet_for_ever_or_fire_for_ever(tmp_path: Path, expression: str) -> None:
    assert failed(tmp_path, expression) == ALERTS


def test_every_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    checks = [check for case in yaml.safe_load(CASES.read_text())["tests"] for check in case["alert_rule_test"]]
    assert {check["alertname"] for check in checks if check.get("exp_alerts")} == ALERTS
    assert {check["alertname"] for check in checks if not check.get("exp_alerts")} == ALERTS
