"""The checker on two namespaces: what is of one is neither stored nor seen in the other."""

from __future__ import annotations

import pytest

from peeklock.broker.vocabulary.message import MessageState
from tests.simulation.oracle.history import History, Seen
from tests.simulation.oracle.records import UIDS_OF_A_NAMESPACE, Violation
from tests.simulation.oracle.states import States
from tests.simulation.oracle.story import Story, record
from tests.simulation.plan import SECOND_EVERY, has_second, run_seed

pytestmark = pytest.mark.simulation

OTHERS = b"uid=%08d;" % (UIDS_OF_A_NAMESPACE + 1)


def test_a_body_of_another_namespace_must_not_be_stored() -> None:
    """Req: R-02"""
    story = Story()
    story.send(1)
    with pytest.raises(Violation, match="of another namespace was stored"):
        story.commit(record(1, row=2, slot=0), rows={2: [OTHERS]})


def test_a_message_of_another_namespace_must_not_be_seen() -> None:
    """Req: R-02"""
    story = Story()
    seen = Seen(UIDS_OF_A_NAMESPACE + 1, 1, 1, 0, None, MessageState.ACTIVE, None, None)
    with pytest.raises(Violation, match="of another namespace was seen"):
        story.checker.delivered(seen, "orders", b"", 1, deletes=True)
    with pytest.raises(Violation, match="of another namespace was seen"):
        story.checker.peeked("orders", 1, [seen], None)


def test_the_state_of_a_session_must_not_come_from_another_namespace() -> None:
    states = States(History(int, UIDS_OF_A_NAMESPACE))
    with pytest.raises(Violation, match="uid 1 of another namespace was seen"):
        states.read((1, "red"), 0, 1)


def test_about_a_quarter_of_the_seeds_have_two_namespaces() -> None:
    assert [seed for seed in range(SECOND_EVERY) if has_second(seed)] == [11, 12, 13, 14]


@pytest.mark.parametrize("seed", [11, 13])
def test_two_namespaces_of_one_process_keep_every_promise(seed: int) -> None:
    """Req: R-02"""
    result = run_seed(seed)
    assert result.failure is None, result.failure
    assert result.counts["second namespaces"] == 1
    assert result.deaths > 0
