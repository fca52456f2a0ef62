"""What people see of a job: how far it is, and what came out.

Owns: the progress line, the summary tables. Must not know: how figures are computed from events.

Progress is on standard error and only where that is a terminal; summaries go to standard output.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.measure import Measurement
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from types import TracebackType

    from pyspark.sql import DataFrame, SparkSession

LOOK_S = 0.2
ROWS_SHOWN = 30
WIDEST = 10_000
"""Columns of a console on which all tables fit."""


def counted(number: int, thing: str) -> str:
    """Return a number with what it counts, in the plural where that is due."""
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"


class StepProgress:
    """Shows what is looked at now, where standard error is a terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status = console.status("starting") if console.is_terminal else None

    def __enter__(self) -> StepProgress:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def step(self, text: str) -> None:
        """Say what is done from now on."""
        if self._status is not None:
            self._status.update(text)


class CountProgress:
    """Shows how many messages are done, where standard error is a terminal."""

    def __init__(self, console: Console, total: int | None) -> None:
        self._progress = Progress(
            SpinnerColumn(),
            BarColumn(),
            TextColumn("messages: {task.completed:,.0f}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._bar = self._progress.add_task("", total=total)

    def __enter__(self) -> CountProgress:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def reached(self, count: int) -> None:
        """Say how many are done."""
        self._progress.update(self._bar, completed=count)


class TaskProgress:
    """Shows the tasks of the Spark stages at work, while the context lasts."""

    def __init__(self, spark: SparkSession, console: Console) -> None:
        self._tracker = spark.sparkContext.statusTracker()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed}/{task.total} tasks"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        )
        self._shown = console.is_terminal

    def __enter__(self) -> TaskProgress:
        if self._shown:
            self._progress.start()
            self._thread = threading.Thread(target=self._look, daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()
            self._progress.stop()

    def _look(self) -> None:
        bar = self._progress.add_task("", total=None, visible=False)
        while not self._over.wait(LOOK_S):
            stages = [self._tracker.getStageInfo(stage) for stage in self._tracker.getActiveStageIds()]
            there = [stage for stage in stages if stage is not None]
            if there:
                self._progress.update(
                    bar,
                    description=f"stage {max(stage.stageId for stage in there)}",
                    completed=sum(stage.numCompletedTasks for stage in there),
                    total=sum(stage.numTasks for stage in there),
                    visible=True,
                )


def show_table(console: Console, title: str, frame: DataFrame) -> None:
    """Print the first rows of a small table, and say how many there are beyond."""
    rows = frame.limit(ROWS_SHOWN + 1).collect()
    print_table(console, title, frame.columns, rows[:ROWS_SHOWN])
    if len(rows) > ROWS_SHOWN:
        console.print(f"... and more: the table has {frame.count()} rows.", highlight=False)


def print_table(console: Console, title: str, names: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print rows as they are; where they are wider than the console, turned: a line for each figure.

    Turned, as many rows stand side by side as fit, and the others below them.
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
    """Make a column of each row, under the row's first value."""
    table = Table(title=title or None, title_justify="left")
    table.add_column(Text(headings[0]), no_wrap=True)
    for row in texts:
        table.add_column(Text(row[0]), justify="right", overflow="fold")
    for place, heading in enumerate(headings[1:], 1):
        table.add_row(Text(heading), *(Text(row[place]) for row in texts))
    return table


def _width(console: Console, table: Table) -> int:
    """Return the columns that a table takes if nothing in it is broken."""
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
