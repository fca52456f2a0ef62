"""Messages counted by a value of theirs: their dead-letter reason, a property, a place in a JSON body."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from peeklock.client.connection import BlockingConnection
from peeklock.jobs.edits import RESUBMITS
from peeklock.jobs.groups import Groups, grouping
from peeklock.search import Peeked, instant_text
from peeklock.worker.orders import Work
from peeklock.worker.output import Output
from peeklock.worker.searching import Progress, matching

GROUPS_SHOWN_MAX: Final = 1000
"""The largest ones. Our choice: a page for a person."""

NUMBERS: Final = 10
"""Sequence numbers of a group that are shown."""


def group(work: Work, connection: BlockingConnection, output: Output) -> None:
    """Count the messages of a work by group. Raises: ServiceBusError, SearchError, WorkFailed."""
    groups = Groups(grouping(work["by"]))
    numbers: dict[str, list[int | None]] = {}
    repeated: Counter[str] = Counter()
    progress = Progress(output, work.get("of"))
    for _, messages in matching(work, connection, progress):
        for peeked in messages:
            found = groups.put(peeked)
            if found is groups.others:
                continue
            some = numbers.get(found.name)
            if some is None and len(numbers) < GROUPS_SHOWN_MAX:
                some = numbers[found.name] = []
            if some is not None and len(some) < NUMBERS:
                some.append(peeked.sequence_number)
            if _is_repeated(peeked):
                repeated[found.name] += 1
    progress.tell()
    all_found = groups.found()
    shown = [
        {
            "value": each.name,
            "count": each.count,
            "oldest": _instant(each.oldest_ms),
            "newest": _instant(each.newest_ms),
            "numbers": numbers.get(each.name) or [each.example],
            "repeated": repeated[each.name],
        }
        for each in all_found[:GROUPS_SHOWN_MAX]
    ]
    figures = {"examined": progress.examined, "count": len(all_found), "others": groups.others.count}
    output.event("end", {**figures, "groups": shown})


def _is_repeated(peeked: Peeked) -> bool:
    times: Any = peeked.application_properties.get(RESUBMITS)
    return isinstance(times, int) and times > 0


def _instant(at_ms: int | None) -> str | None:
    return None if at_ms is None else instant_text(at_ms)
