"""Output of the jobs: progress on standard error where that is a terminal, tables on standard output."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.measure import Measurement
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from peeklock.spark.session import is_remote

if TYPE_CHECKING:
    from pyspark import StatusTracker
    from pyspark.sql import DataFrame, SparkSession

ERRORS = Console(stderr=True)
POLL_S = 0.2
ROWS_SHOWN = 30
WIDEST = 10_000
"""Width of a console that fits all tables."""


def tell(text: str) -> None:
    """Print a line on standard error."""
    ERRORS.print(text, highlight=False, markup=False, soft_wrap=True)


def counted(number: int, thing: str) -> str:
    """Return a number with the thing it counts, in the plural where needed."""
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"


@contextmanager
def step_progress() -> Iterator[Callable[[str], None]]:
    """Show the current step; yield the function that sets it."""
    if not ERRORS.is_terminal:
        yield lambda text: None
        return
    with ERRORS.status("starting") as status:
        yield status.update


@contextmanager
def count_progress(total: int | None) -> Iterator[Callable[[int], None]]:
    """Show how many messages are done; yield the function that sets it."""
    with _progress(BarColumn(), TextColumn("messages: {task.completed:,.0f}")) as progress:
        bar = progress.add_task("", total=total)
        yield lambda count: progress.update(bar, completed=count)


@contextmanager
def task_progress(spark: SparkSession) -> Iterator[None]:
    """Show the tasks of the running Spark stages."""
    if not ERRORS.is_terminal or is_remote(spark):  # the stages are in the server's Java
        yield
        return
    over = threading.Event()
    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total} tasks")
    with _progress(*columns) as progress:
        tracker = spark.sparkContext.statusTracker()
        thread = threading.Thread(target=_follow_stages, args=(tracker, progress, over), daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def _progress(*columns: ProgressColumn) -> Progress:
    return Progress(
        SpinnerColumn(),
        *columns,
        TimeElapsedColumn(),
        console=ERRORS,
        transient=True,
        disable=not ERRORS.is_terminal,
    )


def _follow_stages(tracker: StatusTracker, progress: Progress, over: threading.Event) -> None:
    bar = progress.add_task("", total=None, visible=False)
    while not over.wait(POLL_S):
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        active = [stage for stage in stages if stage is not None]
        if active:
            progress.update(
                bar,
                description=f"stage {max(stage.stageId for stage in active)}",
                completed=sum(stage.numCompletedTasks for stage in active),
                total=sum(stage.numTasks for stage in active),
                visible=True,
            )


def show_table(console: Console, title: str, frame: DataFrame) -> None:
    """Print the first rows of a table, and how many there are if it has more."""
    rows = frame.limit(ROWS_SHOWN + 1).collect()
    print_table(console, title, frame.columns, rows[:ROWS_SHOWN])
    if len(rows) > ROWS_SHOWN:
        console.print(f"... and more: the table has {frame.count()} rows.", highlight=False)


def print_table(console: Console, title: str, names: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print rows as a table; where it is wider than the console, turned: a line for each figure.

    A turned table has as many rows side by side as fit; further tables have the others.
    """
    headings = [name.replace("_", " ") for name in names]
    numeric = [any(isinstance(row[place], int | float) for row in rows) for place in range(len(names))]
    texts = [[_text(value) for value in row] for row in rows]
    table = _table(title, headings, numeric, texts)
    if _width(console, table) <= console.width:
        console.print(table)
        return
    left = texts
    while left:
        table, count = _turned(title, headings, left[:1]), 1
        while count < len(left):
            wider = _turned(title, headings, left[: count + 1])
            if _width(console, wider) > console.width:
                break
            table, count = wider, count + 1
        console.print(table)
        left, title = left[count:], ""


def _table(title: str, headings: list[str], numeric: list[bool], texts: list[list[str]]) -> Table:
    table = Table(title=title, title_justify="left")
    for heading, right in zip(headings, numeric, strict=True):
        table.add_column(Text(heading), justify="right" if right else "left", overflow="fold")
    for row in texts:
        table.add_row(*map(Text, row))
    return table


def _turned(title: str, headings: list[str], texts: list[list[str]]) -> Table:
    """Return a table with a column for each row, headed by the row's first value."""
    table = Table(title=title or None, title_justify="left")
    table.add_column(Text(headings[0]), no_wrap=True)
    for row in texts:
        table.add_column(Text(row[0]), justify="right", overflow="fold")
    for place, heading in enumerate(headings[1:], 1):
        table.add_row(Text(heading), *(Text(row[place]) for row in texts))
    return table


def _width(console: Console, table: Table) -> int:
    """Return the width of a table without line breaks."""
    return Measurement.get(console, console.options.update(max_width=WIDEST), table).maximum


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.1f}"
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(_text(one) for one in value)
    return str(value)


def show_cursors(console: Console, entity: str, cursors: list[dict[str, Any]], now_ms: int) -> None:
    """Print a table of cursors, as the broker lists them."""
    if not cursors:
        console.print(f"{entity} has no cursors.", highlight=False, soft_wrap=True)
        return
    names = ("cursor", "owner", "last_used", "claims", "messages", "backlog", "oldest")
    rows = []
    for each in cursors:
        owner = each["owner"] or "none"
        oldest_ms = each["oldest-enqueued"]
        rows.append(
            (
                each["cursor"],
                owner if each["has-read"] else f"{owner} (has not read)",
                _age(now_ms - each["last-used"]) + " ago",
                len(each["claims"]),
                sum(count for _, count, _ in each["claims"]),
                int(each["backlog"]),
                "" if oldest_ms is None else _age(now_ms - oldest_ms),
            )
        )
    print_table(console, f"Cursors of {entity}", names, rows)


def _age(ms: int) -> str:
    """Return a span of time in its largest unit that fits twice."""
    seconds = max(0, ms) // 1000
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"
