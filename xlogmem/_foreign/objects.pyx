"""Foreign streams: from a handle of another library to its registration, and the owners that keep streams alive.

There is one registry: the registrations themselves, in `OrderState`.  `identify_unlocks` finds or adds one, without the
GIL.  Both doors use it: `StreamRegistry` for streams that come as Python objects, `_table` for those that come as bare
handles.

A handle is not an identity, because the driver reuses the handle of a destroyed stream.  The driver's own id of a
stream is an identity: it is never reused.  So an unowned stream (no object that keeps it alive is known) is looked up
by its id each time that its handle comes.  If the id is new and the handle is known, the stream behind the older
registration was destroyed.  The older registration is unregistered, with the new registration as its successor, and its
handle is not touched again.  No id is needed for the runtime's own streams, for streams whose owner is held, and for
default streams, which live as long as the context or the thread.

A query of the id invalidates a graph capture, so the capture state is queried first.  No query is made under the lock.
A look-up that was made before a query is made again after it, in the lock acquisition that registers: two threads that
first use a stream at the same time register it once.

Streams of other devices are registered too, if blocks of this device are used on them (_foreign/objects/remote.pxi).

Python keeps the owners.  The owner of a stream is the first object that named the stream, if this object can keep the
stream alive.  A known object needs no driver call.  Every so often the registry unregisters the streams whose owner has
no other reference.
"""

from cpython.ref cimport PyObject


cdef extern from "Python.h":
    Py_ssize_t Py_REFCNT(PyObject*)

cdef extern from "<unistd.h>" nogil:
    int usleep(unsigned int)

cdef enum:
    NON_BLOCKING = 1            # CU_STREAM_NON_BLOCKING
    CROWDED = 64                # streams, before those of ended threads are looked for
    SWEEP_AT = 32               # owners, before unused ones are looked for
    ATTEMPTS = 8                # to unregister a stream of another device where the driver fails
    PATIENCE = 20000            # ... and where calls of other threads keep it back
    PAUSE = 50                  # microseconds between these


cdef object runtime_of_device = None          # get_runtime of runtime.py, which is above this room


cdef void provide_runtimes(object get_runtime) noexcept:
    """Set the function that returns the process's own runtime of a device."""
    global runtime_of_device
    runtime_of_device = get_runtime


include "objects/identify.pxi"  # from a handle to its registration, without the GIL
include "objects/remote.pxi"    # registrations of streams of other devices
include "objects/registry.pxi"  # registrations of Python stream objects, and their owners
