"""What a configuration file asks of the broker."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peeklock.broker.commands import CreateEntity, UpdateEntity
from peeklock.broker.descriptions import UNLIMITED_MS, EntityStatus, QueueDescription
from peeklock.broker.effects import EntityFound, EntityView
from peeklock.broker.namespace import Namespace
from peeklock.broker.quotas import BASIC, PREMIUM, STANDARD, TierLimits
from peeklock.broker.validation import checked
from peeklock.server.config import Config, ConfigError, format_config, parse_config
from peeklock.server.reconcile import reconcile

REPLY_TO = (0, 0, 0, 1)
QUEUE = "UserConfig.Namespaces[0].Queues[0]"


def read(*queues: Any) -> Config:
    return parse_config(
        json.dumps({"UserConfig": {"Namespaces": [{"Name": "ns", "Queues": list(queues)}]}}).encode()
    )


def with_property(key: str, value: Any) -> Config:
    return read({"Name": "orders", "Properties": {key: value}})


def view(**settings: Any) -> EntityView:
    return view_of(QueueDescription(**settings))


def view_of(description: QueueDescription) -> EntityView:
    return EntityView(1, description, 0, 0, 0, 0, 0, 0, 0, 0)


def empty_namespace(tier: TierLimits) -> Namespace:
    return Namespace(limits=tier, tokens=bytes, digest_key=b"")


def start(namespace: Namespace, config: Config, tier: TierLimits) -> int:
    """Have the broker do what the file asks for; answer how many commands that took."""
    steps = reconcile(config, namespace.entity_views(), tier)
    for step in steps:
        (answer,) = namespace.apply(step(REPLY_TO), now_ms=1)[1]
        assert isinstance(answer, EntityFound)
    return len(steps)


def test_missing_queues_are_created() -> None:
    """Req: A-02."""
    config = read({"Name": "a", "Properties": {"ForwardTo": "b"}}, {"Name": "b"})
    steps = reconcile(config, [], STANDARD)
    assert [step(REPLY_TO) for step in steps] == [
        CreateEntity(QueueDescription("b"), REPLY_TO),
        CreateEntity(QueueDescription("a", forward_to="b"), REPLY_TO),
    ]
    assert [step.path for step in steps] == [f"UserConfig.Namespaces[0].Queues[{n}]" for n in (1, 0)]


def test_a_queue_that_agrees_is_left_alone_whatever_its_name_s_case() -> None:
    """Req: A-02, L-12. An update would cost the held locks."""
    old = view(name="Orders", max_delivery_count=5)
    assert reconcile(with_property("MaxDeliveryCount", 5), [old], STANDARD) == []


def test_a_difference_is_applied_and_all_else_stays() -> None:
    """Req: A-02."""
    old = view(
        name="Orders",
        max_delivery_count=5,
        lock_duration_ms=5_000,
        status=EntityStatus.SEND_DISABLED,
        user_metadata="made by hand",
    )
    steps = reconcile(with_property("MaxDeliveryCount", 7), [old], STANDARD)
    assert [step(REPLY_TO) for step in steps] == [
        UpdateEntity(
            QueueDescription(
                "Orders",
                max_delivery_count=7,
                lock_duration_ms=5_000,
                status=EntityStatus.SEND_DISABLED,
                user_metadata="made by hand",
            ),
            REPLY_TO,
        )
    ]


def test_a_difference_in_what_cannot_be_changed_refuses_the_start() -> None:
    """Req: A-02."""
    with pytest.raises(ConfigError) as refused:
        reconcile(with_property("RequiresDuplicateDetection", True), [view(name="orders")], STANDARD)
    assert str(refused.value) == (
        f"{QUEUE}.Properties.RequiresDuplicateDetection: is false on the existing queue 'orders' and "
        "cannot be changed; correct the file, or delete the queue first"
    )
    for key, field in (
        ("RequiresSession", "requires_session"),
        ("EnablePartitioning", "enable_partitioning"),
    ):
        with pytest.raises(ConfigError, match=f"{key}: is true on the existing queue"):
            reconcile(with_property(key, False), [view(name="orders", **{field: True})], STANDARD)


# Forwards


def forwarding(*forwards: tuple[str, str | None, str | None]) -> Config:
    """Name, ForwardTo and ForwardDeadLetteredMessagesTo of each queue; None = not in the file."""
    queues = []
    for name, to, dead_to in forwards:
        properties = {"ForwardTo": to, "ForwardDeadLetteredMessagesTo": dead_to}
        given_ones = {key: target for key, target in properties.items() if target is not None}
        queues.append({"Name": name, "Properties": given_ones})
    return read(*queues)


def order(config: Config, *existing: EntityView) -> list[str]:
    return [step.description.name for step in reconcile(config, existing, STANDARD)]


def test_a_queue_may_forward_to_one_below_it_in_the_file() -> None:
    """Req: A-02, F-01. The broker takes a forward only to a queue that is there."""
    config = forwarding(("a", "B", "d"), ("b", "c", None), ("c", None, "d"), ("d", None, None))
    assert order(config) == ["d", "c", "b", "a"]
    assert order(config, view(name="c", forward_dead_lettered_to="d")) == ["d", "b", "a"]


def test_a_namespace_made_by_the_file_agrees_with_it_at_the_next_start() -> None:
    """Req: A-02, F-01. The broker takes each command in its turn, and nothing is left to do."""
    namespace = empty_namespace(STANDARD)
    chain = forwarding(("a", "B", "d"), ("b", "c", None), ("c", None, "d"), ("d", None, None))
    assert start(namespace, chain, STANDARD) == 4
    assert start(namespace, chain, STANDARD) == 0
    turned = forwarding(("a", "", ""), ("b", "a", None), ("c", "b", ""), ("d", "c", None))
    assert start(namespace, turned, STANDARD) == 4
    assert start(namespace, turned, STANDARD) == 0


def test_turning_a_forward_round_closes_no_circle_on_the_way() -> None:
    """Req: A-02, F-01."""
    old = [view(name="a", forward_to="b"), view(name="b")]
    assert order(forwarding(("b", "a", None), ("a", "", None)), *old) == ["a", "b"]


def test_a_forward_to_a_queue_from_before_needs_no_entry_in_the_file() -> None:
    """Req: A-02, F-01."""
    assert order(forwarding(("a", "Kept", None)), view(name="kept")) == ["a"]


def test_a_forward_whose_target_was_deleted_since_may_stay_as_it_is() -> None:
    """Req: A-02. The file still says what is so: nothing is to be done."""
    assert order(forwarding(("a", "gone", None)), view(name="a", forward_to="gone")) == []


@pytest.mark.parametrize(
    ("forwards", "existing", "problems"),
    [
        (
            [("a", "gone", None), ("b", None, "lost")],
            [],
            [
                "Queues[0].Properties.ForwardTo: there is no queue 'gone', in the file or from before",
                "Queues[1].Properties.ForwardDeadLetteredMessagesTo: there is no queue 'lost', "
                "in the file or from before",
            ],
        ),
        ([("a", "A", None)], [], ["Queues[0].Properties.ForwardTo: forwards to 'A' and so in a circle"]),
        (
            [("a", None, "b"), ("b", "a", None)],
            [],
            [
                "Queues[0].Properties.ForwardDeadLetteredMessagesTo: forwards to 'b' and so in a circle",
                "Queues[1].Properties.ForwardTo: forwards to 'a' and so in a circle",
            ],
        ),
        (
            [("b", "a", None)],
            [view(name="a", forward_to="b"), view(name="b")],
            ["Queues[0].Properties.ForwardTo: forwards to 'a' and so in a circle"],
        ),
    ],
)
def test_a_forward_that_leads_nowhere_or_in_a_circle_is_told_by_its_path(
    forwards: list[Any], existing: list[EntityView], problems: list[str]
) -> None:
    """Req: A-02, F-01."""
    with pytest.raises(ConfigError) as refused:
        order(forwarding(*forwards), *existing)
    assert list(refused.value.problems) == [f"UserConfig.Namespaces[0].{problem}" for problem in problems]


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=8),
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=8),
)
def test_no_command_comes_before_its_targets_or_closes_a_circle(
    before: list[tuple[int, int]], after: list[tuple[int, int]]
) -> None:
    """Req: A-02, F-01. From any forwards without circles to any others, in a file in any order."""
    old = {str(source): str(target) for source, target in before if source < target}
    new = {str(source): str(target) for source, target in after if source > target}
    names = sorted({*new, *new.values()})
    exist = {*old, *old.values()}
    config = forwarding(*((name, new.get(name, ""), None) for name in names))
    steps = reconcile(config, [view(name=name, forward_to=old.get(name)) for name in exist], STANDARD)
    now = dict(old)
    for step in steps:
        name, target = step.description.name, step.description.forward_to
        assert step.exists == (name in exist)
        assert target is None or target in exist
        exist.add(name)
        now.pop(name, None)
        if target is not None:
            now[name] = target
        while target is not None:
            assert target != name
            target = now.get(target)


def test_queues_that_the_file_does_not_name_stay() -> None:
    """Req: A-02."""
    assert reconcile(read(), [view(name="kept")], STANDARD) == []


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("LockDuration", "P25D", "LockDuration of 'orders' is 2160000000 ms, allowed are 5000 to 300000 ms"),
        ("LockDuration", "PT4S", "LockDuration of 'orders' is 4000 ms, allowed are 5000 to 300000 ms"),
        ("MaxDeliveryCount", 0, "MaxDeliveryCount of 'orders' is 0, allowed are 1 to 2000"),
        (
            "DuplicateDetectionHistoryTimeWindow",
            "PT19S",
            "DuplicateDetectionHistoryTimeWindow of 'orders' is 19000 ms, allowed are 20000 to 604800000 ms",
        ),
    ],
)
@pytest.mark.parametrize("exists", [False, True])
def test_a_value_out_of_range_is_told_by_its_path_before_anything_is_run(
    key: str, value: Any, reason: str, exists: bool
) -> None:
    """Req: A-02, A-05."""
    config = read({"Name": "orders", "Properties": {key: value}}, {"Name": "other"})
    with pytest.raises(ConfigError) as refused:
        reconcile(config, [view(name="orders")] if exists else [], STANDARD)
    assert str(refused.value) == f"{QUEUE}.Properties: {reason}"


def test_what_the_tier_makes_of_a_value_is_no_difference_at_the_next_start() -> None:
    """Req: A-02, A-05. In the basic tier "unlimited" means 14 days."""
    config = with_property("DefaultMessageTimeToLive", "P10675199DT2H48M5.4775807S")
    (created,) = reconcile(config, [], BASIC)
    assert created.description.default_ttl_ms == 14 * 86_400_000
    assert reconcile(config, [EntityView(1, created.description, 0, 0, 0, 0, 0, 0, 0, 0)], BASIC) == []


# A file that was written by the broker


@st.composite
def descriptions(draw: st.DrawFn, name: str, targets: list[str], tier: TierLimits) -> QueueDescription:
    """A queue as the broker keeps it, which forwards to some of the targets."""
    target = st.sampled_from([None, *targets]) if tier.forwarding else st.none()
    settings: dict[str, Any] = {
        "lock_duration_ms": draw(st.integers(5_000, 300_000)),
        "max_size_mb": draw(st.integers(1024, tier.max_size_mb_max)),
        "requires_duplicate_detection": draw(st.booleans()) and tier.duplicate_detection,
        "requires_session": draw(st.booleans()) and tier.sessions,
        "default_ttl_ms": draw(st.integers(1_000, tier.ttl_ms_max)),
        "dead_lettering_on_expiration": draw(st.booleans()),
        "duplicate_window_ms": draw(st.integers(20_000, 604_800_000)),
        "max_delivery_count": draw(st.integers(1, 2_000)),
        "enable_batched_operations": draw(st.booleans()),
        "status": draw(st.sampled_from(EntityStatus)),
        "forward_to": draw(target),
        "forward_dead_lettered_to": draw(target),
        "user_metadata": draw(st.none() | st.text(min_size=1, max_size=40)),
        "auto_delete_on_idle_ms": UNLIMITED_MS,
        "enable_partitioning": draw(st.booleans()) and tier.partitioning,
        "enable_express": draw(st.booleans()),
    }
    if tier.idle_deletion:
        settings["auto_delete_on_idle_ms"] = draw(st.integers(300_000, UNLIMITED_MS))
    if tier is PREMIUM:
        settings["max_message_size_kb"] = draw(st.none() | st.integers(1024, tier.message_size_kb_max))
    if settings["requires_session"]:
        settings["forward_to"] = None
    left_out = draw(st.sets(st.sampled_from(sorted(settings))))
    given_ones = {field: value for field, value in settings.items() if field not in left_out}
    return checked(QueueDescription(name, **given_ones), tier)


@given(st.data(), st.sampled_from([BASIC, STANDARD, PREMIUM]), st.permutations(["a", "B/b", "c-1", "D"]))
def test_a_file_that_was_exported_changes_nothing_where_it_came_from_and_makes_the_same_elsewhere(
    data: st.DataObject, tier: TierLimits, names: list[str]
) -> None:
    """Req: A-02. Export, read: no commands over the same queues; over none, queues that are equal."""
    queues: list[QueueDescription] = []
    for name in names:
        queues.append(data.draw(descriptions(name, [queue.name for queue in queues], tier)))
    config = parse_config(format_config(queues).encode())
    assert reconcile(config, [view_of(queue) for queue in queues], tier) == []
    namespace = empty_namespace(tier)
    assert start(namespace, config, tier) == len(queues)
    made = {found.description.name: found.description for found in namespace.entity_views()}
    assert made == {queue.name: queue for queue in queues}
