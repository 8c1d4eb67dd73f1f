"""What xlogmem costs, beside the raw driver calls and everybody else: the rooms behind ``xlogmem bench``.

`cases` says what is measured, `allocators` how everybody is called, `measure` how it is measured, `results` what is
made of it; `logs` has logs of allocations, `_loops` (compiled) the loops in C++.  The library imports nothing of this.
"""
