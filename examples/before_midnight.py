"""Submitted before midnight, processed much later: what counts is when the broker stored the message.

    python examples/before_midnight.py [--midnight-in SECONDS]

Tenders are taken until midnight, and judged some time afterwards. Neither the bidder's clock nor the time
of processing counts, but `enqueued_time_utc`: the broker's own time when it stored the message. It never
goes backwards, so an earlier message in the queue is not later.

Our midnight comes in two seconds unless told otherwise. It is by the broker's clock: if that is another
machine's, both have to be set well.
"""

from __future__ import annotations

import argparse
import time
from datetime import UTC, datetime, timedelta

from azure.servicebus import ServiceBusClient, ServiceBusMessage
from common import connection_string, known, own_queues

IN_TIME = ["Adams", "Baker", "Clark"]
TOO_LATE = ["Davis", "Evans"]


def main() -> None:
    """Take tenders around midnight, and judge them later."""
    parser = argparse.ArgumentParser(description="Judge by the time of arrival.")
    parser.add_argument("--midnight-in", type=float, default=2.0, metavar="SECONDS")
    options = parser.parse_args()
    broker = connection_string()
    with (
        own_queues(broker, tenders={}) as (queue,),
        ServiceBusClient.from_connection_string(broker) as client,
    ):
        with client.get_queue_sender(queue) as sender:
            midnight = datetime.now(UTC) + timedelta(seconds=options.midnight_in)
            sender.send_messages([ServiceBusMessage(bidder) for bidder in IN_TIME])
            time.sleep(max(0.0, (midnight - datetime.now(UTC)).total_seconds()) + 0.1)
            sender.send_messages([ServiceBusMessage(bidder) for bidder in TOO_LATE])
        time.sleep(1)  # the office opens
        judged_at = datetime.now(UTC)
        accepted: list[str] = []
        refused: list[str] = []
        stamps: list[datetime] = []
        with client.get_queue_receiver(queue) as receiver:
            while len(stamps) < len(IN_TIME) + len(TOO_LATE):
                for tender in receiver.receive_messages(max_message_count=5, max_wait_time=10):
                    arrived = known(tender.enqueued_time_utc)
                    in_time = arrived < midnight
                    (accepted if in_time else refused).append(str(tender))
                    stamps.append(arrived)
                    seconds = abs((arrived - midnight).total_seconds())
                    print(
                        f"{tender}: {seconds:.1f} s {'before' if in_time else 'after'} midnight, "
                        f"judged {(judged_at - arrived).total_seconds():.1f} s after arrival: "
                        f"{'accepted' if in_time else 'refused'}"
                    )
                    receiver.complete_message(tender)
    assert judged_at > midnight, "all were judged after midnight"
    assert (accepted, refused) == (IN_TIME, TOO_LATE), "the time of arrival decides"
    assert stamps == sorted(stamps), "the broker's time never goes backwards"


if __name__ == "__main__":
    main()
