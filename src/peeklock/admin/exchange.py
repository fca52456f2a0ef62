"""A request and its answer: authorization, refusals with their tracking ids, addresses, pages.

Source: wire contract 7.1 and 7.2.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar
from urllib.parse import parse_qs, quote, unquote

from peeklock.admin import atom
from peeklock.admin.errors import Refusal, status_of
from peeklock.auth.authority import JWT_TOKEN_TYPE, SAS_TOKEN_TYPE, Authority
from peeklock.auth.errors import AudienceNotCovered, AuthorizationError, ClaimMissing
from peeklock.auth.rights import Grant, Right
from peeklock.broker.vocabulary.commands import (
    AddRule,
    CreateEntity,
    DeleteEntity,
    FindRule,
    IfMatch,
    ListEntities,
    ListRules,
    LookUp,
    RemoveRule,
    ReplyTo,
    UpdateEntity,
    UpdateRule,
)
from peeklock.broker.vocabulary.effects import Done, EntitiesFound, EntityFound, Failed, RulesFound
from peeklock.broker.vocabulary.errors import (
    ArgumentInvalid,
    ArgumentOutOfRange,
    InvalidOperation,
    ServiceBusError,
)
from peeklock.broker.vocabulary.quotas import STANDARD, TierLimits

T = TypeVar("T")

PAGE_MAX = 100
"""Entries in a page; a larger $top is taken as this. Source: wire contract 7.1."""

AdminCommand: TypeAlias = (
    CreateEntity | UpdateEntity | DeleteEntity | ListEntities | LookUp |
    AddRule | UpdateRule | RemoveRule | FindRule | ListRules
)  # fmt: skip
AdminEffect: TypeAlias = EntityFound | EntitiesFound | RulesFound | Done | Failed


@dataclass(frozen=True, slots=True)
class AdminRequest:
    """An HTTP request, read whole."""

    method: str
    """Upper case."""
    path: str
    """As sent: percent-encoded, without the query."""
    query: str = ""
    """As sent, without the question mark."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Names in lower case."""
    body: bytes = b""
    peer: str | None = None
    """Address and port of the client, for the log; None = not known."""


@dataclass(frozen=True, slots=True)
class Response:
    """An HTTP answer."""

    status: int
    content_type: str = ""
    """Empty = no body."""
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    more: tuple[bytes, ...] = ()
    """Further parts of a large body: joining 10 MB would take a turn of the event loop."""

    @property
    def body_bytes(self) -> int:
        """Size of the body with all its parts."""
        return len(self.body) + sum(map(len, self.more))


@dataclass(frozen=True, slots=True)
class Pending:
    """A command to run; `render` turns its effect into the answer."""

    command: AdminCommand
    render: Callable[[Any], Response | Pending]
    """Takes the answering effect of the command."""


@dataclass(frozen=True, slots=True)
class AdminContext:
    """The namespace that is administered."""

    authority: Authority
    tracking: Callable[[], str]
    """Returns a fresh GUID text a call."""
    keys: Callable[[], str]
    """Returns a fresh key a call, for authorization rules that come without."""
    owns: Callable[[str, str], bool]
    """Whether a host, with or without a port, is this broker's, for a request with this `Host`."""
    log: Callable[[str, dict[str, Any]], None]
    """Takes an event and its fields; called once for each refusal."""
    name: str = "peeklock"
    """Of the namespace: its property, and the author of entries."""
    limits: TierLimits = STANDARD
    """Of the tier, which is shown as the SKU."""
    created_at_ms: int = 0
    """Of the namespace, UTC ms."""


