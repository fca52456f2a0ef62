"""The language of subscription rules: SQL filters and actions, correlation filters. A pure leaf.

Owns: grammar, syntax tree, evaluation with three-valued logic, actions, and the index that finds the rules a
message may match. Must not know: subscriptions, AMQP, the wire, anything else of ours. What a filter sees of
a message is a `Subject`.
Source: wire contract 9; Learn "Subscription Rule SQL Filter Syntax", "Subscription Rule SQL Action Syntax".
"""
