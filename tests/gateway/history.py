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
from peeklock.broker.descriptions import RuleDescription
from peeklock.gateway.context import GatewayLimits
from peeklock.rules.filters import TrueFilter
from peeklock.testing.inprocess import InProcessBroker
from tests.amqp.pair import begin, transfer
from tests.gateway.live import FILTER, SETTINGS, accept, message, request, send
from tests.gateway.playbook import KEY, KEY_NAME, LiveDesk, section

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
    desk = LiveDesk(broker)
    send(desk, *(message(str(number)) for number in range(6)))
    send(desk, message("a", "one"), message("b", "two"), to="sessions")
    desk.client.close()
    desk.pump()
    return broker


def sends(desk: LiveDesk) -> None:
    """Send one by one, settled, in parts, too large, scheduled, without an id, in a batch, and nonsense."""
    handle = desk.sender()
    desk.transfer(handle, message("next"))
    desk.transfer(handle, message("settled"), settled=True)
    desk.transfer(handle, message("x" * 70_000))
    desk.transfer(handle, message("x" * 300_000))
    later = {Symbol("x-opt-scheduled-enqueue-time"): Timestamp(2**41)}
    desk.transfer(handle, message("later", annotations=later, header=[True, None, UInt(2**32 - 1)]))
    brief = [True, None, UInt(1000)]
    desk.transfer(handle, message("brief", delivery_annotations={Symbol("k"): 1}, header=brief))
    desk.transfer(handle, message("footed") + section(0x78, {"k": 1}))
    desk.transfer(handle, section(0x75, b"no id"))
    batch = b"".join(section(0x75, message(str(number))) for number in range(70))
    desk.transfer(handle, batch, message_format=BATCH_FORMAT)
    desk.transfer(handle, b"nonsense")
    desk.transfer(handle, message("to a topic"), tag=b"1")
    topic = desk.sender("news")
    desk.transfer(topic, message("news", application_properties={"n": 1}))
    # A delivery that is not finished, one that is aborted, a flow of the sender's, and a link that goes.
    desk.write(transfer(handle, 50, message("part"), more=True, channel=desk.channel))
    desk.write(transfer(handle, None, b"", tag=None, message_format=None, aborted=True, channel=desk.channel))
    windows = [UInt(0), UInt(65536), UInt(0), UInt(65536)]
    fields = [*windows, UInt(handle), UInt(0), None, None, False, True]
    desk.write(frame(desk.channel, composite(composites.FLOW, fields)))
    desk.write(transfer(handle, 51, message("part"), more=True, channel=desk.channel))
    desk.client.detach(desk.channel, handle)
    desk.pump()
    # Before the attach is answered, in one read with it.
    again = desk.client.attach(desk.channel, "early", Role.SENDER, *_termini("orders"))
    desk.write(desk.client.data_to_send() + transfer(again, 52, message("early"), channel=desk.channel))
    desk.attach(Role.SENDER, "nowhere")
    desk.attach(Role.SENDER, None)


def _termini(address: str) -> tuple[Any, Any]:
    return Source("client"), Target(address)


def receives(desk: LiveDesk) -> None:
    """Receive, settle in each way, drain, take credit back, and leave with deliveries unsettled."""
    crossing, now_ms = desk.listen(), desk.broker.clock.now_ms
    credit, taken_back = (partial(desk.client.flow, credit=credit) for credit in (5, 0))
    for steps in ((credit, taken_back), (credit, desk.client.detach)):
        for step in steps:
            step(desk.channel, crossing)
            desk.broker.offer(desk._wire.gateway.receive(desk.client.data_to_send(), now_ms))
        desk.broker.run()
        desk.pump()
    handle = desk.listen(credit=6)
    got = [event.delivery_id for event in desk.deliveries()]
    desk.settle(got[0], got[0], ACCEPTED)
    desk.settle(got[1], got[1], RELEASED)
    desk.settle(got[2], got[2], Modified(True, False, {"k": 1}))
    desk.settle(got[3], got[3], Modified(True, True))
    desk.settle(got[4], got[4], Rejected(AmqpError("k", "", {"DeadLetterReason": "r"})), settled=True)
    desk.settle(got[4], got[5], ACCEPTED)
    desk.client.flow(desk.channel, handle, 10, echo=True)
    desk.pump()
    desk.client.flow(desk.channel, handle, 10, drain=True)
    desk.pump()
    desk.listen("orders/$DeadLetterQueue", credit=5)
    desk.deliveries()
    removing = desk.listen(credit=1, rcv_settle_mode=0, snd_settle_mode=1)
    desk.client.flow(desk.channel, removing, 0)
    desk.pump()
    desk.client.detach(desk.channel, handle)
    desk.pump()
    desk.client.end(desk.channel)
    desk.pump()


