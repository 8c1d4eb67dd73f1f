"""Random programs for the engine of `xlogmem check`, judged by an oracle that shares nothing with it.

    python -m xlogmem_selftest.check --programs 1000 --seed 0

prints ``1,000 programs: 0 missed, 0 false``.  `programs` draws calls of the driver, makes them on the simulated driver
and compares; `oracle` computes from the same calls which accesses nothing orders.  The engine names fewer pairs than
the oracle, because a later access stands for an earlier one: a certain finding is false if the oracle does not know
the pair, and an operation is missed if the oracle has it race in a block where no certain finding names it.

Not drawn: kernels in machine code, rows of 2D fills and copies, pieces of a caching pool, memory that a capture
allocates, a graph that is launched while a stream captures.
"""
