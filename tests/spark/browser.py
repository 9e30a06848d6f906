"""A real browser without a window, asked through its DevTools protocol over a pipe."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
OPTIONS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions"),
    "--remote-debugging-pipe",
)
FAR = 50


def find_browser() -> str | None:
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """One open page, and everything that it did."""

    def __init__(self, to: int, answers: int) -> None:
        self._to = os.fdopen(to, "wb")
        self._answers = os.fdopen(answers, "rb")
        self._number = 0
        self._session: str | None = None
        self._rest = b""
        self.happened: list[dict[str, Any]] = []

    def open(self, url: str, *, width: int = 1200, dark: bool = False, paper: bool = False) -> None:
        if self._session is None:
            target = self._ask("Target.createTarget", url="about:blank")["targetId"]
            self._session = self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for part in ("Page", "Runtime", "Log", "Network"):
                self._ask(f"{part}.enable")
        self._ask("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._ask("Emulation.setEmulatedMedia", media="print" if paper else "", features=[scheme])
        self.happened.clear()
        self._ask("Page.navigate", url=url)
        while not any(event["method"] == "Page.loadEventFired" for event in self.happened):
            self._take()

    def evaluate(self, expression: str) -> Any:
        answer = self._ask("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def complaints(self) -> list[str]:
        """Errors, warnings, dialogues, and whatever was written to the console."""
        loud = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded", "Page.javascriptDialogOpening")
        return [json.dumps(event["params"]) for event in self.happened if event["method"] in loud]

    def requests(self) -> list[str]:
        sent = (event for event in self.happened if event["method"] == "Network.requestWillBeSent")
        return [event["params"]["request"]["url"] for event in sent]

    def let_go(self) -> None:
        self._to.close()
        self._answers.close()

    def close(self) -> None:
        self._session = None
        self._ask("Browser.close")

    def _ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        self._to.write(json.dumps(message).encode() + b"\0")
        self._to.flush()
        while True:
            answer = self._take()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return dict(answer["result"])

    def _take(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            more = self._answers.read1(1 << 16)
            assert more, "the browser went away"
            self._rest += more
        one, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(one)
        if "method" in message:
            self.happened.append(message)
        return message


@contextmanager
def browsing(program: str, profile: Path) -> Iterator[Browser]:
    """The browser reads what it is told from its file 3, and answers on its file 4."""
    reads, to = os.pipe()
    answers, writes = os.pipe()
    # Away from the numbers that they are to have in the end.
    told, tells = (fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, FAR) for fd in (reads, writes))
    os.close(reads)
    os.close(writes)
    command = [program, *OPTIONS, f"--user-data-dir={profile}", "about:blank"]
    script = f'exec "$@" 3<&{told} 4>&{tells} {told}<&- {tells}>&-'
    process = subprocess.Popen(
        ["bash", "-c", script, "bash", *command],
        pass_fds=(told, tells),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(told)
    os.close(tells)
    browser = Browser(to, answers)
    try:
        yield browser
        browser.close()
        process.wait(timeout=30)
    finally:
        process.kill()
        process.wait()
        browser.let_go()
