"""What a client may do on one connection, in chapters: between them they call nearly all of the gateway.

Each chapter needs the broker of `broker_for`, and a desk of its own.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

from peeklock.amqp import composites
from peeklock.amqp.composites import composite
from peeklock.amqp.coordination import Declare, Discharge, encode_coordination
from peeklock.amqp.encoding import encode
from peeklock.amqp.errors import AmqpError
from peeklock.amqp.events import DispositionReceived
from peeklock.amqp.frames import EMPTY_FRAME, frame
from peeklock.amqp.performatives import (
    ACCEPTED,
    RELEASED,
    Declared,
    Modified,
    Rejected,
    Source,
    Target,
    TransactionalState,
)
from peeklock.amqp.types import Array, Described, Int, Long, Role, Symbol, Timestamp, UInt, ULong
from peeklock.auth import Authority, Right, SasRule, generate
from peeklock.broker.vocabulary.descriptions import RuleDescription
from peeklock.gateway.context import GatewayLimits
from peeklock.rules.filters import TrueFilter
from peeklock.testing.inprocess import InProcessBroker
from tests.amqp.pair import begin, transfer
from tests.gateway.harness import KEY, KEY_NAME, LiveHarness, section
from tests.gateway.live import FILTER, SETTINGS, accept, message, request, send

BATCH_FORMAT = 0x80013700
ACTION = "SET m = 2; SET sys.Label = 'l'; SET sys.ContentType = 't'; SET sys.PartitionKey = 'p'; REMOVE n"
AUDIENCE = "sb://localhost/orders"


def broker_for(kind: type[InProcessBroker] = InProcessBroker, **options: Any) -> InProcessBroker:
    """Make a broker with the entities and messages that the chapters need; bodies are not kept in memory."""
    listen = SasRule("listen", KEY, rights=frozenset({Right.LISTEN}))
    broker = kind(
        authority=Authority([SasRule(KEY_NAME, KEY), listen]),
        body_cache_bytes=0,
        gateway_limits=GatewayLimits(refusals_max=3),
        **options,
    )
    broker.create_queue("orders", default_ttl_ms=2**33)
    broker.create_queue("sessions", **SETTINGS)
    broker.create_topic("news")
    every = RuleDescription("$Default", TrueFilter())
    broker.create_subscription("news", "all", rule=every, default_ttl_ms=3_600_000)
    rig = LiveHarness(broker)
    send(rig, *(message(str(number)) for number in range(6)))
    send(rig, message("a", "one"), message("b", "two"), to="sessions")
    rig.client.close()
    rig.pump()
    return broker


def sends(rig: LiveHarness) -> None:
    """Send one by one, settled, in parts, too large, scheduled, without an id, in a batch, and nonsense."""
    handle = rig.sender()
    rig.transfer(handle, message("next"))
    rig.transfer(handle, message("settled"), settled=True)
    rig.transfer(handle, message("x" * 70_000))
    rig.transfer(handle, message("x" * 300_000))
    later = {Symbol("x-opt-scheduled-enqueue-time"): Timestamp(2**41)}
    rig.transfer(handle, message("later", annotations=later, header=[True, None, UInt(2**32 - 1)]))
    brief = [True, None, UInt(1000)]
    rig.transfer(handle, message("brief", delivery_annotations={Symbol("k"): 1}, header=brief))
    rig.transfer(handle, message("footed") + section(0x78, {"k": 1}))
    rig.transfer(handle, section(0x75, b"no id"))
    batch = b"".join(section(0x75, message(str(number))) for number in range(70))
    rig.transfer(handle, batch, message_format=BATCH_FORMAT)
    rig.transfer(handle, b"nonsense")
    rig.transfer(handle, message("to a topic"), tag=b"1")
    topic = rig.sender("news")
    rig.transfer(topic, message("news", application_properties={"n": 1}))
    # A delivery that is not finished, one that is aborted, a flow of the sender's, and a link that goes.
    rig.write(transfer(handle, 50, message("part"), more=True, channel=rig.channel))
    rig.write(transfer(handle, None, b"", tag=None, message_format=None, aborted=True, channel=rig.channel))
    windows = [UInt(0), UInt(65536), UInt(0), UInt(65536)]
    fields = [*windows, UInt(handle), UInt(0), None, None, False, True]
    rig.write(frame(rig.channel, composite(composites.FLOW, fields)))
    rig.write(transfer(handle, 51, message("part"), more=True, channel=rig.channel))
    rig.client.detach(rig.channel, handle)
    rig.pump()
    # Before the attach is answered, in one read with it.
    again = rig.client.attach(rig.channel, "early", Role.SENDER, *_termini("orders"))
    rig.write(rig.client.data_to_send() + transfer(again, 52, message("early"), channel=rig.channel))
    rig.attach(Role.SENDER, "nowhere")
    rig.attach(Role.SENDER, None)


def _termini(address: str) -> tuple[Any, Any]:
    return Source("client"), Target(address)


def receives(rig: LiveHarness) -> None:
    """Receive, settle in each way, drain, take credit back, and leave with deliveries unsettled."""
    crossing, now_ms = rig.listen(), rig.broker.clock.now_ms
    credit, taken_back = (partial(rig.client.flow, credit=credit) for credit in (5, 0))
    for steps in ((credit, taken_back), (credit, rig.client.detach)):
        for step in steps:
            step(rig.channel, crossing)
            rig.broker.offer(rig._wire.gateway.receive(rig.client.data_to_send(), now_ms))
        rig.broker.run()
        rig.pump()
    handle = rig.listen(credit=6)
    got = [event.delivery_id for event in rig.deliveries()]
    rig.settle(got[0], got[0], ACCEPTED)
    rig.settle(got[1], got[1], RELEASED)
    rig.settle(got[2], got[2], Modified(True, False, {"k": 1}))
    rig.settle(got[3], got[3], Modified(True, True))
    rig.settle(got[4], got[4], Rejected(AmqpError("k", "", {"DeadLetterReason": "r"})), settled=True)
    rig.settle(got[4], got[5], ACCEPTED)
    rig.client.flow(rig.channel, handle, 10, echo=True)
    rig.pump()
    rig.client.flow(rig.channel, handle, 10, drain=True)
    rig.pump()
    rig.listen("orders/$DeadLetterQueue", credit=5)
    rig.deliveries()
    removing = rig.listen(credit=1, rcv_settle_mode=0, snd_settle_mode=1)
    rig.client.flow(rig.channel, removing, 0)
    rig.pump()
    rig.client.detach(rig.channel, handle)
    rig.pump()
    rig.client.end(rig.channel)
    rig.pump()


def waits(rig: LiveHarness) -> None:
    """Let locks lapse and time pass, settle what is lost, and end the session of the protocol."""
    rig.listen(credit=2)
    got = [event.delivery_id for event in rig.deliveries()]
    rig.broker.advance(61_000)
    rig.pump()
    rig.settle(got[0], got[1], ACCEPTED)
    rig.broker.advance(30_000)
    rig.write(begin(rig.channel + 1) + transfer(9, 0, b"x", channel=rig.channel + 1))


def manages(rig: LiveHarness) -> None:
    """Ask the management node of a queue."""
    halves = rig.pair("orders/$management")
    rig.listen(credit=2)
    first, second = rig.deliveries()
    tokens = [uuid.UUID(bytes_le=got.delivery_tag) for got in (first, second)]
    limits = {"cursor": "lake", "max-messages": 2, "max-bytes": 1_000_000}

    def ask(operation: str, body: Any) -> None:
        rig.request(halves[0], operation if ":" in operation else f"com.microsoft:{operation}", body)

    ask("renew-lock", {"lock-tokens": Array.of(uuid.UUID, tokens)})
    ask("renew-lock", {"lock-tokens": [uuid.UUID(int=1)]})
    peek = {"from-sequence-number": Long(0), "message-count": Int(10)}
    ask("peek-message", peek)
    ask("peek-message", {**peek, "omit-message-body": True})
    later = {"message": message("later"), "message-id": "later"}
    ask("schedule-message", {"messages": [later]})
    ask("schedule-message", {"messages": Array(dict, [later])})
    ask("cancel-scheduled-message", {"sequence-numbers": Array.of(Long, [7])})
    body = {"disposition-status": "defered", "lock-tokens": Array.of(uuid.UUID, tokens[:1])}
    ask("update-disposition", {**body, "properties-to-modify": {"k": 1}})
    numbers = Array.of(Long, [1])
    ask("receive-by-sequence-number", {"sequence-numbers": numbers, "receiver-settle-mode": UInt(1)})
    buried = {"disposition-status": "suspended", "lock-tokens": Array.of(uuid.UUID, tokens[1:])}
    ask("update-disposition", {**buried, "deadletter-reason": 5})
    ask("peeklock:cursor-take", {"cursor": "lake", "owner": "reader", "take-over": True})
    limits["owner"] = "reader"
    ask("peeklock:cursor-claim", limits)
    ask("peeklock:cursor-read", {**limits, "claim": 1, "skip": 0})
    ask("peeklock:cursor-commit", {"cursor": "lake", "claim": 1, "owner": "reader"})
    ask("peeklock:cursor-list", {})
    ask("peeklock:cursor-release", {"cursor": "lake"})
    ask("batch-delete-messages", {"message-count": Int(1), "enqueued-time-utc": Timestamp(2**41)})
    ask("peeklock:purge-messages", {})
    ask("bogus", {})
    ask("peek-message", [])
    rig.transfer(halves[0], b"nonsense")
    rig.client.flow(rig.channel, halves[1], 0)
    rig.pump()
    ask("peeklock:cursor-list", {})
    rig.client.flow(rig.channel, halves[1], 5, drain=True)
    rig.pump()
    rig.client.detach(rig.channel, halves[1])
    rig.pump()
    ask("peeklock:cursor-list", {})
    # Too large, by somebody whom nobody can answer, and by somebody who takes no answers.
    rig.transfer(halves[0], bytes(2_000_000))
    halves = rig.pair("orders/$management")
    rig.request(halves[0], "peeklock:cursor-list", bytes(2_000_000), reply_to="orders/$management")
    # What comes on half of a node before its entity is found.
    early = rig.client.attach(rig.channel, "early", Role.SENDER, *_termini("orders/$management"))
    rig.write(rig.client.data_to_send() + transfer(early, 60, b"nonsense", channel=rig.channel))
    rig.attach(Role.SENDER, "nowhere/$management")


def rules(rig: LiveHarness) -> None:
    """Add, list and remove rules of a subscription."""
    node = "news/Subscriptions/all"
    sql = {"sql-filter": {"expression": "n = 1"}, "sql-rule-action": {"expression": ACTION}}
    correlation = {"correlation-filter": {"label": "a", "properties": {"k": "v", "n": UInt(1)}}}
    for name, described in (("sql", sql), ("correlation", correlation), ("all", {"true-filter": {}})):
        request(rig, node, "add-rule", {"rule-name": name, "rule-description": described})
    send(rig, message("changed", application_properties={"n": 1}, annotations={Symbol("k"): 1}), to="news")
    rig.listen(node, credit=5)
    rig.deliveries()
    send(rig, message("capped", header=[True, None, UInt(2**31)]), to="news")
    rig.deliveries()
    request(rig, node, "enumerate-rules", {"skip": Int(0), "top": Int(10)})
    request(rig, node, "remove-rule", {"rule-name": "sql"})
    request(rig, node, "remove-rule", {"rule-name": "sql"})


def sessions(rig: LiveHarness) -> None:
    """Accept sessions, by name, the next one and none, keep a state, and let the lock lapse."""
    handle, _ = accept(rig, "one", address="sessions", credit=1)
    [got] = rig.deliveries()
    rig.settle(got.delivery_id, got.delivery_id, ACCEPTED)
    request(rig, "sessions", "renew-session-lock", {"session-id": "one"})
    request(rig, "sessions", "set-session-state", {"session-id": "one", "session-state": b"s"})
    request(rig, "sessions", "get-session-state", {"session-id": "one"})
    asked = {"last-updated-time": Timestamp(0), "skip": Int(0), "top": Int(10)}
    request(rig, "sessions", "get-message-sessions", asked)
    rig.attach(Role.RECEIVER, "sessions", filter={FILTER: "one"}, rcv_settle_mode=1)
    rig.client.detach(rig.channel, handle)
    rig.pump()
    accept(rig, None, address="sessions", credit=1)
    rig.attach(Role.RECEIVER, "sessions", filter={FILTER: None}, rcv_settle_mode=1)
    rig.broker.advance(70_000)
    rig.pump()


def transactions(rig: LiveHarness) -> None:
    """Send and settle within transactions that are committed, rolled back, unknown, and left open."""
    control, sender = rig.controller(), rig.sender("orders")
    rig.listen(credit=2)
    first, second = rig.deliveries()

    def declare() -> bytes:
        rig.events.clear()
        rig.transfer(control, encode_coordination(Declare()))
        declared = rig.take_event(DispositionReceived).state
        assert isinstance(declared, Declared)
        return declared.txn_id

    within = declare()
    rig.transfer(sender, message("within"), state=TransactionalState(within))
    rig.settle(first.delivery_id, first.delivery_id, TransactionalState(within, ACCEPTED))
    rig.transfer(control, encode_coordination(Discharge(within)))
    rolled_back = declare()
    rig.transfer(sender, message("within"), state=TransactionalState(rolled_back))
    rig.settle(second.delivery_id, second.delivery_id, TransactionalState(rolled_back, Modified(True)))
    rig.transfer(control, encode_coordination(Discharge(rolled_back, True)))
    spoilt = declare()
    rig.transfer(sender, b"nonsense", state=TransactionalState(spoilt), settled=True)
    rig.settle(second.delivery_id, second.delivery_id, TransactionalState(spoilt, RELEASED))
    rig.transfer(control, encode_coordination(Discharge(spoilt)))
    rig.transfer(sender, message("within"), state=TransactionalState(b"unknown"))
    rig.transfer(control, encode_coordination(Discharge(b"unknown")))
    rig.transfer(control, b"nonsense")
    last = declare()
    rig.transfer(sender, message("within"), state=TransactionalState(last))
    rig.transfer(rig.sender("sessions"), message("elsewhere", "one"), state=TransactionalState(last))
    halves = rig.pair("orders/$management")
    body = {"disposition-status": "completed", "lock-tokens": [uuid.UUID(bytes_le=second.delivery_tag)]}
    rig.request(halves[0], "com.microsoft:update-disposition", body, state=TransactionalState(last))
    for settled in (False, True):
        state = TransactionalState(last, ACCEPTED)
        rig.settle(second.delivery_id, second.delivery_id, state, settled=settled)
    rig.broker.advance(120_000)  # it times out
    rig.pump()
    rig.client.detach(rig.channel, control)
    rig.pump()


def claims(rig: LiveHarness) -> None:
    """Put tokens, good, lesser and bad, and go on until the connection is closed for them."""
    halves = rig.pair("$cbs")
    rig.put_token(halves[0], AUDIENCE, generate(AUDIENCE, KEY_NAME, KEY, rig.clock.now_ms + 60_000))
    rig.put_token(halves[0], "sb://localhost/nowhere")
    handle = rig.sender()
    rig.transfer(handle, message("claimed"))
    rig.attach(Role.SENDER, "sessions")
    rig.listen(credit=1)
    rig.broker.advance(61_000)
    rig.pump()
    for _ in range(4):
        rig.put_token(halves[0], AUDIENCE, "SharedAccessSignature sr=x&sig=y&se=1&skn=z")


def loses_rights(rig: LiveHarness) -> None:
    """Put a token of a rule that may do less, and lose a rule while links are open."""
    halves = rig.pair("$cbs")
    for name in (KEY_NAME, "listen"):
        rig.put_token(halves[0], AUDIENCE, generate(AUDIENCE, name, KEY, rig.clock.now_ms + 3_600_000))
        rig.sender()
        rig.listen(credit=1)
    authority = rig.broker._namespaces.default.authority
    authority.set_rules("", [SasRule(KEY_NAME, KEY)])
    rig.broker.advance(1)
    rig.pump()


def ends(rig: LiveHarness) -> None:
    """Say several odd things that a protocol allows, then end in an error of the client's."""
    channel = rig.client.begin()
    rig.pump()
    rig.attach(Role.RECEIVER, "orders", channel=channel, filter={Symbol("k"): Described(ULong(1), "x")})
    rig.write(frame(channel, composite(composites.DISPOSITION, [False, UInt(0), UInt(9), True])))
    rig.write(frame(channel, encode(None)))


