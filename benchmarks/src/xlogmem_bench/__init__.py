"""The cost of xlogmem, beside raw driver calls and other libraries: the code behind ``xlogmem bench``.

From the bottom up: `_loops` (compiled) has the loops in C++, `logs` the logs of allocations, `world` what all cases
share, `allocators` each library's way to allocate, `neighbours` libraries on another allocator, in the processes of
`workers`, `cases` what is measured; `settings`, `measure` and `processes` run
it, and `results` makes the document, the tables and the chart.  The library itself imports nothing of this.
"""
