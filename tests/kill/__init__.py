"""The real broker process, killed again and again while clients work, and what is left of it.

    python -m tests.kill --rounds 20 --seed 1

broker   starts `peeklock serve` as a process, and ends it in one way or another
clients  senders and receivers over real sockets, many in flight, with our own AMQP engine in the client role
ledger   what the clients were told, and what therefore must be there, or gone, at the end
loop     rounds of start, work, kill; then a drain and the verdict

Other than in the simulation, disk, operating system, process and sockets are real here; time and order are
not under control, so a failure names its seed but may not come again.
"""
