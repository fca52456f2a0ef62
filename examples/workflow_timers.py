"""Workflow timers: handle a message, save the state, schedule the next step, from minutes to months.

    python examples/workflow_timers.py [--for-real]

A new account goes through steps: the code of the second factor lapses after five minutes, the e-mail check
after an hour; a hint comes after a day, a report each week, a renewal after three months. The queue is the
timer: each step is a message scheduled for its time, so nothing runs meanwhile, and a restart loses nothing.

The next step is scheduled from the broker's time of this one (`enqueued_time_utc`), so that delays do not
add up. State is saved before the next step is scheduled, and that before the message is completed: whatever
fails in between is done again, and a step done twice is known by its message id.

Months pass in a moment, on a broker of our own whose clock is moved. With --for-real, they are months.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from datetime import datetime, timedelta

from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceivedMessage, ServiceBusSender
from common import known, own_queues, passing_time

STEPS = [
    ("sign-up", timedelta()),
    ("second factor lapses", timedelta(minutes=5)),
    ("e-mail check lapses", timedelta(hours=1)),
    ("first hint", timedelta(days=1)),
    ("weekly report", timedelta(weeks=1)),
    ("weekly report, again", timedelta(weeks=1)),
    ("renewal", timedelta(days=91)),
]
"""Each step, and how long after the one before it is due."""

ON_TIME = timedelta(seconds=10)
"""For the machine to be slow in, over all the months."""


class Workflow:
    """The finished steps of each account, with their times. A real program keeps a table."""

    def __init__(self) -> None:
        self.done: dict[str, list[datetime]] = {}

    def handle(self, message: ServiceBusReceivedMessage, sender: ServiceBusSender) -> None:
        """Do one step and schedule the next."""
        account, step = str(message), int(known(message.application_properties)[b"step"])
        now = known(message.enqueued_time_utc)
        done = self.done.setdefault(account, [])
        if len(done) > step:
            print(f"{account}: '{STEPS[step][0]}' was done already")
        else:
            done.append(now)  # the state is saved first
            print(f"{now:%d %b %H:%M}  {account}: {STEPS[step][0]}")
        if step + 1 < len(STEPS):
            sender.schedule_messages(step_message(account, step + 1), now + STEPS[step + 1][1])


def step_message(account: str, step: int) -> ServiceBusMessage:
    """Return the message of a step; its id is always the same."""
    return ServiceBusMessage(account, message_id=f"{account}/{step}", application_properties={"step": step})


def run(broker: str, queue: str, wait: Callable[[timedelta], None]) -> Workflow:
    """Take two accounts through all steps."""
    workflow = Workflow()
    with (
        ServiceBusClient.from_connection_string(broker) as client,
        client.get_queue_sender(queue) as sender,
        client.get_queue_receiver(queue) as receiver,
    ):
        sender.send_messages([step_message("ann", 0), step_message("bob", 0)])
        for _, due_after in STEPS:
            wait(due_after)
            for _ in range(2):
                (message,) = receiver.receive_messages(max_wait_time=10)
                workflow.handle(message, sender)
                receiver.complete_message(message)
    return workflow


def main() -> None:
    """Run the workflow, and check that each step came at its time."""
    parser = argparse.ArgumentParser(description="Timers from minutes to months.")
    parser.add_argument("--for-real", action="store_true", help="wait, on the broker of the environment")
    options = parser.parse_args()
    with passing_time(options.for_real) as (broker, wait), own_queues(broker, steps={}) as (queue,):
        workflow = run(broker, queue, wait)
    for account, done in workflow.done.items():
        assert len(done) == len(STEPS), f"{account} went through all steps"
        for (step, due_after), before, at in zip(STEPS[1:], done, done[1:], strict=False):
            assert timedelta() <= at - before - due_after < ON_TIME, (
                f"'{step}' came {at - before} after the step before it, not {due_after}"
            )


if __name__ == "__main__":
    main()
