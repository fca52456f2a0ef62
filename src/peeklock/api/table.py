"""The table of operations: path, parameters, schemas, right and handler of each; requests are read by it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, quote

from peeklock.api.exchange import EVENTS, JSON, LINES, Answer, ApiContext, ApiExchange
from peeklock.api.problems import MediaTypeUnsupported, NotHere
from peeklock.api.schema import Schema, check, read_text
from peeklock.auth.rights import Right
from peeklock.broker.vocabulary.commands import Address
from peeklock.broker.vocabulary.errors import ArgumentInvalid
from peeklock.gateway.address import Node, NodeKind, parse_node
from peeklock.rest.broker_properties import read_json
from peeklock.rest.names import unknown

ROOT = "/$api/v1"

HINT_SEGMENTS_MAX = 16
"""Of a path that is checked for an entity whose slashes are not encoded. Our choice."""

SMALL_BODY_BYTES_MAX = 16 * 1024
"""Of a body without messages."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """Of a path, a query or a header."""

    name: str
    schema: Schema
    description: str
    required: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    """A request that was read."""

    exchange: ApiExchange
    node: Node | None
    """The entity that it is about."""
    given: Mapping[str, Any]
    """Values of the parameters that were given, and of those with a default."""
    body: Any = None
    """From JSON; None = there is none."""
    context: ApiContext = field(default_factory=ApiContext)

    @property
    def address(self) -> Address:
        """The entity that the path names."""
        assert self.node is not None
        return self.node.address


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path."""

    id: str
    method: str
    path: str
    """Below `ROOT`; `{name}` is one segment, percent-encoded."""
    summary: str
    right: Right | None
    """On the entity that the request names; without one, Manage on the namespace is needed. None = any right,
    on the namespace or an entity."""
    handle: Callable[[Call], Answer]
    description: str = ""
    or_right: Right | None = None
    """Another right that lets a request in; the handler decides what it is enough for."""
    query: tuple[Parameter, ...] = ()
    headers: tuple[Parameter, ...] = ()
    body: Schema | None = None
    body_required: bool = True
    checks_body: bool = True
    """False = the handler checks the body, in slices."""
    body_bytes_max: int = SMALL_BODY_BYTES_MAX
    status: int = 200
    answer: Schema | None = None
    """Of its JSON; None = there is no body."""
    finds_entity: Callable[[bytes], str | None] | None = None
    """Returns the entity that a body names, if it is not in the path or the query."""
    changes_nothing: bool = False
    """Of a POST: its body asks a question."""
    streams: bool = False
    """Its answer is a stream of events."""
    streams_lines: bool = False
    """It may be one of JSON Lines, if the client accepts these."""
    problems: tuple[int, ...] = (404, 409)
    """Statuses of its refusals, besides those that all operations share."""

    @property
    def answer_types(self) -> tuple[str, ...]:
        """The types of the answer's body; none = there is no body."""
        if self.streams:
            return (EVENTS, LINES) if self.streams_lines else (EVENTS,)
        return () if self.answer is None else (JSON,)


PATH_PARAMETERS = {
    "entity": Parameter(
        "entity",
        {"type": "string", "minLength": 1, "maxLength": 400, "examples": ["orders"]},
        "A queue, topic or subscription, or a dead-letter queue of one: `orders`, "
        "`events%2Fsubscriptions%2Faudit`, `orders%2F$deadletterqueue`. Slashes are percent-encoded.",
        True,
    ),
    "number": Parameter(
        "number",
        {"type": "integer", "format": "int64", "minimum": 0, "maximum": (1 << 63) - 1},
        "A sequence number.",
        True,
    ),
    "token": Parameter(
        "token",
        {"type": "string", "minLength": 1, "maxLength": 64},
        "The token of a lock: a GUID.",
        True,
    ),
    "job": Parameter("job", {"type": "string", "minLength": 1, "maxLength": 64}, "The id of a job.", True),
    "rule": Parameter(
        "rule",
        {"type": "string", "minLength": 1, "maxLength": 50},
        "The name of a rule.",
        True,
    ),
    "session": Parameter(
        "session", {"type": "string", "maxLength": 128}, "The id of a session; it may be empty.", True
    ),
}


