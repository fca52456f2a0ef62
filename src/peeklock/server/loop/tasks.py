"""Failures of tasks and callbacks of ours, handed to the loop's exception handler at once.

asyncio reports a task's failure only when the task is garbage, so a task that is kept for the life of the
process would fail in silence; and it does not know which transport a callback works for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any


def tell_failure(task: asyncio.Task[Any]) -> None:
    """Hand a task's exception to the loop's exception handler; for use as a done callback."""
    if not task.cancelled() and (failure := task.exception()) is not None:
        task.get_loop().call_exception_handler(
            {"message": f"{task.get_coro()!r} failed", "exception": failure, "task": task}
        )


def call_for(transport: asyncio.BaseTransport, callback: Callable[..., None], *arguments: Any) -> None:
    """Call what works for one transport; hand a failure to the loop's handler, as of `data_received`."""
    try:
        callback(*arguments)
    except Exception as failure:
        asyncio.get_running_loop().call_exception_handler(
            {"message": f"{callback!r} failed", "exception": failure, "transport": transport}
        )
