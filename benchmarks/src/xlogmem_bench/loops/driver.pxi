# The driver's functions for the floor, a pool of the driver, and stream handles.

from cuda.bindings cimport cydriver as cy
from libc.stdint cimport uint64_t, uintptr_t
from libc.string cimport memset
from libcpp.vector cimport vector

from xlogmem.errors import DriverError
from xlogmem.native cimport xlogmem_error


cdef extern from "loops/driver.hpp" namespace "xlogmem_bench" nogil:
    cdef struct driver:
        cy.CUresult (*launch_graph)(cy.CUgraphExec, cy.CUstream) noexcept nogil
    bint bind(driver*, const char*, void*)
    uint64_t now()

cdef driver calls
cdef bint bound = False


cdef int succeed(cy.CUresult code, str call) except -1:
    if code != cy.CUDA_SUCCESS:
        raise DriverError(f"{call} failed with {<int>code}", code=<int>code)
    return 0


cdef int raise_error(xlogmem_error* error) except -1:
    raise DriverError(error.text.decode(errors="replace"))


cdef int bind_driver() except -1:
    """Get the driver's functions from the driver."""
    global bound
    cdef void* function
    if bound:
        return 0
    for name in (b"cuMemAllocFromPoolAsync", b"cuMemFreeAsync", b"cuMemHostAlloc", b"cuMemFreeHost", b"cuEventCreate",
                 b"cuEventDestroy", b"cuEventRecord", b"cuStreamWaitEvent", b"cuCtxSynchronize", b"cuCtxSetCurrent",
                 b"cuLaunchKernel", b"cuGraphLaunch"):
        function = NULL
        succeed(cy.cuGetProcAddress(name, &function, 12000, 0, NULL), "cuGetProcAddress")
        if function == NULL or not bind(&calls, name, function):
            raise DriverError(f"the driver has no {name.decode()}")
    bound = True
    return 0


cdef cy.CUmemoryPool new_pool() except NULL:
    """A driver pool that keeps all of its memory, in the current context."""
    cdef cy.CUmemPoolProps properties
    cdef cy.CUmemoryPool pool
    cdef cy.CUdevice device
    cdef uint64_t threshold = <uint64_t>-1
    bind_driver()
    succeed(cy.cuCtxGetDevice(&device), "cuCtxGetDevice")
    memset(&properties, 0, sizeof(properties))
    properties.allocType = cy.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.handleTypes = cy.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_NONE
    properties.location.type = cy.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    properties.location.id = device
    succeed(cy.cuMemPoolCreate(&pool, &properties), "cuMemPoolCreate")
    succeed(cy.cuMemPoolSetAttribute(pool, cy.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold),
            "cuMemPoolSetAttribute")
    return pool


cdef class Handles:
    """Stream handles, as the loops take them."""
    cdef vector[void*] streams

    def __cinit__(self, handles):
        for handle in handles:
            self.streams.push_back(<void*><uintptr_t>handle)
