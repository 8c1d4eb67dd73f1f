from cpython.ref cimport PyObject
from cuda.bindings cimport cydriver as cy
from libc.stdint cimport uint32_t, uint64_t

from xlogmem._base.failures cimport Failure
from xlogmem._base.owned cimport Owned
from xlogmem._core cimport Found, GraphState, Outcome, Window
from xlogmem._order cimport StreamState
from xlogmem.blocks cimport Core, DeviceBlock
from xlogmem.streams cimport Stream


cdef class Together:
    # What a launch across devices consists of, beside the recorder that the program holds.
    cdef list others            # recorders in other runtimes: see launch/elsewhere.pxi
    cdef Stream own_stream      # the stream, as a runtime of its own device knows it
    cdef object named           # the object that the program gave for it, if that was another one
    cdef bint copies            # nothing but copies by the driver, which need no access
    cdef bint opening           # a preflight is under way, perhaps in another thread


cdef class LaunchRecorder:
    cdef object (*call)(PyObject*, PyObject**, size_t, PyObject*)   # for `with`: see launch/with.pxi
    cdef readonly Core runtime
    cdef readonly Stream stream     # None: the host, in an access
    cdef readonly bint preflighted
    cdef bint done
    cdef bint cancelled         # and nothing was launched
    cdef bint busy              # preflight is running, without the GIL
    cdef Window* window         # NULL: it was never initialised
    cdef Owned[Window] owned    # the same, and its core, which keeps the recorder while `runtime` is None
    cdef list unsettled         # for the preflight: texts of rejections, and what it has to adopt; None: nothing
    cdef str advice             # about untracked memory that was rejected
    cdef list held              # what resolvers want kept until the use is filed
    cdef Together together      # of a launch across devices; None: all is on this one
    cdef bint is_part           # it is among the `others` of one
    cdef int refuse_late(self, int access) except -1
    cdef int reject(self, int access, str why) except -1
    cdef int leave(self) except -1
    cdef int open(self) except -1
    cdef int open_here(self) except -1
    cdef int open_slowly(self, int done, Failure* failure) except -1
    cdef int settle(self) except -1
    cdef int refuse_unsettled(self) except -1
    cdef int finish(self, Outcome outcome) except -1
    cdef int finish_here(self, Outcome outcome) except -1
    cdef int finish_unopened(self, Outcome outcome) except -1
    cdef int finish_slowly(self) except -1
    cdef int refuse_busy(self) except -1
    cdef str arguments_of(self, uint64_t generation)


cdef LaunchRecorder record_on(Stream stream)
cdef int add_use(LaunchRecorder recorder, object what, int access, object named) except -1
cdef int add_host_memory(LaunchRecorder recorder, const void* memory, size_t nbytes, int access) except -1
cdef int copy_together(LaunchRecorder recorder, Stream own_stream) except -1
cdef bint is_capture(Core core)
cdef bint is_in_capture(LaunchRecorder recorder)
cdef int export_inside(LaunchRecorder recorder, DeviceBlock block, Stream consumer) except -1
cdef Core core_of_use(int device_id, StreamState** stream)
cdef bint has_captures() noexcept nogil
cdef Stream captured_by_handle(Core runtime, cy.CUstream handle)
cdef int promise_to_live(Core runtime, cy.CUstream handle) except -1
cdef Stream stream_outside(Core runtime, cy.CUstream handle)
cdef int give_to_graph(Core runtime, cy.CUstream handle, uint32_t slot, uint64_t generation) except -1
cdef int take_from_graph(Core runtime, cy.CUstream handle, uint64_t generation) except -1
cdef bint is_of_graph(Core runtime, cy.CUstream handle, Found* block) except -1
cdef GraphState* launches_of(object graph, Core runtime) except NULL
