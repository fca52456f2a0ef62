"""An engine over the smallest namespace and a memory store, and what the server does around them."""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine
from typing import Any, TypeVar, cast

from peeklock.broker.vocabulary.commands import Command
from peeklock.broker.vocabulary.effects import Effect
from peeklock.broker.vocabulary.message import FIELDS, Message
from peeklock.engine.bodies import BodyCache
from peeklock.engine.engine import Engine
from peeklock.store.base import Batch
from peeklock.store.memory import MemoryStore
from tests.engine.tiny import TinyNamespace

T = TypeVar("T")

RECORD = tuple(name for name in FIELDS if name not in ("lock", "routing"))


def at_once(awaitable: Awaitable[T]) -> T:
    """Run a coroutine of a memory store, which never suspends."""
    try:
        cast("Coroutine[Any, Any, T]", awaitable).send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("it suspended")


class Rig:
    """`offer`, then `begin` and `finish` a commit, or `commit` for both."""

    def __init__(
        self, store: MemoryStore | None = None, *, cache_bytes: int = 1 << 20, now_ms: int = 0
    ) -> None:
        self.store = store or MemoryStore()
        self.namespace = TinyNamespace()
        self.engine = Engine(self.namespace, BodyCache(cache_bytes))
        self.now_ms = now_ms
        self.flying: tuple[Batch, int] | None = None
        at_once(self.engine.recover(self.store, self.now_ms))

    def offer(self, *commands: object) -> None:
        for command in commands:
            self.engine.offer(cast("Command", command), self.now_ms)

    def begin(self) -> Batch | None:
        """Take a batch and send it on its way."""
        batch = self.engine.take_batch(self.now_ms)
        if batch is not None:
            self.flying = batch, self.store.stage(batch)
        return batch

    def finish(self) -> list[Effect]:
        """Let the batch on its way arrive."""
        assert self.flying is not None
        batch, size_bytes = self.flying
        self.flying = None
        self.store.flush()
        return self.engine.committed(batch.no, size_bytes, self.now_ms)

    def commit(self, *commands: object) -> list[Effect]:
        self.offer(*commands)
        return self.engine.release() if self.begin() is None else self.finish()

    def reclaim(self) -> bool:
        """Read and offer what the engine wants for its space."""
        wanted = self.engine.reclaim_wanted(self.now_ms)
        if wanted is None:
            return False
        self.engine.reclaim_offer(at_once(wanted.read_from(self.store)), self.now_ms)
        return True

    def settle(self) -> None:
        """Go on, a second at a time, until nothing is left to do."""
        if self.flying is not None:
            self.finish()
        for _ in range(2000):
            self.now_ms += 1001
            self.engine.advance(self.now_ms)
            reclaimed = self.reclaim()
            if self.begin() is not None:
                self.finish()
            elif not reclaimed:
                return
        raise AssertionError("it never comes to rest")

    def body(self, message: Message) -> bytes:
        """Return the payload as a connection would get it: from memory, else read back."""
        row, slot = message.body_row, message.body_slot
        payload = self.engine.bodies.get(row, slot)
        if payload is None:
            self.engine.bodies.want(row)
            payloads = at_once(self.store.read_body_rows([row]))[row]
            self.engine.bodies.put(row, payloads)
            payload = payloads[slot]
        return payload

    def messages(self) -> list[Message]:
        return [message for queue in self.namespace.queues.values() for message in queue.values()]

    def state(self) -> object:
        """Return all that must survive a restart."""
        return (
            dict(self.namespace.entities),
            {
                (queue_id, position): tuple(getattr(message, name) for name in RECORD)
                for queue_id, queue in self.namespace.queues.items()
                for position, message in queue.items()
            },
            {
                queue_id: position
                for queue_id, position in self.namespace.next.items()
                if queue_id in self.namespace.queues
            },
        )
