"""A topic and its subscriptions with a broker that is killed; and the judge of them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.kill.copies import COUNTED_TOGETHER, RULES, Copies, RuleBook, copies_of, path
from tests.kill.ledger import Broken, Ledger
from tests.kill.topic_loop import CHANGES_MIN, TopicLoop

pytestmark = pytest.mark.kill


def test_every_message_has_the_copies_that_its_rules_chose_however_often_the_broker_is_killed(
    tmp_path: Path,
) -> None:
    """Each message has all its copies once, or none of them if its sender has no outcome; they are changed as
    the actions say. A message that a rule cannot judge is a dead letter, and one subscription forwards. Some
    are scheduled, and fall due while no broker runs. The numbers of each subscription and of the topic have
    no gaps; added rules exist, removed ones do not.

    Req: P-01, P-02, P-03, P-04, R-01, R-02, S-01, S-05, D-01, F-01, T-07
    """
    figures = asyncio.run(TopicLoop(tmp_path, seed=5, options=("--durability", "fsync")).run(6))
    assert figures["accepted"] > 200
    assert figures["copies"] > 3 * figures["accepted"]
    assert figures["dead letters"] > 20
    assert figures["scheduled"] > 20
    assert figures["changes of rules"] > CHANGES_MIN


class TestCopies:
    """The judge itself."""

    @pytest.fixture
    def sends(self) -> Ledger:
        """Return a ledger with one message, sent and accepted."""
        sends = Ledger()
        sends.answered(sends.sending(), None)
        return sends

    @pytest.fixture
    def copies(self, sends: Ledger) -> Copies:
        """Return copies of which all were seen, except that of the subscription `all`."""
        copies = Copies(sends)
        for (place, rule), properties in copies_of(1).items():
            if place != path("all"):
                copies.delivered(1, place, rule, (1, 1), properties)
        return copies

    def test_every_place_has_its_numbers(self) -> None:
        assert {place for uid in range(100) for place, _ in copies_of(uid)} == {
            place for places in COUNTED_TOGETHER for place in places
        }
        assert {rule for uid in range(100) for _, rule in copies_of(uid)} == {None, "red", "cool"}
        assert "passed" in RULES

    def test_all_is_well_with_every_copy(self, copies: Copies) -> None:
        copies.delivered(1, path("all"), None, (1, 1), copies_of(1)[path("all"), None])
        assert copies.finish()["copies"] == len(copies_of(1))

    def test_a_copy_that_is_missing_is_found(self, copies: Copies) -> None:
        with pytest.raises(Broken, match="its rules chose"):
            copies.finish()

    def test_a_second_copy_is_found(self, copies: Copies) -> None:
        sent = copies_of(1)[path("all"), None]
        copies.delivered(1, path("all"), None, (1, 1), sent)
        with pytest.raises(Broken, match="a second time"):
            copies.delivered(1, path("all"), None, (2, 1), sent)

    def test_a_copy_that_no_rule_chose_is_found(self, copies: Copies) -> None:
        with pytest.raises(Broken, match="no rule chose it"):
            copies.delivered(1, path("plain"), "red", (1, 1), {})

    def test_a_copy_that_is_not_changed_as_its_action_says_is_found(self, copies: Copies) -> None:
        with pytest.raises(Broken, match=r"has \{\}, not"):
            copies.delivered(1, path("all"), None, (1, 1), {})

    def test_a_gap_is_found(self, copies: Copies) -> None:
        copies.delivered(1, path("all"), None, (2, 1), copies_of(1)[path("all"), None])
        with pytest.raises(Broken, match=r"are not 1 to 1: \[1\]"):
            copies.finish()

    def test_a_copy_that_comes_back_is_found(self, copies: Copies) -> None:
        sent = copies_of(1)[path("all"), None]
        copy = copies.delivered(1, path("all"), None, (1, 1), sent)
        copies.completing(copy)
        copies.completed(copy)
        with pytest.raises(Broken, match="came back"):
            copies.delivered(1, path("all"), None, (1, 1), sent)

    def test_half_a_batch_is_found(self, copies: Copies, sends: Ledger) -> None:
        copies.delivered(1, path("all"), None, (1, 1), copies_of(1)[path("all"), None])
        group = sends.sending()
        for uid in (1, group):
            sends.fates[uid].group = group
        with pytest.raises(Broken, match="in part"):
            copies.finish()


class TestRuleBook:
    """The judge of rules."""

    def test_an_unanswered_change_may_be_there_or_not(self) -> None:
        for found in ({"a"}, {"a", "b"}):
            rules = RuleBook()
            rules.changing("a")
            rules.changed("a", present=True)
            rules.changing("b")
            rules.check(found)

    @pytest.mark.parametrize("found", [set(), {"a", "b"}])
    def test_a_rule_that_is_lost_or_comes_back_is_found(self, found: set[str]) -> None:
        rules = RuleBook()
        for name, present in (("a", True), ("b", True), ("b", False)):
            rules.changing(name)
            rules.changed(name, present=present)
        with pytest.raises(Broken, match="not those of"):
            rules.check(found)