def is_silent(rig: LiveHarness) -> None:
    """Show no claim, and say nothing."""
    rig.broker.advance(61_000)
    rig.pump()


def finds_nothing(rig: LiveHarness) -> None:
    """Show a token that is good for an entity that is absent, and wait."""
    halves = rig.pair("$cbs")
    rig.put_token(halves[0], "sb://localhost/nowhere")
    rig.broker.advance(200_000)
    rig.write(EMPTY_FRAME)
    rig.broker.advance(101_000)
    rig.pump()


def is_cut(rig: LiveHarness) -> None:
    """Break off in the middle of everything."""
    handle = rig.sender()
    rig.write(transfer(handle, 50, message("part"), more=True, channel=rig.channel))
    rig.listen(credit=1)
    accept(rig, "one", address="sessions", credit=1)
    rig.pair("orders/$management")
    rig.cut()


def is_shut_down(rig: LiveHarness) -> None:
    """Be looked at by the operator, then meet the end of the broker with links open."""
    rig.listen(credit=1)
    rig.sender()
    for connection in list(rig.broker.pump.connections.values()):
        connection.gateway.view()
        connection.gateway.shutdown(rig.broker.clock.now_ms)
    rig.pump()
    rig.client.close()
    rig.pump()


Chapter = Callable[[LiveHarness], None]

CHAPTERS: dict[Chapter, dict[str, Any]] = {
    ends: {},
    is_silent: {"mechanism": "ANONYMOUS"},
    finds_nothing: {"mechanism": "ANONYMOUS"},
    is_cut: {},
    is_shut_down: {},
    waits: {},
    receives: {},
    claims: {"mechanism": "ANONYMOUS"},
    loses_rights: {"mechanism": "ANONYMOUS"},
    manages: {},
    sends: {},
    sessions: {},
    transactions: {},
    rules: {},
}
"""With how each logs in; short ones first, since a function fails in the first chapter that calls it."""
