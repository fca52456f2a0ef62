"""What each tier allows, and where queues may forward to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest

from peeklock.broker.commands import (
    Address,
    CreateEntity,
    OpenCoordinator,
    SetSessionState,
    UpdateEntity,
)
from peeklock.broker.descriptions import UNLIMITED_MS, QueueDescription
from peeklock.broker.effects import Done
from peeklock.broker.errors import ArgumentInvalid, MessageSizeExceeded, NotSupported
from peeklock.broker.quotas import BASIC, PREMIUM, STANDARD, TIERS, TierLimits
from peeklock.broker.validation import check_forwarding, checked
from tests.broker.playbook import MINUTE_MS, Broker

FEATURES: dict[str, dict[str, Any]] = {
    "RequiresSession": {"requires_session": True},
    "RequiresDuplicateDetection": {"requires_duplicate_detection": True},
    "EnablePartitioning": {"enable_partitioning": True},
    "ForwardTo": {"forward_to": "target"},
    "ForwardDeadLetteredMessagesTo": {"forward_dead_lettered_to": "target"},
    "AutoDeleteOnIdle": {"auto_delete_on_idle_ms": 5 * MINUTE_MS},
}
OFFERED = {
    BASIC: {"EnablePartitioning"},
    STANDARD: set(FEATURES),
    PREMIUM: set(FEATURES) - {"EnablePartitioning"},
}
"""Source: wire contract 10.2; for AutoDeleteOnIdle the service's own refusal on Basic."""


@pytest.mark.parametrize("tier", TIERS.values(), ids=lambda tier: tier.name)
@pytest.mark.parametrize("setting", FEATURES)
def test_a_feature_is_offered_or_refused_by_name(tier: TierLimits, setting: str) -> None:
    """Req: A-05, G-01, D-01, S-02, F-01, A-03"""
    broker = Broker(tier)
    broker.create("target")
    command = CreateEntity(QueueDescription("orders", **FEATURES[setting]), broker.reply_to())
    if setting in OFFERED[tier]:
        broker.do(command)
        assert broker.view().description == checked(command.description, tier)
    else:
        error = broker.refused(command)
        assert type(error) is NotSupported
        assert f"{setting}, asked for by 'orders'" in str(error)
        assert tier.name in str(error)


def test_transactions_are_in_all_tiers_but_basic() -> None:
    """Req: A-05, F-03"""
    for tier in (STANDARD, PREMIUM):
        Broker(tier).coordinator()
    broker = Broker(BASIC)
    assert type(broker.refused(OpenCoordinator(broker.link()))) is NotSupported


@pytest.mark.parametrize(("tier", "size_max"), [(STANDARD, 256 * 1024), (PREMIUM, 1024 * 1024)])
def test_the_state_of_a_session_has_a_limit(tier: TierLimits, size_max: int) -> None:
    """Req: A-05, G-03

    Source: wire contract 10.1.
    """
    broker = Broker(tier)
    broker.create(requires_session=True)
    broker.accept("s")

    def setting(size_bytes: int) -> SetSessionState:
        return SetSessionState(Address("orders"), "s", bytes(size_bytes), broker.reply_to())

    assert type(broker.refused(setting(size_max + 1))) is MessageSizeExceeded
    broker.one(setting(size_max), Done)


def test_a_higher_tier_has_no_smaller_limit_but_for_its_entities() -> None:
    """Req: A-05"""
    for lower, higher in ((BASIC, STANDARD), (STANDARD, PREMIUM)):
        for field in fields(TierLimits):
            if field.name in ("name", "queues_max", "partitioning"):
                continue
            assert getattr(higher, field.name) >= getattr(lower, field.name), field.name


def test_a_queue_with_sessions_cannot_forward_its_messages_but_its_dead_letters(broker: Broker) -> None:
    """Req: F-01, G-01

    Source: wire contract 10.3.
    """
    asked = QueueDescription("orders", requires_session=True, forward_to="target")
    error = broker.refused(CreateEntity(asked, broker.reply_to()))
    assert type(error) is ArgumentInvalid
    assert "RequiresSession" in str(error) or "sessions" in str(error)
    broker.create(requires_session=True, forward_dead_lettered_to="target")
    changed = replace(broker.view().description, forward_to="target")
    assert type(broker.refused(UpdateEntity(changed, broker.reply_to()))) is ArgumentInvalid


@pytest.fixture
def broker() -> Broker:
    made = Broker()
    made.create("target")
    return made


def test_an_empty_target_is_none(broker: Broker) -> None:
    """Req: F-01, A-01"""
    broker.create(forward_to="", forward_dead_lettered_to="")
    description = broker.view().description
    assert (description.forward_to, description.forward_dead_lettered_to) == (None, None)


