"""The OpenAPI document, generated from the routes and message types, so that it is never out of date."""

from __future__ import annotations

from http import HTTPStatus
from itertools import combinations
from typing import Any

import msgspec

from casque.errors import CasqueError
from casque.service import Standing
from casque.transport.errors import TABLE, WireError
from casque.transport.http.route import EVENTS, JSON, Route
from casque.transport.http.routes import COMMON, ROUTES

TEMPLATE = "#/components/schemas/{name}"
SCHEME = {"bearer": {"type": "http", "scheme": "bearer"}}

# Rules that types cannot express: fields that exclude each other.
EXCLUSIVE = {
    "NewJob": (("payload", "payload_text", "payload_json"), ("delay", "run_at")),
    "NewSchedule": (("payload", "payload_text", "payload_json"),),
    "AckRequest": (("result", "result_text", "result_json"),),
    "OutcomeOf": (("error", "result", "result_text", "result_json"),),
}
# And fields that require another one.
NEEDS = {"OutcomeOf": {"backoff": ["error"], "final": ["error"]}}


def _how(how: str, *excluded: str) -> dict[str, Any]:
    """Fields that an outcome of this kind must not have."""
    kind = {"required": ["how"], "properties": {"how": {"const": how}}}
    return {"not": {**kind, "anyOf": [{"required": [field]} for field in excluded]}}


def _set(field: str, kind: str) -> dict[str, Any]:
    """The field is there, and is not null."""
    return {"required": [field], "properties": {field: {"type": kind}}}


_RESULTS = ("result", "result_text", "result_json")
RULES: dict[str, list[dict[str, Any]]] = {
    "OutcomeOf": [
        {"if": {"required": ["delay"]}, "then": {"anyOf": [{"required": ["error"]}, {"required": ["how"]}]}},
        {"not": {"required": ["how"], "properties": {"how": {"const": "crashed"}}, "not": {"required": ["error"]}}},
        {"not": {"required": ["how"], "properties": {"how": {"const": "declined"}}, "not": {"required": ["error"]}}},
        _how("declined", *_RESULTS, "backoff", "final"),
        _how("snoozed", "error", *_RESULTS, "backoff", "final"),
        _how("cancelled", *_RESULTS, "delay", "backoff", "final"),
    ],
    "Claim": [
        # One may be null when the other is set.
        {
            "not": {
                "required": ["zones", "zone_lease"],
                "properties": {"zones": {"type": "array"}, "zone_lease": {"type": "object"}},
            }
        }
    ],
    "RescheduleRequest": [
        {"anyOf": [_set("run_at", "string"), _set("priority", "integer")]},
    ],
}
"""Rules for outcomes other than done and failed, for a claim with a zone lease, and for a reschedule of nothing."""


def describe(routes: tuple[Route, ...] = ROUTES, *, version: str, needs_token: bool) -> dict[str, Any]:
    types = [kind for route in routes for kind in (route.body, route.answer) if kind is not None]
    schemas, components = msgspec.json.schema_components([*types, WireError, Standing], ref_template=TEMPLATE)
    found = iter(schemas)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        body = next(found) if route.body is not None else None
        answer = next(found) if route.answer is not None else None
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, body, answer)
    paths |= _monitoring()
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "casque", "version": version, "summary": "A durable job queue whose storage is a bucket"},
        "paths": paths,
        "components": {"schemas": _completed(components), "securitySchemes": SCHEME},
    }
    if needs_token:
        document["security"] = [{"bearer": []}]
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(document))  # defaults may be tuples
    return plain


def _operation(route: Route, body: dict[str, Any] | None, answer: dict[str, Any] | None) -> dict[str, Any]:
    operation: dict[str, Any] = {"operationId": route.verb, "summary": route.summary}
    if parameters := [*_path(route), *_query(route), *_headers(route)]:
        operation["parameters"] = parameters
    if body is not None:
        # With `body_optional` an empty body is fine, too, but still needs a Content-Type, which a schema cannot
        # express.
        operation["requestBody"] = {"required": True, "content": {JSON: {"schema": body}}}
    operation["responses"] = _success(route, answer) | _refusals(route)
    return operation


def _path(route: Route) -> list[dict[str, Any]]:
    if "{id}" not in route.path:
        return []
    return [{"name": "id", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}]


