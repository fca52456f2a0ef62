"""The sink: rows of a table sent to entities.

outgoing   Rows of a table as encoded messages.
overrides  An encoded message with some of its parts replaced.
writer     The sink `servicebus`: rows of a table, of a batch or a stream, sent to entities.
"""
