"""The processes of a run: started, killed, stopped, woken up and started again."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path

import msgspec

from casque.clock import SystemClock, system_random
from simulation.chaos.actor import Orders
from simulation.chaos.shifted_clock import RANGE_S, VARIABLE
from simulation.history.recorder import SUFFIX

ROOT = Path(__file__).resolve().parents[2]
"""Where `python -m simulation...` can be run."""
_CLOCK = SystemClock()
LOOK_S = 0.02
TAIL_BYTES = 3_000


class Kind(StrEnum):
    BROKER = "broker"
    WORKER = "worker"
    PRODUCER = "producer"
    OPERATOR = "operator"
    STEWARD = "steward"


class Health(StrEnum):
    """How a member is, as far as the fleet has to do with it."""

    DOWN = "down"
    STARTING = "starting"
    UP = "up"
    STOPPED = "stopped"
    """By SIGSTOP: it lives, and does nothing."""
    LEAVING = "leaving"


class Member:
    """One place in the fleet; the process that fills it changes."""

    def __init__(self, kind: Kind, name: str, folder: Path) -> None:
        self.kind = kind
        self.name = name
        self.health = Health.DOWN
        self.starts = 0
        self.said = folder / f"{name}.out"
        self.clock_s: int | None = None
        """How far ahead its wall clock is to be when it starts next; None leaves it alone."""
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} was never started"
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it lives."""
        return None if self._process is None else self._process.poll()

    def start(self) -> None:
        assert self._process is None or self._process.poll() is not None, f"{self.name} still lives"
        self.starts += 1
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        if self.clock_s is not None:
            environment[VARIABLE] = str(self.clock_s)
        with self.said.open("ab") as out:
            self._process = subprocess.Popen(
                [sys.executable, *self._command()],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=environment,
            )
        self.health = Health.STARTING

    def _command(self) -> list[str]:
        raise NotImplementedError

    async def ready(self) -> None:
        """Until it is up."""
        self.health = Health.UP

    def signal(self, number: signal.Signals) -> None:
        """Nothing happens if it is dead already; whoever waits for its end learns how."""
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """kill -9."""
        assert self._process is not None
        self.health = Health.DOWN
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        self.health = Health.STOPPED
        self.signal(signal.SIGSTOP)

    def wake(self) -> None:
        self.signal(signal.SIGCONT)
        self.health = Health.UP

    def step_clock(self) -> None:
        """To another time of day, up to twenty minutes away."""
        if self.clock_s is not None:
            self.signal(signal.SIGUSR1)

    def settle_clock(self) -> None:
        """To the latest time any clock of the run has shown, so that nothing waits for its delay any longer."""
        if self.clock_s is not None:
            self.clock_s = RANGE_S
            self.signal(signal.SIGUSR2)

    def ask_to_leave(self) -> None:
        self.health = Health.LEAVING
        self.signal(signal.SIGTERM)

    async def ended(self, within_s: float) -> int | None:
        """Its exit code; None if it does not end in time."""
        until_ms = _CLOCK.monotonic_ms() + within_s * 1000
        while (code := self.exit_code) is None and _CLOCK.monotonic_ms() < until_ms:
            await _CLOCK.sleep(LOOK_S)
        if code is not None:
            self.health = Health.DOWN
        return code

    def let_go(self) -> None:
        """Of whatever was kept for it."""

    def last_words(self) -> str:
        """The end of what it printed."""
        with contextlib.suppress(FileNotFoundError):
            return self.said.read_bytes()[-TAIL_BYTES:].decode(errors="replace")
        return ""


