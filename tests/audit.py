"""`python -m tests.audit DIR`: audit all event logs in a folder at once; exit status as `peeklock pipeline audit`.

Owns: which folders are logs, and the Spark session for it. Must not know: what is checked. The simulation and
the kill loops write a folder each below DIR, with a ledger of what clients saw where they keep one.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console

LEDGER = "ledger.jsonl"
"""Name of the file in a log's folder that says what clients saw."""


def find_logs(folder: Path) -> list[Path]:
    """Give the event logs anywhere below a folder."""
    return sorted({dated.parent for dated in folder.rglob("event_date=*") if dated.is_dir()})


def main(arguments: list[str]) -> int:
    """Audit and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.audit", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--drained", action="store_true", help="nothing is left in any entity")
    parser.add_argument("--report", help="write the verdict as JSON too")
    options = parser.parse_args(arguments)
    logs = find_logs(options.folder)
    if not logs:
        print(f"no event log below {options.folder}")
        return 2
    from peeklock.pipeline.audit import Options, run, show
    from peeklock.spark.session import spark_session

    spark = spark_session(
        "audit of tests",
        "local[2]",
        **{
            "spark.driver.extraJavaOptions": "-XX:+UseSerialGC",
            "spark.driver.memory": "1g",
            "spark.sql.adaptive.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
        },
    )
    try:
        verdict = run(spark, Options(tuple(map(str, logs)), drained=options.drained, report=options.report))
    finally:
        spark.stop()
    show(verdict, Console(width=160))
    for check, finding in sorted(verdict.findings.items()):
        print(f"{check.title} in {', '.join(sorted(finding.by_namespace))}")
    print(f"{len(logs)} logs: {verdict.outcome}")
    return verdict.exit_status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
