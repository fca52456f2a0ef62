"""Deterministic simulation of the broker: one thread, one event heap, one seeded `Random`, one checker.

    python -m tests.simulation --seed 7              one seed
    python -m tests.simulation --seeds 0:200         seeds 0 to 199
    python -m tests.simulation --seconds 60          as many seeds as fit, from 0 (or from A with --seeds A:B)
    python -m tests.simulation --replay 7 --trace    one seed, every event printed
    python -m tests.simulation --nodes 3 --seed 7    three nodes on one store with leases
    python -m tests.simulation --seed 7 --bug NAME   with a planted bug (bugs/registry.py)

Real: `Gateway`, `Turns`, `Engine`, its driver, `Namespace`, `MemoryStore` with its codec, and on the client
side `amqp.Connection` in the client role. Simulated: time, the network (`peeklock.testing.wire`), the process
and its death, the users at both ends.

Packages and modules
    plan      the phase of a seed with faults, its phase without; the verdict
    play      what a seed chooses for one namespace: entities, clients, faults
    world     virtual time, the network, the broker and its machine
    actors    the clients, and what they do
    oracle    the checker
    cluster   several nodes on one store with leases
    bugs      planted bugs, which the checker must find
    test_*    a few seeds (`test_simulation`), seeds that failed once (`test_seeds`), each planted bug
              (`test_bugs`), several nodes (`test_nodes`; most of their seeds are `long`), and the checker on
              hand-made histories (`test_checker*`)

Namespaces
    In four seeds of seventeen the process has two namespaces. Each has its own entities, of the same names,
    its own clients, store, faults and checker, and draws from its own random source; the other seeds mean
    what they meant before. A client names its namespace by the host, or on the shared host by the name of its
    key; the server's registry and the gateway choose. Turns, buffers, clocks and deaths are shared.
    A message is of one namespace by the number in its body, and its id may be the same in both. It must
    neither be stored nor be seen in the other one; effects and requests must not cross either.

Fault model
    Network   Bytes are delayed (0 to 1.2 s), split and joined, never corrupted, reordered or duplicated: TCP
              prevents that. A connection may break at any instant: a random part of the bytes in flight is
              lost, and both ends notice. Or it turns half open: no end notices before an idle time-out.
              Clients also leave properly (detach, end, close) and disappear right after.
    Process   Dies at any instant, also between any two steps of a commit, and loses all memory. It starts
              again 1 ms to seconds later, by recovery from the store into new objects. Every connection
              breaks with it.
    Store     A commit takes 0 to 20 ms, rarely 2 s. A process that dies in a commit finds it wholly stored or
              wholly absent. A commit may fail (nothing stored, or stored and reported as failed): the process
              then dies. Stored data do not change: the store's own tests cover bit rot and torn pages.
    Clock     The world jumps by hours at times, and the broker's clock with it: all machines are suspended.
              Across a restart the clock may also be set back, by up to an hour. In two seeds of nine the wall
              clock is set while the broker runs, by seconds to 30 hours in either direction, and an operator
              accepts it now and then; in half of those seeds the monotonic clock runs up to 3 % slow or fast.
              The broker reads both through the server's `SlewedClock`. In the other seeds the two agree. In
              about one seed of eight all clients are 240 times slower, so that hours pass: locks are renewed
              for long, transactions and queues time out.
    Entities  Settings change while in use, forwards among them; a status forbids to send or to receive for a
              while; entities are deleted, by the administration or because they are idle, and created again.
              Rules are added, changed and removed while messages come. One seed of four has topics. One of
              eight has forwards in a circle, one of sixteen through topics; in half of those, updates open
              and close the circle while messages are on their way.
    Load      Free space runs low and the loop lags at times: sends are refused then, settlements are not.
    Clients   Correct in protocol, careless in everything else: they settle late, twice, or never, forget
              messages, ignore locks, send duplicates, and leave without a word. (Broken bytes: tests/fuzz.)
    HTTP      In three seeds of thirteen some clients speak HTTP: they send, wait for messages, receive and
              delete, settle and renew, also locks of AMQP clients, which do the same with theirs. They leave
              while they wait, or turn half open; their answers are lost with the process.
    Peers     In two seeds of seven hostile peers come, most of them without a claim. They send up to 1,000
              frames in one write (sessions, refused links, credit at the boundaries of 32 bits, dispositions
              of everything, bad tokens, empty and half frames), and deliveries that they never finish. They
              leave by close, end of stream, cut, half open, or stay until the broker ends the connection. A
              turn of the broker's loop takes 1 ms when something is left for the next, and no time in itself:
              units bound the work of a connection in a turn, never the clock. Any defect of the gateway or
              the AMQP engine that a connection meets is a violation, although only that connection ends.

Nodes
    With `--nodes` two or more nodes share one store in a model of PostgreSQL with a synchronous standby. Each
    has the real parts above, and takes, renews, loses and gives back the lease as `store.postgres` does. The
    clients are those of one node, over AMQP, and connect through any node, which relays them to the owner. To
    the checker a takeover is a death and a start: all promises hold over it. Besides, no batch of a deposed
    owner becomes durable, no effect without a batch leaves it, no relay goes on to lead clients to it, a new
    owner reads what is replicated, and the log of events has no gap.

    Node      Is killed, stopped, frozen for longer than a lease (also until just after the takeover), cut off
              from the database, or from clients. It starts again under the same name.
    Database  The standby stalls; the primary dies, and what is not on the standby is lost; connections end
              while a commit waits for the standby, which makes it visible. In half of the seeds no node may
              end the backends of another one.

    Not modelled: clocks that differ, a network between nodes that fails, a full disk.

A phase without faults follows: connections stay, the store answers, and everything must drain within a
bounded time: each request gets its answer, each message is received, each session's state is read and
cleared, and the store is empty at the end. Then all clients are idle, and entities with an idle time-out must
be deleted.
"""
