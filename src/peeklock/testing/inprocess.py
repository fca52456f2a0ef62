"""A whole broker in the calling thread: no socket, no event loop, no clock but the one given.

Owns: the adapter between gateways, the driver and a store in memory, run to the end at each call. Must not
know: what goes over the wire, what leaves when (see `engine.driver`). Bytes are written to a connection and
read from it; all effects of a write are there when it returns.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Coroutine, Iterable
from random import Random
from typing import Any, TypeVar

from peeklock.auth import Authority
from peeklock.broker.commands import (
    NO_LINK,
    OWN_CONNECTION_ID,
    AddRule,
    Command,
    CreateEntity,
    LookUp,
    ReplyTo,
)
from peeklock.broker.commands import Address as EntityAddress
from peeklock.broker.descriptions import (
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
    subscription_path,
)
from peeklock.broker.effects import Effect, EntityFound, EntityView, Failed, RulesFound
from peeklock.broker.history import History
from peeklock.broker.namespace import Namespace
from peeklock.broker.quotas import STANDARD, TierLimits
from peeklock.engine.bodies import BUDGET_BYTES, BodyCache
from peeklock.engine.driver import Action, BodiesRead, Commit, Driver, HandOut, ReadRows, Reclaim, WakeAt
from peeklock.engine.engine import Engine
from peeklock.gateway.bounds import Buffers
from peeklock.gateway.connection import Gateway, OnDefect, raise_defect
from peeklock.gateway.context import GatewayLimits
from peeklock.gateway.namespaces import Namespaces, OneNamespace
from peeklock.store.memory import MemoryStore
from peeklock.testing.clock import ManualClock

T = TypeVar("T")


class InProcessConnection:
    """The broker's end of one AMQP connection."""

    def __init__(self, broker: InProcessBroker, connection_id: int, gateway: Gateway) -> None:
        self._broker = broker
        self.connection_id = connection_id
        self._output = bytearray()
        self._ended = False
        self.gateway = gateway

    def write(self, data: bytes) -> None:
        """Give the broker bytes of the client."""
        if data and not self._ended:
            self._broker.offer(self.gateway.receive(data, self._broker.clock.now_ms))
            self._broker.run()

    def read(self) -> bytes:
        """Take the bytes for the client."""
        self.flush()
        data = bytes(self._output)
        self._output.clear()
        return data

    def end(self) -> None:
        """End the stream, as a closed or broken socket does."""
        if not self._ended:
            self._ended = True
            self._broker.offer(self.gateway.eof(self._broker.clock.now_ms))
            self._broker.run()
            self._broker.remove(self)
            self.gateway.forget()

    def flush(self) -> None:
        """Take what the gateway has to write, and offer what that leads to."""
        self._output += self.gateway.data_to_send()
        self._broker.offer(self.gateway.written(0, self._broker.clock.now_ms))


