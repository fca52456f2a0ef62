"""Creating, updating, finding, listing and deleting queues."""

from __future__ import annotations

import string
from dataclasses import replace
from typing import Any

import pytest

from peeklock.broker.vocabulary.changes import EntityRemoved, EntityStored
from peeklock.broker.vocabulary.commands import (
    Address,
    AddRule,
    CancelScheduled,
    Command,
    Complete,
    CreateEntity,
    DeleteEntity,
    DeleteMessages,
    ListEntities,
    LookUp,
    OpenReceiver,
    Peek,
    ReceiveDeferred,
    ReceiveMode,
    RemoveRule,
    ReplyTo,
    SequenceNumber,
    SetCredit,
    SubQueue,
    UpdateEntity,
)
from peeklock.broker.vocabulary.descriptions import (
    UNLIMITED_MS,
    EntityKind,
    EntityStatus,
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
)
from peeklock.broker.vocabulary.effects import (
    DetachLink,
    Done,
    EntitiesFound,
    EntityFound,
    MessagesDeleted,
    ReceiverOpened,
)
from peeklock.broker.vocabulary.errors import (
    ArgumentInvalid,
    ArgumentOutOfRange,
    EntityAlreadyExists,
    EntityDeleted,
    EntityDisabled,
    EntityNotFound,
    MessageNotFound,
    NameInvalid,
    NotSupported,
    QuotaExceeded,
    ServiceBusError,
)
from peeklock.broker.vocabulary.quotas import BASIC, PREMIUM, STANDARD, TIERS, TierLimits
from tests.broker.harness import LOTS, MINUTE_MS, START_MS, Broker, numbers, token

DAY_MS = 24 * 60 * MINUTE_MS


@pytest.fixture
def broker() -> Broker:
    made = Broker()
    made.create()
    return made


def test_a_new_queue_has_the_defaults_and_is_written(broker: Broker) -> None:
    """Req: A-05, L-03, L-08"""
    view = broker.view()
    description = QueueDescription("orders")
    assert broker.facts == [EntityStored(1, description, START_MS, START_MS)]
    assert view.description == description
    assert (description.lock_duration_ms, description.max_delivery_count) == (MINUTE_MS, 10)
    counts = (
        view.active_count,
        view.scheduled_count,
        view.dead_letter_count,
        view.transfer_dead_letter_count,
    )
    assert counts == (0, 0, 0, 0)
    assert (view.created_at_ms, view.updated_at_ms, view.accessed_at_ms) == (START_MS, START_MS, 0)
    assert view.size_bytes == 0


@pytest.mark.parametrize(
    "settings",
    [
        {"lock_duration_ms": 5_000},
        {"lock_duration_ms": 300_000},
        {"max_delivery_count": 1},
        {"max_delivery_count": 2**31 - 1},
        {"default_ttl_ms": 1_000},
        {"default_ttl_ms": UNLIMITED_MS},
        {"duplicate_window_ms": 20_000},
        {"duplicate_window_ms": 7 * DAY_MS},
        *({"max_size_mb": 1024 * number} for number in range(1, 6)),
        {"max_size_mb": 5120, "enable_partitioning": True},
        {"user_metadata": "x" * 1024},
        {"auto_delete_on_idle_ms": 5 * MINUTE_MS},
        {"name": "x" * 260},
        {"name": "a/b.c-d_e"},
        {"name": "0"},
    ],
)
def test_a_setting_at_its_limit_passes(settings: dict[str, Any]) -> None:
    """Req: L-03, L-08, D-01, E-06, R-05, C33, C44"""
    broker = Broker()
    broker.create(**settings)
    assert broker.namespace.totals().entities == 1


