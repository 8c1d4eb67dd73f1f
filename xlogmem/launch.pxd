from xlogmem._core cimport CoreState, Outcome, Window
from xlogmem.blocks cimport Core, Extent
from xlogmem.streams cimport Stream


cdef class LaunchRecorder:
    cdef readonly Core runtime
    cdef readonly Stream stream
    cdef bint strict
    cdef readonly bint preflighted
    cdef bint done
    cdef bint busy              # preflight is running, without the GIL
    cdef Window* window
    cdef CoreState* keeper      # of a recorder that its own runtime keeps; `runtime` is None meanwhile
    cdef list rejections
    cdef list held              # what resolvers want kept until the use is filed
    cdef int register(self, object what, int access) except -1
    cdef int refuse_late(self, int access) except -1
    cdef int add_use(self, object what, int access, object named) except -1
    cdef int add_memory(self, object what, int access, object named) except -1
    cdef int reject(self, int access, str why) except -1
    cdef int add_tracked_in(self, Extent* extent, int access) except -1
    cdef int add_parts(self, object parts, int access, object named) except -1
    cdef object parts_of(self, object what, object resolver)
    cdef str explanation(self)
    cdef int open(self) except -1
    cdef int finish(self, Outcome outcome) except -1
    cdef int refuse_busy(self) except -1
