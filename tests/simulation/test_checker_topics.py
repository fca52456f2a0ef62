"""The checker on topics: which copies there must be, once kept and once broken, without any broker."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from peeklock.amqp.codec import encode
from peeklock.broker.vocabulary.changes import EntityRemoved, RuleRemoved, RuleStored
from peeklock.broker.vocabulary.message import MessageState
from tests.simulation.oracle.records import Record, Violation
from tests.simulation.oracle.rulebook import Always, Compared, Quotient, Ruling, Statement, Traits
from tests.simulation.oracle.story import ALL, SOME, TOPIC, Story, record

pytestmark = pytest.mark.simulation

RED = Ruling(Compared("color", "=", "red"), "correlation")
PLAIN = Ruling(Always(True), "sql")
SPLIT = Ruling(Quotient(1), "sql")
MARKED = Ruling(Always(True), "sql", (Statement("set", "mark", "grey"),))

A_RED = Traits({"color": "red", "size": 0})
A_BLUE = Traits({"color": "blue", "size": 3})


def copy(uid: int, position: int, queue_id: int, number: int, **changed: Any) -> Record:
    """Make the record of a copy; `number` is the topic's."""
    return record(position, queue_id=queue_id, slot=uid - 1, enqueued_sequence_number=number, **changed)


def story_with(*rulings: Ruling, **settings: Any) -> Story:
    story = Story()
    story.add_topic(*rulings, **settings)
    return story


def test_each_subscription_has_what_its_rules_choose() -> None:
    story = story_with(RED)
    story.send(1, queue="news", traits=A_RED)
    story.send(2, queue="news", traits=A_BLUE)
    story.commit(copy(1, 1, ALL, 1), copy(1, 1, SOME, 1), copy(2, 2, ALL, 2), issued={TOPIC: 3})
    story.checker.send_answered([1], "accepted")
    story.checker.send_answered([2], "accepted")
    story.checker.finish()


def test_a_copy_must_not_be_missing() -> None:
    story = story_with(RED)
    story.send(1, queue="news", traits=A_RED)
    with pytest.raises(Violation, match="not the copies"):
        story.commit(copy(1, 1, ALL, 1), issued={TOPIC: 2})


def test_no_message_may_come_to_who_did_not_choose_it() -> None:
    story = story_with(RED)
    story.send(1, queue="news", traits=A_BLUE)
    with pytest.raises(Violation, match="not the copies"):
        story.commit(copy(1, 1, ALL, 1), copy(1, 1, SOME, 1), issued={TOPIC: 2})


def test_two_rules_without_an_action_must_not_give_two_copies() -> None:
    story = story_with(RED, PLAIN)
    story.send(1, queue="news", traits=A_RED)
    copies = [copy(1, 1, ALL, 1), copy(1, 1, SOME, 1), copy(1, 2, SOME, 1)]
    with pytest.raises(Violation, match="not the copies"):
        story.commit(*copies, issued={TOPIC: 2})


def test_copies_must_not_come_in_two_batches() -> None:
    story = story_with()
    story.send(1, queue="news", traits=A_RED)
    story.commit(copy(1, 1, ALL, 1), issued={TOPIC: 2})
    with pytest.raises(Violation, match="copied again"):
        story.commit(copy(1, 2, ALL, 2), issued={TOPIC: 3})


def test_what_an_action_sets_must_be_in_the_copy() -> None:
    story = story_with(MARKED)
    story.send(1, queue="news", traits=A_RED)
    with pytest.raises(Violation, match="not the copies"):
        story.commit(copy(1, 1, ALL, 1), copy(1, 1, SOME, 1), issued={TOPIC: 2})


def test_copies_must_have_the_topics_number() -> None:
    story = story_with()
    story.send(1, queue="news", traits=A_RED)
    with pytest.raises(Violation, match="was not issued just now"):
        story.commit(copy(1, 1, ALL, 7), issued={TOPIC: 2})


def test_copies_must_share_one_body() -> None:
    story = story_with(PLAIN)
    story.send(1, queue="news", traits=A_RED)
    with pytest.raises(Violation, match="do not share one body"):
        story.commit(
            copy(1, 1, ALL, 1),
            replace(copy(1, 1, SOME, 1), row=2, slot=0),
            rows={2: [b"uid=00000001;"]},
            issued={TOPIC: 2},
        )


