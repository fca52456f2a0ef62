"""The text of `/metrics` and `/metrics/entities`.

Theory of operation. The beginning of an entity's lines, its name and labels, is made once and kept as long as
the entity is: a line costs an addition of two strings then. A page groups its lines by metric, so each slice
of entities adds to a list for each metric.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

from peeklock.broker.handlers.figures import EntityFigures
from peeklock.broker.queue.counters import Counters, RequestCounters
from peeklock.metrics.exposition import Format, head, histogram_lines, prefix
from peeklock.metrics.histogram import Histogram
from peeklock.metrics.table import (
    COUNTERS,
    CURSOR_BACKLOG,
    CURSOR_CLAIMS,
    CURSOR_OLDEST,
    DEAD_LETTERED,
    MESSAGES,
    METRICS,
    OLDEST,
    REQUESTS,
    SIZE,
    Metric,
)

PART_LINES = 5_000
"""Of a page, joined in one turn: half a millisecond. Our choice."""

STATES = ("active", "deferred", "scheduled", "dead_lettered")

CURSOR_METRICS = (CURSOR_BACKLOG, CURSOR_OLDEST, CURSOR_CLAIMS)

_PER_ENTITY = tuple(metric for metric in METRICS if metric.per_entity)
_counters_of = attrgetter(*COUNTERS)


@dataclass(frozen=True, slots=True)
class CursorFigures:
    """What one cursor shows."""

    entity: str
    """With its sub-queue."""
    cursor: str
    figures: Mapping[Metric, float | int]


@dataclass(frozen=True, slots=True)
class Figures:
    """What a namespace shows at one time."""

    counters: Counters
    requests: Mapping[str, RequestCounters]
    """By operation."""
    histograms: Mapping[Metric, Histogram]
    gauges: Mapping[Metric, float | int]
    """Also counters that are single numbers. What is absent has no line."""
    messages: Mapping[str, int]
    """By state, one of `STATES`."""
    cursors: Sequence[CursorFigures]
    build: Mapping[str, str]
    """Labels of the metric of that name."""
    has_namespace: bool = True
    """False = of a process that does not serve the namespace: the gauges are all that there is."""


def totals_page(shown: Mapping[str, Figures], form: Format) -> str:
    """Return `/metrics`: the figures of namespaces, by name."""
    labelled = [({"namespace": namespace}, figures) for namespace, figures in shown.items()]
    lines: list[str] = []
    for metric in METRICS:
        found = [line for labels, figures in labelled for line in _lines(metric, labels, figures)]
        if found:
            lines.append(head(metric, form))
            lines += found
    return "".join(lines) + form.end


def _lines(metric: Metric, labels: Mapping[str, str], figures: Figures) -> Iterator[str]:
    for further, value in series_of(metric, figures):
        if isinstance(value, Histogram):
            yield from histogram_lines(metric, labels, value)
        else:
            yield f"{prefix(metric.name, {**labels, **further})}{value!r}\n"


def series_of(
    metric: Metric, figures: Figures
) -> Iterator[tuple[Mapping[str, str], float | int | Histogram]]:
    """Yield the series of a metric: its labels beside the namespace, and its value. There may be none."""
    if not figures.has_namespace and metric not in figures.gauges:
        return
    if metric is DEAD_LETTERED:
        for reason, count in sorted(figures.counters.dead_lettered.items()):
            yield {"reason": reason}, count
    elif metric is MESSAGES:
        for state in STATES:
            yield {"state": state}, figures.messages[state]
    elif metric is REQUESTS:
        for operation, counted in sorted(figures.requests.items()):
            for status in ("succeeded", "throttled", "refused"):
                yield {"operation": operation, "status": status}, getattr(counted, status)
    elif metric in CURSOR_METRICS:
        for each in figures.cursors:
            yield {"entity": each.entity, "cursor": each.cursor}, each.figures[metric]
    elif metric.kind == "histogram":
        yield {}, figures.histograms[metric]
    elif metric in figures.gauges:
        yield figures.build if metric.labels else {}, figures.gauges[metric]
    elif (attribute := _ATTRIBUTES.get(metric)) is not None:
        yield {}, getattr(figures.counters, attribute)


_ATTRIBUTES = {metric: attribute for attribute, metric in COUNTERS.items()}


_Series = tuple[str, tuple[str, ...], tuple[str, ...], str, str]
"""The name of an entity, and the beginnings of its lines: counters, messages, size, oldest message.

