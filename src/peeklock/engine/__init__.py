"""The order of durability, sans-IO: what is decided, what is committed, what is released, and in which order.

`driver` says what is to be done and what leaves when, `engine` holds the open batch and the one in flight,
`bodies` the payloads in memory, `reclaim` the ledger of space.
"""
