"""One entity: its settings, its queues, and what it allows.

A topic is an entity without dead letters whose main queue has a `FanOut`; a subscription has a topic and
rules. All else is the same for queues.
"""

from __future__ import annotations

from collections.abc import Iterator

from peeklock.broker.entities.fan_out import FanOut, Rule
from peeklock.broker.entities.forwarding import Forwarding
from peeklock.broker.queue.counters import Counters
from peeklock.broker.queue.duplicates import Duplicates
from peeklock.broker.queue.links import AnyLink
from peeklock.broker.queue.message_queue import MessageQueue
from peeklock.broker.queue.message_session import SessionStates
from peeklock.broker.queue.message_sessions import MessageSessions
from peeklock.broker.queue.message_table import MessageTable
from peeklock.broker.queue.reconfiguration import configure
from peeklock.broker.queue.sequence_numbers import PARTITION_COUNT, Partitions
from peeklock.broker.queue.shared import Shared
from peeklock.broker.vocabulary.changes import QUEUES_PER_ENTITY, EntityStored
from peeklock.broker.vocabulary.commands import LinkId, SubQueue
from peeklock.broker.vocabulary.descriptions import (
    KINDS,
    Description,
    EntityKind,
    EntityStatus,
    SubscriptionDescription,
    TopicDescription,
)
from peeklock.broker.vocabulary.effects import EntityView
from peeklock.broker.vocabulary.errors import EntityDeleted, EntityDisabled, InvalidOperation
from peeklock.broker.vocabulary.message import Message
from peeklock.broker.vocabulary.quotas import TierLimits

_SENDING = (EntityStatus.ACTIVE, EntityStatus.RECEIVE_DISABLED)
_RECEIVING = (EntityStatus.ACTIVE, EntityStatus.SEND_DISABLED)


