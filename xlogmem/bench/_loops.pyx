# cython: auto_pickle=False
"""The compiled loops of the benchmarks, without the GIL: what C++ code pays, and the raw driver calls.

The pages in ``loops/`` belong to this module: ``NAME.hpp`` has loops in C++, ``NAME.pxi`` the shells around them and
the loops over the core's own functions, which are what the paths from Python end in.  A method that runs a loop returns
the nanoseconds that it took.  Only the benchmarks use this module.
"""
cimport cython

from cpython.pycapsule cimport PyCapsule_GetContext, PyCapsule_GetPointer, PyCapsule_New, PyCapsule_SetContext
from cpython.ref cimport Py_DECREF, Py_INCREF
from cuda.bindings cimport cydriver as cy
from libc.stdint cimport uint64_t, uintptr_t
from libc.string cimport memset
from libcpp.algorithm cimport sort
from libcpp.vector cimport vector

from xlogmem._abi cimport (
    XLOGMEM_TABLE,
    XLOGMEM_UPSTREAM,
    xlogmem_error,
    xlogmem_runtime,
    xlogmem_table,
    xlogmem_upstream,
)
from xlogmem._core cimport (
    HAND_BACK_ALL,
    WAIT_FOR_CONFLICTS,
    LAUNCHED,
    READ,
    Block,
    CoreState,
    Found,
    Request,
    Window,
    allocate,
    file_window_locked,
    find_by_address_locked,
    finish_rest,
    free_block,
    return_window,
    prepare,
    take_window,
)
from xlogmem._failures cimport Failure
from xlogmem._order cimport StreamState, current_thread
from xlogmem.blocks cimport Core, DeviceBlock
from xlogmem.resources.base cimport Allocation, start_call_on
from xlogmem.streams cimport Stream, core_of

from xlogmem import _table
from xlogmem._locks cimport mutex
from xlogmem.errors import DriverError

__all__ = ["Allocator", "Bases", "Hand", "PerUseEvents", "Uses"]

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


def mark():
    """End one part of a run, for the counting of instructions, and begin the next."""
    xlogmem_bench_mark()


include "loops/driver.pxi"
include "loops/programs.pxi"
include "loops/allocators.pxi"
include "loops/uses.pxi"
include "loops/empty.pxi"
include "loops/scheme.pxi"
include "loops/lookup.pxi"
include "loops/locks.pxi"
include "loops/compute.pxi"
