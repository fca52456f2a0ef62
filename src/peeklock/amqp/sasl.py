"""SASL negotiation in both roles.

The owner of a server connection checks the response and calls `sasl_outcome`. Mechanisms with challenges are
not supported.

Server: start -> AWAIT_INIT -> (init) AWAIT_OUTCOME -> (outcome of the owner) DONE
Client: start -> AWAIT_MECHANISMS -> (mechanisms; init is sent) AWAIT_OUTCOME -> (outcome) DONE
Source: OASIS AMQP 1.0 section 5.3; wire contract 1.3.
"""

from __future__ import annotations

import enum
from typing import Any, Final

from .composites import NAMES, SASL_INIT, SASL_MECHANISMS, SASL_OUTCOME, Performative, composite
from .errors import ILLEGAL_STATE, UNAUTHORIZED_ACCESS, RemoteProtocolError
from .frames import SASL_FRAME, frame
from .types import Array, Symbol, UByte

OK: Final = 0
AUTH_FAILED: Final = 1


class SaslState(enum.Enum):
    """What the negotiation waits for."""

    AWAIT_INIT = 1
    AWAIT_MECHANISMS = 2
    AWAIT_OUTCOME = 3
    DONE = 4


class Sasl:
    """One negotiation; each step returns the frame to send, or nothing."""

    __slots__ = ("hostname", "mechanisms", "response", "server", "state")

    def __init__(
        self, server: bool, mechanisms: tuple[str, ...], response: bytes, hostname: str | None
    ) -> None:
        self.server = server
        self.mechanisms = mechanisms
        self.response = response
        self.hostname = hostname
        self.state = SaslState.AWAIT_INIT if server else SaslState.AWAIT_MECHANISMS

    def start(self) -> bytes:
        """Return the first frame: the mechanisms of a server, nothing for a client."""
        if not self.server:
            return b""
        # Always an array: some clients accept nothing else (wire contract 1.3).
        offered = Array.of(Symbol, [Symbol(name) for name in self.mechanisms])
        return frame(0, composite(SASL_MECHANISMS, [offered]), SASL_FRAME)

    def receive_init(self, performative: Performative) -> tuple[str, bytes, str | None]:
        """Take the client's choice: mechanism, response and host name.

        Raises:
            RemoteProtocolError: another frame, or a mechanism that was not offered.
        """
        if self.state is not SaslState.AWAIT_INIT or performative.code != SASL_INIT:
            raise _out_of_order(performative)
        mechanism, response, hostname = performative.fields
        self.state = SaslState.AWAIT_OUTCOME
        if mechanism not in self.mechanisms:
            raise RemoteProtocolError(UNAUTHORIZED_ACCESS, f"mechanism {mechanism[:64]!r} is not offered")
        return str(mechanism), response or b"", hostname

    def outcome(self, code: int) -> bytes:
        """End the negotiation; return the outcome frame."""
        self.state = SaslState.DONE
        return frame(0, composite(SASL_OUTCOME, [UByte(code)]), SASL_FRAME)

    def receive_at_client(self, performative: Performative) -> bytes:
        """Take the server's mechanisms, and return the init frame; or its outcome, and return nothing.

        Raises:
            RemoteProtocolError: out of order, our mechanism is not offered, or the outcome is a failure.
        """
        if self.state is SaslState.AWAIT_MECHANISMS and performative.code == SASL_MECHANISMS:
            mechanism = self.mechanisms[0]
            if mechanism not in _names(performative.fields[0]):
                raise RemoteProtocolError(UNAUTHORIZED_ACCESS, f"the server does not offer {mechanism}")
            self.state = SaslState.AWAIT_OUTCOME
            init = composite(SASL_INIT, [Symbol(mechanism), self.response, self.hostname])
            return frame(0, init, SASL_FRAME)
        if self.state is SaslState.AWAIT_OUTCOME and performative.code == SASL_OUTCOME:
            code = performative.fields[0]
            if code != OK:
                raise RemoteProtocolError(UNAUTHORIZED_ACCESS, f"authentication failed (code {code})")
            self.state = SaslState.DONE
            return b""
        raise _out_of_order(performative)


def _names(offered: Any) -> list[Any]:
    return list(offered) if isinstance(offered, list) else [offered]


def _out_of_order(performative: Performative) -> RemoteProtocolError:
    name = NAMES[performative.code]
    return RemoteProtocolError(ILLEGAL_STATE, f"{name} is not expected in this state of the SASL negotiation")
