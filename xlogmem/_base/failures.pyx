"""Failures: the one vocabulary of errors.

A function without the GIL returns 1 and fills in a `Failure`, which is plain data.  Code that holds the GIL turns the
failure into an exception (`raise_failure`): a sentence, with the argument, the caller's task and advice.  Callers of
the C table get the sentence alone (`format_failure`).

The driver's names of its error codes are looked up here, because every room needs them; all other CUDA calls are made
in `_driver`.
"""
import threading

from cpython.exc cimport PyErr_CheckSignals, PyErr_Fetch, PyErr_Restore
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport uint8_t
from libc.stdio cimport snprintf
from libc.string cimport strlen

from xlogmem._base.labels cimport object_of, release, utf8_of_tag

from xlogmem._base.log import warn
from xlogmem.errors import (
    BlockingWindowWarning,
    DeviceLostError,
    DriverError,
    OutOfBudgetError,
    OutOfDeviceMemoryError,
    StreamMisuseError,
    UseAfterFreeError,
)

__all__ = ["FORKED"]

cdef const char* FORKED_TEXT = "this process was forked from one that used CUDA"
cdef str START_WORKERS = ", which CUDA does not support. Start workers with the spawn or forkserver method"
FORKED = FORKED_TEXT.decode() + START_WORKERS

# The end of a message, after the sentence and the caller's task: the reason, or advice.
cdef dict ADVICE = {
    STREAM_IS_CAPTURING: ". Put `use` around the launch of the graph, or capture with xlogmem.capture(stream), in "
                         "which uses are captured, too (not in a body of a conditional node), or end the capture first",
    SOURCE_IS_CAPTURING: ": an event recorded there would belong to the graph. End that capture first, or let this "
                         "stream take part in it: graph.fork(stream)",
    STREAM_IS_DEAD: ": register it again",
    STREAM_IS_GONE: ". Pass its handle to unregister_stream() of the runtime, then make this call again, on a stream "
                    "that exists",
    NEEDS_CONTEXT_SYNC: ". Call reap_pending(), which may wait for it",
    STREAM_IS_IN_USE: ": a `use` is open on it, or another thread is inside a call on it",
    BLOCK_IS_AWAITED: ". Pass on_conflict='wait', or begin this one later",
    BLOCK_IS_CONTESTED: ". Leave that one first, or pass on_conflict='wait'",
    WAIT_IS_CIRCULAR: ", so that this one would wait for ever. Leave that one first",
    BLOCK_IS_ON_DEVICE: ". Copy it (Buffer.to_numpy), or use page-locked or managed memory: adopt() it, or allocate it "
                        "with resource=PinnedMemoryResource(), or from a resource that declares is_host_accessible",
    DEVICE_IS_LOST: ": the process has to start again",
    PROCESS_WAS_FORKED: START_WORKERS,
}


# ---------------------------------------------------------------------------------------------- exceptions under way
cdef void set_aside(UnderWay* exception) noexcept:
    """Set aside an exception that is under way: Python code would find it set, and drop it or fail."""
    PyErr_Fetch(&exception.kind, &exception.error, &exception.traceback)


cdef void put_back(UnderWay* exception) noexcept:
    PyErr_Restore(exception.kind, exception.error, exception.traceback)


# ---------------------------------------------------------------------------------------------- filling in
cdef int fail_stream(Failure* failure, FailureKind kind, uint64_t stream) noexcept nogil:
    failure.kind = kind
    failure.stream = stream
    return 1


cdef int fail_gone(Failure* failure, uint64_t handle) noexcept nogil:
    """Complete the failure of a query of a registered stream, if the driver does not know its handle any more."""
    if failure.kind == DRIVER_FAILED and failure.code == cy.CUDA_ERROR_INVALID_HANDLE:
        fail_stream(failure, STREAM_IS_GONE, handle)
    return 1


cdef int fail_block(Failure* failure, FailureKind kind, uint64_t generation, size_t argument) noexcept nogil:
    failure.kind = kind
    failure.generation = generation
    failure.argument = argument
    return 1


cdef int fail_resource(Failure* failure, cy.CUresult code) noexcept nogil:
    """Fill in a resource's failure, whose text the caller writes."""
    failure.kind = RESOURCE_FAILED
    failure.code = code
    return 1


