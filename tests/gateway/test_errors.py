"""One table for all refusals; one tracking id in the client's text and in the log."""

from __future__ import annotations

import re

import pytest

from peeklock import auth
from peeklock.amqp.types import Role
from peeklock.auth import errors as auth_errors
from peeklock.auth.sas import generate
from peeklock.broker.vocabulary import errors as broker_errors
from peeklock.gateway import errors as gateway_errors
from peeklock.gateway.errors import LOG_LINES_MAX, LOG_WINDOW_MS, TABLE, Reporter
from tests.gateway.harness import CONNECTION_ID, Harness

NOW_MS = 1_700_000_000_000


def leaves(*roots: type[Exception]) -> set[type[Exception]]:
    found: set[type[Exception]] = set()
    for root in roots:
        below = root.__subclasses__()
        found |= leaves(*below) if below else {root}
    return found


def test_the_table_holds_every_leaf_and_nothing_else() -> None:
    """Req: T-03."""
    roots = (broker_errors.ServiceBusError, auth_errors.AuthorizationError, gateway_errors.GatewayError)
    assert set(TABLE) == leaves(*roots)
    assert len(TABLE) > 20


@pytest.mark.parametrize(
    ("error", "condition", "status"),
    [
        (broker_errors.EntityNotFound, "amqp:not-found", 404),
        (broker_errors.EntityAlreadyExists, "com.microsoft:entity-already-exists", 409),
        (broker_errors.EntityDisabled, "com.microsoft:entity-disabled", 403),
        (broker_errors.EntityDeleted, "amqp:resource-deleted", 404),
        (broker_errors.InvalidOperation, "amqp:not-allowed", 400),
        (broker_errors.ArgumentInvalid, "com.microsoft:argument-error", 400),
        (broker_errors.ArgumentOutOfRange, "com.microsoft:argument-out-of-range", 400),
        (broker_errors.NotSupported, "amqp:not-implemented", 501),
        (broker_errors.MessageLockLost, "com.microsoft:message-lock-lost", 410),
        (broker_errors.SessionLockLost, "com.microsoft:session-lock-lost", 410),
        (broker_errors.SessionCannotBeLocked, "com.microsoft:session-cannot-be-locked", 409),
        (broker_errors.SessionWaitTimedOut, "com.microsoft:timeout", 408),
        (broker_errors.TransactionUnknown, "amqp:transaction:unknown-id", 404),
        (broker_errors.TransactionTimedOut, "amqp:transaction:timeout", 408),
        (broker_errors.TransactionRolledBack, "amqp:transaction:rollback", 409),
        (broker_errors.RuleNotFound, "amqp:not-found", 404),
        (broker_errors.RuleAlreadyExists, "com.microsoft:entity-already-exists", 409),
        (broker_errors.MessageNotFound, "com.microsoft:message-not-found", 404),
        (broker_errors.MessageSizeExceeded, "amqp:link:message-size-exceeded", 403),
        (broker_errors.QuotaExceeded, "amqp:resource-limit-exceeded", 403),
        (broker_errors.ServerBusy, "com.microsoft:server-busy", 503),
        (auth_errors.TokenMalformed, "com.microsoft:argument-error", 400),
        (auth_errors.TokenTypeUnsupported, "amqp:unauthorized-access", 401),
        (auth_errors.SignatureInvalid, "amqp:unauthorized-access", 401),
        (auth_errors.TokenExpired, "amqp:unauthorized-access", 401),
        (auth_errors.AudienceNotCovered, "amqp:unauthorized-access", 401),
        (auth_errors.ClaimMissing, "amqp:unauthorized-access", 401),
        (auth_errors.KeyRefused, "amqp:unauthorized-access", 401),
        (gateway_errors.MessageMalformed, "amqp:decode-error", 400),
        (gateway_errors.AddressInvalid, "amqp:invalid-field", 400),
        (gateway_errors.FilterInvalid, "amqp:invalid-field", 400),
        (gateway_errors.TooManyGrants, "amqp:resource-limit-exceeded", 403),
        (gateway_errors.ClaimOverdue, "amqp:connection:forced", 401),
        (gateway_errors.Inactive, "amqp:connection:forced", 408),
    ],
)
def test_each_refusal_has_the_condition_that_clients_classify_rightly(
    error: type[Exception], condition: str, status: int
) -> None:
    """Req: T-03. Source: wire contract 4.6, 5.1, 5.2."""
    assert (str(TABLE[error].condition), TABLE[error].status) == (condition, status)


def test_text_and_log_line_share_one_tracking_id() -> None:
    """Req: T-02."""
    lines: list[tuple[str, dict[str, object]]] = []
    reporter = Reporter(7, lambda: "0a1b", lambda event, fields: lines.append((event, fields)))
    error = reporter.report(broker_errors.QuotaExceeded("'orders' is full."), "orders", NOW_MS)
    assert error.description == (
        "'orders' is full. TrackingId:0a1b_G7, SystemTracker:localhost:orders, Timestamp:2023-11-14T22:13:20"
    )
    assert str(error.condition) == "amqp:resource-limit-exceeded"
    stopless = reporter.report(broker_errors.QuotaExceeded("'orders' is full"), "orders", NOW_MS)
    assert stopless.description == error.description
    lines.pop()
    [(event, fields)] = lines
    assert event == "refused"
    assert fields == {
        "tracking_id": "0a1b_G7",
        "condition": "amqp:resource-limit-exceeded",
        "entity": "orders",
        "text": "'orders' is full.",
        "connection": 7,
    }


