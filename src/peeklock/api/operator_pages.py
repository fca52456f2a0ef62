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
    404: "There is no such connection, or no such namespace here.",
    409: "The keys do not allow it, or this broker has none of its own.",
    421: "The broker asks for no key, and the host is none of its names.",
}
_STATUS: Schema = {
    "type": "object",
    "required": ["status"],
    "properties": {"status": {"type": "string"}},
    "additionalProperties": True,
}
KEYS: list[dict[str, list[str]]] = [{"token": []}, {"basic": []}]
SECURITY = {
    "basic": {
        "type": "http",
        "scheme": "basic",
        "description": "The name of a key and the key, for the operator's pages.",
    }
}


def answer(text: str, schema: Schema | None = None) -> dict[str, Any]:
    """Return a response of an operation: what it means, and the form of its JSON."""
    return {"description": text, **({} if schema is None else {"content": {JSON: {"schema": schema}}})}


def _probe(operation_id: str, summary: str, good: str, bad: str, description: str) -> dict[str, Any]:
    return {
        "get": {
            "operationId": operation_id,
            "summary": summary,
            "description": description,
            "security": [{}, *KEYS],
            "responses": {"200": answer(good, _STATUS), "503": answer(bad, _STATUS)},
        }
    }


def refusals(*statuses: int) -> dict[str, Any]:
    """Return the responses of an operation by status, each with what that means everywhere."""
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
            "security": KEYS,
            "parameters": parameters,
            "responses": {
                "200": {"description": "The series, in Prometheus's text.", "content": text},
                **refusals(401, 403, 421),
            },
        }
    }


TEXT: Schema = {"type": "string"}
TEXTS: Schema = {"type": "array", "items": TEXT}
_RULE = record({"name": TEXT, "rights": TEXTS, "primaryKey": TEXT, "secondaryKey": TEXT})


