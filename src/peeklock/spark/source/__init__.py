"""The data source: browse, peek-lock and cursor mode, as batch and stream.

browse         Browsing: a batch read of what is in a queue, which changes nothing.
browse_stream  Browsing as a stream: every message once, in the order of sequence numbers; nothing is changed.
cursor         The stream of cursor mode: claims of messages as offsets.
data_source    The data source `servicebus` as Spark sees it.
deferred       Deferred messages of an entity: how any Service Bus keeps messages for a reader without a lock.
offsets        Offsets of the streams, as they stand in a checkpoint, and the plan of what a batch may take.
peek_lock      The stream of peek-lock mode: any Service Bus, by messages that are deferred.
rows           Messages as they come from the wire, turned into rows by columns.
schema         Columns of a message as a row.
"""
