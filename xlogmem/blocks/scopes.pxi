# Scopes: the default tag of allocations; scopes.py has the public interface.
#
# A scope belongs to a context (`contextvars`), so each thread and each task has its own.  While no scope is open in the
# process, an allocation reads one number and nothing more.  Generators end their scopes in any order, in the contexts
# of their callers; tasks go on with the scopes that were open where they were made.  So a context has the scopes
# themselves, and scopes that have ended do not count.

cimport cython

from contextvars import ContextVar

from xlogmem._base.cpp cimport atomic
from xlogmem.resources.base cimport Allocation


cdef atomic[int] open_scopes
cdef object scope_of_context = ContextVar("xlogmem_scope", default=None)


@cython.final
@cython.auto_pickle(False)
cdef class OpenScope:
    cdef str tag
    cdef OpenScope outer
    cdef bint is_open


cdef OpenScope innermost_open(OpenScope scope):
    while scope is not None and not scope.is_open:
        scope = scope.outer
    return scope


def enter_scope(str tag not None):
    """Open a scope in this context; pass the returned scope to `leave_scope`."""
    cdef OpenScope scope = OpenScope()
    scope.tag = tag
    scope.outer = innermost_open(scope_of_context.get())
    scope_of_context.set(scope)
    scope.is_open = True
    open_scopes.fetch_add(1)
    return scope


def leave_scope(OpenScope scope not None):
    """End a scope of `enter_scope`; called once, in any context."""
    scope.is_open = False
    open_scopes.fetch_sub(1)
    scope_of_context.set(innermost_open(scope_of_context.get()))


cdef str tag_or_scope(str tag):
    """Return the tag that an allocation names, else the tag of the scope in its context; None without both."""
    cdef OpenScope scope
    if tag is not None or open_scopes.load() == 0:
        return tag
    scope = innermost_open(scope_of_context.get())
    return None if scope is None else scope.tag


def in_scope():
    """True if a scope is open in this context."""
    return open_scopes.load() != 0 and innermost_open(scope_of_context.get()) is not None


cdef int label_in_scope(Core core, DeviceBlock handle, Allocation* wanted, int depth) except -1:
    """Call `Core.label` with the tag of a handle or of the scope."""
    handle.tag = tag_or_scope(handle.tag)
    return core.label(wanted, handle.tag, depth)
