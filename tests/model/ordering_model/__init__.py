"""The ordering rules as a program that can be executed: see README.md in the folder above.

Read the modules in this order: driver, rules, streams, tombstones, frontiers, pool, frees, windows, host, graphs,
ranges.  The modules oracle, actions, programs, host_side, graph_side, range_side and search play random programs
against them.
"""
