"""The committed code of the messages is that of the proto files, and the seed's service is as it was given."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
CODE = ROOT / "src" / "casque" / "transport" / "grpc"


def test_the_committed_code_is_what_the_compiler_makes_of_the_proto_files(tmp_path: Path) -> None:
    command = ["bash", str(ROOT / "scripts" / "proto"), str(tmp_path)]
    subprocess.run(command, check=True, env={"PYTHON": sys.executable, "PATH": "/usr/bin:/bin"})

    made = sorted(path.name for path in tmp_path.iterdir())

    assert made == ["casque_v1_pb2.py", "casque_v1_pb2.pyi", "osqueue_v1_pb2.py", "osqueue_v1_pb2.pyi"]
    for name in made:
        assert (CODE / name).read_bytes() == (tmp_path / name).read_bytes(), f"{name} is out of date: run `make proto`"


def test_the_installed_protobuf_may_be_as_old_as_the_compiler_and_no_older() -> None:
    [needed] = re.findall(r'"protobuf>=([\d.]+)"', (ROOT / "pyproject.toml").read_text())
    [made_by] = re.findall(r"Protobuf Python Version: ([\d.]+)", (CODE / "casque_v1_pb2.py").read_text())

    assert needed == made_by


def test_osqueues_service_has_the_very_fields_that_its_clients_send() -> None:
    text = (ROOT / "proto" / "osqueue" / "v1" / "queue.proto").read_text()

    assert "package osqueue.v1;" in text
    found = re.findall(r"^    (?:rpc (\w+)\((\w+)\) returns \((\w+)\)|(\w+ \w+ = \d+));", text, re.MULTILINE)
    assert ["/".join(filter(None, one)) for one in found] == [
        "Push/PushRequest/PushResponse",
        "Claim/ClaimRequest/ClaimResponse",
        "Heartbeat/HeartbeatRequest/HeartbeatResponse",
        "Complete/CompleteRequest/CompleteResponse",
        "bytes data = 1",
        "string job_id = 1",
        "string worker_id = 1",
        "string job_id = 1",
        "bytes data = 2",
        "bool empty = 3",
        "string job_id = 1",
        "string worker_id = 2",
        "string job_id = 1",
        "string worker_id = 2",
    ]
