"""The table of statuses."""

from __future__ import annotations

from peeklock.admin.errors import STATUSES, status_of
from peeklock.auth.errors import AuthorizationError
from peeklock.broker.vocabulary.errors import ServiceBusError


def leaves(kind: type[Exception]) -> set[type[Exception]]:
    below = kind.__subclasses__()
    return {leaf for child in below for leaf in leaves(child)} if below else {kind}


def test_every_reason_to_refuse_has_a_status() -> None:
    """Req: A-01."""
    assert set(STATUSES) == leaves(ServiceBusError) | leaves(AuthorizationError)


def test_no_refusal_looks_like_a_success() -> None:
    for kind in STATUSES:
        status, text = status_of(kind("reason"))
        assert 400 <= status < 600
        assert text.endswith("reason")
