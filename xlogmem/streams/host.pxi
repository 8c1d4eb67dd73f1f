# The host as a party: what stands in place of a stream.

cimport cython

from xlogmem._base.signatures import Signed


@cython.final
cdef class Host:
    """The type of `xlogmem.host`, which stands in place of a stream: in `use` the calling thread itself reads or writes
    the memory, and `DeviceRuntime.allocate` gives memory that the host may use at once.

    Notes
    -----
    The memory has to be page-locked, or managed, and tracked: `DeviceRuntime.adopt` takes arrays of page-locked memory.
    On entry the host waits for the work that uses the memory: a read for writers, a write for all.  Launches, and
    accesses of other threads, that conflict wait until the access ends.  Nothing is filed: what is queued afterwards
    comes afterwards.  A launch inside an access of its own thread, on the same memory, is refused.

    Examples
    --------
    >>> stream = xlogmem.get_runtime().acquire_stream()
    >>> staging = xlogmem.empty(1000, "f4", stream, resource=xlogmem.PinnedMemoryResource())
    >>> x = xlogmem.empty(1000, "f4", stream)
    >>> x.copy_from(staging, stream)
    >>> with xlogmem.use(xlogmem.host, write=staging):      # waits until the copy has read it
    ...     pass                                            # fill it
    """

    __signature__ = Signed("")

    def __init__(self):
        if "host" in globals():
            raise TypeError("there is one host: xlogmem.host")

    def __repr__(self):
        return "xlogmem.host"

    def __reduce__(self):
        return "host"


host = Host()