@dataclass(slots=True)
class Table:
    """Operations, found by method and path."""

    operations: tuple[Operation, ...]
    named: Mapping[str, Schema]
    """Schemas that others refer to."""
    _by_path: list[tuple[list[str], dict[str, Operation]]] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        paths: dict[str, dict[str, Operation]] = {}
        for operation in self.operations:
            paths.setdefault(operation.path, {})[operation.method] = operation
        self._by_path = [(path.split("/")[1:], methods) for path, methods in paths.items()]

    def find(self, segments: list[str]) -> tuple[dict[str, Operation], dict[str, str]]:
        """Return the operations at a path below `ROOT` by their methods, and the texts that it has for
        parameters. Raises: NotHere."""
        found = self._match(segments)
        if found is None:
            raise NotHere(f"This API has no {'/'.join([ROOT, *segments])[:200]}.{self._hint(segments)}")
        return found

    def _match(self, segments: list[str]) -> tuple[dict[str, Operation], dict[str, str]] | None:
        for template, methods in self._by_path:
            if len(template) == len(segments):
                texts: dict[str, str] = {}
                for expected, segment in zip(template, segments, strict=True):
                    if expected.startswith("{"):
                        texts[expected[1:-1]] = segment
                    elif expected != segment:
                        break
                else:
                    return methods, texts
        return None

    def _hint(self, segments: list[str]) -> str:
        """Return a hint if these are the path of an entity whose slashes are not encoded."""
        if segments[:1] != ["entities"] or len(segments) > HINT_SEGMENTS_MAX:
            return ""
        for end in range(3, len(segments) + 1):
            meant = ["entities", "/".join(segments[1:end]), *segments[end:]]
            if self._match(meant) is not None:
                path = "/".join([ROOT, *(quote(segment, safe="$") for segment in meant)])
                return f" The path of an entity is one segment: write its slashes as %2F, as in {path[:300]}"
        return ""


def entity_of(body: bytes) -> str | None:
    """Return the member `entity` of a body, before it is checked. Raises: ArgumentInvalid."""
    found = read_json(body, "The body") if body else None
    name = found.get("entity") if isinstance(found, dict) else None
    return name if isinstance(name, str) else None


def node_of(text: str) -> Node:
    """Read the path of an entity. Raises: ArgumentInvalid, NotHere."""
    if "%2f" in text.lower():  # no name has a percent sign
        raise NotHere(f"No entity is named '{text[:100]}': its slashes are encoded twice. Write each as %2F.")
    node = parse_node(quote(text, safe="/$"))
    if node.kind is not NodeKind.ENTITY or not node.address.path:
        raise ArgumentInvalid(f"'{text[:100]}' names no queue, topic or subscription.")
    return node


def read_parameters(
    operation: Operation, texts: Mapping[str, str], query: str, headers: Mapping[str, str]
) -> dict[str, Any]:
    """Read all parameters of a request, with defaults. Raises: ArgumentInvalid."""
    given: dict[str, Any] = {}
    for name, text in texts.items():
        given[name] = read_text(text, PATH_PARAMETERS[name].schema, f"'{name}' of the path")
    known = {parameter.name: parameter for parameter in operation.query}
    for parameter in operation.query:
        if "default" in parameter.schema:
            given[parameter.name] = parameter.schema["default"]
    seen = set()
    for name, text in parse_qsl(query, keep_blank_values=True):
        if name not in known:
            raise ArgumentInvalid(f"The query has {unknown('parameter', name, known)}")
        if name in seen:
            raise ArgumentInvalid(f"The parameter '{name}' is given twice.")
        seen.add(name)
        given[name] = read_text(text, known[name].schema, f"The parameter '{name}'")
    for parameter in operation.query:
        if parameter.required and parameter.name not in seen:
            raise ArgumentInvalid(f"The parameter '{parameter.name}' is missing.")
    for parameter in operation.headers:
        value = headers.get(parameter.name.lower())
        if value is not None:
            given[parameter.name] = read_text(value, parameter.schema, f"The header {parameter.name}")
    return given


def read_body(operation: Operation, body: bytes, content_type: str, named: Mapping[str, Schema]) -> Any:
    """Read the body of a request. Raises: ArgumentInvalid, MediaTypeUnsupported."""
    if operation.body is None:
        if body:
            raise ArgumentInvalid("This operation takes no body.")
        return None
    if not body and not operation.body_required:
        return {}
    if not re.fullmatch(r"application/json\s*(;\s*charset=\"?utf-8\"?\s*)?", content_type.strip(), re.I):
        raise MediaTypeUnsupported(f"The body must be JSON: send it with the header 'Content-Type: {JSON}'.")
    value = read_json(body, "The body")
    return check(value, operation.body, named) if operation.checks_body else value
