"""Back-ups: what stores have as the bytes of a file, and stores made of such files. Works with any store.

format     The bytes of a back-up: blocks in a chain of checksums.
restoring  Makes a store of a back-up and its increments, whose numbers begin far ahead.
taking     Writes what a store has, or what is new since the last back-up, while commits go on.
verifying  Reads back-ups through before anything is made of them.
writing    Compresses blocks in a thread, and writes them in order.
"""
