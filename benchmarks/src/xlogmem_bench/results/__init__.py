"""Results: a document with all figures, the tables, the chart, and the comparison of two runs.

A row has the best, the median and the spread of its turns, and the last two of its ratio to the *reference* of the case
(the floor; without one, the first candidate), which was run just before and just after each turn.  The *spread* is from
the lowest 10th to the highest 90th percentile of a process: a turn that was disturbed is left out, a process in which
everything was slower is not.  The *best peer* is the quickest of those from the same language that are like for like.

Two runs agree on a row if the spreads of that ratio overlap.  The documents of several runs can be merged, of the same
cases (they count as more processes) or of others.
"""
from xlogmem_bench.results.chart import CHART, plot
from xlogmem_bench.results.comparison import agreement, print_agreement
from xlogmem_bench.results.documents import SCHEMA, assembled, loaded, merged, saved
from xlogmem_bench.results.tables import SUMMARY, markdown, print_table

__all__ = ["CHART", "SCHEMA", "SUMMARY", "agreement", "assembled", "loaded", "markdown", "merged", "plot",
           "print_agreement", "print_table", "saved"]
