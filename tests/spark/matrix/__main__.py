"""`python -m tests.spark.matrix [VERSION...]`: run the matrix, or the rows of some versions (`4.2`).

It writes each row to docs/matrix.json and at the end docs/reference/matrix.md. The exit status is 1 if a
message was lost or came twice, or if a Spark does not write Parquet, which needs no jar.
"""

from __future__ import annotations

import argparse
import os
import sys
import time

from docs.matrix import PAGE
from tests.kill.ledger import Broken
from tests.spark.matrix import results
from tests.spark.matrix.environments import (
    FOLDER,
    OLDEST,
    PARQUET,
    TABLES,
    NotInstalled,
    Table,
    jars_of,
    python_of,
)
from tests.spark.matrix.row import FINE, run_row


def main(arguments: list[str]) -> int:
    """Run rows; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.spark.matrix",
        description="Run the data source on each Spark, into each table format, and kill its drivers.",
    )
    parser.add_argument("versions", nargs="*", metavar="VERSION", help="such as 4.2; default: all")
    parser.add_argument("--oldest", action="store_true", help="the oldest Spark into Parquet, and no results")
    options = parser.parse_args(arguments)
    # Each of Spark's Python processes would compile all modules again, and some have 10 s to start.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    if options.oldest:
        return int(not _run(OLDEST, Table(PARQUET), keep=False))
    chosen = [
        spark
        for spark in TABLES
        if not options.versions or any(f"{spark}.".startswith(f"{one}.") for one in options.versions)
    ]
    if not chosen:
        parser.error(f"the versions are {', '.join(TABLES)}")
    good = [_run(spark, table, keep=True) for spark in chosen for table in TABLES[spark]]
    PAGE.main([])
    return int(not all(good))


def _run(spark: str, table: Table, *, keep: bool) -> bool:
    """Run one row, print it, and say whether it is as it must be."""
    started = time.monotonic()
    name = f"Spark {spark}, {table.format}"
    print(f"{name} ...", flush=True)  # `tests.__main__` takes silence for a hang
    try:
        python = python_of(spark)
        ready_s = time.monotonic() - started
        cells, kills = run_row(python, table, jars_of(table))
    except (Broken, NotInstalled) as failure:
        print(f"{name}: FAILED after {time.monotonic() - started:.1f} s: {failure}", flush=True)
        return False
    for work, cell in cells.items():
        print(f"  {work}: {cell}")
    took_s = time.monotonic() - started
    print(f"{name}: {took_s:.1f} s, {ready_s:.1f} s for {FOLDER.name}, {kills} drivers killed", flush=True)
    if keep:
        results.write(results.Result(spark, table.format, [*table.jars], cells, kills))
    return table.format != PARQUET or all(cell == FINE for cell in cells.values())


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