class InProcessBroker:
    """See the module. A broker made again over the same store has all that the last one committed."""

    def __init__(
        self,
        *,
        clock: ManualClock | None = None,
        store: MemoryStore | None = None,
        authority: Authority | None = None,
        tier: TierLimits = STANDARD,
        gateway_limits: GatewayLimits | None = None,
        body_cache_bytes: int = BUDGET_BYTES,
        seed: int = 0,
        captures_body: Callable[[str], bool] | None = None,
        history: History | None = None,
        log: Callable[[str, dict[str, object]], None] = lambda event, fields: None,
        on_defect: OnDefect = raise_defect,
    ) -> None:
        """Start a broker.

        Args:
            clock: moved by the caller, who then calls `run`; or by `advance`.
            store: kept over restarts.
            authority: who may do what; the emulator's one rule unless given.
            tier: limits and features.
            gateway_limits: bounds of each connection.
            body_cache_bytes: of bodies kept in memory; a small one makes deliveries wait for the store.
            seed: of the lock tokens; another one after a restart, or old tokens are given again.
            captures_body: has the store keep event rows, see `broker.namespace.Namespace`.
            history: is told what becomes of messages.
            log: takes structured events.
            on_defect: takes a defect of ours that has ended a connection; raises it unless given.
        """
        self.clock = clock if clock is not None else ManualClock()
        self.store = store if store is not None else MemoryStore()
        self._namespaces: Namespaces = OneNamespace(authority or Authority.development())
        self._gateway_limits = gateway_limits
        self._buffers = Buffers.of_memory(sys.maxsize, tier)
        self._first_uses: set[str] = set()
        self._log = log
        self._on_defect = on_defect
        self._random = Random(seed)
        self.namespace = Namespace(
            limits=tier,
            tokens=lambda: self._random.randbytes(16),
            digest_key=b"in-process",
            captures_body=captures_body,
            history=history,
        )
        self.engine = Engine(self.namespace, BodyCache(body_cache_bytes))
        self._connections: dict[int, InProcessConnection] = {}
        self._last_connection_id = OWN_CONNECTION_ID
        self._answers: dict[int, Effect] = {}
        self._last_request = 0
        _finish(self.store.open())
        _finish(self.engine.recover(self.store, self.clock.now_ms))
        self.driver = Driver(self.engine)
        self.run()

    def connect(self) -> InProcessConnection:
        """Make a connection; the client starts it with the AMQP header."""
        self._last_connection_id += 1
        gateway = Gateway(
            self._last_connection_id,
            namespaces=self._namespaces,
            tracking=lambda: str(uuid.UUID(bytes=self._random.randbytes(16))),
            log=self._log,
            now_ms=self.clock.now_ms,
            limits=self._gateway_limits,
            on_defect=self._on_defect,
            buffers=self._buffers,
            first_uses=self._first_uses,
            ahead_ms=lambda: self.namespace.wall.ahead_ms,
        )
        connection = InProcessConnection(self, self._last_connection_id, gateway)
        self._connections[self._last_connection_id] = connection
        self.driver.connect(self._last_connection_id)
        return connection

    def remove(self, connection: InProcessConnection) -> None:
        """Forget a connection that is over; effects still to come for it are dropped."""
        self._connections.pop(connection.connection_id, None)
        self.driver.disconnect(connection.connection_id)

    def create_queue(self, name: str, **settings: Any) -> EntityView:
        """Create a queue. Raises: the broker's refusal."""
        return self._ask_entity(lambda reply_to: CreateEntity(QueueDescription(name, **settings), reply_to))

    def create_topic(self, name: str, **settings: Any) -> EntityView:
        """Create a topic. Raises: the broker's refusal."""
        return self._ask_entity(lambda reply_to: CreateEntity(TopicDescription(name, **settings), reply_to))

    def create_subscription(
        self, topic_name: str, name: str, *, rule: RuleDescription | None = None, **settings: Any
    ) -> EntityView:
        """Create a subscription, with the rule that takes all messages unless another is given. Raises: the
        broker's refusal."""
        description = SubscriptionDescription(topic_name, name, **settings)
        return self._ask_entity(lambda reply_to: CreateEntity(description, reply_to, rule))

    def add_rule(self, topic_name: str, subscription_name: str, rule: RuleDescription) -> RuleDescription:
        """Add a rule to a subscription. Raises: the broker's refusal."""
        path = subscription_path(topic_name, subscription_name)
        answer = self._ask(lambda reply_to: AddRule(path, rule, reply_to))
        assert isinstance(answer, RulesFound)
        return answer.rules[0]

    def queue(self, name: str) -> EntityView:
        """Give a queue's description and figures. Raises: EntityNotFound."""
        return self._find(name)

    def topic(self, name: str) -> EntityView:
        """Give a topic's description and figures. Raises: EntityNotFound."""
        return self._find(name)

    def subscription(self, topic_name: str, name: str) -> EntityView:
        """Give a subscription's description and figures. Raises: EntityNotFound."""
        return self._find(subscription_path(topic_name, name))

    def ask(self, make: Callable[[ReplyTo], Command]) -> Effect:
        """Ask the broker something directly; gives the answering effect."""
        self._last_request += 1
        self.offer([make(ReplyTo(OWN_CONNECTION_ID, NO_LINK, self._last_request))])
        self.run()
        return self._answers.pop(self._last_request)

    def advance(self, ms: int) -> None:
        """Move the clock and let happen what is due meanwhile, each thing at its own instant."""
        end = self.clock.now_ms + ms
        while True:
            due = [self.driver.next_deadline_ms()]
            due += [connection.gateway.next_deadline_ms() for connection in self._connections.values()]
            at = min((instant for instant in due if instant is not None), default=end)
            if at > end:
                break
            self.clock.now_ms = max(self.clock.now_ms, at)
            self._tick()
            if self.clock.now_ms >= end:
                break
        self.clock.now_ms = end
        self._tick()

    def offer(self, commands: Iterable[Command]) -> None:
        """Apply commands; `run` makes them durable and handles what follows."""
        self.driver.offer(commands, self.clock.now_ms)

    def run(self) -> None:
        """Commit and hand out until nothing is left to do now."""
        driver, now = self.driver, self.clock.now_ms
        more = True
        while more:
            for connection in list(self._connections.values()):
                while connection.gateway.unread:
                    self.offer(connection.gateway.receive(b"", now))
            while driver.unfinished:
                driver.go_on(now)
            actions = driver.step(now)
            more = driver.more
            for action in actions:
                more = self._do(action, now) or more

    def close(self) -> None:
        """Stop: clients are told, the store is closed and keeps its facts."""
        for connection in self._connections.values():
            connection.gateway.shutdown(self.clock.now_ms)
            connection.flush()
        self.run()
        _finish(self.store.close())

    def _tick(self) -> None:
        for connection in list(self._connections.values()):
            self.offer(connection.gateway.tick(self.clock.now_ms))
        self.run()

    def _do(self, action: Action, now: int) -> bool:
        """Do what the driver says; return whether something follows from it now."""
        driver, store = self.driver, self.store
        match action:
            case HandOut(connection_id, effects):
                if connection_id == OWN_CONNECTION_ID:
                    for effect in effects:
                        reply_to: ReplyTo | None = getattr(effect, "reply_to", None)
                        if reply_to is not None:
                            self._answers[reply_to.number] = effect
                else:
                    gateway = self._connections[connection_id].gateway
                    for effect in effects:
                        gateway.handle(effect, driver.body, now)
                    self._flush(connection_id)
            case BodiesRead(connection_id):
                self._connections[connection_id].gateway.bodies_arrived(driver.body, now)
                self._flush(connection_id)
            case Commit(batch):
                driver.committed(batch.no, _finish(store.commit(batch)), now)
            case ReadRows(rows):
                for row in rows:  # one at a time: the cache may be too small for two
                    driver.rows_read(_finish(store.read_body_rows([row])), now)
            case Reclaim(wanted):
                driver.reclaimed(_finish(wanted.read_from(store)), now)
            case WakeAt(at_ms):
                return at_ms is not None and at_ms <= now
        return True

    def _flush(self, connection_id: int) -> None:
        connection = self._connections[connection_id]
        connection.flush()
        self.driver.want(connection_id, connection.gateway.bodies_wanted())

    def _find(self, path: str) -> EntityView:
        return self._ask_entity(lambda reply_to: LookUp(EntityAddress(path), reply_to))

    def _ask_entity(self, make: Callable[[ReplyTo], Command]) -> EntityView:
        answer = self._ask(make)
        assert isinstance(answer, EntityFound)
        return answer.entity

    def _ask(self, make: Callable[[ReplyTo], Command]) -> Effect:
        answer = self.ask(make)
        if isinstance(answer, Failed):
            raise answer.error
        return answer


def _finish(coroutine: Coroutine[Any, Any, T] | Any) -> T:
    """Run what never suspends to its end, without an event loop."""
    steps = coroutine.__await__()
    try:
        next(steps)
    except StopIteration as finished:
        value: T = finished.value
        return value
    raise RuntimeError("a store in memory was to wait for something")
