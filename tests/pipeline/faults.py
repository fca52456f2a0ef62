"""Faults, one at a time, for clean logs: each breaks one promise of the broker.

Owns: the faults of logs and of several messages, and which checks of the audit must find each. `FAULTS` has
all by name; a fault takes `EventRows` and changes them.
"""

from __future__ import annotations

from typing import Any

from peeklock.pipeline.audit.checks import Check
from tests.pipeline.event_rows import (
    BEGINS,
    COMPLETED,
    LOCK,
    SECOND,
    EventRows,
    Row,
    fault,
    of_life,
    set_all,
)
from tests.pipeline.life_faults import LIFE_FAULTS


def _batch_lacks_an_event(log: EventRows) -> None:
    log.table("")  # numbers the events
    next(row for row in log.rows if row["index"] == 1)["index"] = 1_000
    log.indexed = False


def _event_comes_twice(log: EventRows) -> None:
    row = next(row for row in log.rows if row["event_type"] == "duplicate_dropped")
    log.add(row, after=row)
    log.indexed = False


def _event_of_an_unknown_type(log: EventRows) -> None:
    row = log.life(*COMPLETED)[1]
    log.add(row, after=row, event_type="teleported")


def _event_without_a_number(log: EventRows) -> None:
    row = log.life(*COMPLETED, entity="orders")[1]
    log.add(row, after=row, sequence_number=None)


def _life_is_missing(log: EventRows) -> None:
    log.remove(log.life(*COMPLETED, entity="orders", nth=20))


def _life_is_missing_in_a_partition(log: EventRows) -> None:
    log.remove(log.life(*COMPLETED, entity="clicks", nth=50))


def _answered_number_is_not_told(log: EventRows) -> None:
    log.remove(log.life("number_issued", nth=0))


def _beginning_is_missing(log: EventRows) -> None:
    log.remove(log.life(*COMPLETED, entity="orders", nth=20)[:1])


def _beginning_of_a_dead_letter_is_missing(log: EventRows) -> None:
    """Something happens there to a message that never arrived."""
    (begin,) = log.last_of("orders/$deadletterqueue")
    log.add(begin, after=begin, event_type="purged", sequence_number=1_000_000)


def _number_is_given_twice(log: EventRows) -> None:
    begin, _, end = log.life(*COMPLETED, entity="orders")
    log.add(begin, after=end, message_id="another")


def _number_is_answered_twice(log: EventRows) -> None:
    (answer,) = log.life("number_issued")
    log.add(answer, after=log.rows[-1], transaction_id="ee")


def _answered_number_is_given_to_another(log: EventRows) -> None:
    (answer,) = log.life("number_issued", nth=0)
    begin = log.life(*COMPLETED, entity=answer["entity"])[0]
    again = {**begin, "sequence_number": answer["sequence_number"], "enqueued_time": None}
    log.add(again, after=log.rows[-1], message_id="another")


def _numbers_are_not_in_order(log: EventRows) -> None:
    _swap_numbers(*_sent(log, "orders")[20:22])


def _numbers_of_a_partition_are_not_in_order(log: EventRows) -> None:
    _swap_numbers(*_sent(log, "clicks", partition_id=3)[1:3])


def _enqueued_time_goes_back(log: EventRows) -> None:
    life = log.life(*COMPLETED, entity="orders", expires_at=None, nth=20)
    set_all(life, enqueued_time=life[0]["enqueued_time"] - 3_600 * SECOND)


def _enqueued_time_of_a_partition_goes_back(log: EventRows) -> None:
    life = log.life(*COMPLETED, entity="clicks", expires_at=None, partition_id=3, nth=2)
    set_all(life, enqueued_time=life[0]["enqueued_time"] - 3_600 * SECOND)


def _message_of_a_number_is_there_without_a_commit(log: EventRows) -> None:
    life = log.life("number_issued", "scheduled", "activated", nth=0)
    log.remove([life[1]])


def _session_is_delivered_after_its_lock(log: EventRows) -> None:
    """The session was free at that instant, though the log says so only later."""
    delivered = log.life(*COMPLETED, entity="carts")[1]
    locked = _lock_of(log, delivered)
    _end_lock_at(locked, delivered)


def _session_message_is_settled_after_its_lock(log: EventRows) -> None:
    """The last one: no other is delivered after it."""
    of_session = [row for row in log.rows if row["entity"] == "carts" and row["event_type"] == "completed"]
    completed = [row for row in of_session if row["session_id"] == of_session[0]["session_id"]][-1]
    _end_lock_at(_lock_of(log, completed), completed)


def _end_lock_at(locked: Row, row: Row) -> None:
    """Let the lock of a session end at an event."""
    locked.update(event_time=row["event_time"] - LOCK, locked_until=row["event_time"])


def _session_lock_is_too_long(log: EventRows) -> None:
    next(row for row in log.rows if row["event_type"] == "session_locked")["locked_until"] += SECOND


