# cython: autotestdict=False
"""The function by which CuPy keeps a buffer until its event is done: `cupy_watched` puts it into the table of CuPy's
module.  CuPy is not needed to build this: the signatures are compared when it is put there."""

cdef object theirs = None                               # CuPy's module
cdef object own_event = None


def begin(module, own):
    """`module` is cupy.cuda.pinned_memory; `own` makes an event that is CuPy's own."""
    global theirs, own_event
    theirs, own_event = module, own


cpdef _add_to_watch_list(event, obj):
    theirs._add_to_watch_list(own_event(event), obj)