class Entity:
    """A queue, topic or subscription with its queues."""

    __slots__ = (
        "_enforces_quotas",
        "_shared",
        "counters",
        "created_at_ms",
        "dead_letters",
        "deleting",
        "description",
        "entity_id",
        "fan_out",
        "forwards",
        "links",
        "main",
        "rules",
        "topic",
        "transfers",
        "updated_at_ms",
    )

    def __init__(
        self,
        stored: EntityStored,
        shared: Shared,
        limits: TierLimits,
        digest_key: bytes,
        first_position: int,
        forwarding: Forwarding,
        *,
        topic: Entity | None,
        enforces_quotas: bool,
    ) -> None:
        self._enforces_quotas = enforces_quotas
        description = stored.description
        self.topic = topic  # of a subscription
        self.rules: dict[str, Rule] = {}  # of a subscription, by name in lower case
        self.entity_id = stored.entity_id
        self.description = description
        self.created_at_ms = stored.created_at_ms
        self.updated_at_ms = stored.updated_at_ms
        self.deleting = stored.deleting  # of a topic: see `deletions`
        self.forwards = False  # its messages or dead letters
        self.links: dict[LinkId, AnyLink] = {}
        self.counters = Counters()
        self.transfers: MessageQueue | None = None
        self.dead_letters: MessageQueue | None = None
        self.fan_out: FanOut | None = None  # of a topic
        self._shared = shared
        if isinstance(description, TopicDescription):
            self.fan_out = FanOut(shared, forwarding)
        else:
            self.dead_letters = self.dead_letter_queue(SubQueue.DEAD_LETTER, "$deadletterqueue")
        self.main = MessageQueue(
            self.entity_id * QUEUES_PER_ENTITY + SubQueue.MAIN.value,
            description.name,
            shared,
            dead_letters=self.dead_letters,
            first_position=first_position,
            fan_out=self.fan_out,
            copied_by=None if topic is None else topic.fan_out,
            counters=self.counters,
        )
        if description.requires_duplicate_detection:
            self.main.duplicates = Duplicates(self.main.queue_id, digest_key, description.duplicate_window_ms)
        if self.is_partitioned:
            self.main.partitions = Partitions(first_position)
            self.main.numbers = MessageTable()
        if description.requires_session:
            self.main.sessions = MessageSessions(self.main)
        self.apply_settings(limits)

    def dead_letter_queue(self, sub_queue: SubQueue, suffix: str) -> MessageQueue:
        """Make one of its dead-letter queues."""
        queue_id = self.entity_id * QUEUES_PER_ENTITY + sub_queue.value
        copied_by = None if self.topic is None else self.topic.fan_out
        name = f"{self.name}/{suffix}"
        return MessageQueue(queue_id, name, self._shared, copied_by=copied_by, counters=self.counters)

    @property
    def name(self) -> str:
        """The path."""
        return self.description.name

    @property
    def short_name(self) -> str:
        """The name of a subscription within its topic."""
        about = self.description
        return about.subscription_name if isinstance(about, SubscriptionDescription) else about.name

    @property
    def kind(self) -> EntityKind:
        return KINDS[type(self.description)]

    @property
    def receives(self) -> bool:
        return self.description.status in _RECEIVING

    @property
    def is_partitioned(self) -> bool:
        return (self.topic or self).description.enable_partitioning

    @property
    def dead_letters_on_filter_errors(self) -> bool:
        """Of a subscription (P-04)."""
        about = self.description
        return isinstance(about, SubscriptionDescription) and about.dead_lettering_on_filter_errors

    def subscriptions(self) -> list[Entity]:
        """Return the subscriptions of a topic."""
        return [] if self.fan_out is None else list(self.fan_out.subscriptions.values())

    def queues(self) -> list[MessageQueue]:
        """Return the queues that exist so far."""
        return [queue for queue in (self.main, self.dead_letters, self.transfers) if queue is not None]

    @property
    def states(self) -> SessionStates | None:
        """The states of sessions."""
        return None if self.main.sessions is None else self.main.sessions.states

    def all_messages(self) -> Iterator[Message]:
        """Yield the messages of each queue and the states of sessions."""
        for queue in self.queues():
            yield from queue.all_messages()
        if self.states is not None:
            yield from self.states.all_messages()

    def size_bytes(self) -> int:
        """Return the size of messages and states; of a topic with each copy in its subscriptions."""
        # Each send asks for it, so each part is looked up once.
        main, dead_letters, transfers, fan_out = self.main, self.dead_letters, self.transfers, self.fan_out
        size_bytes = main.size_bytes
        if dead_letters is not None:
            size_bytes += dead_letters.size_bytes
        if transfers is not None:
            size_bytes += transfers.size_bytes
        if fan_out is not None:
            size_bytes += fan_out.size_bytes
        if main.sessions is not None:
            size_bytes += main.sessions.states.size_bytes
        return size_bytes

    def size_bytes_max(self) -> int:
        """Return the maximum size; each partition has that of a queue without."""
        partitions = PARTITION_COUNT if self.is_partitioned else 1
        return self.description.max_size_mb * 1024 * 1024 * partitions

    def stored(self) -> EntityStored:
        return EntityStored(
            self.entity_id, self.description, self.created_at_ms, self.updated_at_ms, self.deleting
        )

    @property
    def is_hidden(self) -> bool:
        """Whether it or its topic is being deleted: it cannot be found by name."""
        return (self.topic or self).deleting

    def mark_deleted(self) -> None:
        """Accept no more sends: it is being deleted."""
        self.deleting = True
        self.main.accepts_sends = False

    def change(self, description: Description, limits: TierLimits, now_ms: int) -> None:
        """Apply other settings; the caller has dropped the locks if the change requires it."""
        self.description = description
        self.updated_at_ms = now_ms
        self.apply_settings(limits)

    def view(self) -> EntityView:
        main = self.main
        wall = main.shared.wall
        view = EntityView(
            entity_id=self.entity_id,
            description=self.description,
            created_at_ms=self.created_at_ms,
            updated_at_ms=self.updated_at_ms,
            accessed_at_ms=wall.shown_ms(max(queue.accessed_at_ms for queue in self.queues())),
            size_bytes=self.size_bytes(),
            active_count=len(main.active) + len(main.deferred),
            scheduled_count=len(main.scheduled),
            dead_letter_count=_count(self.dead_letters),
            transfer_dead_letter_count=_count(self.transfers),
            message_size_bytes_max=main.message_size_bytes_max,
        )
        fan_out = self.fan_out
        if fan_out is not None:
            view.active_count = 0  # pending messages are on their way
            view.subscription_count = len(fan_out.subscriptions)
            view.sql_filter_count = fan_out.sql_count
            view.correlation_filter_count = fan_out.correlation_count
            view.unmatched_count = fan_out.unmatched
        return view

    def require_receiving(self) -> None:
        """Check that the status allows to receive. Raises: EntityDisabled."""
        if not self.receives:
            raise EntityDisabled(
                f"'{self.name}' is {self.description.status.value}: nothing can be received from it"
            )

    def require_receivable(self, queue: MessageQueue) -> None:
        """Check that a queue of it can be received from. Raises: InvalidOperation: it is a topic."""
        if queue.fan_out is not None:
            raise InvalidOperation(
                f"'{self.name}' is a topic: its messages are received in its subscriptions"
            )

    def require_target(self) -> None:
        """Check that it can be sent to. Raises: InvalidOperation: it is a subscription."""
        if self.topic is not None:
            raise InvalidOperation(
                f"'{self.name}' is a subscription: messages are sent to its topic '{self.topic.name}'"
            )

    def require_sending_to(self, queue: MessageQueue) -> None:
        """Check that a queue can be sent to. Raises: InvalidOperation, EntityDisabled, EntityDeleted."""
        if queue.holds_dead_letters:
            raise InvalidOperation(f"'{queue.name}' is a dead-letter queue: nothing can be sent to it")
        self.require_target()
        self.require_sending()

    def require_sending(self) -> None:
        """Check that the status allows to send. Raises: EntityDisabled, EntityDeleted."""
        if self.deleting:
            raise EntityDeleted(f"The messaging entity '{self.name}' was deleted.")
        if self.description.status not in _SENDING:
            raise EntityDisabled(
                f"'{self.name}' is {self.description.status.value}: nothing can be sent to it"
            )

    def apply_settings(self, limits: TierLimits) -> None:
        """Apply its settings and its topic's to the queues; the caller has dropped the locks."""
        about = self.description
        default_ttl_ms = about.default_ttl_ms
        size_kb = about.max_message_size_kb
        if self.topic is not None:
            default_ttl_ms = min(default_ttl_ms, self.topic.description.default_ttl_ms)  # E-07
            size_kb = self.topic.description.max_message_size_kb
        for queue in self.queues():
            if queue is self.transfers:
                queue.lock_duration_ms = about.lock_duration_ms  # it does not forward
            else:
                configure(queue, about, default_ttl_ms)
            queue.message_size_bytes_max = (size_kb or limits.message_size_kb_default) * 1024
        self.forwards = about.forward_to is not None or about.forward_dead_lettered_to is not None
        self.main.accepts_sends = about.status in _SENDING and not self.deleting
        self.main.checks_sends = self._enforces_quotas or not (
            self.main.sessions is None and self.main.forward_to is None
        )


def _count(queue: MessageQueue | None) -> int:
    return 0 if queue is None else len(queue.active) + len(queue.deferred)
