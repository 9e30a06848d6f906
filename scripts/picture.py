"""Draws the picture of the README, `docs/images/top.svg`: what `casque top` shows of a queue that is busy.

.venv/bin/python scripts/picture.py
"""

from __future__ import annotations

import asyncio
import io
import random
import re
import tempfile
from collections import deque
from pathlib import Path
from typing import Any

from rich.console import Console

import casque
from casque.cli.top.source import Watch, open_source
from casque.cli.top.view import draw
from casque.client.config import QueueConfig
from casque.worker import Worker

TARGET = Path(__file__).parents[1] / "docs" / "images" / "top.svg"
SHOWN_AS = "s3://bucket/orders"
WIDTH = 96
SAMPLES = 60
SAMPLE_S = 0.2

rng = random.Random(7)


def shop(url: str) -> tuple[casque.App, Any, Any]:
    app = casque.App(url)

    @app.job(backoff=[1, 10, 60])
    async def send_mail(to: str) -> None:
        await asyncio.sleep(rng.uniform(0.01, 0.05))
        if rng.random() < 0.02:
            raise ConnectionError(f"the mail server of {to} does not answer")

    @app.job(max_attempts=1)
    async def resize_image(name: str) -> None:
        await asyncio.sleep(rng.uniform(0.05, 0.2))
        if rng.random() < 0.01:
            raise ValueError(f"{name} is not an image")

    @app.cron("*/5 * * * *")
    @app.job()
    async def close_day() -> None: ...

    return app, send_mail, resize_image


async def produce(app: casque.App, send_mail: Any, resize_image: Any) -> None:
    while True:
        mails = [send_mail.bind(f"user{rng.randrange(1000)}") for _ in range(rng.randrange(120))]
        images = [resize_image.bind(f"{rng.randrange(1000)}.png") for _ in range(rng.randrange(14))]
        await app.enqueue_many([*mails, *images])
        await asyncio.sleep(0.1)


async def watched(url: str) -> str:
    app, *functions = shop(url)
    workers = [Worker(shop(url)[0], concurrency=8) for _ in range(2)]
    for worker, name in zip(workers, ("worker-1", "worker-2"), strict=True):
        worker.name = name
    async with app:
        tasks = [asyncio.create_task(one) for one in (produce(app, *functions), *(worker.run() for worker in workers))]
        await asyncio.sleep(1)  # until there is a queue
        depths: deque[int] = deque(maxlen=SAMPLES)
        async with Watch(await open_source(QueueConfig(url)), SHOWN_AS) as watch:
            for _ in range(SAMPLES):
                await asyncio.sleep(SAMPLE_S)
                picture = await watch.look()
                depths.append(picture.totals.ready)
        for worker in workers:
            worker.stop()
        tasks[0].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    console.print(draw(picture, list(depths), width=WIDTH, height=24))
    drawn = console.export_svg(title=f"casque top {SHOWN_AS}")
    return without_remote_fonts(drawn)


def without_remote_fonts(svg: str) -> str:
    """The picture in the reader's own monospaced font: rich's style sheet would fetch one from another host."""
    return re.sub(r"\s*@font-face \{.*?\}", "", svg, flags=re.DOTALL)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        drawn = asyncio.run(watched(Path(folder).as_uri()))
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    TARGET.write_text(drawn)
    print(f"wrote {TARGET}")


if __name__ == "__main__":
    main()