class BrokerMember(Member):
    """`casque serve` at a fixed address."""

    def __init__(self, name: str, folder: Path, arguments: list[str]) -> None:
        super().__init__(Kind.BROKER, name, folder)
        self.port, self._reserved = reserve_port()
        self.address = f"127.0.0.1:{self.port}"
        self._arguments = arguments

    def _command(self) -> list[str]:
        module = "simulation.chaos.broker"
        return ["-m", module, "serve", *self._arguments, "--listen", self.address, "--no-http", "-v"]

    async def ready(self) -> None:
        """Until its port is open; whether it leads is another matter."""
        while not _answers(self.port) and self.exit_code is None:
            await _CLOCK.sleep(LOOK_S)
        if self.health is Health.STARTING:
            self.health = Health.UP

    def let_go(self) -> None:
        self._reserved.close()


class ActorMember(Member):
    """A producer, a worker, an operator or a steward."""

    def __init__(self, kind: Kind, orders: Orders, folder: Path) -> None:
        super().__init__(kind, orders.name, folder)
        self._orders = orders

    def _command(self) -> list[str]:
        earlier = self._record_of(self.starts - 1)
        orders = msgspec.structs.replace(
            self._orders,
            record=str(self._record_of(self.starts)),
            seed=f"{self._orders.seed}/{self.starts}",
            earlier=str(earlier) if earlier.exists() else None,
        )
        return ["-m", f"simulation.chaos.{self.kind.value}", msgspec.json.encode(orders).decode()]

    def _record_of(self, start: int) -> Path:
        # A new one for each start: the last line of the old one may have been cut short.
        return self._folder / f"{self.name}-{start}{SUFFIX}"

    async def ready(self) -> None:
        """Until it has begun its record. Before that it does not know how to leave in an orderly way."""
        while not self._record_of(self.starts).exists() and self.exit_code is None:
            await _CLOCK.sleep(LOOK_S)
        if self.health is Health.STARTING:
            self.health = Health.UP


class Fleet:
    """All members. On leaving, none of them is left."""

    def __init__(self, members: Sequence[Member]) -> None:
        self.members = members

    def of(self, kind: Kind) -> list[Member]:
        return [member for member in self.members if member.kind is kind]

    @property
    def actors(self) -> list[Member]:
        """Everyone who calls."""
        return [member for member in self.members if member.kind is not Kind.BROKER]

    @property
    def managers(self) -> list[Member]:
        """Those who neither produce nor work."""
        return [*self.of(Kind.OPERATOR), *self.of(Kind.STEWARD)]

    @property
    def brokers(self) -> list[BrokerMember]:
        return [member for member in self.members if isinstance(member, BrokerMember)]

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        try:
            yield
        finally:
            for member in self.members:
                if member.starts and member.exit_code is None:
                    member.kill()
                member.let_go()

    def deserters(self) -> list[Member]:
        """Those who ended although nobody touched them."""
        expected = (Health.DOWN, Health.LEAVING)
        return [member for member in self.members if member.health not in expected and member.exit_code is not None]


def serve_arguments(
    url: str,
    options: Mapping[str, str],
    *,
    heartbeat_s: float,
    lease_s: float,
    layout: str | None = "log",
    settings: Mapping[str, float] | None = None,
) -> list[str]:
    """What every broker of a fleet is started with."""
    arguments = [url, "--heartbeat", str(heartbeat_s), "--lease", str(lease_s)]
    if layout is not None:
        arguments += ["--layout", layout]
    for name, value in options.items():
        arguments += ["-o", f"{name}={value}"]
    for name, number in (settings or {}).items():
        arguments += ["-s", f"{name}={number}"]
    return arguments


def reserve_port() -> tuple[int, socket.socket]:
    """A free port, and what keeps other runs on this machine from choosing it while its broker is dead: the port of the
    same number for datagrams. It lies below the ephemeral range, where an outgoing connection could take it."""
    rng = system_random()
    while True:
        port = rng.randrange(23_000, 30_000)
        reserved = socket.socket(type=socket.SOCK_DGRAM)
        try:
            reserved.bind(("127.0.0.1", port))
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
        except OSError:
            reserved.close()
        else:
            return port, reserved


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.2)
        return probe.connect_ex(("127.0.0.1", port)) == 0
