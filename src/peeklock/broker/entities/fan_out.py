"""Fan-out: the copies of a topic's message in its subscriptions, and the rules that choose them.

Theory of operation. A topic keeps no messages. An arriving message is numbered and copied, in the same call
and the same frame, to each subscription with a matching rule; the copies share the body. A scheduled message
that falls due may have its body on disk; it is pending in the topic, as in an entity that forwards, until the
filters can read it (`forwarding`). So are messages after `enqueue.COPIES_MAX` copies in one command.

The matching rules of one subscription that have no action give one copy together, each rule with an action
one of its own. If a rule cannot be evaluated, the message is dead-lettered instead, once, if the subscription
says so; else the rule does not match.

Topics may be in a cycle of forwards. At most `COPIES_FOLLOWING_MAX` copies follow from one accepted message:
each message has the number that may still follow from it (`Message.copies_left`), a topic subtracts its
copies, and those of them that may come to a topic again share the rest, in portions of what that topic makes
of one. So the limit needs no common counter, and holds over slices and restarts. A forward to a topic asks
`copies_of` first and dead-letters a message beyond the limit (`forwarding`). A copy that no forward can bring
to a topic has the full number, in case an update changes this.
Source: semantics P-01 to P-05; wire contract 9.1.
"""

from __future__ import annotations

from collections.abc import Container
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from peeklock.amqp import codec
from peeklock.broker.content import overlay as overlays
from peeklock.broker.content.overlay import wire_value
from peeklock.broker.content.routing import with_overlay
from peeklock.broker.content.subject import MessageSubject
from peeklock.broker.entities.forwarding import SESSION_ID_IS_NULL, Forwarding
from peeklock.broker.entities.validation import check_rule_size, check_texts
from peeklock.broker.queue import enqueue
from peeklock.broker.queue.outcome import Outcome
from peeklock.broker.vocabulary.descriptions import UNLIMITED_MS, RuleDescription
from peeklock.broker.vocabulary.errors import ArgumentInvalid
from peeklock.broker.vocabulary.message import COPIES_FOLLOWING_MAX, NEVER_MS, Message, Routing
from peeklock.rules.compiled import CompiledAction, CompiledFilter, compile_action, compile_filter
from peeklock.rules.errors import EvaluationError, RuleError
from peeklock.rules.filters import CorrelationFilter, SqlFilter
from peeklock.rules.index import RuleIndex
from peeklock.rules.subject import Subject
from peeklock.rules.terms import Term

if TYPE_CHECKING:
    from peeklock.amqp.messaging import Sections
    from peeklock.broker.entities.entity import Entity
    from peeklock.broker.queue.shared import Shared

EVALUATION_FAILED: Final = "FilterEvaluationException"
"""DeadLetterReason. Our choice: the service documents none."""

OVERLAYS_BYTES_MAX: Final = 4 * 1024 * 1024
"""Changed properties of all copies of one message, in memory. Our choice: without it a thousand rules can
make 64 MB of a small message."""


class Rule:
    """A compiled rule of a subscription."""

    __slots__ = ("action", "description", "filter", "subscription")

    def __init__(
        self,
        subscription: Entity,
        description: RuleDescription,
        filter: CompiledFilter,
        action: CompiledAction | None,
    ) -> None:
        self.subscription = subscription
        self.description = description
        self.filter = filter
        self.action = action

    @classmethod
    def compiled(cls, subscription: Entity, description: RuleDescription, *, stored: bool = False) -> Rule:
        """Return a compiled rule. `stored`: accept what an earlier release accepted.

        Raises: ArgumentInvalid: an expression is wrong; the message states the place and what was expected.
        """
        check_rule_size(description)
        check_texts(description.name, description)
        _check_values(description)
        try:
            compiled = compile_filter(description.filter, stored=stored)
            action = None if description.action is None else compile_action(description.action)
        except RuleError as error:
            raise ArgumentInvalid(
                f"rule '{description.name}' of '{subscription.name}' is not valid: {error}"
            ) from error
        return cls(subscription, description, compiled, action)

    @classmethod
    def restored(cls, subscription: Entity, description: RuleDescription) -> Rule:
        """Return a stored rule. If this release refuses it, it fails for each message (P-04): it must neither
        prevent the start nor vanish."""
        try:
            return cls.compiled(subscription, description, stored=True)
        except ArgumentInvalid as error:
            text = str(error)

        def fails(subject: Subject) -> bool:
            raise EvaluationError(text)

        return cls(subscription, description, CompiledFilter((Term(fails),)), None)

    @property
    def is_correlation(self) -> bool:
        return isinstance(self.description.filter, CorrelationFilter)


