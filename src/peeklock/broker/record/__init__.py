"""What is recorded of each message: events for the event log, and the history of messages that left.

history           The messages that left lately: what was sent, and who took it.
history_recorder  Taking down what the history wants to know, beside the events of the log or without them.
recorder          Taking down what happens while capture is on.
"""
