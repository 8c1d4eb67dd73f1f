"""The cases by family, and the libraries that take part in each.

A case has an id that never changes meaning.  Its *candidates* do the same thing in their own way, from Python and from
C++; one is the floor, the raw driver calls in C, where there is such a thing.  A candidate that is not like for like
says so in its `note`, which is printed with the row.  How long a turn is, and how often it is taken, is decided in
`measure`.
"""
from xlogmem_bench.cases.catalogue import FAMILIES, all_cases
from xlogmem_bench.cases.model import Candidate, Case, built

__all__ = ["FAMILIES", "Candidate", "Case", "all_cases", "built"]
