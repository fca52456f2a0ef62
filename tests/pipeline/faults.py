"""Faults, one at a time, for clean logs: each breaks one promise of the broker.

Owns: how a log is spoiled, and which checks of the audit must find it. `FAULTS` has them by name; a fault
takes an `EventRows` and changes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pyarrow as pa

from peeklock.capture.schema import EVENTS
from peeklock.pipeline.audit.checks import Check

Row = dict[str, Any]
SECOND = timedelta(seconds=1)
BEGINS = ("enqueued", "scheduled")


class EventRows:
    """The events of a log as rows, in order."""

    def __init__(self, table: pa.Table) -> None:
        self.rows: list[Row] = table.to_pylist()
        self.indexed = True
        """Whether the table numbers events within their batches again."""

    def table(self, namespace: str) -> pa.Table:
        """Return the log as a table, in order."""
        last, index = -1, 0
        for row in self.rows:
            index = index + 1 if row["batch_no"] == last else 0
            last = row["batch_no"]
            row["namespace"] = namespace
            if self.indexed:
                row["index"] = index
        return pa.Table.from_pylist(self.rows, schema=EVENTS)

    def life(self, *story: str, entity: str | None = None, nth: int = 3, **wanted: Any) -> list[Row]:
        """Return the rows of the nth life with exactly these events; `wanted` are values of its last one."""
        lives: dict[tuple[str, int], list[Row]] = {}
        for row in self.rows:
            if row["sequence_number"] is not None and row["event_type"] != "duplicate_dropped":
                lives.setdefault((row["entity"], row["sequence_number"]), []).append(row)
        found = [
            life
            for (name, _), life in lives.items()
            if tuple(row["event_type"] for row in life) == story
            and entity in (None, name)
            and all(life[-1][key] == value for key, value in wanted.items())
        ]
        return found[min(nth, len(found) - 1)]

    def remove(self, rows: Iterable[Row]) -> None:
        gone = {id(row) for row in rows}
        self.rows = [row for row in self.rows if id(row) not in gone]

    def add(self, row: Row, *, after: Row, **changes: Any) -> Row:
        """Put a copy of `row` with changes behind another, in the same batch."""
        new = {**row, "batch_no": after["batch_no"], "event_time": after["event_time"], **changes}
        at = next(place for place, other in enumerate(self.rows) if other is after)
        self.rows.insert(at + 1, new)
        return new

    def last_of(self, entity: str) -> list[Row]:
        """Return the rows of the life of an entity with the highest number."""
        number = max(
            row["sequence_number"] for row in self.rows if row["entity"] == entity and row["sequence_number"]
        )
        return [row for row in self.rows if row["entity"] == entity and row["sequence_number"] == number]


COMPLETED = ("enqueued", "delivered", "completed")


def _batch_lacks_an_event(log: EventRows) -> None:
    log.table("")  # numbers the events
    next(row for row in log.rows if row["index"] == 1)["index"] = 1_000
    log.indexed = False


def _event_comes_twice(log: EventRows) -> None:
    row = next(row for row in log.rows if row["event_type"] == "duplicate_dropped")
    log.add(row, after=row)
    log.indexed = False


def _life_is_missing(log: EventRows) -> None:
    log.remove(log.life(*COMPLETED, entity="orders", nth=20))


def _life_is_missing_in_a_partition(log: EventRows) -> None:
    log.remove(log.life(*COMPLETED, entity="clicks", nth=50))


def _number_is_given_twice(log: EventRows) -> None:
    begin, _, end = log.life(*COMPLETED, entity="orders")
    log.add(begin, after=end, message_id="another")


def _number_is_answered_twice(log: EventRows) -> None:
    (answer,) = log.life("number_issued")
    log.add(answer, after=log.rows[-1], transaction_id="ee")


def _answered_number_is_given_to_another(log: EventRows) -> None:
    (answer,) = log.life("number_issued", nth=0)
    begin = log.life(*COMPLETED, entity=answer["entity"])[0]
    log.add({**begin, "sequence_number": answer["sequence_number"]}, after=log.rows[-1], message_id="another")


def _answered_number_is_not_told(log: EventRows) -> None:
    log.remove(log.life("number_issued", nth=0))


def _message_of_a_number_is_there_without_a_commit(log: EventRows) -> None:
    life = log.life("number_issued", "scheduled", "activated", nth=0)
    log.remove([life[1]])


def _beginning_is_missing(log: EventRows) -> None:
    log.remove(log.life(*COMPLETED, entity="orders", nth=20)[:1])


def _lock_never_lapses(log: EventRows) -> None:
    log.remove(log.life("enqueued", "delivered", "lock_lapsed", "delivered", "completed", nth=0)[2:])


def _message_never_expires(log: EventRows) -> None:
    log.remove(log.life("enqueued", "expired", entity="invoices", nth=0)[1:])


def _completed_twice(log: EventRows) -> None:
    end = log.life(*COMPLETED)[-1]
    log.add(end, after=end)


def _completed_and_dead_lettered(log: EventRows) -> None:
    end = log.life(*COMPLETED, entity="orders")[-1]
    log.add(end, after=end, event_type="dead_lettered", lock_token=None)


def _delivered_after_completion(log: EventRows) -> None:
    _, delivered, end = log.life(*COMPLETED)
    log.add(delivered, after=end)


def _delivered_after_purge(log: EventRows) -> None:
    delivered = log.life(*COMPLETED, entity="invoices")[1]
    end = log.life("enqueued", "purged", entity="invoices", nth=0)[-1]
    log.add(delivered, after=end, sequence_number=end["sequence_number"])


def _claimed_after_completion(log: EventRows) -> None:
    end = log.life(*COMPLETED)[-1]
    log.add(end, after=end, event_type="claimed", lock_token=None, reason="lake")


def _received_and_not_deleted(log: EventRows) -> None:
    log.remove(log.life(*COMPLETED, reason="receive-and-delete")[-1:])


def _delivered_twice_at_a_time(log: EventRows) -> None:
    _, delivered, _ = log.life(*COMPLETED)
    log.add(delivered, after=delivered)
    delivered["lock_token"] = "00" * 8


def _completed_by_another_lock(log: EventRows) -> None:
    log.life(*COMPLETED)[-1]["lock_token"] = "00" * 8


def _completed_without_delivery(log: EventRows) -> None:
    log.remove([log.life(*COMPLETED)[1]])


def _completed_at_the_end_of_its_lock(log: EventRows) -> None:
    _, delivered, end = log.life(*COMPLETED, entity="orders")
    delivered["locked_until"] = end["event_time"]


def _renewed_after_its_lock(log: EventRows) -> None:
    _, delivered, renewed, _ = log.life("enqueued", "delivered", "renewed", "completed", nth=0)
    delivered["locked_until"] = renewed["event_time"] - SECOND


def _lock_lapses_early(log: EventRows) -> None:
    life = log.life("enqueued", "delivered", "lock_lapsed", "delivered", "completed", nth=0)
    life[1]["locked_until"] += SECOND


def _purged_under_lock(log: EventRows) -> None:
    end = log.life(*COMPLETED, entity="orders")[-1]
    end.update(event_type="purged", lock_token=None)


def _claimed_under_lock(log: EventRows) -> None:
    end = log.life(*COMPLETED, entity="orders")[-1]
    claimed = log.add(end, after=end, event_type="claimed", lock_token=None, reason="lake")
    log.remove([end])
    log.add(claimed, after=claimed, event_type="completed", reason="cursor")


def _abandon_is_not_counted(log: EventRows) -> None:
    for row in log.life("enqueued", "delivered", "abandoned", "delivered", "completed", nth=0)[2:]:
        row["delivery_count"] = 0


def _deferral_is_not_counted(log: EventRows) -> None:
    for row in log.life("enqueued", "delivered", "deferred", "delivered", "completed", nth=0)[2:]:
        row["delivery_count"] = 0


def _dead_letter_is_counted(log: EventRows) -> None:
    (begin,) = log.last_of("orders/$deadletterqueue")
    delivered, lapsed = log.life("enqueued", "delivered", "lock_lapsed", "delivered", "completed", nth=0)[1:3]
    same = {key: begin[key] for key in ("entity", "sequence_number", "expires_at")}
    until = begin["event_time"] + SECOND
    held = log.add(delivered, after=begin, **same, locked_until=until, delivery_count=begin["delivery_count"])
    count = begin["delivery_count"] + 1
    log.add(lapsed, after=held, **same, event_time=until, delivery_count=count)


def _release_is_counted(log: EventRows) -> None:
    for row in log.life("enqueued", "delivered", "released", "delivered", "completed", nth=0)[2:]:
        row["delivery_count"] = 1


def _count_falls(log: EventRows) -> None:
    for row in log.life("enqueued", "delivered", "abandoned", "delivered", "completed", nth=0)[3:]:
        row["delivery_count"] = 0


def _dead_letter_forgets_its_count(log: EventRows) -> None:
    for row in log.last_of("orders/$deadletterqueue"):
        row["delivery_count"] += 1


def _scheduled_message_is_delivered(log: EventRows) -> None:
    delivered = log.life(*COMPLETED)[1]
    waiting = log.life("scheduled", "cancelled", nth=0)
    log.add(delivered, after=waiting[0], **{key: waiting[0][key] for key in ("entity", "sequence_number")})
    log.remove(waiting[1:])


def _delivered_when_expired(log: EventRows) -> None:
    delivered = log.life(*COMPLETED, entity="orders")[1]
    delivered["expires_at"] = delivered["event_time"]


def _delivered_when_the_default_is_over(log: EventRows) -> None:
    delivered = log.life(*COMPLETED, entity="archive")[1]
    delivered["enqueued_time"] -= timedelta(days=1)
    for row in log.rows:
        if row["event_type"] == "entity_present" and row["entity"] == "archive":
            row["reason"] = row["reason"].replace(
                '"default_ttl_ms":922337203685477', '"default_ttl_ms":86400000'
            )


def _expired_early(log: EventRows) -> None:
    end = log.life("enqueued", "expired", entity="invoices", nth=0)[-1]
    end["expires_at"] = end["event_time"] + SECOND


def _activated_early(log: EventRows) -> None:
    end = log.life("scheduled", "activated", nth=0)[-1]
    end["scheduled_time"] = end["event_time"] + SECOND


def _delivered_while_claimed(log: EventRows) -> None:
    claimed = log.life("enqueued", "claimed", "completed", nth=0)
    delivered = log.life(*COMPLETED)[1]
    log.add(delivered, after=claimed[1], **{key: claimed[1][key] for key in ("entity", "sequence_number")})
    claimed[2].update(reason=None, lock_token=delivered["lock_token"])


def _committed_without_claim(log: EventRows) -> None:
    log.remove([log.life("enqueued", "claimed", "completed", nth=0)[1]])


def _dead_letter_is_lost(log: EventRows) -> None:
    log.remove(log.last_of("orders/$deadletterqueue"))


def _dead_letter_comes_from_nowhere(log: EventRows) -> None:
    row = log.last_of("orders/$deadletterqueue")[0]
    log.add(row, after=row, sequence_number=1_000_000)


def _forwarded_message_is_lost(log: EventRows) -> None:
    log.remove(log.last_of("archive"))


def _activated_message_is_lost(log: EventRows) -> None:
    end = log.life("scheduled", "activated", nth=1)[-1]
    end["related_sequence_number"] = 1_000_000


def _copy_is_lost(log: EventRows) -> None:
    end = log.life("enqueued", "forwarded", entity="news")[-1]
    end["related_sequence_number"] += 1


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


def _session_is_delivered_after_its_lock(log: EventRows) -> None:
    """The session was free at that instant, though the log says so only later."""
    delivered = log.life(*COMPLETED, entity="carts")[1]
    locked = _lock_of(log, delivered)
    locked["locked_until"] = delivered["event_time"]


def _session_state_is_set_after_its_lock(log: EventRows) -> None:
    locked = next(row for row in log.rows if row["event_type"] == "session_locked")
    log.add(locked, after=locked, event_type="session_state_set", event_time=locked["locked_until"])


def _session_is_renewed_by_a_stranger(log: EventRows) -> None:
    locked = next(row for row in log.rows if row["event_type"] == "session_locked")
    log.add(locked, after=locked, event_type="session_renewed", connection_id=99)


def _session_message_is_settled_after_its_lock(log: EventRows) -> None:
    """The last one: no other is delivered after it."""
    of_session = [row for row in log.rows if row["entity"] == "carts" and row["event_type"] == "completed"]
    completed = [row for row in of_session if row["session_id"] == of_session[0]["session_id"]][-1]
    _lock_of(log, completed)["locked_until"] = completed["event_time"]


def _lock_of(log: EventRows, event: dict[str, Any]) -> dict[str, Any]:
    """Find the lock of the session that an event is of; each session is held once."""
    return next(
        row
        for row in log.rows
        if row["event_type"] == "session_locked" and row["session_id"] == event["session_id"]
    )


def _session_message_is_overtaken(log: EventRows) -> None:
    of_session: dict[str, list[int]] = {}
    for row in log.rows:
        if row["entity"] == "carts" and row["event_type"] == "completed":
            of_session.setdefault(row["session_id"], []).append(row["sequence_number"])
    first, second = next(numbers for numbers in of_session.values() if len(numbers) > 3)[1:3]
    for row in log.rows:
        if row["entity"] == "carts" and row["event_type"] not in BEGINS:
            number = row["sequence_number"]
            if number in (first, second):
                row["sequence_number"] = row["enqueued_sequence_number"] = first + second - number


def _message_id_is_taken_twice(log: EventRows) -> None:
    ids = [row for row in log.rows if row["entity"] == "orders" and row["message_id"]][20:22]
    ids[1]["message_id"] = ids[0]["message_id"]


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


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault, and the checks that must find it: no others may find anything."""

    spoil: Callable[[EventRows], None]
    found_by: frozenset[Check]


