"""The tokens of claimed jobs, for verbs that name a job by its id alone."""

from __future__ import annotations

from collections.abc import Iterable

from casque.client.job import Job

CLAIMS_MAX = 100_000
"""Claims that are remembered at once. A job that is neither acked nor nacked would otherwise stay here for ever."""


class Claims:
    """What one queue object has claimed and not settled.

    A job that this object claims twice, because the first claim ran out, has the token of the second.
    """

    def __init__(self) -> None:
        self._tokens: dict[str, int] = {}

    def remember(self, jobs: Iterable[Job[bytes]]) -> None:
        for job in jobs:
            self._tokens.pop(job.id, None)  # so that it counts as new
            self._tokens[job.id] = job.token
        while len(self._tokens) > CLAIMS_MAX:
            del self._tokens[next(iter(self._tokens))]

    def token_of(self, job_id: str) -> int | None:
        """None for a job that was not claimed here: it is then named by its id alone, as in jqueue."""
        return self._tokens.get(job_id)

    def forget(self, job_id: str, token: int | None) -> None:
        """The claim is settled. A later one of the same job stays."""
        if token is not None and self._tokens.get(job_id) == token:
            del self._tokens[job_id]
