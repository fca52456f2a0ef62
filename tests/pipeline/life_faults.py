"""Faults of single messages, one at a time: each breaks one promise of the broker."""

from __future__ import annotations

from peeklock.pipeline.audit.checks import Check
from tests.pipeline.event_rows import (
    ABANDONED,
    COMPLETED,
    DEAD_LETTERED,
    EXHAUSTED,
    LAPSED,
    LOCK,
    RENEWED,
    SECOND,
    EventRows,
    fault,
    of_life,
    set_all,
)


def _lock_never_lapses(log: EventRows) -> None:
    log.remove(log.life("enqueued", "delivered", "lock_lapsed", "delivered", "completed", nth=0)[2:])


def _renewed_lock_never_ends(log: EventRows) -> None:
    log.remove(log.life(*RENEWED, nth=0)[3:])


def _message_never_expires(log: EventRows) -> None:
    log.remove(log.life("enqueued", "expired", entity="invoices", nth=0)[1:])


def _message_never_expires_by_the_default(log: EventRows) -> None:
    log.settle("archive", default_ttl_ms=120_000)
    log.remove(log.life(*COMPLETED, entity="archive", nth=0)[1:])


def _completed_twice(log: EventRows) -> None:
    end = log.life(*COMPLETED)[-1]
    log.add(end, after=end)


def _completed_and_dead_lettered(log: EventRows) -> None:
    end = log.life(*COMPLETED, entity="orders")[-1]
    log.add(end, after=end, event_type="dead_lettered", lock_token=None)


def _delivered_after_completion(log: EventRows) -> None:
    _, delivered, end = log.life(*COMPLETED)
    log.add(delivered, after=end)


def _delivered_again_much_later(log: EventRows) -> None:
    delivered = log.life(*COMPLETED)[1]
    log.add(delivered, after=log.rows[-1])


def _delivered_after_purge(log: EventRows) -> None:
    delivered = log.life(*COMPLETED, entity="invoices")[1]
    end = log.life("enqueued", "purged", entity="invoices", nth=0)[-1]
    log.add(delivered, after=end, **of_life(end))


def _delivered_after_its_dead_lettering(log: EventRows) -> None:
    _, delivered, end = log.life(*DEAD_LETTERED, nth=0)
    log.add(delivered, after=end)


def _claimed_after_completion(log: EventRows) -> None:
    end = log.life(*COMPLETED)[-1]
    log.add(end, after=end, event_type="claimed", lock_token=None, reason="lake")


def _claim_is_released_after_a_purge(log: EventRows) -> None:
    end = log.life("enqueued", "purged", nth=0)[-1]
    log.add(end, after=end, event_type="claim_released", reason="lake")


def _received_and_not_deleted(log: EventRows) -> None:
    log.remove(log.life(*COMPLETED, reason="receive-and-delete")[-1:])


def _received_and_released(log: EventRows) -> None:
    log.life(*COMPLETED, reason="receive-and-delete")[-1].update(event_type="released", reason=None)


def _delivered_twice_at_a_time(log: EventRows) -> None:
    _, delivered, _ = log.life(*COMPLETED)
    log.add(delivered, after=delivered)
    delivered["lock_token"] = "00" * 8


def _delivered_after_a_renewal(log: EventRows) -> None:
    _, delivered, renewed, end = log.life(*RENEWED, nth=0)
    until = renewed["event_time"] + LOCK
    log.add(delivered, after=renewed, lock_token="11" * 8, locked_until=until)
    end["lock_token"] = "11" * 8


def _completed_by_another_lock(log: EventRows) -> None:
    log.life(*COMPLETED)[-1]["lock_token"] = "00" * 8


def _completed_without_delivery(log: EventRows) -> None:
    log.remove([log.life(*COMPLETED)[1]])


def _completed_at_the_end_of_its_lock(log: EventRows) -> None:
    _, delivered, end = log.life(*COMPLETED, entity="orders")
    end["event_time"] = delivered["locked_until"]


def _renewed_after_its_lock(log: EventRows) -> None:
    _, delivered, renewed, end = log.life(*RENEWED, nth=0)
    at = delivered["locked_until"] + SECOND
    renewed.update(event_time=at, locked_until=at + LOCK)
    end["event_time"] = at + SECOND


