"""The OpenAPI document of this API and of the REST data plane. Source: OpenAPI 3.1."""

from __future__ import annotations

from typing import Any

from peeklock import __version__
from peeklock.api import cluster_pages, operator_pages
from peeklock.api.data_plane import PATHS, REFUSED_AT_ONCE
from peeklock.api.exchange import EVENTS, JSON, LINES, PROBLEM
from peeklock.api.schema import Schema, ref
from peeklock.api.table import PATH_PARAMETERS, ROOT, Operation, Parameter, Table

PROBLEM_SCHEMA: Schema = {
    "type": "object",
    "description": "Why a request was refused. Source: RFC 9457.",
    "required": ["type", "title", "status", "detail", "trackingId"],
    "properties": {
        "type": {
            "type": "string",
            "format": "uri",
            "description": "The kind of refusal, such as `urn:peeklock:problem:message-lock-lost`.",
        },
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "What is wrong, with names and values."},
        "trackingId": {"type": "string", "description": "Also in the broker's log."},
    },
}

SHARED_PROBLEMS = (400, 401, 403, 503)
"""Statuses of refusals that all operations share."""

_MEANINGS = {
    400: "A value is invalid; the detail names it.",
    401: "The token is missing or invalid.",
    403: "The token lacks the right.",
    404: "There is no such entity, message or lock.",
    409: "The entity does not allow this, or is full or disabled.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    503: "The disk is nearly full, or the broker is busy or stopping; retry after `Retry-After`.",
}


_STREAMS: dict[str, Schema] = {
    EVENTS: {"description": "Server-sent events, each with a JSON object as its data."},
    LINES: {"description": "A JSON object a line."},
}


def document(table: Table) -> dict[str, Any]:
    """Return the document."""
    paths: dict[str, dict[str, Any]] = {}
    for operation in table.operations:
        paths.setdefault(ROOT + operation.path, {})[operation.method.lower()] = _described(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "peeklock over HTTP",
            "version": __version__,
            "description": "`/$api/v1/` and the operator's pages are peeklock's own; the rest is Azure "
            "Service Bus's REST data plane.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": {**paths, **operator_pages.PATHS, **cluster_pages.PATHS, **PATHS},
        "components": {
            "schemas": {**table.named, "Problem": PROBLEM_SCHEMA},
            "securitySchemes": {
                "token": {
                    "type": "apiKey",
                    "in": "header",
                    "name": "Authorization",
                    "description": "A shared access signature, or `Bearer` and a JSON web token.",
                },
                **operator_pages.SECURITY,
            },
        },
        "security": [{"token": []}],
    }


def problems_of(operation: Operation) -> list[int]:
    """Return the statuses of an operation's refusals."""
    found = {*SHARED_PROBLEMS, *operation.problems}
    if operation.body is not None:
        found |= {413, 415}
    return sorted(found)


def _described(operation: Operation) -> dict[str, Any]:
    names = [part[1:-1] for part in operation.path.split("/") if part.startswith("{")]
    parameters = [
        *(_parameter(PATH_PARAMETERS[name], "path") for name in names),
        *(_parameter(parameter, "query") for parameter in operation.query),
        *(_parameter(parameter, "header") for parameter in operation.headers),
    ]
    answer: dict[str, Any] = {"description": operation.summary}
    if operation.streams:
        answer["content"] = {kind: {"schema": _STREAMS[kind]} for kind in operation.answer_types}
    elif operation.answer is not None:
        answer["content"] = {JSON: {"schema": operation.answer}}
    refused = {PROBLEM: {"schema": ref("Problem")}}
    found: dict[str, Any] = {
        "operationId": operation.id,
        "summary": operation.summary,
        "responses": {
            str(operation.status): answer,
            **{
                str(status): {"description": _MEANINGS[status], "content": refused}
                for status in problems_of(operation)
            },
            **REFUSED_AT_ONCE,
        },
    }
    if operation.description:
        found["description"] = operation.description
    if parameters:
        found["parameters"] = parameters
    if operation.body is not None:
        found["requestBody"] = {
            "required": operation.body_required,
            "content": {JSON: {"schema": operation.body}},
        }
    return found


def _parameter(parameter: Parameter, place: str) -> dict[str, Any]:
    return {
        "name": parameter.name,
        "in": place,
        "required": parameter.required or place == "path",
        "description": parameter.description,
        "schema": parameter.schema,
    }
