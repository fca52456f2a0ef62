"""Claims-based security: the `$cbs` node, where a client puts its tokens.

Owns: the put-token operation. Must not know: how a token is verified. Source: wire contract 1.7.
"""

from __future__ import annotations

from collections.abc import Callable

from peeklock.auth import (
    Authority,
    AuthorizationError,
    Grant,
    KeysUnavailable,
    SignatureInvalid,
    TokenMalformed,
)
from peeklock.broker.vocabulary.commands import LookUp
from peeklock.broker.vocabulary.effects import Effect, EntityFound, Failed
from peeklock.broker.vocabulary.errors import NotSupported
from peeklock.gateway.address import parse_node, shown
from peeklock.gateway.context import Context
from peeklock.gateway.errors import TABLE, TooManyGrants
from peeklock.gateway.nodes.requests import Request, respond_cbs

AUDIENCE_LENGTH_MAX = 1024
"""Characters. Our choice: a host name (253) and the longest path (260 + 50 and suffixes) stay far below."""


class TokenNode:
    """Serves put-token on one connection."""

    def __init__(
        self,
        context: Context,
        authority: Authority,
        refused: Callable[[AuthorizationError, int], bool],
        replaced: Callable[[int], None],
    ) -> None:
        """Serve tokens of this authority.

        `refused` (why, now_ms) is told of each token that is no good, once the client has its answer, and
        says whether further ones are looked at; `replaced` (now_ms) of each that took the place of one with
        other rights.
        """
        self._context = context
        self._authority = authority
        self._refused = refused
        self._replaced = replaced
        self._ended = False

    def serve(self, request: Request, now_ms: int) -> None:
        """Verify the token, then ask whether the entity is there: a missing one fails here already."""
        if self._ended:
            return  # it came in one read with what made us close
        try:
            grant, audience = self._verified(request, now_ms)
        except (AuthorizationError, NotSupported) as error:
            self._refuse(request, "$cbs", error, now_ms)
            # That our keys are not there is nothing to hold against the peer.
            if isinstance(error, AuthorizationError) and not isinstance(error, KeysUnavailable):
                self._ended = not self._refused(error, now_ms)
            return
        node = parse_node(audience)
        if not node.address.path:  # the whole namespace
            self._grant(request, grant, now_ms)
            return

        def answered(effect: Effect, answered_ms: int) -> bool:
            if isinstance(effect, EntityFound):
                self._grant(request, grant, answered_ms)
            elif isinstance(effect, Failed):
                if self._authority.upholds(grant):
                    self._context.claims.vouch(answered_ms)
                self._refuse(request, shown(node.address), effect.error, answered_ms)
            return True

        self._context.commands.append(LookUp(node.address, self._context.ask(answered)))

    def _verified(self, request: Request, now_ms: int) -> tuple[Grant, str]:
        if request.operation != "put-token":
            raise NotSupported(f"The operation '{request.operation[:64]}' is not supported by $cbs.")
        audience = request.properties.get("name")
        token_type = request.properties.get("type")
        if not isinstance(audience, str) or len(audience) > AUDIENCE_LENGTH_MAX:
            raise TokenMalformed("MalformedToken: The request names no audience, or one that is too long.")
        if not isinstance(request.body, str) or not isinstance(token_type, str):
            raise TokenMalformed("MalformedToken: The request holds no token, or does not name its type.")
        wall_ms = self._context.claims.wall_ms(now_ms)
        return self._authority.authorize(request.body, audience, wall_ms, token_type), audience

    def _grant(self, request: Request, grant: Grant, now_ms: int) -> None:
        try:
            if not self._authority.upholds(grant):  # the key went while the entity was looked up
                raise SignatureInvalid("InvalidSignature: The rule or its key is no longer valid.")
            less = self._context.claims.add(grant)
        except (SignatureInvalid, TooManyGrants) as error:
            self._refuse(request, "$cbs", error, now_ms)
            return
        respond_cbs(self._context, request, 202, "Accepted", now_ms)
        if less:
            self._replaced(now_ms)

    def _refuse(self, request: Request, entity: str, error: Exception, now_ms: int) -> None:
        refusal = self._context.reporter.report(error, entity, now_ms)
        respond_cbs(self._context, request, TABLE[type(error)].status, refusal.description, now_ms)
