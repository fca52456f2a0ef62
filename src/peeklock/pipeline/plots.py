"""Plots of the jobs' tables: time in queue and depth, or dead letters, over time. PNG, without a display."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812  # the name that all of Spark's documentation has

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ENTITIES_SHOWN = 6
STEPS = 120
"""Steps of a short run: with minutes alone a run of one minute would be a dot."""
POINTS_SHOWN = 2_000
"""Points of a line: about as many as the plot has columns."""


def steps_of_lives(lives: DataFrame) -> DataFrame:
    """Return the rows of `draw_queues`, per entity and step of time, from a table of lives.

    A step is a minute, or less in a run of less than two hours.
    """
    first, last = lives.agg(
        F.min(F.unix_seconds("enqueued_at")),
        F.max(F.unix_seconds(F.coalesce("ended_at", "first_delivered_at", "enqueued_at"))),
    ).collect()[0]
    step_s = min(60, max(1, ((last or 0) - (first or 0)) // STEPS))

    def step(name: str) -> Column:
        return F.timestamp_seconds(F.floor(F.unix_seconds(name) / step_s) * step_s).alias("at")

    moves = (
        lives.select("entity", step("enqueued_at"), F.lit(1).alias("by"))
        .unionByName(
            lives.where(F.col("ended_at").isNotNull()).select(
                "entity", step("ended_at"), F.lit(-1).alias("by")
            )
        )
        .groupBy("entity", "at")
        .agg(F.sum("by").alias("by"), F.sum(F.when(F.col("by") > 0, 1).otherwise(0)).alias("sent"))
    )
    passed = Window.partitionBy("entity").orderBy("at").rowsBetween(Window.unboundedPreceding, 0)
    depth = moves.withColumn("depth", F.sum("by").over(passed))
    waits = (
        lives.where(F.col("time_in_queue_ms").isNotNull())
        .groupBy("entity", step("first_delivered_at"))
        .agg(F.percentile_approx("time_in_queue_ms", [0.5, 0.99], 1_000).alias("shares"))
    )
    return depth.join(waits, ["entity", "at"], "left").select(
        "entity",
        "at",
        "sent",
        "depth",
        F.col("shares")[0].alias("time_in_queue_ms_p50"),
        F.col("shares")[1].alias("time_in_queue_ms_p99"),
    )


def draw_minutes(minutes: DataFrame, path: Path) -> None:
    """Draw a table of figures per minute."""
    draw_queues(minutes.withColumnRenamed("minute", "at"), path)


def draw_queues(steps: DataFrame, path: Path) -> None:
    """Draw time in queue (median and 99 of 100) and depth of the busiest entities over time."""
    from matplotlib.ticker import LogLocator

    busiest = [
        row.entity
        for row in steps.where(F.col("time_in_queue_ms_p50").isNotNull())
        .groupBy("entity")
        .agg(F.sum("sent").alias("sent"))
        .orderBy(F.desc("sent"), "entity")
        .limit(ENTITIES_SHOWN)
        .collect()
    ]
    lines: dict[str, list[Any]] = defaultdict(list)
    wanted = steps.where(F.col("entity").isin(busiest)).select(
        "entity", "at", "depth", "time_in_queue_ms_p50", "time_in_queue_ms_p99"
    )
    for row in wanted.orderBy("at").collect():
        lines[row.entity].append(row)
    figure, (upper, lower) = _figure(2)
    for place, entity in enumerate(busiest):
        points = lines[entity][:: max(1, len(lines[entity]) // POINTS_SHOWN)]
        at = [point.at for point in points]
        median = [_seconds(point.time_in_queue_ms_p50) for point in points]
        slow = [_seconds(point.time_in_queue_ms_p99) for point in points]
        depth = [point.depth for point in points]
        upper.plot(at, median, color=f"C{place}", label=entity, **_dots(median))
        upper.plot(at, slow, color=f"C{place}", linestyle=":", linewidth=1, **_dots(slow))
        lower.plot(at, depth, color=f"C{place}", **_dots(depth))
    upper.set_yscale("log", subs=[])
    upper.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    upper.yaxis.set_major_formatter("{x:g}")
    upper.yaxis.set_minor_formatter("")
    upper.set_ylabel("time in queue, s")
    upper.set_title("Time from arrival to first delivery: median, and 99 of 100 (dotted)", loc="left")
    lower.set_ylabel("messages")
    lower.set_ylim(bottom=0)
    lower.set_title("Messages in the queue", loc="left")
    _finish(figure, [upper, lower], path)


def draw_dead_letters(dead_letters: DataFrame, path: Path) -> None:
    """Draw the dead letters of each minute, by reason."""
    at = "dead_lettered_at" if "dead_lettered_at" in dead_letters.columns else "enqueued_at"
    rows = (
        dead_letters.groupBy("reason", F.date_trunc("minute", at).alias("minute"))
        .agg(F.count("*").alias("messages"))
        .orderBy("minute")
        .collect()
    )
    lines: dict[str, list[Any]] = defaultdict(list)
    for row in rows:
        lines[row.reason].append(row)
    most = sorted(lines, key=lambda reason: -sum(row.messages for row in lines[reason]))[:ENTITIES_SHOWN]
    figure, (panel,) = _figure(1)
    for reason in most:
        minutes = [row.minute for row in lines[reason]]
        messages = [row.messages for row in lines[reason]]
        panel.plot(minutes, messages, label=reason, **_dots(messages))
    panel.set_ylabel("messages a minute")
    panel.set_ylim(bottom=0)
    panel.set_title("Dead letters by reason", loc="left")
    _finish(figure, [panel], path)


def _figure(panels: int) -> tuple[Any, Any]:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(panels, 1, figsize=(11, 3.5 * panels), sharex=True, squeeze=False)
    return figure, axes[:, 0]


def _finish(figure: Any, panels: list[Any], path: Path) -> None:
    from matplotlib import pyplot

    for panel in panels:
        panel.grid(alpha=0.3)
        panel.spines[["top", "right"]].set_visible(False)
    if panels[0].get_legend_handles_labels()[0]:
        panels[0].legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
    panels[-1].set_xlabel("UTC")
    figure.autofmt_xdate()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120, bbox_inches="tight")
    pyplot.close(figure)


def _seconds(ms: int | None) -> float | None:
    return None if ms is None else max(ms, 1) / 1000


def _dots(values: Sequence[float | None]) -> dict[str, Any]:
    """Return the markers of points without a neighbour: a line of one point is invisible."""
    there = [False, *(value is not None for value in values), False]
    alone = [place - 1 for place in range(1, len(there) - 1) if there[place - 1 : place + 2] == [0, 1, 0]]
    return {"marker": "o", "markersize": 4, "markevery": alone} if alone else {}