def _session_lock_is_too_short(log: EventRows) -> None:
    locked = [row for row in log.rows if row["event_type"] == "session_locked"][2]
    locked["locked_until"] -= SECOND


def _session_of_a_message_changes(log: EventRows) -> None:
    log.life(*COMPLETED, entity="mails")[-1].update(session_id="other", session_key="OTHER")


def _dead_letter_is_lost(log: EventRows) -> None:
    log.remove(log.last_of("orders/$deadletterqueue"))


def _dead_letter_comes_late(log: EventRows) -> None:
    (begin,) = log.last_of("orders/$deadletterqueue")
    log.remove([begin])
    log.add(begin, after=log.rows[-1], event_time=begin["event_time"])


def _dead_letter_comes_from_nowhere(log: EventRows) -> None:
    row = log.last_of("orders/$deadletterqueue")[0]
    log.add(row, after=row, sequence_number=1_000_000)


def _dead_letter_was_purged(log: EventRows) -> None:
    end = log.life("enqueued", "expired", entity="orders", nth=0)[-1]
    end.update(event_type="purged", related_entity=None, related_sequence_number=None)


def _forwarded_message_is_lost(log: EventRows) -> None:
    log.remove(log.last_of("archive"))


def _activated_message_is_lost(log: EventRows) -> None:
    end = log.life("scheduled", "activated", nth=1)[-1]
    end["related_sequence_number"] = 1_000_000


def _copy_is_lost(log: EventRows) -> None:
    end = log.life("enqueued", "forwarded", entity="news")[-1]
    end["related_sequence_number"] += 1


def _copy_does_not_arrive(log: EventRows) -> None:
    log.remove(log.last_of("news/Subscriptions/all"))


def _session_has_two_holders(log: EventRows) -> None:
    locked = next(row for row in log.rows if row["event_type"] == "session_locked")
    log.add(locked, after=locked)


def _session_has_a_holder_for_each_spelling(log: EventRows) -> None:
    locked = next(row for row in log.rows if row["event_type"] == "session_locked")
    log.add(locked, after=locked, session_id=locked["session_id"].upper(), connection_id=99)


def _session_of_an_older_release_has_two_holders(log: EventRows) -> None:
    """Its rows have no key."""
    for row in log.rows:
        row["session_key"] = None
    _session_has_two_holders(log)


def _session_message_goes_to_a_stranger(log: EventRows) -> None:
    log.life(*COMPLETED, entity="carts")[1]["connection_id"] = 99


def _session_state_is_set_after_its_lock(log: EventRows) -> None:
    locked = next(row for row in log.rows if row["event_type"] == "session_locked")
    log.add(locked, after=locked, event_type="session_state_set", event_time=locked["locked_until"])


def _session_is_renewed_by_a_stranger(log: EventRows) -> None:
    locked = next(row for row in log.rows if row["event_type"] == "session_locked")
    log.add(locked, after=locked, event_type="session_renewed", connection_id=99)


def _session_message_is_overtaken(log: EventRows) -> None:
    _overtake(log, 0, 1)


def _first_message_of_a_session_is_overtaken(log: EventRows) -> None:
    _overtake(log, -1, 0)


def _message_id_is_taken_twice(log: EventRows) -> None:
    ids = [row for row in log.rows if row["entity"] == "orders" and row["message_id"]][20:22]
    ids[1]["message_id"] = ids[0]["message_id"]


def _scheduled_message_takes_an_id_again(log: EventRows) -> None:
    begin = log.life("scheduled", "activated", entity="mails", nth=2)[0]
    before = log.rows[: next(at for at, row in enumerate(log.rows) if row is begin)]
    taken = [row for row in before if row["entity"] == "mails" and row["event_type"] == "enqueued"]
    begin["message_id"] = next(row["message_id"] for row in reversed(taken) if row["message_id"])


def _transaction_is_torn(log: EventRows) -> None:
    rows = [row for row in log.rows if row["transaction_id"] and row["event_type"] != "number_issued"]
    rows[-1]["transaction_id"] = rows[0]["transaction_id"]


def _cancel_in_a_transaction_acts_at_once(log: EventRows) -> None:
    row = next(row for row in log.rows if row["event_type"] == "cancelled")
    row["transaction_id"] = next(
        other["transaction_id"]
        for other in log.rows
        if other["transaction_id"]
        and other["event_type"] != "number_issued"
        and other["batch_no"] != row["batch_no"]
    )


def _swap_numbers(one: list[Row], other: list[Row]) -> None:
    """Give each message the number and the enqueued time of the other."""
    first, second = (
        {key: life[0][key] for key in ("sequence_number", "enqueued_sequence_number", "enqueued_time")}
        for life in (one, other)
    )
    set_all(one, **second)
    set_all(other, **first)


def _sent(log: EventRows, entity: str, **wanted: Any) -> list[list[Row]]:
    """Return lives that began with a send and never expire."""
    lives = [log.life(*COMPLETED, entity=entity, expires_at=None, nth=at, **wanted) for at in range(60)]
    return [life for life in lives if life[0]["message_id"]]