cdef int fail_argument(Failure* failure, cy.CUresult code) noexcept nogil:
    """Do as `fail_resource` for a wrong argument of a call of the C table, before anything was done."""
    failure.kind = ARGUMENT_IS_WRONG
    failure.code = code
    return 1


cdef int keep_exception(Failure* failure, object exception) except -1:
    """Keep an exception in a failure.  The failure owns a reference until it is raised or dropped; its text is for
    readers without the GIL."""
    said = text_of(exception)
    snprintf(failure.text, sizeof(failure.text), "%s", <const char*>said)
    Py_INCREF(exception)
    failure.kind = PYTHON_RAISED
    failure.code = cy.CUDA_ERROR_UNKNOWN
    if isinstance(exception, MemoryError):
        failure.code = cy.CUDA_ERROR_OUT_OF_MEMORY
    elif isinstance(exception, DeviceLostError):
        failure.code = cy.CUDA_ERROR_LAUNCH_FAILED      # whichever it was
    failure.exception = <void*>exception
    return 1


cdef void drop_holdings(Failure* failure) noexcept nogil:
    cdef int i
    for i in range(failure.budget.holding_count):
        release(failure.budget.holdings[i].tag)
    failure.budget.holding_count = 0


cdef int drop_exception(Failure* failure) except -1 nogil:
    """Drop the references of a failure that is not reported.  Call without any lock, because it takes the GIL."""
    cdef UnderWay exception
    if failure.kind == OUT_OF_BUDGET:
        drop_holdings(failure)
    if failure.kind == PYTHON_RAISED:
        failure.kind = NO_FAILURE
        with gil:
            set_aside(&exception)
            Py_DECREF(<object>failure.exception)
            put_back(&exception)
    return 0


# ---------------------------------------------------------------------------------------------- kinds
cdef bint is_out_of_memory(Failure* failure) noexcept nogil:
    return (failure.kind in (DRIVER_FAILED, PYTHON_RAISED, RESOURCE_FAILED, OUT_OF_BUDGET)  # others have no code
            and failure.code == cy.CUDA_ERROR_OUT_OF_MEMORY)


cdef bint is_sticky(Failure* failure) noexcept nogil:
    """True for errors after which every call in the context fails until the process ends (CUDA driver API, CUresult:
    "leaves the process in an inconsistent state", "must be terminated and relaunched")."""
    if failure.kind not in (DRIVER_FAILED, PYTHON_RAISED):
        return False
    return failure.code in (
        cy.CUDA_ERROR_ECC_UNCORRECTABLE, cy.CUDA_ERROR_CONTAINED, cy.CUDA_ERROR_ILLEGAL_ADDRESS,
        cy.CUDA_ERROR_LAUNCH_TIMEOUT, cy.CUDA_ERROR_CONTEXT_IS_DESTROYED, cy.CUDA_ERROR_ASSERT,
        cy.CUDA_ERROR_HARDWARE_STACK_ERROR, cy.CUDA_ERROR_ILLEGAL_INSTRUCTION, cy.CUDA_ERROR_MISALIGNED_ADDRESS,
        cy.CUDA_ERROR_INVALID_ADDRESS_SPACE, cy.CUDA_ERROR_INVALID_PC, cy.CUDA_ERROR_LAUNCH_FAILED,
        cy.CUDA_ERROR_TENSOR_MEMORY_LEAK, cy.CUDA_ERROR_MPS_CLIENT_TERMINATED, cy.CUDA_ERROR_EXTERNAL_DEVICE)


cdef bint is_put_off(Failure* failure) noexcept nogil:
    """True if the failure is not an error for a caller that can do the work later: a capture will end, and an explicit
    call may wait."""
    return failure.kind in (STREAM_IS_CAPTURING, SOURCE_IS_CAPTURING, NEEDS_CONTEXT_SYNC)


# ---------------------------------------------------------------------------------------------- words
cdef void format_failure(Failure* failure, char* text, size_t size) noexcept nogil:
    """Write the sentence that describes a failure, as far as there is room."""
    write_sentence(failure, text, size)
    drop_half_character(text)


cdef void drop_half_character(char* text) noexcept nogil:
    """Drop an incomplete UTF-8 character at the end of a text that was cut off: some callers decode strictly."""
    cdef size_t end = strlen(text)
    cdef size_t start = end
    cdef uint8_t first
    while start > 0 and (<uint8_t>text[start - 1] & 0xC0) == 0x80:
        start -= 1
    if start == 0:
        return
    first = <uint8_t>text[start - 1]
    if first >= 0xC0 and end - start < <size_t>(1 if first < 0xE0 else 2 if first < 0xF0 else 3):
        text[start - 1] = 0


