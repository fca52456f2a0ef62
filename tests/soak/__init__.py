"""The soak: one real broker under mixed load for minutes or hours, killed, restarted and backed up meanwhile.

    python -m tests.soak --minutes 60 --seed 0

Clients and ledgers are those of the kill loops where they fit. A conductor carries out a plan. At the end
everything is drained and judged, and what the broker used is compared over time.

    plan        what happens when: a pure function of seed and length
    conductor   carries out the plan, then drains, and judges
    site        the broker's folder: configuration, keys, clock, commands of `peeklock`
    loads       the clients of the kill loops, at a bounded rate
    features    threads with the blocking client, one for each kind of use
    features_held  of them, those that hold something: sessions, a cursor
    official    a thread with the official client, and one over HTTP
    copies      back-ups, restores and damaged copies, and what must be found in them
    watch       samples of what the broker uses
    growth      whether something grows: pure
    events      the event log at the end
    picture     samples and events over time, drawn
    summary     the page of results
"""
