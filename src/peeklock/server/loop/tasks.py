"""What happens when a task or a callback of ours fails: the loop's exception handler is called at once.

Owns: that one rule. Must not know: what any of them does. asyncio tells of a task's failure only when the
task is forgotten, so that one which is kept for the life of the process would fail in silence. It does not
know which transport a callback works for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any


def tell_failure(task: asyncio.Task[Any]) -> None:
    """Hand a task's exception to the loop's exception handler; to be added as its done callback."""
    if not task.cancelled() and (failure := task.exception()) is not None:
        task.get_loop().call_exception_handler(
            {"message": f"{task.get_coro()!r} failed", "exception": failure, "task": task}
        )


def call_for(transport: asyncio.BaseTransport, callback: Callable[..., None], *arguments: Any) -> None:
    """Call what works for one transport; a failure is told as the loop tells one of `data_received`."""
    try:
        callback(*arguments)
    except Exception as failure:
        asyncio.get_running_loop().call_exception_handler(
            {"message": f"{callback!r} failed", "exception": failure, "transport": transport}
        )
