"""Time on the event loop: clock, timers, turns, tasks.

clock       The broker's clock: one time that passes evenly, and how the wall clock stands to it.
deadline    One thing that happens at a time to come, which is mostly put off before.
next_turn   A function that is called in the next turn of the event loop, or at the end of this one, once for
            all who
tasks       What happens when a task or a callback of ours fails: the loop's exception handler is called at
            once.
ticks       The passing of time for thousands of connections, a few at a time.
turns       The time of the event loop, shared among the connections that have sent something.
wake_timer  The timer of one namespace, in milliseconds of UTC.
"""
