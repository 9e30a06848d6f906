"""Large bodies at once: 8 jobs of 48 MiB as base64, then one array of millions of small jobs, which is refused."""

from __future__ import annotations

import base64
import threading

from benchmarks.attacks.http_victim import Bystander, victim

BODIES = 8
PAYLOAD = 48 * 1024 * 1024
MANY = 3_000_000


def main() -> None:
    with victim() as attacked:
        large = b'{"entrypoint":"a","payload":"%s"}' % base64.b64encode(bytes(PAYLOAD))
        many = b"[" + b",".join([b'{"entrypoint":"a"}'] * MANY) + b"]"
        headers = b'{"entrypoint":"a","headers":{' + b",".join(b'"%d":""' % n for n in range(MANY)) + b"}}"
        deep = b'{"entrypoint":"a","payload_json":' + b"[" * MANY + b"]" * MANY + b"}"
        for name, bodies in (
            (f"{BODIES} bodies of {len(large) // 2**20} MiB", [large] * BODIES),
            (f"an array of {MANY:,} jobs", [many]),
            (f"{MANY:,} headers", [headers]),
            (f"JSON {MANY:,} deep", [deep]),
        ):
            answers: list[object] = []

            def attack(body: bytes, answers: list[object] = answers) -> None:
                try:
                    answers.append(attacked.ask("POST", "/v1/jobs", body)[0])
                except OSError as error:
                    answers.append(type(error).__name__)

            threads = [threading.Thread(target=attack, args=(body,)) for body in bodies]
            with Bystander(attacked) as bystander:
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
            print(f"bodies: {name}: answers {sorted(map(str, answers))}; {bystander.told()}")


if __name__ == "__main__":
    main()
