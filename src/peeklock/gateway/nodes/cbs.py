"""Claims-based security: the `$cbs` node, where a client puts its tokens. Source: wire contract 1.7."""

from __future__ import annotations

from collections.abc import Callable

from peeklock.auth import (
    AuthorizationError,
    ClaimMissing,
    Grant,
    KeysUnavailable,
    SignatureInvalid,
    TokenMalformed,
)
from peeklock.broker.vocabulary.commands import LookUp
from peeklock.broker.vocabulary.effects import Effect, EntityFound, Failed
from peeklock.broker.vocabulary.errors import NotSupported
from peeklock.gateway.address import parse_node, shown
from peeklock.gateway.answers import Answers
from peeklock.gateway.choice import Choice
from peeklock.gateway.claims import Claims
from peeklock.gateway.context import Context, Payloads
from peeklock.gateway.errors import TABLE, TooManyGrants
from peeklock.gateway.nodes.requests import ReplyLinks, Request

AUDIENCE_LENGTH_MAX = 1024
"""Characters. Our choice: a host name (253) and the longest path (260 + 50 and suffixes) stay far below."""

Refused = Callable[[AuthorizationError, int], bool]
"""Takes why a token was refused, and now_ms, once the client has its answer; returns whether it may go on."""


class TokenNode:
    """Serves put-token on one connection."""

    def __init__(
        self,
        context: Context,
        claims: Claims,
        answers: Answers,
        replies: ReplyLinks,
        choice: Choice,
        refused: Refused,
        detach_unauthorized: Callable[[AuthorizationError, int], None],
    ) -> None:
        """`detach_unauthorized` detaches the links that no grant covers any more."""
        self._context = context
        self._claims = claims
        self._answers = answers
        self._replies = replies
        self._choice = choice
        self._refused = refused
        self._detach_unauthorized = detach_unauthorized
        self._ended = False

    def serve(self, request: Request, now_ms: int) -> None:
        """Verify the token, then look the entity up: a missing one is refused here already."""
        if self._ended:
            return  # it came in one read with what made us close
        try:
            grant, audience = self._verified(request, now_ms)
        except (AuthorizationError, NotSupported) as error:
            self._refuse(request, "$cbs", error, now_ms)
            # Missing keys are our fault, not the peer's.
            if isinstance(error, AuthorizationError) and not isinstance(error, KeysUnavailable):
                self._ended = not self._refused(error, now_ms)
            return
        node = parse_node(audience)
        if not node.address.path:  # the whole namespace
            self._grant(request, grant, now_ms)
            return

        def answered(effect: Effect, payloads: Payloads | None, answered_ms: int) -> bool:
            if isinstance(effect, EntityFound):
                self._grant(request, grant, answered_ms)
            elif isinstance(effect, Failed):
                if self._choice.authority.upholds(grant):
                    self._claims.token_checked(answered_ms)
                self._refuse(request, shown(node.address), effect.error, answered_ms)
            return True

        reply_to = self._answers.reply_to()
        self._answers.expect(reply_to, answered)
        self._context.commands.append(LookUp(node.address, reply_to))

    def _verified(self, request: Request, now_ms: int) -> tuple[Grant, str]:
        if request.operation != "put-token":
            raise NotSupported(f"The operation '{request.operation[:64]}' is not supported by $cbs.")
        audience = request.properties.get("name")
        token_type = request.properties.get("type")
        if not isinstance(audience, str) or len(audience) > AUDIENCE_LENGTH_MAX:
            raise TokenMalformed("MalformedToken: The request names no audience, or one that is too long.")
        if not isinstance(request.body, str) or not isinstance(token_type, str):
            raise TokenMalformed("MalformedToken: The request holds no token, or does not name its type.")
        wall_ms = self._claims.wall_ms(now_ms)
        hosted = self._choice.of_token(request.body)
        grant = hosted.authority.authorize(request.body, audience, wall_ms, token_type)
        self._choice.confirm(hosted)
        return grant, audience

    def _grant(self, request: Request, grant: Grant, now_ms: int) -> None:
        try:
            if not self._choice.authority.upholds(grant):  # the key went while the entity was looked up
                raise SignatureInvalid("InvalidSignature: The rule or its key is no longer valid.")
            less = self._claims.add(grant)
        except (SignatureInvalid, TooManyGrants) as error:
            self._refuse(request, "$cbs", error, now_ms)
            return
        self._replies.respond_cbs(request, 202, "Accepted", now_ms)
        if less:
            reason = ClaimMissing("Unauthorized access. The token was replaced by one with other rights.")
            self._detach_unauthorized(reason, now_ms)

    def _refuse(self, request: Request, entity: str, error: Exception, now_ms: int) -> None:
        refusal = self._context.reporter.report(error, entity, now_ms)
        self._replies.respond_cbs(request, TABLE[type(error)].status, refusal.description, now_ms)