def _lock_lapses_early(log: EventRows) -> None:
    log.life(*LAPSED, nth=0)[2]["event_time"] -= SECOND


def _lock_lapses_at_once(log: EventRows) -> None:
    _, delivered, lapsed, *_ = log.life(*LAPSED, nth=1)
    lapsed["event_time"] = delivered["event_time"]


def _lock_is_too_long(log: EventRows) -> None:
    log.life(*COMPLETED)[1]["locked_until"] += LOCK


def _renewed_lock_is_too_short(log: EventRows) -> None:
    log.life(*RENEWED, nth=0)[2]["locked_until"] -= SECOND


def _token_is_used_again(log: EventRows) -> None:
    life = log.life(*ABANDONED, nth=0)
    set_all(life[3:], lock_token=life[1]["lock_token"])


def _token_is_used_again_after_a_lapse(log: EventRows) -> None:
    life = log.life(*LAPSED, nth=0)
    set_all(life[2:], lock_token=life[1]["lock_token"])


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
    delivered, lapsed = log.life(*LAPSED, nth=0)[1:3]
    until = begin["event_time"] + LOCK
    count = begin["delivery_count"]
    held = log.add(delivered, after=begin, **of_life(begin), locked_until=until, delivery_count=count)
    log.add(lapsed, after=held, **of_life(begin), event_time=until, delivery_count=count + 1)


def _release_is_counted(log: EventRows) -> None:
    for row in log.life("enqueued", "delivered", "released", "delivered", "completed", nth=0)[2:]:
        row["delivery_count"] = 1


def _count_falls(log: EventRows) -> None:
    for row in log.life("enqueued", "delivered", "abandoned", "delivered", "completed", nth=0)[3:]:
        row["delivery_count"] = 0


def _dead_letter_forgets_its_count(log: EventRows) -> None:
    for row in log.last_of("orders/$deadletterqueue"):
        row["delivery_count"] += 1


def _delivered_once_too_often(log: EventRows) -> None:
    life = log.life(*EXHAUSTED, nth=0)
    delivered, abandoned = life[-3:-1]
    until = abandoned["event_time"] + LOCK
    log.add(delivered, after=abandoned, delivery_count=10, lock_token="11" * 8, locked_until=until)


def _limit_of_deliveries_is_passed_over(log: EventRows) -> None:
    log.settle("mails", max_delivery_count=1)


def _exhausted_message_stays(log: EventRows) -> None:
    end = log.life(*EXHAUSTED, nth=0)[-1]
    moved = (end["related_entity"], end["related_sequence_number"])
    log.remove([end, *(row for row in log.rows if (row["entity"], row["sequence_number"]) == moved)])


def _dead_lettered_by_a_count_that_it_has_not(log: EventRows) -> None:
    log.life(*DEAD_LETTERED, nth=0)[-1]["reason"] = "MaxDeliveryCountExceeded"


def _dead_lettered_before_its_last_delivery(log: EventRows) -> None:
    for entity in ("orders", "invoices", "mails", "clicks"):
        log.settle(entity, max_delivery_count=11)


def _scheduled_message_is_delivered(log: EventRows) -> None:
    delivered = log.life(*COMPLETED)[1]
    waiting = log.life("scheduled", "cancelled", nth=0)
    log.add(delivered, after=waiting[0], **of_life(waiting[0]))
    log.remove(waiting[1:])


def _active_message_is_cancelled(log: EventRows) -> None:
    log.life("enqueued", "purged", nth=0)[-1]["event_type"] = "cancelled"


def _deferred_message_is_active_again(log: EventRows) -> None:
    life = log.life("enqueued", "delivered", "deferred", "delivered", "completed", nth=0)
    set_all(life[3:], state_before="active")


def _active_message_is_completed_as_deferred(log: EventRows) -> None:
    log.life(*COMPLETED)[-1]["state_before"] = "deferred"


def _completed_before_its_delivery(log: EventRows) -> None:
    _, delivered, end = log.life(*COMPLETED)
    end["event_time"] = delivered["event_time"] - SECOND