@pytest.mark.parametrize(
    ("settings", "reason", "named"),
    [
        ({"lock_duration_ms": 4_999}, ArgumentOutOfRange, "LockDuration"),
        ({"lock_duration_ms": 300_001}, ArgumentOutOfRange, "LockDuration"),
        ({"max_delivery_count": 0}, ArgumentOutOfRange, "MaxDeliveryCount"),
        ({"max_delivery_count": 2**31}, ArgumentOutOfRange, "MaxDeliveryCount"),
        ({"default_ttl_ms": 999}, ArgumentOutOfRange, "DefaultMessageTimeToLive"),
        ({"default_ttl_ms": -1}, ArgumentOutOfRange, "DefaultMessageTimeToLive"),
        ({"duplicate_window_ms": 19_999}, ArgumentOutOfRange, "DuplicateDetectionHistoryTimeWindow"),
        ({"duplicate_window_ms": 7 * DAY_MS + 1}, ArgumentOutOfRange, "DuplicateDetectionHistoryTimeWindow"),
        ({"max_size_mb": 1023}, ArgumentOutOfRange, "MaxSizeInMegabytes"),
        ({"max_size_mb": 5121}, ArgumentOutOfRange, "allowed: 1024, 2048, 3072, 4096, 5120"),
        ({"max_size_mb": 1500}, ArgumentOutOfRange, "MaxSizeInMegabytes of"),
        ({"max_size_mb": 6144}, ArgumentOutOfRange, "MaxSizeInMegabytes of"),
        ({"max_size_mb": 0}, ArgumentOutOfRange, "MaxSizeInMegabytes of"),
        ({"max_size_mb": -1024}, ArgumentOutOfRange, "MaxSizeInMegabytes of"),
        ({"user_metadata": "x" * 1025}, ArgumentOutOfRange, "UserMetadata"),
        ({"auto_delete_on_idle_ms": 5 * MINUTE_MS - 1}, ArgumentOutOfRange, "AutoDeleteOnIdle"),
        ({"max_message_size_kb": 1024}, ArgumentInvalid, "MaxMessageSizeInKilobytes"),
        ({"name": "x" * 261}, NameInvalid, "260"),
        ({"name": ""}, NameInvalid, "''"),
        ({"name": "a/"}, NameInvalid, "'a/'"),
        ({"name": "/a"}, NameInvalid, "'/a'"),
        ({"name": "a//b"}, NameInvalid, "'a//b'"),
        ({"name": "."}, NameInvalid, "'.'"),
        ({"name": "a/../b"}, NameInvalid, "'a/../b'"),
        ({"name": "a/.."}, NameInvalid, "'a/..'"),
        ({"name": "./a"}, NameInvalid, "'./a'"),
        ({"name": "a b"}, NameInvalid, "'a b'"),
        ({"name": "q\n"}, NameInvalid, "'q\\n'"),
        ({"name": "q/$management"}, NameInvalid, "management"),
    ],
)
def test_a_setting_past_its_limit_or_not_offered_is_refused_by_name(
    broker: Broker, settings: dict[str, Any], reason: type[ServiceBusError], named: str
) -> None:
    """Req: L-03, L-08, D-01, E-06, A-03, A-07, R-05, C32, C33, C44"""
    asked = replace(QueueDescription("new"), **settings)
    error = broker.refused(CreateEntity(asked, broker.reply_to()))
    assert type(error) is reason
    assert named in str(error)
    if "name" not in settings:
        changed = replace(asked, name="orders")
        updated = broker.refused(UpdateEntity(changed, broker.reply_to()))
        fixed = "requires_session" in settings or "enable_partitioning" in settings
        assert type(updated) is (ArgumentInvalid if fixed else reason)
    assert broker.view().description == QueueDescription("orders")


@pytest.mark.parametrize(
    ("tier", "settings", "reason"),
    [
        (BASIC, {"default_ttl_ms": 14 * DAY_MS}, None),
        (BASIC, {"default_ttl_ms": 14 * DAY_MS + 1}, ArgumentOutOfRange),
        (BASIC, {"requires_duplicate_detection": True}, NotSupported),
        (STANDARD, {"requires_duplicate_detection": True}, None),
        (PREMIUM, {"max_size_mb": 81_920}, None),
        (PREMIUM, {"max_size_mb": 81_921}, ArgumentOutOfRange),
        (PREMIUM, {"max_size_mb": 1_500}, None),
        (BASIC, {"max_size_mb": 1_500}, ArgumentOutOfRange),
        (PREMIUM, {"max_message_size_kb": 1024}, None),
        (PREMIUM, {"max_message_size_kb": 102_400}, None),
        (PREMIUM, {"max_message_size_kb": 1023}, ArgumentOutOfRange),
        (PREMIUM, {"max_message_size_kb": 102_401}, ArgumentOutOfRange),
    ],
)
def test_each_tier_has_its_own_limits(
    tier: TierLimits, settings: dict[str, Any], reason: type[ServiceBusError] | None
) -> None:
    """Req: A-05, E-06, T-10"""
    broker = Broker(tier)
    if reason is None:
        broker.create(**settings)
    else:
        command = CreateEntity(QueueDescription("orders", **settings), broker.reply_to())
        assert type(broker.refused(command)) is reason