cdef void write_sentence(Failure* failure, char* text, size_t size) noexcept nogil:
    if failure.kind == DRIVER_FAILED:
        format_driver_failure(failure, text, size)
    elif failure.kind in (RESOURCE_FAILED, ARGUMENT_IS_WRONG):
        snprintf(text, size, "%s", failure.text)
    elif failure.kind == PYTHON_RAISED:
        format_exception(failure.exception, text, size)
    elif failure.kind == BLOCK_IS_STALE:
        snprintf(text, size, "block %llu was freed, and cannot be used any more",
                 <unsigned long long>failure.generation)
    elif failure.kind in (BLOCK_IS_CONTESTED, BLOCK_IS_AWAITED, WAIT_IS_CIRCULAR):
        format_conflict(failure, text, size)
    elif failure.kind == BLOCK_IS_ON_DEVICE:
        snprintf(text, size, "block %llu is device memory, which the host cannot read or write",
                 <unsigned long long>failure.generation)
    elif failure.kind == STREAM_IS_CAPTURING:
        snprintf(text, size, "stream %llu is capturing a graph", <unsigned long long>failure.stream)
    elif failure.kind == SOURCE_IS_CAPTURING:
        snprintf(text, size, "stream %llu, which this work has to wait for, is capturing a graph",
                 <unsigned long long>failure.stream)
    elif failure.kind == NEEDS_CONTEXT_SYNC:
        snprintf(text, size, "the host would have to wait for the whole context")
    elif failure.kind == STREAM_IS_ELSEWHERE:
        snprintf(text, size, "stream %#llx belongs to another context or device than this runtime",
                 <unsigned long long>failure.stream)
    elif failure.kind == STREAM_IS_DEAD:
        snprintf(text, size, "stream %llu was unregistered", <unsigned long long>failure.stream)
    elif failure.kind == STREAM_IS_GONE:
        snprintf(text, size, "stream %#llx was destroyed: %s gave CUDA_ERROR_INVALID_HANDLE",
                 <unsigned long long>failure.stream, failure.call)
    elif failure.kind == STREAM_IS_IN_USE:
        snprintf(text, size, "stream %llu is in use", <unsigned long long>failure.stream)
    elif failure.kind == OUT_OF_BUDGET:
        format_budget(&failure.budget, text, size)
    elif failure.kind == DEVICE_IS_LOST:
        snprintf(text, size, "the device was lost to an earlier error")
    elif failure.kind == PROCESS_WAS_FORKED:
        snprintf(text, size, "%s", FORKED_TEXT)
    else:
        snprintf(text, size, "a failure without a kind (%d)", <int>failure.kind)


cdef void format_conflict(Failure* failure, char* text, size_t size) noexcept nogil:
    cdef char[32] stream
    cdef char[32] other
    write_stream(failure.stream, stream, sizeof(stream))
    write_stream(failure.other_stream, other, sizeof(other))
    if failure.kind == BLOCK_IS_CONTESTED:
        snprintf(text, size, "block %llu is in another use that is still open, on %s",
                 <unsigned long long>failure.generation, other)
    elif failure.kind == BLOCK_IS_AWAITED:
        snprintf(text, size, "block %llu is wanted by another use, which waits longer, on %s",
                 <unsigned long long>failure.generation, other)
    else:
        snprintf(text, size, "block %llu is in another use that is still open, on %s, and cannot be left while this "
                 "one on %s waits for it", <unsigned long long>failure.generation, other, stream)


cdef void write_stream(uint64_t number, char* text, size_t size) noexcept nogil:
    """Write where a use is: on a stream, or on the host."""
    if number == <uint64_t>ON_HOST:
        snprintf(text, size, "the host")
    else:
        snprintf(text, size, "stream %llu", <unsigned long long>number)


cdef str name_of_stream(uint64_t number):
    cdef char[32] text
    write_stream(number, text, sizeof(text))
    return text.decode()


