# An array of NumPy's over the memory of a buffer, for as long as the host may access it.
#
# Three objects, each of which keeps the next: the array that is given out, an array inside it, and the memory, which
# keeps the block.  NumPy has every view of the outer array refer to the inner one, so whether the inner one is alive
# says whether views are.  At the end the outer array is made empty.  From then on it no longer keeps the inner one, but
# a memoryview or a tensor that was made of it still has the address: the memory stays until the outer array has gone.

import gc
import weakref

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from libc.stdint cimport uint64_t

from xlogmem.errors import StreamMisuseError
from xlogmem.interop._dtypes import dtype_of
from xlogmem.launch import until_accessible
from xlogmem.streams import host
from xlogmem._base.sections cimport Section
from xlogmem._core cimport READ, READ_WRITE
from xlogmem.blocks cimport Core, DeviceBlock, refuse_freed
from xlogmem.interop._layout cimport ArrayLayout
from xlogmem.launch cimport LaunchRecorder, add_use

cdef extern from *:
    """
    #ifdef Py_GIL_DISABLED
    constexpr bool xlogmem_free_threaded = true;
    #else
    constexpr bool xlogmem_free_threaded = false;
    #endif
    """
    bint FREE_THREADED "xlogmem_free_threaded"


@cython.final
@cython.auto_pickle(False)
cdef class MappedMemory:
    """All bytes from the first to the last element, as the host sees them; it keeps the block."""

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, <void*>self.start, self.nbytes, not self.writable, flags)


cdef MappedMemory new_memory(Buffer buffer, bint writable):
    cdef MappedMemory memory = MappedMemory.__new__(MappedMemory)
    memory.block, memory.owner, memory.writable = buffer.held(), buffer.owner_now(), writable
    memory.start, memory.nbytes = buffer.layout.start, buffer.layout.extent
    return memory


@cython.final
@cython.auto_pickle(False)                  # an access is not copied
@cython.no_gc_clear                         # __dealloc__ needs the array
cdef class Mapping:
    """The memory of a buffer as an array, for one access by the host; see `Buffer.map`."""

    def __dealloc__(self):
        if self.array is not None:          # it was never left; the recorder warns of that
            self.detach()

    cdef int refuse_entered(self) except -1:
        if self.pointer is None or self.pointer.entered or self.pointer.recorder.preflighted:
            raise StreamMisuseError("a mapping is entered once: call map() again for each access")
        return 0

    async def __aenter__(self):
        """Suspend the coroutine until the work on the memory is complete, and begin the access."""
        self.refuse_entered()
        self.pointer.buffer.refuse_stale()
        await until_accessible(self.pointer.recorder)
        return self.__enter__()                         # which looks at both again

    async def __aexit__(self, kind, exception, traceback):
        self.__exit__(kind, exception, traceback)

    def __enter__(self):
        self.refuse_entered()
        self.pointer.__enter__()
        try:
            return self.attach(self.layout)
        except BaseException:
            self.pointer.__exit__(None, None, None)
            raise

    def __exit__(self, kind, exception, traceback):
        cdef bint kept = False
        if self.pointer is None:
            raise StreamMisuseError("a mapping is made by Buffer.map()")
        try:
            if self.array is not None:
                kept = self.detach()
        finally:
            self.pointer.__exit__(kind, exception, traceback)
        if not kept:
            return
        text = (f"views of the array of {self.pointer.buffer!r} are alive after its map(), and nothing orders what "
                "they read or write. Copy what you keep: array.copy(). Delete other views, such as slices and the "
                "variable of a loop over rows, inside the with statement: del row")
        if exception is None:
            raise BufferError(text)
        exception.add_note(text)

    cdef object attach(self, ArrayLayout layout):
        """Make the array that is given out."""
        import numpy

        if layout.size == 0:
            empty = numpy.empty(layout.shape, self.dtype)
            empty.flags.writeable = self.memory.writable
            return empty
        inner = numpy.ndarray(layout.shape, self.dtype, self.memory, layout.ptr - layout.start, layout.strides)
        self.inner = weakref.ref(inner)
        self.array = inner[...]
        return self.array

    cdef bint detach(self) except -1:
        """Make the array empty.  True if it has views that are alive."""
        cdef Section section
        section.begin(self)
        array, memory = self.array, self.memory
        self.array = self.memory = None
        weakref.finalize(array, keep_until_then, memory).atexit = False
        array.__setstate__((1, (0,), array.dtype, False, b""))
        array.flags.writeable = False       # what is assigned to it would be lost
        if FREE_THREADED and self.inner() is not None:
            gc.collect()                    # a view that another thread has dropped may end later, and now ends here
        return self.inner() is not None


def keep_until_then(memory):
    """Keep memory until the array has gone that has its address: a finalizer that does nothing else."""


cdef Mapping new_mapping(Buffer buffer, object write):
    cdef LaunchRecorder recorder
    cdef Mapping mapping = Mapping.__new__(Mapping)
    if not isinstance(write, bool):
        raise TypeError(f"write must be True or False, not {write!r}")
    buffer.refuse_stale()
    if write:
        buffer.refuse_writing("map(write=True)")
    mapping.layout, mapping.dtype = buffer.layout, numpy_dtype(buffer.layout)
    mapping.memory = new_memory(buffer, write)          # now, as another thread may release the buffer
    recorder = LaunchRecorder(host, runtime=buffer.core)
    add_use(recorder, buffer, READ_WRITE if write else READ, buffer)
    mapping.pointer = new_pointer(buffer, recorder)
    return mapping


def mapping_of_block(DeviceBlock block not None, Core core not None, dtype, write):
    """What `DeviceBlock.map` returns."""
    if block.core is None:                              # of no bytes: nothing looks at the block on entry
        refuse_freed(block)
    return new_mapping(buffer_of_block(block, core).view(dtype_of(dtype)), write)
