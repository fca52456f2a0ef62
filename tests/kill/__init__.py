"""Kill loops: the real broker process is killed repeatedly while clients work, then the result is checked.

    python -m tests.kill messages --rounds 20 --seed 1
    python -m tests.kill http --rounds 20 --seed 1
    python -m tests.kill transactions --rounds 20 --seed 1
    python -m tests.kill topics --rounds 20 --seed 1
    python -m tests.kill capture --rounds 5 --seed 1
    python -m tests.kill clock --rounds 5 --seed 1
    python -m tests.kill spark --queries cursor --rounds 4 --seed 1
    python -m tests.kill jobs --rounds 2 --seed 1

Unlike in the simulation, disk, operating system, process and sockets are real; time and order are not
controlled, so a failure names its seed but may not happen again.

    loop          rounds of start, work, kill, then the final checks; the loop `messages`
    clients       AMQP senders and receivers over real sockets, with the engine in the client role
    ledger        what they learnt, and what must therefore be there, or gone, at the end
    http_loop     the loop `http`: messages over HTTP and AMQP
    http_clients  its HTTP clients
    bank_loop     the loop `transactions`: several queues, states of sessions, message ids
    bank_clients  its clients
    bank          what they learnt, and what must follow from it
    topic_loop    the loop `topics`: a topic with subscriptions and rules, and its clients
    copies        what they learnt, and which copies must exist
    capture_loop  the loop `capture`: the event log, whose exporter is killed too
    clock_loop    the loop `clock`: messages under a wall clock that is set
    faked_clock   that clock
    spark_loop    the loop `spark`: streaming queries, whose driver and workers are killed too
    spark_driver  the process with the queries
    spark_targets what they write to
    jobs_loop     the loop `jobs`: capture, replay, release and resubmission
    processes     a process of Spark and all that it starts
"""
