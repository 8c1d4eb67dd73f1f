from xlogmem._core cimport Window
from xlogmem.blocks cimport Core
from xlogmem.streams cimport Stream


cdef class LaunchRecorder:
    cdef readonly Core runtime
    cdef readonly Stream stream
    cdef bint strict
    cdef readonly bint preflighted
    cdef bint done
    cdef Window* window
    cdef list rejections
    cdef int register(self, object what, int access, str method) except -1
    cdef int resolve(self, object what, int access, str method) except -1
    cdef int open(self) except -1
    cdef int finish(self, bint filed) except -1
