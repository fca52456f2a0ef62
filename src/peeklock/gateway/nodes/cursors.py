"""Cursors over `$management`: the `peeklock:cursor-...` operations (X-06).

What each reads from a request, and its answer on the wire. A claim's messages are answered like those
of a peek.
"""

from __future__ import annotations

from typing import Any

from peeklock.amqp.types import Int, Long, Symbol, Timestamp
from peeklock.broker.vocabulary.commands import (
    ClaimMessages,
    Command,
    CommitClaims,
    ListCursors,
    ReadClaim,
    ReleaseCursor,
    TakeCursor,
)
from peeklock.broker.vocabulary.effects import Claimed, ClaimsLeft, CursorsFound
from peeklock.broker.vocabulary.errors import ArgumentInvalid
from peeklock.gateway.context import Payloads
from peeklock.gateway.nodes import fields
from peeklock.gateway.nodes.fields import Scope
from peeklock.gateway.nodes.requests import Request

Answer = tuple[int, Symbol | None, dict[str, Any]]


def read_take(request: Request, scope: Scope) -> Command:
    """Read `{cursor, owner [, take-over, expires-after]}`."""
    body = request.body
    owner = fields.text(body, "owner")
    if owner is None:
        raise ArgumentInvalid("'owner' is missing.")
    return TakeCursor(
        request.node.address,
        _cursor(body),
        owner,
        fields.boolean(body, "take-over"),
        scope.reply_to,
        None if body.get("expires-after") is None else fields.positive(body, "expires-after"),
    )


def read_claim(request: Request, scope: Scope) -> Command:
    """Read `{cursor, max-messages, max-bytes [, owner, expires-after, enqueued-time-utc]}`."""
    body = request.body
    return ClaimMessages(
        request.node.address,
        _cursor(body),
        fields.positive(body, "max-messages"),
        fields.positive(body, "max-bytes"),
        scope.reply_to,
        None if body.get("expires-after") is None else fields.positive(body, "expires-after"),
        None if body.get("enqueued-time-utc") is None else fields.positive(body, "enqueued-time-utc"),
        fields.text(body, "owner"),
    )


def read_read(request: Request, scope: Scope) -> Command:
    """Read `{cursor, claim, skip, max-messages, max-bytes [, owner]}`; an answer is no larger than that of a
    peek."""
    body = request.body
    return ReadClaim(
        request.node.address,
        _cursor(body),
        fields.integer(body, "claim"),
        fields.not_negative(body, "skip"),
        min(fields.positive(body, "max-messages"), scope.limits.reply_count_max),
        min(fields.positive(body, "max-bytes"), scope.limits.reply_bytes_max),
        scope.reply_to,
        fields.text(body, "owner"),
    )


def read_commit(request: Request, scope: Scope) -> Command:
    """Read `{cursor, claim [, owner]}`."""
    body = request.body
    return CommitClaims(
        request.node.address,
        _cursor(body),
        fields.integer(body, "claim"),
        scope.reply_to,
        fields.text(body, "owner"),
    )


def read_release(request: Request, scope: Scope) -> Command:
    """Read `{cursor}`."""
    return ReleaseCursor(request.node.address, _cursor(request.body), scope.reply_to)


def read_list(request: Request, scope: Scope) -> Command:
    """Read nothing."""
    return ListCursors(request.node.address, scope.reply_to)


def answer_claimed(effect: Claimed, payloads: Payloads | None) -> Answer:
    """Answer `{claim, count, bytes}`; claim 0 = nothing was available."""
    return 200, None, {"claim": Long(effect.no), "count": Int(effect.count), "bytes": Long(effect.size_bytes)}


def answer_left(effect: ClaimsLeft, payloads: Payloads | None) -> Answer:
    """Answer `{left}`."""
    return 200, None, {"left": Int(effect.count)}


def answer_cursors(effect: CursorsFound, payloads: Payloads | None) -> Answer:
    """Answer `{cursors, now}`, each cursor with its claims as lists of number, messages, bytes."""
    found = [
        {
            "cursor": view.name,
            "last-claim": Long(view.last_no),
            "committed": Long(view.committed_no),
            "last-used": Timestamp(view.used_at_ms),
            "expires-after": Long(view.expires_after_ms),
            "claims": [[Long(no), Int(count), Long(size)] for no, count, size in view.claims],
            "owner": view.owner,
            "has-read": view.has_read,
            "backlog": Long(view.backlog),
            "oldest-enqueued": None
            if view.oldest_enqueued_at_ms is None
            else Timestamp(view.oldest_enqueued_at_ms),
            "undone": None if view.undone is None else [Long(no) for no in view.undone],
        }
        for view in effect.cursors
    ]
    return 200, None, {"cursors": found, "now": Timestamp(effect.now_ms)}


def _cursor(body: fields.Body) -> str:
    name = fields.text(body, "cursor")
    if name is None:
        raise ArgumentInvalid("'cursor' is missing.")
    return name
