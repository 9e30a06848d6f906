"""A queue from a shell: jobs from lines of text, one done, one failed, and the story of the one that failed.

Each command is what you would type; here they run one after the other in processes of their own.

    python examples/command_line.py
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile


def casque(*arguments: str, told: str = "") -> str:
    """Like typing `casque ...` into a shell, perhaps with something piped into it."""
    command = [sys.executable, "-m", "casque.cli", *arguments]
    return subprocess.run(command, input=told, stdout=subprocess.PIPE, text=True, check=True).stdout


def main() -> None:
    # printf '...' | casque enqueue greet --lines
    print(casque("enqueue", "greet", "--lines", told="ann\nbob\n").strip())

    # casque dequeue --entrypoint greet --batch 2 --json
    claimed = casque("dequeue", "--entrypoint", "greet", "--batch", "2", "--json", "--worker", "shell")
    first, second = [json.loads(line) for line in claimed.splitlines()]
    print("claimed:", first["text"], "and", second["text"])

    casque("ack", first["id"], str(first["token"]), "--result", "hello, ann")
    casque("nack", second["id"], str(second["token"]), "--error", "who is bob?", "--delay", "1h")

    # casque jobs show ID
    print(casque("jobs", "show", second["id"]).splitlines()[-1])

    # casque top --once --json
    picture = json.loads(casque("top", "--once", "--json", "--interval", "0.1"))
    print("in all:", {state: number for state, number in picture["totals"].items() if number})


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        os.environ["CASQUE_URL"] = f"file://{directory}/queue"
        main()
