"""What each tier allows, and where queues may forward to."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from peeklock.broker.entities.validation import check_forwarding, checked
from peeklock.broker.vocabulary.commands import (
    Address,
    CreateEntity,
    OpenCoordinator,
    SetSessionState,
    UpdateEntity,
)
from peeklock.broker.vocabulary.descriptions import UNLIMITED_MS, QueueDescription
from peeklock.broker.vocabulary.effects import Done, EntityFound
from peeklock.broker.vocabulary.errors import ArgumentInvalid, MessageSizeExceeded, NotSupported
from peeklock.broker.vocabulary.quotas import BASIC, PREMIUM, STANDARD, TIERS, TierLimits
from tests.broker.harness import MINUTE_MS, Broker

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
        assert f"'orders' sets {setting}" in str(error)
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
            if field.name in ("name", "queues_max", "partitioning", "size_mb_step"):
                continue
            assert getattr(higher, field.name) >= getattr(lower, field.name), field.name


@pytest.fixture
def broker() -> Broker:
    made = Broker()
    made.create("target")
    return made


def test_an_empty_target_is_none(broker: Broker) -> None:
    """Req: F-01, A-01"""
    broker.create(forward_to="", forward_dead_lettered_to="", forward_to_given="sb://localhost/x")
    assert broker.view().description == QueueDescription("orders")


@pytest.mark.parametrize(
    ("setting", "changed"),
    [
        ("RequiresSession", {"requires_session": True}),
        ("RequiresDuplicateDetection", {"requires_duplicate_detection": True}),
        ("EnablePartitioning", {"enable_partitioning": True}),
    ],
)
def test_what_is_fixed_at_creation_cannot_be_changed(
    broker: Broker, setting: str, changed: dict[str, Any]
) -> None:
    """Req: A-07. Source of the text: wire contract C19."""
    broker.create()
    description: Any = broker.view().description
    asked = replace(description, **changed)
    error = broker.refused(UpdateEntity(asked, broker.reply_to()))
    assert type(error) is ArgumentInvalid
    assert str(error) == (
        f"The value for the {setting} property of an existing Queue cannot be changed. "
        f"{setting} of 'orders' is False, requested: True."
    )
    broker.create("new", **changed)
    description = broker.view("new").description
    asked = replace(description, **dict.fromkeys(changed, False))
    assert type(broker.refused(UpdateEntity(asked, broker.reply_to()))) is ArgumentInvalid


def test_the_largest_span_means_never_in_every_tier() -> None:
    """Req: A-03, A-05"""
    for tier in TIERS.values():
        broker = Broker(tier)
        broker.create(auto_delete_on_idle_ms=UNLIMITED_MS)
        assert broker.namespace.timers.next_ms is None


# Targets


@pytest.mark.parametrize("setting", ["forward_to", "forward_dead_lettered_to"])
def test_a_missing_target_is_refused_by_name(setting: str) -> None:
    """Req: F-01

    Source: wire contract 7.8, "Destination must exist (400 otherwise)".
    """
    settings: dict[str, Any] = {setting: "gone"}
    with pytest.raises(ArgumentInvalid, match="'a' names 'gone'"):
        check_forwarding(QueueDescription("a", **settings), {"a", "b"}.__contains__)


@pytest.mark.parametrize("setting", ["forward_to", "forward_dead_lettered_to"])
@pytest.mark.parametrize("target", ["orders", "ORDERS", "target"])
def test_a_forward_may_lead_back(broker: Broker, setting: str, target: str) -> None:
    """Req: F-01, A-01. At a creation and at an update. Source: wire contract C15."""
    broker.create(**{setting: target})
    target_description: Any = broker.view("target").description
    back = replace(target_description, **{setting: "Orders"})
    broker.one(UpdateEntity(back, broker.reply_to()), EntityFound)
    assert getattr(broker.view().description, setting) == target
    assert getattr(broker.view("target").description, setting) == "Orders"


def test_an_entity_with_sessions_may_forward(broker: Broker) -> None:
    """Req: F-01, G-01. Source: wire contract C15."""
    broker.create(requires_session=True, forward_to="target")
    broker.create("late", requires_session=True)
    description: Any = broker.view("late").description
    changed = replace(description, forward_to="target")
    broker.one(UpdateEntity(changed, broker.reply_to()), EntityFound)
    assert [broker.view(name).description.forward_to for name in ("orders", "late")] == ["target"] * 2
