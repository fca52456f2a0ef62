"""Filters that compare, as subscribers of one topic write them, and messages of which each matches a few.

Owns: the mix that `micro_rules` and `micro_topics` measure. Knows nothing of topics.

One filter in ten is of each kind. Messages are the same in each run.
"""

from __future__ import annotations

import random

from peeklock.rules.filters import SqlFilter, Value

REGIONS = 20


def compared(n: int) -> SqlFilter:
    """Return the n-th filter of the mix."""
    k = n // 10
    kinds = (
        f"amount > {900 + k} AND region = 'r{k % REGIONS}'",
        f"priority >= 3 AND weight > {k + 40}.5",
        f"quantity >= {10 * k} AND quantity < {10 * k + 10}",
        f"sku LIKE 'part-{k:03}-%'",
        f"carrier IN ('c{k}', 'c{k + 1}', 'c{k + 2}')",
        f"coupon IS NULL AND amount > {950 + k}",
        f"price * quantity > {40_000 + 1_000 * k}",
        f"sku LIKE '%-x{k}' AND amount < 500",
        f"(region = 'r{k % REGIONS}' OR priority > 8) AND weight <= {k % 10}",
        f"status <> 'closed' AND days > {k + 50} AND customer <> 'c{k}'",
    )
    return SqlFilter(kinds[n % 10])


def properties(count: int) -> list[dict[str, Value]]:
    """Return the application properties of so many messages."""
    chance = random.Random(17)
    found: list[dict[str, Value]] = []
    for _ in range(count):
        each: dict[str, Value] = {
            "amount": chance.randrange(1_000),
            "region": f"r{chance.randrange(REGIONS)}",
            "priority": chance.randrange(10),
            "weight": chance.randrange(5, 450) / 10,
            "quantity": chance.randrange(1_000),
            "sku": f"part-{chance.randrange(100):03}-x{chance.randrange(100)}",
            "carrier": f"c{chance.randrange(100)}",
            "price": chance.randrange(1, 100) / 2,
            "status": chance.choice(("open", "paid", "closed")),
            "days": chance.randrange(55),
            "customer": f"c{chance.randrange(1_000)}",
        }
        if chance.random() < 0.5:
            each["coupon"] = "SAVE10"
        found.append(each)
    return found
