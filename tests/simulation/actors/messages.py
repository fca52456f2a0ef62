"""The messages that clients send: repeated ids, sessions, keys, times, sizes.

Owns: the content of a message, by the world's random source. Must not know: who sends it, and how.
"""

from __future__ import annotations

from random import Random
from typing import Any

from peeklock.amqp.message_writing import encode_message
from peeklock.amqp.messaging import Header, Properties
from peeklock.amqp.types import Symbol, Timestamp
from peeklock.broker.vocabulary.descriptions import Description, TopicDescription
from tests.simulation.actors.actors import Shared
from tests.simulation.oracle.history import Sent
from tests.simulation.oracle.records import UIDS_OF_A_NAMESPACE
from tests.simulation.oracle.rulebook import Traits, draw_traits
from tests.simulation.oracle.spellings import spelt

SESSIONS = ("", "red", "grün", "blue")
"""Ids of sessions: few, so that several clients hold, await and write each. The empty one is legal."""

KEYS = ("north", "south", "east")

ARGUMENT_ERROR = "com.microsoft:argument-error"
NOT_ALLOWED = "amqp:not-allowed"


def compose(
    shared: Shared,
    queue: Description,
    *,
    scheduled: bool = False,
    group: int = 0,
    wrong: bool = False,
    random: Random | None = None,
) -> tuple[Sent, bytes]:
    """Return a message, and its encoding. `random`: decides in place of the world's random source."""
    random = random or shared.world.random
    shared.uids += 1
    uid = shared.uids
    message_id = _message_id(shared, random, queue.name, uid)
    session_id = _session_id(random, queue, uid)
    partition_key = _partition_key(random, queue, session_id)
    condition = None
    if wrong:
        roll = random.random()
        if queue.requires_session and roll < 0.4:
            session_id, condition = None, NOT_ALLOWED
        elif session_id is not None and roll < 0.6:
            partition_key = "elsewhere"
            condition = NOT_ALLOWED if session_id else None  # beside the empty one any key is right
        else:
            message_id, condition = "x" * 200, ARGUMENT_ERROR
    elif message_id is not None:
        shared.recent_ids.append((queue.name, message_id))
    ttl_ms = random.choice((None, None, None, 50, 3_000, 20_000, 60_000))
    delay_ms = random.choice((-1_000, 0, 20, 700, 4_000, 15_000))
    at_ms = shared.node.wall_ms + delay_ms if scheduled else None
    traits = draw_traits(random, session_id) if shared.ruled else Traits(session_id=session_id)
    # The broker chooses a unique id, and all copies have it.
    sent = Sent(
        uid, queue.name, message_id or f"given-{uid}", ttl_ms, at_ms, group, shared.node.passed_ms, condition,
        session_id, partition_key, traits=traits, own_id=message_id is not None,
    )  # fmt: skip
    annotations: dict[Symbol, Any] = {}
    if at_ms is not None:
        annotations[Symbol("x-opt-scheduled-enqueue-time")] = Timestamp(at_ms)
    if partition_key is not None:
        annotations[Symbol("x-opt-partition-key")] = partition_key
    application_properties: dict[str, Any] = {"n": uid} if random.random() < 0.3 else {}
    application_properties.update(traits.properties)
    payload = encode_message(
        header=None if ttl_ms is None else Header(ttl=ttl_ms),
        message_annotations=annotations or None,
        properties=Properties(message_id=message_id, group_id=session_id, subject=traits.label),
        application_properties=application_properties or None,
        data=_body(random, uid),
    )
    return sent, payload


def _message_id(shared: Shared, random: Random, queue: str, uid: int) -> str | None:
    roll = random.random()
    if roll >= 0.85:
        return None
    if roll < 0.2 and queue in shared.freed_ids:
        return shared.freed_ids.pop(queue)
    if roll < 0.2 and shared.recent_ids:
        # Of the same queue, or of one that is perhaps forwarded to the same.
        name, again = random.choice(shared.recent_ids[-12:])
        if name == queue or random.random() < 0.3:
            return again
    return f"id-{uid % UIDS_OF_A_NAMESPACE}"  # the same in both namespaces


def _session_id(random: Random, queue: Description, uid: int) -> str | None:
    often = isinstance(queue, TopicDescription) and random.random() < 0.6
    if often or queue.requires_session or random.random() < 0.2:
        return spelt(random.choice(SESSIONS), uid)
    return None


def _partition_key(random: Random, queue: Description, session_id: str | None) -> str | None:
    if random.random() < (0.5 if queue.enable_partitioning else 0.9):
        return None
    return random.choice(KEYS) if session_id is None else session_id


def _body(random: Random, uid: int) -> bytes:
    data = b"uid=%08d;" % uid + b"." * random.choice((0, 3, 40, 300))
    roll = random.random()
    if roll < 0.01:
        data += b"." * 3_000
    elif roll < 0.011:
        data += b"." * 100_000  # several frames
    return data
