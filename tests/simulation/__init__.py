"""The broker under simulation: one thread, one heap of events, one seeded `Random`, and a checker apart.

    python -m tests.simulation --seed 7              one seed
    python -m tests.simulation --seeds 0:200         seeds 0 to 199
    python -m tests.simulation --seconds 60          as many seeds as fit, from 0 (or from A with --seeds A:B)
    python -m tests.simulation --replay 7 --trace    one seed, every event printed
    python -m tests.simulation --seed 7 --bug NAME   with a planted bug (see bugs.py)

What is real: `Gateway`, `Turns`, `Engine`, `Namespace`, `MemoryStore` with its codec, and on the client side
`amqp.Connection` in the client role. What is simulated: time, the network (`peeklock.testing.wire`), the
process and its death, the people at both ends.

Modules
    world        the heap, the clock, the random source, the running hash and the trace
    line         a wire laid in the world
    node         the broker: a store, and the processes that serve it one after another;
                 process: one of them, made of the real pieces (pieces), and its recovery;
                 driving: does what its driver says, as `server.driver_loop` does; commits: when a commit
                 lands; own_requests: what it asks itself;
                 served: one of its connections, driven as `server.amqp` does, in turns and slices
    peer         one client connection: SASL, CBS, links, requests, transactions, over a wire that may break
    actors       somebody with one connection at a time; who he is: senders, receivers, session_receivers,
                 keepers, transactors, managing, curators (of rules), readers (by
                 claims), and drainers at the end
    http_clients clients that speak HTTP, with a random source apart; http_peer: their requests and what they
                 read; http_service: the broker's side, driven as `server.http_dispatch` and `server.hub`
                 do
    hostile      peers that mean harm, with frames made by hand and a random source apart
    visitors     peers that play scenarios of the .NET client (tests/interop/dotnet), with nobody
                 beside them: what they expect is the checker there (test_visitors)
    messages     what clients send; requests: what they ask of the management nodes, and what may be answered
    records      copies of the durable facts; facts: what the committed batches add up to, and what must hold
                 between them; cursors: the same of what cursors hold
    machine      the clocks of the broker's machine, and who sets them
    clocks       what the broker's clocks were when, as the checker knows it
    history      what clients did and saw, and what the world did
    checker      history and facts compared with what the requirements promise, with
                 reasons (why a message may be where it is, or gone), routes (where forwards lead), copies
                 (of messages by topics), search (what topics make of them), rulings (what was asked about
                 rules), arrivals (duplicates), holds (sessions and their order), states (of sessions),
                 units (transactions), http_deletes (what requests over HTTP may take away), bounds (what a
                 peer may make the broker do in a turn, and hold)
    rulebook     a small language of rules, with an evaluator that is not the broker's
    plan         a seed's choices: actors and faults; then the phase without faults; topology: its entities
    bugs         planted bugs, each a subclass or wrapper of a real piece; planted, planted_topics: those in
                 the broker's core; planted_peers: those in how it bears hostile peers;
                 planted_http: those in what is done over HTTP
    sizes        the broker's sizes brought down to what a simulation writes

Fault model
    Network   Bytes are delayed (0 to 1.2 s), split and joined, never corrupted, reordered or duplicated: TCP
              sees to that. A connection may break at any instant with a random part of what is under way
              lost, both ends being told; or go half open, with nobody told until an idle time-out. Clients
              also leave properly (detach, end, close) and vanish right after.
    Process   Dies at any instant, also between any two steps of a commit, and loses all memory. Starts again
              1 ms to seconds later, by recovery from the store into new objects. Every connection breaks
              with it.
    Store     A commit takes 0 to 20 ms, rarely 2 s. A process that dies in a commit finds it wholly stored or
              wholly absent. A commit may fail (nothing stored, or stored and reported as failed): the process
              then dies. What was stored stays as it was: bit rot and torn pages are the business of the
              store's own tests.
    Clock     The world jumps by hours at times, and the broker's clock with it: all machines are suspended.
              Over a restart the clock may also be set back, by up to an hour. In two seeds of nine the wall
              clock is set while the broker runs, by seconds to 30 hours in either direction, an operator
              says now and then that it is right, and in half of those the clock that counts what passes runs
              up to 3 % slow or fast; the broker has the server's `SlewedClock` over both. In the others the
              two agree. In about one seed of eight everybody is 240 times slower, so that hours pass: locks
              are renewed for long, transactions and queues time out.
    Entities  Settings change while in use, forwards among them; a status forbids to send or to receive for a
              while; entities are deleted, by the administration or because they are idle, and made again.
              Rules are added, changed and removed while messages come. One seed of four has topics. One of
              eight has forwards in a circle, one of sixteen through topics; in half of those, updates open
              and close the circle while messages are on their way.
    Load      Free space runs low and the loop lags at times: sends are refused then, settlements are not.
    Clients   Correct in protocol, careless in everything else: they settle late, twice, or never, forget
              messages, ignore locks, send duplicates, and go away without a word. (Broken bytes: tests/fuzz.)
    HTTP      In three seeds of thirteen some clients speak HTTP: they send, wait for messages, receive and
              delete, settle and renew, also what AMQP clients hold, as those do with theirs. They go away
              while they wait, or are half open; what they are answered is lost with the process.
    Peers     In two seeds of seven hostile peers come, most of them without a claim. They send up to 1,000
              frames in one write (sessions, refused links, credit at the boundaries of 32 bits, dispositions
              of everything, bad tokens, empty and half frames), and deliveries that they never finish. They
              leave by close, end of stream, cut, half open, or stay until the broker ends the connection.
              A turn of the broker's loop takes 1 ms when something is left for the next, and no time in
              itself: units bound what a connection does in a turn, never the clock. Any defect of the gateway
              or the AMQP engine that a connection meets is a violation, although that connection alone ends.

After the phase with faults comes one without: connections stay, the store answers, and everything must drain
within a bounded time: each request gets its answer, each message is received, each session's state is read
and cleared, and the store holds nothing at the end. Then nobody does anything, and what is to be deleted when
idle must go.
"""
