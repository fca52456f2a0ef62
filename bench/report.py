"""Writes the results: a table for people, JSON for programs, a plot for the README."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bench.machine import machine
from bench.regressions import is_cpu
from bench.results import Results, Row

FOLDER = Path(__file__).with_name("results")

PEERS = {"Artemis": "Artemis", "RabbitMQ quorum": "quorum"}
"""Systems that ours are divided by, and their column titles."""


def write(results: Results, systems: list[str], quick: bool, stem: str) -> Path:
    """Write `<stem>.md`, `.json` and, where matplotlib is installed, `.png`; return the table's path."""
    FOLDER.mkdir(exist_ok=True)
    table = FOLDER / f"{stem}.md"
    about = machine()
    rows = list(results.rows.values())
    table.write_text(markdown(rows, systems, results.left_out, about, quick))
    table.with_suffix(".json").write_text(
        json.dumps(
            {"machine": about, "quick": quick, "rows": plain(rows), "left_out": results.left_out}, indent=1
        )
        + "\n"
    )
    try:
        plot(rows, systems, table.with_suffix(".png"))
    except ImportError:
        print("bench: no plot: matplotlib is not installed")
    return table


def markdown(
    rows: list[Row], systems: list[str], left_out: list[str], about: dict[str, str], quick: bool
) -> str:
    """Return the page: a row a measure, a column a system, medians with their range.

    What all systems' brokers cost comes first, then all that was measured.
    """
    cpu = [row for row in rows if is_cpu(row.unit) and (len(row.samples) > 1 or len(systems) == 1)]
    lines = [
        "# Results",
        "",
        "Written by `./run bench`; medians, with the range of the samples. All systems in one run, taking",
        "turns, load generator and broker on the same machine: 1 KiB bodies with properties, each message",
        "acknowledged, one unsettled disposition a message, window 1000, durable queues; peeklock with",
        "`--durability fsync`, Artemis with its journal synced. Artemis answers no disposition: those to it",
        "are settled, and it has less to do. RabbitMQ 3 has no figures for 8 handlers, since it gives them",
        "more than they ask for. Each broker was driven until it was warm. What concerns sessions, other",
        "kinds of queues, purges, transactions and topics is peeklock's alone; ratios to a plain queue are",
        "taken a turn at a time.",
        "",
        ", ".join((about["date"], f"{about['cores']} cores", about["processor"], about["system"]))
        + f", {about['python']}"
        + (". **A quick run: a tenth of the messages, one round.**" if quick else "."),
        "",
        "## CPU of the broker",
        "",
        *_table(cpu, systems),
        "",
        "## All measures",
        "",
        *_table(rows, systems),
    ]
    if left_out:
        lines += ["", "Not measured:", "", *(f"- {reason}" for reason in left_out)]
    return "\n".join(lines) + "\n"


def _table(rows: list[Row], systems: list[str]) -> list[str]:
    peers = [peer for peer in PEERS if peer in systems]
    head = ["scenario", "measure", *systems, *(f"peeklock / {PEERS[peer]}" for peer in peers), "aim"]
    lines = [
        "| " + " | ".join(head) + " |",
        "|" + "---|" * 2 + "---:|" * (len(head) - 3) + "---|",
    ]
    for row in rows:
        cells = [row.scenario, f"{row.measure} ({row.unit})" if row.unit else row.measure]
        cells += [_cell(row, system) for system in systems]
        cells += [_ratio(row, peer) for peer in peers]
        cells.append(_aim(row))
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _cell(row: Row, system: str) -> str:
    values = row.samples.get(system)
    if not values:
        return ""
    median = _number(statistics.median(values))
    return median if len(values) == 1 else f"{median} ({_number(min(values))}-{_number(max(values))})"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _ratio(row: Row, peer: str) -> str:
    ours, theirs = row.median("peeklock"), row.median(peer)
    return f"{ours / theirs:.2f}" if ours and theirs else ""


def _aim(row: Row) -> str:
    ours = row.median("peeklock")
    theirs = row.median("RabbitMQ quorum")
    if row.aim_ratio is not None and ours and theirs:
        verdict = "reached" if ours / theirs >= row.aim_ratio else "MISSED"
        return f">= {row.aim_ratio} x quorum: {verdict}"
    if row.aim is None or ours is None:
        return ""
    reached = ours >= row.aim if row.better == "higher" else ours <= row.aim
    sign = ">=" if row.better == "higher" else "<="
    return f"{sign} {_number(row.aim)}: {'reached' if reached else 'MISSED'}"


def plain(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """Return rows as values of JSON."""
    return [
        {
            "scenario": row.scenario,
            "measure": row.measure,
            "unit": row.unit,
            "better": row.better,
            "aim": row.aim,
            "samples": row.samples,
            "loops_s": row.loops_s,
        }
        for row in rows
    ]


PANELS = (
    (
        "Broker CPU (us a message, less is better)",
        [("send", "broker CPU"), ("receive + complete", "broker CPU"), ("end to end", "broker CPU")],
    ),
    (
        "Rate (msg/s, more is better)",
        [("send", "rate"), ("receive + complete", "rate"), ("end to end", "rate")],
    ),
    (
        "1,000 msg/s offered: send to accepted (us, less is better)",
        [
            ("1,000 msg/s offered", "the disk's own fsync, p50"),
            ("1,000 msg/s offered", "p50 send to accepted"),
            ("1,000 msg/s offered", "p99 send to accepted"),
        ],
    ),
)


def plot(rows: list[Row], systems: list[str], path: Path) -> None:
    """Draw the three comparisons as grouped bars.

    Raises:
        ImportError: matplotlib is not installed.
    """
    import matplotlib as mpl  # here: the import takes a second, and the library is not installed everywhere

    mpl.use("Agg")
    from matplotlib import pyplot

    by_name = {(row.scenario, row.measure): row for row in rows}
    panels = [(title, names) for title, names in PANELS if any(name in by_name for name in names)]
    if not panels:
        return
    figure, axes = pyplot.subplots(
        1, len(panels), figsize=(5 * len(panels), 4.2), layout="constrained", squeeze=False
    )
    width = 0.8 / max(len(systems), 1)
    for axis, (title, names) in zip(axes[0], panels, strict=True):
        shown = [by_name[name] for name in names if name in by_name]
        for place, system in enumerate(systems):
            heights = [row.median(system) or 0 for row in shown]
            bars = axis.bar([n + place * width for n in range(len(shown))], heights, width, label=system)
            axis.bar_label(bars, fmt="{:,.0f}", fontsize=7, rotation=90, padding=3)
        labels = [
            row.scenario if row.measure.startswith(("rate", "broker")) else row.measure for row in shown
        ]
        axis.set_xticks([n + 0.4 - width / 2 for n in range(len(shown))], labels, fontsize=8)
        axis.set_title(title, fontsize=10)
        axis.margins(y=0.25)
    figure.legend(systems, loc="outside lower center", ncols=len(systems), fontsize=9)
    figure.savefig(path, dpi=110)
