# Memory pools of xlogmem's own: made, trimmed, and destroyed once nothing is pending in them.
#
# The driver's documentation allows that a pool is destroyed while frees into it are pending.  Driver 580.159 then
# hangs or crashes, sooner or later, in that call or in a later one (benchmarks/pool_destroy.py: nothing but driver
# calls; seen on H100s).  So a pool that has ended is destroyed when nothing backs it any more: trimming releases all
# that no pending operation needs.  Until then it keeps nothing at a synchronization of the device, and the next call
# that makes, ends or trims a pool looks again.

cdef struct EndedPool:
    cy.CUmemoryPool pool
    cy.CUcontext context


cdef cppclass EndedPools:
    mutex lock                          # a leaf: no driver call under it
    vector[EndedPool] waiting

cdef EndedPools* ended_pools = make_new[EndedPools]()       # never destroyed: threads may outlive the interpreter
take_at_forks(&ended_pools.lock, LEAF_LOCK)


cdef int pool_create(cy.CUdevice device, uint64_t release_threshold, cy.CUmemoryPool* pool,
                     Failure* failure) except -1 nogil:
    """A pool of device memory that keeps `release_threshold` bytes at a synchronization of the device."""
    cdef cy.CUmemPoolProps properties
    memset(&properties, 0, sizeof(properties))
    properties.allocType = cy.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.handleTypes = cy.CU_MEM_HANDLE_TYPE_NONE
    properties.location.type = cy.CU_MEM_LOCATION_TYPE_DEVICE
    properties.location.id = device
    if _check(failure, "cuMemPoolCreate", cy.cuMemPoolCreate(pool, &properties)):
        return 1
    if _check(failure, "cuMemPoolSetAttribute", cy.cuMemPoolSetAttribute(
            pool[0], cy.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &release_threshold)):
        cy.cuMemPoolDestroy(pool[0])
        return 1
    return 0


cdef int pool_trim(cy.CUmemoryPool pool, size_t keep, Failure* failure) except -1 nogil:
    cdef cy.CUstreamCaptureMode mode = relax_capture()
    cdef cy.CUresult result = cy.cuMemPoolTrimTo(pool, keep)
    restore_capture(mode)
    return _check(failure, "cuMemPoolTrimTo", result)


cdef int pool_end(cy.CUmemoryPool pool, cy.CUcontext context, Failure* failure) except -1 nogil:
    """The pool is not used again, but for frees that are enqueued or still to come: destroy it, now or later.  Does not
    wait.  Fails if one that could be destroyed was not."""
    cdef EndedPool ended
    cdef uint64_t none = 0
    cdef cy.CUstreamCaptureMode mode = relax_capture()
    cdef cy.CUresult result = cy.cuMemPoolSetAttribute(pool, cy.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &none)
    restore_capture(mode)
    ended.pool, ended.context = pool, context
    ended_pools.lock.lock()
    ended_pools.waiting.push_back(ended)
    ended_pools.lock.unlock()
    return destroy_ended_pools(failure) or _check(failure, "cuMemPoolSetAttribute", result)


cdef int destroy_ended_pools(Failure* failure) except -1 nogil:
    """Those in which nothing is pending any more.  Does not wait.  Fails if one could not be destroyed."""
    cdef vector[EndedPool] looked_at, left
    cdef size_t i
    cdef bint empty
    cdef int failed = 0
    ended_pools.lock.lock()
    looked_at = ended_pools.waiting
    ended_pools.waiting.clear()
    ended_pools.lock.unlock()
    for i in range(looked_at.size()):
        empty = False
        if trim_ended(&looked_at[i], &empty) or not empty:
            left.push_back(looked_at[i])            # its device may be lost, or its context gone
        elif pool_destroy(looked_at[i].pool, failure):
            failed = 1
    if not left.empty():
        ended_pools.lock.lock()
        for i in range(left.size()):
            ended_pools.waiting.push_back(left[i])
        ended_pools.lock.unlock()
    return failed


cdef int trim_ended(EndedPool* ended, bint* empty) except -1 nogil:
    cdef Failure ignored                            # a later call looks again
    cdef Scope scope
    cdef int failed
    if enter_context(ended.context, &scope, &ignored):
        return 1
    failed = pool_trim(ended.pool, 0, &ignored) or pool_is_empty(ended.pool, empty, &ignored)
    leave_context(&scope)
    return failed


cdef int pool_is_empty(cy.CUmemoryPool pool, bint* empty, Failure* failure) except -1 nogil:
    """Whether no memory backs the pool, so that nothing in it is allocated or pending."""
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


cdef int forget_ended_pools(cy.CUcontext context) except -1 nogil:
    """The device was reset, and its pools with it."""
    cdef size_t i, kept = 0
    ended_pools.lock.lock()
    for i in range(ended_pools.waiting.size()):
        if ended_pools.waiting[i].context != context:
            ended_pools.waiting[kept] = ended_pools.waiting[i]
            kept += 1
    ended_pools.waiting.resize(kept)
    ended_pools.lock.unlock()
    return 0
