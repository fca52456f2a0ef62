"""`python -m tests.interop.compare A B [CLIENT...]`: run the clients against two endpoints, and compare.

Owns: which features can be compared, and what is shown. An endpoint is a connection string, or `fresh` for a
broker process that starts for each client. Must not know: how a program is built or run.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from tests.interop.__main__ import MARKS, build_all, choose
from tests.interop.builds import Client, clients, features
from tests.interop.program import Outcome
from tests.interop.trials import Trials

FRESH = "fresh"

Outcomes = dict[tuple[str, str], Outcome]
"""By client and feature."""


def comparable(console: Console, chosen: list[Client]) -> dict[Client, list[str]]:
    """Return the features by client that any Service Bus can show, and print what is left out."""
    for feature in features().values():
        if feature.own:
            console.print(f"left out: {feature.name}: {feature.own}", highlight=False)
    for client in chosen:
        if client.own:
            console.print(f"left out: {client.name}: {client.own}", highlight=False)
    return {
        client: [name for name in client.tried if not features()[name].own]
        for client in chosen
        if not client.own
    }


def run(wanted: dict[Client, list[str]], endpoint: str) -> Outcomes:
    """Try the features against an endpoint; an error that stops a client is a failure of each feature."""
    elsewhere = "" if endpoint == FRESH else endpoint
    found: Outcomes = {}
    with (
        tempfile.TemporaryDirectory(prefix="peeklock-compare-") as folder,
        Trials(wanted, Path(folder), elsewhere) as trials,
    ):
        for key, future in trials.outcomes.items():
            try:
                found[key] = future.result()
            except Exception as error:  # BuildFailed, BrokerFailed
                found[key] = Outcome("failed", str(error))
    return found


def agree(first: Outcome, second: Outcome) -> bool:
    """Return whether two outcomes agree. A failure agrees with nothing, since it shows nothing."""
    return first == second and first.status != "failed"


def show(console: Console, first: Outcomes, second: Outcomes) -> int:
    """Print the table, and in full where the outcomes differ; return how many do."""
    table = Table(box=box.SIMPLE, pad_edge=False, padding=(0, 1, 0, 0))
    for title in ("client", "feature", "A", "B", ""):
        table.add_column(title, no_wrap=True)
    differing = [key for key in first if not agree(first[key], second[key])]
    for name, feature in first:
        pair = first[name, feature], second[name, feature]
        marks = (MARKS[outcome.status] for outcome in pair)
        table.add_row(name, feature, *marks, "[red]<" if (name, feature) in differing else "")
    console.print(table)
    for name, feature in differing:
        for title, outcomes in (("A", first), ("B", second)):
            console.print(
                f"{name} {feature} {title} {outcomes[name, feature]}",
                markup=False,
                highlight=False,
                soft_wrap=True,
            )
    console.print(f"{len(first) - len(differing)} outcomes agree, {len(differing)} differ", highlight=False)
    return len(differing)


def endpoint_of(text: str) -> str:
    """Return the endpoint in an argument. Raises: ArgumentTypeError: it names none."""
    if text != FRESH and not text.startswith("Endpoint=sb://"):
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither {FRESH!r} nor a connection string (Endpoint=sb://HOST;SharedAccessKeyName=...)"
        )
    return text


def main(arguments: list[str]) -> int:
    """Run the clients against both endpoints; return 1 where an outcome differs or one failed."""
    parser = argparse.ArgumentParser(
        prog="./run compare",
        description="Run the clients' programs against two endpoints, and compare the outcomes. "
        f"An endpoint is a connection string, or {FRESH!r} for a new broker process.",
        epilog="example: ./run compare fresh 'Endpoint=sb://NAME.servicebus.windows.net;SharedAccessKeyName=RULE;"
        "SharedAccessKey=KEY' python-sync. The rule needs Manage. The programs create and delete their own "
        "entities. Lines with differences end with <.",
    )
    parser.add_argument("first", metavar="A", type=endpoint_of, help="an endpoint")
    parser.add_argument("second", metavar="B", type=endpoint_of, help="another one")
    parser.add_argument("clients", nargs="*", metavar="CLIENT", help=f"some of: {', '.join(clients())}")
    options = parser.parse_args(arguments)
    console = Console()
    wanted = comparable(console, choose(console, options.clients))
    for failure in build_all(console, list(wanted)):
        raise SystemExit(failure)
    outcomes = [run(wanted, endpoint) for endpoint in (options.first, options.second)]
    return int(show(console, *outcomes) > 0)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
