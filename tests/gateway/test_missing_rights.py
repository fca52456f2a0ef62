"""Whatever a client may not do is refused as unauthorized, before anything else is wrong with it."""

from __future__ import annotations

from typing import Any

import pytest

from peeklock.amqp.performatives import TransactionalState
from peeklock.amqp.types import Role, Symbol
from peeklock.auth import Authority, Right, SasRule
from peeklock.broker.vocabulary.commands import Command, DropConnection, LookUp
from peeklock.gateway.links.attach import TRANSFER_DESTINATION
from peeklock.gateway.nodes.management import OPERATIONS
from tests.gateway.harness import Harness, refused

UNAUTHORIZED = "amqp:unauthorized-access"
QUEUES = (
    "orders",
    "orders/$deadletterqueue",
    "orders/$Transfer/$DeadLetterQueue",
    "news/subscriptions/eu",
    "news/Subscriptions/eu/$DeadLetterQueue",
    "news",
    "gone",
)
AUTHORITY = Authority(
    [
        SasRule("sender", "key", rights=frozenset({Right.SEND})),
        SasRule("listener", "key", rights=frozenset({Right.LISTEN})),
        SasRule("orders-only", "key", path="orders"),
    ]
)


def desk_of(rule: str) -> Harness:
    return Harness(authority=AUTHORITY, response=f"\0{rule}\0key".encode())


def commands(rig: Harness) -> list[Command]:
    return [command for command in rig.commands if not isinstance(command, (LookUp, DropConnection))]


@pytest.mark.parametrize("address", QUEUES)
@pytest.mark.parametrize(
    ("rule", "role"),
    [
        ("sender", Role.RECEIVER),
        ("listener", Role.SENDER),
        ("of nobody", Role.SENDER),
        ("of nobody", Role.RECEIVER),
    ],
)
def test_a_link_without_its_right_is_unauthorized_wherever_it_leads(
    address: str, rule: str, role: Role
) -> None:
    """Req: R-04. Also where no such link is possible, as sending to a sub-queue."""
    rig = Harness(mechanism="ANONYMOUS") if rule == "of nobody" else desk_of(rule)
    rig.attach(role, address)
    error = rig.refusal()
    assert error.condition == UNAUTHORIZED
    right = "Send" if role is Role.SENDER else "Listen"
    assert f"'{right}' claim(s) are required" in error.description
    assert f"sb://localhost/{address.lower()}'" in error.description
    assert commands(rig) == []


@pytest.mark.parametrize("address", [f"{queue}/$management" for queue in QUEUES])
@pytest.mark.parametrize("role", [Role.SENDER, Role.RECEIVER])
def test_a_half_of_a_management_node_needs_some_right_on_its_entity(address: str, role: Role) -> None:
    """Req: R-04."""
    rig = Harness(mechanism="ANONYMOUS")
    rig.attach(role, address)
    assert rig.refusal().condition == UNAUTHORIZED
    assert rig.commands == []


@pytest.mark.parametrize("destination", [*QUEUES[1:], "other/$management", "$cbs"])
def test_sending_via_an_entity_without_the_right_on_the_destination_names_both(destination: str) -> None:
    """Req: R-04, F-03. The right on the entity itself is held."""
    rig = desk_of("orders-only")
    rig.attach(Role.SENDER, "orders", properties={Symbol(TRANSFER_DESTINATION): destination})
    if destination.lower().startswith("orders/"):
        assert rig.refusal().condition == "amqp:not-allowed"
        return
    error = rig.refusal()
    assert error.condition == UNAUTHORIZED
    assert "'Send' claim(s) are required" in error.description
    assert f"sb://localhost/{destination.lower()}'" in error.description
    assert rig.commands == []


@pytest.mark.parametrize("operation", sorted(OPERATIONS))
@pytest.mark.parametrize("queue", QUEUES)
@pytest.mark.parametrize("within", [False, True])
def test_an_operation_without_its_right_is_unauthorized(operation: str, queue: str, within: bool) -> None:
    """Req: R-04. Whatever its body is, and in a transaction too."""
    right = OPERATIONS[operation].right
    rig = desk_of("listener" if right is Right.SEND else "sender")
    sender, _ = rig.pair(f"{queue}/$management")
    bodies: list[Any] = [{}, {"messages": []}, None, []]
    for body in bodies:
        rig.request(sender, operation, body, state=TransactionalState(b"1", None) if within else None)
        assert f"'{right.value}' claim(s) are required" in refused(rig, 401, UNAUTHORIZED).description
    assert commands(rig) == []