def test_the_log_says_who_was_refused_and_which_key_was_named() -> None:
    """Req: T-02, R-04. Never more of a stranger's text than 64 characters, and never a key."""
    lines: list[dict[str, object]] = []
    reporter = Reporter(7, lambda: "0a1b", lambda _, fields: lines.append(fields), lambda: "192.0.2.7:4711")
    authority = auth.Authority([auth.SasRule("known", "c2VjcmV0LWtleQ==", "", auth.ALL_RIGHTS)])
    for name, key in (
        ("known", "wrong"),
        ("x" * 100, "wrong"),
        ("c2VjcmV0LWtleQ==", "x"),
        ("chosen", "known"),
    ):
        with pytest.raises(auth.KeyRefused) as refused:
            authority.authorize_key(name, key)
        reporter.report(refused.value, "$sasl", NOW_MS)
    with pytest.raises(auth.SignatureInvalid) as bad:
        authority.authorize(generate("sb://localhost/q", "Known", "wrong", NOW_MS + 1000), "q", NOW_MS)
    reporter.report(bad.value, "$cbs", NOW_MS)
    no_name = "(not a valid rule name)"
    assert [line["key_name"] for line in lines] == ["known", "x" * 64, no_name, no_name, "Known"]
    assert {line["peer"] for line in lines} == {"192.0.2.7:4711"}
    assert "c2VjcmV0" not in str(lines), "name and key are swapped"


# The log of one connection


class Lines:
    """A reporter and what it logs: each event, and the count where it counts."""

    def __init__(self) -> None:
        self.logged: list[object] = []
        self.reporter = Reporter(7, lambda: "id", self._take)

    def _take(self, event: str, fields: dict[str, object]) -> None:
        assert fields["connection"] == 7
        self.logged.append((event, fields["count"]) if "count" in fields else event)

    def refuse(self, times: int, now_ms: int) -> None:
        for _ in range(times):
            error = self.reporter.report(broker_errors.MessageLockLost("gone"), "orders", now_ms)
            assert "TrackingId:id_G7" in error.description  # told to the client in any case

    def take(self) -> list[object]:
        taken, self.logged = self.logged, []
        return taken


def test_a_connection_has_20_lines_a_minute_and_one_that_counts_the_rest() -> None:
    """Req: R-05. The line comes by itself when the minute is over."""
    lines = Lines()
    lines.refuse(LOG_LINES_MAX, NOW_MS)
    assert lines.reporter.next_deadline_ms() is None
    lines.refuse(999, NOW_MS + 1)
    lines.reporter.note("reply without a link", {"node": "orders"}, NOW_MS + LOG_WINDOW_MS - 1)
    assert lines.take() == ["refused"] * LOG_LINES_MAX
    assert lines.reporter.next_deadline_ms() == NOW_MS + LOG_WINDOW_MS
    lines.reporter.tick(NOW_MS + LOG_WINDOW_MS - 1)
    assert lines.take() == []
    lines.reporter.tick(NOW_MS + LOG_WINDOW_MS)
    assert lines.take() == [("log lines left out", 1_000)]
    assert lines.reporter.next_deadline_ms() is None


def test_the_next_minute_of_a_log_begins_with_its_first_line() -> None:
    """Req: R-05."""
    lines = Lines()
    lines.refuse(LOG_LINES_MAX, NOW_MS)
    lines.refuse(1, NOW_MS + LOG_WINDOW_MS)
    assert lines.take() == ["refused"] * (LOG_LINES_MAX + 1)
    lines.refuse(LOG_LINES_MAX, NOW_MS + LOG_WINDOW_MS + 1)
    lines.refuse(1, NOW_MS + 5 * LOG_WINDOW_MS)
    assert lines.take() == ["refused"] * (LOG_LINES_MAX - 1) + [("log lines left out", 1), "refused"]


def test_a_connection_that_ends_is_counted_up_to_its_end() -> None:
    """Req: R-05. Its last words are heard however much it said before."""
    lines = Lines()
    lines.refuse(LOG_LINES_MAX + 3, NOW_MS)
    lines.take()
    lines.reporter.finish()
    lines.reporter.note("connection closed", {}, NOW_MS)
    lines.reporter.finish()
    assert lines.take() == [("log lines left out", 3), "connection closed"]


def test_a_client_that_is_refused_all_the_time_does_not_fill_the_log() -> None:
    """Req: R-05. Through the gateway: its ticks, and its end."""
    rig = Harness()
    for _ in range(LOG_LINES_MAX + 5):
        rig.attach(Role.RECEIVER, "")
    assert [event for event, _ in rig.logged] == ["refused"] * LOG_LINES_MAX
    rig.logged.clear()
    due = rig.gateway.next_deadline_ms()
    assert due == rig.clock.now_ms + LOG_WINDOW_MS
    rig.gateway.tick(due)
    assert rig.logged == [("log lines left out", {"count": 5, "connection": CONNECTION_ID})]
    rig.clock.now_ms = due
    for _ in range(LOG_LINES_MAX + 2):
        rig.attach(Role.RECEIVER, "")
    rig.logged.clear()
    rig.gateway.receive(b"\xff" * 8, due)
    assert [event for event, _ in rig.logged] == ["log lines left out", "connection closed"]


def test_a_missing_entity_is_told_in_the_words_that_javascript_recognises() -> None:
    """Req: T-03. Source: core-amqp translates by /The messaging entity '([^']*)' could not be found/."""
    reporter = Reporter(7, lambda: "id", lambda event, fields: None)
    reporter.host_name = "ns.example.org"
    text = reporter.report(broker_errors.EntityNotFound("whatever"), "orders", NOW_MS).description
    assert re.search(r"The messaging entity '([^']*)' could not be found", text)
    assert "sb://ns.example.org/orders" in text
