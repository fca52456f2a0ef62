"""The operation that shows what the token of a request may do, and what this broker has."""

from __future__ import annotations

from peeklock.api.exchange import Answer, answer_json
from peeklock.api.schema import Schema, record, ref
from peeklock.api.table import Call, Operation
from peeklock.auth.rights import Right

_RIGHTS = [right.value for right in Right]

ME: Schema = record(
    {
        "name": {
            "type": "string",
            "description": "The name of the key, or the roles of the web token. Empty without authorization.",
        },
        "namespace": {"type": "string"},
        "path": {
            "type": "string",
            "description": "What the token is for, in lower case: an entity or what is below its path. Empty "
            "is the whole namespace.",
        },
        "rights": {"type": "array", "items": {"type": "string", "enum": _RIGHTS}},
        "isDevelopment": {"type": "boolean", "description": "Clients need no secret here."},
        "has": record(
            {
                "history": {"type": "boolean", "description": "Messages that left are listed."},
                "eventLog": {
                    "type": "boolean",
                    "description": "What happens to messages is recorded.",
                },
                "jobs": {"type": "boolean", "description": "The broker runs searches and jobs."},
                "namespaces": {"type": "boolean", "description": "A key with Manage sees other namespaces."},
            },
            description="What this broker has for this namespace.",
        ),
    },
    description="What a token may do.",
)

NAMED = {"Me": ME}


def show_me(call: Call) -> Answer:
    """Show what the token may do."""
    grant, context = call.exchange.own_grant(), call.context
    return answer_json(
        {
            "name": grant.name,
            "namespace": call.exchange.admin_context.name,
            "path": grant.path,
            "rights": [right.value for right in Right if right in grant.rights],
            "isDevelopment": context.is_development,
            "has": {
                "history": context.history is not None,
                "eventLog": context.has_event_log,
                "jobs": context.has_jobs,
                "namespaces": context.has_namespaces,
            },
        }
    )


OPERATIONS = (
    Operation(
        "showMe",
        "GET",
        "/me",
        "Show what the token may do, and what this broker has",
        None,
        show_me,
        answer=ref("Me"),
        problems=(),
    ),
)
