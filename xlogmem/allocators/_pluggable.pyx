"""The functions that PyTorch calls by their names in this module's file: see `pluggable/functions.hpp`.

Importing this module makes them ready.  PyTorch has to be imported before, because its classes of exceptions are looked
up once.
"""

from cpython.pycapsule cimport PyCapsule_GetPointer

from xlogmem.native cimport (
    XLOGMEM_FAILED,
    XLOGMEM_TABLE,
    XLOGMEM_TEXT,
    xlogmem_error,
    xlogmem_runtime,
    xlogmem_table,
)
from xlogmem._base.failures cimport (
    Failure,
    UnderWay,
    drop_exception,
    format_failure,
    keep_exception,
    put_back,
    set_aside,
)

from xlogmem._table import name_memory, table

from xlogmem.runtime import get_runtime

__all__ = ["RECORD_STREAM", "begin_counting", "end_counting", "has_out_of_memory"]

cdef extern from "pluggable/functions.hpp":
    bint xlogmem_torch_begin(const xlogmem_table* functions,
                             xlogmem_runtime* (*open)(int device, xlogmem_error* error) noexcept nogil)
    void xlogmem_torch_record_stream(void* ptr, void* stream) nogil
    cppclass Dropped "xlogmem_torch_dropped":
        size_t count
        size_t nbytes
    void xlogmem_torch_begin_counting()
    Dropped xlogmem_torch_end_counting()

cdef xlogmem_table* functions = <xlogmem_table*>PyCapsule_GetPointer(table, XLOGMEM_TABLE)


cdef xlogmem_runtime* open_runtime(int device, xlogmem_error* error) noexcept with gil:
    cdef object runtime
    cdef xlogmem_runtime* hold
    cdef Failure failure
    cdef UnderWay exception
    set_aside(&exception)
    try:
        runtime = get_runtime(device)
        hold = functions.open(<void*>runtime)
        tag = runtime._tag_for("PyTorch")
        if tag is not None:
            name_memory(<size_t>hold, tag)
        return hold
    except BaseException as reason:                     # PyTorch is the caller: it raises the text
        keep_exception(&failure, reason)
        error.kind = XLOGMEM_FAILED
        format_failure(&failure, error.text, XLOGMEM_TEXT)
        drop_exception(&failure)
        return NULL
    finally:
        put_back(&exception)


def begin_counting() -> None:
    """Count the tensors that are dropped from here on."""
    xlogmem_torch_begin_counting()


def end_counting() -> tuple[int, int]:
    """Return how many tensors were dropped since `begin_counting`, and their bytes; count no more."""
    cdef Dropped dropped = xlogmem_torch_end_counting()
    return dropped.count, dropped.nbytes


has_out_of_memory = bool(xlogmem_torch_begin(functions, open_runtime))  # else it is a RuntimeError
RECORD_STREAM = <size_t>&xlogmem_torch_record_stream                    # the address, for `set_record_stream_fn`
