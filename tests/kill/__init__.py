"""The real broker process, killed again and again while clients work, and what is left of it.

    python -m tests.kill messages --rounds 20 --seed 1
    python -m tests.kill transactions --rounds 20 --seed 1
    python -m tests.kill topics --rounds 20 --seed 1
    python -m tests.kill clock --rounds 5 --seed 1
    python -m tests.kill spark --rounds 5 --seed 1

loop       rounds of start, work, kill; then the verdict; and the loop for messages of one queue
clients    senders and receivers over real sockets, many in flight, with our own engine in the client role
ledger     what they were told, and what therefore must be there, or gone, at the end
bank_loop  the loop for transactions over several queues, with states of sessions and message ids
tellers    its clients
bank       what they were told, and what must follow from it
topic_loop the loop for a topic with subscriptions and rules, and its clients
copies     what they were told, and which copies there must be
clock_loop the loop for messages under a wall clock that is set
faked_clock
           that clock
spark_loop the loop for streaming queries, whose driver and workers are killed too
spark_driver
           the process with the queries

Other than in the simulation, disk, operating system, process and sockets are real here; time and order are
not under control, so a failure names its seed but may not come again.
"""
