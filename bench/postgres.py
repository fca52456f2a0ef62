"""`python -m bench.postgres URL`: a broker over PostgreSQL against one over SQLite.

Both run in turns. The URL names an empty database on a server with real fsync. The table has the median of
each figure, and that of the ratios of the rounds. The broker's CPU alone is counted; PostgreSQL's is not.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

from bench.disk import fsync_us
from bench.run import drive_queue, settle_options, warm_up
from bench.systems import Peeklock


def measured(broker: Peeklock, messages: int) -> dict[str, float]:
    """Return the figures of a warm broker."""
    sent = drive_queue(broker, "send", messages)
    received = drive_queue(broker, "recv", messages, *settle_options(broker))
    both = drive_queue(broker, "both", messages, *settle_options(broker))
    awaited = drive_queue(broker, "send", messages // 30, "-w", "1")
    drive_queue(broker, "recv", messages // 30, *settle_options(broker))
    return {
        "send, us of CPU": sent.broker_us,
        "receive + complete, us of CPU": received.broker_us,
        "end to end, us of CPU": both.broker_us,
        "send, msg/s": sent.send_rate,
        "receive + complete, msg/s": received.receive_rate,
        "end to end, msg/s": both.receive_rate,
        "1 awaiting sender, p50, us": awaited.latency_us["p50"],
    }


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--messages", type=int, default=30_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    found: dict[str, list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        brokers = [
            Peeklock(Path(folder, "sqlite"), ("bench",)),
            Peeklock(Path(folder, "postgres"), ("bench",), options=("--store", options.url)),
        ]
        try:
            for broker in brokers:
                broker.start()
                warm_up(broker, broker.warm_s)
            for _ in range(options.rounds):
                print(f"fsync of this disk: {fsync_us(Path(folder), pace_s=0):,.0f} us", flush=True)
                first, second = (measured(broker, options.messages) for broker in brokers)
                for name, value in first.items():
                    found.setdefault(name, []).append((value, second[name]))
        finally:
            for broker in brokers:
                broker.stop()
    print("| figure | SQLite | PostgreSQL | ratio |\n|---|---|---|---|")
    for name, pairs in found.items():
        sqlite, postgres = (statistics.median(each) for each in zip(*pairs, strict=True))
        ratio = statistics.median(second / first for first, second in pairs)
        print(f"| {name} | {sqlite:,.1f} | {postgres:,.1f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
