"""The values that cross the broker's border. They know nothing of queues, entities or handlers.

addresses            Names of links, answers, messages, locks and queues.
changes              The facts that a store keeps.
commands             Requests to the broker; the next two are parts of it.
definition_commands  Commands about entities and rules.
extension_commands   Commands that the service does not have: cursors, searches, shifts.
descriptions         Settings of entities and rules.
durations            ISO 8601 durations as the service reads and writes them.
effects              What to do once the changes are durable: deliveries and answers.
errors               Reasons for a refusal, one class each.
events               What happened to messages, sessions and entities, for the event log.
message              The record of a stored message, and the view of it that a reader gets.
quotas               What each tier allows.
"""
