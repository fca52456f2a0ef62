"""Steps that receive and settle messages."""

from __future__ import annotations

from tests.interop.dotnet import frames
from tests.interop.dotnet.client import Session
from tests.interop.dotnet.scenario import Step
from tests.interop.dotnet.stage import Stage, Waits
from tests.interop.dotnet.words import expand


class Taking(Stage):
    """Steps of receivers."""

    # Receiving

    def client_flow(self, step: Step) -> None:
        """Give credit; with `drain` request the end of it."""
        link = self.links[step.words[0]]
        self.client.flow(link, int(step.words[1]), drain="drain" in step.words, dropped="lost" in step.words)

    def broker_drained(self, step: Step) -> Waits:
        """Wait until the credit is used up; answer with a credit of 0 where the broker asks for an echo."""
        link = self.links[step.words[0]]
        yield from self.until(lambda: not link.drains, f"the answer to the drain of {link.label}")
        self._check(link.credit == 0, f"expected no credit, not {link.credit}")

    def broker_transfer(self, step: Step) -> Waits:
        """Wait for deliveries: LABEL [COUNT], and check them by the options."""
        link = self.links[step.words[0]]
        count = int(step.words[1]) if len(step.words) > 1 else 1
        start = link.taken
        link.taken += count
        yield from self.until(
            lambda: len(link.deliveries) >= link.taken, f"{count} deliveries on {link.label}"
        )
        for offset in range(count):
            wrong = self.receiving.wrong(link, link.deliveries[start + offset], step, offset)
            self._check(not wrong, f"delivery {start + offset} on {link.label}: {wrong}")

    def client_complete(self, step: Step) -> None:
        self._settle(step, frames.ACCEPTED)

    def client_abandon(self, step: Step) -> None:
        self._settle(step, frames.modified(self.option("changes")))

    def client_defer(self, step: Step) -> None:
        self._settle(step, frames.modified(self.option("changes"), undeliverable=True))

    def client_dead_letter(self, step: Step) -> None:
        """Settle deliveries; `info=` is that of the error; without it there is none."""
        self._settle(step, frames.rejected(self.option("info")))

    def client_release(self, step: Step) -> None:
        """Release a delivery that no call waits for: settled, so nothing is answered."""
        self._settle(step, frames.RELEASED, settled=True)

    def _settle(self, step: Step, outcome: bytes, *, settled: bool = False) -> None:
        link = self.links[step.words[0]]
        lost = "lost" in step.words
        transaction = self._transaction()
        state = outcome if transaction is None else frames.transactional(transaction, outcome)
        for index in expand(step.words[1]):
            number = link.deliveries[int(index)].delivery_id
            link.session.settlements.pop(number, None)
            data = frames.disposition(link.session.channel, number, state, settled=settled)
            self.client.write(f"disposition {link.label} {number} {step.verb}", data, dropped=lost)

    def broker_settled(self, step: Step) -> Waits:
        """Wait until deliveries, by their place on the link, are settled: LABEL PLACE KIND [CONDITION]."""
        link = self.links[step.words[0]]
        kind = step.words[2] if len(step.words) > 2 else "accepted"
        condition = step.words[3] if len(step.words) > 3 else None
        for index in expand(step.words[1]):
            number = link.deliveries[int(index)].delivery_id
            yield from self._settlement(link.session, number)
            self._settled(link.session.settlements[number], kind, condition)

    def _settlement(self, session: Session, number: int) -> Waits:
        found = session.settlements
        return self.until(lambda: number in found, f"a disposition of delivery {number}")