def _lock_of(log: EventRows, event: dict[str, Any]) -> dict[str, Any]:
    """Find the lock of the session that an event is of; each session is held once."""
    return next(
        row
        for row in log.rows
        if row["event_type"] == "session_locked" and row["session_id"] == event["session_id"]
    )


def _overtake(log: EventRows, session: int, at: int) -> None:
    """Deliver the message of a session at a place after the one that follows it."""
    begun: dict[str, list[Row]] = {}
    ended = set()
    for row in log.rows:
        if row["entity"] == "carts" and row["event_type"] == "enqueued":
            begun.setdefault(row["session_id"], []).append(row)
        elif row["entity"] == "carts" and row["event_type"] == "completed":
            ended.add(row["sequence_number"])
    whole = [
        rows for rows in begun.values() if len(rows) > 3 and all(r["sequence_number"] in ended for r in rows)
    ]
    first, second = whole[session][at : at + 2]
    swapped = {first["sequence_number"]: of_life(second), second["sequence_number"]: of_life(first)}
    for row in log.rows:
        if row["entity"] == "carts" and row["event_type"] not in BEGINS:
            row.update(swapped.get(row["sequence_number"], {}))


LOG_FAULTS = dict(
    [
        fault(_batch_lacks_an_event, Check.BATCH_DAMAGED),
        fault(_event_comes_twice, Check.BATCH_DAMAGED),
        fault(_event_of_an_unknown_type, Check.UNKNOWN_EVENT),
        fault(_event_without_a_number, Check.UNKNOWN_EVENT),
        fault(_life_is_missing, Check.NUMBER_GAP),
        fault(_life_is_missing_in_a_partition, Check.NUMBER_GAP),
        fault(_answered_number_is_not_told, Check.NUMBER_GAP),
        fault(_beginning_is_missing, Check.NO_BEGINNING, Check.NUMBER_GAP),
        fault(_beginning_of_a_dead_letter_is_missing, Check.NO_BEGINNING),
        fault(_number_is_given_twice, Check.NUMBER_TWICE),
        fault(_number_is_answered_twice, Check.NUMBER_TWICE),
        fault(_answered_number_is_given_to_another, Check.NUMBER_TWICE),
        fault(_numbers_are_not_in_order, Check.NUMBER_ORDER),
        fault(_numbers_of_a_partition_are_not_in_order, Check.NUMBER_ORDER),
        fault(_enqueued_time_goes_back, Check.ENQUEUED_BACK),
        fault(_enqueued_time_of_a_partition_goes_back, Check.ENQUEUED_BACK),
        fault(_message_of_a_number_is_there_without_a_commit, Check.NO_BEGINNING),
        fault(_session_is_delivered_after_its_lock, Check.SESSION_SHARED, Check.LOCK_ENDED),
        fault(_session_message_is_settled_after_its_lock, Check.LOCK_ENDED),
        fault(_session_of_a_message_changes, Check.IDENTITY_CHANGED),
        fault(_dead_letter_is_lost, Check.DEAD_LETTER_LOST),
        fault(_dead_letter_comes_late, Check.DEAD_LETTER_LOST),
        fault(_dead_letter_comes_from_nowhere, Check.DEAD_LETTER_UNEXPLAINED),
        fault(_dead_letter_was_purged, Check.DEAD_LETTER_UNEXPLAINED),
        fault(_forwarded_message_is_lost, Check.FORWARD_LOST),
        fault(_activated_message_is_lost, Check.FORWARD_LOST),
        fault(_copy_is_lost, Check.COPIES_WRONG),
        fault(_copy_does_not_arrive, Check.COPIES_WRONG),
        fault(_session_has_two_holders, Check.SESSION_SHARED),
        fault(_session_has_a_holder_for_each_spelling, Check.SESSION_SHARED),
        fault(_session_of_an_older_release_has_two_holders, Check.SESSION_SHARED),
        fault(_session_message_goes_to_a_stranger, Check.SESSION_SHARED),
        fault(_session_state_is_set_after_its_lock, Check.SESSION_SHARED),
        fault(_session_is_renewed_by_a_stranger, Check.SESSION_SHARED),
        fault(_session_lock_is_too_long, Check.WRONG_LOCK_DURATION),
        fault(_session_lock_is_too_short, Check.WRONG_LOCK_DURATION),
        fault(_session_message_is_overtaken, Check.SESSION_ORDER),
        fault(_first_message_of_a_session_is_overtaken, Check.SESSION_ORDER),
        fault(_message_id_is_taken_twice, Check.DUPLICATE),
        fault(_scheduled_message_takes_an_id_again, Check.DUPLICATE),
        fault(_transaction_is_torn, Check.TRANSACTION_TORN),
        fault(_cancel_in_a_transaction_acts_at_once, Check.TRANSACTION_TORN),
    ]
)

FAULTS = {**LOG_FAULTS, **LIFE_FAULTS}
