"""A topic of the real namespace: its rules, copies and bodies over restarts and deletions."""

from __future__ import annotations

from functools import partial

from peeklock.amqp.messaging import scan
from peeklock.broker.vocabulary.commands import (
    Address,
    DeleteEntity,
    LinkId,
    ListRules,
    Peek,
    RemoveRule,
    Send,
    SequenceNumber,
    UpdateRule,
)
from peeklock.broker.vocabulary.descriptions import DEFAULT_RULE_NAME, RuleDescription, subscription_path
from peeklock.broker.vocabulary.effects import Accepted, Done, MessagesFound, RulesFound
from peeklock.broker.vocabulary.message import Message
from peeklock.rules.filters import FalseFilter, SqlAction, SqlFilter
from peeklock.store.memory import MemoryStore
from peeklock.testing.inprocess import InProcessBroker
from tests.engine.rig import at_once

SUBSCRIPTIONS = 100
LINK = LinkId(0, 0)


def path_of(n: int) -> str:
    return subscription_path("events", f"s{n}")


def with_topic(store: MemoryStore) -> InProcessBroker:
    broker = InProcessBroker(store=store, body_cache_bytes=0)
    broker.create_topic("events")
    for n in range(SUBSCRIPTIONS):
        broker.create_subscription("events", f"s{n}")
    return broker


def send(broker: InProcessBroker, body: bytes) -> bytes:
    """Send a message with a body of so many bytes; give it as encoded."""
    payload = b"\0Ss\xc0\4\1\xa1\1m" + b"\0Su\xb0" + len(body).to_bytes(4) + body
    queue_id = broker.topic("events").entity_id * 4
    accepted = broker.ask(lambda reply_to: Send(queue_id, Message(len(payload)), scan(payload), reply_to))
    assert isinstance(accepted, Accepted), accepted
    return payload


def held(broker: InProcessBroker, n: int) -> list[bytes]:
    """Return the payloads of a subscription, read back from the store."""
    found = broker.ask(lambda reply_to: Peek(Address(path_of(n)), SequenceNumber(0), 100, 1 << 20, reply_to))
    assert isinstance(found, MessagesFound), found
    places = [(view.message.body_row, view.message.body_slot) for view in found.messages]
    return [at_once(broker.store.read_body_rows([row]))[row][slot] for row, slot in places]


def rules(broker: InProcessBroker, n: int) -> list[RuleDescription]:
    found = broker.ask(lambda reply_to: ListRules(path_of(n), 0, 100, reply_to))
    assert isinstance(found, RulesFound), found
    return found.rules


def test_rules_survive_a_restart_and_go_on_choosing() -> None:
    """Req: P-03, R-02."""
    store = MemoryStore()
    broker = with_topic(store)
    changed = RuleDescription("Never", FalseFilter())
    broker.add_rule("events", "s1", RuleDescription("never"))
    assert isinstance(broker.ask(lambda to: UpdateRule(path_of(1), changed, to)), RulesFound)
    assert isinstance(broker.ask(lambda to: RemoveRule(path_of(1), "$default", to)), Done)
    acting = RuleDescription("acting", SqlFilter("1 = @one", (("@one", 1),)), SqlAction("SET a = 2"))
    broker.add_rule("events", "s2", acting)
    before = [rules(broker, n) for n in range(SUBSCRIPTIONS)]
    assert [rule.name for n in range(3) for rule in before[n]] == [
        DEFAULT_RULE_NAME,
        "never",
        DEFAULT_RULE_NAME,
        "acting",
    ]
    again = InProcessBroker(store=store)
    assert [rules(again, n) for n in range(SUBSCRIPTIONS)] == before
    payload = send(again, b"x")
    assert [held(again, n) for n in range(4)] == [[payload], [], [payload] * 2, [payload]]
    definitions = at_once(store.load_definitions())
    again.ask(lambda reply_to: DeleteEntity("events", reply_to))
    assert (len(definitions.entities), len(definitions.rules)) == (101, 101)
    definitions = at_once(store.load_definitions())
    assert (definitions.entities, definitions.rules) == ([], [])


def test_copies_share_one_body_until_the_last_is_gone() -> None:
    """A hundred copies take the bytes of one; a deleted subscription takes none away. Req: P-01, R-06."""
    store = MemoryStore()
    broker = with_topic(store)
    payload = send(broker, bytes(200_000))
    assert sum(size for _, size in at_once(store.list_body_rows(0, 1000))) < 201_000
    for n in range(SUBSCRIPTIONS - 1):
        broker.ask(partial(DeleteEntity, path_of(n)))
    for some in (broker, InProcessBroker(store=store, body_cache_bytes=0)):
        assert held(some, SUBSCRIPTIONS - 1) == [payload]
    broker = InProcessBroker(store=store)
    send(broker, b"another")
    broker.ask(lambda reply_to: DeleteEntity("events", reply_to))
    broker.create_queue("next")
    broker.create_queue("after")
    broker.advance(2000)
    assert at_once(store.list_body_rows(0, 1000)) == []
