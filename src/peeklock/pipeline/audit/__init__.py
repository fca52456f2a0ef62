"""The audit: proves the broker's promises from its event log.

checks     Names and promises of the checks, findings, the verdict.
clocks     Steps of the broker's wall clock in an event log.
job        Reads the inputs, runs the checks and prints the verdict.
ledger     A ledger of clients compared with the event log.
life_rows  Rows of message events for the checks of lives.
lives      Checks of single lives: each event against the one before.
log        Survey of the event log: entities, gaps, epochs, settings.
passes     Checks across messages: numbers, sessions, duplicates, transactions, copies.
"""
