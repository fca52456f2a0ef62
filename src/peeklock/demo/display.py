"""The output of the demo: a bar and colours in a terminal, plain lines in a pipe."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from peeklock.demo.jobs import Trouble
from peeklock.demo.ledger import Ledger

FAULTS_SHOWN = 10

ENDS = {
    Trouble.NONE: "completed",
    Trouble.STUMBLES: "abandoned, then completed",
    Trouble.HANGS: "completed after its lock expired",
    Trouble.POSTPONED: "deferred, then completed",
    Trouble.SCHEDULED: "completed when it was due",
    Trouble.WITHDRAWN: "cancelled, never delivered",
    Trouble.DAMAGED: "dead-lettered by the worker",
    Trouble.FAILS: "dead-lettered by the broker",
}

NEXT = (
    ("peeklock serve --data ./data", "start a broker; it prints the connection string"),
    ("peeklock check ./data", "verify what a broker has stored"),
    ("docs/tutorials/spark.md", "queues as tables, the event log, the audit: Spark, step by step"),
    ("examples/", "short programs to start from; in the work tree, run ./run instead of peeklock"),
)


class Display:
    """Shows the progress."""

    def __init__(self, console: Console, total: int) -> None:
        self._console = console
        self._total = total
        self._quarter = 0
        self._bar = Progress(
            TextColumn("  {task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("jobs", total=total)

    def __enter__(self) -> Display:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def say(self, line: str) -> None:
        """Print one line."""
        self._console.print(line, highlight=False, soft_wrap=True)

    def progress(self, over: int) -> None:
        """Show the number of finished jobs."""
        self._bar.update(self._task, completed=over)
        quarter = 4 * over // self._total
        if not self._console.is_terminal and quarter > self._quarter:
            self._quarter = quarter
            self.say(f"  {over} of {self._total} jobs")


def show_result(console: Console, ledger: Ledger, seconds: float) -> None:
    """Print where the jobs ended, and what happened on the way."""
    table = Table(title="Where the jobs ended", title_justify="left", title_style="bold")
    for heading in ("trouble", "should end as"):
        table.add_column(heading)
    for heading in ("jobs", "ended so"):
        table.add_column(heading, justify="right")
    jobs = ledger.jobs.values()
    for trouble, end in ENDS.items():
        having = [job for job in jobs if job.trouble is trouble]
        right = sum(map(ledger.ended_right, having))
        style = "green" if right == len(having) else "bold red"
        table.add_row(trouble.value, end, str(len(having)), f"[{style}]{right}[/]")
    console.print(table)
    figures = ledger.figures
    deliveries = ledger.deliveries.total()
    words = sum(result.words for result in ledger.results.values())
    without = sum(len(job.text.split()) for job in jobs if job.id in ledger.results)
    again = deliveries - len(ledger.deliveries)
    for line in (
        f"{len(jobs)} jobs in {seconds:.1f} s; the workers counted {words} words, "
        f"a count without a queue {without}",
        f"{deliveries} deliveries, {again} of them repeated (delivery is at least once): "
        f"{figures['abandoned']} abandoned, {figures['left to expire']} locks left to expire, "
        "the rest by the kill",
        f"{figures['repeated']} sends repeated because of the kill; duplicates were dropped by message id",
        f"{figures['answers lost']} answers lost in the kill; {figures['done already']} finished jobs were "
        "delivered again, and only completed",
    ):
        console.print(f"  {line}", highlight=False, soft_wrap=True)


def show_verdict(console: Console, faults: Sequence[str]) -> None:
    """Print whether every job ended exactly once where it should."""
    if not faults:
        console.print("[bold green]Every job ended exactly once, where it should.[/] Try next:")
        for command, purpose in NEXT:
            console.print(f"  {command:30} {purpose}", highlight=False, soft_wrap=True)
        return
    console.print(f"[bold red]{len(faults)} jobs did not end where they should:[/]")
    for fault in faults[:FAULTS_SHOWN]:
        console.print(f"  {fault}", highlight=False, soft_wrap=True)
    if len(faults) > FAULTS_SHOWN:
        console.print(f"  and {len(faults) - FAULTS_SHOWN} more")
