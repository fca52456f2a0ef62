"""Who may see a job."""

from __future__ import annotations

import pytest

from peeklock.admin.exchange import AdminRequest
from peeklock.api.exchange import Steer
from peeklock.auth import Authority, SasRule
from peeklock.auth.rights import Right
from tests.api.asking import ApiBroker

LISTEN = frozenset({Right.LISTEN})


@pytest.fixture
def broker() -> ApiBroker:
    rules = [
        SasRule("root", "r" * 44),
        SasRule("reader", "a" * 44, rights=LISTEN),
        SasRule("of-a", "c" * 44, path="a"),
    ]
    return ApiBroker(authority=Authority(rules))


def listed(broker: ApiBroker, name: str, key: str, path: str = "") -> Steer:
    headers = {"host": "h", "authorization": broker.token(name, key * 44, path)}
    request = AdminRequest("GET", "/$api/v1/jobs", "", headers, b"")
    found = broker.api.handle(request, broker.clock.now_ms)
    assert isinstance(found, Steer)
    return found


@pytest.mark.parametrize(
    ("entity", "seen"),
    [
        ("a", True),
        ("A/$deadletterqueue", True),
        ("a/subscriptions/s", True),
        ("a/b", False),  # an entity of its own, whose name begins with that of another
        ("ab", False),
        ("other", False),
    ],
)
def test_a_key_of_an_entity_with_manage_sees_its_jobs_alone(
    broker: ApiBroker, entity: str, seen: bool
) -> None:
    asked = listed(broker, "of-a", "c", "/a")
    assert asked.sees({"entity": entity, "by": "somebody"}, "somebody") is seen


def test_a_key_of_the_namespace_sees_all_with_manage_and_else_its_own(broker: ApiBroker) -> None:
    assert listed(broker, "root", "r").sees({"entity": "a/b", "by": "somebody"}, "somebody")
    reader = listed(broker, "reader", "a")
    assert reader.sees({"entity": "a/b", "by": "reader"}, "reader")
    assert not reader.sees({"entity": "a/b", "by": "somebody"}, "somebody")


def test_a_key_of_the_namespace_does_not_see_jobs_of_an_entitys_key_of_its_name(broker: ApiBroker) -> None:
    reader = listed(broker, "reader", "a")
    assert not reader.sees({"entity": "a", "by": "reader"}, "a reader")
    assert not reader.sees({"entity": "a", "by": "reader"}, "https://issuer.example reader")
