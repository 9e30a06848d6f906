"""Decodes large bodies in pieces: checks their shape first, and yields to other tasks in between.

Decoding an array of millions of jobs, or one job with millions of headers, in a single call would block all other
requests for seconds, only to be refused afterwards. So the shape is checked first, which costs almost nothing.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from casque.clock import yield_once
from casque.errors import InvalidInputError
from casque.transport.http.messages import NewJob, OutcomeOf, SettleRequest
from casque.transport.limits import DEFAULT_LIMITS

LARGE = 1024 * 1024
"""Smaller bodies are decoded at once."""
PIECE = 256 * 1024
SMALL_FIELD = 256 * 1024
"""Bound on fields other than payloads and results: above any size that is accepted for them."""
_LARGE_FIELDS = frozenset({"payload", "payload_text", "payload_json", "result", "result_text", "result_json", "error"})


def _of_raws(kind: type) -> type[msgspec.Struct]:
    """A struct with the same fields, none of them decoded."""
    fields = [(field.name, Raw | UnsetType, UNSET) for field in msgspec.structs.fields(kind)]
    return msgspec.defstruct(f"Raw{kind.__name__}", fields, forbid_unknown_fields=True)


def _elements_decoder(most: int) -> msgspec.json.Decoder[Any]:
    """Decoder for an array of at most `most` elements; a longer one fails at the first element too many."""
    fields = [(f"element_{n}", Raw | UnsetType, UNSET) for n in range(most)]
    return msgspec.json.Decoder(
        msgspec.defstruct("Elements", fields, array_like=True, forbid_unknown_fields=True, gc=False)
    )


class _Elements:
    def __init__(self, kind: type, most: int) -> None:
        self._most = most
        self._array: msgspec.json.Decoder[Any] | None = None
        self._shape = msgspec.json.Decoder(_of_raws(kind))
        self._element: msgspec.json.Decoder[Any] = msgspec.json.Decoder(kind)

    async def decode(self, raw: bytes | Raw) -> list[Any]:
        if self._array is None:
            self._array = _elements_decoder(self._most)
        elements = [one for one in msgspec.structs.astuple(self._array.decode(raw)) if one is not UNSET]
        await yield_once()
        decoded: list[Any] = []
        size = 0
        for element in elements:
            decoded.append(await self.decode_one(element))
            size += len(memoryview(element))
            if size > PIECE:
                size = 0
                await yield_once()
        return decoded

    async def decode_one(self, raw: bytes | Raw) -> Any:
        if len(memoryview(raw)) > SMALL_FIELD:
            shape = self._shape.decode(raw)
            for name in shape.__struct_fields__:
                value = getattr(shape, name)
                if name not in _LARGE_FIELDS and value is not UNSET and len(memoryview(value)) > SMALL_FIELD:
                    raise InvalidInputError(f"{name} is longer than any that is accepted")
            await yield_once()
        return self._element.decode(raw)


_JOBS = _Elements(NewJob, DEFAULT_LIMITS.jobs_per_enqueue)
_OUTCOMES = _Elements(OutcomeOf, DEFAULT_LIMITS.outcomes_per_settle)
_SETTLE = msgspec.json.Decoder(_of_raws(SettleRequest))


async def decode_jobs(raw: bytes) -> NewJob | list[NewJob]:
    """Raises InvalidInputError or one of msgspec's."""
    if raw.lstrip(b" \t\r\n")[:1] == b"[":
        return await _JOBS.decode(raw)
    job: NewJob = await _JOBS.decode_one(raw)
    return job


async def decode_outcomes(raw: bytes) -> SettleRequest:
    shape: Any = _SETTLE.decode(raw)
    if shape.outcomes is UNSET:
        raise InvalidInputError("the body does not fit: outcomes is missing")
    return SettleRequest(await _OUTCOMES.decode(shape.outcomes))
