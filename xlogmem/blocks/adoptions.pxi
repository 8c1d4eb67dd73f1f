# Adopted memory of other libraries, tracked until its owner ends.
#
# The runtime does not hold the owner.  When the owner ends, or is closed, the block is dropped like a block whose
# handle is gone: it is pushed on a list, which the next operation drains.  Until then the block is in the index, and
# the library may have handed out the address again: a lookup that finds an ended adoption finds nothing.
#
# The library goes on working with the memory and does not record its work.  So its stream counts as opaque for the
# block, as a consumer's does: uses elsewhere come after the work queued there, and the stream waits for them before it
# goes on.  So the library's work on the bytes once the owner is gone comes after all uses.

import weakref

cimport cython

from libc.stdint cimport uint64_t

from xlogmem._base.cpp cimport peek
from xlogmem._base.sections cimport Section
from xlogmem._core cimport RETIRED
from xlogmem._driver cimport process_is_closing
from xlogmem._foreign.named cimport Extent


@cython.final
cdef class Adoption:
    """A block that ends with an object; the weak reference to that object calls this."""
    cdef object core                        # a weak reference
    cdef object owner                       # a weak reference, which calls this
    cdef Block* block
    cdef uint64_t generation
    cdef bint ended

    def __call__(self, _):
        if not process_is_closing():
            end_adoption(self)


cdef int end_adoption(Adoption adoption) except -1:
    """Drop the block of an adoption, once.  Runs in a finalizer: no driver call, no lock.  A runtime that ends frees
    its blocks itself."""
    cdef object core = adoption.core()
    cdef Section section
    section.begin(adoption)
    if adoption.ended or core is None or (<Core>core).adoptions is None:
        return 0
    adoption.ended = True
    drop_block(adoption.block, <void*>core, adoption.generation)
    return 0


cdef bint adoption_has_ended(dict adoptions, uint64_t generation) except -1:
    """True if the adoption has ended, also because the owner says that it was closed: that ends the owner's memory, not
    the object."""
    cdef Adoption adoption = adoptions.get(generation)
    if adoption is None:
        return False
    owner = adoption.owner()
    if owner is None or getattr(owner, "is_closed", False) is True:
        end_adoption(adoption)
    return adoption.ended


cdef bint ended_adoption_is_kept(Core core, uint64_t generation) except -1:
    """True if a window, a capture or a failure puts the free off; else it was carried out, or another thread is
    carrying it out.
    """
    cdef Adoption adoption = core.adoptions.get(generation)
    cdef bint kept = False
    if adoption is not None:
        with nogil:
            core.state.order.lock.lock()
            kept = peek(adoption.block.generation) == generation and adoption.block.state == RETIRED
            core.state.order.lock.unlock()
    return kept


cdef int forget_ended(Core core) except -1:
    """Remove the adoptions whose blocks are freed by now."""
    cdef Adoption adoption
    for generation, item in list(core.adoptions.items()):
        adoption = <Adoption>item
        if adoption.ended and peek(adoption.block.generation) != adoption.generation:
            core.adoptions.pop(generation, None)
    return 0


cdef int adopt_while_owned(Core core, object owner, Extent* extent, Stream home, Found* found) except -1:
    """Track memory as long as its owner lives; `home` is the stream on which its library works, unless it is
    page-locked memory of a library that queues nothing.  Memory inside a tracked block resolves to that block."""
    cdef Adoption adoption
    cdef DeviceBlock handle = adopt_range(core, extent.first, bytes_of(extent), home, None, None)
    forget_ended(core)
    found.slot = handle.block.slot
    found.generation = handle.generation
    if handle.owned.item == NULL:
        return 0
    if not extent.on_host:
        core.export_block(handle, home.state, True, NULL)
    adoption = Adoption.__new__(Adoption)
    adoption.core = weakref.ref(core)
    adoption.block = handle.block
    adoption.generation = handle.generation
    adoption.owner = weakref.ref(owner, adoption)       # last: it may end the adoption from here on
    core.adoptions[handle.generation] = adoption
    handle.owned.item = NULL                            # the adoption drops it
    return 0
