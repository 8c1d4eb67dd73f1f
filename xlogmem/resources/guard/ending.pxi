# Beginning and end of a guard: the kernels of a context, and the remaining memory.

from cuda.bindings cimport cydriver as cy

from xlogmem.resources.guard_kernels import GUARD_PTX
from xlogmem._base.cpp cimport make_new, vector
from xlogmem._base.failures cimport Failure, drop_exception, raise_failure
from xlogmem._base.index cimport destroy
from xlogmem._base.labels cimport Label, object_of, release
from xlogmem._driver cimport (
    LEAF_LOCK,
    Context,
    Scope,
    enter_context,
    give_event,
    leave_context,
    module_function,
    module_load,
    take_at_forks,
)


cdef dict tools_by_context = {}         # addresses of `GuardTools`; kept until the process ends


cdef GuardTools* tools_of(Context context) except NULL:
    """The kernels of a context, loaded on first use."""
    cdef GuardTools* tools
    cdef cy.CUmodule module
    cdef Failure failure
    cdef Scope scope
    cdef int failed
    cdef bytes text
    cdef const char* ptx
    if context in tools_by_context:
        return <GuardTools*><size_t>tools_by_context[context]
    text = GUARD_PTX.encode() + b"\0"
    ptx = text
    tools = make_new[GuardTools]()
    with nogil:
        failed = enter_context(context.handle, &scope, &failure)
        if not failed:
            failed = (module_load(ptx, &module, &failure)
                      or module_function(module, "xlogmem_guard_fill", &tools.fill, &failure)
                      or module_function(module, "xlogmem_guard_check", &tools.check, &failure))
            leave_context(&scope)
    if failed:
        del tools
        raise_failure(&failure, "loading the kernels of a guard")
    take_at_forks(&tools.lock, LEAF_LOCK)
    tools_by_context[context] = <size_t>tools
    return tools


cdef int end_guard(GuardState* guard) except -1 nogil:
    """Return the memory in quarantine, at the end of the guard."""
    cdef Failure ignored
    cdef Scope scope
    if guard.tools == NULL or enter_context(guard.context, &scope, &ignored):
        return 0
    if empty_quarantine(guard, &ignored):
        drop_exception(&ignored)
    gather(guard, <size_t>-1)
    leave_context(&scope)
    return 0


cdef int delete_guard(GuardState* guard) except -1 nogil:
    """Delete the tables.  A later guard sweeps results that are not written yet; memory that is still allocated is left
    to its owner."""
    cdef vector[cy.CUevent] events
    cdef Guarded* memory
    cdef size_t i
    guard.lock.lock()
    for i in range(guard.checks.size()):
        guard.checks[i].memory.checks -= 1
        delete_if_done_locked(guard.checks[i].memory)
        guard.checks[i].memory = NULL
    for i in range(guard.slots.size()):
        memory = guard.slots[i]
        if memory == NULL:
            continue
        if memory.event != NULL:
            events.push_back(memory.event)
        memory.is_gone = True
        delete_if_done_locked(memory)
    guard.lock.unlock()
    for i in range(events.size()):
        give_event(guard.events, events[i])
    guard.tools.lock.lock()
    for i in range(guard.checks.size()):
        guard.tools.abandoned.push_back(guard.checks[i])
    guard.tools.lock.unlock()
    for i in range(guard.findings.size()):
        drop_finding(&guard.findings[i])
    destroy(&guard.index)
    return 0


cdef void drop_finding(Finding* finding) noexcept nogil:
    release(finding.tag)
    release(finding.allocated_by)
    release(finding.freed_by)
    release(finding.freed_again_by)


cdef object text_of(Label* stack):
    return str(object_of(stack)) if stack != NULL else None


cdef object violation_of(Finding* finding):
    from xlogmem.resources.violations import GuardViolation     # not before it is needed: it has dataclasses
    return GuardViolation(
        kind=KINDS[finding.kind], tag=object_of(finding.tag), generation=finding.generation, ptr=finding.ptr,
        nbytes=finding.nbytes, offset=finding.offset, value=finding.value, count=finding.count,
        allocated_at=text_of(finding.allocated_by), freed_at=text_of(finding.freed_by),
        freed_again_at=text_of(finding.freed_again_by))