def _query(route: Route) -> list[dict[str, Any]]:
    if route.query is None:
        return []
    _, components = msgspec.json.schema_components([route.query], ref_template=TEMPLATE)
    properties = components[route.query.__name__]["properties"]
    return [{"name": name, "in": "query", "schema": schema} for name, schema in properties.items()]


def _headers(route: Route) -> list[dict[str, Any]]:
    headers = []
    if route.repeatable:
        headers.append(
            {
                "name": "Idempotency-Key",
                "in": "header",
                "description": "A name for this request, percent-encoded: sent again under the same name, it acts once",
                "schema": {"type": "string", "minLength": 1, "maxLength": 256, "pattern": "^[!-~]([ -~]*[!-~])?$"},
            }
        )
    if route.resumable:
        headers.append(
            {
                "name": "Last-Event-ID",
                "in": "header",
                "description": "The id of the last event that was seen: go on behind it",
                "schema": {"type": "string", "pattern": r"^[0-9]{1,19}(\.[0-9]{1,19})?$"},
            }
        )
    return headers


def _success(route: Route, answer: dict[str, Any] | None) -> dict[str, Any]:
    if answer is None:
        return {"204": {"description": "Done"}}
    content = {"schema": _piece(route, answer)}
    described = "Events, for as long as the connection lasts" if route.media == EVENTS else "The answer"
    return {"200": {"description": described, "content": {route.media: content}}}


def _piece(route: Route, answer: dict[str, Any]) -> dict[str, Any]:
    """Describe one piece of a stream; a generic reader of lines has only text."""
    if route.media == JSON:
        return answer
    if route.media == EVENTS:
        # Besides events: the error that ended the feed, and the end marker.
        others = [{"$ref": TEMPLATE.format(name="WireError")}, {"type": "object", "maxProperties": 0}]
        data = _json_text({"anyOf": [answer, *others]})
        properties = {"id": {"type": "string"}, "event": {"type": "string"}, "data": data}
        return {"type": "object", "required": ["data"], "properties": properties}
    return _json_text(answer)


def _json_text(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "string", "contentMediaType": JSON, "contentSchema": schema}


def _refusals(route: Route) -> dict[str, Any]:
    by_status: dict[int, list[str]] = {}
    for kind in (*COMMON, *route.refusals):
        by_status.setdefault(_status(kind), []).append(kind.__name__)
    if route.body is not None:
        by_status[413] = by_status[415] = ["InvalidInputError"]
    return {str(status): _error(status, names) for status, names in sorted(by_status.items())}


def _error(status: int, names: list[str]) -> dict[str, Any]:
    return {
        "description": f"{HTTPStatus(status).phrase}: {', '.join(names)}",
        "content": {JSON: {"schema": {"$ref": TEMPLATE.format(name="WireError")}}},
    }


def _status(kind: type[CasqueError]) -> int:
    return TABLE[kind][1]


def _monitoring() -> dict[str, Any]:
    text = {"text/plain": {"schema": {"type": "string"}}}
    standing = {JSON: {"schema": {"$ref": TEMPLATE.format(name="Standing")}}}
    return {
        "/healthz": {
            "get": {
                "operationId": "healthz",
                "summary": "The process is alive",
                "security": [],
                "responses": {"200": {"description": "It is", "content": text}},
            }
        },
        "/readyz": {
            "get": {
                "operationId": "readyz",
                "summary": "This broker leads, or stands by and knows who does",
                "security": [],
                "responses": {
                    "200": {"description": "Ready", "content": standing},
                    "503": {"description": "Not ready; `problem` says why", "content": standing},
                },
            }
        },
        "/metrics": {
            "get": {
                "operationId": "metrics",
                "summary": "Numbers for Prometheus",
                "security": [],
                "responses": {"200": {"description": "The numbers", "content": text}},
            }
        },
    }


def _completed(components: dict[str, Any]) -> dict[str, Any]:
    for name in EXCLUSIVE | RULES:
        pairs = [pair for group in EXCLUSIVE.get(name, ()) for pair in combinations(group, 2)]
        rules: list[dict[str, Any]] = [{"not": {"required": list(pair)}} for pair in pairs]
        components[name]["allOf"] = rules + RULES.get(name, [])
    for name, needs in NEEDS.items():
        components[name]["dependentRequired"] = needs
    for component in components.values():
        for name, schema in component.get("properties", {}).items():
            if name == "at" or name.endswith("_at"):
                for one in schema.get("anyOf", [schema]):
                    if one["type"] == "string":
                        one["format"] = "date-time"  # msgspec sets it only for times that must have a time zone
    return components