@pytest.mark.parametrize(
    "changed",
    [{"requires_session": True}, {"requires_duplicate_detection": True}, {"enable_partitioning": True}],
)
def test_what_is_fixed_at_creation_cannot_be_changed(broker: Broker, changed: dict[str, Any]) -> None:
    """Req: A-07"""
    broker.create()
    asked = replace(broker.view().description, **changed)
    error = broker.refused(UpdateEntity(asked, broker.reply_to()))
    assert type(error) is ArgumentInvalid
    assert "fixed at creation" in str(error)
    broker.create("new", **changed)
    asked = replace(broker.view("new").description, **dict.fromkeys(changed, False))
    assert type(broker.refused(UpdateEntity(asked, broker.reply_to()))) is ArgumentInvalid


def test_the_largest_span_means_never_in_every_tier() -> None:
    """Req: A-03, A-05"""
    for tier in TIERS.values():
        broker = Broker(tier)
        broker.create(auto_delete_on_idle_ms=UNLIMITED_MS)
        assert broker.namespace.next_deadline_ms() is None


# Circles


def found(*forwards: tuple[str, str | None, str | None]) -> Callable[[str], list[str] | None]:
    """Give where the messages and the dead letters of queues go, by name."""
    known = {
        name.lower(): [path for path in (target, dead) if path is not None] for name, target, dead in forwards
    }
    return lambda name: known.get(name.lower())


@pytest.mark.parametrize(
    ("target", "dead", "others", "circle"),
    [
        ("a", None, [], "a -> a"),
        ("A", None, [], "a -> a"),
        (None, "a", [], "a -> a"),
        ("b", None, [("b", "a", None)], "a -> b -> a"),
        ("b", None, [("b", None, "A")], "a -> b -> a"),
        (None, "b", [("b", "a", None)], "a -> b -> a"),
        ("b", "c", [("b", None, None), ("c", "D", None), ("d", None, "a")], "a -> c -> D -> a"),
        ("b", None, [("b", "c", "d"), ("c", None, "d"), ("d", "a", None)], "a -> b -> d -> a"),
    ],
)
def test_a_circle_is_refused_and_named(
    target: str | None, dead: str | None, others: list[tuple[str, str | None, str | None]], circle: str
) -> None:
    """Req: F-01"""
    asked = QueueDescription("a", forward_to=target, forward_dead_lettered_to=dead)
    with pytest.raises(ArgumentInvalid, match=circle):
        check_forwarding(asked, found(*others))


def test_what_a_queue_forwarded_to_before_does_not_count() -> None:
    """Req: F-01, A-07"""
    find = found(("a", "b", None), ("b", None, None), ("c", "a", None))
    check_forwarding(QueueDescription("a", forward_to="b"), find)
    check_forwarding(QueueDescription("b"), find)
    with pytest.raises(ArgumentInvalid, match="b -> c -> a -> b"):
        check_forwarding(QueueDescription("b", forward_to="c"), find)


@pytest.mark.parametrize("setting", ["forward_to", "forward_dead_lettered_to"])
def test_a_missing_target_is_refused_by_name(setting: str) -> None:
    """Req: F-01

    Source: wire contract 7.8, "Destination must exist (400 otherwise)".
    """
    with pytest.raises(ArgumentInvalid, match="'a' names 'gone'"):
        check_forwarding(QueueDescription("a", **{setting: "gone"}), found(("b", None, None)))


def test_a_target_of_a_target_may_be_gone() -> None:
    """Req: F-01"""
    check_forwarding(QueueDescription("a", forward_to="b"), found(("b", "gone", None)))


def test_a_queue_made_anew_may_not_close_a_circle(broker: Broker) -> None:
    """Req: F-01, A-01"""
    broker.create("new", forward_to="target")
    broker.create("last", forward_to="new")
    asked = replace(broker.view("target").description, forward_to="last")
    error = broker.refused(UpdateEntity(asked, broker.reply_to()))
    assert "target -> last -> new -> target" in str(error)


def test_long_chains_and_many_ways_to_one_queue_are_no_circle() -> None:
    """Req: F-01, R-05"""
    count = 10_000
    chain = [(f"q{n}", f"q{n + 1}", f"q{n + 2}") for n in range(count)]
    ends: list[tuple[str, str | None, str | None]] = [
        (f"q{count}", None, None),
        (f"q{count + 1}", None, None),
    ]
    find = found(*chain, *ends)
    check_forwarding(QueueDescription("a", forward_to="q0", forward_dead_lettered_to="q1"), find)
    with pytest.raises(ArgumentInvalid, match=r"circle: q10001 -> q0 -> .* -> q10001$"):
        check_forwarding(QueueDescription(f"q{count + 1}", forward_to="q0"), find)
