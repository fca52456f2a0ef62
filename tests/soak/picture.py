"""What the broker used over time, with marks for what happened: small multiples as SVG.

Owns: the drawing. Must not know: what is judged. Lines and letters have middle tones, on no background, so
that they are seen in light and in dark.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.soak.conductor import Outcome
from tests.soak.plan import ENDS_LIFE, Kind
from tests.soak.watch import Sample

_DIGITS = re.compile(r"(\d\.\d)\d+")
"""More of them are a third of the file, and nobody sees them."""

INK = "#808890"
LINE = "#3d8bd4"
PANELS: tuple[tuple[str, ...], ...] = (
    ("received, 1/s", "completed, 1/s"),
    ("send p50, ms", "send p99, ms"),
    ("memory, MB", "memory of the exporter, MB"),
    ("data folder, MB", "event log, MB"),
    ("messages held",),
    ("open files",),
    ("longest turn, ms", "loop lag, ms"),
    ("CPU, % of a core",),
)
SECONDS = "#d08a2e"
MARKS: dict[Kind, tuple[str, str]] = {
    Kind.KILL: ("#d9534f", "x"),
    Kind.RESTART: ("#d9534f", "o"),
    Kind.DAMAGE: ("#b565c9", "D"),
    Kind.BANK: ("#b565c9", "s"),
    Kind.RELOAD: ("#5aa469", "^"),
    Kind.ROTATE: ("#5aa469", "v"),
    Kind.BACKUP: ("#3d8bd4", "s"),
    Kind.INCREMENT: ("#3d8bd4", "+"),
    Kind.RESTORE: ("#3d8bd4", "*"),
    Kind.CLOCK: ("#d08a2e", "d"),
}


def draw(outcome: Outcome, path: Path) -> None:
    """Write the picture."""
    import matplotlib as mpl

    mpl.use("Agg")
    colors: dict[Any, Any] = dict.fromkeys(
        ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK
    )
    with mpl.rc_context({**colors, "svg.hashsalt": "soak", "svg.fonttype": "none", "font.size": 9}):
        _draw(outcome, path)


def _draw(outcome: Outcome, path: Path) -> None:
    from matplotlib import pyplot

    rows = (len(PANELS) + 1) // 2
    figure = pyplot.figure(figsize=(12, 2.0 * rows + 2.2), layout="constrained")
    grid = figure.add_gridspec(rows + 1, 2, height_ratios=[*[2.0] * rows, 1.9])
    first = None
    for place, names in enumerate(PANELS):
        panel = figure.add_subplot(grid[place // 2, place % 2], sharex=first)
        first = first or panel
        for name, color in zip(names, (LINE, SECONDS), strict=False):
            for at, values in _lives(outcome.samples, name):
                panel.plot(at, values, color=color, linewidth=1)
        _style(panel)
        _title(panel, names)
        _draw_ends(panel, [mark.at_s / 60 for mark in outcome.marks if mark.kind in ENDS_LIFE])
    below = figure.add_subplot(grid[rows, :], sharex=first)
    for row, (kind, (color, shape)) in enumerate(MARKS.items()):
        at = [mark.at_s / 60 for mark in outcome.marks if mark.kind is kind]
        below.scatter(at, [-row] * len(at), color=color, marker=shape, s=18, linewidths=1)
    below.set_yticks([-row for row in range(len(MARKS))], [str(kind) for kind in MARKS])
    _style(below)
    below.set_xlabel("minutes")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(
        path, transparent=True, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=110
    )
    pyplot.close(figure)
    if path.suffix == ".svg":
        path.write_text(_DIGITS.sub(r"\1", path.read_text()))


def _draw_ends(panel: Any, minutes: Sequence[float]) -> None:
    """Draw a faint line where a life ends; all as one path, which is a tenth of the bytes."""
    at = [minute for end in minutes for minute in (end, end, end)]
    heights = [0.0, 1.0, float("nan")] * len(minutes)
    across = panel.get_xaxis_transform()
    panel.plot(at, heights, color=MARKS[Kind.KILL][0], alpha=0.3, linewidth=0.7, transform=across)


def _lives(samples: Sequence[Sample], name: str) -> list[tuple[list[float], list[float]]]:
    """Return minutes and values of each life; a line does not cross a death."""
    lives: dict[int, tuple[list[float], list[float]]] = {}
    for sample in samples:
        if name in sample.values:
            at, values = lives.setdefault(sample.life, ([], []))
            at.append(sample.at_s / 60)
            values.append(sample.values[name])
    return list(lives.values())


def _title(panel: Any, names: tuple[str, ...]) -> None:
    for place, (name, color) in enumerate(zip(names, (LINE, SECONDS), strict=False)):
        panel.set_title(name, loc=("left", "right")[place], color=color, fontsize=9)


def _style(panel: Any) -> None:
    panel.grid(alpha=0.25, color=INK)
    panel.spines[["top", "right"]].set_visible(False)
    if panel.get_ylim()[0] > 0:
        panel.set_ylim(bottom=0)