def test_a_message_size_out_of_range_is_refused_with_the_service_s_text() -> None:
    """Req: A-05, T-10. Source: wire contract C19."""
    command = CreateEntity(QueueDescription("orders", max_message_size_kb=1023), ReplyTo(0, 0, 1))
    assert str(Broker(PREMIUM).refused(command)) == (
        "The specified value for 'MaxMessageSizeInKilobytes' must be between 1024 and 102400. "
        "'orders' has 1023."
    )


def test_the_tiers_are_found_by_name() -> None:
    """Req: A-05"""
    assert TIERS == {"basic": BASIC, "standard": STANDARD, "premium": PREMIUM}


def test_the_number_of_entities_is_held_only_where_the_namespace_says_so() -> None:
    """Req: A-05"""
    two = replace(STANDARD, queues_max=2)
    for enforce in (False, True):
        broker = Broker(two, enforce_quotas=enforce)
        broker.create("a")
        broker.create("b")
        command = CreateEntity(QueueDescription("c"), broker.reply_to())
        if enforce:
            assert isinstance(broker.refused(command), QuotaExceeded)
        else:
            broker.one(command, EntityFound)


def test_each_character_at_both_ends_of_a_name() -> None:
    """Req: C32. Names of queues, topics, subscriptions and rules."""
    allowed = set(string.ascii_letters + string.digits + "._-")
    broker = Broker()
    broker.create_topic("t")
    broker.subscribe("s", topic="t")
    for code in [*range(128), 0xE9, 0x130, 0x2170, 0x1F600]:
        end = chr(code)
        for name in (f"{end}a", f"a{end}", f"{end}a{end}"):
            wanted: list[tuple[Command, Command]] = [
                (
                    CreateEntity(QueueDescription(name), ReplyTo(0, 0, 1)),
                    DeleteEntity(name, ReplyTo(0, 0, 2)),
                ),
                (
                    CreateEntity(TopicDescription(name), ReplyTo(0, 0, 1)),
                    DeleteEntity(name, ReplyTo(0, 0, 2)),
                ),
                (
                    CreateEntity(SubscriptionDescription("t", name), ReplyTo(0, 0, 1)),
                    DeleteEntity(f"t/Subscriptions/{name}", ReplyTo(0, 0, 2)),
                ),
                (
                    AddRule("t/Subscriptions/s", RuleDescription(name), ReplyTo(0, 0, 1)),
                    RemoveRule("t/Subscriptions/s", name, ReplyTo(0, 0, 2)),
                ),
            ]
            for make, remove in wanted:
                if end in allowed or (name == "$a" and isinstance(make, AddRule)):
                    broker.do(make)
                    broker.one(remove, Done)
                else:
                    error = broker.refused(make)
                    assert isinstance(error, NameInvalid), (make, name)
                    assert repr(name) in str(error)


def test_what_an_earlier_release_named_can_still_be_changed(broker: Broker) -> None:
    """Req: C32. It took empty parts, and parts of one dot within a name."""
    fact = EntityStored(9, QueueDescription("a//./b"), START_MS, START_MS)
    broker.facts.append(fact)
    broker.restart()
    broker.update("a//./b", max_delivery_count=3)
    assert broker.view("a//./b").description.max_delivery_count == 3
    broker.one(DeleteEntity("a//./b", broker.reply_to()), Done)


