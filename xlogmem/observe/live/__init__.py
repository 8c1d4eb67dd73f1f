"""`xlogmem top`: a live view of a process's memory, uses and waits from another terminal.

`figures` collects the figures of a process, `publishing` answers with them inside of the process, `reading` requests
them from outside, over a Unix socket whose place `sockets` knows; `watching` repeats that, `pictures` draws the figures
on a terminal.  docs/live.md.
"""