cdef void format_budget(Budget* budget, char* text, size_t size) noexcept nogil:
    """Write who holds what of a budget, the largest first, as far as there is room for whole entries."""
    cdef char[128] entry
    cdef const char* before = ". Held by "
    cdef const char* tag
    cdef size_t length, more, j
    cdef int i
    snprintf(text, size, "out of budget: requested %llu bytes, remaining %llu bytes of %llu bytes",
             <unsigned long long>budget.requested, <unsigned long long>(budget.limit - budget.current),
             <unsigned long long>budget.limit)
    for i in range(budget.holding_count):
        tag = "memory without a tag"
        if budget.holdings[i].tag != NULL:
            tag = utf8_of_tag(budget.holdings[i].tag)
        if tag == NULL:
            tag = "a tag"
        more = snprintf(entry, sizeof(entry), "%s%.64s: %llu bytes", before, tag,
                        <unsigned long long>budget.holdings[i].nbytes)
        before = ", "
        length = strlen(text)
        if length + more >= size or more >= sizeof(entry):
            break
        for j in range(more):                           # a tag commands no terminal
            text[length + j] = entry[j] if <uint8_t>entry[j] >= 32 and entry[j] != 127 else <char>63    # "?"
        text[length + more] = 0


cdef void format_driver_failure(Failure* failure, char* text, size_t size) noexcept nogil:
    cdef const char* name = NULL
    cdef const char* meaning = NULL
    cy.cuGetErrorName(failure.code, &name)              # sets NULL for a code that the driver does not know
    cy.cuGetErrorString(failure.code, &meaning)
    snprintf(text, size, "CUDA driver error: %s gave %s (%s)", failure.call,
             name if name != NULL else <const char*>"an error",
             meaning if meaning != NULL else <const char*>"unknown error")


cdef tuple error_name(cy.CUresult code):
    """The driver's name and description of an error code."""
    cdef const char* name = NULL
    cdef const char* meaning = NULL
    with nogil:
        cy.cuGetErrorName(code, &name)
        cy.cuGetErrorString(code, &meaning)
    return (name.decode() if name != NULL else f"CUDA error {int(code)}",
            meaning.decode() if meaning != NULL else "unknown error")


cdef bytes text_of(object exception):
    """The type and message of an exception."""
    name = type(exception).__name__
    try:
        said = f"{name}: {exception}"
    except BaseException:                               # its __str__ may do anything
        said = name
    return said.encode(errors="replace")


cdef void format_exception(void* exception, char* text, size_t size) noexcept nogil:
    """Write the text of an exception that a resource in Python raised.  The resource was called with the GIL, so taking
    the GIL again adds no danger."""
    cdef UnderWay under_way
    with gil:
        set_aside(&under_way)
        said = text_of(<object>exception)
        snprintf(text, size, "%s", <const char*>said)
        put_back(&under_way)


cdef int raise_failure(Failure* failure, str what="", atomic[uint32_t]* lost=NULL, str where="",
                       str words="") except -1:
    """Raise the failure that a nogil function reported.  `what` is the caller's task, as in "allocating 64 bytes";
    `lost` has the marks of the runtime that loses its device with a sticky error (NULL: there is none).  `where` begins
    the message, as in "read=: "; `words` name the block that the failure is about."""
    cdef char[512] text
    cdef object exception
    if lost != NULL and is_sticky(failure):
        lost.fetch_or(LOST)
    if failure.kind == PYTHON_RAISED:
        exception = <object>failure.exception
        Py_DECREF(exception)
        failure.exception = NULL
        raise exception
    if failure.kind == OUT_OF_BUDGET:
        raise budget_error(failure, what)
    with nogil:
        format_failure(failure, text, sizeof(text))
    contested = failure.kind in (BLOCK_IS_CONTESTED, BLOCK_IS_AWAITED, WAIT_IS_CIRCULAR)
    threads = f" (this is {thread_name(failure.thread)}, that is {thread_name(failure.other_thread)})" if (
        contested) else ""
    sentence = text.decode(errors="replace")
    if words:
        sentence = sentence.replace(f"block {failure.generation}", words, 1)
    task = f" ({what})" if what and failure.kind == BLOCK_IS_STALE else f" while {what}" if what else ""
    raise exception_of(failure, where + sentence + threads + task + advice_on(failure))


cdef str advice_on(Failure* failure):
    """Return the end of the message of a failure.  One use() is on a stream or on the host, and not on both."""
    cdef str advice = ADVICE.get(failure.kind, "")
    if failure.kind == WAIT_IS_CIRCULAR and (
            (failure.stream == <uint64_t>ON_HOST) == (failure.other_stream == <uint64_t>ON_HOST)):
        advice += ", or name the memory of both in one use()"
    return advice


