"""Who the peer of one connection is: SASL, the namespace, and how long and how often it may try.

What its tokens allow is in `claims`; `nodes.cbs` takes the tokens. Source: wire contract 1.3, 1.4, 1.7, C47.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from peeklock.amqp.connection import Connection
from peeklock.amqp.errors import NOT_IMPLEMENTED, AmqpError
from peeklock.amqp.events import ConnectionOpened, SaslInit
from peeklock.auth import AuthorizationError, KeyRefused, SignatureInvalid, TokenExpired
from peeklock.gateway.choice import Choice
from peeklock.gateway.claims import Claims
from peeklock.gateway.context import GatewayLimits
from peeklock.gateway.errors import ClaimOverdue, Inactive, Reporter, TooManyRefusals

SASL_MECHANISMS = ("MSSBCBS", "PLAIN", "ANONYMOUS", "EXTERNAL")
"""The service's set. The Python client refuses to go on without ANONYMOUS. Source: wire contract 1.3."""

_PLAIN_BYTES_MAX = 1024


class Admission:
    """Admits the peer of one connection, or closes the connection."""

    def __init__(
        self,
        connection: Connection,
        reporter: Reporter,
        claims: Claims,
        limits: GatewayLimits,
        choice: Choice,
        bears_refusal: Callable[[], bool],
        now_ms: int,
    ) -> None:
        """`bears_refusal` counts a refused token or key, and returns whether its peer may go on."""
        self._connection = connection
        self._reporter = reporter
        self._claims = claims
        self._limits = limits
        self._choice = choice
        self._bears_refusal = bears_refusal
        self._refusals_left = limits.refusals_max
        self._authority = choice.authority
        self._authority_version = self._authority.version
        self._claim_overdue_ms = now_ms + limits.claim_wait_ms
        self.closed = False
        """It has closed the connection."""
        self.expelled = False
        """Nothing more of this peer is handled: 50 bad tokens may come in one read."""

    def authenticate(self, event: SaslInit, now_ms: int) -> bool:
        """Answer a SASL exchange, and return whether it succeeded."""
        refusal: AmqpError | None = None
        if event.mechanism == "PLAIN":
            try:
                self._authorize_plain(event)
            except AuthorizationError as error:
                refusal = self._reporter.report(error, "$sasl", now_ms)
                self._bears_refusal()
        elif event.mechanism not in SASL_MECHANISMS:
            # The others carry nothing: the claims follow on $cbs.
            refusal = AmqpError(NOT_IMPLEMENTED, f"The SASL mechanism is not one of {SASL_MECHANISMS}.")
        self._connection.sasl_outcome(refusal)
        return refusal is None

    def _authorize_plain(self, event: SaslInit) -> None:
        fields = event.response.split(b"\0")
        if len(fields) != 3 or len(event.response) > _PLAIN_BYTES_MAX:
            raise KeyRefused("The PLAIN response does not hold a key name and a key.")
        self._choice.by_host(event.hostname)
        try:
            name, key = fields[1].decode(), fields[2].decode()
        except UnicodeDecodeError:
            raise KeyRefused("The PLAIN response is not valid UTF-8.") from None
        hosted = self._choice.of_key(name)
        grant = hosted.authority.authorize_key(name, key)
        self._choice.confirm(hosted)
        self._claims.add(grant)

    def opened(self, event: ConnectionOpened, now_ms: int) -> bool:
        """Answer the peer's `open`; return whether it is welcome."""
        self._connection.open()
        try:
            self._choice.by_host(event.hostname)
        except AuthorizationError as error:
            self._close(self._reporter.report(error, "$cbs", now_ms))
            return False
        if event.hostname:
            self._reporter.host_name = event.hostname.lower()
        if (anybody := self._choice.authority.anybody) is not None:
            self._claims.add(anybody)
        return True

    def use(self, now_ms: int) -> bool:
        """Note that the peer uses its namespace; return whether that takes it."""
        try:
            self._choice.use()
        except AuthorizationError as error:
            self._close(self._reporter.report(error, "$cbs", now_ms))
            return False
        return True

    def lapsed(self, now_ms: int) -> Iterator[AuthorizationError]:
        """Drop the grants that have expired or are revoked; yield each reason after its grants are gone."""
        expired_at_ms = self._claims.expire(now_ms)
        if expired_at_ms is not None:
            yield TokenExpired.at(expired_at_ms)
        if self._rules_changed:
            self._authority_version = self._authority.version
            if self._claims.revoke(self._authority.upholds):
                yield SignatureInvalid("InvalidSignature: The rule or its key is no longer valid.")

    def end_overdue(self, now_ms: int) -> None:
        """Close the connection of a peer that shows no claim in time, or does not use its claims."""
        limits, due_ms = self._limits, self._inactive_due_ms
        if not self._claims.shown and now_ms >= self._claim_overdue_ms:
            overdue = ClaimOverdue(
                f"There was no valid token or key within {limits.claim_wait_ms // 1000} s of connecting: put "
                "a token on '$cbs', or log in with SASL PLAIN."
            )
            self._close(self._reporter.report(overdue, "$cbs", now_ms))
        elif due_ms is not None and now_ms >= due_ms:
            # It has no link but to `$cbs`, and perhaps to the coordinator: others want a grant.
            inactive = Inactive(
                f"The connection was inactive for {limits.inactive_ms} ms: it has no links, since the "
                "entities of its tokens could not be found."
            )
            self._close(self._reporter.report(inactive, "$cbs", now_ms))

    def next_deadline_ms(self, *, closing: bool) -> int | None:
        """Return when `lapsed`, or `end_overdue` unless the connection is closing, has something to do."""
        if self._rules_changed:
            return 0  # at once
        deadlines = [self._claims.next_expiry_ms()]
        if not closing:
            deadlines.append(self._inactive_due_ms if self._claims.shown else self._claim_overdue_ms)
        return min((at for at in deadlines if at is not None), default=None)

    def token_refused(self, error: AuthorizationError, now_ms: int) -> bool:
        """Count a refused token, and return whether the peer may go on: each costs as much as a send."""
        self._refusals_left -= 1
        if self._bears_refusal() and self._refusals_left:
            return True
        text = f"Too many tokens were refused, the last one because of: {error} Wait before you try again."
        self.expelled = True
        self._close(self._reporter.report(TooManyRefusals(text), "$cbs", now_ms))
        return False

    def _close(self, error: AmqpError) -> None:
        self.closed = True
        self._connection.close(error)

    @property
    def _rules_changed(self) -> bool:
        authority = self._choice.authority
        if self._authority is not authority:
            self._authority, self._authority_version = authority, authority.version
        return authority.version != self._authority_version

    @property
    def _inactive_due_ms(self) -> int | None:
        token_checked_at_ms = self._claims.token_checked_at_ms
        return None if token_checked_at_ms is None else token_checked_at_ms + self._limits.inactive_ms
