"""The pages of a node of a cluster in the OpenAPI document; `server.net.cluster_pages` serves them."""

from __future__ import annotations

from typing import Any

from peeklock.api.operator_pages import KEYS, OPEN, TEXT, TEXTS, answer, named, refusals
from peeklock.api.schema import Schema, record

_NAME: Schema = {"type": ["string", "null"]}
_SECONDS: Schema = {"type": "number"}

_NODE = record(
    {
        "name": TEXT,
        "address": {**TEXT, "description": "Where other nodes reach it."},
        "version": TEXT,
        "state": {"type": "string", "enum": ["live", "leaving", "unreachable", "lost"]},
        "startedS": {"type": "integer", "description": "Since it started."},
        "lagS": {**_SECONDS, "description": "Since it reported last."},
        "unreached": {**TEXTS, "description": "Nodes that it cannot reach."},
    }
)
_OWNED = record(
    {
        "name": TEXT,
        "owner": {**_NAME, "description": "The node that serves it; null = none does."},
        "next": {**_NAME, "description": "The node that is to serve it."},
        "chosen": {**_NAME, "description": "The node that an operator has chosen."},
        "epoch": {"type": "integer", "description": "Grows with each owner."},
        "leaseS": {**_SECONDS, "description": "Until others may take it, if its owner is lost now."},
    }
)
_CLUSTER = record(
    {
        "node": {**TEXT, "description": "The node that answers."},
        "databaseUnreachedS": {
            "type": ["number", "null"],
            "description": "For how long this node could not reach the database; null = it can.",
        },
        "ageS": {**_SECONDS, "description": "How old the answer is."},
        "nodes": {"type": "array", "items": _NODE},
        "namespaces": {"type": "array", "items": _OWNED},
    }
)
_OWNER = record({"namespace": TEXT, "owner": _NAME, "node": TEXT})

_NOT_FIT = {**refusals(409)["409"], "description": "There is no node `to` that may serve it."}

PATHS: dict[str, dict[str, Any]] = {
    "/owner": {
        "get": {
            "operationId": "showOwner",
            "summary": "Show which node of a cluster serves the namespace of the host name",
            "description": "Needs no key. Only nodes of a cluster have it. `node` is the one that answers.",
            "security": [{}, *KEYS],
            "responses": {
                "200": answer("The owner.", _OWNER),
                "404": answer("This broker is no node."),
                "503": answer("There is no owner now.", _OWNER),
            },
        }
    },
    "/$api/v1/cluster": {
        "get": {
            "operationId": "showCluster",
            "summary": "Show the nodes of a cluster, and what they serve",
            "description": "Needs Manage on the default namespace. Any node answers.",
            "security": OPEN,
            "responses": {
                "200": answer("Nodes and namespaces.", _CLUSTER),
                **refusals(401, 403, 404, 421),
            },
        }
    },
    "/$api/v1/cluster/{name}": {
        "post": named(
            "moveNamespace",
            "Move a namespace of a cluster to a node",
            "Needs Manage on the default namespace. Without `to` it may be on any node.",
            {"204": answer("It moves."), "409": _NOT_FIT},
            404,
            security=OPEN,
            parameters=({"name": "to", "in": "query", "schema": TEXT},),
        )
    },
}
