"""Time on the event loop.

turns   The loop's time, shared among the connections that have sent something.
timers  Timers that are mostly put off, and the ticks of connections.
clock   The broker's clock: a time that passes evenly, and steps of the wall clock.
tasks   Failures of tasks and callbacks, handed to the loop's exception handler at once.
"""
