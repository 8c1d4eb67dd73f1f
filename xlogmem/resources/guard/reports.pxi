# Findings become Python objects: logged, and kept for later calls.
#
# A report is made inside calls of the core, which have to be carried out to their end.  So no exception of Python code
# leaves the report: an interrupt is pending again once everything is reported, and other exceptions are logged.


from cpython.exc cimport PyErr_SetInterrupt, PyErr_SetObject, PyErr_WriteUnraisable

from xlogmem._base.log import logger, warn
from xlogmem.errors import MemoryCorruptionError, MemoryGuardWarning
from xlogmem._base.cpp cimport vector
from xlogmem._base.failures cimport Failure, keep_exception
from xlogmem._base.sections cimport Section


cdef void publish(GuardResourceAdaptor guard) noexcept:
    """Report the findings, and raise nothing."""
    cdef vector[Finding] findings
    cdef vector[Finding] left
    cdef bint interrupted = False
    cdef size_t i
    guard.guard.lock.lock()                             # a leaf, never held for long
    findings = guard.guard.findings
    guard.guard.findings.clear()
    guard.guard.lock.unlock()
    for i in range(findings.size()):
        try:
            violation = violation_of(&findings[i])
            guard.keep(violation)
        except BaseException as error:
            interrupted |= was_interrupted(error)
            left.push_back(findings[i])
            continue
        drop_finding(&findings[i])
        interrupted |= run_to_its_end(_log, (violation,))
        if guard.report is not None:
            interrupted |= run_to_its_end(guard.report, (violation,))
    guard.guard.lock.lock()
    for i in range(left.size()):                        # for the next call
        guard.guard.findings.push_back(left[i])
    guard.guard.lock.unlock()
    if interrupted:
        PyErr_SetInterrupt()


cdef bint run_to_its_end(object function, tuple arguments) noexcept:
    """Call a function.  True if an interrupt came in; any other exception of the function is logged."""
    try:
        function(*arguments)
    except BaseException as error:
        return was_interrupted(error)
    return False


cdef bint was_interrupted(object error) noexcept:
    if isinstance(error, KeyboardInterrupt):
        return True
    try:
        from traceback import format_exception          # not imported before it is needed
        logger().error("reporting a violation failed:\n%s", "".join(format_exception(error)))
    except BaseException as other:                      # a handler or filter of the logger may be the one that fails
        PyErr_SetObject(type(error), error)
        PyErr_WriteUnraisable(None)
        return isinstance(other, KeyboardInterrupt)
    return False


def _log(violation):
    logger().error("%s", violation)


def _warn(violation):
    """For ``on_violation="warn"``."""
    warn(str(violation), MemoryGuardWarning)


# ---------------------------------------------------------------------------------------------- what is raised
cdef object take_news(GuardResourceAdaptor guard):
    """Take the violations found since the last call: an error for them, or a list if nothing is to be raised.  If an
    interrupt prevents the error from being made, the next call returns them."""
    cdef Section section
    section.begin(guard)
    news, guard.news = guard.news, []
    left_out, guard.left_out = guard.left_out, 0
    if not guard.raises or not news:
        return news
    try:
        return MemoryCorruptionError(news, left_out)
    except BaseException:
        guard.news[:0] = news
        guard.left_out += left_out
        raise


cdef int fail_with_found(GuardResourceAdaptor guard, Failure* failure) except -1:
    """Return 1, with an exception in the failure, if there is something to raise."""
    if not guard.raises or not guard.news:
        return 0
    try:
        error = take_news(guard)
    except BaseException as raised:
        error = raised
    return keep_exception(failure, error) if isinstance(error, BaseException) else 0
