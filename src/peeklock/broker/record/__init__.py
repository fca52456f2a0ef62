"""The history of messages that left recently, for tests of applications.

history           Entries of messages that left: what was sent, and who received it.
history_recorder  The recorder that fills the history, with the events of the log or without them.
"""
