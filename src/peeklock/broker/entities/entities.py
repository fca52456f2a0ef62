"""All entities of a namespace by name and id, and the rules of subscriptions: create, update, delete,
list."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import replace
from operator import attrgetter

from peeklock.broker.entities.entity import Entity
from peeklock.broker.entities.fan_out import FanOut, Rule
from peeklock.broker.entities.forwarding import Forwarding
from peeklock.broker.entities.validation import (
    check_forwarding,
    checked,
    checked_part_name,
    checked_update,
    stamped,
)
from peeklock.broker.queue.links import Consumer
from peeklock.broker.queue.message_queue import MessageQueue
from peeklock.broker.queue.message_session import SessionStates
from peeklock.broker.queue.shared import Shared
from peeklock.broker.vocabulary.changes import QUEUES_PER_ENTITY, EntityRemoved, EntityStored
from peeklock.broker.vocabulary.commands import Address, IfMatch, SubQueue
from peeklock.broker.vocabulary.descriptions import (
    Description,
    EntityKind,
    RuleDescription,
    SubscriptionDescription,
)
from peeklock.broker.vocabulary.effects import entity_version
from peeklock.broker.vocabulary.errors import (
    ArgumentInvalid,
    EntityAlreadyExists,
    EntityNotFound,
    InvalidOperation,
    PreconditionFailed,
    QuotaExceeded,
    RuleAlreadyExists,
    RuleNotFound,
    ServerBusy,
)
from peeklock.broker.vocabulary.message import Message
from peeklock.broker.vocabulary.quotas import RECEIVE_REQUESTS_MAX, RULES_MAX, TierLimits


class Entities:
    """All entities of one namespace, by path (case-insensitive) and by queue id."""

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
        self.removed: dict[int, Entity] = {}  # until their messages are taken
        self.next_entity_id = 1
        self.forwarding = shared.forwarding = Forwarding(self)
        self._shared = shared
        self._digest_key = digest_key
        self._enforce_quotas = enforce_quotas
        self._first_position = first_position
        self._by_path: dict[str, Entity] = {}
        self._by_id: dict[int, Entity] = {}
        self._subscription_count = 0
        self._sorted: dict[tuple[EntityKind | None, str], list[Entity]] = {}  # until one is added or removed

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Entity]:
        return iter(self._by_id.values())

    def find(self, path: str) -> Entity:
        """Return an entity. Raises: EntityNotFound."""
        entity = self._by_path.get(path.lower())
        if entity is None or entity.is_hidden:
            raise EntityNotFound(f"The messaging entity '{path}' could not be found.")
        return entity

    def from_name(self, path: str) -> list[Entity]:
        """Return the entities of all kinds sorted by name, from a name on."""
        found = self._sorted.get((None, ""))
        if found is None:
            found = [entity for entity in self._by_id.values() if not entity.is_hidden]
            found.sort(key=_folded_name)
            self._sorted[None, ""] = found
        return found[bisect_left(found, path.lower(), key=_folded_name) :]

    def target(self, path: str) -> Entity | None:
        """Return the queue or topic that is the target of a forward."""
        entity = self._by_path.get(path.lower())
        return None if entity is None or entity.topic is not None or entity.deleting else entity

    def subscription(self, path: str) -> Entity:
        """Return a subscription. Raises: EntityNotFound; InvalidOperation: it is not one."""
        entity = self.find(path)
        if entity.topic is None:
            raise InvalidOperation(f"'{entity.name}' is a {entity.kind.value}: only subscriptions have rules")
        return entity

    def by_id(self, entity_id: int) -> Entity | None:
        return self._by_id.get(entity_id)

    def of_queue(self, queue_id: int) -> Entity | None:
        return self._by_id.get(queue_id // QUEUES_PER_ENTITY)

    def queue(self, address: Address) -> tuple[Entity, MessageQueue]:
        """Return an entity and one of its queues. Raises: EntityNotFound, InvalidOperation."""
        entity = self.find(address.path)
        if address.sub_queue is SubQueue.MAIN:
            return entity, entity.main
        if address.sub_queue is SubQueue.TRANSFER_DEAD_LETTER:
            return entity, self.transfers_of(entity)
        if entity.dead_letters is None:
            raise InvalidOperation(
                f"'{entity.name}' is a topic and has no dead-letter queue: each of its subscriptions has one"
            )
        return entity, entity.dead_letters

    def find_stored(self, queue_id: int, position: int) -> Message | None:
        """Return a stored message or session state."""
        holder = self.queues.get(queue_id) or self.states.get(queue_id)
        return None if holder is None else holder.find(position)

    def readable(self, address: Address) -> MessageQueue:
        """Return a queue that can be received from. Raises: as `queue`; InvalidOperation, EntityDisabled."""
        entity, queue = self.queue(address)
        entity.require_receivable(queue)
        entity.require_receiving()
        return queue

    def browsable(self, address: Address) -> MessageQueue:
        """Return a queue that can be browsed: also that of a topic, whose messages are scheduled.

        Raises: as `queue`; EntityDisabled.
        """
        entity, queue = self.queue(address)
        entity.require_receiving()
        return queue

    def require_room(self, entity: Entity, size_bytes: int) -> None:
        """Check that so many more bytes fit. Raises: QuotaExceeded."""
        entity = entity.topic or entity  # a subscription counts for its topic
        if self.is_full(entity, size_bytes):
            raise QuotaExceeded(
                f"The maximum entity size has been reached or exceeded: '{entity.name}' holds "
                f"{entity.size_bytes()} of {entity.size_bytes_max()} bytes, "
                f"{size_bytes} more do not fit"
            )

    def is_full(self, entity: Entity, size_bytes: int) -> bool:
        """Return whether so many more bytes exceed the entity's size, if quotas are enforced (A-05)."""
        if not self._enforce_quotas:
            return False
        return entity.size_bytes() + size_bytes > entity.size_bytes_max()

    def require_room_for_receiver(self, entity: Entity) -> None:
        """Check the number of receivers. Raises: QuotaExceeded."""
        if not self._enforce_quotas or len(entity.links) < RECEIVE_REQUESTS_MAX:
            return
        receivers = sum(isinstance(link, Consumer) for link in entity.links.values())
        if receivers >= RECEIVE_REQUESTS_MAX:
            raise QuotaExceeded(
                f"'{entity.name}' has {receivers} receivers, at most {RECEIVE_REQUESTS_MAX} are allowed"
            )

    def create(self, description: Description, now_ms: int) -> Entity:
        """Create an entity.

        Raises: ArgumentInvalid, ArgumentOutOfRange, NotSupported, EntityAlreadyExists, EntityNotFound,
        QuotaExceeded.
        """
        if isinstance(description, SubscriptionDescription):
            topic = self.topic(description.topic_name)
            description = replace(description, topic_name=topic.name)  # the first spelling
        description = stamped(None, checked(description, self.limits), now_ms)
        existing = self._by_path.get(description.name.lower())
        if existing is not None and existing.deleting:
            raise ServerBusy(f"'{description.name}' is being deleted with its subscriptions: try again later")
        if existing is not None:
            raise EntityAlreadyExists(f"The messaging entity '{description.name}' already exists.")
        check_forwarding(description, self._is_target)
        self._require_room_for(description)
        entity_id = self.next_entity_id
        self.next_entity_id = entity_id + 1
        return self.add(EntityStored(entity_id, description, now_ms, now_ms))

    def topic(self, name: str) -> Entity:
        """Return a topic. Raises: EntityNotFound; ArgumentInvalid: it is not one."""
        topic = self.find(name)
        if topic.fan_out is None:
            raise ArgumentInvalid(f"'{topic.name}' is a {topic.kind.value}: only a topic has subscriptions")
        return topic

    def _require_room_for(self, description: Description) -> None:
        if not self._enforce_quotas:
            return
        if isinstance(description, SubscriptionDescription):
            fan_out = self.topic(description.topic_name).fan_out
            assert fan_out is not None
            if len(fan_out.subscriptions) >= self.limits.subscriptions_max:
                raise QuotaExceeded(
                    f"'{description.name}' cannot be created: tier {self.limits.name} allows "
                    f"{self.limits.subscriptions_max} subscriptions of one topic"
                )
        elif len(self._by_id) - self._subscription_count >= self.limits.queues_max:
            raise QuotaExceeded(
                f"'{description.name}' cannot be created: tier {self.limits.name} allows "
                f"{self.limits.queues_max} entities"
            )

    def add(self, stored: EntityStored) -> Entity:
        """Add a valid entity; a subscription has no rules yet."""
        topic = None
        if isinstance(stored.description, SubscriptionDescription):
            topic = self._by_path.get(stored.description.topic_name.lower())  # even if hidden
            if topic is None:
                raise EntityNotFound(f"The topic of '{stored.description.name}' could not be found.")
        entity = Entity(
            stored,
            self._shared,
            self.limits,
            self._digest_key,
            self._first_position,
            self.forwarding,
            topic=topic,
            enforces_quotas=self._enforce_quotas,
        )
        self._by_id[entity.entity_id] = entity
        self._by_path[entity.name.lower()] = entity
        self._sorted = {}
        self.forwarding.routes_changed()
        for queue in entity.queues():
            self.queues[queue.queue_id] = queue
        if entity.states is not None:
            self.states[entity.states.queue_id] = entity.states
        if topic is not None and topic.fan_out is not None:
            self._subscription_count += 1
            topic.fan_out.subscriptions[entity.short_name.lower()] = entity
        return entity

    def _is_target(self, path: str) -> bool:
        return self.target(path) is not None

    def found_as(self, path: str, if_match: IfMatch) -> Entity:
        """Return an entity in an accepted version. Raises: EntityNotFound, PreconditionFailed."""
        entity = self.find(path)
        _require_version(entity.name, entity_version(entity.entity_id, entity.updated_at_ms), if_match)
        return entity

    def checked_update(
        self, description: Description, if_match: IfMatch, now_ms: int
    ) -> tuple[Entity, Description]:
        """Return an entity with its new description, not applied yet.

        Raises: EntityNotFound, PreconditionFailed, ArgumentInvalid, ArgumentOutOfRange, NotSupported.
        """
        entity = self.found_as(description.name, if_match)
        before = entity.description
        description = stamped(before, checked_update(before, description, self.limits), now_ms)
        # An old target may be gone, which does not prevent other changes.
        if (description.forward_to, description.forward_dead_lettered_to) != (
            before.forward_to,
            before.forward_dead_lettered_to,
        ):
            check_forwarding(description, self._is_target)
        return entity, description

    def hide(self, entity: Entity) -> None:
        """Remove a topic that is being deleted, and its subscriptions, from lists."""
        self._sorted = {}
        self.forwarding.routes_changed()

    def remove(self, entity: Entity) -> EntityRemoved:
        """Forget an entity, a topic after its subscriptions; its messages are taken later, in slices."""
        assert not entity.subscriptions()
        if entity.topic is not None and entity.topic.fan_out is not None:
            self._subscription_count -= 1
            entity.topic.fan_out.size_bytes -= entity.size_bytes()
            del entity.topic.fan_out.subscriptions[entity.short_name.lower()]
            for rule in entity.rules.values():
                entity.topic.fan_out.remove(rule)
        del self._by_id[entity.entity_id]
        del self._by_path[entity.name.lower()]
        self._sorted = {}
        self.forwarding.routes_changed()
        for queue in entity.queues():
            del self.queues[queue.queue_id]
            queue.retire()
            self.forwarding.forget(queue.queue_id)
        if entity.states is not None:
            del self.states[entity.states.queue_id]
        self.removed[entity.entity_id] = entity
        return EntityRemoved(entity.entity_id)

    # Rules

    def new_rule(self, subscription: Entity, description: RuleDescription, now_ms: int) -> Rule:
        """Return a rule that is not added yet. Raises: ArgumentInvalid, RuleAlreadyExists, QuotaExceeded."""
        checked_part_name(description.name)
        if description.name.lower() in subscription.rules:
            raise RuleAlreadyExists(
                f"The messaging entity '{subscription.name}/Rules/{description.name}' already exists."
            )
        rule = Rule.compiled(subscription, replace(description, created_at_ms=now_ms))
        self._require_room_for_rule(rule)
        return rule

    def changed_rule(self, subscription: Entity, description: RuleDescription, if_match: IfMatch) -> Rule:
        """Return a replacement. Raises: ArgumentInvalid, RuleNotFound, PreconditionFailed, QuotaExceeded."""
        old = self.rule(subscription, description.name, if_match)
        name, created_at_ms = old.description.name, old.description.created_at_ms
        rule = Rule.compiled(subscription, replace(description, name=name, created_at_ms=created_at_ms))
        if rule.is_correlation != old.is_correlation:
            self._require_room_for_kind(rule)
        return rule

    def rule(self, subscription: Entity, name: str, if_match: IfMatch = None) -> Rule:
        """Return a rule in an accepted version. Raises: RuleNotFound, PreconditionFailed."""
        rule = subscription.rules.get(name.lower())
        if rule is None:
            raise RuleNotFound(f"The messaging entity '{subscription.name}/Rules/{name}' could not be found.")
        if if_match is not None:
            _require_version(f"{subscription.name}/Rules/{name}", rule.description.version, if_match)
        return rule

    def put_rule(self, rule: Rule) -> None:
        """Add a rule, or replace the one with its name."""
        subscription = rule.subscription
        self.drop_rule(subscription, rule.description.name)
        subscription.rules[rule.description.name.lower()] = rule
        _fan_out_of(rule).add(rule)

    def drop_rule(self, subscription: Entity, name: str) -> None:
        """Remove a rule, if there is one of that name."""
        rule = subscription.rules.pop(name.lower(), None)
        if rule is not None:
            _fan_out_of(rule).remove(rule)

    def _require_room_for_rule(self, rule: Rule) -> None:
        count = len(_fan_out_of(rule))
        if count >= RULES_MAX:
            raise QuotaExceeded(
                f"rule '{rule.description.name}' cannot be added: the topic of '{rule.subscription.name}' "
                f"has {count} rules, at most {RULES_MAX} are allowed"
            )
        self._require_room_for_kind(rule)

    def _require_room_for_kind(self, rule: Rule) -> None:
        if not self._enforce_quotas:
            return
        fan_out = _fan_out_of(rule)
        kind, count, most = (
            ("correlation", fan_out.correlation_count, self.limits.correlation_filters_max)
            if rule.is_correlation
            else ("SQL", fan_out.sql_count, self.limits.sql_filters_max)
        )
        if count >= most:
            raise QuotaExceeded(
                f"rule '{rule.description.name}' cannot be added: tier {self.limits.name} allows {most} "
                f"{kind} filters of one topic"
            )

    def page(
        self, kind: EntityKind, skip: int, top: int, topic: str | None = None
    ) -> tuple[list[Entity], bool]:
        """Return a page of the entities of a kind sorted by name, and whether there are more.

        Args:
            topic: whose subscriptions are listed.

        Raises: EntityNotFound, ArgumentInvalid: there is no such topic.
        """
        key = (kind, "" if topic is None else topic.lower())
        found = self._sorted.get(key)
        if found is None:
            known: Iterable[Entity] = self._by_id.values()
            if topic is not None:
                known = self.topic(topic).subscriptions()
            found = [entity for entity in known if entity.kind is kind and not entity.is_hidden]
            found.sort(key=attrgetter("name"))
            self._sorted[key] = found
        skip = max(skip, 0)
        end = skip + max(top, 0)
        return found[skip:end], end < len(found)

    def transfers_of(self, entity: Entity) -> MessageQueue:
        """Return the transfer dead-letter queue of an entity, made on first use."""
        if entity.transfers is None:
            transfers = entity.dead_letter_queue(SubQueue.TRANSFER_DEAD_LETTER, "$Transfer/$deadletterqueue")
            transfers.main = entity.main
            transfers.message_size_bytes_max = entity.main.message_size_bytes_max
            transfers.lock_duration_ms = entity.description.lock_duration_ms
            self.queues[transfers.queue_id] = entity.transfers = transfers
        return entity.transfers


def _fan_out_of(rule: Rule) -> FanOut:
    topic = rule.subscription.topic
    assert topic is not None
    assert topic.fan_out is not None
    return topic.fan_out


def _folded_name(entity: Entity) -> str:
    return entity.name.lower()


def _require_version(name: str, version: str, if_match: IfMatch) -> None:
    if if_match is not None and version not in if_match:
        raise PreconditionFailed(
            f"'{name}' does not have the version in If-Match: read it again and repeat the change"
        )
