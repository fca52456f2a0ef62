"""The data source: messages as rows in the modes browse, cursor and peekLock.

browse         Mode browse as a batch: peeks, the ends of an entity, its division into tasks.
browse_stream  Mode browse as a stream: each message once, in sequence order.
columns        Encoded messages as Arrow arrays, one after the other.
cursor         Mode cursor as a stream: claims of messages as offsets.
data_source    The class that Spark registers: picks the reader or writer.
deferred       Deferred messages of an entity, by their sequence numbers.
layout         Where the columns of a message are, and which bytes others of its layout share.
offsets        Offsets of the streams in a checkpoint, and the budget of a batch.
peek_lock      Mode peekLock as a stream: deferred messages as offsets.
reader_names   How a stream in mode cursor names itself.
rows           Encoded messages as batches of Arrow columns.
schema         Columns of a message as a row.
sections       Reads the sections of an encoded message into plain values.
tables         The options of a table in Spark's catalog.
tasks          How many tasks a read has, by its size, and which keys each reads.
uniform        Encoded messages as Arrow arrays, all of one layout at once.
"""
