"""A queue of 60,000 zones: everybody lists them and claims from any, again and again."""

from __future__ import annotations

import sys
import threading

from benchmarks.attacks.http_victim import Bystander, let_pass, victim

ZONES = 60_000
CALLERS = 4
WATCHED_S = 10.0


def main(seconds: float = WATCHED_S) -> None:
    with victim() as attacked:
        for start in range(0, ZONES, 5_000):
            jobs = [{"entrypoint": f"e{n % 50}", "zone": f"zone-{n}"} for n in range(start, start + 5_000)]
            status, _ = attacked.ask("POST", "/v1/jobs", jobs)
            assert status == 200, status
        for path, body in (
            ("/v1/zones?limit=1000", None),
            ("/v1/zones/peek?limit=1000", None),
            ("/v1/jobs/claim", {"limit": 1}),
            ("/v1/jobs/claim", {"limit": 1000}),
        ):
            over = threading.Event()
            answered: list[int] = []

            def attack(path: str = path, body: object = body, over: threading.Event = over) -> None:
                while not over.is_set():
                    answered.append(attacked.ask("GET" if body is None else "POST", path, body)[0])  # noqa: B023

            threads = [threading.Thread(target=attack, daemon=True) for _ in range(CALLERS)]
            with Bystander(attacked) as bystander:
                for thread in threads:
                    thread.start()
                let_pass(seconds / 4)
                over.set()
                for thread in threads:
                    thread.join()
            print(f"zones: {path} {body or ''}: {len(answered)} answers; {bystander.told()}")


if __name__ == "__main__":
    main(*map(float, sys.argv[1:2]))
