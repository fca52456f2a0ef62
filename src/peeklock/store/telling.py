"""How queues and messages are named to people, by `check` and by a rescue.

Owns: those words. Must not know: how damage is found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from peeklock.broker.vocabulary.changes import QUEUES_PER_ENTITY

_SUB_QUEUES = ("", " (dead letters)", " (transfer dead letters)", " (session states)")


def queue_name(queue_id: int, names: Mapping[int, str]) -> str:
    """Return the name of a queue; `names` are those of entities, by id."""
    entity_id, sub_queue = divmod(queue_id, QUEUES_PER_ENTITY)
    return f"'{names[entity_id]}'" + _SUB_QUEUES[sub_queue]


def messages_named(messages: Sequence[tuple[int, int]], names: Mapping[int, str], most: int) -> str:
    """Name up to `most` messages, given as queue id and sequence number, and count the others."""
    named = ", ".join(
        f"message {number} of {queue_name(queue_id, names)}" for queue_id, number in messages[:most]
    )
    more = len(messages) - most
    return named + (f" and {more:,} more" if more > 0 else "")
