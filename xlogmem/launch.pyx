"""Wrappers for launches: `use`, and the `LaunchRecorder` behind it.

A recorder collects the blocks that one launch touches, has the core prepare the launch before it is queued, and files
it afterwards.  The recorder turns objects into block identities and knows nothing of waits and events.

Every launch comes with a use, so the arguments that nearly all programs write, streams and blocks of one runtime, make
it as cheap as an empty context manager: recorders and windows are reused, arguments need no dictionary, and the core is
called once on entry and once on exit, both times with the GIL where nothing has to wait (core/at_once.pxi).
"""

from cpython.ref cimport PyObject


__all__ = ["Graph", "LaunchRecorder", "capture", "capturing", "use"]

cdef enum:
    READ_ACCESS = 1                         # CU_MEM_ACCESS_FLAGS_PROT_READ
    READ_WRITE_ACCESS = 3                   # CU_MEM_ACCESS_FLAGS_PROT_READWRITE

cdef extern from "Python.h":
    ctypedef struct PyTypeObject:
        pass
    PyTypeObject* Py_TYPE(PyObject* what)
    int Py_GetRecursionLimit()

include "launch/windows.pxi"    # windows owned by recorders
include "launch/recorder.pxi"   # LaunchRecorder: record, prepare, finish
include "launch/host.pxi"       # accesses by the host
include "launch/awaiting.pxi"   # `await`, and accesses by coroutines
include "launch/arguments.pxi"  # from arguments to block identities
include "launch/untracked.pxi"  # policies for untracked memory
include "launch/elsewhere.pxi"  # launches with blocks of several devices
include "launch/with.pxi"       # `with` without method objects
include "launch/captures.pxi"   # captures of graphs: a core of its own for each
include "launch/known.pxi"      # captures that are known, and the streams that take part
include "launch/graphs.pxi"     # graphs that hold their memory, and their launches
include "launch/capturing.pxi"  # `capture` and `capturing`
include "launch/use.pxi"        # `use`, and its choice of a runtime
include "launch/quick.pxi"      # fast path of `use` for the common arguments
