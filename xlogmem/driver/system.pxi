# Ordinary memory of the host that devices reach at its address: with heterogeneous memory management (HMM), or by
# address translation (ATS).  The driver knows nothing of such memory, so what xlogmem has allocated, or adopted, is
# looked up here.
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
    atomic[uint64_t] count      # of all ranges; read without the lock
    mutex lock                  # a leaf
    vector[SystemRange] ranges  # allocated here; by address
    vector[SystemRange] adopted  # of others; by address.  They stay when the memory has ended: then a copy waits, too

cdef SystemMemory* system_memory = make_new[SystemMemory]()        # never destroyed: blocks may outlive the interpreter
take_at_forks(&system_memory.lock, LEAF_LOCK)


cdef int system_allocate(size_t nbytes, uint64_t* ptr, Failure* failure) noexcept nogil:
    cdef void* memory = NULL
    cdef SystemRange made
    if posix_memalign(&memory, SYSTEM_PAGE if nbytes >= <size_t>SYSTEM_PAGE else SYSTEM_ALIGNMENT, nbytes):
        snprintf(failure.text, sizeof(failure.text), "the host has no %llu bytes", <unsigned long long>nbytes)
        return fail_resource(failure, cy.CUDA_ERROR_OUT_OF_MEMORY)
    ptr[0] = made.first = <uint64_t>memory
    made.last = made.first + nbytes - 1
    system_memory.lock.lock()
    insert_range(&system_memory.ranges, made)
    system_memory.count.fetch_add(1)
    system_memory.lock.unlock()
    return 0


cdef void system_free(uint64_t ptr) noexcept nogil:
    cdef size_t i
    system_memory.lock.lock()
    i = ranges_up_to(&system_memory.ranges, ptr)
    if i > 0 and system_memory.ranges[i - 1].first == ptr:
        remove_range(&system_memory.ranges, i - 1)
        system_memory.count.fetch_sub(1)
    system_memory.lock.unlock()
    free(<void*>ptr)                                    # afterwards: another thread may get the address at once


cdef void system_adopt(uint64_t ptr, size_t nbytes) noexcept nogil:
    """Note ordinary memory of others, which a block is about to have."""
    cdef SystemRange made
    cdef SystemRange* known
    cdef size_t i
    made.first, made.last = ptr, ptr + nbytes - 1
    system_memory.lock.lock()
    i = ranges_up_to(&system_memory.adopted, made.last)
    while i > 0 and system_memory.adopted[i - 1].last >= made.first:    # one range in place of those that it meets
        known = &system_memory.adopted[i - 1]
        made.first = known.first if known.first < made.first else made.first
        made.last = known.last if known.last > made.last else made.last
        remove_range(&system_memory.adopted, i - 1)
        system_memory.count.fetch_sub(1)
        i -= 1
    insert_range(&system_memory.adopted, made)
    system_memory.count.fetch_add(1)
    system_memory.lock.unlock()


cdef bint is_system_memory(uint64_t ptr) noexcept nogil:
    """True if the address is in memory of `system_allocate` or `system_adopt`."""
    cdef bint found
    if system_memory.count.load() == 0:
        return False
    system_memory.lock.lock()
    found = is_in_ranges(&system_memory.ranges, ptr) or is_in_ranges(&system_memory.adopted, ptr)
    system_memory.lock.unlock()
    return found


cdef void insert_range(vector[SystemRange]* ranges, SystemRange made) noexcept nogil:
    cdef size_t i = ranges.size()
    ranges.push_back(made)
    while i > 0 and ranges[0][i - 1].first > made.first:
        ranges[0][i] = ranges[0][i - 1]
        i -= 1
    ranges[0][i] = made


cdef void remove_range(vector[SystemRange]* ranges, size_t place) noexcept nogil:
    cdef size_t i
    for i in range(place + 1, ranges.size()):
        ranges[0][i - 1] = ranges[0][i]
    ranges.pop_back()


cdef bint is_in_ranges(vector[SystemRange]* ranges, uint64_t ptr) noexcept nogil:
    cdef size_t i = ranges_up_to(ranges, ptr)
    return i > 0 and ptr <= ranges[0][i - 1].last


cdef size_t ranges_up_to(vector[SystemRange]* ranges, uint64_t ptr) noexcept nogil:
    """The number of ranges that begin at the address or before."""
    cdef size_t low = 0, high = ranges.size(), middle
    while low < high:
        middle = (low + high) // 2
        if ranges[0][middle].first <= ptr:
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
