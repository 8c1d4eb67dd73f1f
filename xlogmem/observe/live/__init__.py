"""`xlogmem top`: a live view of a process's memory, uses and waits from another terminal.

`figures` says what is read of a process, `publishing` answers with it inside of the process, `reading` requests it from
outside, over a Unix socket whose place `sockets` knows; `watching` does that again and again, `pictures` is what a
terminal shows of it.  docs/live.md.
"""