def waits(desk: LiveDesk) -> None:
    """Let locks lapse and time pass, settle what is lost, and end the session of the protocol."""
    desk.listen(credit=2)
    got = [event.delivery_id for event in desk.deliveries()]
    desk.broker.advance(61_000)
    desk.pump()
    desk.settle(got[0], got[1], ACCEPTED)
    desk.broker.advance(30_000)
    desk.write(begin(desk.channel + 1) + transfer(9, 0, b"x", channel=desk.channel + 1))


def manages(desk: LiveDesk) -> None:
    """Ask the management node of a queue."""
    halves = desk.pair("orders/$management")
    desk.listen(credit=2)
    first, second = desk.deliveries()
    tokens = [uuid.UUID(bytes_le=got.delivery_tag) for got in (first, second)]
    limits = {"cursor": "lake", "max-messages": 2, "max-bytes": 1_000_000}

    def ask(operation: str, body: Any) -> None:
        desk.request(halves[0], operation if ":" in operation else f"com.microsoft:{operation}", body)

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
    ask("peeklock:cursor-claim", limits)
    ask("peeklock:cursor-read", {**limits, "claim": 1, "skip": 0})
    ask("peeklock:cursor-commit", {"cursor": "lake", "claim": 1})
    ask("peeklock:cursor-list", {})
    ask("peeklock:cursor-release", {"cursor": "lake"})
    ask("batch-delete-messages", {"message-count": Int(1), "enqueued-time-utc": Timestamp(2**41)})
    ask("peeklock:purge-messages", {})
    ask("bogus", {})
    ask("peek-message", [])
    desk.transfer(halves[0], b"nonsense")
    desk.client.flow(desk.channel, halves[1], 0)
    desk.pump()
    ask("peeklock:cursor-list", {})
    desk.client.flow(desk.channel, halves[1], 5, drain=True)
    desk.pump()
    desk.client.detach(desk.channel, halves[1])
    desk.pump()
    ask("peeklock:cursor-list", {})
    # Too large, by somebody whom nobody can answer, and by somebody who takes no answers.
    desk.transfer(halves[0], bytes(2_000_000))
    halves = desk.pair("orders/$management")
    desk.request(halves[0], "peeklock:cursor-list", bytes(2_000_000), reply_to="orders/$management")
    # What comes on half of a node before its entity is found.
    early = desk.client.attach(desk.channel, "early", Role.SENDER, *_termini("orders/$management"))
    desk.write(desk.client.data_to_send() + transfer(early, 60, b"nonsense", channel=desk.channel))
    desk.attach(Role.SENDER, "nowhere/$management")


def rules(desk: LiveDesk) -> None:
    """Add, list and remove rules of a subscription."""
    node = "news/Subscriptions/all"
    sql = {"sql-filter": {"expression": "n = 1"}, "sql-rule-action": {"expression": ACTION}}
    correlation = {"correlation-filter": {"label": "a", "properties": {"k": "v", "n": UInt(1)}}}
    for name, described in (("sql", sql), ("correlation", correlation), ("all", {"true-filter": {}})):
        request(desk, node, "add-rule", {"rule-name": name, "rule-description": described})
    send(desk, message("changed", application_properties={"n": 1}, annotations={Symbol("k"): 1}), to="news")
    desk.listen(node, credit=5)
    desk.deliveries()
    send(desk, message("capped", header=[True, None, UInt(2**31)]), to="news")
    desk.deliveries()
    request(desk, node, "enumerate-rules", {"skip": Int(0), "top": Int(10)})
    request(desk, node, "remove-rule", {"rule-name": "sql"})
    request(desk, node, "remove-rule", {"rule-name": "sql"})


def sessions(desk: LiveDesk) -> None:
    """Accept sessions, by name, the next one and none, keep a state, and let the lock lapse."""
    handle, _ = accept(desk, "one", address="sessions", credit=1)
    [got] = desk.deliveries()
    desk.settle(got.delivery_id, got.delivery_id, ACCEPTED)
    request(desk, "sessions", "renew-session-lock", {"session-id": "one"})
    request(desk, "sessions", "set-session-state", {"session-id": "one", "session-state": b"s"})
    request(desk, "sessions", "get-session-state", {"session-id": "one"})
    asked = {"last-updated-time": Timestamp(0), "skip": Int(0), "top": Int(10)}
    request(desk, "sessions", "get-message-sessions", asked)
    desk.attach(Role.RECEIVER, "sessions", filter={FILTER: "one"}, rcv_settle_mode=1)
    desk.client.detach(desk.channel, handle)
    desk.pump()
    accept(desk, None, address="sessions", credit=1)
    desk.attach(Role.RECEIVER, "sessions", filter={FILTER: None}, rcv_settle_mode=1)
    desk.broker.advance(70_000)
    desk.pump()


