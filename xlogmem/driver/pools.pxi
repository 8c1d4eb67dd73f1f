# Memory pools of xlogmem's own: made, trimmed, and destroyed once nothing is pending in them.
#
# The driver's documentation allows a program to destroy a pool while frees into it are pending.  Driver 580.159 then
# hangs or crashes, sooner or later, in that call or in a later call, where the process uses two devices
# (benchmarks/pool_destroy.py: nothing but driver calls).  So an ended pool is destroyed when no memory backs it any
# more: trimming releases all memory that no pending operation needs.  Until then the pool keeps nothing at a
# synchronization of the device, and the next call that makes, ends or trims a pool looks again.

from libc.stdint cimport uint32_t
from libc.string cimport memset


cdef struct OwnPool:
    cy.CUmemoryPool pool
    cy.CUcontext context
    uint64_t number             # after a reset of the device a new pool may have the handle of an old one
    bint taken                  # of an ended one: a call is looking at it


cdef cppclass OwnPools:
    mutex lock                          # a leaf: no driver call under it
    vector[OwnPool] live                # which a resource has
    vector[OwnPool] ended               # and not destroyed yet
    uint32_t users                      # calls that work on a copy of `live`: none is destroyed meanwhile
    uint64_t count                      # so far

cdef OwnPools* own_pools = make_new[OwnPools]()         # never destroyed: threads may outlive the interpreter
own_pools.users = own_pools.count = 0
take_at_forks(&own_pools.lock, LEAF_LOCK)


cdef int pool_create(cy.CUcontext context, cy.CUdevice device, uint64_t release_threshold, cy.CUmemoryPool* pool,
                     uint64_t* number, Failure* failure) except -1 nogil:
    """Create a pool of device memory that keeps `release_threshold` bytes at a synchronization of the device.  The
    caller ends it by `pool_end`, with its number.  The context is the device's, and current."""
    if pool_create_at(cy.CU_MEM_LOCATION_TYPE_DEVICE, device, pool, failure):
        return 1
    if pool_keep(pool[0], release_threshold, failure):
        cy.cuMemPoolDestroy(pool[0])
        return 1
    number[0] = note_own_pool(context, pool[0])
    return 0


cdef int host_pool_create(cy.CUcontext context, int node, int first, int count, cy.CUmemoryPool* pool,
                          uint64_t* number, Failure* failure) except -1 nogil:
    """Create a pool of memory on a NUMA node of the host, which keeps all memory, for `count` devices from `first` on.
    Otherwise as `pool_create`."""
    cdef int device, failed
    if pool_create_at(cy.CU_MEM_LOCATION_TYPE_HOST_NUMA, node, pool, failure):
        return 1
    failed = pool_keep(pool[0], <uint64_t>-1, failure)
    for device in range(first, first + count):
        if not failed:
            failed = set_pool_access(pool[0], device, True, failure)
    if failed:
        cy.cuMemPoolDestroy(pool[0])
        return 1
    number[0] = note_own_pool(context, pool[0])
    return 0


cdef int pool_create_at(cy.CUmemLocationType kind, int place, cy.CUmemoryPool* pool,
                        Failure* failure) except -1 nogil:
    cdef cy.CUmemPoolProps properties
    memset(&properties, 0, sizeof(properties))
    properties.allocType = cy.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.handleTypes = cy.CU_MEM_HANDLE_TYPE_NONE
    properties.location.type = kind
    properties.location.id = place
    return _check(failure, "cuMemPoolCreate", cy.cuMemPoolCreate(pool, &properties))


cdef uint64_t note_own_pool(cy.CUcontext context, cy.CUmemoryPool pool) noexcept nogil:
    """Note a new pool, and return its number."""
    cdef OwnPool own
    own.pool, own.context, own.taken = pool, context, False
    own_pools.lock.lock()
    own_pools.count += 1
    own.number = own_pools.count
    own_pools.live.push_back(own)
    own_pools.lock.unlock()
    return own.number


cdef int pool_trim(cy.CUmemoryPool pool, size_t keep, Failure* failure) except -1 nogil:
    cdef cy.CUstreamCaptureMode mode = relax_capture()
    cdef cy.CUresult result = cy.cuMemPoolTrimTo(pool, keep)
    restore_capture(mode)
    return _check(failure, "cuMemPoolTrimTo", result)


cdef int pool_end(uint64_t number, Failure* failure) except -1 nogil:
    """End a pool that is not used again, except for frees that are enqueued or still to come: it is destroyed now or
    later.  Does not wait.  Fails if the driver refused to destroy an empty pool.  Does nothing for this pool if its
    device was reset meanwhile."""
    cdef size_t i
    own_pools.lock.lock()
    for i in range(own_pools.live.size()):
        if own_pools.live[i].number == number:
            own_pools.ended.push_back(own_pools.live[i])
            own_pools.live[i] = own_pools.live.back()
            own_pools.live.pop_back()
            break
    own_pools.lock.unlock()
    return destroy_ended_pools(failure)


