"""The language of subscription rules: SQL filters and actions, correlation filters. A pure leaf.

A filter sees a message as a `Subject`; it knows no subscriptions and no wire.

    filters      filters and actions as plain values, before they are compiled
    subject      the message as seen by rules; names of system properties
    errors       RuleError (at definition) and EvaluationError (for a message)

Text to tree
    ast          the syntax tree, and the tree back to text
    grammar      grammar, tokens, and the tree that lark builds
    parser       parsing with its limits, errors with positions
    hints        what to write instead of words and signs from other languages

Tree to functions
    compiled     compiled filters, also of correlation filters: what the broker calls
    action       compiled actions: the changes to the copy of a message
    terms        the terms of a filter: their order, equalities and ranges
    predicate    conditions, with three-valued logic
    expression   properties, parameters, functions, arithmetic
    explain      why a filter matches a message or does not
    values       kinds of values, comparison, arithmetic
    like         compiled patterns of LIKE

Many rules
    index        the rules of a topic that a message matches
    families     rules that share the evaluation of common terms
    ranges       rules by ranges of a value

Source: wire contract 9; Learn "Subscription Rule SQL Filter Syntax", "Subscription Rule SQL Action Syntax".
"""
