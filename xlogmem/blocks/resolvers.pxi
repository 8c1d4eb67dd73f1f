# Resolvers: how `use` finds the memory of objects that are not blocks, addresses or arrays.
#
# Libraries register a resolver for their types (`xlogmem.cudf` does); the resolver alone reads an object that has one.


cdef dict resolvers = {}                    # by type


cdef object MISSING = object()


def register_resolver(kind, resolver=MISSING):
    """Register a function by which `use` finds the memory of objects of a type, and of its subclasses.

    Parameters
    ----------
    kind : type
        The type.  A registration for it replaces an earlier one, None as `resolver` removes it.
    resolver : callable
        ``resolver(what, hold)`` returns the parts of `what`: an iterable of anything that `use` takes, other objects
        with a resolver among them; empty for nothing to touch.  ``hold(thing)`` keeps a thing until the use is filed or
        cancelled, for instance a lock that keeps the memory where it is.

    Notes
    -----
    Meant for types whose attributes have side effects, or which are made of several blocks: `use` queries nothing else
    of an object with a resolver.  The resolver runs while the use is recorded, before the waits are queued.  Parts may
    be nested as deep as calls may be (``sys.getrecursionlimit()``); beyond that `use` raises RecursionError.
    Thread-safe.

    Raises
    ------
    TypeError
        `kind` is not a type, or `resolver` cannot be called.

    Examples
    --------
    >>> class Table:
    ...     def __init__(self, runtime):
    ...         self.columns = [runtime.allocate(1000) for _ in range(3)]
    >>> xlogmem.register_resolver(Table, lambda table, hold: table.columns)
    >>> runtime = xlogmem.get_runtime()
    >>> table = Table(runtime)
    >>> with xlogmem.use(runtime.acquire_stream(), read=table):
    ...     pass                                    # a launch that reads the three columns
    """
    if not isinstance(kind, type):
        raise TypeError(f"register_resolver: {kind!r} is not a type")
    if resolver is MISSING:
        raise TypeError("register_resolver: resolver is missing: a function resolver(what, hold), or None to "
                        "remove one")
    if resolver is None:
        resolvers.pop(kind, None)
    elif callable(resolver):
        resolvers[kind] = resolver
    else:
        raise TypeError(f"register_resolver: resolver must be a function resolver(what, hold), not {resolver!r}")


cdef object resolver_of(object what):
    """Return the resolver of an object; None if the object names its memory itself."""
    if not resolvers or isinstance(what, (int, DeviceBlock)):
        return None
    for kind in type(what).__mro__:
        resolver = resolvers.get(kind)
        if resolver is not None:
            return resolver
    return None
