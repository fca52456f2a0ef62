"""The operator's pages in the OpenAPI document; `server.net.operator_pages` serves them."""

from __future__ import annotations

from typing import Any

from peeklock.api.connections import CONNECTION
from peeklock.api.exchange import JSON, PROBLEM
from peeklock.api.schema import Schema, record, ref

_MEANINGS = {
    400: "A value of the query is wrong or missing.",
    401: "The key is missing or wrong.",
    403: "The key lacks the right.",
    404: "No open connection has this id.",
    409: "The keys do not allow it, or this broker has none of its own.",
    421: "The broker asks for no key, and the host is none of its names.",
}
_STATUS: Schema = {
    "type": "object",
    "required": ["status"],
    "properties": {"status": {"type": "string"}},
    "additionalProperties": True,
}
_KEYS: list[dict[str, list[str]]] = [{"token": []}, {"basic": []}]
SECURITY = {
    "basic": {
        "type": "http",
        "scheme": "basic",
        "description": "The name of a key and the key, for the operator's pages.",
    }
}


def _answer(text: str, schema: Schema | None = None) -> dict[str, Any]:
    return {"description": text, **({} if schema is None else {"content": {JSON: {"schema": schema}}})}


def _probe(operation_id: str, summary: str, good: str, bad: str, description: str) -> dict[str, Any]:
    return {
        "get": {
            "operationId": operation_id,
            "summary": summary,
            "description": description,
            "security": [{}, *_KEYS],
            "responses": {"200": _answer(good, _STATUS), "503": _answer(bad, _STATUS)},
        }
    }


def _refusals(*statuses: int) -> dict[str, Any]:
    return {
        str(status): {
            "description": _MEANINGS[status],
            **({} if status == 421 else {"content": {PROBLEM: {"schema": ref("Problem")}}}),
        }
        for status in statuses
    }


def _metrics(operation_id: str, summary: str, parameters: list[dict[str, Any]]) -> dict[str, Any]:
    text = {"text/plain": {"schema": {"type": "string"}}}
    return {
        "get": {
            "operationId": operation_id,
            "summary": summary,
            "description": "Needs a key with any right on the namespace. Answers OpenMetrics if asked.",
            "security": _KEYS,
            "parameters": parameters,
            "responses": {
                "200": {"description": "The series, in Prometheus's text.", "content": text},
                **_refusals(401, 403, 421),
            },
        }
    }


_TEXT: Schema = {"type": "string"}
_TEXTS: Schema = {"type": "array", "items": _TEXT}
_RULE = record({"name": _TEXT, "rights": _TEXTS, "primaryKey": _TEXT, "secondaryKey": _TEXT})


def _key(
    operation_id: str,
    summary: str,
    status: str,
    answer: dict[str, Any],
    parameter: dict[str, Any] | None,
    description: str,
) -> dict[str, Any]:
    name = {"name": "name", "in": "path", "required": True, "schema": _TEXT}
    return {
        "operationId": operation_id,
        "summary": summary,
        "description": description,
        "security": _KEYS,
        "parameters": [name] if parameter is None else [name, parameter],
        "responses": {status: answer, **_refusals(400, 401, 403, 409, 421)},
    }


PATHS: dict[str, dict[str, Any]] = {
    "/live": _probe(
        "showLive",
        "Show whether the broker lives",
        "It lives.",
        "It should be restarted; `status` says why.",
        "Needs no key.",
    ),
    "/ready": _probe(
        "showReady",
        "Show whether the broker takes sends and receives",
        "It does. `limited` says why sends alone are refused.",
        "Clients should go elsewhere; `status` says why.",
        "Needs no key.",
    ),
    "/health": _probe(
        "showHealth",
        "Show the status, and figures",
        "All is well.",
        "`status` says what is wrong.",
        "The status needs no key, the figures one with any right on the namespace.",
    ),
    "/metrics": _metrics("showMetrics", "Show the totals of the namespace", []),
    "/metrics/entities": _metrics(
        "showEntityMetrics",
        "Show the series of each entity",
        [
            {
                "name": "match",
                "in": "query",
                "description": "A regular expression for the names of the entities.",
                "schema": {"type": "string"},
            }
        ],
    ),
    "/connections": {
        "get": {
            "operationId": "listConnections",
            "summary": "List the open AMQP connections",
            "description": "Needs Manage on the namespace. Takes a second: the rates are of that second.",
            "security": _KEYS,
            "responses": {
                "200": _answer(
                    "The connections.", record({"connections": {"type": "array", "items": CONNECTION}})
                ),
                **_refusals(401, 403, 421),
            },
        }
    },
    "/$api/v1/config": {
        "get": {
            "operationId": "showConfig",
            "summary": "Show the entities and rules as a Config.json",
            "description": "Needs Manage on the namespace. `warnings` say what the file lacks.",
            "security": _KEYS,
            "responses": {
                "200": _answer("The file, as text.", record({"config": _TEXT, "warnings": _TEXTS})),
                **_refusals(401, 403, 421),
            },
        }
    },
    "/$api/v1/keys": {
        "get": {
            "operationId": "listKeys",
            "summary": "List the shared access keys of the namespace",
            "description": "Needs Manage on the namespace.",
            "security": _KEYS,
            "responses": {
                "200": _answer(
                    "The rules and their keys.", record({"keys": {"type": "array", "items": _RULE}})
                ),
                **_refusals(401, 403, 409, 421),
            },
        }
    },
    "/$api/v1/keys/{name}": {
        "put": _key(
            "addKey",
            "Add a rule with two new keys",
            "201",
            _answer("The new rule.", _RULE),
            {"name": "rights", "in": "query", "required": True, "schema": _TEXT},
            "Needs Manage on the namespace. `rights` are Send, Listen or Manage, separated by commas.",
        ),
        "post": _key(
            "rotateKey",
            "Give a rule a new primary key",
            "200",
            _answer("The rule with its new keys.", _RULE),
            {"name": "revoke", "in": "query", "schema": {"type": "boolean"}},
            "Needs Manage on the namespace. The old primary key becomes the secondary key; with `revoke` "
            "both are new.",
        ),
        "delete": _key(
            "removeKey",
            "Remove a rule",
            "200",
            _answer("What was removed.", record({"removed": _TEXT, "lastWithManage": {"type": "boolean"}})),
            None,
            "Needs Manage on the namespace. Links that its keys have opened are detached.",
        ),
    },
    "/connections/{id}": {
        "delete": {
            "operationId": "closeConnection",
            "summary": "Close a connection",
            "description": "Needs Manage on the namespace. The client gets `amqp:connection:forced`, and may "
            "connect again.",
            "security": _KEYS,
            "parameters": [{"name": "id", "in": "path", "required": True, "schema": {"type": "integer"}}],
            "responses": {"204": _answer("It is being closed."), **_refusals(401, 403, 404, 421)},
        }
    },
}
