# cython: auto_pickle=False
"""The compiled loops of the benchmarks, without the GIL: what C++ code pays, and the raw driver calls.

The pages in ``loops/`` belong to this module: ``NAME.hpp`` has loops in C++, ``NAME.pxi`` the shells around them and
the loops over the core's own functions, which are what the paths from Python end in.  A method that runs a loop returns
the nanoseconds that it took.  Only the benchmarks use this module.
"""

from xlogmem.native cimport XLOGMEM_HOST

__all__ = ["Allocator", "Bases", "GraphLaunches", "Hand", "PerUseEvents", "Uses"]

cdef extern from *:
    """
    // Separates the parts of a run when instructions are counted.
    extern "C" __attribute__((noinline)) void xlogmem_bench_mark() { asm volatile(""); }
    """
    const char* __VERSION__
    unsigned long CYTHON_HEX_VERSION
    void xlogmem_bench_mark() nogil

COMPILER = f"{__VERSION__.decode()}, Cython {CYTHON_HEX_VERSION >> 24}.{CYTHON_HEX_VERSION >> 16 & 255}"
ALLOCATE, FREE, LAUNCH, SYNCHRONIZE = range(4)          # of Allocator.program
RECORD, WAIT, TAKE, GIVE = range(4)                     # of Hand
HOST = <size_t>XLOGMEM_HOST                             # in place of a stream


def mark():
    """End one part of a run, for the counting of instructions, and begin the next."""
    xlogmem_bench_mark()


include "loops/driver.pxi"      # raw driver calls
include "loops/programs.pxi"    # `Allocator.program`: allocate, free, launch, synchronize
include "loops/allocators.pxi"  # allocators as C++ calls them, and pairs of allocate and free
include "loops/uses.pxi"        # uses of blocks, through the C table
include "loops/graphs.pxi"      # launches of a graph, through the C table
include "loops/exchange.pxi"    # DLPack between functions in C
include "loops/native_use.pxi"  # a use through the C table, for random programs
include "loops/empty.pxi"       # an empty context manager, the yardstick of `use`
include "loops/scheme.pxi"      # baselines: one event per use, driver calls by hand
include "loops/lookup.pxi"      # lookups by address
include "loops/locks.pxi"       # locks
include "loops/compute.pxi"     # work without shared state, for the scaling of threads
