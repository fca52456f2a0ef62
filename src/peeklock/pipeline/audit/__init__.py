"""The audit: proves the broker's promises from its event log.

checks  What the audit checks, and what it says of it.
clocks  Steps of the broker's wall clock, as an event log tells them.
graces  Until when the lock of a broken connection may be held, as an event log tells it.
job     The audit: proves the broker's promises from its event log, or shows where they were broken.
ledger  What clients say they sent and received, compared with the event log.
lives   The checks of single lives: each event of a message against the one before.
log     The event log as the audit reads it: what is in it, where it has gaps, and its events as narrow rows.
passes  The checks of what several messages have to do with each other.
"""