cdef int destroy_ended_pools(Failure* failure) except -1 nogil:
    """Destroy the ended pools in which nothing is pending.  Does not wait.  Fails if one could not be destroyed."""
    cdef OwnPool ended
    cdef uint64_t last = 0
    cdef bint empty
    cdef int failed = 0
    while take_ended(last, &ended):
        last = ended.number
        empty = False
        if trim_ended(&ended, &empty) or not empty:
            put_back(last, True)                    # its device may be lost, or its context gone
        elif put_back(last, False) and pool_destroy(ended.pool, failure):
            failed = 1
    return failed


cdef bint take_ended(uint64_t last, OwnPool* ended) noexcept nogil:
    """Take the ended pool with the next higher number that no other call has taken.  False if there is none."""
    cdef size_t i
    cdef bint found = False
    own_pools.lock.lock()
    for i in range(own_pools.ended.size() if own_pools.users == 0 else 0):
        if own_pools.ended[i].number > last and not own_pools.ended[i].taken and (
                not found or own_pools.ended[i].number < ended.number):
            ended[0] = own_pools.ended[i]
            found = True
    for i in range(own_pools.ended.size() if found else 0):
        own_pools.ended[i].taken |= own_pools.ended[i].number == ended.number
    own_pools.lock.unlock()
    return found


cdef bint put_back(uint64_t number, bint stays) noexcept nogil:
    """Undo `take_ended`; if the pool does not stay, remove it from the ended pools.  False if the device was reset
    meanwhile, and the pool is gone."""
    cdef size_t i
    cdef bint found = False
    own_pools.lock.lock()
    for i in range(own_pools.ended.size()):
        if own_pools.ended[i].number == number:
            found = True
            own_pools.ended[i].taken = False
            if not stays:
                own_pools.ended[i] = own_pools.ended.back()
                own_pools.ended.pop_back()
            break
    own_pools.lock.unlock()
    return found


cdef int trim_ended(OwnPool* ended, bint* empty) except -1 nogil:
    """Trim an ended pool: release its memory, except memory that pending operations need, which is released once they
    are complete."""
    cdef Failure ignored                            # a later call looks again
    cdef Scope scope
    cdef int failed
    if enter_context(ended.context, &scope, &ignored):
        return 1
    failed = (pool_keep(ended.pool, 0, &ignored) or pool_trim(ended.pool, 0, &ignored)
              or pool_is_empty(ended.pool, empty, &ignored))
    leave_context(&scope)
    return failed


cdef int pool_keep(cy.CUmemoryPool pool, uint64_t nbytes, Failure* failure) except -1 nogil:
    """Set how many bytes a pool keeps at a synchronization of the device."""
    cdef cy.CUstreamCaptureMode mode = relax_capture()
    cdef cy.CUresult result = cy.cuMemPoolSetAttribute(pool, cy.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &nbytes)
    restore_capture(mode)
    return _check(failure, "cuMemPoolSetAttribute", result)


cdef int pool_is_empty(cy.CUmemoryPool pool, bint* empty, Failure* failure) except -1 nogil:
    """Query whether no memory backs the pool: then nothing in it is allocated or pending."""
    cdef uint64_t reserved = 0
    cdef cy.CUstreamCaptureMode mode = relax_capture()
    cdef cy.CUresult result = cy.cuMemPoolGetAttribute(pool, cy.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved)
    restore_capture(mode)
    empty[0] = reserved == 0
    return _check(failure, "cuMemPoolGetAttribute", result)


cdef int pool_destroy(cy.CUmemoryPool pool, Failure* failure) except -1 nogil:
    cdef cy.CUstreamCaptureMode mode = relax_capture()
    cdef cy.CUresult result = cy.cuMemPoolDestroy(pool)
    restore_capture(mode)
    return _check(failure, "cuMemPoolDestroy", result)


cdef int open_own_pools(cy.CUcontext context, int peer, bint is_open, Failure* failure) except -1 nogil:
    """Give work of another device access to all existing pools of a context, or revoke the access."""
    cdef vector[OwnPool] pools
    cdef size_t i
    cdef int failed = 0
    own_pools.lock.lock()
    pools = own_pools.live
    own_pools.users += 1
    own_pools.lock.unlock()
    for i in range(pools.size()):
        if pools[i].context == context and not failed:
            failed = set_pool_access(pools[i].pool, peer, is_open, failure)
    own_pools.lock.lock()
    own_pools.users -= 1
    own_pools.lock.unlock()
    return failed


cdef int forget_own_pools(cy.CUcontext context) except -1 nogil:
    """Forget the pools of a device that was reset: they are gone."""
    own_pools.lock.lock()
    forget_pools_of(&own_pools.live, context)
    forget_pools_of(&own_pools.ended, context)
    own_pools.lock.unlock()
    return 0


cdef void forget_pools_of(vector[OwnPool]* pools, cy.CUcontext context) noexcept nogil:
    cdef size_t i, kept = 0
    for i in range(pools.size()):
        if pools[0][i].context != context:
            pools[0][kept] = pools[0][i]
            kept += 1
    pools.resize(kept)
