"""The entities of a namespace: which there are, their settings, their queues.

Owns: names, ids, status, creation, update, deletion, listing. Must not know: commands, links' credit,
messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter

from peeklock.broker.changes import QUEUES_PER_ENTITY, EntityRemoved, EntityStored
from peeklock.broker.commands import Address, Link, SubQueue
from peeklock.broker.descriptions import EntityStatus, QueueDescription
from peeklock.broker.duplicates import Duplicates
from peeklock.broker.effects import EntityView
from peeklock.broker.errors import EntityAlreadyExists, EntityDisabled, EntityNotFound, QuotaExceeded
from peeklock.broker.message import Message
from peeklock.broker.message_queue import MessageQueue
from peeklock.broker.message_session import SessionStates
from peeklock.broker.message_sessions import MessageSessions
from peeklock.broker.message_table import MessageTable
from peeklock.broker.quotas import RECEIVE_REQUESTS_MAX, TierLimits
from peeklock.broker.receivers import AnyLink, ReceiverLink
from peeklock.broker.sequence_numbers import PARTITION_COUNT, Partitions
from peeklock.broker.shared import Shared
from peeklock.broker.validation import check_forwarding, checked_queue, checked_update

_SENDING = (EntityStatus.ACTIVE, EntityStatus.RECEIVE_DISABLED)
_RECEIVING = (EntityStatus.ACTIVE, EntityStatus.SEND_DISABLED)


class Entity:
    """A queue with its sub-queues. The transfer dead-letter queue is made when it is first needed."""

    __slots__ = (
        "_enforces_quotas",
        "created_at_ms",
        "dead_letters",
        "description",
        "entity_id",
        "links",
        "main",
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
        *,
        enforces_quotas: bool,
    ) -> None:
        self._enforces_quotas = enforces_quotas
        description = stored.description
        first_queue_id = stored.entity_id * QUEUES_PER_ENTITY
        size_max = (description.max_message_size_kb or limits.message_size_kb_default) * 1024
        self.entity_id = stored.entity_id
        self.description = description
        self.created_at_ms = stored.created_at_ms
        self.updated_at_ms = stored.updated_at_ms
        self.links: dict[Link, AnyLink] = {}
        self.transfers: MessageQueue | None = None
        self.dead_letters = MessageQueue(
            first_queue_id + SubQueue.DEAD_LETTER.value,
            f"{description.name}/$deadletterqueue",
            shared,
            dead_letters=None,
            first_position=1,
            message_size_bytes_max=size_max,
        )
        self.main = MessageQueue(
            first_queue_id + SubQueue.MAIN.value,
            description.name,
            shared,
            dead_letters=self.dead_letters,
            first_position=first_position,
            message_size_bytes_max=size_max,
        )
        if description.requires_duplicate_detection:
            self.main.duplicates = Duplicates(self.main.queue_id, digest_key, description.duplicate_window_ms)
        if description.enable_partitioning:
            self.main.partitions = Partitions(first_position)
            self.main.numbers = MessageTable()
        if description.requires_session:
            self.main.sessions = MessageSessions(self.main)
        self._apply_settings(limits)

    @property
    def name(self) -> str:
        return self.description.name

    @property
    def receives(self) -> bool:
        return self.description.status in _RECEIVING

    def queues(self) -> list[MessageQueue]:
        """Give the queues that exist so far."""
        known = [self.main, self.dead_letters]
        return known if self.transfers is None else [*known, self.transfers]

    @property
    def states(self) -> SessionStates | None:
        """The states of its sessions."""
        return None if self.main.sessions is None else self.main.sessions.states

    def all_messages(self) -> Iterator[Message]:
        """Go through all that is stored for it: the messages of each queue and the states of sessions."""
        for queue in self.queues():
            yield from queue.all_messages()
        if self.states is not None:
            yield from self.states.all_messages()

    def size_bytes(self) -> int:
        size_bytes = sum(queue.size_bytes for queue in self.queues())
        return size_bytes if self.states is None else size_bytes + self.states.size_bytes

    def size_bytes_max(self) -> int:
        """Give what it may hold; each partition may hold as much as a whole queue without."""
        partitions = PARTITION_COUNT if self.description.enable_partitioning else 1
        return self.description.max_size_mb * 1024 * 1024 * partitions

    def stored(self) -> EntityStored:
        return EntityStored(self.entity_id, self.description, self.created_at_ms, self.updated_at_ms)

    def change(self, description: QueueDescription, limits: TierLimits, now_ms: int) -> None:
        """Apply other settings; the locks must have been dropped when that matters to them."""
        self.description = description
        self.updated_at_ms = now_ms
        self._apply_settings(limits)

    def view(self) -> EntityView:
        main = self.main
        return EntityView(
            entity_id=self.entity_id,
            description=self.description,
            created_at_ms=self.created_at_ms,
            updated_at_ms=self.updated_at_ms,
            accessed_at_ms=max(queue.accessed_at_ms for queue in self.queues()),
            size_bytes=self.size_bytes(),
            active_count=len(main.active) + len(main.deferred),
            scheduled_count=len(main.scheduled),
            dead_letter_count=_count(self.dead_letters),
            transfer_dead_letter_count=_count(self.transfers),
        )

    def require_receiving(self) -> None:
        """Raises: EntityDisabled."""
        if not self.receives:
            raise EntityDisabled(
                f"'{self.name}' is {self.description.status.value}: nothing can be received from it"
            )

    def require_sending(self) -> None:
        """Raises: EntityDisabled."""
        if self.description.status not in _SENDING:
            raise EntityDisabled(
                f"'{self.name}' is {self.description.status.value}: nothing can be sent to it"
            )

    def _apply_settings(self, limits: TierLimits) -> None:
        size_max = (self.description.max_message_size_kb or limits.message_size_kb_default) * 1024
        for queue in self.queues():
            if queue is self.transfers:
                queue.lock_duration_ms = self.description.lock_duration_ms  # nothing is passed on from here
            else:
                queue.configure(self.description)
            queue.message_size_bytes_max = size_max
        self.main.accepts_sends = self.description.status in _SENDING
        self.main.checks_sends = self._enforces_quotas or not (
            self.main.sessions is None and self.main.forward_to is None
        )


class Entities:
    """All entities of one namespace, by path (without regard to case) and by queue id."""

    def __init__(
        self,
        limits: TierLimits,
        shared: Shared,
        digest_key: bytes,
        *,
        enforce_quotas: bool,
        first_position: int,
    ) -> None:
        self.limits = limits
        self.queues: dict[int, MessageQueue] = {}
        self.states: dict[int, SessionStates] = {}
        self.removed: dict[int, Entity] = {}  # until their messages were handed out
        self.next_entity_id = 1
        self._shared = shared
        self._digest_key = digest_key
        self._enforce_quotas = enforce_quotas
        self._first_position = first_position
        self._by_path: dict[str, Entity] = {}
        self._by_id: dict[int, Entity] = {}
        self._sorted: list[Entity] | None = None

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Entity]:
        return iter(self._by_id.values())

    def find(self, path: str) -> Entity:
        """Raises: EntityNotFound."""
        entity = self._by_path.get(path.lower())
        if entity is None:
            raise EntityNotFound(f"The messaging entity '{path}' could not be found.")
        return entity

    def get(self, path: str) -> Entity | None:
        return self._by_path.get(path.lower())

    def by_id(self, entity_id: int) -> Entity | None:
        return self._by_id.get(entity_id)

    def of_queue(self, queue_id: int) -> Entity | None:
        return self._by_id.get(queue_id // QUEUES_PER_ENTITY)

    def queue(self, address: Address) -> tuple[Entity, MessageQueue]:
        """Raises: EntityNotFound."""
        entity = self.find(address.path)
        if address.sub_queue is SubQueue.MAIN:
            return entity, entity.main
        if address.sub_queue is SubQueue.DEAD_LETTER:
            return entity, entity.dead_letters
        return entity, self.transfers_of(entity)

    def find_stored(self, queue_id: int, position: int) -> Message | None:
        """Give a message, or the state of a session, that is stored now."""
        holder = self.queues.get(queue_id) or self.states.get(queue_id)
        return None if holder is None else holder.find(position)

    def is_full(self, entity: Entity, size_bytes: int) -> bool:
        """Whether so much more would exceed the entity's size, where that is held to (A-05)."""
        if not self._enforce_quotas:
            return False
        return entity.size_bytes() + size_bytes > entity.size_bytes_max()

    def require_room_for_receiver(self, entity: Entity) -> None:
        """Raises: QuotaExceeded."""
        if not self._enforce_quotas or len(entity.links) < RECEIVE_REQUESTS_MAX:
            return
        receivers = sum(isinstance(link, ReceiverLink) for link in entity.links.values())
        if receivers >= RECEIVE_REQUESTS_MAX:
            raise QuotaExceeded(
                f"'{entity.name}' has {receivers} receivers, at most {RECEIVE_REQUESTS_MAX} are allowed"
            )

    def create(self, description: QueueDescription, now_ms: int) -> Entity:
        """Raises: ArgumentInvalid, ArgumentOutOfRange, NotSupported, EntityAlreadyExists, QuotaExceeded."""
        description = checked_queue(description, self.limits)
        if description.name.lower() in self._by_path:
            raise EntityAlreadyExists(f"The messaging entity '{description.name}' already exists.")
        check_forwarding(description, self._description)
        if self._enforce_quotas and len(self._by_id) >= self.limits.queues_max:
            raise QuotaExceeded(
                f"'{description.name}' cannot be created: tier {self.limits.name} allows "
                f"{self.limits.queues_max} entities"
            )
        entity_id = self.next_entity_id
        self.next_entity_id = entity_id + 1
        return self.add(EntityStored(entity_id, description, now_ms, now_ms))

    def add(self, stored: EntityStored) -> Entity:
        """Take in an entity that is known to be right."""
        entity = Entity(
            stored,
            self._shared,
            self.limits,
            self._digest_key,
            self._first_position,
            enforces_quotas=self._enforce_quotas,
        )
        self._by_id[entity.entity_id] = entity
        self._by_path[entity.name.lower()] = entity
        self._sorted = None
        for queue in entity.queues():
            self.queues[queue.queue_id] = queue
        if entity.states is not None:
            self.states[entity.states.queue_id] = entity.states
        return entity

    def _description(self, path: str) -> QueueDescription | None:
        entity = self.get(path)
        return None if entity is None else entity.description

    def checked_update(self, description: QueueDescription) -> tuple[Entity, QueueDescription]:
        """Raises: EntityNotFound, ArgumentInvalid, ArgumentOutOfRange, NotSupported."""
        entity = self.find(description.name)
        before = entity.description
        description = checked_update(before, description, self.limits)
        # A target may be gone by now; that must not keep anything else from being changed.
        if (description.forward_to, description.forward_dead_lettered_to) != (
            before.forward_to,
            before.forward_dead_lettered_to,
        ):
            check_forwarding(description, self._description)
        return entity, description

    def remove(self, entity: Entity) -> EntityRemoved:
        """Forget an entity at once; its messages are handed out later, in slices."""
        del self._by_id[entity.entity_id]
        del self._by_path[entity.name.lower()]
        self._sorted = None
        for queue in entity.queues():
            del self.queues[queue.queue_id]
            queue.retire()
            self._shared.forwarding.forget(queue.queue_id)
        if entity.states is not None:
            del self.states[entity.states.queue_id]
        self.removed[entity.entity_id] = entity
        return EntityRemoved(entity.entity_id)

    def page(self, skip: int, top: int) -> tuple[list[Entity], bool]:
        """Give a page of all entities sorted by name, and whether there are more."""
        if self._sorted is None:
            self._sorted = sorted(self._by_id.values(), key=attrgetter("name"))
        skip = max(skip, 0)
        end = skip + max(top, 0)
        return self._sorted[skip:end], end < len(self._sorted)

    def transfers_of(self, entity: Entity) -> MessageQueue:
        """Give the transfer dead-letter queue of an entity."""
        if entity.transfers is None:
            entity.transfers = MessageQueue(
                entity.entity_id * QUEUES_PER_ENTITY + SubQueue.TRANSFER_DEAD_LETTER.value,
                f"{entity.name}/$Transfer/$deadletterqueue",
                self._shared,
                dead_letters=None,
                first_position=1,
                message_size_bytes_max=entity.main.message_size_bytes_max,
            )
            entity.transfers.main = entity.main
            entity.transfers.lock_duration_ms = entity.description.lock_duration_ms
            self.queues[entity.transfers.queue_id] = entity.transfers
        return entity.transfers


def _count(queue: MessageQueue | None) -> int:
    return 0 if queue is None else len(queue.active) + len(queue.deferred)
