"""Alerts, dashboard and autoscaling in `deploy/` use metrics that brokers and workers really have."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
import yaml

from tests.acceptance.test_worker_metrics import queue_of, worker
from tests.contract.test_service_ring_brokers import brokers
from tests.integration.over_http.prometheus import Scrape
from tests.integration.test_broker_metrics import a_broker, opened, scraped
from tests.support.command_lines import in_shell, parsed
from tests.support.deploy_tools import fetched, promtool

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
RULES = yaml.safe_load((DEPLOY / "prometheus" / "casque.rules.yml").read_text())
DASHBOARD = json.loads((DEPLOY / "grafana" / "casque.json").read_text())
SCALED = yaml.safe_load((DEPLOY / "kubernetes" / "autoscaling" / "scaledobject.yaml").read_text())
REFERENCE = (ROOT / "docs" / "reference" / "metrics.md").read_text()
OF_PROMETHEUS = {"job", "instance", "namespace", "le"}
SELECTOR = re.compile(r"\b(casque_\w+)(?:\{([^}]*)\})?")
MATCHER = re.compile(r'(\w+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"')


class Expression(NamedTuple):
    where: str
    text: str
    shown: tuple[str, ...] = ()
    """Labels that a legend or a message shows."""


def expressions() -> Iterator[Expression]:
    for rule in RULES["groups"][0]["rules"]:
        messages = " ".join(rule["annotations"].values())
        yield Expression(rule["alert"], rule["expr"], tuple(re.findall(r"\$labels\.(\w+)", messages)))
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            shown = tuple(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            yield Expression(panel["title"], target["expr"].replace("$__rate_interval", "5m"), shown)
    for trigger in SCALED["spec"]["triggers"]:
        yield Expression("ScaledObject", trigger["metadata"]["query"])
    page = (ROOT / "docs" / "how-to" / "monitor-a-broker.md").read_text()
    for text in re.findall(r"^\| [^|]+\| `((?:[^`|]|\\\|)*casque_(?:[^`|]|\\\|)*)`", page, re.MULTILINE):
        yield Expression("monitor-a-broker.md", text.replace("\\|", "|"))


EXPRESSIONS = list(expressions())


class Metric(NamedTuple):
    kind: str
    labels: frozenset[str]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> list[Scrape]:
    """The metrics of a broker of a queue, of one of a ring, and of a worker."""
    return asyncio.run(_pages(tmp_path_factory.mktemp("real")))


async def _pages(place: Path) -> list[Scrape]:
    pages: list[Scrape] = []
    async with a_broker() as server, opened(server, worker="w1") as queue:
        await queue.enqueue("send", b"", zone="acme")
        [job] = await queue.dequeue("send")
        await job.ack()
        async with httpx.AsyncClient() as client:
            await client.get(f"http://127.0.0.1:{server.http_port}/v1/stats")
        pages.append(await scraped(server))
    async with brokers((place / "ring").as_uri(), 1) as [server]:
        pages.append(await scraped(server))
    async with queue_of(place) as queue:
        await queue.enqueue("write", b"one")
        async with worker(place) as watched, asyncio.timeout(60):
            while not (page := await watched.metrics()).of("casque_worker_run_seconds_count"):
                await watched.until_ready()
            pages.append(page)
    return pages


@pytest.fixture(scope="module")
def real(pages: list[Scrape]) -> dict[str, Metric]:
    """Every series that they have, with its labels."""
    found: dict[str, Metric] = {}
    for page in pages:
        for name, labels in page.samples:
            family = re.sub("_(bucket|sum|count)$", "", name)
            kind = page.kinds.get(name) or page.kinds[family]
            known = found.get(name, Metric(kind, frozenset()))
            found[name] = Metric(kind, known.labels | {label for label, _ in labels})
    return found


READ = """
import json, sys
from prometheus_client.parser import text_string_to_metric_families
for text in json.load(sys.stdin):
    families = list(text_string_to_metric_families(text))
    samples = [(one.name, one.labels, one.value) for family in families for one in family.samples]
    print(json.dumps([{family.name: family.type for family in families}, samples]))
