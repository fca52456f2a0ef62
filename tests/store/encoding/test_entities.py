"""The texts of definitions."""

from __future__ import annotations

import json

import pytest

from peeklock.broker.vocabulary.changes import EntityStored
from peeklock.broker.vocabulary.descriptions import (
    Description,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from peeklock.store.encoding import entities

ADDRESS = "https://localhost:5300/other/"


@pytest.mark.parametrize(
    ("description", "written"),
    [
        (QueueDescription("a", forward_to="other", forward_to_given=ADDRESS), {"forward_to_given": ADDRESS}),
        (
            SubscriptionDescription(
                "t", "a", forward_dead_lettered_to="other", forward_dead_lettered_to_given=ADDRESS
            ),
            {"forward_dead_lettered_to_given": ADDRESS},
        ),
        (QueueDescription("a", forward_to="other"), {}),
        (TopicDescription("t"), {}),
    ],
)
def test_the_address_of_a_forward_is_stored_where_there_is_one(
    description: Description, written: dict[str, str]
) -> None:
    """Req: F-01, R-01. Source: wire contract C14."""
    stored = EntityStored(7, description, 1, 2)
    text = entities.encode(stored)
    assert entities.decode(entities.key_of(7), text) == stored
    [settings] = [part for part in json.loads(text).values() if isinstance(part, dict)]
    assert {key: value for key, value in settings.items() if key.endswith("_given")} == written
