# cython: autotestdict=False
"""The functions of CuPy's runtime module that need a driver, on the simulated runtime: `cupy_runtime` puts them into
its table.  CuPy is not needed to build this: the signatures are compared when they are put there."""
# The functions of the simulated runtime are found when this is loaded: see cudart.loaded().


include "cupy_table/runtime.pxi"  # the functions of the simulated runtime


cdef object theirs = None                               # CuPy's module
cdef int with_locations = 0                             # from CUDA 13 on memory is advised with them


def begin(module):
    """`module` is cupy_backends.cuda.api.runtime, which has the classes that are returned and raised."""
    global theirs, with_locations
    theirs = module
    with_locations = module.runtimeGetVersion() >= 13000


cdef int check(int status) except -1:
    if status:
        raise theirs.CUDARuntimeError(status)
    return 0


include "cupy_table/devices.pxi"  # devices
include "cupy_table/memory.pxi"   # memory
include "cupy_table/copies.pxi"   # copies and fills
include "cupy_table/arrays.pxi"   # arrays, textures and surfaces
include "cupy_table/streams.pxi"  # streams, events and graphs
include "cupy_table/refused.pxi"  # what is not simulated
