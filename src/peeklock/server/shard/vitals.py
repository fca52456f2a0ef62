"""Whether a broker lives and is ready: the answers of `/live` and `/ready`, decided from a few facts. Pure.

A probe that is answered at all shows that the event loop turns. So `/live` fails only for what a restart
mends: the store has failed, or the broker's own work has not come for long. A busy loop or a full disk is no
reason to restart. `/ready` fails while clients should go elsewhere. Refused sends are no such reason: to
receivers, who make room, a broker that nobody may connect to would be worse. `/health` says it.
"""

from __future__ import annotations

from dataclasses import dataclass

STALLED_S_MAX = 30.0
"""Without the broker's own work, which comes four times a second. Our choice: a slow disk or a stop of the
machine lasts less; three probes of the usual 10 s fail before a supervisor acts."""


@dataclass(frozen=True, slots=True)
class Vitals:
    """The facts."""

    failed: bool
    """The store or the core has failed: the process is about to end."""
    idle_s: float
    """Since the broker's own work came last."""
    refused: str
    """What is refused now and why; `ok` = nothing."""
    lapsed: bool = False
    """The lease on the store is over, and not renewed: another process may own it."""
    is_cut_off: bool = False
    """A node of a cluster cannot reach its database: it cannot lead clients to an owner."""


def why_not_live(vitals: Vitals) -> str | None:
    """Return why the broker should be restarted; None = it lives."""
    if vitals.failed:
        return "the store failed, and the broker is stopping; the log says why"
    if vitals.idle_s > STALLED_S_MAX:
        return f"the broker's own work has not come for {vitals.idle_s:.0f} s"
    return None


def why_not_ready(vitals: Vitals, *, stops: bool) -> str | None:
    """Return why clients should go elsewhere; None = sends and receives are taken."""
    if stops:
        return "the broker is stopping"
    if vitals.lapsed and not vitals.failed:
        return "the database of the store cannot be reached, and another broker may own it by now"
    if vitals.is_cut_off:
        return "the database of the cluster cannot be reached"
    return why_not_live(vitals)
