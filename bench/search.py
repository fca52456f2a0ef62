"""`python -m bench.search`: the rate of searches by peeks, against a bare peek through the same client.

Owns: one queue in a broker process, read to its end by each kind of search in turn, and the memory that this
process has gained. Must not know: how a search judges. The rounds of all kinds alternate, so that what else
the machine does hits each of them; the best round counts. The aim is a ratio of 0.6.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from peeklock.client import BlockingConnection, ConnectionString, Properties, encode_message
from peeklock.client.browsing import Browser
from peeklock.demo.broker import BrokerProcess
from peeklock.search import Criteria, Search

RATIO_MIN = 0.6
ROUNDS = 3
QUEUE = "searched"

KINDS = {
    "filter": Criteria(filter="sys.Label = 'none' OR n < 0"),
    "text": Criteria(text="not there"),
    "regex": Criteria(regex="no[t]+ there"),
    "json path": Criteria(json_path="$.order.total > 100000000"),
    "session": Criteria(session_id="none"),
    "numbers": Criteria(to_number=0),
}


def fill(connection: BlockingConnection, count: int) -> None:
    """Send messages of some 400 bytes, half of them JSON."""
    sender = connection.sender(QUEUE)
    for number in range(count):
        items = [{"sku": f"A{number % 7}", "n": each} for each in range(8)]
        body = json.dumps({"order": {"total": number, "items": items}}).encode()
        sender.send(
            encode_message(
                properties=Properties(message_id=f"order-{number}", subject="order"),
                application_properties={"n": number, "region": "north"},
                data=body,
            )
        )
    sender.flush()
    sender.close()


def timed(read: Callable[[], int], count: int) -> float:
    """Return the messages a second of reading the queue to its end."""
    started = time.perf_counter()
    assert read() == count
    return count / (time.perf_counter() - started)


def main() -> None:
    """Print a rate and a ratio for each kind of search; fail if one is below the aim."""
    parser = argparse.ArgumentParser(prog="python -m bench.search", description="Rates of searches by peeks.")
    parser.add_argument("--messages", type=int, default=50_000, metavar="N")
    count = parser.parse_args().messages
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "Config.json")
        queues = {"Name": "sbemulatorns", "Queues": [{"Name": QUEUE}], "Topics": []}
        config.write_text(json.dumps({"UserConfig": {"Namespaces": [queues]}}))
        with BrokerProcess(Path(folder), ["--durability=os", f"--config={config}"]) as broker:
            connection = BlockingConnection(ConnectionString.parse(broker.connection_string))
            fill(connection, count)
            browser = Browser(connection, QUEUE)

            def bare() -> int:
                return sum(map(len, browser.read()))

            def searching(search: Search) -> Callable[[], int]:
                def read() -> int:
                    seen = 0
                    for messages in browser.read():
                        assert not [*search.among(messages)]
                        seen += len(messages)
                    return seen

                return read

            kinds = {"bare": bare, **{name: searching(Search.compile(one)) for name, one in KINDS.items()}}
            bare()
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            best = dict.fromkeys(kinds, 0.0)
            for _ in range(ROUNDS):
                for name, read in kinds.items():
                    best[name] = max(best[name], timed(read, count))
            gained = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
            connection.close()
    ratios = {name: rate / best["bare"] for name, rate in best.items()}
    for name, rate in best.items():
        print(f"{name:10} {rate:10,.0f} messages/s  {ratios[name]:.2f}")
    print(f"memory gained over {ROUNDS} rounds of {count:,} messages: {gained / 1024:.1f} MiB")
    sys.exit(min(ratios.values()) < RATIO_MIN)


if __name__ == "__main__":
    main()
