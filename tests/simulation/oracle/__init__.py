"""The checker: the durable facts and what clients saw, compared with the promises of the requirements.

It gets copies of committed batches, calls from clients, and events of the world; it knows no structure of the
broker. `Violation` is raised at the moment a promise is broken, or at the end of the seed.

    checker       entry point; promises about sending, receiving, settling
    history       what clients did and saw, and what the world did
    records       copies of the durable facts; `Violation`
    facts         the facts, folded from the batches, and their invariants
    cursors       the same for cursors and claims

    reasons       why a message may be in its place, or gone
    routes        where forwards may lead
    arrivals      duplicate detection
    copies        which copies a topic must make, and which of them a record is
    search        the search behind `copies`
    rulebook      rules, with an evaluator that is not the broker's
    rulings       requests to change rules, and their results
    holds         who holds a session; the order of its messages
    spellings     spellings of session ids, and the session that each means
    states        states of sessions
    graces        when a broken connection's locks end
    units         transactions: all or nothing
    http_deletes  what receive-and-delete over HTTP may remove
    bounds        what a peer may make the broker do in a turn, and hold

    story         hand-made histories for the tests of the checker
    event_log     a simulated broker's event log, for the audit
"""
