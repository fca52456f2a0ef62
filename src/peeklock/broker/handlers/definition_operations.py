"""Commands about entities and rules, except deletions, and their consequences for links and queues."""

from __future__ import annotations

from operator import attrgetter

from peeklock.broker.entities.entities import Entities
from peeklock.broker.entities.entity import Entity
from peeklock.broker.entities.idle import IdleDeletion
from peeklock.broker.entities.validation import drops_locks
from peeklock.broker.handlers.attachments import Attachments
from peeklock.broker.queue.links import Consumer
from peeklock.broker.queue.message_queue import MessageQueue
from peeklock.broker.queue.outcome import Outcome
from peeklock.broker.queue.reconfiguration import drop_locks
from peeklock.broker.queue.shared import Shared
from peeklock.broker.vocabulary import commands as ask
from peeklock.broker.vocabulary import effects as do
from peeklock.broker.vocabulary.changes import RuleRemoved, RuleStored
from peeklock.broker.vocabulary.descriptions import DEFAULT_RULE_NAME, RuleDescription
from peeklock.broker.vocabulary.errors import EntityDisabled, InvalidOperation, ServiceBusError
from peeklock.broker.vocabulary.events import EventType


class DefinitionOperations:
    """Handlers of commands about entities and rules."""

    def __init__(
        self, entities: Entities, shared: Shared, attachments: Attachments, idle: IdleDeletion
    ) -> None:
        self._entities = entities
        self._shared = shared
        self._attachments = attachments
        self._idle = idle

    # Entities

    def look_up(self, command: ask.LookUp, out: Outcome) -> None:
        out.effects.append(do.EntityFound(command.reply_to, self._entities.find(command.address.path).view()))

    def create_entity(self, command: ask.CreateEntity, out: Outcome) -> None:
        now_ms = out.now_ms
        shown_ms = self._shared.wall.shown_ms(now_ms)
        entity = self._entities.create(command.description, shown_ms)
        if entity.topic is not None:
            try:
                rule = self._entities.new_rule(
                    entity, command.rule or RuleDescription(DEFAULT_RULE_NAME), shown_ms
                )
            except ServiceBusError:
                self._entities.remove(entity)  # its id is not reused
                del self._entities.removed[entity.entity_id]
                raise
            self._entities.put_rule(rule)
            self._touch_topic(entity, now_ms)
        self._idle.watch(entity, now_ms)
        out.changes.append(entity.stored())
        out.changes += [RuleStored(entity.entity_id, rule.description) for rule in entity.rules.values()]
        out.entity(EventType.ENTITY_CREATED, entity.main, entity.description)
        out.effects.append(do.EntityFound(command.reply_to, entity.view()))

    def update_entity(self, command: ask.UpdateEntity, out: Outcome) -> None:
        now_ms = out.now_ms
        shown_ms = self._shared.wall.shown_ms(now_ms)
        entity, description = self._entities.checked_update(command.description, command.if_match, shown_ms)
        subscriptions = entity.subscriptions()
        if description != entity.description:
            if drops_locks(entity.description, description):
                for queue in _all_queues(entity, subscriptions):
                    drop_locks(queue, out)
            # Later than the last time: it is the version that clients have read.
            updated_at_ms = max(shown_ms, entity.updated_at_ms + 1)
            entity.change(description, self._entities.limits, updated_at_ms)
            out.changes.append(entity.stored())
            out.entity(EventType.ENTITY_UPDATED, entity.main, entity.description)
            for subscription in subscriptions:
                subscription.apply_settings(self._entities.limits)
        self._touch_topic(entity, now_ms)
        self._idle.watch(entity, now_ms)
        out.effects.append(do.EntityFound(command.reply_to, entity.view()))
        receivers = [opened for opened in entity.links.values() if isinstance(opened, Consumer)]
        if not entity.receives:
            error: ServiceBusError = EntityDisabled(
                f"'{entity.name}' is {description.status.value}: nothing can be received from it"
            )
            self._attachments.detach_all(receivers, error, out)
        elif description.forward_to is not None:
            error = InvalidOperation(
                f"It is not possible to receive from '{entity.name}': it forwards to "
                f"'{description.forward_to}' now."
            )
            of_main = [opened for opened in receivers if opened.queue_id == entity.main.queue_id]
            self._attachments.detach_all(of_main, error, out)
        for queue in _all_queues(entity, subscriptions):
            queue.serve(out)

    def list_entities(self, command: ask.ListEntities, out: Outcome) -> None:
        entities, more = self._entities.page(command.kind, command.skip, command.top, command.topic)
        out.effects.append(do.EntitiesFound(command.reply_to, [entity.view() for entity in entities], more))

    def _touch_topic(self, entity: Entity, now_ms: int) -> None:
        """Note the use of a subscription, which is use of its topic (A-03)."""
        if entity.topic is not None:
            entity.topic.main.accessed_at_ms = now_ms

    # Rules

    def add_rule(self, command: ask.AddRule, out: Outcome) -> None:
        now_ms = out.now_ms
        subscription = self._entities.subscription(command.path)
        shown_ms = self._shared.wall.shown_ms(now_ms)
        rule = self._entities.new_rule(subscription, command.rule, shown_ms)
        self._entities.put_rule(rule)
        subscription.main.accessed_at_ms = now_ms  # "no new rule" A-03
        self._touch_topic(subscription, now_ms)
        out.changes.append(RuleStored(subscription.entity_id, rule.description))
        out.effects.append(do.RulesFound(command.reply_to, [rule.description]))

    def update_rule(self, command: ask.UpdateRule, out: Outcome) -> None:
        subscription = self._entities.subscription(command.path)
        new = self._entities.changed_rule(subscription, command.rule, command.if_match)
        self._touch_topic(subscription, out.now_ms)
        # Even if they seem equal: 1 and True are, but not to a filter.
        self._entities.put_rule(new)
        out.changes.append(RuleStored(subscription.entity_id, new.description))
        out.effects.append(do.RulesFound(command.reply_to, [new.description]))

    def remove_rule(self, command: ask.RemoveRule, out: Outcome) -> None:
        subscription = self._entities.subscription(command.path)
        rule = self._entities.rule(subscription, command.name, command.if_match)
        self._entities.drop_rule(subscription, command.name)
        self._touch_topic(subscription, out.now_ms)
        out.changes.append(RuleRemoved(subscription.entity_id, rule.description.name))
        out.effects.append(do.Done(command.reply_to))

    def find_rule(self, command: ask.FindRule, out: Outcome) -> None:
        subscription = self._entities.subscription(command.path)
        rule = self._entities.rule(subscription, command.name)
        out.effects.append(do.RulesFound(command.reply_to, [rule.description]))

    def list_rules(self, command: ask.ListRules, out: Outcome) -> None:
        skip, end = max(command.skip, 0), max(command.skip, 0) + max(command.top, 0)
        rules = self.rules(command.path)
        out.effects.append(do.RulesFound(command.reply_to, rules[skip:end], end < len(rules)))

    def rules(self, path: str) -> list[RuleDescription]:
        """Return the rules of a subscription, sorted by name. Raises: EntityNotFound, InvalidOperation."""
        rules = self._entities.subscription(path).rules.values()
        return sorted((rule.description for rule in rules), key=attrgetter("name"))


def _all_queues(entity: Entity, subscriptions: list[Entity]) -> list[MessageQueue]:
    return [queue for each in (entity, *subscriptions) for queue in each.queues()]
