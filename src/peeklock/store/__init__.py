"""Durable storage without rules: batches of facts are kept whole or not at all, and returned in order.

backup         Back-ups of stores, and stores made of them.
base           The contract of a store, and its values.
blobs          Numbered blobs in memory whose copies are cheap.
check          Verifies a data folder, for `peeklock check`.
encoding       The bytes of frames, body rows, event rows and definitions.
event_backlog  The numbers and sizes of the event rows that wait to be exported.
losses         What a rescue lost, as lines of text.
memory         The store in memory.
postgres       The durable store of several processes: a PostgreSQL database.
renumbering    The facts of a store as a new journal, with numbers that begin far ahead.
rescue         Replaces a damaged store by a copy of what can be read.
sqlite         The durable store: a SQLite database in a data folder.
worker         Does the jobs of a store, in order, in threads of a pool.
"""
