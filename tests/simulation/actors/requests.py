"""Requests to the management nodes, and which answers are right.

Owns: the requests. Must not know: the broker's internals, the purpose of a request. Status 0 in an answer
means that the links were lost: the answer will never be known.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from peeklock.amqp.messaging import scan
from peeklock.amqp.types import Array, Int, Long, Timestamp
from tests.simulation.actors.actors import Actor
from tests.simulation.actors.peer import lock_uuid
from tests.simulation.oracle.checker import split
from tests.simulation.oracle.history import Hold, Lock, Seen, Unit
from tests.simulation.oracle.records import MAIN, Violation, uid_of
from tests.simulation.oracle.rulebook import ruled

STATUS = {"complete": "completed", "abandon": "abandoned", "defer": "defered", "dead-letter": "suspended"}

ALL_SESSIONS_FROM_MS = 253_402_300_799_999
"""The greatest date: it asks for all sessions (wire contract 5.2)."""

LOST = (410, "com.microsoft:message-lock-lost")
SESSION_LOST = (410, "com.microsoft:session-lock-lost")


def read_delivery(payload: bytes) -> Seen:
    """Read a message as a client does."""
    sections = scan(payload)
    properties = None if sections.properties is None else sections.decode_properties()
    applied = sections.decode_application_properties()
    annotations = sections.decode_message_annotations()
    until = annotations.get("x-opt-locked-until")
    source = annotations.get("x-opt-deadletter-source")
    return Seen(
        uid_of(payload),
        annotations["x-opt-sequence-number"],
        annotations["x-opt-enqueue-sequence-number"],
        sections.decode_header().delivery_count,
        None if until is None else int(until),
        annotations.get("x-opt-message-state", 0),
        None if properties is None else properties.group_id,
        source,
        ruled(applied),
        None if properties is None else properties.subject,
    )


def refused(actor: Actor, address: str, what: str, condition: str | None) -> bool:
    """Return whether a request was refused because its entity is disabled or gone. Raises: Violation, if it
    was refused for another reason."""
    if condition is None:
        return False
    if not actor.checker.may_refuse(condition, split(address)[0]):
        raise Violation(f"{actor.name}: {what} of {address} was answered with {condition}")
    return True


def renew(actor: Actor, address: str, lock: Lock, then: Callable[[bool], None] = lambda done: None) -> None:
    """Renew the lock of a message; `then` learns whether that succeeded."""
    assert actor.peer is not None
    asked_ms, connection = actor.now_ms, actor.connection
    renewal = actor.checker.renewing(lock, connection)

    def answered(status: int, condition: str | None, body: Any) -> None:
        if status == 0:
            return  # never known: the lock may be longer than answered
        actor.world.note(f"{actor.name}: renewal of uid {lock.uid} {status} {condition} {body}")
        if (status, condition) == LOST:
            actor.checker.renew_answered(lock, asked_ms, None, connection, renewal)
        elif not refused(actor, address, "renewal", condition):
            until_ms = int(body["expirations"][0])
            actor.checker.renew_answered(lock, asked_ms, until_ms, connection, renewal)
            then(True)
            return
        then(False)

    body = {"lock-tokens": Array.of(type(lock_uuid(lock.token)), [lock_uuid(lock.token)])}
    actor.peer.ask(address, "com.microsoft:renew-lock", body, answered)


def renew_session(actor: Actor, address: str, hold: Hold) -> None:
    """Renew the lock of a session."""
    assert actor.peer is not None
    asked_ms, connection = actor.now_ms, actor.connection
    actor.checker.renewing(hold, connection)

    def answered(status: int, condition: str | None, body: Any) -> None:
        if status == 0:
            return
        actor.world.note(f"{actor.name}: renewal of {hold.session_id!r} {status} {condition} {body}")
        if (status, condition) == SESSION_LOST:
            actor.checker.renew_answered(hold, asked_ms, None, connection)
        elif not refused(actor, address, "renewal", condition):
            actor.checker.renew_answered(hold, asked_ms, int(body["expiration"]), connection)

    actor.peer.ask(address, "com.microsoft:renew-session-lock", {"session-id": hold.session_id}, answered)


def update_disposition(
    actor: Actor,
    address: str,
    lock: Lock,
    kind: str,
    *,
    unit: Unit | None = None,
    txn_id: bytes | None = None,
    then: Callable[[bool], None] = lambda done: None,
) -> None:
    """Settle a lock of any connection; in a transaction with `unit` and its id.

    A lock of a session is settled by the connection that holds it, others are refused (C20).
    """
    assert actor.peer is not None
    if lock.hold is not None and lock.hold.connection != actor.connection:
        assert unit is None, "a client with a transaction settles its own locks"
        _settle_as_a_stranger(actor, address, lock, kind)
        return
    asked_ms = actor.now_ms
    reason = f"reason-{lock.uid}" if unit is None else f"reason-{lock.uid}-{unit.no}"
    actor.checker.settling(lock, kind, reason, unit)
    actor.world.note(f"{actor.name} settles uid {lock.uid} by management: {kind}")

    def answered(status: int, condition: str | None, body: Any) -> None:
        if status == 0:
            return
        actor.world.note(f"{actor.name}: uid {lock.uid} {kind} {status} {condition}")
        actor.checker.settle_answered(lock, kind, asked_ms, condition, unit)
        then(condition is None)

    body = _disposition(lock, kind)
    if kind == "dead-letter":
        body["deadletter-reason"] = reason
        body["deadletter-description"] = "as simulated"
    actor.peer.ask(address, "com.microsoft:update-disposition", body, answered, txn_id=txn_id)


def _disposition(lock: Lock, kind: str) -> dict[str, Any]:
    body: dict[str, Any] = {
        "disposition-status": STATUS[kind],
        "lock-tokens": Array.of(type(lock_uuid(lock.token)), [lock_uuid(lock.token)]),
    }
    if lock.hold is not None:
        body["session-id"] = lock.hold.session_id
    return body


def _settle_as_a_stranger(actor: Actor, address: str, lock: Lock, kind: str) -> None:
    """Settle a message of a session that another connection holds: that must be refused."""
    assert actor.peer is not None

    def answered(status: int, condition: str | None, body: Any) -> None:
        if status == 0:
            return
        actor.world.note(f"{actor.name}: uid {lock.uid} {kind} as a stranger {status} {condition}")
        if condition is None:
            raise Violation(f"{kind} was settled by a connection that does not hold the session: {lock}")
        if (status, condition) != SESSION_LOST:
            refused(actor, address, kind, condition)

    actor.peer.ask(address, "com.microsoft:update-disposition", _disposition(lock, kind), answered)


def receive_deferred(
    actor: Actor,
    address: str,
    numbers: list[int],
    delete: bool,
    then: Callable[[Lock], None],
    hold: Hold | None = None,
) -> None:
    """Receive deferred messages by number, of a session under its lock; `then` gets each lock."""
    assert actor.peer is not None
    connection, asked_ms = actor.connection, actor.now_ms
    if hold is not None:
        actor.checker.holds.using(hold)
    if delete:
        actor.checker.may_delete(address, len(numbers))

    def answered(status: int, condition: str | None, body: Any) -> None:
        if status == 0:
            return
        actor.world.note(f"{actor.name}: deferred {numbers} {status} {condition}")
        if hold is not None and (status, condition) == SESSION_LOST:
            actor.checker.holds.check_lost(hold, "receiving deferred messages")
            return
        if status == 404 and condition == "com.microsoft:message-not-found":
            return
        if refused(actor, address, "receiving deferred messages", condition):
            return
        if hold is not None:
            actor.checker.holds.check_holder(hold, "receiving deferred messages", asked_ms)
        if len(body["messages"]) != len(set(numbers)):
            raise Violation(f"{len(body['messages'])} messages for the numbers {numbers}")
        for entry in body["messages"]:
            seen = read_delivery(entry["message"])
            if seen.number not in numbers or seen.state != 1:
                raise Violation(f"asked for deferred {numbers}, got {seen}")
            token = b"" if delete else entry["lock-token"].bytes_le
            lock = actor.checker.delivered(
                seen, address, token, connection, deletes=delete, hold=hold, by_number=True
            )
            if lock is not None:
                then(lock)

    body = {"sequence-numbers": Array.of(Long, numbers), "receiver-settle-mode": Int(0 if delete else 1)}
    if hold is not None:
        body["session-id"] = hold.session_id
    actor.peer.ask(address, "com.microsoft:receive-by-sequence-number", body, answered)


def peek(
    actor: Actor, address: str, from_number: int, count: int, then: Callable[[list[Seen]], None],
    session_id: str | None = None,
) -> None:  # fmt: skip
    """Browse; `then` gets the messages found."""
    assert actor.peer is not None

    def answered(status: int, condition: str | None, body: Any) -> None:
        if status == 0 or refused(actor, address, "peek", condition):
            return
        found = [read_delivery(entry["message"]) for entry in body["messages"]] if status == 200 else []
        shown = [(seen.uid, seen.number, seen.state) for seen in found]
        actor.world.note(f"{actor.name}: peek {address} from {from_number} of {session_id}: {shown}")
        actor.checker.peeked(address, from_number, found, session_id)
        then(found)

    body: dict[str, Any] = {"from-sequence-number": Long(from_number), "message-count": Int(count)}
    if session_id is not None:
        body["session-id"] = session_id
    actor.peer.ask(address, "com.microsoft:peek-message", body, answered)


def cancel(
    actor: Actor,
    queue: str,
    number: int,
    uid: int,
    *,
    unit: Unit | None = None,
    txn_id: bytes | None = None,
    then: Callable[[], None] = lambda: None,
) -> None:
    """Cancel a scheduled message; in a transaction with `unit` and its id."""
    assert actor.peer is not None
    if unit is None:
        actor.checker.cancelling(queue, number)
    else:
        unit.cancels.append((queue, number))

    def answered(status: int, condition: str | None, body: Any) -> None:
        then()
        if status == 0:
            return
        actor.world.note(f"{actor.name}: cancel of uid {uid} {status} {condition}")
        if unit is not None:
            if condition is None:
                unit.cancelled.append((queue, number))
            elif condition != "com.microsoft:message-not-found" and not _refused_within(
                actor, unit, queue, condition
            ):
                refused(actor, queue, "cancel", condition)
            return
        if condition == "com.microsoft:message-not-found" or refused(actor, queue, "cancel", condition):
            return
        actor.checker.cancelled(queue, number)
        sent = actor.checker.sent[uid]
        if sent.own_id and sent.message_id is not None:
            actor.shared.freed_ids[queue] = sent.message_id

    body = {"sequence-numbers": Array.of(Long, [number])}
    actor.peer.ask(queue, "com.microsoft:cancel-scheduled-message", body, answered, txn_id=txn_id)


def _refused_within(actor: Actor, unit: Unit, queue: str, condition: str) -> bool:
    """Return whether a request is refused because of its transaction."""
    units = actor.checker.units
    if condition.startswith("amqp:transaction:"):
        return units.may_be_over(unit)
    return condition == "amqp:not-allowed" and units.may_be_parted(unit, queue)


def delete_messages(actor: Actor, address: str, count: int) -> None:
    """Delete the oldest messages."""
    assert actor.peer is not None
    actor.checker.may_delete(address, count)

    def answered(status: int, condition: str | None, body: Any) -> None:
        if status == 0 or refused(actor, address, "batch deletion", condition):
            return
        if not 0 <= body["message-count"] <= count:
            raise Violation(f"batch deletion of {count} from {address} answered {body}")

    body = {"message-count": Int(count), "enqueued-time-utc": Timestamp(actor.shared.node.wall_ms)}
    actor.peer.ask(address, "com.microsoft:batch-delete-messages", body, answered)


def purge(actor: Actor, address: str) -> None:
    """Delete all messages that are there now."""
    assert actor.peer is not None
    before_ms = actor.shared.node.wall_ms
    asked, there = actor.checker.purging(address, before_ms)

    def answered(status: int, condition: str | None, body: Any) -> None:
        if status == 0:
            actor.checker.purge_lost(asked)
            return
        actor.world.note(f"{actor.name}: purge of {address} {status} {condition} {body}")
        if not refused(actor, address, "purge", condition):
            actor.checker.purged(asked, there, body["message-count"])

    actor.peer.ask(address, "peeklock:purge-messages", {"enqueued-time-utc": Timestamp(before_ms)}, answered)


# Sessions


def set_state(
    actor: Actor,
    address: str,
    hold: Hold,
    uid: int | None,
    *,
    unit: Unit | None = None,
    txn_id: bytes | None = None,
    then: Callable[[], None] = lambda: None,
) -> None:
    """Set the state of a held session, or clear it; in a transaction with `unit` and its id."""
    assert actor.peer is not None
    actor.checker.holds.using(hold)
    states, session = actor.checker.states, (hold.entity_id, hold.session)
    asked_ms = actor.now_ms
    write = states.setting(session, uid, unit)
    if unit is not None:
        unit.states.append((hold, write))

    def answered(status: int, condition: str | None, body: Any) -> None:
        then()
        actor.world.note(f"{actor.name}: state of {hold.session_id!r} set to {uid}: {status} {condition}")
        if status == 0:
            if unit is None:
                states.lost(write)
            return
        actor.checker.holds.using(hold)  # the request may have waited long for its links
        if unit is not None and condition is None:
            write.enlisted = True  # it is set with the commit
        else:
            states.answered(session, write, condition is None)
        if unit is not None and condition and _refused_within(actor, unit, address, condition):
            return
        if (status, condition) == SESSION_LOST:
            actor.checker.holds.check_lost(hold, "setting the state")
        elif condition == "amqp:resource-limit-exceeded" and actor.checker.history.limited:
            return  # a state takes space too
        elif not refused(actor, address, "setting the state", condition):
            actor.checker.holds.check_holder(hold, "setting the state", asked_ms)

    state = None if uid is None else b"uid=%08d;" % uid + b"s" * actor.random.choice((0, 30, 900))
    body = {"session-id": hold.session_id, "session-state": state}
    actor.peer.ask(address, "com.microsoft:set-session-state", body, answered, txn_id=txn_id)


def get_state(
    actor: Actor, address: str, hold: Hold, then: Callable[[int | None], None] = lambda uid: None
) -> None:
    """Read the state of a held session; `then` gets the uid of the state, if there is one."""
    assert actor.peer is not None
    actor.checker.holds.using(hold)
    asked_ms = actor.now_ms

    def answered(status: int, condition: str | None, body: Any) -> None:
        if status == 0:
            return
        actor.checker.holds.using(hold)  # the request may have waited long for its links
        actor.world.note(f"{actor.name}: state of {hold.session_id!r}: {status} {condition} {body}")
        if (status, condition) == SESSION_LOST:
            actor.checker.holds.check_lost(hold, "reading the state")
            return
        if refused(actor, address, "reading the state", condition):
            return
        actor.checker.holds.check_holder(hold, "reading the state", asked_ms)
        state = body["session-state"]
        uid = None if state is None else uid_of(state)
        actor.checker.states.read((hold.entity_id, hold.session), asked_ms, uid)
        then(uid)

    actor.peer.ask(address, "com.microsoft:get-session-state", {"session-id": hold.session_id}, answered)


def list_sessions(actor: Actor, queue: str, then: Callable[[list[str]], None] = lambda found: None) -> None:
    """List all sessions of a queue."""
    assert actor.peer is not None
    holds = actor.checker.holds
    asked_ms = actor.now_ms
    entity_id = actor.checker.history.queue_id(queue, MAIN) // 4
    before = holds.expected(entity_id)

    def answered(status: int, condition: str | None, body: Any) -> None:
        if status == 0:
            return
        actor.world.note(f"{actor.name}: sessions of {queue}: {status} {condition} {body}")
        none = condition == "com.microsoft:session-not-found"
        if not none and refused(actor, queue, "listing sessions", condition):
            return
        found = [] if none else list(body["sessions-ids"])
        if actor.checker.history.queue_id(queue, MAIN) // 4 == entity_id:
            holds.listed(entity_id, asked_ms, before, found)
        then(found)

    body = {"last-updated-time": Timestamp(ALL_SESSIONS_FROM_MS), "skip": Int(0), "top": Int(100)}
    actor.peer.ask(queue, "com.microsoft:get-message-sessions", body, answered)
