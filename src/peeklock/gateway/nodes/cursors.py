"""Cursors over `$management`: the `peeklock:cursor-...` operations (X-06).

Owns: what each reads from a request and how its answer looks on the wire. Must not know: what a cursor does,
the table of operations (`management`). What a claim holds is answered as a peek is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from peeklock.amqp.types import Int, Long, Symbol, Timestamp
from peeklock.broker.vocabulary.commands import (
    ClaimMessages,
    Command,
    CommitClaims,
    ListCursors,
    ReadClaim,
    ReleaseCursor,
    ReplyTo,
)
from peeklock.broker.vocabulary.effects import Claimed, ClaimsLeft, CursorsFound
from peeklock.broker.vocabulary.errors import ArgumentInvalid
from peeklock.gateway.context import Context, Payloads
from peeklock.gateway.nodes import fields
from peeklock.gateway.nodes.requests import Request

Read = Callable[[ReplyTo], Command]
Answer = tuple[int, Symbol | None, dict[str, Any]]


def read_claim(request: Request, context: Context, now_ms: int) -> Read:
    """Read `{cursor, max-messages, max-bytes [, expires-after, enqueued-time-utc]}`."""
    body = request.body
    cursor = _cursor(body)
    count = fields.positive(body, "max-messages")
    bytes_max = fields.positive(body, "max-bytes")
    expires_after_ms = None
    if body.get("expires-after") is not None:
        expires_after_ms = fields.positive(body, "expires-after")
    up_to_ms = None
    if body.get("enqueued-time-utc") is not None:
        up_to_ms = fields.positive(body, "enqueued-time-utc")
    address = request.node.address
    return lambda reply_to: ClaimMessages(
        address, cursor, count, bytes_max, reply_to, expires_after_ms, up_to_ms
    )


def read_read(request: Request, context: Context, now_ms: int) -> Read:
    """Read `{cursor, claim, skip, max-messages, max-bytes}`; an answer is no larger than that of a peek."""
    body = request.body
    cursor = _cursor(body)
    no = fields.integer(body, "claim")
    skip = fields.not_negative(body, "skip")
    limits = context.limits
    count = min(fields.positive(body, "max-messages"), limits.reply_count_max)
    bytes_max = min(fields.positive(body, "max-bytes"), limits.reply_bytes_max)
    address = request.node.address
    return lambda reply_to: ReadClaim(address, cursor, no, skip, count, bytes_max, reply_to)


def read_commit(request: Request, context: Context, now_ms: int) -> Read:
    """Read `{cursor, claim}`."""
    cursor = _cursor(request.body)
    no = fields.integer(request.body, "claim")
    return lambda reply_to: CommitClaims(request.node.address, cursor, no, reply_to)


def read_release(request: Request, context: Context, now_ms: int) -> Read:
    """Read `{cursor}`."""
    cursor = _cursor(request.body)
    return lambda reply_to: ReleaseCursor(request.node.address, cursor, reply_to)


def read_list(request: Request, context: Context, now_ms: int) -> Read:
    """Read nothing."""
    return lambda reply_to: ListCursors(request.node.address, reply_to)


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
        }
        for view in effect.cursors
    ]
    return 200, None, {"cursors": found, "now": Timestamp(effect.now_ms)}


def _cursor(body: fields.Body) -> str:
    name = fields.text(body, "cursor")
    if name is None:
        raise ArgumentInvalid("'cursor' is missing.")
    return name