def _fault(spoil: Callable[[EventRows], None], *checks: Check) -> tuple[str, Fault]:
    return spoil.__name__.strip("_").replace("_", "-"), Fault(spoil, frozenset(checks))


FAULTS = dict(
    [
        _fault(_batch_lacks_an_event, Check.BATCH_DAMAGED),
        _fault(_event_comes_twice, Check.BATCH_DAMAGED),
        _fault(_life_is_missing, Check.NUMBER_GAP),
        _fault(_life_is_missing_in_a_partition, Check.NUMBER_GAP),
        _fault(_number_is_given_twice, Check.NUMBER_TWICE),
        _fault(_number_is_answered_twice, Check.NUMBER_TWICE),
        _fault(_answered_number_is_given_to_another, Check.NUMBER_TWICE),
        _fault(_answered_number_is_not_told, Check.NUMBER_GAP),
        _fault(_message_of_a_number_is_there_without_a_commit, Check.NO_BEGINNING),
        # Who looks at the numbers alone sees it too.
        _fault(_beginning_is_missing, Check.NO_BEGINNING, Check.NUMBER_GAP),
        _fault(_lock_never_lapses, Check.LOCK_OVERDUE),
        _fault(_message_never_expires, Check.EXPIRY_OVERDUE),
        _fault(_completed_twice, Check.DOUBLE_SETTLEMENT),
        _fault(_completed_and_dead_lettered, Check.DOUBLE_SETTLEMENT),
        _fault(_delivered_after_completion, Check.DELIVERED_AFTER_COMPLETION),
        _fault(_delivered_after_purge, Check.DELIVERED_AFTER_END),
        _fault(_claimed_after_completion, Check.CHANGED_AFTER_END),
        _fault(_received_and_not_deleted, Check.DELETION_MISSING),
        _fault(_delivered_twice_at_a_time, Check.OVERLAPPING_LOCKS),
        _fault(_completed_by_another_lock, Check.NO_LOCK),
        _fault(_completed_without_delivery, Check.NO_LOCK),
        _fault(_completed_at_the_end_of_its_lock, Check.LOCK_ENDED),
        _fault(_renewed_after_its_lock, Check.LOCK_ENDED),
        _fault(_lock_lapses_early, Check.LOCK_CUT_SHORT),
        _fault(_purged_under_lock, Check.TAKEN_UNDER_LOCK),
        _fault(_claimed_under_lock, Check.TAKEN_UNDER_LOCK),
        _fault(_abandon_is_not_counted, Check.WRONG_COUNT),
        _fault(_deferral_is_not_counted, Check.WRONG_COUNT),
        _fault(_dead_letter_is_counted, Check.WRONG_COUNT),
        _fault(_release_is_counted, Check.WRONG_COUNT),
        _fault(_count_falls, Check.WRONG_COUNT),
        _fault(_dead_letter_forgets_its_count, Check.WRONG_COUNT),
        _fault(_scheduled_message_is_delivered, Check.WRONG_STATE),
        _fault(_delivered_when_expired, Check.DELIVERED_EXPIRED),
        _fault(_delivered_when_the_default_is_over, Check.DELIVERED_EXPIRED),
        _fault(_expired_early, Check.EXPIRED_EARLY),
        _fault(_activated_early, Check.ACTIVATED_EARLY),
        _fault(_delivered_while_claimed, Check.CLAIM_BROKEN),
        _fault(_committed_without_claim, Check.CLAIM_BROKEN),
        _fault(_dead_letter_is_lost, Check.DEAD_LETTER_LOST),
        _fault(_dead_letter_comes_from_nowhere, Check.DEAD_LETTER_UNEXPLAINED),
        _fault(_forwarded_message_is_lost, Check.FORWARD_LOST),
        _fault(_activated_message_is_lost, Check.FORWARD_LOST),
        _fault(_copy_is_lost, Check.COPIES_WRONG),
        _fault(_session_has_two_holders, Check.SESSION_SHARED),
        _fault(_session_has_a_holder_for_each_spelling, Check.SESSION_SHARED),
        _fault(_session_of_an_older_release_has_two_holders, Check.SESSION_SHARED),
        _fault(_session_message_goes_to_a_stranger, Check.SESSION_SHARED),
        _fault(_session_is_delivered_after_its_lock, Check.SESSION_SHARED, Check.LOCK_ENDED),
        _fault(_session_state_is_set_after_its_lock, Check.SESSION_SHARED),
        _fault(_session_is_renewed_by_a_stranger, Check.SESSION_SHARED),
        _fault(_session_message_is_settled_after_its_lock, Check.LOCK_ENDED),
        _fault(_session_message_is_overtaken, Check.SESSION_ORDER),
        _fault(_message_id_is_taken_twice, Check.DUPLICATE),
        _fault(_transaction_is_torn, Check.TRANSACTION_TORN),
        _fault(_cancel_in_a_transaction_acts_at_once, Check.TRANSACTION_TORN),
    ]
)