def _delivered_before_its_arrival(log: EventRows) -> None:
    begin, delivered, _ = log.life(*DEAD_LETTERED, nth=0)
    at = begin["event_time"] - SECOND
    delivered.update(event_time=at, locked_until=at + LOCK)


def _size_changes(log: EventRows) -> None:
    log.life(*COMPLETED)[1]["size_bytes"] += 1


def _enqueued_time_changes(log: EventRows) -> None:
    log.life(*COMPLETED, entity="orders")[-1]["enqueued_time"] += SECOND


def _delivered_when_expired(log: EventRows) -> None:
    life = log.life(*COMPLETED, entity="orders")
    set_all(life, expires_at=life[1]["event_time"])


def _delivered_when_the_default_is_over(log: EventRows) -> None:
    log.settle("archive", default_ttl_ms=1)


def _expired_early(log: EventRows) -> None:
    life = log.life("enqueued", "expired", entity="invoices", nth=0)
    set_all(life, expires_at=life[-1]["event_time"] + SECOND)


def _message_without_a_time_to_live_expires(log: EventRows) -> None:
    _expire_in_archive(log)


def _expired_before_the_default(log: EventRows) -> None:
    log.settle("archive", default_ttl_ms=120_000)
    _expire_in_archive(log)


def _time_to_live_is_not_cut_to_the_default(log: EventRows) -> None:
    log.settle("mails", default_ttl_ms=1_800_000)


def _one_time_to_live_is_over_the_default(log: EventRows) -> None:
    log.settle("invoices", default_ttl_ms=3_600_000)
    life = next(
        life
        for life in (log.life(*COMPLETED, entity="invoices", nth=at) for at in range(1_000))
        if life[0]["expires_at"] is not None
    )
    set_all(life, expires_at=life[0]["expires_at"] + SECOND)


def _expired_message_is_removed(log: EventRows) -> None:
    end = log.life("enqueued", "expired", entity="orders", nth=0)[-1]
    moved = (end["related_entity"], end["related_sequence_number"])
    log.remove(row for row in log.rows if (row["entity"], row["sequence_number"]) == moved)
    end.update(related_entity=None, related_sequence_number=None)


def _expired_messages_are_removed_against_the_setting(log: EventRows) -> None:
    log.settle("invoices", dead_lettering_on_expiration=True)


def _activated_early(log: EventRows) -> None:
    end = log.life("scheduled", "activated", nth=0)[-1]
    end["scheduled_time"] = end["event_time"] + SECOND


def _activated_by_a_clock_ahead(log: EventRows) -> None:
    log.life("scheduled", "activated", nth=0)[-1]["event_time"] -= SECOND


def _delivered_while_claimed(log: EventRows) -> None:
    claimed = log.life("enqueued", "claimed", "completed", nth=0)
    delivered = log.life(*COMPLETED)[1]
    until = claimed[1]["event_time"] + LOCK
    log.add(delivered, after=claimed[1], **of_life(claimed[1]), locked_until=until)
    claimed[2].update(reason=None, lock_token=delivered["lock_token"])


def _committed_without_claim(log: EventRows) -> None:
    log.remove([log.life("enqueued", "claimed", "completed", nth=0)[1]])


def _expire_in_archive(log: EventRows) -> None:
    _, delivered, end = log.life(*COMPLETED, entity="archive", nth=0)
    delivered.update(event_type="expired", lock_token=None, locked_until=None)
    log.remove([end])


