"""Who may see a page of the operator: the key of a request, checked against what the page asks for.

A request shows a key as a shared access signature, a bearer token, or HTTP Basic with the name of a key and
the key, which is all that Prometheus and a browser can do. Its right is one on the namespace: a key of one
entity opens no page.
"""

from __future__ import annotations

import base64
import binascii
from enum import Enum

from peeklock.admin.exchange import Response
from peeklock.api.exchange import ApiExchange
from peeklock.api.problems import Refusal, RightMissing
from peeklock.auth.errors import AuthorizationError, ClaimMissing, KeyRefused
from peeklock.auth.rights import Grant, Right
from peeklock.gateway.errors import MessageMalformed

_BASIC = "basic "
CHALLENGES = 'Basic realm="peeklock", SharedAccessSignature, Bearer'


class Access(Enum):
    """What a page asks for. Where clients need no secret, none is asked for here either."""

    ANYBODY = "nothing"
    """Whatever name the client has for the broker: probes use any."""
    OWN_HOST = "nothing, at a name of the broker"
    """For files without data. Where no secret is asked for, the host must be one of the broker's."""
    FIGURES = "any right on the namespace"
    MANAGE = "Manage on the namespace"


class PageExchange(ApiExchange):
    """One request for a page of the operator."""

    refused_event = "operator's request refused"

    def allow(self, access: Access) -> None:
        """Raise AuthorizationError or RightMissing unless the request's key is enough."""
        if access in (Access.ANYBODY, Access.OWN_HOST):
            return
        rights = self.granted(self.token, "").rights
        if not rights or (access is Access.MANAGE and Right.MANAGE not in rights):
            raise RightMissing(f"This page asks for {access.value}.")

    def granted(self, token: str, path: str) -> Grant:
        """Verify a token, or the key of HTTP Basic, for a path. Raises: AuthorizationError."""
        authority = self.admin_context.authority
        if token[: len(_BASIC)].lower() != _BASIC:
            return super().granted(token, path)
        grant = authority.authorize_key(*_name_and_key(token[len(_BASIC) :]))
        if not grant.covers(path):
            raise ClaimMissing("The key is one entity's; this page asks for a key of the namespace.")
        return grant

    def refusal(self, failure: Refusal | MessageMalformed) -> Response:
        """Return the problem of a refusal; one for the key says how to show another."""
        response = super().refusal(failure)
        if not isinstance(failure, AuthorizationError) or response.status != 401:
            return response
        headers = (("WWW-Authenticate", CHALLENGES),)
        return Response(response.status, response.content_type, response.body, headers)


def _name_and_key(encoded: str) -> tuple[str, str]:
    """Read the credentials of HTTP Basic. Raises: KeyRefused. Source: RFC 7617 2."""
    try:
        text = base64.b64decode(encoded.strip(), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError) as failure:
        raise KeyRefused("The credentials of HTTP Basic are not base64 of NAME:KEY.") from failure
    name, colon, key = text.partition(":")
    if not colon:
        raise KeyRefused("The credentials of HTTP Basic are not base64 of NAME:KEY.")
    return name, key
