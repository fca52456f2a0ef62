"""The pages `/metrics` and `/metrics/entities`: figures collected in slices between other turns."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from peeklock.admin.exchange import Response
from peeklock.broker.handlers.figures import EntityFigures
from peeklock.broker.handlers.totals import Reader, Totals
from peeklock.broker.vocabulary.errors import ArgumentInvalid
from peeklock.metrics import table
from peeklock.metrics.exposition import Format
from peeklock.metrics.matching import PatternRefused, compile_pattern
from peeklock.metrics.pages import CursorFigures, EntityPage, EntitySeries, Figures, age_s, totals_page
from peeklock.metrics.table import Metric
from peeklock.server.loop.turns import Turns
from peeklock.server.net.operator_pages import PageRequest
from peeklock.server.shard.shard import Shard

SLICE_S = 0.004
"""For matching names in one turn. Our choice."""

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(eq=False)
class MetricsPages:
    """Collects the figures of one namespace, and writes the pages."""

    namespace: str
    shard: Shard
    turns: Turns
    now_ms: Callable[[], int]
    """UTC."""
    gauges: Callable[[], Mapping[Metric, float | int]]
    """Returns the figures that the server counts."""
    build: Mapping[str, str]
    """Labels of `peeklock_build_info`."""
    others: Callable[[], Iterable[MetricsPages]] | None = None
    """Returns the pages of the other namespaces, which this one shows too, with the figures of the process;
    None = it shows its own namespace."""
    stands_in: bool = False
    """Whether another node serves the namespace: then the figures of the process are all."""

    def __post_init__(self) -> None:
        self._series = EntitySeries(self.namespace)
        self._one_at_a_time = asyncio.Lock()

    async def totals(self, request: PageRequest) -> Response:
        """Answer `/metrics`."""
        form = _format(request)
        shown = {self.namespace: await self.figures()}
        for pages in () if self.others is None else self.others():
            shown[pages.namespace] = await pages.figures()
        return Response(200, form.value, totals_page(shown, form).encode())

    async def figures(self) -> Figures:
        """Return the figures of the namespace."""
        shard, now_ms = self.shard, self.now_ms()
        totals = await shard.totals()
        measures = shard.measures
        gauges = {
            **self.gauges(),
            **({} if self.others is None else _process(shard.lag_ms)),
            **({} if self.stands_in else self._of_namespace(totals, now_ms)),
        }
        if shard.free_bytes is not None:
            gauges[table.FREE] = shard.free_bytes
        return Figures(
            shard.counters,
            shard.requests(),
            {
                table.SEND_SECONDS: measures.send_seconds,
                table.COMMIT_SECONDS: measures.commit_seconds,
                table.BATCH_BYTES: measures.batch_bytes,
            },
            gauges,
            {
                "active": totals.active_messages,
                "deferred": totals.deferred_messages,
                "scheduled": totals.scheduled_messages,
                "dead_lettered": totals.dead_letters,
            },
            [_cursor(reader, now_ms) for reader in totals.readers],
            self.build,
            has_namespace=not self.stands_in,
        )

    def _of_namespace(self, totals: Totals, now_ms: int) -> dict[Metric, float | int]:
        shard = self.shard
        return {
            table.SIZE: totals.size_bytes,
            table.OLDEST: age_s(totals.oldest_enqueued_at_ms, now_ms),
            table.DROPPED: totals.dropped_sends,
            table.LOST: shard.lost_bodies,
            table.LINKS: totals.links,
            table.LOCKS: totals.locks,
            table.SESSIONS: totals.sessions,
            table.ENTITIES: totals.entities,
            table.UNCOMMITTED: shard.uncommitted_bytes,
            table.READY: int(shard.status() == "ok"),
        }

    async def entities(self, request: PageRequest) -> Response:
        """Answer `/metrics/entities`."""
        given = request.query.get("match", [])
        try:
            match = compile_pattern(given[0]) if given else None
        except PatternRefused as failure:
            return request.exchange.refusal(ArgumentInvalid(f"match: {failure}"))
        async with self._one_at_a_time:  # a page of 10,000 entities has 16 MB
            form = _format(request)
            page = EntityPage(self._series, form, self.now_ms(), match)
            count = self.shard.count_figures()
            while (found := count.advance()) is not None:
                page.add(found if match is None else await self._matching(page, found))
                # The prefixes of 10,000 new entities are 30,000 tuples, which the collector would visit in
                # one turn of 12 to 22 ms; a slice's are few, and tuples of texts are visited once.
                gc.collect(0)
                await self._turn()
            parts = []
            for part in page.parts():
                parts.append(part)
                await self._turn()
        return Response(200, form.value, more=tuple(parts))

    async def _matching(self, page: EntityPage, entities: list[EntityFigures]) -> list[EntityFigures]:
        found = []
        began_s = self.turns.clock_s()
        for entity in entities:
            if page.wants(entity.name):
                found.append(entity)
            if self.turns.clock_s() - began_s > SLICE_S:
                await self._turn()
                began_s = self.turns.clock_s()
        return found

    async def _turn(self) -> None:
        await asyncio.sleep(0)
        self.turns.begin()


def _format(request: PageRequest) -> Format:
    return Format.accepted(request.headers.get("accept", ""))


def _cursor(reader: Reader, now_ms: int) -> CursorFigures:
    figures = {
        table.CURSOR_BACKLOG: reader.backlog,
        table.CURSOR_OLDEST: age_s(reader.oldest_enqueued_at_ms, now_ms),
        table.CURSOR_CLAIMS: reader.claims,
    }
    return CursorFigures(reader.entity, reader.cursor, figures)


def _process(lag_ms: int) -> dict[Metric, float | int]:
    """Return the figures of this process, those that every exporter has."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    found: dict[Metric, float | int] = {
        table.PROCESS_CPU: round(used.ru_utime + used.ru_stime, 6),
        table.PROCESS_FILES_MAX: resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        table.PROCESS_START: _STARTED_S,
        table.LOOP_LAG: lag_ms / 1000,
        table.BUILD: 1,
    }
    try:
        found[table.PROCESS_MEMORY] = int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES
        found[table.PROCESS_FILES] = len(os.listdir("/proc/self/fd"))
    except OSError:  # not Linux
        pass
    return found


_STARTED_S = round(time.time() - time.process_time(), 3)