def test_what_no_rule_chooses_is_accepted_and_gone() -> None:
    story = story_with()
    story.checker.deleting("news/Subscriptions/all")
    story.commit(EntityRemoved(ALL // 4))
    story.send(1, queue="news", traits=A_RED)
    story.commit(issued={TOPIC: 2})
    story.checker.send_answered([1], "accepted")
    story.checker.finish()


def test_what_a_rule_chooses_must_not_be_accepted_and_gone() -> None:
    story = story_with()
    story.send(1, queue="news", traits=A_RED)
    with pytest.raises(Violation, match="skipped"):
        story.commit(issued={TOPIC: 2})
    with pytest.raises(Violation, match="not on stable storage"):
        story.checker.send_answered([1], "accepted")


def test_what_cannot_be_evaluated_must_be_a_dead_letter_where_asked() -> None:
    story = story_with(SPLIT)
    story.send(1, queue="news", traits=A_RED)
    with pytest.raises(Violation, match="not the copies"):
        story.commit(copy(1, 1, ALL, 1), issued={TOPIC: 2})
    story = story_with(SPLIT, dead_lettering_on_filter_errors=False)
    story.send(1, queue="news", traits=A_RED)
    story.commit(copy(1, 1, ALL, 1), issued={TOPIC: 2})


def test_a_message_is_judged_by_the_rules_of_its_batch() -> None:
    story = story_with(RED)
    book = story.checker.rulings
    request = book.asking("news/Subscriptions/some", "r1", book.rulebook.describe(PLAIN, "r1"))
    assert request.rule is not None
    story.send(1, 2, 3, queue="news", traits=A_BLUE)
    story.commit(copy(1, 1, ALL, 1), issued={TOPIC: 2})
    story.commit(copy(2, 2, ALL, 2), RuleStored(SOME // 4, request.rule), issued={TOPIC: 3})
    book.answered(request, None)
    with pytest.raises(Violation, match="not the copies"):
        story.commit(copy(3, 3, ALL, 3), issued={TOPIC: 4})


def test_a_rule_must_be_asked_for_and_its_change_be_durable() -> None:
    story = story_with(RED)
    book = story.checker.rulings
    rule = book.rulebook.describe(PLAIN, "r1")
    with pytest.raises(Violation, match="without a request"):
        story.commit(RuleStored(SOME // 4, rule))
    story = story_with(RED)
    with pytest.raises(Violation, match="without a request"):
        story.commit(RuleRemoved(SOME // 4, "r0"))
    story = story_with(RED)
    request = story.checker.rulings.asking("news/Subscriptions/some", "r0", None)
    with pytest.raises(Violation, match="acknowledged, yet"):
        story.checker.rulings.answered(request, None)


def test_what_waits_in_a_topic_becomes_copies_and_is_gone() -> None:
    story = story_with(PLAIN)
    story.send(1, queue="news", traits=A_RED)
    waits = record(1, queue_id=TOPIC, state=MessageState.SCHEDULED, scheduled_at_ms=1_500)
    story.commit(waits)
    story.now_ms = 1_500
    parked = copy(1, 2, TOPIC, 1, enqueued_at_ms=1_500)
    story.commit(((TOPIC, 1),), parked)
    copies = [copy(1, 1, queue_id, 1, enqueued_at_ms=1_500) for queue_id in (ALL, SOME)]
    story.commit(((TOPIC, 2),), *copies)
    story.checker.finish()


def test_what_waits_in_a_topic_must_not_be_lost() -> None:
    story = story_with(PLAIN)
    story.send(1, queue="news", traits=A_RED)
    story.commit(record(1, queue_id=TOPIC))
    with pytest.raises(Violation, match="without a request"):
        story.commit(((TOPIC, 1),))


def test_a_topic_must_not_go_without_its_subscriptions() -> None:
    story = story_with()
    story.checker.deleting("news")
    with pytest.raises(Violation, match="its subscriptions are not"):
        story.commit(EntityRemoved(TOPIC // 4))


# Circles

TOO_MANY = encode({"DeadLetterReason": "MaxTransferHopCountExceeded"})


def buried(uid: int, position: int, queue_id: int, hops: int) -> Record:
    """Make the record of a copy that is a dead letter, which was never anywhere else."""
    return copy(uid, position, queue_id + 1, 1, sequence_number=position, hops=hops, overlay=TOO_MANY)


def round_story(*rulings: Ruling, most: int = 30) -> Story:
    """Make `some` forward to its own topic."""
    story = story_with(*rulings, forward_to="news")
    story.checker.reasons.copies.most = most
    story.send(1, queue="news", traits=A_RED)
    return story


def ends_of_a_circle() -> list[Record]:
    """Return the copies of a message that `all` gets at each hop and `some` passes on."""
    return [copy(1, 1 + hops, ALL, 1, sequence_number=1 + hops, hops=hops) for hops in range(5)]


def test_a_copy_comes_back_to_its_topic_until_its_hops_are_made() -> None:
    story = round_story(PLAIN)
    dead = replace(buried(1, 1, SOME, 4), sequence_number=5)
    story.commit(*ends_of_a_circle(), dead, issued={TOPIC: 6, SOME: 6})
    story.checker.send_answered([1], "accepted")
    story.checker.finish()


def test_a_copy_at_the_end_of_a_circle_must_not_be_missing() -> None:
    story = round_story(PLAIN)
    with pytest.raises(Violation, match="not the copies"):
        story.commit(*ends_of_a_circle(), issued={TOPIC: 6, SOME: 6})


def test_a_topics_copy_must_count_its_hop() -> None:
    story = round_story(PLAIN)
    dead = replace(buried(1, 1, SOME, 4), sequence_number=5)
    copies = [*ends_of_a_circle(), dead]
    copies[1].hops = 0
    with pytest.raises(Violation, match="not the copies"):
        story.commit(*copies, issued={TOPIC: 6, SOME: 6})


def test_what_would_become_too_many_copies_is_a_dead_letter() -> None:
    """Of 6 copies the 2 of each of 2 hops leave 2, and the topic would make 2 of each."""
    story = round_story(PLAIN, most=6)
    dead = replace(buried(1, 1, SOME, 2), sequence_number=3)
    story.commit(*ends_of_a_circle()[:3], dead, issued={TOPIC: 4, SOME: 4})
    story.checker.finish()
    assert story.checker.figures()["refused copies"] == 1


def test_no_more_copies_may_follow_from_one_message() -> None:
    story = round_story(PLAIN, most=5)
    dead = replace(buried(1, 1, SOME, 2), sequence_number=3)
    with pytest.raises(Violation, match="more than 5 copies follow"):
        story.commit(*ends_of_a_circle()[:3], dead, issued={TOPIC: 4, SOME: 4})


def test_what_may_become_copies_must_not_be_refused() -> None:
    story = round_story(PLAIN)
    dead = replace(buried(1, 1, SOME, 0), sequence_number=1)
    with pytest.raises(Violation, match="refused, though"):
        story.commit(*ends_of_a_circle()[:1], dead, issued={TOPIC: 2, SOME: 2})