def named(
    operation_id: str,
    summary: str,
    description: str,
    answers: dict[str, Any],
    *statuses: int,
    security: list[dict[str, list[str]]] = KEYS,
    parameters: tuple[dict[str, Any], ...] = (),
    body: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Return an operation on what `{name}` in its path names; `statuses`: of further refusals."""
    name = {"name": "name", "in": "path", "required": True, "schema": TEXT}
    return {
        "operationId": operation_id,
        "summary": summary,
        "description": description,
        "security": security,
        "parameters": [name, *parameters],
        **({} if body is None else {"requestBody": body}),
        "responses": {**answers, **refusals(*sorted((401, 403, 421, *statuses)))},
    }


_NAMESPACE = record(
    {
        "name": TEXT,
        "kind": {"type": "string", "enum": ["default", "configured", "dropped", "created", "throw-away"]},
        "durability": TEXT,
        "connections": {
            "type": ["integer", "null"],
            "description": "In a cluster null for a namespace that another node owns.",
        },
        "tier": TEXT,
        "properties": {"type": "object", "additionalProperties": True},
        "lease": TEXT,
        "connectionString": TEXT,
    },
    ["name", "kind", "durability", "connections", "tier", "properties"],
)


OPEN = [{}, *KEYS]
"""In development mode no key is asked for."""


def _body(schema: Schema, *, required: bool) -> dict[str, Any]:
    return {"required": required, "content": {JSON: {"schema": schema}}}


_QUERY_LEASE = {"name": "lease", "in": "query", "description": "Such as PT10M.", "schema": TEXT}
_QUERY_NAME = {"name": "name", "in": "query", "description": "Default: a GUID.", "schema": TEXT}
_OBJECT: Schema = {"type": "object", "additionalProperties": True}

PATHS: dict[str, dict[str, Any]] = {
    "/$api/v1/namespaces": {
        "get": {
            "operationId": "listNamespaces",
            "summary": "List the namespaces of the process",
            "description": "Needs Manage. A namespace other than the default one shows itself alone.",
            "security": OPEN,
            "responses": {
                "200": answer(
                    "The namespaces.", record({"namespaces": {"type": "array", "items": _NAMESPACE}})
                ),
                **refusals(401, 403, 421),
            },
        },
        "post": {
            "operationId": "makeNamespace",
            "summary": "Make a throw-away namespace",
            "description": "In development mode anybody may; else it needs Manage on the default namespace, "
            "and `--throw-away`. It is in memory, and ends when nobody has used it for its lease. The body "
            "may be a Config.json, of which the first namespace counts.",
            "security": OPEN,
            "parameters": [_QUERY_NAME, _QUERY_LEASE],
            "requestBody": _body(_OBJECT, required=False),
            "responses": {
                "201": answer("The namespace, with its connection string.", _NAMESPACE),
                **refusals(400, 401, 403, 409, 421),
            },
        },
    },
    "/$api/v1/namespaces/{name}": {
        "get": named(
            "showNamespace",
            "Show a namespace",
            "Needs Manage.",
            {"200": answer("The namespace.", _NAMESPACE)},
            404,
            security=OPEN,
        ),
        "put": named(
            "createNamespace",
            "Create a namespace",
            "Needs Manage on the default namespace. It has a store and keys of its own, and is there after "
            "a restart. The body may be a Config.json, of which the first namespace counts, whatever its "
            "name.",
            {"201": answer("The namespace, with its connection string.", _NAMESPACE)},
            400,
            409,
            security=OPEN,
            body=_body(_OBJECT, required=False),
        ),
        "delete": named(
            "deleteNamespace",
            "Delete a namespace with all that is in it",
            "Needs Manage on the default namespace; for a throw-away one, Manage on it is enough. Its "
            "clients are told. One that the configuration file names cannot be deleted.",
            {"204": answer("It is gone.")},
            404,
            409,
            security=OPEN,
        ),
    },
    "/$api/v1/namespaces/{name}/reset": {
        "post": named(
            "resetNamespace",
            "Reset a namespace between two tests",
            "In development mode, and for throw-away namespaces. Messages, session states, schedules and ids "
            "for duplicate detection go. Entities and rules become what they were when it was made, unless "
            "`keep=entities`. Links stay, held locks are lost, sequence numbers go on.",
            {"204": answer("It is reset.")},
            400,
            404,
            409,
            security=OPEN,
            parameters=({"name": "keep", "in": "query", "schema": {"type": "string", "enum": ["entities"]}},),
        )
    },
    "/$api/v1/namespaces/{name}/clock": {
        "post": named(
            "moveClock",
            "Move the clock of a namespace forwards",
            "In development mode, and for throw-away namespaces. What falls due happens in order: locks "
            "lapse, scheduled messages are enqueued, messages expire. Tokens keep the real time.",
            {"200": answer("The new time.", record({"nowMs": {"type": "integer"}}))},
            400,
            404,
            409,
            security=OPEN,
            body=_body(record({"advance": TEXT}), required=True),
        )
    },
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
            "security": KEYS,
            "responses": {
                "200": answer(
                    "The connections.", record({"connections": {"type": "array", "items": CONNECTION}})
                ),
                **refusals(401, 403, 421),
            },
        }
    },
    "/$api/v1/config": {
        "get": {
            "operationId": "showConfig",
            "summary": "Show the entities and rules as a Config.json",
            "description": "Needs Manage on the namespace. `warnings` say what the file lacks.",
            "security": KEYS,
            "responses": {
                "200": answer(
                    "The file, as text.", record({"config": TEXT, "warnings": TEXTS, "tier": TEXT})
                ),
                **refusals(401, 403, 421),
            },
        }
    },
    "/$api/v1/connection-string": {
        "get": {
            "operationId": "showConnectionString",
            "summary": "Show a connection string of the namespace",
            "description": "Needs Manage on the namespace. It has a key with Manage, and the host that the "
            "broker listens on.",
            "security": KEYS,
            "responses": {
                "200": answer("The connection string.", record({"connectionString": TEXT})),
                **refusals(401, 403, 409, 421),
            },
        }
    },
    "/$api/v1/keys": {
        "get": {
            "operationId": "listKeys",
            "summary": "List the shared access keys of the namespace",
            "description": "Needs Manage on the namespace.",
            "security": KEYS,
            "responses": {
                "200": answer(
                    "The rules and their keys.", record({"keys": {"type": "array", "items": _RULE}})
                ),
                **refusals(401, 403, 409, 421),
            },
        }
    },
    "/$api/v1/keys/{name}": {
        "put": named(
            "addKey",
            "Add a rule with two new keys",
            "Needs Manage on the namespace. `rights` are Send, Listen or Manage, separated by commas.",
            {"201": answer("The new rule.", _RULE)},
            400,
            409,
            parameters=({"name": "rights", "in": "query", "required": True, "schema": TEXT},),
        ),
        "post": named(
            "rotateKey",
            "Give a rule a new primary key",
            "Needs Manage on the namespace. The old primary key becomes the secondary key; with `revoke` "
            "both are new.",
            {"200": answer("The rule with its new keys.", _RULE)},
            400,
            409,
            parameters=({"name": "revoke", "in": "query", "schema": {"type": "boolean"}},),
        ),
        "delete": named(
            "removeKey",
            "Remove a rule",
            "Needs Manage on the namespace. Links that its keys have opened are detached.",
            {
                "200": answer(
                    "What was removed.", record({"removed": TEXT, "lastWithManage": {"type": "boolean"}})
                )
            },
            400,
            409,
        ),
    },
    "/connections/{id}": {
        "delete": {
            "operationId": "closeConnection",
            "summary": "Close a connection",
            "description": "Needs Manage on the namespace. The client gets `amqp:connection:forced`, and may "
            "connect again.",
            "security": KEYS,
            "parameters": [{"name": "id", "in": "path", "required": True, "schema": {"type": "integer"}}],
            "responses": {"204": answer("It is being closed."), **refusals(401, 403, 404, 421)},
        }
    },
}
