"""One interface to both forms of the official client, so that each test is written once.

Owns: `Api`, which makes clients; `Blocking`, which drives the asynchronous ones from a test's thread; and
`Links`, which opens and closes senders and receivers in the background. The client itself is unchanged:
`Blocking` only awaits, and `Links` only waits in another thread, since the client sleeps through most of the
half second that it takes to open a link, and again to close it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import azure.servicebus
import azure.servicebus.aio
import azure.servicebus.aio.management
import azure.servicebus.management

CALL_S_MAX = 90.0
"""Longer than the client's own 60 s for an answer, so that its error is seen and not ours."""


class Loop:
    """An event loop in its own thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Call a function in the loop, await its result if possible, and return that."""

        async def call() -> Any:
            result = function(*arguments, **named)
            return await result if asyncio.iscoroutine(result) else result

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result(CALL_S_MAX)

    def close(self) -> None:
        """Stop the loop; tasks that still run are cancelled."""

        async def cancel() -> None:
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

        self.run(cancel)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Blocking:
    """An object of the asynchronous client, used like its synchronous twin."""

    def __init__(self, inner: Any, loop: Loop) -> None:
        self._inner = inner
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if isinstance(value, azure.servicebus.aio.ServiceBusSession):
            return Blocking(value, self._loop)
        if not callable(value):
            return value

        def call(*arguments: Any, **named: Any) -> Any:
            options = {key: bare(value) for key, value in named.items()}
            return self._wrap(self._loop.run(value, *map(bare, arguments), **options))

        return call

    def __enter__(self) -> Blocking:
        self._loop.run(self._inner.__aenter__)
        return self

    def __exit__(self, *error: Any) -> None:
        self._loop.run(self._inner.__aexit__, *error)

    def __iter__(self) -> Iterator[Any]:
        return self._iterate(self._loop.run(self._inner.__aiter__))

    def _iterate(self, messages: Any) -> Iterator[Any]:
        while True:
            try:
                yield self._loop.run(messages.__anext__)
            except StopAsyncIteration:
                return

    def _wrap(self, value: Any) -> Any:
        if hasattr(value, "__aenter__"):  # first, since a receiver is an iterator too
            return Blocking(value, self._loop)
        if hasattr(value, "__anext__"):
            return self._iterate(value)
        return value


def bare(value: Any) -> Any:
    """Return the client's own object."""
    return value._inner if isinstance(value, Blocking) else value


class Api:
    """Makes clients of one form: `sync` or `aio`."""

    def __init__(self, form: str) -> None:
        self.form = form
        self._loop = Loop() if form == "aio" else None

    def client(self, connection_string: str, **options: Any) -> Any:
        """Return a ServiceBusClient; tests of refusals pass `retry_total=0` to see the first answer."""
        return self._make("ServiceBusClient", "from_connection_string", connection_string, **options)

    def client_with(self, namespace: str, credential: Any, **options: Any) -> Any:
        """Return a ServiceBusClient from a namespace and a credential, which uses TLS."""
        return self._make("ServiceBusClient", None, namespace, credential, **options)

    def administration(self, connection_string: str, **options: Any) -> Any:
        """Return a ServiceBusAdministrationClient."""
        module = azure.servicebus.management if self._loop is None else azure.servicebus.aio.management
        make = module.ServiceBusAdministrationClient.from_connection_string
        if self._loop is None:
            return make(connection_string, **options)
        return Blocking(self._loop.run(make, connection_string, **options), self._loop)

    def auto_lock_renewer(self, **options: Any) -> Any:
        """Return an AutoLockRenewer."""
        return self._make("AutoLockRenewer", None, **options)

    def close(self) -> None:
        """End what runs in the background."""
        if self._loop is not None:
            self._loop.close()

    def _make(self, name: str, constructor: str | None, *arguments: Any, **options: Any) -> Any:
        if self._loop is None:
            kind = getattr(azure.servicebus, name)
            return (getattr(kind, constructor) if constructor else kind)(*arguments, **options)
        kind = getattr(azure.servicebus.aio, name)
        make = getattr(kind, constructor) if constructor else kind
        return Blocking(self._loop.run(make, *arguments, **options), self._loop)


class Link:
    """A sender or receiver that opens in the background from `with` on, and closes there after it."""

    def __init__(self, inner: Any, background: Background) -> None:
        self._inner = inner
        self._background = background
        self._opening: Future[Any] | None = None

    def __enter__(self) -> Link:
        self._opening = self._background.submit(self._inner.__enter__)
        return self

    def __exit__(self, *error: Any) -> None:
        self._background.submit(self.close)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.opened(), name)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.opened())

    def opened(self) -> Any:
        """Wait until it is open, and return the client's own object."""
        if self._opening is not None:
            self._opening.result(CALL_S_MAX)  # raises what opening raised
        return self._inner

    def close(self) -> None:
        """Close at once; for tests in which the close matters."""
        if self._opening is not None:
            self._opening.exception(CALL_S_MAX)
        self._inner.close()


class Links:
    """A client that returns `Link`s."""

    def __init__(self, client: Any, background: Background) -> None:
        self._client = client
        self._background = background

    def get_queue_sender(self, queue: str, **options: Any) -> Link:
        return Link(self._client.get_queue_sender(queue, **options), self._background)

    def get_queue_receiver(self, queue: str, **options: Any) -> Link:
        return Link(self._client.get_queue_receiver(queue, **options), self._background)

    def get_topic_sender(self, topic: str, **options: Any) -> Link:
        return Link(self._client.get_topic_sender(topic, **options), self._background)

    def get_subscription_receiver(self, topic: str, name: str, **options: Any) -> Link:
        return Link(self._client.get_subscription_receiver(topic, name, **options), self._background)

    def list_queue_sessions(self, queue: str, **options: Any) -> list[str]:
        """List them all, over all pages."""
        return list(self._client.list_queue_sessions(queue, **options))

    def list_subscription_sessions(self, topic: str, name: str, **options: Any) -> list[str]:
        return list(self._client.list_subscription_sessions(topic, name, **options))


class Background:
    """Threads in which clients open and close."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(64)
        self._started: list[Future[Any]] = []

    def submit(self, function: Callable[[], Any]) -> Future[Any]:
        """Run a function in the background."""
        self._started.append(self._pool.submit(function))
        return self._started[-1]

    def join(self) -> None:
        """Wait for all background functions."""
        for future in self._started:
            future.exception()
        self._started.clear()

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()
