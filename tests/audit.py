"""`python -m tests.audit [--drained DIR] [DIR ...]`: audit all event logs below each folder, in one run.

Owns: which folders are logs, and the Spark session for it. Must not know: what is checked. The simulation and
the kill loops each write a log below DIR; the kill loops also write what clients saw to DIR/ledgers.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from tests.failing import failed_line
from tests.spark_session import QUICK_JAVA

LEDGERS = "ledgers"
"""Folder of the clients' reports, as JSON lines."""


def find_logs(folder: Path) -> list[Path]:
    """Return the event logs anywhere below a folder."""
    return sorted({dated.parent for dated in folder.rglob("event_date=*") if dated.is_dir()})


def audit(spark: Any, folder: Path, *, drained: bool) -> int:
    """Audit all logs below a folder and print the verdict; return the exit status."""
    from peeklock.pipeline.audit.job import AuditOptions, run, show

    logs = find_logs(folder)
    if not logs:
        print(failed_line(f"audit of {folder}", "it has no event log"))
        return 2
    ledgers = folder / LEDGERS
    ledger = str(ledgers) if ledgers.is_dir() else None
    verdict = run(spark, AuditOptions(tuple(map(str, logs)), drained=drained, ledger=ledger))
    show(verdict, Console(width=160))
    for check, finding in sorted(verdict.findings.items()):
        print(f"{check.title} in {', '.join(sorted(finding.by_namespace))}")
    print(f"{len(logs)} logs in {folder}: {verdict.outcome}\n", flush=True)
    if verdict.exit_status:
        titles = ", ".join(check.title for check, _ in sorted(verdict.findings.items()))
        print(failed_line(f"audit of {folder}", f"{verdict.outcome}: {titles}"), flush=True)
    return verdict.exit_status


def main(arguments: list[str]) -> int:
    """Audit each folder in turn; return the highest exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.audit", description=__doc__)
    parser.add_argument("folders", type=Path, nargs="*")
    parser.add_argument(
        "--drained",
        type=Path,
        action="append",
        default=[],
        help="a folder of logs after whose end no message is left",
    )
    options = parser.parse_args(arguments)
    from peeklock.spark.session import spark_session

    spark = spark_session(
        "audit of tests",
        "local[2]",
        **{
            "spark.driver.extraJavaOptions": QUICK_JAVA,
            "spark.driver.memory": "1g",
            "spark.sql.adaptive.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
        },
    )
    try:
        return max(
            *(audit(spark, folder, drained=False) for folder in options.folders),
            *(audit(spark, folder, drained=True) for folder in options.drained),
            0,
        )
    finally:
        spark.stop()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
