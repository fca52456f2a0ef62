"""The programs in examples/ run, and print what they promise.

Each checks its own claims and fails when one does not hold; here they run as a user would run them, all at
once except those that measure time, and their output is checked.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.delay import delayed_path
from peeklock.demo.broker import BrokerProcess

EXAMPLES = Path(__file__).parents[2] / "examples"
ROUND_TRIP_S = 0.07
LINE = re.compile(r"^([a-z ]+): (\d+) sends in ([\d.]+) s, at most (\d+) in flight$", re.MULTILINE)

COMMANDS = (
    "before_midnight.py",
    "cancel_scheduled.py",
    "dead_letters.py",
    "expired_in_hand.py",
    "filter_errors.py",
    "job_scheduler.py --second-delivery ignore",
    "job_scheduler.py --second-delivery redo",
    "leftover_queues.py",
    "lock_duration.py",
    "processing_order.py",
    "publish_subscribe.py",
    "receive_and_delete.py",
    "reply_queue.py",
    "routing.py",
    "sessions.py",
    "short_time_to_live.py",
    "tickets.py",
    "time_limited_jobs.py",
    "unawaited_sends.py",
    "workflow_timers.py",
)


def _start(
    command: list[str], connection_string: str | None, trusted: Path | None = None
) -> subprocess.Popen[str]:
    environment = {
        name: value for name, value in os.environ.items() if name != "SERVICEBUS_CONNECTION_STRING"
    }
    if connection_string is not None:
        environment["SERVICEBUS_CONNECTION_STRING"] = connection_string
    if trusted is not None:
        environment["REQUESTS_CA_BUNDLE"] = str(trusted)
    return subprocess.Popen(
        [sys.executable, EXAMPLES / command[0], *command[1:]],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _finish(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=90)
    assert process.returncode == 0, output
    return output


class Runs:
    """Running examples, by command."""

    def __init__(self, connection_string: str, trusted: Path) -> None:
        self._arguments = (connection_string, trusted)
        self._processes: dict[str, subprocess.Popen[str]] = {}

    def start(self, command: str) -> None:
        """Start an example."""
        self._processes[command] = _start(command.split(), *self._arguments)

    def __getitem__(self, command: str) -> list[str]:
        """Wait for an example to succeed, and return the lines that it printed."""
        if command not in self._processes:
            self.start(command)
        return _finish(self._processes[command]).splitlines()

    def close(self) -> None:
        """End the examples that no test waited for."""
        for process in self._processes.values():
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


@pytest.fixture(scope="module")
def runs(broker: BrokerProcess, tls_pair: tuple[Path, Path]) -> Iterator[Runs]:
    """All the examples in `COMMANDS`, started together: they mostly wait.

    A process of xdist has only some of the tests, and starts each example when it is asked for.
    """
    started = Runs(broker.connection_string, tls_pair[0])
    if "PYTEST_XDIST_WORKER" not in os.environ:
        for command in COMMANDS:
            started.start(command)
    yield started
    started.close()


@pytest.mark.parametrize("form", ["aio", "sync"])
def test_three_loops_over_a_slow_path(broker: BrokerProcess, queue: str, form: str) -> None:
    """10 sends one by one take at least 10 round trips; 100 together well under a second; with a bound of 10,
    there are never more than 10 unsettled, and it takes at least 10 round trips for 100.

    Before the others, since it measures time.

    Req: T-05, T-04, O-01
    """
    with delayed_path(broker.amqp_port, ROUND_TRIP_S / 2) as port:
        far = broker.connection_string.replace(f":{broker.amqp_port};", f":{port};")
        output = _finish(_start(["three_loops.py", queue, "--api", form], far))
    found = {loop: (int(n), float(s), int(most)) for loop, n, s, most in LINE.findall(output)}
    count, seconds, most = found["one by one"]
    assert (count, most) == (10, 1)
    assert seconds >= 10 * ROUND_TRIP_S
    count, seconds, most = found["together"]
    assert count == 100
    assert (
        most > 50
    )  # threads start one after the other, and the first outcome may be there before the last send
    assert seconds < 1
    count, seconds, most = found["bounded"]
    assert (count, most) == (100, 10)
    assert seconds >= 10 * ROUND_TRIP_S


def test_every_example_is_run() -> None:
    run = {command.split()[0] for command in COMMANDS} | {"three_loops.py", "common.py"}
    assert run == {path.name for path in EXAMPLES.glob("*.py")}


def test_without_a_connection_string_an_example_says_what_to_do() -> None:
    process = _start(["tickets.py"], None)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 1
    assert output.startswith(
        "set SERVICEBUS_CONNECTION_STRING to the connection string that `peeklock serve`"
    )


@pytest.mark.parametrize(
    ("way", "answer", "times"),
    [
        ("ignore", "done already, only completed (delivery 2)", 1),
        ("redo", "done (delivery 2)", 2),
    ],
)
def test_a_job_that_comes_again_is_ignored_or_done_again(
    runs: Runs, way: str, answer: str, times: int
) -> None:
    """The slow job outlasts its lock.

    Req: L-15, L-11, O-01
    """
    lines = runs[f"job_scheduler.py --second-delivery {way}"]
    assert "invoice-1: the lock was lost, it will come again" in lines
    assert f"invoice-1: {answer}" in lines
    assert lines[-3:] == [
        f"invoice-1: done {times} times",
        "invoice-2: done 1 times",
        "invoice-3: done 1 times",
    ]


def test_unawaited_sends_cost_memory_and_messages(runs: Runs) -> None:
    """Req: T-08, O-01"""
    lines = "\n".join(runs["unawaited_sends.py"])
    assert "unawaited: all 500 sent, or so it seems\n" in lines
    assert re.search(r"^unawaited: [1-9]\d* refused, which nobody was told$", lines, re.MULTILINE)
    assert (
        "bounded: 495 sent, 5 refused: message-105, message-205, message-305, message-405, message-5\n"
        in lines
    )
    stored = re.search(r"^unawaited: (\d+) of 500 messages stored, ([\d.]+) MB held$", lines, re.MULTILINE)
    bounded = re.search(r"^bounded: 495 of 500 messages stored, ([\d.]+) MB held$", lines, re.MULTILINE)
    assert stored is not None
    assert bounded is not None
    assert int(stored[1]) < 495
    assert float(stored[2]) > 10 > 3 * float(bounded[1])  # 500 x 20 KB are 10 MB


def test_a_message_that_expires_in_hand_is_processed_or_abandoned(runs: Runs) -> None:
    """Req: E-03"""
    assert runs["expired_in_hand.py"] == [
        "tea: expired in hand, processed all the same",
        "coffee: expired in hand, abandoned",
        "coffee: in the dead-letter queue, because TTLExpiredException",
    ]


def test_time_limited_jobs_are_confirmed_or_mailed(runs: Runs) -> None:
    """Req: E-10, O-01"""
    lines = runs["time_limited_jobs.py"]
    jobs = {f"job-{number}" for number in range(1, 11)}
    confirmed = {line.removesuffix(": done") for line in lines if line.endswith(": done")}
    mailed = {line.removesuffix(": result mailed") for line in lines if line.endswith(": result mailed")}
    told = {
        line.split(":")[0] for line in lines if line.endswith(": takes longer, the result will be mailed")
    }
    assert confirmed | mailed == jobs
    assert not confirmed & mailed
    assert confirmed
    assert mailed == told


def test_what_is_submitted_before_midnight_is_in_time_whenever_it_is_processed(runs: Runs) -> None:
    """Req: S-04"""
    lines = runs["before_midnight.py"]
    judged = {line.split(":")[0]: line.rsplit(" ", 1)[1] for line in lines}
    in_time = dict.fromkeys(("Adams", "Baker", "Clark"), "accepted")
    assert judged == {**in_time, "Davis": "refused", "Evans": "refused"}


def test_tickets_are_first_come_first_served(runs: Runs) -> None:
    """Req: S-12, S-01"""
    lines = runs["tickets.py"]
    assert [line.split("number ")[1] for line in lines] == [
        f"{number}: seat {number}" if number <= 4 else f"{number}: sold out" for number in range(1, 10)
    ]


def test_sessions_give_an_order_of_processing(runs: Runs) -> None:
    """Req: S-12, G-01"""
    lines = runs["processing_order.py"]
    (without,) = [line for line in lines if line.startswith("without sessions, completed: [2, 3, 1, ")]
    assert sorted(map(int, re.findall(r"\d", without))) == [1, 2, 3, 4, 5]
    (with_sessions,) = [line for line in lines if line.startswith("with sessions, completed: [2, 3, ")]
    order = re.findall(r"\d", with_sessions)
    assert [number for number in order if number in "148"] == ["1", "4", "8"]
    assert [number for number in order if number in "236"] == ["2", "3", "6"]


def test_a_session_keeps_its_state_from_one_consumer_to_the_next(runs: Runs) -> None:
    """Req: G-01, G-02, G-03, G-04"""
    assert runs["sessions.py"] == [
        "ann: ['tea']",
        "ann: the lock is renewed",
        "ann: another consumer was refused",
        "bob: ['milk']",
        "bob: ['milk', 'salt']",
        "ann: the next consumer goes on",
        "ann: ['tea', 'bread']",
        "ann: ['tea', 'bread', 'jam']",
        "no session is left",
    ]


def test_workflow_timers_come_after_minutes_to_months(runs: Runs) -> None:
    """On a broker whose clock is moved.

    Req: S-13, S-07
    """
    lines = runs["workflow_timers.py"]
    steps = [line.split("ann: ")[1] for line in lines if "ann: " in line]
    assert steps == [
        "sign-up",
        "second factor lapses",
        "e-mail check lapses",
        "first hint",
        "weekly report",
        "weekly report, again",
        "renewal",
    ]
    assert [line.split("bob: ")[1] for line in lines if "bob: " in line] == steps


def test_queues_left_over_by_an_aborted_run_go_by_themselves(runs: Runs) -> None:
    """On a broker whose clock is moved.

    Req: A-03
    """
    assert runs["leftover_queues.py"] == [
        "a run found nothing and no message, sent three, and was aborted",
        "two minutes later:",
        "a run found the queue of the run before and no message, sent three, and was aborted",
        "six minutes later the queue is gone",
        "a run found nothing and no message, sent three, and was aborted",
    ]


def test_a_reply_queue_lives_as_long_as_its_process_listens(runs: Runs) -> None:
    """On a broker whose clock is moved.

    Req: A-03
    """
    lines = runs["reply_queue.py"]
    assert lines[1:] == [
        "the web process got: paid?: yes",
        "twenty minutes without a request later, it listens still",
        "the web process got: sent?: yes",
        "the web process is gone",
        "six minutes later its queue is gone too",
    ]


def test_dead_letters_are_mended_and_sent_again(runs: Runs) -> None:
    """Req: L-17, L-08, L-09"""
    assert runs["dead_letters.py"] == [
        "order-1: served 3 tea",
        "order-2: 'two tea', dead-lettered for NotAnOrder",
        "order-3: '1 coffee', dead-lettered for MaxDeliveryCountExceeded",
        "order-2: served 2 tea",
        "order-3: served 1 coffee",
    ]


def test_a_cancel_close_to_the_due_time_may_come_too_late(runs: Runs) -> None:
    """Req: S-09, S-06"""
    assert runs["cancel_scheduled.py"] == [
        "pay: cancelled an hour ahead",
        "call back: too late to cancel, the reminder is on its way",
        "call back: received, and not wanted any more: completed without a call",
    ]


def test_a_lock_a_bit_longer_than_the_usual_job(runs: Runs) -> None:
    """Req: O-01, L-03"""
    lines = runs["lock_duration.py"]
    assert lines[:2] == [
        "rare long job: begun, the lock is renewed meanwhile",
        "rare long job: done after 6 s",
    ]
    assert lines[2].startswith("job of a worker that hangs: done by the other worker, ")


def test_what_is_received_and_deleted_is_lost_with_its_worker(runs: Runs) -> None:
    """Req: O-01, L-01, L-13"""
    assert runs["receive_and_delete.py"] == [
        "receive-and-delete: the worker died, 0 of 10 readings are left",
        "peek-lock: the worker died, 10 of 10 orders are left",
    ]


def test_a_very_short_time_to_live_is_over_before_anybody_comes(runs: Runs) -> None:
    """Req: O-01, E-09"""
    lines = runs["short_time_to_live.py"]
    assert lines[:3] == [f"{name}: sent, no error" for name in ("10 ms", "1 min", "unlimited")]
    assert lines[3:] == ["1 min: received", "unlimited: received"]


def test_subscribers_have_what_their_rules_choose(runs: Runs) -> None:
    """Req: P-01, P-02, P-03"""
    assert runs["publish_subscribe.py"] == [
        "bar: 1 coffee, 400 coffee",
        "wholesale: 400 coffee, 300 tea",
        "latecomer: 1 water",
        "archive: 2 tea, 1 coffee, 400 coffee, 300 tea, 1 water",
    ]


def test_invoices_find_their_queues_by_what_they_are_about(runs: Runs) -> None:
    """Req: P-01, P-02, F-01, G-01"""
    assert runs["routing.py"] == [
        "small: invoice-1",
        "large, bob: invoice-2",
        "large, ann: invoice-3 (urgent)",
        "unclear: invoice-4",
    ]


def test_what_a_rule_cannot_judge_is_a_dead_letter_that_says_why(runs: Runs) -> None:
    """Req: P-04, P-03, L-17"""
    lines = runs["filter_errors.py"]
    assert lines[:2] == ["crane: piano", "dead letter: nothing, because FilterEvaluationException"]
    assert "'heavy'" in lines[2]
    assert lines[3:] == ["with the corrected rule, crane: piano"]
