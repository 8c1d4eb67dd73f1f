# The signature of CuPy's function.
cpdef _add_to_watch_list(event, obj)
