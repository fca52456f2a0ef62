"""One queue of messages: order, locks, sessions, timers, cursors, and the outcome that a command accumulates.

awaited_bodies    Deletions that wait until a body has been read: of messages that are deleted as they are
                  received.
browsing          Looking through a queue by sequence number: browse, oldest first, by one number.
counters          What happened since the start, counted: integers that never fall.
cursors           Cursors: named readers that hold messages of a queue, also over a restart (X-06).
delivery          Who gets which message next: the order of retrieval and the hand-out.
duplicates        Which message ids were seen lately.
enqueue           How a message comes into a queue or topic: numbered, then stored, set aside for later, or
                  passed on.
graces            Locks over broken connections: they end when the grace of their connection is over.
invariants        What must always be true between the indexes of a queue.
lapsed_sessions   Links that outlive the lock of their session for a moment.
links             Links to a queue and their credit; who is served next.
message_queue     One queue of messages: the machine that stores, locks, gives back and removes.
message_session   One session: its messages in order, its holder, its state.
message_sessions  The sessions of a queue that requires them.
message_table     An ordered map from a dense integer to a message, at about 8 bytes an entry.
outcome           What follows from one command, or from what is due: one accumulator for all of it.
peek_lock         An exclusive hold on one message, named by its token, or on several, for a cursor.
sequence_numbers  Sequence numbers and the unwrapped order behind them.
session_ids       When two session ids name one session.
settlement        What a receiver asks for a message that it holds: abandon, defer, dead-letter.
shared            What the queues of a namespace have in common.
timers            When something is due: for the namespace a queue or another part of it, for a queue a
                  message.
wall_clock        How far the wall clock is from the core's time, and which instants are believed.
"""