Plain tuples of texts, which the garbage collector visits once: 10,000 objects took it 10 ms of a turn.
"""


def _series(namespace: str, name: str) -> _Series:
    labels = {"namespace": namespace, "entity": name}
    return (
        name,
        tuple([prefix(metric.name, labels) for metric in COUNTERS.values()]),
        tuple([prefix(MESSAGES.name, {**labels, "state": state}) for state in STATES]),
        prefix(SIZE.name, labels),
        prefix(OLDEST.name, labels),
    )


class EntitySeries:
    """The beginnings of the lines of all entities that a page has shown."""

    def __init__(self, namespace: str) -> None:
        """Begin with none."""
        self.namespace = namespace
        self._by_id: dict[int, _Series] = {}

    def of(self, entity_id: int, name: str) -> _Series:
        """Return those of an entity; a new entity may have the name of an old one."""
        found = self._by_id.get(entity_id)
        if found is None or found[0] != name:
            found = self._by_id[entity_id] = _series(self.namespace, name)
        return found

    def keep(self, entity_ids: Iterable[int]) -> None:
        """Forget all other entities."""
        self._by_id = {known: self._by_id[known] for known in entity_ids if known in self._by_id}

    def __len__(self) -> int:
        return len(self._by_id)


class EntityPage:
    """`/metrics/entities` under way."""

    def __init__(
        self, series: EntitySeries, form: Format, now_ms: int, match: re.Pattern[str] | None = None
    ) -> None:
        """Begin without an entity; `match`: only entities with such a name. `now_ms`: UTC."""
        self._series = series
        self._form = form
        self._now_ms = now_ms
        self._match = match
        self._lines: dict[Metric, list[str]] = {metric: [] for metric in _PER_ENTITY}
        self._shown: list[int] = []

    def wants(self, name: str) -> bool:
        """Return whether the page shows an entity."""
        return self._match is None or self._match.fullmatch(name) is not None

    def add(self, entities: Iterable[EntityFigures]) -> None:
        """Add the lines of some entities."""
        counted = [self._lines[metric] for metric in COUNTERS.values()]
        messages, sizes, ages = self._lines[MESSAGES], self._lines[SIZE], self._lines[OLDEST]
        dead_lettered = self._lines[DEAD_LETTERED]
        for entity in entities:
            self._shown.append(entity.entity_id)
            name, counters, states, size, oldest = self._series.of(entity.entity_id, entity.name)
            for lines, start, count in zip(counted, counters, _counters_of(entity.counters), strict=True):
                lines.append(f"{start}{count}\n")
            for reason, count in entity.counters.dead_lettered.items():
                labels = {"namespace": self._series.namespace, "entity": name, "reason": reason}
                dead_lettered.append(f"{prefix(DEAD_LETTERED.name, labels)}{count}\n")
            found = (entity.active, entity.deferred, entity.scheduled, entity.dead_letters)
            for start, count in zip(states, found, strict=True):
                messages.append(f"{start}{count}\n")
            sizes.append(f"{size}{entity.size_bytes}\n")
            ages.append(f"{oldest}{age_s(entity.oldest_enqueued_at_ms, self._now_ms)}\n")

    def parts(self) -> Iterator[bytes]:
        """Yield the page in parts, each in a turn of its own; call it once all entities are added."""
        if self._match is None:
            self._series.keep(self._shown)
        for metric, lines in self._lines.items():
            if lines:
                yield head(metric, self._form).encode()
            for first in range(0, len(lines), PART_LINES):
                yield "".join(lines[first : first + PART_LINES]).encode()
            lines.clear()  # here, a metric at a time: to free all lines at once takes 9 ms
        yield self._form.end.encode()


def age_s(enqueued_at_ms: int | None, now_ms: int) -> float:
    """Return the age of a message, s; 0 if there is none."""
    return 0.0 if enqueued_at_ms is None else max(0, now_ms - enqueued_at_ms) / 1000
