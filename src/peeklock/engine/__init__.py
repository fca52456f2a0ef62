"""The order of durability, sans-IO.

driver    which batch is committed next, which effects leave and when, which bodies are read
engine    the open batch and the one in flight, placing of bodies, recovery
bodies    cache of body rows
reclaim   ledger of body rows: what to drop, copy forward or read
journal   ledger of the journal's frames: what to forget or record again
"""
