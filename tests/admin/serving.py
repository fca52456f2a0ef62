"""A namespace behind real HTTP and HTTPS on one ephemeral port, without a store."""

from __future__ import annotations

import asyncio
import base64
import itertools
import os
import ssl
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from peeklock.admin.api import Administration
from peeklock.admin.exchange import AdminContext
from peeklock.api.access import Access
from peeklock.auth import DEVELOPMENT_KEY, DEVELOPMENT_KEY_NAME, Authority
from peeklock.broker.namespace import Namespace
from peeklock.broker.vocabulary.commands import Command, LockToken, ReplyTo
from peeklock.broker.vocabulary.effects import Effect
from peeklock.broker.vocabulary.quotas import STANDARD, TierLimits
from peeklock.config.hosts import HostNames
from peeklock.server.loop.turns import Turns
from peeklock.server.net.http import HttpProtocol
from peeklock.server.net.http_bodies import BodyBudget
from peeklock.server.net.http_dispatch import HttpContext
from peeklock.server.net.listener import Listener
from peeklock.server.net.operator_pages import OperatorPages, Page
from peeklock.server.net.probes import ProbePages
from peeklock.server.origins import OriginPolicy
from peeklock.server.shard.vitals import Vitals
from peeklock.server.tls.contexts import CERTIFICATE_FILE, FOLDER
from tests.server.contexts import server_context
from tests.server.stepping import raised


def now_ms() -> int:
    return int(time.time() * 1000)


class World:
    """What stands behind the listener; lives on one event loop."""

    def __init__(self, limits: TierLimits = STANDARD, *, delete_lock: bool = False) -> None:
        self.namespace = Namespace(
            limits=limits,
            tokens=lambda: LockToken(os.urandom(16)),
            digest_key=b"k" * 32,
            delete_lock=delete_lock,
        )
        self.logged: list[tuple[str, dict[str, Any]]] = []
        self.health: Mapping[str, Any] = {"status": "ok"}
        self.gate = asyncio.Event()
        """Clear: commands wait, as they would for a slow store."""
        self.gate.set()
        self.asked = asyncio.Event()
        """Set once a command has been asked for."""
        self.commands: list[Command] = []
        self.amqp: Callable[[], asyncio.Protocol] = _no_amqp
        """What a WebSocket carries."""
        self.patience = 1000
        """Bad tokens that are borne."""
        self.origin_policy = OriginPolicy()
        self.stops = False
        """Which requests are taken by their `Host` and `Origin`."""
        self.refused: list[str] = []
        """The addresses that bad tokens came from."""
        self._numbers = itertools.count(1)
        self._admin = Administration(
            AdminContext(
                Authority.development(),
                tracking=lambda: str(uuid.uuid4()),
                keys=lambda: base64.b64encode(os.urandom(32)).decode(),
                owns=HostNames().owns,
                log=lambda event, fields: self.logged.append((event, fields)),
                limits=limits,
                created_at_ms=now_ms(),
            )
        )

    async def submit(self, make: Callable[[ReplyTo], Command]) -> Effect:
        reply_to = ReplyTo(0, 0, next(self._numbers))
        command = make(reply_to)
        self.commands.append(command)
        self.asked.set()
        await self.gate.wait()
        effects = self.namespace.apply(command, now_ms())[1]
        return next(effect for effect in effects if getattr(effect, "reply_to", None) == reply_to)

    def ask(self, make: Callable[[ReplyTo], Command], then: Callable[[Effect], None]) -> None:
        asking = asyncio.ensure_future(self.submit(make))
        asking.add_done_callback(lambda done: then(done.result()))

    async def figures(self) -> Mapping[str, Any]:
        return self.health

    def vitals(self) -> Vitals:
        return Vitals(failed=False, idle_s=0.0, refused="ok")

    def http(self) -> HttpProtocol:
        loop = asyncio.get_running_loop()
        probes = ProbePages(self.figures, self.vitals, lambda: self.stops)
        context = HttpContext(
            submit=self.submit,
            submit_for=self.ask,
            administration=lambda note: self._admin,
            pages=OperatorPages(
                [Page("/health", Access.ANYBODY, probes.health)],
                asks_for_keys=self.origin_policy.asks_for_secret,
            ),
            now_ms=now_ms,
            origin_policy=self.origin_policy,
            stops=lambda: self.stops,
            amqp=self.amqp,
            turns=Turns(loop.call_soon, loop.call_later, on_defect=raised),
            bears_refusal=self.bears_refusal,
            bodies=BodyBudget(sys.maxsize),
        )
        return HttpProtocol(context, self._note, lambda head: context)

    def bears_refusal(self, peer: str) -> bool:
        self.refused.append(peer)
        return len(self.refused) <= self.patience

    def _note(self, event: str, fields: Mapping[str, Any]) -> None:
        self.logged.append((event, dict(fields)))

    def listen(self, tls: ssl.SSLContext | None = None) -> tuple[Listener, int]:
        listener = Listener(_no_amqp, self.http, lambda: tls or server_context(None))
        return listener, listener.bind("127.0.0.1", 0)


def _no_amqp() -> asyncio.Protocol:
    raise AssertionError("an HTTP client was taken for an AMQP one")


class Served:
    """A world in a thread of its own, for blocking clients. Use in `with`."""

    def __init__(self, folder: Path, limits: TierLimits = STANDARD, *, delete_lock: bool = False) -> None:
        self._tls = server_context(folder)
        self.certificate = str(folder / FOLDER / CERTIFICATE_FILE)
        self._make = partial(World, limits, delete_lock=delete_lock)
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Served:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    @property
    def connection_string(self) -> str:
        return (
            f"Endpoint=sb://localhost:{self.port};SharedAccessKeyName={DEVELOPMENT_KEY_NAME};"
            f"SharedAccessKey={DEVELOPMENT_KEY};UseDevelopmentEmulator=true"
        )

    def on_loop(self, call: Callable[[], Any]) -> Any:
        """Run something on the world's loop and give its result."""

        async def run() -> Any:
            return call()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(10)

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self.world = self._make()
        listener, self.port = self.world.listen(self._tls)
        self._ready.set()
        await self._stop.wait()
        listener.close()