class Exchange:
    """One request."""

    refused_event = "administration request refused"
    """Event of a refusal in the log."""
    refused_on: tuple[type[Exception], ...] = (ServiceBusError, AuthorizationError)
    """Exceptions that are refusals."""

    def __init__(
        self, admin_context: AdminContext, request: AdminRequest, reply_to: ReplyTo, now_ms: int
    ) -> None:
        self.admin_context = admin_context
        self.request = request
        self.reply_to = reply_to
        self.now_ms = now_ms
        self.host = request.headers.get("host", "localhost")
        self.path = unquote(request.path).strip("/")
        self._query = parse_qs(request.query, keep_blank_values=True)

    @property
    def token(self) -> str:
        """The token of the request; empty = it has none."""
        return self.request.headers.get("authorization", "")

    @property
    def updates(self) -> bool:
        """Whether a PUT updates an entity, not creates it."""
        return "if-match" in self.request.headers

    @property
    def if_match(self) -> IfMatch:
        """Accepted current versions (If-Match); None = any. Source: RFC 9110, 13.1.1."""
        tags = [tag.strip() for tag in self.request.headers.get("if-match", "*").split(",")]
        return None if "*" in tags else tuple(tag.strip('"') for tag in tags)

    @property
    def shown_request(self) -> AdminRequest:
        """What a refusal shows of the request, without its body and other headers, for long waits."""
        request = self.request
        return AdminRequest(request.method, request.path, headers={"host": self.host}, peer=request.peer)

    def owns(self, authority: str) -> bool:
        """Return whether a host, with or without a port, is this broker's."""
        return self.admin_context.owns(authority, self.host)

    def guarded(self, answer: Callable[[], T]) -> T | Response:
        """Return an answer, or that to a refusal that it raises."""
        try:
            return answer()
        except self.refused_on as failure:
            return self.refusal(failure)  # type: ignore[arg-type]  # one of `refused_on`

    # Authorization

    def authorize(self) -> None:
        """Raise AuthorizationError unless the token has Manage on the path."""
        if Right.MANAGE in self.granted(self.token, self.path).rights:
            return
        # The service's own texts. Source: wire contract C19.
        if self.request.method == "GET":
            raise ClaimMissing("Manage,EntityRead claims required for this operation.")
        raise ClaimMissing("Authorization failed for specified action: Manage,EntityWrite.")

    def granted(self, token: str, path: str) -> Grant:
        """Verify a token for a path. Raises: AuthorizationError."""
        if not token.strip() and self.admin_context.authority.anybody is None:
            raise ClaimMissing(
                "MissingToken: The authorization header was not found. Send one with a shared access "
                "signature, or with 'Bearer' and a JSON web token."
            )
        token, kind = token.strip(), SAS_TOKEN_TYPE
        if token[:7].lower() == "bearer ":
            token, kind = token[7:], JWT_TOKEN_TYPE
        # A path that could be taken for a URI names no entity: only a namespace's token covers it.
        return self.admin_context.authority.authorize(token, "" if "://" in path else path, self.now_ms, kind)

    def granted_here(self, path: str) -> Grant:
        """Verify the request's token for a path, or for the very address of the request or a path above it.

        Raises: AuthorizationError.
        """
        try:
            return self.granted(self.token, path)
        except AudienceNotCovered:
            return self.granted(self.token, self.path.lower())

    # Answers

    def entry(self, status: int, item: atom.Entry, version: str | None = None) -> Response:
        """Answer with one entry; `version`: of what it shows, for If-Match."""
        headers = () if version is None else (("ETag", f'"{version}"'),)
        return Response(status, atom.ENTRY_TYPE, atom.entry(item, self.admin_context.name).encode(), headers)

    def page(
        self, title: str, where: str, page: tuple[int, int], entries: Iterable[atom.Entry], more: bool
    ) -> Response:
        """Answer with a page of a list.

        Args:
            where: the path of the list.
            page: how many entries were skipped, and how many were asked for.
            more: whether there are further entries.
        """
        skip, top = page
        items = list(entries)
        following = self.href(where, f"&%24skip={skip + len(items)}&%24top={top}") if more else None
        here = self.href(where, f"&%24skip={skip}&%24top={top}")
        text = atom.feed(title, here, following, self.now_ms, items, self.admin_context.name)
        return Response(200, atom.FEED_TYPE, text.encode())

    def nothing_here(self) -> Response:
        """Answer a look-up of something absent."""
        text = atom.nothing_here(self.admin_context.tracking(), self.now_ms)
        return Response(200, atom.FEED_TYPE, text.encode())

    def deleted(self, effect: AdminEffect) -> Response:
        """Answer a deletion."""
        if isinstance(effect, Failed):
            if type(effect.error) is InvalidOperation:
                # Only a lock on the namespace forbids a deletion; this is Azure's name for it.
                return self.refused(409, f"ScopeLocked: {effect.error}")
            return self.refusal(effect.error)
        assert isinstance(effect, Done)
        return Response(200)

    def not_allowed(self, methods: str) -> Response:
        """Answer a method that is not served here."""
        text = f"The method {self.request.method} is not allowed here; allowed: {methods}."
        return self.refused(405, text, (("Allow", methods),))

    def refusal(self, failure: Refusal) -> Response:
        """Answer with an error, and log it under the same tracking id."""
        key_name = failure.key_name if isinstance(failure, AuthorizationError) else ""
        return self.refused(*status_of(failure), key_name=key_name)

    def refused(
        self, status: int, text: str, headers: tuple[tuple[str, str], ...] = (), *, key_name: str = ""
    ) -> Response:
        """Answer with a status and a reason, and log both under one tracking id."""
        tracking = f"{self.admin_context.tracking()}_G0"
        stamp = atom.timestamp(self.now_ms)[:19]
        where = f"{self.host}:{self.path}"
        detail = f"{text.rstrip('.')}. TrackingId:{tracking}, SystemTracker:{where}, Timestamp:{stamp}"
        self.log_refusal(tracking, status, text, key_name)
        return Response(status, atom.ERROR_TYPE, atom.error(status, detail).encode(), headers)

    def log_refusal(self, tracking_id: str, status: int, reason: str, key_name: str) -> None:
        """Log a refusal; `key_name`: of a token that named one, else empty."""
        self.admin_context.log(
            self.refused_event,
            {
                "tracking_id": tracking_id,
                "method": self.request.method,
                "path": self.path,
                "status": status,
                "reason": reason,
                **({"peer": self.request.peer} if self.request.peer else {}),
                **({"key_name": key_name} if key_name else {}),
            },
        )

    # Addresses and pages

    def href(self, path: str, more: str = "") -> str:
        """Return the address of a path, which is plain text."""
        version = quote(self._query.get("api-version", ["2021-05"])[-1], safe="")
        return f"https://{self.host}/{quote(path, safe='/$')}?api-version={version}{more}"

    def asked_page(self) -> tuple[int, int]:
        """Read how many entries to skip, and how many to return.

        Raises: ArgumentInvalid, ArgumentOutOfRange.
        """
        skip = self._number("$skip", 0)
        top = self._number("$top", PAGE_MAX)
        if top == 0:
            raise ArgumentOutOfRange("The value 0 of $top is out of range; the minimum is 1.")
        return skip, min(top, PAGE_MAX)

    def _number(self, name: str, default: int) -> int:
        text = self._query.get(name, [str(default)])[-1]
        if not re.fullmatch("[0-9]{1,9}", text):
            raise ArgumentInvalid(f"The value {text!r} of {name} is not a whole number of up to 9 digits.")
        return int(text)
