"""A job that has begun, as JSON: what it is, up to which number, and how far it is. It has no secret."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from peeklock.jobs.edits import Edits
from peeklock.jobs.plan import Plan
from peeklock.search import STATES, Criteria

VERSION: Final = 1


class CheckpointError(ValueError):
    """This is no checkpoint of a job; the text says why."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A job, and how far it is."""

    plan: Plan
    highest: Mapping[int, int]
    """Highest sequence number by partition when the job started."""
    taken: int = 0
    """Messages that it has begun to move: at least as many as are done. A limit counts these."""
    done: int = 0
    """Messages that are known to have left the source."""

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        optional = ("reason", "description")  # a release without them reads the other plans
        plan = {k: v for k, v in asdict(self.plan).items() if k not in optional or v is not None}
        criteria = {name: value for name, value in plan["criteria"].items() if value not in (None, False)}
        if self.plan.criteria.state is not None:
            criteria["state"] = STATES[self.plan.criteria.state]
        plan["criteria"] = criteria
        plan["edits"]["remove"] = [*self.plan.edits.remove]
        if self.plan.numbers is not None:
            plan["numbers"] = sorted(self.plan.numbers)
        highest = {str(partition): number for partition, number in self.highest.items()}
        return {"version": VERSION, "plan": plan, "highest": highest, "taken": self.taken, "done": self.done}

    @classmethod
    def from_json(cls, found: Any) -> Checkpoint:
        """Return the checkpoint that `to_json` returned. Raises: CheckpointError."""
        if not isinstance(found, dict) or "version" not in found:
            raise CheckpointError("it is no checkpoint of a job")
        if found["version"] != VERSION:
            raise CheckpointError(f"its version is {found['version']!r}; this release reads {VERSION}")
        try:
            plan = _known(Plan, found["plan"])
            criteria = _known(Criteria, plan["criteria"])
            states = {name: state for state, name in STATES.items()}
            if criteria.get("state") is not None:
                criteria["state"] = states[criteria["state"]]
            edits = _known(Edits, plan["edits"])
            edits["remove"] = tuple(edits["remove"])
            if plan["numbers"] is not None:
                plan["numbers"] = frozenset(plan["numbers"])
            return cls(
                Plan(**{**plan, "criteria": Criteria(**criteria), "edits": Edits(**edits)}),
                {int(partition): int(number) for partition, number in found["highest"].items()},
                int(found["taken"]),
                int(found["done"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(f"it is damaged: {error!r}") from error


def _known(kind: Any, found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a dataclass. Raises: ValueError."""
    unknown = found.keys() - {each.name for each in fields(kind)}
    if unknown:
        raise ValueError(f"unknown: {', '.join(sorted(unknown))}")
    return dict(found)
