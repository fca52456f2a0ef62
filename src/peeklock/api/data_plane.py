"""The REST data plane in the OpenAPI document. Source: wire contract 8."""

from __future__ import annotations

from typing import Any

from peeklock.api.schema import record
from peeklock.rest.paths import Form
from peeklock.rest.sending import BATCH_TYPE


def _in_path(name: str, description: str, **schema: Any) -> dict[str, Any]:
    schema = {"type": "string", "minLength": 1, **schema}
    return {"name": name, "in": "path", "required": True, "description": description, "schema": schema}


_ENTITY = _in_path(
    "entity",
    "A queue, topic or subscription, or a dead-letter queue of one; slashes are not encoded.",
    examples=["orders"],
)
_TIMEOUT = {
    "name": "timeout",
    "in": "query",
    "description": "Seconds to wait for a message. Default and maximum: 60.",
    "schema": {"type": "integer", "minimum": 0, "maximum": 999_999_999},
}
_ID = _in_path("id", "Sequence number or message id of the message; it is not checked.")
_TOKEN = _in_path("token", "The token of the lock.")
_MESSAGE: dict[str, Any] = {"*/*": {"schema": {}}}
_PROBLEM: dict[str, Any] = {"application/xml": {"schema": {"type": "object"}}}
_MEANINGS = {
    400: "A value is invalid.",
    401: "The token is missing or invalid, or lacks the right.",
    403: "The message is too large, or the entity is full or disabled.",
    404: "There is no such lock.",
    405: "The path does not support this method, or the entity cannot be received from.",
    410: "There is no such entity.",
    413: "The body has too many chunks.",
    503: "The disk is nearly full, or the broker is busy or stopping.",
}

REFUSED_AT_ONCE = {
    "421": {"description": "The broker asks for no key, and the host is none of its names."},
    "431": {"description": "The head of the request is too large."},
}
"""Any request may be refused with these, before its path is looked at."""

_PATHS = {
    Form.MESSAGES: "/{entity}/messages",
    Form.HEAD: "/{entity}/messages/head",
    Form.LOCK: "/{entity}/messages/{id}/{token}",
}
_PARAMETERS: dict[Form, list[dict[str, Any]]] = {
    Form.MESSAGES: [_ENTITY],
    Form.HEAD: [_ENTITY, _TIMEOUT],
    Form.LOCK: [_ENTITY, _ID, _TOKEN],
}
_MEMBER = record(
    {
        "Body": {"type": "string"},
        "BrokerProperties": {"type": "object"},
        "UserProperties": {"type": "object"},
    },
    (),
)
_BATCH = {"type": "array", "minItems": 1, "maxItems": 4500, "items": _MEMBER}


def _responses(done: dict[int, tuple[str, bool]], *refused: int) -> dict[str, Any]:
    """Describe answers; `done`: status -> text, and whether a message comes with it."""
    return {
        **{
            str(status): {"description": text, **({"content": _MESSAGE} if has_message else {})}
            for status, (text, has_message) in done.items()
        },
        **{str(status): {"description": _MEANINGS[status], "content": _PROBLEM} for status in refused},
        **REFUSED_AT_ONCE,
    }


def _on_lock(operation_id: str, summary: str, done: str) -> dict[str, Any]:
    responses = _responses({200: (done, False)}, 400, 401, 403, 404, 410, 503)
    return {"operationId": operation_id, "summary": summary, "responses": responses}


_OPERATIONS: dict[tuple[Form, str], dict[str, Any]] = {
    (Form.MESSAGES, "POST"): {
        "operationId": "restSend",
        "summary": "Send a message, or several",
        "description": "The header BrokerProperties has the system properties as JSON; other headers are "
        "application properties.",
        "requestBody": {
            "content": {"text/plain": {"schema": {"type": "string"}}, BATCH_TYPE: {"schema": _BATCH}}
        },
        "responses": _responses({201: ("Stored.", False)}, 400, 401, 403, 410, 413, 503),
    },
    (Form.HEAD, "POST"): {
        "operationId": "restLock",
        "summary": "Lock the next message",
        "responses": _responses(
            {201: ("The message; Location is the address of its lock.", True), 204: ("None came.", False)},
            *(400, 401, 403, 405, 410, 503),
        ),
    },
    (Form.HEAD, "DELETE"): {
        "operationId": "restReceiveAndDelete",
        "summary": "Receive and delete the next message",
        "responses": _responses(
            {200: ("The message.", True), 204: ("None came.", False)}, 400, 401, 403, 405, 410, 503
        ),
    },
    (Form.LOCK, "POST"): _on_lock("restRenew", "Renew a lock", "Renewed."),
    (Form.LOCK, "PUT"): _on_lock("restAbandon", "Abandon a message", "Abandoned."),
    (Form.LOCK, "DELETE"): _on_lock("restComplete", "Complete a message", "Completed."),
}

PATHS: dict[str, dict[str, Any]] = {
    path: {
        method.lower(): {**_OPERATIONS[form, method], "parameters": _PARAMETERS[form]}
        for method in form.value.split(", ")
    }
    for form, path in _PATHS.items()
}
"""For the OpenAPI document. A method of `Form` without a description fails here."""