LIFE_FAULTS = dict(
    [
        fault(_lock_never_lapses, Check.LOCK_OVERDUE),
        fault(_renewed_lock_never_ends, Check.LOCK_OVERDUE),
        fault(_message_never_expires, Check.EXPIRY_OVERDUE),
        fault(_message_never_expires_by_the_default, Check.EXPIRY_OVERDUE),
        fault(_completed_twice, Check.DOUBLE_SETTLEMENT),
        fault(_completed_and_dead_lettered, Check.DOUBLE_SETTLEMENT),
        fault(_delivered_after_completion, Check.DELIVERED_AFTER_COMPLETION),
        fault(_delivered_again_much_later, Check.DELIVERED_AFTER_COMPLETION),
        fault(_delivered_after_purge, Check.DELIVERED_AFTER_END),
        fault(_delivered_after_its_dead_lettering, Check.DELIVERED_AFTER_END),
        fault(_claimed_after_completion, Check.CHANGED_AFTER_END),
        fault(_claim_is_released_after_a_purge, Check.CHANGED_AFTER_END),
        fault(_received_and_not_deleted, Check.DELETION_MISSING),
        fault(_received_and_released, Check.DELETION_MISSING),
        fault(_delivered_twice_at_a_time, Check.OVERLAPPING_LOCKS),
        fault(_delivered_after_a_renewal, Check.OVERLAPPING_LOCKS),
        fault(_completed_by_another_lock, Check.NO_LOCK),
        fault(_completed_without_delivery, Check.NO_LOCK),
        fault(_completed_at_the_end_of_its_lock, Check.LOCK_ENDED),
        fault(_renewed_after_its_lock, Check.LOCK_ENDED),
        fault(_lock_lapses_early, Check.LOCK_CUT_SHORT),
        fault(_lock_lapses_at_once, Check.LOCK_CUT_SHORT),
        fault(_lock_is_too_long, Check.WRONG_LOCK_DURATION),
        fault(_renewed_lock_is_too_short, Check.WRONG_LOCK_DURATION),
        fault(_token_is_used_again, Check.TOKEN_REUSED),
        fault(_token_is_used_again_after_a_lapse, Check.TOKEN_REUSED),
        fault(_purged_under_lock, Check.TAKEN_UNDER_LOCK),
        fault(_claimed_under_lock, Check.TAKEN_UNDER_LOCK),
        fault(_abandon_is_not_counted, Check.WRONG_COUNT),
        fault(_deferral_is_not_counted, Check.WRONG_COUNT),
        fault(_dead_letter_is_counted, Check.WRONG_COUNT),
        fault(_release_is_counted, Check.WRONG_COUNT),
        fault(_count_falls, Check.WRONG_COUNT),
        fault(_dead_letter_forgets_its_count, Check.WRONG_COUNT),
        fault(_delivered_once_too_often, Check.DELIVERED_TOO_OFTEN),
        fault(_limit_of_deliveries_is_passed_over, Check.DELIVERED_TOO_OFTEN),
        fault(_exhausted_message_stays, Check.DELIVERED_TOO_OFTEN),
        fault(_dead_lettered_by_a_count_that_it_has_not, Check.DEAD_LETTERED_EARLY),
        fault(_dead_lettered_before_its_last_delivery, Check.DEAD_LETTERED_EARLY),
        fault(_scheduled_message_is_delivered, Check.WRONG_STATE),
        fault(_active_message_is_cancelled, Check.WRONG_STATE),
        fault(_deferred_message_is_active_again, Check.WRONG_STATE_BEFORE),
        fault(_active_message_is_completed_as_deferred, Check.WRONG_STATE_BEFORE),
        fault(_completed_before_its_delivery, Check.TIME_BACK),
        fault(_delivered_before_its_arrival, Check.TIME_BACK),
        fault(_size_changes, Check.IDENTITY_CHANGED),
        fault(_enqueued_time_changes, Check.IDENTITY_CHANGED),
        fault(_delivered_when_expired, Check.DELIVERED_EXPIRED),
        fault(_delivered_when_the_default_is_over, Check.DELIVERED_EXPIRED),
        fault(_expired_early, Check.EXPIRED_EARLY),
        fault(_message_without_a_time_to_live_expires, Check.EXPIRED_EARLY),
        fault(_expired_before_the_default, Check.EXPIRED_EARLY),
        fault(_time_to_live_is_not_cut_to_the_default, Check.TTL_OVER_DEFAULT),
        fault(_one_time_to_live_is_over_the_default, Check.TTL_OVER_DEFAULT),
        fault(_expired_message_is_removed, Check.WRONG_EXPIRY),
        fault(_expired_messages_are_removed_against_the_setting, Check.WRONG_EXPIRY),
        fault(_activated_early, Check.ACTIVATED_EARLY),
        fault(_activated_by_a_clock_ahead, Check.ACTIVATED_EARLY),
        fault(_delivered_while_claimed, Check.CLAIM_BROKEN),
        fault(_committed_without_claim, Check.CLAIM_BROKEN),
    ]
)
