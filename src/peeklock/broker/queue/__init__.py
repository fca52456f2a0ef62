"""One queue of messages, and the outcome that a command accumulates.

message_queue     The machine that stores, locks, gives back and removes messages.
enqueue           Arrival: a message is numbered, then stored, scheduled, or passed on.
delivery          Which receiver gets which message next.
settlement        Abandon, defer and dead-letter, with changed properties.
browsing          Reading a queue by sequence number.
peek_lock         Message locks and their holders.
graces            How long locks outlive their broken connection.
links             Links and connections, and the credit of receivers.
message_table     An ordered map from position to message, at about 8 bytes an entry.
sequence_numbers  Sequence numbers and partitions.
duplicates        Duplicate detection.
timers            What is due: queues in a namespace, messages in a queue.
wall_clock        How far the wall clock differs from the core's time.
awaited_bodies    Deletions that wait for a body.
message_sessions  The sessions of a queue that requires them.
message_session   One session: its messages, its holder, its state.
lapsed_sessions   Links that outlive the lock of their session.
session_ids       Which spellings of a session id are equal.
cursors           The cursors of a queue: named readers that hold messages, over a restart too.
cursor            One cursor, and how a claim is filled.
cursor_views      What others see of a cursor.
reconfiguration   Settings applied to a queue in use.
shared            What the queues of a namespace share, and what they need of entities.
outcome           Changes, effects, counters and events of one call.
counters          Counters since the start.
recorder          Events for the event log.
invariants        Checks between the indexes, for tests and simulation.
"""
