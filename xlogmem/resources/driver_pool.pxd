# The functions of a resource whose `self` is a memory pool of the driver.

from cuda.bindings cimport cydriver as cy

from xlogmem._base.failures cimport Failure
from xlogmem._driver cimport destroy_ended_pools, pool_allocate, pool_free, pool_trim
from xlogmem.resources.base cimport Allocation


cdef inline int allocate_from_pool(void* self, Allocation* wanted, Failure* failure) except -1 nogil:
    cdef cy.CUdeviceptr address = 0
    cdef int failed = pool_allocate(<cy.CUmemoryPool>self, wanted.nbytes, wanted.handle, &address, failure)
    wanted.ptr = address
    return failed


cdef inline int deallocate_into_pool(void* self, Allocation* freed, Failure* failure) except -1 nogil:
    return pool_free(freed.ptr, freed.handle, failure)


cdef inline int trim_pool(void* self, Failure* failure) except -1 nogil:
    cdef Failure ignored                        # of a pool that has ended, which is of no concern to this one
    destroy_ended_pools(&ignored)
    return pool_trim(<cy.CUmemoryPool>self, 0, failure)
