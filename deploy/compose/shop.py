"""The app of docker-compose.yml: replace it by yours. The queue is that of CASQUE_URL."""

from __future__ import annotations

import casque

app = casque.App()


@app.job(max_attempts=5)
async def greet(name: str) -> str:
    return f"hello {name}"
