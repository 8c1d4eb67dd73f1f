# Ordinary memory of the host that devices reach at its address: with heterogeneous memory management (HMM), or by
# address translation (ATS).  The driver knows nothing of such memory, so what xlogmem has allocated is looked up here.
#
# The driver may read such memory in the call that copies it, before what the stream has queued: a caller that copies
# waits for the stream first.

from libc.stdio cimport snprintf
from libc.stdlib cimport free

from xlogmem._base.cpp cimport atomic
from xlogmem._base.failures cimport fail_resource

cdef extern from "<stdlib.h>" nogil:
    int posix_memalign(void** memory, size_t alignment, size_t size)


cdef enum:
    SYSTEM_ALIGNMENT = 256      # bytes, as of memory of the device
    SYSTEM_PAGE = 4096          # the alignment of what has a page or more


cdef struct SystemRange:
    uint64_t first
    uint64_t last


cdef cppclass SystemMemory:
    atomic[uint64_t] count      # of `ranges`; read without the lock
    mutex lock                  # a leaf
    vector[SystemRange] ranges  # by address

cdef SystemMemory* system_memory = make_new[SystemMemory]()        # never destroyed: blocks may outlive the interpreter
take_at_forks(&system_memory.lock, LEAF_LOCK)


cdef int system_allocate(size_t nbytes, uint64_t* ptr, Failure* failure) noexcept nogil:
    cdef void* memory = NULL
    cdef SystemRange made
    cdef size_t i
    if posix_memalign(&memory, SYSTEM_PAGE if nbytes >= <size_t>SYSTEM_PAGE else SYSTEM_ALIGNMENT, nbytes):
        snprintf(failure.text, sizeof(failure.text), "the host has no %llu bytes", <unsigned long long>nbytes)
        return fail_resource(failure, cy.CUDA_ERROR_OUT_OF_MEMORY)
    ptr[0] = made.first = <uint64_t>memory
    made.last = made.first + nbytes - 1
    system_memory.lock.lock()
    system_memory.ranges.push_back(made)
    i = system_memory.ranges.size() - 1
    while i > 0 and system_memory.ranges[i - 1].first > made.first:
        system_memory.ranges[i] = system_memory.ranges[i - 1]
        i -= 1
    system_memory.ranges[i] = made
    system_memory.count.fetch_add(1)
    system_memory.lock.unlock()
    return 0


cdef void system_free(uint64_t ptr) noexcept nogil:
    cdef size_t i
    system_memory.lock.lock()
    i = system_ranges_up_to_locked(ptr)
    if i > 0 and system_memory.ranges[i - 1].first == ptr:
        while i < system_memory.ranges.size():
            system_memory.ranges[i - 1] = system_memory.ranges[i]
            i += 1
        system_memory.ranges.pop_back()
        system_memory.count.fetch_sub(1)
    system_memory.lock.unlock()
    free(<void*>ptr)                                    # afterwards: another thread may get the address at once


cdef bint is_system_memory(uint64_t ptr) noexcept nogil:
    """True if the address is in memory of `system_allocate`."""
    cdef bint found
    cdef size_t i
    if system_memory.count.load() == 0:
        return False
    system_memory.lock.lock()
    i = system_ranges_up_to_locked(ptr)
    found = i > 0 and ptr <= system_memory.ranges[i - 1].last
    system_memory.lock.unlock()
    return found


cdef size_t system_ranges_up_to_locked(uint64_t ptr) noexcept nogil:
    """The number of ranges that begin at the address or before."""
    cdef size_t low = 0, high = system_memory.ranges.size(), middle
    while low < high:
        middle = (low + high) // 2
        if system_memory.ranges[middle].first <= ptr:
            low = middle + 1
        else:
            high = middle
    return low


cdef bint device_reaches_system(cy.CUdevice device) except -1 nogil:
    """True if the device reaches all memory of the process."""
    cdef int reaches = 0
    return cy.cuDeviceGetAttribute(&reaches, cy.CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS,
                                   device) == cy.CUDA_SUCCESS and reaches != 0


def reaches_system_memory(device_id):
    """True if the device reaches ordinary memory of the host."""
    cdef bint reaches
    cdef cy.CUdevice device = context_of(parse_device_id(device_id)).device
    with nogil:
        reaches = device_reaches_system(device)
    return reaches
