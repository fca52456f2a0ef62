"""`python -m bench.calls`: the number of the broker's functions, and modules, that one send and one complete
call.

Owns: the count, from the bytes of one frame to the bytes of its answer. Must not know: what a function does.
A reader follows these calls, and each costs some 50 ns. `--list` names them in order.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import peeklock
from bench.stages import Exchange

PACKAGE = str(Path(peeklock.__file__).parent)
RIG = str(Path(PACKAGE, "testing"))


def traced(work: Callable[[], object]) -> list[tuple[str, str]]:
    """Run `work`, and return module and qualified name of each Python function of the broker that was
    called."""
    calls: list[tuple[str, str]] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE) and not code.co_filename.startswith(RIG):
            calls.append((code.co_filename.removeprefix(PACKAGE + "/"), code.co_qualname))

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


def count() -> dict[str, list[tuple[str, str]]]:
    """Return the calls of one send and one complete on a connection that has done both before."""
    exchange = Exchange(10)
    exchange.send(3)
    exchange.complete(exchange.receive(2))
    (waiting,) = exchange.receive(1)
    send, complete = exchange.send_frames(1), exchange.complete_frames([waiting])
    return {
        "send": traced(lambda: exchange.follow(send)),
        "complete": traced(lambda: exchange.follow(complete)),
    }


def main() -> None:
    """Print the counts."""
    parser = argparse.ArgumentParser(prog="python -m bench.calls", description="Count calls and modules.")
    parser.add_argument("--list", action="store_true", help="name the calls, in order")
    options = parser.parse_args()
    counted = count()
    for name, calls in {**counted, "both": [*counted["send"], *counted["complete"]]}.items():
        print(f"{name}: {len(calls)} calls in {len({module for module, _ in calls})} modules")
        if options.list and name in counted:
            for module, function in calls:
                print(f"    {module:32} {function}")


if __name__ == "__main__":
    main()
