"""A log of the calls of a resource: for RMM's tools, for a replay, or for a program to read.

The hooks, which may run under the runtime's lock and without the GIL, put records of a fixed size into a ring
(``logging/ring.pxi``).  A thread takes the records out, makes rows of them without the GIL (``logging/rows.pxi``) and
gives the rows to the sink (``logging/writer.pxi``, `sinks.py`).  So whatever a sink does, no allocation waits for it:
if the ring is full, records are dropped and counted.
"""

cimport cython

from xlogmem._base.signatures import Signed
from xlogmem.resources.sinks import opened
from xlogmem.resources.adaptor cimport ResourceAdaptor


__all__ = ["LoggingResourceAdaptor"]

include "logging/ring.pxi"    # the ring of records, and its producers
include "logging/rows.pxi"    # records as rows of text
include "logging/writer.pxi"  # the writer thread


@cython.no_gc_clear                         # __dealloc__ needs the writer
@cython.auto_pickle(False)                  # none is copied: see the base class
cdef class LoggingResourceAdaptor(ResourceAdaptor):
    """Writes down each call of the resource below.

    Parameters
    ----------
    upstream : DeviceMemoryResource
        The resource.
    sink : str, os.PathLike, text file, callable or logging.Logger
        The destination of the log.  A file at a path is made or emptied, and belongs to the adaptor; its directory has
        to exist.  Rows are appended, so another program may empty the file.  A callable is called with an
        `AllocationRecord` for each call (``[].append`` keeps the records), or with a row of text if there is a
        `format`.  A logger gets each row as a message of level INFO.
    format : {"rmm", "json"}, optional
        ``"rmm"``: the CSV of RMM's `LoggingResourceAdaptor`, byte for byte.  ``"json"``: a JSON object in each line,
        with the fields of `AllocationRecord`.  The default is ``"rmm"`` for a path that ends with ``.csv``, else
        ``"json"``.
    capacity : int
        The number of records that may wait to be written.  Further records are dropped and counted.

    Attributes
    ----------
    upstream : DeviceMemoryResource
        As given.

    Raises
    ------
    TypeError
        Upstream is not a `DeviceMemoryResource`, or the sink is none of these, or is a coroutine function, which a call
        would not run.
    ValueError
        The format or the capacity is not valid, or the file is the log of another adaptor.  If the other adaptor was
        dropped or closed, the call waits for it instead.
    OSError
        The file cannot be opened.

    Notes
    -----
    A thread of the adaptor uses the sink, never the thread that allocates and never under a lock, so the sink may
    block, raise and use the runtime; a call that the sink itself makes is not logged.  Records for which the sink
    raises are counted in `dropped_records`, and the exception is reported once through the logger ``"xlogmem"``.

    A free is logged before it is made, because another thread may get the address as soon as the free was made; a free
    that fails has a second record, ``"free failure"``, in JSON.  In RMM's columns the default stream is 0, and a failed
    free has no row of its own, as in RMM.  Reaps, launches and uses are not logged.

    The log is complete after `flush`, `close`, the end of a ``with`` statement, or the exit of the interpreter or of a
    process of `multiprocessing`, which waits for a slow sink for five seconds.  (`os._exit`, and a signal that ends the
    process, do not.)  An adaptor that is dropped writes its remaining records and ends its thread; an adaptor that its
    own sink refers to is not dropped before `close`.  A forked child logs nothing.  Thread-safe.

    Examples
    --------
    >>> log = xlogmem.LoggingResourceAdaptor(xlogmem.AsyncMemoryResource(), "allocations.csv")
    >>> with log:
    ...     xlogmem.DeviceRuntime(resource=log).allocate(1000).free()
    >>> with open("allocations.csv") as file:
    ...     print(file.readline().strip())
    Thread,Time,Action,Pointer,Size,Stream
    """

    cdef LogWriter writer

    __signature__ = Signed("upstream, sink, *, format=None, capacity=65_536")

    def __init__(self, upstream, sink, *, format=None, capacity=65_536):
        cdef LogWriter writer
        self.take_upstream(upstream)
        writer = LogWriter(capacity)
        self.state.books.allocated = log_allocated
        self.state.books.failed = log_failed
        self.state.books.freeing = log_freeing
        self.state.books.not_freed = log_not_freed
        writer.start(opened(sink, format), self.context.device_id)
        self.writer = writer
        self.open_books(&writer.ring)

    def __dealloc__(self):
        if self.writer is not None:
            request_end(&self.writer.ring)

    @property
    def dropped_records(self):
        """The number of records that were dropped so far: the ring was full, the sink raised, or the log was closed."""
        self.refuse_unmade()
        return self.writer.dropped()

    def flush(self, timeout=None):
        """Wait until all records of earlier calls are written, or dropped.

        Parameters
        ----------
        timeout : float, optional
            Seconds; by default there is no limit.

        Returns
        -------
        int
            `dropped_records`.

        Raises
        ------
        TimeoutError
            The sink takes longer.
        RuntimeError
            The sink itself called this.

        Notes
        -----
        Does nothing in a forked child.  Thread-safe.
        """
        self.refuse_unmade()
        self.writer.wait_for_all(timeout)
        return self.writer.dropped()

    def close(self, timeout=None):
        """Flush, and end the log.  Later calls still work; they are counted as dropped, not logged.  See `flush`."""
        self.refuse_unmade()
        self.writer.close(timeout)

    def __enter__(self):
        self.refuse_unmade()
        return self

    def __exit__(self, kind, exception, traceback):
        self.close()
