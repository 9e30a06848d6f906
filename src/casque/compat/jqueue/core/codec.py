"""A state as indented JSON, and back. The queues themselves use casque's own codec, which writes a superset."""

from __future__ import annotations

from casque.compat.jqueue.domain.models import QueueState


def encode(state: QueueState) -> bytes:
    return state.model_dump_json(indent=2).encode()


def decode(data: bytes) -> QueueState:
    """Empty bytes are an empty state. Fields that only casque writes are ignored."""
    return QueueState.model_validate_json(data) if data else QueueState()
