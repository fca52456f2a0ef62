"""Facts as bytes.

body_rows    Payloads of messages as one BLOB, with a checksum each.
definitions  Entities, rules, cursors, claims and facts as entries with checksums; their consistency.
entities     Entities, cursors and claims as JSON texts, and the keys of facts.
event_rows   The events of a batch as one BLOB of compressed columns.
fold         Replays a journal: only records that last become objects, and the chain of frames is checked.
frames       The facts of a batch as one BLOB: runs of records.
packed       A batch as blobs: what a store of a database writes in one transaction.
records      The records of stored messages in a frame.
rules        Rules of subscriptions as JSON texts.
"""
