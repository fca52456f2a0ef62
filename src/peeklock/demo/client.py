"""Sends and processes the demo's jobs, with the official asynchronous client.

Each sender or receiver belongs to one task: the client's objects are not safe to share between tasks, so
"many in flight" means many senders. The client does not retry (`retry_total=0`): each task opens its link
again until the end, which is simple, and quick after a kill.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from peeklock.demo.jobs import Damaged, Job, Trouble, work
from peeklock.demo.ledger import DAMAGED_REASON, Ledger

QUEUE = "jobs"
LOCK = timedelta(seconds=5)
"""The shortest lock, so that it expires soon."""
DELIVERIES_MAX = 5
IN_FLIGHT_MAX = 16
WORKERS = 8
BATCH = 10
"""Messages of a receive call; they are processed well within their lock."""
SCHEDULED_BATCH = 20
DUE_IN_S = (2, 8)
RECEIVE_S = 1
BROWSED = 100
REOPEN_S = 0.2
"""Pause between attempts to reach a broker that is down."""


class ClientMissing(Exception):
    """The official client is not installed; the message says how to install it."""


def check_client() -> None:
    """Check that the official client is installed. Raises: ClientMissing."""
    try:
        import azure.servicebus.aio  # noqa: F401
    except ImportError:
        raise ClientMissing(
            "the demo uses Microsoft's client, which is not installed: run\n"
            "    pip install 'peeklock[demo]'\n"
            "or, in a work tree, ./run demo, which installs it into .venv"
        ) from None
    # The client logs tracebacks of errors that it raises too; the demo reports them itself.
    logging.getLogger("azure").setLevel(logging.CRITICAL + 1)


def create_queue(connection_string: str, certificate: Path) -> None:
    """Create the queue."""
    with _administration(connection_string, certificate) as administration:
        administration.create_queue(
            QUEUE,
            lock_duration=LOCK,
            max_delivery_count=DELIVERIES_MAX,
            requires_duplicate_detection=True,
        )


def count_left(connection_string: str, certificate: Path) -> int:
    """Return the number of messages in the queue, in any state, and in its dead-letter queue."""
    with _administration(connection_string, certificate) as administration:
        return int(administration.get_queue_runtime_properties(QUEUE).total_message_count)


def _administration(connection_string: str, certificate: Path) -> Any:
    from azure.servicebus.management import ServiceBusAdministrationClient

    return ServiceBusAdministrationClient.from_connection_string(
        connection_string,
        connection_verify=str(certificate),
        use_env_settings=False,  # no proxy to this machine
    )


class Site:
    """The senders and workers: one client, one ledger, and a flag to stop."""

    def __init__(self, connection_string: str, ledger: Ledger) -> None:
        from azure.servicebus.aio import ServiceBusClient

        self.ledger = ledger
        self.stopping = asyncio.Event()
        self.has_room = asyncio.Event()
        """Cleared while the queue holds enough, so that the backlog stays bounded."""
        self._client = ServiceBusClient.from_connection_string(connection_string, retry_total=0)
        self._browsing = _Link(self._receiver)

    async def close(self) -> None:
        """Close the client."""
        await self._browsing.drop()
        await self._client.close()

    # Sending

    async def send(self, jobs: Sequence[Job]) -> None:
        """Send jobs, each as one message, at most `IN_FLIGHT_MAX` at a time; repeat until answered."""
        waiting = iter(jobs)

        async def send_next() -> None:
            async with _Link(self._sender) as link:
                for job in waiting:  # shared by all senders: each takes the next
                    await self.has_room.wait()
                    message = _message(job)
                    await self._insist(link, "send_messages", message)
                    self.ledger.sent.add(job.id)

        await asyncio.gather(*(send_next() for _ in range(IN_FLIGHT_MAX)))

    async def schedule(self, jobs: Sequence[Job]) -> None:
        """Schedule jobs over the next seconds, many a call."""
        first_s, last_s = DUE_IN_S
        async with _Link(self._sender) as link:
            for at in range(0, len(jobs), SCHEDULED_BATCH):
                in_s = first_s + (last_s - first_s) * at / len(jobs)
                await self._schedule(link, jobs[at : at + SCHEDULED_BATCH], timedelta(seconds=in_s))

    async def withdraw(self, jobs: Sequence[Job]) -> None:
        """Schedule jobs for later, and cancel them."""
        from azure.servicebus.exceptions import MessageNotFoundError

        async with _Link(self._sender) as link:
            numbers = await self._schedule(link, jobs, timedelta(hours=1))
            for job, number in zip(jobs, numbers, strict=True):
                # Not due for an hour, so "not found" means: cancelled, and the answer was lost.
                with contextlib.suppress(MessageNotFoundError):
                    await self._insist(link, "cancel_scheduled_messages", number)
                self.ledger.withdrawn.add(job.id)

    async def _schedule(self, link: _Link, jobs: Sequence[Job], delay: timedelta) -> list[int]:
        messages, due = [_message(job) for job in jobs], datetime.now(UTC) + delay
        numbers = await self._insist(link, "schedule_messages", messages, due)
        self.ledger.sent.update(job.id for job in jobs)
        return list(numbers)

    async def _insist(self, link: _Link, method: str, *arguments: Any) -> Any:
        """Call a method of a link, again on a new one whenever the connection fails."""
        from azure.servicebus.exceptions import MessageNotFoundError, ServiceBusError

        while True:
            opened = await link.get()
            try:
                return await getattr(opened, method)(*arguments)
            except MessageNotFoundError:
                raise  # this is an answer
            except ServiceBusError:
                self.ledger.figures["repeated"] += 1
                await link.drop()

    # Working

    async def work(self) -> None:
        """Work off jobs with `WORKERS` workers until `stopping` is set."""
        await asyncio.gather(*(self._work() for _ in range(WORKERS)))

    async def _work(self) -> None:
        from azure.servicebus.exceptions import ServiceBusError

        async with _Link(self._receiver) as link:
            while not self.stopping.is_set():
                receiver = await link.get()
                try:
                    for message in await receiver.receive_messages(BATCH, max_wait_time=RECEIVE_S):
                        await self._take(receiver, message)
                except ServiceBusError:
                    await link.drop()

    async def _take(self, receiver: Any, message: Any) -> None:
        ledger, job_id = self.ledger, message.message_id
        trouble = Trouble(message.application_properties[b"trouble"].decode())
        ledger.deliveries[job_id] += 1
        ledger.unanswered.discard(job_id)
        first = ledger.deliveries[job_id] == 1
        if trouble is Trouble.HANGS and first:
            ledger.figures["left to expire"] += 1
        elif trouble is Trouble.FAILS or (trouble is Trouble.STUMBLES and first):
            if await self._settle(receiver.abandon_message(message), job_id):
                ledger.figures["abandoned"] += 1
                if message.delivery_count + 1 == DELIVERIES_MAX:
                    ledger.given_up.add(job_id)
        elif trouble is Trouble.POSTPONED:
            if await self._settle(receiver.defer_message(message), job_id):
                ledger.deferred.add(job_id)
        else:
            await self._do(receiver, message)

    async def _do(self, receiver: Any, message: Any) -> None:
        """Do a job, unless it is done already, and complete its message."""
        ledger, job_id = self.ledger, message.message_id
        if job_id in ledger.results:
            ledger.figures["done already"] += 1
        else:
            digest = message.application_properties[b"digest"].decode()
            try:
                ledger.results[job_id] = work(b"".join(message.body), digest)
            except Damaged as damage:
                dead_letter = receiver.dead_letter_message(
                    message, reason=DAMAGED_REASON, error_description=str(damage)
                )
                if await self._settle(dead_letter, job_id):
                    ledger.given_up.add(job_id)
                return
        if await self._settle(receiver.complete_message(message), job_id):
            ledger.completed[job_id] += 1

    async def _settle(self, settling: Awaitable[None], job_id: str) -> bool:
        """Settle a message; return whether that was confirmed."""
        from azure.servicebus.exceptions import ServiceBusError

        try:
            await settling
        except (ServiceBusError, ValueError):  # ValueError: the client has closed the link meanwhile
            self.ledger.unanswered.add(job_id)
            self.ledger.figures["answers lost"] += 1
            return False
        return True

    # Remaining messages

    async def count_waiting(self) -> int:
        """Browse the queue, record the deferred jobs, and return the number of other messages."""
        from azure.servicebus import ServiceBusMessageState

        waiting = 0
        for message in await self._browse():
            if message.state == ServiceBusMessageState.DEFERRED:
                self.ledger.deferred.add(message.message_id)
                self.ledger.unanswered.discard(message.message_id)
            else:
                waiting += 1
        return waiting

    async def fetch_deferred(self) -> int:
        """Receive the deferred jobs by their sequence numbers and do them; return their number."""
        numbers = [message.sequence_number for message in await self._browse()]
        receiver = await self._browsing.get()
        for at in range(0, len(numbers), BATCH):
            for message in await receiver.receive_deferred_messages(numbers[at : at + BATCH]):
                self.ledger.deliveries[message.message_id] += 1
                await self._do(receiver, message)
        return len(numbers)

    async def read_dead_letters(self) -> int:
        """Read the dead-letter queue until it is empty; return the number of messages."""
        from azure.servicebus import ServiceBusSubQueue

        found = 0
        dead_letters = self._client.get_queue_receiver(QUEUE, sub_queue=ServiceBusSubQueue.DEAD_LETTER)
        async with dead_letters as receiver:
            while messages := await receiver.receive_messages(BATCH, max_wait_time=RECEIVE_S):
                message: Any
                for message in messages:
                    self.ledger.dead.setdefault(message.message_id, []).append(
                        message.dead_letter_reason or ""
                    )
                    await receiver.complete_message(message)
                    found += 1
        return found

    async def _browse(self) -> list[Any]:
        found: list[Any] = []
        receiver = await self._browsing.get()
        number = 1
        while messages := await receiver.peek_messages(BROWSED, sequence_number=number):
            found += messages
            number = messages[-1].sequence_number + 1
        return found

    def _sender(self) -> Any:
        return self._client.get_queue_sender(QUEUE)

    def _receiver(self) -> Any:
        return self._client.get_queue_receiver(QUEUE)


class _Link:
    """A sender or receiver of one task; `get` opens it again after `drop`."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._opened: Any = None

    async def __aenter__(self) -> _Link:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.drop()

    async def get(self) -> Any:
        """Return the open link; while the broker is down, wait."""
        from azure.servicebus.exceptions import ServiceBusError

        while self._opened is None:
            link = self._make()
            try:
                await link.__aenter__()
            except ServiceBusError:
                await _close(link)
                await asyncio.sleep(REOPEN_S)
            else:
                self._opened = link
        return self._opened

    async def drop(self) -> None:
        """Close the link if it is open."""
        if self._opened is not None:
            link, self._opened = self._opened, None
            await _close(link)


async def _close(link: Any) -> None:
    from azure.servicebus.exceptions import ServiceBusError

    with contextlib.suppress(ServiceBusError, ValueError, OSError):
        await link.close()


def _message(job: Job) -> Any:
    from azure.servicebus import ServiceBusMessage

    return ServiceBusMessage(
        job.text,
        message_id=job.id,
        content_type="text/x-python",
        application_properties={"trouble": job.trouble.value, "digest": job.digest},
    )
