"""Broker processes to look at: one with some of everything in it, and what a test sends there."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from peeklock.cli.running import BrokerError, find
from peeklock.demo.broker import BrokerProcess

LAG_S_MAX = 30.0
"""How long a broker may refuse messages since the machine is busy with other tests. Our choice."""

CONFIG = {
    "UserConfig": {
        "Namespaces": [
            {
                "Name": "sbemulatorns",
                "Queues": [
                    {"Name": "orders", "Properties": {"MaxDeliveryCount": 3}},
                    {"Name": "invoices", "Properties": {"RequiresSession": True}},
                    {"Name": "letters", "Properties": {"DefaultMessageTimeToLive": "PT1H"}},
                    {"Name": "reminders"},
                    {"Name": "shipping/europe"},
                ],
                "Topics": [
                    {
                        "Name": "events",
                        "Subscriptions": [
                            {"Name": "audit"},
                            {
                                "Name": "billing",
                                "Rules": [
                                    {
                                        "Name": "large",
                                        "Properties": {
                                            "FilterType": "Sql",
                                            "SqlFilter": {"SqlExpression": "amount > 100"},
                                        },
                                    }
                                ],
                            },
                        ],
                    },
                    {"Name": "alerts", "Subscriptions": [{"Name": "on-call"}]},
                ],
            }
        ],
        "Logging": {"Type": "File"},
    }
}


class ExploredBroker(BrokerProcess):
    """A broker in development mode, unless `arguments` say otherwise."""

    def __init__(self, folder: Path, arguments: Iterable[str] = ()) -> None:
        config = folder / "Config.json"
        config.write_text(json.dumps(CONFIG))
        super().__init__(folder, ["--durability=os", f"--config={config}", *arguments])

    def __enter__(self) -> ExploredBroker:
        self.start()
        return self

    @property
    def url(self) -> str:
        """Of the page; it ends with a slash."""
        return f"http://localhost:{self.http_port}/"

    def at(self, place: str) -> str:
        """Return the address of a place of the page, such as `entities/orders/messages`."""
        return f"{self.url}#/{place}"

    def api(self, method: str, path: str, body: Any = None) -> Any:
        """Ask the API over the control socket, with all rights."""
        asked = find(self.data)
        asked.headers["Content-Type"] = "application/json"
        content = b"" if body is None else json.dumps(body).encode()
        ends_at = time.monotonic() + LAG_S_MAX
        while True:
            try:
                return asked.value(method, f"/$api/v1/{path}", content)
            except BrokerError as refusal:
                if "try again later" not in str(refusal) or time.monotonic() > ends_at:
                    raise
                time.sleep(0.1)  # the machine is busy, as the broker has noticed

    def send(self, entity: str, messages: list[dict[str, Any]]) -> list[int]:
        """Send messages as the API takes them; return their sequence numbers, if they are known at once."""
        sent = self.api("POST", f"entities/{entity.replace('/', '%2F')}/messages", messages)
        return list(sent.get("sequenceNumbers", []))

    def dead_letter(self, entity: str, reasons: list[tuple[str, str]]) -> None:
        """Dead-letter the next messages of a queue, each with a reason and a description."""
        path = f"entities/{entity.replace('/', '%2F')}/locks"
        for delivery in self.api("POST", path, {"max": len(reasons)})["deliveries"]:
            reason, description = reasons.pop()
            body = {"outcome": "deadLetter", "reason": reason, "description": description}
            self.api("PATCH", f"{path}/{delivery['lock']['token']}", body)

    def fill(self) -> None:
        """Send some of everything."""
        orders = [
            {
                "body": json.dumps(
                    {"order": number, "customer": f"customer-{number % 7}", "amount": number * 12.5}
                ),
                "contentType": "application/json",
                "messageId": f"order-{number}",
                "subject": "order",
                "properties": {"region": ("north", "south")[number % 2], "amount": number},
            }
            for number in range(60)
        ]
        self.send("orders", orders)
        reasons = [("PaymentRefused", "the card was refused"), ("AddressUnknown", "no such street")]
        self.dead_letter("orders", [reasons[number % 2] for number in range(12)])
        sessions = [{"body": f"line {n}", "sessionId": f"invoice-{n % 5}"} for n in range(20)]
        self.send("invoices", sessions)
        at = (datetime.now(UTC) + timedelta(days=2)).isoformat()
        self.send("reminders", [{"body": "call back", "scheduledEnqueueTime": at}] * 4)
        self.send(
            "events", [{"body": f'{{"amount": {n}}}', "properties": {"amount": n}} for n in range(90, 120)]
        )