def _check_values(description: RuleDescription) -> None:
    """Check that AMQP can encode the values of a rule, for listings and actions. Raises: ArgumentInvalid."""
    about = description.filter
    pairs = about.properties if isinstance(about, CorrelationFilter) else ()
    pairs += about.parameters if isinstance(about, SqlFilter) else ()
    pairs += () if description.action is None else description.action.parameters
    for name, value in pairs:
        try:
            codec.encode(overlays.wire_value(value))
        except ValueError as error:
            raise ArgumentInvalid(
                f"the value of {name!r} in rule '{description.name}' cannot be encoded as an AMQP value: "
                f"{error}"
            ) from error


class FanOut:
    """The subscriptions of one topic, with all their rules."""

    __slots__ = (
        "_copies_of",
        "_forwarding",
        "_index",
        "_shared",
        "correlation_count",
        "size_bytes",
        "sql_count",
        "subscriptions",
        "unmatched",
    )

    def __init__(self, shared: Shared, forwarding: Forwarding) -> None:
        self._shared = shared
        self._forwarding = forwarding
        self.subscriptions: dict[str, Entity] = {}  # by name in lower case
        self.size_bytes = 0  # of all their messages: a sum takes milliseconds
        self.unmatched = 0  # messages since the start that no rule matched
        self.correlation_count = 0
        self.sql_count = 0  # all others
        self._index: RuleIndex[Rule] = RuleIndex()
        self._copies_of: tuple[bytes, bytes | None, int] | None = None  # the last count

    def __len__(self) -> int:
        return self.sql_count + self.correlation_count

    def add(self, rule: Rule) -> None:
        """Add a rule for messages from now on."""
        self._index.add(rule, rule.filter)
        self._copies_of = None
        if rule.is_correlation:
            self.correlation_count += 1
        else:
            self.sql_count += 1

    def remove(self, rule: Rule) -> None:
        """Remove a rule."""
        self._index.remove(rule)
        self._copies_of = None
        if rule.is_correlation:
            self.correlation_count -= 1
        else:
            self.sql_count -= 1

    def send_on(
        self, message: Message, sections: Sections | None, head: Sections, turn: int | None, out: Outcome
    ) -> int:
        """Copy a numbered message to the subscriptions that match it; return the number of copies.

        Args:
            sections: None for a message whose body is stored already.
            head: the sections that rules read, perhaps without the body.
            turn: the partition of the message, None without partitions.
        """
        subject = MessageSubject(message, head, self._shared.tokens)
        matched, failed = self._index.match(subject)
        if not matched and not failed:
            self.unmatched += 1
            return 0
        if message.expires_at_ms != NEVER_MS:  # it was pending
            message.ttl_ms = message.expires_at_ms - message.enqueued_at_ms
            message.expires_at_ms = NEVER_MS
        message.scheduled_at_ms = None
        dead_lettered = self._dead_lettered(failed) if failed else {}
        # Before the plain copies, which a failed action prevents too.
        changed = self._act(matched, dead_lettered, message, subject)
        copies = [(subscription, message.copied()) for subscription in _plain(matched, dead_lettered)]
        copies += [
            (rule.subscription, copy)
            for rule, copy in changed
            if rule.subscription.entity_id not in dead_lettered
        ]
        dead = [(subscription, message.copied(), error) for subscription, error in dead_lettered.values()]
        count = len(copies) + len(dead)
        left = max(0, message.copies_left - count)
        self._share(left, [*copies, *((subscription, copy) for subscription, copy, _ in dead)], head)
        out.copies += count  # before any of them is forwarded
        for subscription, copy in copies:
            out.passed_in(subscription.main, copy)
            _store(subscription, copy, sections, turn, out)
        for subscription, copy, error in dead:
            out.passed_in(subscription.main, copy)
            _dead_letter(subscription, copy, sections, (EVALUATION_FAILED, error), turn, out)
        return count

    def copies_of(self, message: Message, head: Sections) -> int:
        """Return how many copies a message becomes at most; fewer if actions fail.

        Copies of one message follow each other, so the rules are evaluated once.

        Args:
            head: the sections that rules read, perhaps without the body.
        """
        known = self._copies_of
        if known is None or known[0] != head.payload or known[1] != message.overlay:
            subject = MessageSubject(message, head, self._shared.tokens)
            known = self._copies_of = head.payload, message.overlay, self._count(subject)
        return known[2]

    def _count(self, subject: MessageSubject) -> int:
        matched, failed = self._index.match(subject)
        dead_lettered = {
            rule.subscription.entity_id
            for rule, _ in failed
            if rule.subscription.dead_letters_on_filter_errors
        }
        acting = sum(
            rule.action is not None and rule.subscription.entity_id not in dead_lettered for rule in matched
        )
        return len(_plain(matched, dead_lettered)) + acting + len(dead_lettered)

    def _share(self, left: int, copies: list[tuple[Entity, Message]], head: Sections) -> None:
        """Divide the number of copies that may still follow among the copies that may come to a topic."""
        going: list[Message] = []
        topics: dict[int, FanOut] = {}
        for subscription, copy in copies:
            copy.copies_left = COPIES_FOLLOWING_MAX
            if subscription.forwards:
                ahead = self._forwarding.topics_ahead(subscription)
                if ahead:
                    going.append(copy)
                    topics |= ahead
        if not going:
            return
        portion = max(map(len, topics.values()))
        if left < portion * len(going):  # scarce: count what they make of this message
            portion = max(topic.copies_of(going[0], head) for topic in topics.values())
        portion = max(portion, 1)
        each, more = divmod(left // portion, len(going))
        for number, copy in enumerate(going):
            copy.copies_left = portion * (each + (number < more))

    def _act(
        self,
        matched: list[Rule],
        dead_lettered: dict[int, tuple[Entity, str]],
        message: Message,
        subject: MessageSubject,
    ) -> list[tuple[Rule, Message]]:
        """Return the copies of rules with an action; add subscriptions where one fails to `dead_lettered`."""
        changed: list[tuple[Rule, Message]] = []
        bytes_left = OVERLAYS_BYTES_MAX
        for rule in matched:
            if rule.action is None or rule.subscription.entity_id in dead_lettered:
                continue
            try:
                copy = _changed(message, rule, subject)
                size_bytes = len(copy.overlay or b"")
                if size_bytes > bytes_left:
                    raise EvaluationError(
                        f"the actions of this message's rules change more than {OVERLAYS_BYTES_MAX} bytes of "
                        f"properties together"
                    )
            except EvaluationError as error:
                dead_lettered.update(self._dead_lettered([(rule, error)]))
            else:
                bytes_left -= size_bytes
                changed.append((rule, copy))
        return changed

    def _dead_lettered(self, failed: list[tuple[Rule, EvaluationError]]) -> dict[int, tuple[Entity, str]]:
        """Return the subscriptions that dead-letter a message after a failed evaluation."""
        dead_lettered: dict[int, tuple[Entity, str]] = {}
        self._shared.failed_evaluations += len(failed)
        for rule, error in failed:
            subscription = rule.subscription
            if subscription.dead_letters_on_filter_errors:
                text = f"Rule '{rule.description.name}' could not be evaluated: {error}"
                dead_lettered.setdefault(subscription.entity_id, (subscription, text))
        return dead_lettered

    def check(self) -> None:
        """Compare the rules of the subscriptions with the index; an assertion fails when they differ."""
        rules = [rule for entity in self.subscriptions.values() for rule in entity.rules.values()]
        assert len(rules) == len(self) == len(self._index)
        assert self.correlation_count == sum(rule.is_correlation for rule in rules)
        assert self.size_bytes == sum(entity.size_bytes() for entity in self.subscriptions.values())


def _plain(matched: list[Rule], dead_lettered: Container[int]) -> list[Entity]:
    """Return the subscriptions that get a copy for their rules without an action."""
    served: set[int] = set()
    plain: list[Entity] = []
    for rule in matched:
        subscription = rule.subscription
        entity_id = subscription.entity_id
        if rule.action is None and entity_id not in served and entity_id not in dead_lettered:
            if len(subscription.rules) > 1:
                served.add(entity_id)
            plain.append(subscription)
    return plain


def _store(
    subscription: Entity, copy: Message, sections: Sections | None, turn: int | None, out: Outcome
) -> None:
    queue = subscription.main
    if queue.sessions is not None and (copy.routing is None or copy.routing.session_id is None):
        _dead_letter(subscription, copy, sections, SESSION_ID_IS_NULL, turn, out)
        return
    enqueue.store_copy(queue, copy, sections, turn, out)


def _dead_letter(
    subscription: Entity,
    copy: Message,
    sections: Sections | None,
    reason: tuple[str, str],
    turn: int | None,
    out: Outcome,
) -> None:
    """Dead-letter a copy, with a number of its subscription."""
    dead_letters = subscription.dead_letters
    assert dead_letters is not None
    enqueue.number_copy(subscription.main, copy, turn)
    if copy.ttl_ms is not None:  # it counts again after a forward of dead letters
        copy.expires_at_ms = copy.enqueued_at_ms + min(copy.ttl_ms, subscription.main.default_ttl_ms)
        copy.ttl_ms = None
    copy.overlay = overlays.with_reason(copy.overlay, *reason)
    out.arrived(subscription.main, copy, sections)
    out.dead_lettered(subscription.main, copy, copy.overlay, dead_letters.name)
    enqueue.dead_letter_arriving(dead_letters, copy, sections, out)


def _changed(message: Message, rule: Rule, subject: MessageSubject) -> Message:
    """Return the copy of a rule with an action. Raises: EvaluationError."""
    assert rule.action is not None
    result = rule.action.apply(subject)
    routing = message.routing or Routing()
    session_id = result.system.get("sessionid")
    if session_id and routing.partition_key is not None:
        # The two must not differ: a receiver could not send the copy again.
        result.system.setdefault("partitionkey", session_id)
    copy = message.copied()
    scheduled_at = result.system.get("scheduledenqueuetimeutc")
    if isinstance(scheduled_at, datetime) and rule.subscription.main.forward_to is not None:
        copy.scheduled_at_ms = int(wire_value(scheduled_at))  # for the target of the forward
    else:
        result.system.pop("scheduledenqueuetimeutc", None)  # has no effect in a subscription
    copy.overlay = overlays.with_action(copy.overlay, result, rule.description.name)
    if result.system:
        # Its values decide where the copy goes, as the sender's would.
        copy.routing = with_overlay(routing, copy.overlay)
        session_id, key = copy.routing.session_id, copy.routing.partition_key
        if "partitionkey" in result.system and session_id and key not in (None, session_id):
            raise EvaluationError(
                f"the action leaves the partition key '{key}' different from the session id '{session_id}'"
            )
        if "timetolive" in result.system:
            copy.ttl_ms = _ttl_ms(result.system["timetolive"], rule.description.name)
    return copy


def _ttl_ms(value: object, rule_name: str) -> int | None:
    """Return the time-to-live that an action set. Raises: EvaluationError."""
    if value is None:
        return None
    ttl_ms = value // timedelta(milliseconds=1) if isinstance(value, timedelta) else 0
    if ttl_ms <= 0:
        raise EvaluationError(f"the action of rule '{rule_name}' sets the time-to-live to {value}")
    return min(ttl_ms, UNLIMITED_MS)