def transactions(desk: LiveDesk) -> None:
    """Send and settle within transactions that are committed, rolled back, unknown, and left open."""
    control, sender = desk.controller(), desk.sender("orders")
    desk.listen(credit=2)
    first, second = desk.deliveries()

    def declare() -> bytes:
        desk.events.clear()
        desk.transfer(control, encode_coordination(Declare()))
        declared = desk.take_event(DispositionReceived).state
        assert isinstance(declared, Declared)
        return declared.txn_id

    within = declare()
    desk.transfer(sender, message("within"), state=TransactionalState(within))
    desk.settle(first.delivery_id, first.delivery_id, TransactionalState(within, ACCEPTED))
    desk.transfer(control, encode_coordination(Discharge(within)))
    rolled_back = declare()
    desk.transfer(sender, message("within"), state=TransactionalState(rolled_back))
    desk.settle(second.delivery_id, second.delivery_id, TransactionalState(rolled_back, Modified(True)))
    desk.transfer(control, encode_coordination(Discharge(rolled_back, True)))
    spoilt = declare()
    desk.transfer(sender, b"nonsense", state=TransactionalState(spoilt), settled=True)
    desk.settle(second.delivery_id, second.delivery_id, TransactionalState(spoilt, RELEASED))
    desk.transfer(control, encode_coordination(Discharge(spoilt)))
    desk.transfer(sender, message("within"), state=TransactionalState(b"unknown"))
    desk.transfer(control, encode_coordination(Discharge(b"unknown")))
    desk.transfer(control, b"nonsense")
    last = declare()
    desk.transfer(sender, message("within"), state=TransactionalState(last))
    desk.transfer(desk.sender("sessions"), message("elsewhere", "one"), state=TransactionalState(last))
    halves = desk.pair("orders/$management")
    body = {"disposition-status": "completed", "lock-tokens": [uuid.UUID(bytes_le=second.delivery_tag)]}
    desk.request(halves[0], "com.microsoft:update-disposition", body, state=TransactionalState(last))
    for settled in (False, True):
        state = TransactionalState(last, ACCEPTED)
        desk.settle(second.delivery_id, second.delivery_id, state, settled=settled)
    desk.broker.advance(120_000)  # it times out
    desk.pump()
    desk.client.detach(desk.channel, control)
    desk.pump()


def claims(desk: LiveDesk) -> None:
    """Put tokens, good, lesser and bad, and go on until the connection is closed for them."""
    halves = desk.pair("$cbs")
    desk.put_token(halves[0], AUDIENCE, generate(AUDIENCE, KEY_NAME, KEY, desk.clock.now_ms + 60_000))
    desk.put_token(halves[0], "sb://localhost/nowhere")
    handle = desk.sender()
    desk.transfer(handle, message("claimed"))
    desk.attach(Role.SENDER, "sessions")
    desk.listen(credit=1)
    desk.broker.advance(61_000)
    desk.pump()
    for _ in range(4):
        desk.put_token(halves[0], AUDIENCE, "SharedAccessSignature sr=x&sig=y&se=1&skn=z")


def loses_rights(desk: LiveDesk) -> None:
    """Put a token of a rule that may do less, and lose a rule while links are open."""
    halves = desk.pair("$cbs")
    for name in (KEY_NAME, "listen"):
        desk.put_token(halves[0], AUDIENCE, generate(AUDIENCE, name, KEY, desk.clock.now_ms + 3_600_000))
        desk.sender()
        desk.listen(credit=1)
    entry = desk.broker._namespaces.find("localhost")
    assert entry is not None
    entry.authority.set_rules("", [SasRule(KEY_NAME, KEY)])
    desk.broker.advance(1)
    desk.pump()


def ends(desk: LiveDesk) -> None:
    """Say several odd things that a protocol allows, then end in an error of the client's."""
    channel = desk.client.begin()
    desk.pump()
    desk.attach(Role.RECEIVER, "orders", channel=channel, filter={Symbol("k"): Described(ULong(1), "x")})
    desk.write(frame(channel, composite(composites.DISPOSITION, [False, UInt(0), UInt(9), True])))
    desk.write(frame(channel, encode(None)))


def is_silent(desk: LiveDesk) -> None:
    """Show no claim, and say nothing."""
    desk.broker.advance(61_000)
    desk.pump()


def finds_nothing(desk: LiveDesk) -> None:
    """Show a token that is good for an entity that is absent, and wait."""
    halves = desk.pair("$cbs")
    desk.put_token(halves[0], "sb://localhost/nowhere")
    desk.broker.advance(200_000)
    desk.write(EMPTY_FRAME)
    desk.broker.advance(101_000)
    desk.pump()


def is_cut(desk: LiveDesk) -> None:
    """Break off in the middle of everything."""
    handle = desk.sender()
    desk.write(transfer(handle, 50, message("part"), more=True, channel=desk.channel))
    desk.listen(credit=1)
    accept(desk, "one", address="sessions", credit=1)
    desk.pair("orders/$management")
    desk.cut()


def is_shut_down(desk: LiveDesk) -> None:
    """Meet the end of the broker with links open."""
    desk.listen(credit=1)
    desk.sender()
    for connection in list(desk.broker.pump.connections.values()):
        connection.gateway.shutdown(desk.broker.clock.now_ms)
    desk.pump()
    desk.client.close()
    desk.pump()


Chapter = Callable[[LiveDesk], None]

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