"""


def test_the_client_library_of_prometheus_reads_every_page(pages: list[Scrape]) -> None:
    texts = json.dumps([page.text for page in pages])
    read = subprocess.run([fetched("python"), "-c", READ], input=texts, capture_output=True, text=True, check=True)
    lines = read.stdout.splitlines()
    assert len(lines) == len(pages) == 3
    for page, line in zip(pages, lines, strict=True):
        kinds, samples = json.loads(line)
        assert kinds == {name.removesuffix("_total"): kind for name, kind in page.kinds.items()}
        assert {(name, frozenset(labels.items())): value for name, labels, value in samples} == page.samples


def test_promtool_has_nothing_to_say_about_the_names_on_any_page(pages: list[Scrape]) -> None:
    lint = [promtool(), "check", "metrics"]
    for page in pages:
        said = subprocess.run(lint, input=page.text, capture_output=True, text=True)
        assert (said.returncode, said.stdout, said.stderr) == (0, "", "")
    wrong = subprocess.run(lint, input="# TYPE casque_calls counter\ncasque_calls 1\n", capture_output=True, text=True)
    assert wrong.returncode, "a mistake is noticed"


def test_prometheus_can_read_its_files() -> None:
    place = DEPLOY / "prometheus"
    for check in (["config", "--syntax-only", "prometheus.yml"], ["rules", "casque.rules.yml"]):
        said = subprocess.run([promtool(), "check", *check], cwd=place, capture_output=True, text=True)
        assert said.returncode == 0, said.stdout + said.stderr


def documented(name: str) -> str:
    """The row of a metric in the reference."""
    family = re.sub("_(bucket|sum|count)$", "", name)
    [row] = re.findall(rf"^\| `(?:{name}|{family})` .*$", REFERENCE, re.MULTILINE)
    return str(row)


@pytest.mark.parametrize("expression", EXPRESSIONS, ids=[f"{one.where}-{n}" for n, one in enumerate(EXPRESSIONS)])
def test_an_expression_uses_metrics_and_labels_that_are_there(expression: Expression, real: dict[str, Metric]) -> None:
    used: set[str] = set()
    for name, matchers in SELECTOR.findall(expression.text):
        assert name in real, name
        used |= real[name].labels
        for label, values in MATCHER.findall(matchers):
            assert label in real[name].labels | OF_PROMETHEUS, f"{name} has no label {label}"
            if label not in OF_PROMETHEUS | {"verb", "status"} and "$" not in values:
                for value in values.split("|"):
                    assert f"`{value}`" in documented(name), f"{name} has no {label}={value}"
    grouped = re.findall(r"\b(?:by|on) \(([^)]*)\)", expression.text)
    for label in (*(one.strip() for some in grouped for one in some.split(",")), *expression.shown):
        assert label in used | OF_PROMETHEUS, label


def test_a_rate_is_of_what_rises_and_of_nothing_else(real: dict[str, Metric]) -> None:
    for expression in EXPRESSIONS:
        for name, _ in SELECTOR.findall(expression.text):
            in_rate = re.search(rf"\brate\({name}\b", expression.text) is not None
            assert in_rate == (real[name].kind in ("counter", "histogram")), expression


PARSE = """
import json, sys, promql_parser
for text in json.load(sys.stdin):
    try:
        promql_parser.parse(text)
    except Exception as error:
        print(text, error)
"""


def wrong_among(texts: list[str]) -> list[str]:
    """The lines that a parser of PromQL writes about those that it does not understand."""
    command = [fetched("python"), "-c", PARSE]
    checked = subprocess.run(command, input=json.dumps(texts), capture_output=True, text=True, check=True)
    return checked.stdout.splitlines()


def test_every_expression_is_promql() -> None:
    assert wrong_among([expression.text for expression in EXPRESSIONS]) == []
    [wrong] = wrong_among(["sum by (job (casque_jobs)"])
    assert wrong.startswith("sum by (job"), "a mistake is noticed"


def test_there_is_an_alert_for_each_kind_of_trouble() -> None:
    alerts = {rule["alert"] for rule in RULES["groups"][0]["rules"]}
    assert alerts >= {
        *("CasqueNoLeader", "CasqueJobsWait", "CasqueDeadJobsGrow", "CasqueStoreErrors", "CasqueArchiveBehind"),
        *("CasqueNoWorkers", "CasqueShardsWithoutLeader"),
    }
    for rule in RULES["groups"][0]["rules"]:
        assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["annotations"].keys() == {"summary", "description"}


def test_kubernetes_has_the_same_alerts() -> None:
    [rules] = yaml.safe_load_all((DEPLOY / "kubernetes" / "monitoring" / "rules.yaml").read_text())
    assert rules["spec"] == RULES


def test_commands_in_messages_are_commands() -> None:
    text = (DEPLOY / "prometheus" / "casque.rules.yml").read_text()
    named = [line for code in re.findall(r"`(casque [^`]+)`", text) for line in in_shell(code)]
    assert named
    for arguments in named:
        assert parsed(arguments)


def test_the_dashboard_is_whole() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids)) > 20
    variables = {one["name"] for one in DASHBOARD["templating"]["list"]}
    text = json.dumps(DASHBOARD)
    assert set(re.findall(r"\$\{?(\w+)", text)) <= {*variables, "__rate_interval", "__all"}
    for one in DASHBOARD["templating"]["list"]:
        if one["type"] == "query":
            assert re.fullmatch(r"label_values\(casque_\w+(\{.*\})?, \w+\)", one["definition"])
    places: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at: dict[str, Any] = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & places, f"{panel['title']} lies over another panel"
        assert at["x"] + at["w"] <= 24
        places |= cells
        assert panel["type"] == "row" or panel["description"]


def test_the_dashboard_is_provisioned_where_its_files_are() -> None:
    compose = yaml.safe_load((DEPLOY / "docker-compose.yml").read_text())
    mounts = {volume.split(":")[1] for volume in compose["services"]["grafana"]["volumes"]}
    provider = yaml.safe_load((DEPLOY / "grafana" / "provider.yml").read_text())["providers"][0]
    assert f"{provider['options']['path']}/casque.json" in mounts
    source = yaml.safe_load((DEPLOY / "grafana" / "datasource.yml").read_text())["datasources"][0]
    assert source["type"] == DASHBOARD["templating"]["list"][0]["query"]
    assert source["url"] == "http://prometheus:9090"