@pytest.mark.parametrize("description", [QueueDescription("old"), TopicDescription("old")])
def test_a_stored_size_that_is_refused_today_stays(broker: Broker, description: QueueDescription) -> None:
    """Req: C44. It may be sent back as it is, and changed to one that is allowed."""
    broker.facts.append(EntityStored(9, replace(description, max_size_mb=1_500), START_MS, START_MS))
    broker.restart()
    for size_mb, fits in ((1_500, True), (1_501, False), (2_048, True), (1_500, False)):
        new = replace(description, max_size_mb=size_mb, user_metadata=f"{size_mb}")
        command = UpdateEntity(new, broker.reply_to())
        if fits:
            assert broker.one(command, EntityFound).entity.description == new
        else:
            assert isinstance(broker.refused(command), ArgumentOutOfRange)


def test_names_differ_by_more_than_case_and_keep_theirs(broker: Broker) -> None:
    """Req: A-01"""
    error = broker.refused(CreateEntity(QueueDescription("ORDERS"), broker.reply_to()))
    assert isinstance(error, EntityAlreadyExists)
    assert broker.view("oRDERS").description.name == "orders"
    broker.one(OpenReceiver(broker.link(), Address("Orders"), ReceiveMode.PEEK_LOCK), ReceiverOpened)
    broker.one(
        UpdateEntity(QueueDescription("ORDERS", lock_duration_ms=5_000), broker.reply_to()), EntityFound
    )
    assert broker.view().description.name == "orders"


def test_what_is_not_there_is_not_found(broker: Broker) -> None:
    """Req: A-01"""
    for command in (
        LookUp(Address("nothing"), broker.reply_to()),
        DeleteEntity("nothing", broker.reply_to()),
        UpdateEntity(QueueDescription("nothing"), broker.reply_to()),
        Peek(Address("nothing"), SequenceNumber(0), 1, 1, broker.reply_to()),
    ):
        assert isinstance(broker.refused(command), EntityNotFound)


def test_an_update_is_written_and_shown(broker: Broker) -> None:
    """Req: A-07"""
    broker.jump(5_000)
    broker.update(lock_duration_ms=30_000, user_metadata="mine")
    description = QueueDescription("orders", lock_duration_ms=30_000, user_metadata="mine")
    assert broker.facts[-1] == EntityStored(1, description, START_MS, START_MS + 5_000)
    assert broker.view().updated_at_ms == START_MS + 5_000
    broker.restart()
    assert broker.view().description == description


def test_an_update_that_changes_nothing_writes_nothing(broker: Broker) -> None:
    """Req: A-07, L-12"""
    broker.jump(5_000)
    broker.update()
    assert len(broker.facts) == 1
    assert broker.view().updated_at_ms == START_MS


def test_what_is_fixed_at_creation_stays(broker: Broker) -> None:
    """Req: A-07"""
    changed = QueueDescription("orders", requires_duplicate_detection=True)
    error = broker.refused(UpdateEntity(changed, broker.reply_to()))
    assert isinstance(error, ArgumentInvalid)
    assert "RequiresDuplicateDetection" in str(error)


def test_an_update_keeps_links_and_their_credit(broker: Broker) -> None:
    """Req: A-07"""
    link = broker.receiver()
    broker.credit(link, 1)
    effects = broker.update(max_delivery_count=5)
    assert [type(effect) for effect in effects] == [EntityFound]
    broker.send()
    assert broker.namespace.totals().locks == 1


def test_a_smaller_count_applies_to_the_next_attempt(broker: Broker) -> None:
    """Req: A-07, L-08"""
    broker.send()
    for _ in range(4):
        broker.abandon(broker.receive()[0])
    broker.update(max_delivery_count=3)
    assert broker.view().dead_letter_count == 0
    assert broker.receive() == []
    assert broker.view().dead_letter_count == 1


@pytest.mark.parametrize("status", [EntityStatus.DISABLED, EntityStatus.RECEIVE_DISABLED])
def test_from_a_disabled_entity_nothing_is_received(broker: Broker, status: EntityStatus) -> None:
    """Req: A-04"""
    broker.send()
    broker.update(status=status)
    address = Address("orders")
    for command in (
        OpenReceiver(broker.link(), address, ReceiveMode.PEEK_LOCK),
        OpenReceiver(broker.link(), Address("orders", SubQueue.DEAD_LETTER), ReceiveMode.PEEK_LOCK),
        Peek(address, SequenceNumber(0), 1, 1, broker.reply_to()),
        ReceiveDeferred(address, [SequenceNumber(1)], ReceiveMode.PEEK_LOCK, broker.reply_to()),
        DeleteMessages(address, 1, broker.now_ms, broker.reply_to()),
    ):
        assert isinstance(broker.refused(command), EntityDisabled)
    broker.update(status=EntityStatus.ACTIVE)
    assert numbers(broker.receive()) == [1]


