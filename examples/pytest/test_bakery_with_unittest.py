"""The same without pytest's fixtures: `python -m unittest` runs it."""

from __future__ import annotations

import asyncio
import unittest
from pathlib import Path

from bakery import order, ship  # type: ignore[import-not-found]  # it is beside this file

from peeklock.testing.program_tests import BrokerForTests

CONFIG = Path(__file__).parent / "Config.json"


class BakeryTest(unittest.TestCase):
    broker: BrokerForTests

    @classmethod
    def setUpClass(cls) -> None:
        cls.broker = cls.enterClassContext(BrokerForTests())

    def setUp(self) -> None:
        self.namespace = self.enterContext(self.broker.namespace(CONFIG))

    def test_an_order_is_shipped(self) -> None:
        asyncio.run(order(self.namespace.connection_string, "a cake"))
        ship(self.namespace.connection_string)
        self.namespace.wait_for("shipped", where=lambda message: message["body"] == "a cake")