cdef object budget_error(Failure* failure, str what):
    """Make the exception of a budget's failure; it owns nothing of the failure."""
    cdef Budget* budget = &failure.budget
    cdef int i
    holders = [(object_of(budget.holdings[i].tag), budget.holdings[i].nbytes) for i in range(budget.holding_count)]
    drop_holdings(failure)
    return OutOfBudgetError(budget.requested, budget.limit - budget.current, budget.current, budget.limit,
                            pending=budget.pending, holders=holders, what=what)


cdef extern from "Python.h" nogil:
    unsigned long PyThread_get_thread_ident()
    bint Py_IsInitialized()

cdef unsigned long main_thread = threading.main_thread().ident


cdef str thread_name(uint64_t ident):
    for thread in threading.enumerate():
        if thread.ident == ident:
            return f"thread {thread.name!r}"
    return f"thread {ident}" if ident else "a thread that has ended"


cdef int check_signals(bint anywhere, Failure* failure) except -1 nogil:
    """Run the handlers of signals that came in; an exception of a handler (KeyboardInterrupt) is the failure.  Only the
    main thread runs such handlers, and hundreds of other threads must not take the GIL all the time.  With `anywhere`
    any thread takes it, because `threading` does not know the main thread of every program that embeds Python.  The
    main thread may wait when it has ended the interpreter, too."""
    if not anywhere and PyThread_get_thread_ident() != main_thread or not Py_IsInitialized():
        return 0
    return run_signal_handlers(failure)


cdef int run_signal_handlers(Failure* failure) except -1 with gil:
    """Run signal handlers for `check_signals`.  This is a separate function because a function with a Python object
    takes the GIL whenever it returns."""
    cdef UnderWay exception
    set_aside(&exception)
    try:
        PyErr_CheckSignals()
    except BaseException as error:
        return keep_exception(failure, error)
    finally:
        put_back(&exception)
    return 0


cdef int warn_of_window(Failure* seen, uint64_t waited, Failure* failure) except -1 nogil:
    """Warn that a thread has waited `waited` milliseconds for a window; the warning may be turned into an error."""
    cdef UnderWay exception
    with gil:
        set_aside(&exception)
        try:
            warn(
                f"{thread_name(seen.thread)} has waited for {waited / 1000:.0f} s to launch on "
                f"{name_of_stream(seen.stream)}: block {seen.generation} "
                + (f"is in another use that is still open, on {name_of_stream(seen.other_stream)}, in "
                   f"{thread_name(seen.other_thread)}. Leave that one" if seen.kind == BLOCK_IS_CONTESTED else
                   f"is wanted by another use, which waits longer, on {name_of_stream(seen.other_stream)}, in "
                   f"{thread_name(seen.other_thread)}"),
                BlockingWindowWarning)
        except BaseException as error:
            return keep_exception(failure, error)
        finally:
            put_back(&exception)
    return 0


cdef object class_of(Failure* failure):
    """The class of the exception that a failure becomes."""
    if failure.kind == OUT_OF_BUDGET:
        return OutOfBudgetError
    if failure.kind == DEVICE_IS_LOST or is_sticky(failure):
        return DeviceLostError
    if is_out_of_memory(failure):
        return OutOfDeviceMemoryError
    if failure.kind in (DRIVER_FAILED, RESOURCE_FAILED, ARGUMENT_IS_WRONG, PROCESS_WAS_FORKED, STREAM_IS_GONE):
        return DriverError
    if failure.kind == BLOCK_IS_STALE:
        return UseAfterFreeError
    if failure.kind == BLOCK_IS_ON_DEVICE:
        return TypeError
    return SystemError if failure.kind == NO_FAILURE else StreamMisuseError


cdef object exception_of(Failure* failure, str message):
    """The exception for a failure, whose kind the C table reads."""
    error = exception_without_kind(failure, message)
    error.failure_kind = <int>failure.kind
    return error


cdef object exception_without_kind(Failure* failure, str message):
    kind = class_of(failure)
    if failure.kind in (DRIVER_FAILED, STREAM_IS_GONE):
        return kind(message, call=failure.call.decode(), code=int(failure.code), name=error_name(failure.code)[0])
    if failure.kind in (RESOURCE_FAILED, ARGUMENT_IS_WRONG):
        return kind(message, code=int(failure.code))
    if failure.kind == BLOCK_IS_STALE:
        return kind(failure.generation, message)
    return kind(message)