def test_only_an_entity_that_does_nothing_refuses_to_cancel(broker: Broker) -> None:
    """Req: A-04, S-06"""
    command = CancelScheduled(Address("orders"), [SequenceNumber(1)], broker.reply_to())
    for status in (EntityStatus.SEND_DISABLED, EntityStatus.RECEIVE_DISABLED):
        broker.update(status=status)
        assert isinstance(broker.refused(command), MessageNotFound)
    broker.update(status=EntityStatus.DISABLED)
    assert isinstance(broker.refused(command), EntityDisabled)


def test_send_disabled_still_delivers(broker: Broker) -> None:
    """Req: A-04"""
    broker.send()
    link = broker.receiver()
    assert not [e for e in broker.update(status=EntityStatus.SEND_DISABLED) if isinstance(e, DetachLink)]
    (delivery,) = broker.credit(link, 1)
    broker.complete(delivery)


def test_deletion_detaches_every_link_and_forgets_everything(broker: Broker) -> None:
    """Req: A-01, R-02"""
    broker.send()
    sender, receiver = broker.sender(), broker.receiver()
    (delivery,) = broker.credit(receiver, 1)
    command = DeleteEntity("Orders", broker.reply_to())
    effects = broker.do(command)
    assert [effect.link for effect in effects if isinstance(effect, DetachLink)] == [sender, receiver]
    assert all(isinstance(e.error, EntityDeleted) for e in effects if isinstance(e, DetachLink))
    assert effects[-1] == Done(command.reply_to)
    assert broker.facts[-1] == EntityRemoved(1)
    assert broker.do(SetCredit(receiver, 5, LOTS)) == []
    assert broker.namespace.timers.next_ms is None
    assert broker.advance(MINUTE_MS) == []
    assert isinstance(broker.refused(Complete(4, token(delivery), broker.reply_to())), EntityDeleted)
    assert broker.drop(1) == []
    assert broker.facts[-1] == EntityRemoved(1)


def test_locks_of_a_deleted_entity_do_not_trouble_their_connection(broker: Broker) -> None:
    """Req: L-13"""
    broker.send()
    broker.defer(broker.receive()[0])
    broker.receive_deferred(1, connection=7)
    broker.do(DeleteEntity("orders", broker.reply_to()))
    assert broker.drop(7) == []


def test_a_queue_of_the_same_name_starts_from_nothing(broker: Broker) -> None:
    """Req: R-02"""
    broker.send()
    broker.do(DeleteEntity("orders", broker.reply_to()))
    again = broker.create()
    assert again == 8
    assert broker.peek() == []
    broker.restart()
    assert broker.peek() == []
    assert broker.send(again).sequence_number == 1


def test_messages_of_a_deleted_entity_are_handed_out_once(broker: Broker) -> None:
    """Req: T-08"""
    for _ in range(4):
        broker.send()
    first, second = broker.receive(2)
    broker.dead_letter(first)
    broker.defer(second)
    broker.schedule(1_000)
    broker.do(DeleteEntity("orders", broker.reply_to()))
    handed = list(broker.namespace.removed_entity_messages(1))
    assert sorted(message.sequence_number for message in handed) == [1, 2, 3, 4, 5]
    assert list(broker.namespace.removed_entity_messages(1)) == []
    assert list(broker.namespace.removed_entity_messages(77)) == []


