"""Senders and workers in two languages, with Microsoft's clients, over a new connection after each failure.

Owns: how a client sends, receives and completes. Must not know: what fails when; what must hold.
"""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
import subprocess
import threading
from pathlib import Path

from azure.servicebus import ServiceBusClient
from azure.servicebus.exceptions import ServiceBusError

from tests.faults.book import COMPLETED, RECEIVED, SENT, UNKNOWN, Book
from tests.interop import builds

RETRY_S = 0.1
BATCH = 20
RECEIVE_S = 1.0
WORKER = Path(__file__).with_name("worker.mjs")


class PythonClient:
    """A thread that sends and one that receives and completes."""

    name = "Python"

    def __init__(self, connection_string: str, book: Book) -> None:
        logging.getLogger("azure").setLevel(logging.CRITICAL + 1)  # of breaks, which are meant
        self._connection_string = connection_string
        self._book = book
        self._ends = threading.Event()
        self._sends = threading.Event()
        self._sends.set()
        self._threads = [
            threading.Thread(target=self._again, args=(step,), daemon=True)
            for step in (self._send, self._work)
        ]
        self._number = 0

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def quiet(self) -> None:
        """Send no more."""
        self._sends.clear()

    def end(self) -> None:
        """Receive no more."""
        self._ends.set()
        for thread in self._threads:
            thread.join()

    def _client(self) -> ServiceBusClient:
        return ServiceBusClient.from_connection_string(self._connection_string, retry_total=0)

    def _again(self, step: object) -> None:
        assert callable(step)
        while not self._ends.is_set():
            # ValueError: the client's own, for a settlement after its link has closed.
            with contextlib.suppress(ServiceBusError, ValueError, OSError), self._client() as client:
                step(client)
            self._ends.wait(RETRY_S)

    def _send(self, client: ServiceBusClient) -> None:
        from azure.servicebus import ServiceBusMessage

        with client.get_queue_sender(self._book.queue) as sender:
            while self._sends.is_set() and not self._ends.is_set():
                self._number += 1
                name = f"python-{self._number}"
                action = UNKNOWN
                try:
                    sender.send_messages(ServiceBusMessage(name, message_id=name))
                    action = SENT
                finally:
                    self._book.note(self.name, action, name)

    def _work(self, client: ServiceBusClient) -> None:
        with client.get_queue_receiver(self._book.queue) as receiver:
            while not self._ends.is_set():
                for message in receiver.receive_messages(BATCH, max_wait_time=RECEIVE_S):
                    name, number = str(message.message_id), message.sequence_number or 0
                    self._book.note(self.name, RECEIVED, name, number)
                    receiver.complete_message(message)
                    self._book.note(self.name, COMPLETED, name, number)


class JavaScriptClient:
    """A process of Node.js that does the same, and tells it line by line."""

    name = "JavaScript"

    def __init__(self, connection_string: str, book: Book) -> None:
        self._book = book
        self._connection_string = connection_string
        self._process: subprocess.Popen[str] | None = None
        self._thread = threading.Thread(target=self._listen, daemon=True)

    @staticmethod
    def build() -> Path:
        """Return the folder that has the client; the first time it is installed. Raises: BuildFailed."""
        return builds.build(builds.clients()["javascript"])

    @staticmethod
    def missing() -> str:
        """Return what this machine lacks for it; empty where it has all."""
        return "" if shutil.which("node") and shutil.which("npm") else "node and npm are not installed"

    def start(self) -> None:
        """Begin."""
        command = ["node", str(WORKER), str(self.build()), self._connection_string, self._book.queue]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self._thread.start()

    def quiet(self) -> None:
        """Send no more."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write("quiet\n")
        self._process.stdin.flush()

    def end(self) -> None:
        """Receive no more: its input ends, and it ends with that."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._thread.join()
        self._process.wait()

    def _listen(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = json.loads(line)
            self._book.note(self.name, said["action"], said["id"], said.get("number", 0))
