"""The account notices what is missing, doubled or misplaced."""

from __future__ import annotations

import pytest

from peeklock.demo.jobs import SHARES, Damaged, Job, Result, Trouble, make_jobs, work
from peeklock.demo.ledger import DEAD_LETTERED, Ledger


def _settled_ledger() -> Ledger:
    """Everything ended as it should."""
    ledger = Ledger.of(make_jobs(40, seed=3))
    for job in ledger.jobs.values():
        ledger.sent.add(job.id)
        reason = DEAD_LETTERED.get(job.trouble)
        if job.trouble is Trouble.WITHDRAWN:
            ledger.withdrawn.add(job.id)
            continue
        ledger.deliveries[job.id] += 1
        if reason is not None:
            ledger.dead[job.id] = [reason]
        else:
            ledger.results[job.id] = Result(1, 1)
            ledger.completed[job.id] += 1
    return ledger


def _one(ledger: Ledger, trouble: Trouble) -> Job:
    return next(job for job in ledger.jobs.values() if job.trouble is trouble)


def test_a_ledger_in_which_all_is_well_has_no_faults() -> None:
    assert _settled_ledger().faults() == []


def test_a_job_that_nobody_got_is_missing() -> None:
    ledger = _settled_ledger()
    job = _one(ledger, Trouble.NONE)
    del ledger.results[job.id], ledger.completed[job.id]
    assert ledger.faults() == [f"{job.id} (none): missing: no worker got it"]


def test_a_job_that_was_worked_on_and_not_completed_is_missing_unless_its_answer_was_lost() -> None:
    ledger = _settled_ledger()
    job = _one(ledger, Trouble.NONE)
    del ledger.completed[job.id]
    assert ledger.faults() == [f"{job.id} (none): missing: worked on and never completed"]
    ledger.unanswered.add(job.id)
    assert ledger.faults() == []


def test_a_job_that_was_completed_twice_is_doubled() -> None:
    ledger = _settled_ledger()
    job = _one(ledger, Trouble.SCHEDULED)
    ledger.completed[job.id] += 1
    assert [fault.split(": ")[1] for fault in ledger.faults()] == ["doubled"]


@pytest.mark.parametrize("trouble", DEAD_LETTERED)
def test_a_job_that_should_be_dead_lettered_is_so_once_and_for_its_reason(trouble: Trouble) -> None:
    for reasons in ([], ["another reason"], [DEAD_LETTERED[trouble]] * 2):
        ledger = _settled_ledger()
        ledger.dead[_one(ledger, trouble).id] = reasons
        assert len(ledger.faults()) == 1


def test_a_healthy_job_in_the_dead_letter_queue_is_misplaced() -> None:
    ledger = _settled_ledger()
    ledger.dead[_one(ledger, Trouble.STUMBLES).id] = ["MaxDeliveryCountExceeded"]
    assert len(ledger.faults()) == 1


def test_a_job_that_was_called_off_must_not_be_delivered() -> None:
    ledger = _settled_ledger()
    ledger.deliveries[_one(ledger, Trouble.WITHDRAWN).id] += 1
    assert len(ledger.faults()) == 1


def test_a_message_that_nobody_sent_is_told() -> None:
    ledger = _settled_ledger()
    ledger.deliveries["stranger"] += 1
    assert ledger.faults() == ["stranger: never sent"]


def test_jobs_depend_on_the_seed_alone_and_show_each_trouble() -> None:
    assert make_jobs(50, seed=1) == make_jobs(50, seed=1) != make_jobs(50, seed=2)
    assert {job.trouble for job in make_jobs(2 * len(SHARES), seed=1)} == set(Trouble)
    with pytest.raises(ValueError, match="too few"):
        make_jobs(2 * len(SHARES) - 1, seed=1)


def test_damaged_text_is_noticed_and_other_text_is_worked_on() -> None:
    for job in make_jobs(40, seed=1):
        if job.trouble is Trouble.DAMAGED:
            with pytest.raises(Damaged):
                work(job.text, job.digest)
        else:
            result = work(job.text, job.digest)
            assert result.words == len(job.text.split())
            assert 0 < result.compressed_bytes < len(job.text)