def test_queues_are_listed_by_name_page_by_page() -> None:
    """Req: A-01"""
    broker = Broker()
    for name in ("delta", "alpha", "charlie", "bravo"):
        broker.create(name)

    def page(skip: int, top: int) -> tuple[list[str], bool]:
        found = broker.one(ListEntities(EntityKind.QUEUE, skip, top, broker.reply_to()), EntitiesFound)
        return [view.description.name for view in found.entities], found.more

    assert page(0, 2) == (["alpha", "bravo"], True)
    assert page(2, 2) == (["charlie", "delta"], False)
    assert page(4, 2) == ([], False)
    assert page(-1, 100)[0] == ["alpha", "bravo", "charlie", "delta"]
    broker.do(DeleteEntity("bravo", broker.reply_to()))
    assert page(0, 100)[0] == ["alpha", "charlie", "delta"]
    assert [view.description.name for view in broker.namespace.entity_views()] == page(0, 100)[0]


def test_the_figures_count_every_state() -> None:
    """Req: A-01"""
    broker = Broker()
    broker.create()
    for _ in range(5):
        broker.send(size=10)
    broker.jump(1_000)
    found = broker.receive(3)
    broker.defer(found[0])
    broker.dead_letter(found[1])
    broker.schedule(1_000)
    view = broker.view()
    assert (view.active_count, view.scheduled_count, view.dead_letter_count) == (4, 1, 1)
    assert view.size_bytes == 5 * 10 + 100
    assert view.accessed_at_ms == START_MS + 1_000
    totals = broker.namespace.totals()
    assert (totals.active_messages, totals.deferred_messages, totals.scheduled_messages) == (3, 1, 1)
    assert (totals.dead_letters, totals.locks, totals.size_bytes) == (1, 1, 150)


def test_batch_delete_takes_the_oldest_that_are_free(broker: Broker) -> None:
    """Req: A-06"""
    for _ in range(6):
        broker.send()
        broker.jump(1_000)
    locked, deferred = broker.receive(2)
    broker.defer(deferred)
    broker.schedule(1_000)

    def delete(count_max: int, before_ms: int) -> int:
        command = DeleteMessages(Address("orders"), count_max, before_ms, broker.reply_to())
        return broker.one(command, MessagesDeleted).count

    assert delete(1, broker.now_ms) == 1
    assert numbers(broker.peek()) == [1, 2, 4, 5, 6, 7]
    assert delete(100, START_MS + 4_000) == 2
    assert numbers(broker.peek()) == [1, 2, 6, 7]
    assert delete(0, broker.now_ms) == 0
    assert delete(100, START_MS) == 0
    broker.complete(locked)
    assert numbers(broker.receive(5)) == [6]


@pytest.mark.parametrize("tier", [BASIC, STANDARD, PREMIUM])
def test_batch_delete_takes_as_many_as_asked_on_every_tier(tier: TierLimits) -> None:
    """Req: A-06, A-05. Source: wire contract C9; clients that purge stop at a smaller answer."""
    broker = Broker(tier)
    broker.create()
    broker.checks = False
    for _ in range(4_001):
        broker.send(size=1)
    command = DeleteMessages(Address("orders"), 4_000, broker.now_ms, broker.reply_to())
    assert broker.one(command, MessagesDeleted).count == 4_000
    assert numbers(broker.peek()) == [4_001]


def test_batch_delete_in_a_dead_letter_queue_and_of_what_has_expired(broker: Broker) -> None:
    """Req: A-06, L-17"""
    broker.send()
    broker.dead_letter(broker.receive()[0])
    dead = Address("orders", SubQueue.DEAD_LETTER)
    command = DeleteMessages(dead, 5, broker.now_ms, broker.reply_to())
    assert broker.one(command, MessagesDeleted).count == 1
    assert broker.peek_dead() == []
    broker.send(ttl_ms=1)
    broker.jump(1)
    main = DeleteMessages(Address("orders"), 5, broker.now_ms, broker.reply_to())
    assert broker.one(main, MessagesDeleted).count == 0


def test_locked_messages_deleted_in_between_leave_the_returned_ones_in_order(broker: Broker) -> None:
    """Req: A-06, L-07"""
    for _ in range(4):
        broker.send()
    for delivery in broker.receive(3):
        broker.release(delivery)
    command = DeleteMessages(Address("orders"), 2, broker.now_ms, broker.reply_to())
    broker.one(command, MessagesDeleted)
    assert numbers(broker.receive(4)) == [3, 4]
