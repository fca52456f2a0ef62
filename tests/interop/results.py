"""The recorded outcomes, as results/CLIENT.json keeps them.

Owns: the form of these files, from which docs/clients.py writes the page of clients. Must not know: how the
outcomes were obtained.
"""

from __future__ import annotations

import json
from pathlib import Path

from tests.interop.builds import HERE, clients
from tests.interop.program import Outcome

RESULTS = HERE / "results"


def read_results(client: str) -> dict[str, Outcome]:
    """Return the recorded outcomes of a client, by feature; empty where it never ran."""
    path = RESULTS / f"{client}.json"
    if not path.exists():
        return {}
    told = json.loads(path.read_text(encoding="utf-8"))["features"]
    return {feature: Outcome(fields["status"], fields.get("how", "")) for feature, fields in told.items()}


def showing(feature: str) -> list[str]:
    """Return the names of the clients that offer a feature, by their records."""
    absent = Outcome("not offered")
    return [name for name in clients() if read_results(name).get(feature, absent).status != absent.status]


def write_results(client: str, versions: dict[str, str], outcomes: dict[str, Outcome]) -> Path:
    """Record the outcomes of a client's run, in the given order."""
    told = {
        "versions": versions,
        "features": {
            feature: {"status": outcome.status, **({"how": outcome.how} if outcome.how else {})}
            for feature, outcome in outcomes.items()
        },
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{client}.json"
    path.write_text(json.dumps(told, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


def read_versions(built: Path) -> dict[str, str]:
    """Return a build's versions.json: names of packages and runtimes to their versions."""
    told: dict[str, str] = json.loads((built / "versions.json").read_text(encoding="utf-8"))
    return told
