"""A whole broker in the calling thread: no socket, no event loop, and only the given clock.

Bytes are written to a connection and read from it; all effects of a write are done when it returns.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Iterable
from random import Random
from typing import Any

from peeklock.auth import Authority
from peeklock.broker.namespace import Namespace
from peeklock.broker.record.history import History
from peeklock.broker.vocabulary.commands import (
    NO_LINK,
    OWN_CONNECTION_ID,
    Address,
    AddRule,
    Command,
    CreateEntity,
    LockToken,
    LookUp,
    ReplyTo,
)
from peeklock.broker.vocabulary.descriptions import (
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
    subscription_path,
)
from peeklock.broker.vocabulary.effects import Effect, EntityFound, EntityView, Failed, RulesFound
from peeklock.broker.vocabulary.quotas import STANDARD, TierLimits
from peeklock.engine.bodies import BUDGET_BYTES, BodyCache
from peeklock.engine.driver import Driver
from peeklock.engine.engine import Engine
from peeklock.gateway.bounds import Buffers
from peeklock.gateway.choice import Namespaces, OneNamespace
from peeklock.gateway.connection import Gateway, OnDefect, raise_defect
from peeklock.gateway.context import GatewayLimits
from peeklock.store.memory import MemoryStore
from peeklock.testing.clock import ManualClock
from peeklock.testing.pump import Pump, finish


class InProcessConnection:
    """The broker's end of one AMQP connection."""

    def __init__(self, broker: InProcessBroker, connection_id: int, gateway: Gateway) -> None:
        self._broker = broker
        self.connection_id = connection_id
        self._output = bytearray()
        self._ended = False
        self.gateway = gateway

    def write(self, data: bytes) -> None:
        """Pass bytes of the client to the broker."""
        if data and not self._ended:
            self._broker.offer(self.gateway.receive(data, self._broker.clock.now_ms))
            self._broker.run()

    def read(self) -> bytes:
        """Return the bytes for the client."""
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
        """Take the output of the gateway, and offer the commands that follow."""
        self._output += self.gateway.data_to_send()
        self._broker.offer(self.gateway.written(0, self._broker.clock.now_ms))


class InProcessBroker:
    """A broker over a store in memory; a new broker over the same store recovers what was committed."""

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
            clock: moved by the caller, who then calls `run`, or by `advance`.
            store: give it again to restart the broker.
            authority: of rights; None = the emulator's one rule.
            tier: limits and features.
            gateway_limits: limits of each connection.
            body_cache_bytes: size of the body cache; a small one makes deliveries wait for the store.
            seed: of the lock tokens; change it at a restart, or tokens repeat.
            captures_body: turns on event rows, see `broker.namespace.Namespace`.
            history: records what happens to messages.
            log: takes structured events.
            on_defect: takes a bug that ended a connection; by default it is raised.
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
            tokens=lambda: LockToken(self._random.randbytes(16)),
            digest_key=b"in-process",
            captures_body=captures_body,
            history=history,
        )
        self.engine = Engine(self.namespace, BodyCache(body_cache_bytes))
        self._last_connection_id = OWN_CONNECTION_ID
        self._last_request = 0
        finish(self.store.open())
        finish(self.engine.recover(self.store, self.clock.now_ms))
        self.driver = Driver(self.engine)
        self.pump = Pump(self.driver, self.store, self.clock)
        self.run()

    def connect(self) -> InProcessConnection:
        """Return a new connection; the client starts it with the AMQP header."""
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
        self.pump.connect(self._last_connection_id, connection)
        return connection

    def remove(self, connection: InProcessConnection) -> None:
        """Remove a connection that ended; later effects for it are dropped."""
        self.pump.disconnect(connection.connection_id)

    def ask(self, make: Callable[[ReplyTo], Command]) -> Effect:
        """Apply a command and return the effect that answers it."""
        self._last_request += 1
        self.offer([make(ReplyTo(OWN_CONNECTION_ID, NO_LINK, self._last_request))])
        self.run()
        return self.pump.answers.pop(self._last_request)

    def create_queue(self, name: str, **settings: Any) -> EntityView:
        """Create a queue. Raises: the broker's refusal."""
        return self._ask_entity(lambda reply_to: CreateEntity(QueueDescription(name, **settings), reply_to))

    def create_topic(self, name: str, **settings: Any) -> EntityView:
        """Create a topic. Raises: the broker's refusal."""
        return self._ask_entity(lambda reply_to: CreateEntity(TopicDescription(name, **settings), reply_to))

    def create_subscription(
        self, topic_name: str, name: str, *, rule: RuleDescription | None = None, **settings: Any
    ) -> EntityView:
        """Create a subscription; without `rule` it takes all messages. Raises: the broker's refusal."""
        description = SubscriptionDescription(topic_name, name, **settings)
        return self._ask_entity(lambda reply_to: CreateEntity(description, reply_to, rule))

    def add_rule(self, topic_name: str, subscription_name: str, rule: RuleDescription) -> RuleDescription:
        """Add a rule to a subscription. Raises: the broker's refusal."""
        path = subscription_path(topic_name, subscription_name)
        answer = self._ask(lambda reply_to: AddRule(path, rule, reply_to))
        assert isinstance(answer, RulesFound)
        return answer.rules[0]

    def queue(self, name: str) -> EntityView:
        """Return a queue's description and figures. Raises: EntityNotFound."""
        return self._find(name)

    def topic(self, name: str) -> EntityView:
        """Return a topic's description and figures. Raises: EntityNotFound."""
        return self._find(name)

    def subscription(self, topic_name: str, name: str) -> EntityView:
        """Return a subscription's description and figures. Raises: EntityNotFound."""
        return self._find(subscription_path(topic_name, name))

    def advance(self, ms: int) -> None:
        """Move the clock forward; each timer fires at its own time."""
        end = self.clock.now_ms + ms
        while True:
            due = [self.driver.timers.next_ms]
            due += [connection.gateway.next_deadline_ms() for connection in self.pump.connections.values()]
            at = min((instant for instant in due if instant is not None), default=end)
            if at > end:
                break
            self.clock.now_ms = max(self.clock.now_ms, at)
            self.pump.tick()
            if self.clock.now_ms >= end:
                break
        self.clock.now_ms = end
        self.pump.tick()

    def offer(self, commands: Iterable[Command]) -> None:
        """Apply commands; `run` commits them and handles the effects."""
        self.pump.offer(commands)

    def run(self) -> None:
        """Commit and hand out until nothing is left to do now."""
        self.pump.run()

    def close(self) -> None:
        """Close the connections in order, then the store, which keeps its facts."""
        for connection in self.pump.connections.values():
            connection.gateway.shutdown(self.clock.now_ms)
            connection.flush()
        self.run()
        finish(self.store.close())

    def _find(self, path: str) -> EntityView:
        return self._ask_entity(lambda reply_to: LookUp(Address(path), reply_to))

    def _ask_entity(self, make: Callable[[ReplyTo], Command]) -> EntityView:
        answer = self._ask(make)
        assert isinstance(answer, EntityFound)
        return answer.entity

    def _ask(self, make: Callable[[ReplyTo], Command]) -> Effect:
        answer = self.ask(make)
        if isinstance(answer, Failed):
            raise answer.error
        return answer
