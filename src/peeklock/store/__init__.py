"""Durable facts, no rules: batches are kept whole or not at all, in order, and given back.

`base` is the contract, `memory` and `sqlite` keep it, `frames`, `body_rows`, `entities` and `rules` are the
bytes, `check` verifies a folder.
"""
