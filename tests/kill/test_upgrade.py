"""An earlier release under load, ended in any way, and then this one on its folder."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from peeklock.demo.broker import BrokerProcess
from peeklock.store.sqlite.format import FORMAT
from tests.kill.bank import Fate
from tests.kill.bank_loop import BankLoop
from tests.kill.capture_loop import CaptureLoop
from tests.releases import unpacked
from tests.store.damage import format_of

pytestmark = pytest.mark.kill

EARLIER_FORMAT = 6


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program of release 0.2.0."""
    return unpacked("0.2.0", tmp_path_factory.mktemp("releases"))


@pytest.fixture(params=["SIGKILL", "SIGTERM"])
def stops(request: pytest.FixtureRequest) -> bool:
    """Whether the last process of the earlier release is stopped, and not killed."""
    return bool(request.param == "SIGTERM")


class Upgrade:
    """Decides which release runs in the next round, and how a round ends."""

    def __init__(self, broker: BrokerProcess, earlier: Path, *, stops: bool) -> None:
        broker.executable = earlier
        self._broker = broker
        self._stops = stops
        self.formats: list[int] = []
        """Of the store, in each round."""

    def begin(self) -> bool:
        """Return whether the round that begins ends by SIGTERM: one of the earlier release."""
        self.formats.append(format_of(self._broker.data / "peeklock.db"))
        return self._stops and self._broker.executable is not None

    def end(self, *, has_worked: bool) -> None:
        """Go on with this release, if clients have done enough."""
        if has_worked:
            self._broker.executable = None


class UpgradedMessages(CaptureLoop):
    """Messages of one queue and their event log. The exporter lives as long as its broker."""

    def __init__(self, folder: Path, earlier: Path, *, stops: bool) -> None:
        super().__init__(folder, seed=1)
        self.upgrade = Upgrade(self.broker, earlier, stops=stops)

    async def round(self, *, polite: bool) -> None:
        polite = self.upgrade.begin()
        before = self.done()
        clients = [client for some in await self.connect(senders=2, receivers=2) for client in some]
        while min(now - then for now, then in zip(self.done(), before, strict=True)) < 50:
            self.check(clients)
            await asyncio.sleep(0.01)
        await (self.stop if polite else self.kill)(clients)
        self.upgrade.end(has_worked=True)

    def done(self) -> tuple[int, int]:
        """Return how many messages were accepted, and completed."""
        fates = self.ledger.fates.values()
        return sum(fate.accepted for fate in fates), sum(fate.completed for fate in fates)


class UpgradedBank(BankLoop):
    """Transactions, sessions and their states, schedules, duplicates."""

    def __init__(self, folder: Path, earlier: Path, *, stops: bool) -> None:
        super().__init__(folder, seed=1)
        self.upgrade = Upgrade(self.broker, earlier, stops=stops)

    async def round(self, *, polite: bool) -> None:
        await super().round(polite=self.upgrade.begin())
        committed = sum(transfer.fate is Fate.DONE for transfer in self.bank.transfers.values())
        self.upgrade.end(has_worked=committed > 10)

    def is_enough(self) -> bool:
        return FORMAT in self.upgrade.formats


def test_messages_of_an_earlier_release_are_neither_lost_nor_returned(
    tmp_path: Path, earlier: Path, stops: bool
) -> None:
    """Nor is a number used twice, and the event log goes on without a gap. Req: R-02, R-07, S-01, X-03."""
    loop = UpgradedMessages(tmp_path, earlier, stops=stops)
    figures = asyncio.run(loop.run(2))
    assert sorted(set(loop.upgrade.formats)) == [EARLIER_FORMAT, FORMAT]
    assert figures["accepted"] > 100
    assert figures["completed"] > 100


def test_transactions_of_an_earlier_release_are_whole(tmp_path: Path, earlier: Path, stops: bool) -> None:
    """Req: F-03, G-03, R-02, R-07, D-01, S-06."""
    loop = UpgradedBank(tmp_path, earlier, stops=stops)
    figures = asyncio.run(loop.run(2))
    assert sorted(set(loop.upgrade.formats)) == [EARLIER_FORMAT, FORMAT]
    assert figures["committed"] > 10
