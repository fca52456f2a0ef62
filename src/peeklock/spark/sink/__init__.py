"""The sink: rows of a table sent to entities.

columns    Columns of a table that can be written: their names, types and places.
outgoing   Rows encoded as messages, an Arrow batch at a time.
writer     The writers that Spark calls: rows in batches of messages to their entities.
"""
