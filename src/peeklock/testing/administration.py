"""Entities and rules of a broker in the test's thread: requests, and refusals as exceptions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from peeklock.broker.vocabulary.commands import Address, AddRule, Command, CreateEntity, LookUp, ReplyTo
from peeklock.broker.vocabulary.descriptions import (
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
    subscription_path,
)
from peeklock.broker.vocabulary.effects import Effect, EntityFound, EntityView, Failed, RulesFound


class Administration(ABC):
    """Base of a broker that takes requests."""

    @abstractmethod
    def ask(self, make: Callable[[ReplyTo], Command]) -> Effect:
        """Apply a command and return the effect that answers it."""

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
