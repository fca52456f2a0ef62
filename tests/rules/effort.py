"""How much work a call is, told from what else the machine and the collector of garbage do meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def least_cpu_s(call: Callable[[], Any], tries: int = 3) -> float:
    """Call it a few times; give the seconds of processor time of the quickest."""
    spent = []
    for _ in range(tries):
        start = time.process_time()
        call()
        spent.append(time.process_time() - start)
    return min(spent)
