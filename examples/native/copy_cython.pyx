# cython: language_level=3, freethreading_compatible=True
"""An extension in Cython: copy(runtime, stream, target, source, nbytes, declared) enqueues work, and says what it uses.

The functions of the table are cimported; no C++ is needed.  README.md has the command that builds it.
"""
from cpython.pycapsule cimport PyCapsule_Import
from libc.stdint cimport uint64_t, uintptr_t

from xlogmem.native cimport (
    XLOGMEM_READ,
    XLOGMEM_SIZE_WITH_USES,
    XLOGMEM_TABLE,
    XLOGMEM_TABLE_VERSION,
    XLOGMEM_WRITE,
    xlogmem_access,
    xlogmem_error,
    xlogmem_runtime,
    xlogmem_table,
    xlogmem_use,
)


cdef extern from "work.h" nogil:
    int enqueue_copy(void* stream, uint64_t to, uint64_t source, size_t nbytes)


cdef xlogmem_table* table = <xlogmem_table*>PyCapsule_Import(XLOGMEM_TABLE, 0)
if table.version != XLOGMEM_TABLE_VERSION or table.size < XLOGMEM_SIZE_WITH_USES:
    raise ImportError("copy_cython needs another version of xlogmem")


def copy(runtime, uintptr_t stream, target, source, size_t nbytes, bint declared):
    cdef xlogmem_runtime* hold = table.open(<void*>runtime)     # a module that is called often keeps it
    cdef xlogmem_access[2] accesses
    cdef xlogmem_error error
    cdef xlogmem_use* use = NULL
    cdef int refused = 0
    cdef int result = 0
    if hold == NULL:
        raise TypeError(f"a DeviceRuntime is needed, not {runtime!r}")
    try:
        table.identify(hold, <void*>target, &accesses[0])
        table.identify(hold, <void*>source, &accesses[1])
        accesses[0].access = XLOGMEM_WRITE
        accesses[1].access = XLOGMEM_READ
        with nogil:
            if declared:
                refused = table.prepare(hold, <void*>stream, accesses, 2, 0, &use, &error)
            if not refused:
                result = enqueue_copy(<void*>stream, accesses[0].address, accesses[1].address, nbytes)
                if result:
                    table.cancel(hold, use)             # nothing was enqueued
                else:
                    refused = table.finish(hold, use, &error)
    finally:
        table.close(hold)
    if refused:
        raise RuntimeError(f"xlogmem: {error.text.decode()}")
    if result:
        raise RuntimeError(f"the driver gave {result}")
