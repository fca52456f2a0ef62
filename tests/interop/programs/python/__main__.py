"""The official Python client, `azure-servicebus`, sync or aio: `python THIS_FOLDER sync|aio`.

Reads a feature a line and answers with what came of it, as ../README.md says. The aio client is driven
through `tests.interop.clients.Blocking`, which awaits its calls in an event loop of its own and changes
nothing else, so that each feature is written once. Features that mostly wait are begun together when the
first of them is asked for.
"""

from __future__ import annotations

import json
import sys
import traceback
from concurrent.futures import Future, ThreadPoolExecutor

import administration
import connections
import receiving
import sending
import session_features
import topics
from surroundings import FEATURES, WAITING, Differs, NotOffered, Surroundings

MODULES = (connections, sending, receiving, session_features, topics, administration)
"""They enter their features as they are loaded."""


def show(ours: Surroundings, name: str) -> dict[str, str]:
    """Show one feature, and say what came of it."""
    if name not in FEATURES:
        return {"status": "failed", "error": f"the program has no feature {name!r}"}
    try:
        FEATURES[name](ours)
    except NotOffered as reason:
        return {"status": "not offered", "how": str(reason)}
    except Differs as how:
        return {"status": "differs", "how": str(how)}
    except Exception as error:  # whatever it is, it is this feature's
        traceback.print_exc()
        return {"status": "failed", "error": f"{type(error).__name__}: {error}"}
    return {"status": "works"}


def main(form: str) -> None:
    """Answer each line until the input ends."""
    ours = Surroundings(form)
    begun: dict[str, Future[dict[str, str]]] = {}
    pool = ThreadPoolExecutor(len(WAITING))
    while line := sys.stdin.readline():  # not by iteration, which reads ahead: a feature reads lines, too
        name = json.loads(line)["feature"]
        if name in WAITING and name not in begun:
            begun = {waiting: pool.submit(show, ours, waiting) for waiting in WAITING}
        outcome = begun.pop(name).result() if name in begun else show(ours, name)
        print(json.dumps({"feature": name, **outcome}), flush=True)
    pool.shutdown()
    ours.close()


if __name__ == "__main__":
    main(sys.argv[1])
