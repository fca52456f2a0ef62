"""What happens when a task of ours fails: it is told at once.

Owns: that one rule. Must not know: what any task does. asyncio tells of a failure only when the task is
forgotten, so that one which is kept for the life of the process would fail in silence.
"""

from __future__ import annotations

import asyncio
from typing import Any


def tell_failure(task: asyncio.Task[Any]) -> None:
    """Hand a task's exception to the loop's exception handler; to be added as its done callback."""
    if not task.cancelled() and (failure := task.exception()) is not None:
        task.get_loop().call_exception_handler(
            {"message": f"{task.get_coro()!r} failed", "exception": failure, "task": task}
        )
