"""The values that pass through the broker's border: commands, changes, effects, events, errors, descriptions.

Modules here know nothing of queues, entities or handlers.

changes          What became true: the facts that a store keeps, past participles.
commands         What can be asked of the broker: plain values, imperatives.
descriptions     Descriptions of entities and rules, as data.
durations        ISO 8601 durations as the service writes and reads them: a leaf.
effects          What to do once the facts are durable: plain values, imperatives or answers.
errors           What the broker refuses, one class per reason a client can tell apart.
events           What happened, for whoever reads along: the life of every message as events.
message          The record of one stored message, and what of it is shown to a receiver.
quotas           What each tier allows, as data in one place.
search_commands  What can be asked about messages by what they are, wherever they stand: plain values,
                 imperatives.
"""
