"""Long work over the messages of an entity: purge, move, resubmit. Pure.

A job knows no connection and no clock. It yields operations, such as "receive up to 250", and takes their
outcomes and the time. `worker.job_driver` carries them out over a blocking connection.

edits       What a moved message has of its own: properties, ids.
plan        `Plan`: what a job does, where, and what it promises.
survey      What is there when a job starts: how many messages, and up to which number.
operations  What a job asks for, and the outcomes.
job         `Job`: the order of the operations.
sweep       `Sweep`: the same for deferred and scheduled messages, which are removed by their numbers.
checkpoint  A job that has begun, as JSON.
groups      Dead letters counted by a value of theirs.

Theory of operation. Messages are received with locks, in the order of the queue. Those that match are sent to
the target and then completed, or both in one transaction; so each of them is in at least one of both places
at every instant. The others are held: their locks are renewed, so that they do not come again, and released
at the end, which counts no delivery (wire contract 3.6). Messages that come after the start have higher
numbers than all that were there, and are not taken: a message that fails again is not sent in a loop.
"""
