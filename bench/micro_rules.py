"""`python -m bench.micro_rules`: the cost of defining a rule, and of evaluating it for a message.

Owns: the figures for the budgets of the rules. Knows nothing of topics.

Each figure is the best of several rounds, as `timeit` advises: the rest is noise of the machine.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Callable
from uuid import UUID

from bench.rule_mix import compared, properties
from peeklock.rules.compiled import CompiledFilter, compile_action, compile_filter
from peeklock.rules.filters import CorrelationFilter, Filter, SqlAction, SqlFilter, TrueFilter, Value
from peeklock.rules.index import RuleIndex
from peeklock.rules.parser import parse_filter

RULES = 10_000
TEN_TERMS = (
    "a = 1 AND b = 'x' AND c > 3 AND d <= 5 AND e <> 'q' AND f IN (1, 2, 3) AND g LIKE 'a%' AND h = TRUE "
    "AND sys.Label = 'order' AND i IS NOT NULL"
)
ACTION = "SET total = c * d; SET sys.Label = 'big-' + b; REMOVE g"


USER: dict[str, Value] = {
    "a": 1,
    "b": "x",
    "c": 5,
    "d": 2,
    "e": "r",
    "f": 3,
    "g": "abc",
    "h": True,
    "i": 9,
    "customer": 77,
}


class BenchMessage:
    """A message whose properties have been read."""

    def __init__(self, user: dict[str, Value] = USER) -> None:
        self.user = user
        self.system: dict[str, Value] = {"label": "order", "messageid": "m-1"}

    def has_user(self, folded_name: str) -> bool:
        return folded_name in self.user

    def user_name(self, folded_name: str) -> str | None:
        return folded_name if folded_name in self.user else None

    def new_id(self) -> UUID:
        return UUID(int=1)


def best_us(work: Callable[[], object], count: int, rounds: int) -> float:
    """Return the microseconds of one call, the best of several rounds."""
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in itertools.repeat(None, count):
            work()
        best = min(best, (time.perf_counter() - start) / count)
    return best * 1e6


def indexes() -> dict[str, RuleIndex[int]]:
    """Return indexes of many rules; a message matches one, except the last, where it matches all."""
    rules: dict[str, Callable[[int], Filter]] = {
        "correlation, by label": lambda n: CorrelationFilter(label="order" if n == 77 else f"label-{n}"),
        "correlation, by label and customer": lambda n: CorrelationFilter(
            label="order", properties=(("customer", n),)
        ),
        "SQL, customer = n AND c > 3": lambda n: SqlFilter(f"customer = {n} AND c > 3"),
        "SQL, customer > n: asked one by one": lambda n: SqlFilter(f"customer > {n + 76}"),
        "all match": lambda n: TrueFilter(),
    }
    made = {}
    for name, rule_of in rules.items():
        index: RuleIndex[int] = RuleIndex()
        for number in range(RULES):
            index.add(number, compile_filter(rule_of(number)))
        made[name] = index
    return made


def mixed(rounds: int) -> None:
    """Print the cost of a message among more and more filters of the mix, and of adding or removing a
    filter."""
    messages = [BenchMessage(user) for user in properties(200)]
    print("\na mix of comparisons:")
    for count in (1, 10, 100, 1_000, 10_000):
        index: RuleIndex[int] = RuleIndex()
        rules = [compile_filter(compared(n)) for n in range(count)]
        for number, rule in enumerate(rules):
            index.add(number, rule)
        found = sum(len(index.match(message)[0]) for message in messages) / len(messages)

        def match(index: RuleIndex[int] = index) -> None:
            for message in messages:
                index.match(message)

        us = best_us(match, max(1, 1_000 // count), rounds) / len(messages)
        removed, added, first = _changed(index, rules[-100:], count, messages[0])
        print(
            f"{count:>9,} rules {us:9.2f} us, {found:.1f} found; remove {removed:.1f}, add {added:.1f}, "
            f"the first message behind it {first:.1f}"
        )


def _changed(
    index: RuleIndex[int], rules: list[CompiledFilter], count: int, message: BenchMessage
) -> tuple[float, float, float]:
    spent: list[tuple[float, float, float]] = []
    clock = time.perf_counter
    for number, rule in enumerate(rules, count - len(rules)):
        started = clock()
        index.remove(number)
        removed = clock()
        index.add(number, rule)
        added = clock()
        index.match(message)
        spent.append((removed - started, added - removed, clock() - added))
    removals, additions, matches = (sorted(each)[len(each) // 2] * 1e6 for each in zip(*spent, strict=True))
    return removals, additions, matches


def first_text_ms() -> float:
    """Return how long the first expression of a process waits: for lark and the table of the grammar."""
    assert "lark" not in sys.modules
    start = time.perf_counter()
    parse_filter("a = 1")
    return (time.perf_counter() - start) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds

    def line(name: str, figure: float, note: str = "") -> None:
        print(f"{name:<44}{figure:9.2f} us   {note}".rstrip())

    print(f"first text of a process: {first_text_ms():.0f} ms")
    parse = parse_filter.__wrapped__
    line(
        "parse 'color = ...' AND quantity = ...",
        best_us(lambda: parse("color='blue' AND quantity=10"), 200, rounds),
    )
    line("parse ten terms", best_us(lambda: parse(TEN_TERMS), 200, rounds), "budget 300")
    line(
        "compile ten terms, parsed before", best_us(lambda: compile_filter(SqlFilter(TEN_TERMS)), 500, rounds)
    )
    message = BenchMessage()
    ten = compile_filter(SqlFilter(TEN_TERMS))
    assert ten.matches(message)
    line("ten terms, all true", best_us(lambda: ten.matches(message), 20_000, rounds), "budget 3")
    action = compile_action(SqlAction(ACTION))
    line("action of three statements", best_us(lambda: action.apply(message), 5_000, rounds))
    print(f"\n{RULES:,} rules:")
    for name, index in indexes().items():
        found = len(index.match(message)[0])
        count = 20_000 if found == 1 and "asked" not in name else 50
        line(name, best_us(lambda index=index: index.match(message), count, rounds), f"{found:,} found")  # type: ignore[misc]  # mypy cannot infer a lambda with a default
    mixed(rounds)


if __name__ == "__main__":
    main()
