"""cuDF on tracked memory: one line at the top of a script, and then `use` takes its objects.

    import xlogmem.cudf
    xlogmem.cudf.enable()                       # tracks allocations of cuDF, pylibcudf, CuPy and Numba from here on

    with xlogmem.use(stream, read=df["x"], write=out):
        kernel[blocks, threads, stream](df["x"], out)

This file knows the parts of cuDF's objects and nothing of waits; the core knows nothing of cuDF.  An object stands for
all of its memory: every column, its index, null masks, string offsets and characters, lists, structs, categories.

Finding that memory does not disturb cuDF's memory management.  ``__cuda_array_interface__`` of a spillable buffer
unshares copy-on-write copies, and its ``ptr`` makes the buffer unspillable for ever unless a spill lock is held; so a
use holds a spill lock from prepare to finish.  A spilled buffer is copied back to the device first.  Afterwards it may
be spilled at once: cuDF copies it on its own stream, which is ordered after the use (the hand-back), and the memory is
freed after the use like any other.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from importlib.util import find_spec
from typing import Any

if find_spec("pylibcudf") is None:
    raise ImportError("xlogmem.cudf needs cuDF or pylibcudf 26.06 to 26.10, from conda or pip (cudf-cu12, cudf-cu13)")

import pylibcudf

import xlogmem.rmm
from xlogmem.blocks import register_resolver
from xlogmem.rmm import disable

__all__ = ["ColumnView", "disable", "enable", "view"]

HAVE_CUDF = find_spec("cudf") is not None       # pylibcudf works without cuDF, as Polars uses it
if HAVE_CUDF:
    import cudf  # points CuPy's allocator and Numba's memory manager at RMM
    import numpy
    from cudf.core.buffer import Buffer, BufferOwner, SpillLock
    from cudf.core.buffer.spillable_buffer import SpillableBufferOwner
    from cudf.core.column import ColumnBase
    from cudf.core.frame import Frame
    from cudf.pandas.fast_slow_proxy import _FastSlowProxy

Hold = Callable[[object], None]


def enable(devices: int | Iterable[int] | None = None, *, policy: str | None = None, pool_allocator: bool = False,
           initial_pool_size: int | None = None, maximum_pool_size: int | None = None) -> None:
    """Track all allocations through RMM from here on: those of cuDF, pylibcudf, CuPy and Numba.

    This is `xlogmem.rmm.enable`; see there.  Call it after the code that chooses RMM's resource (``rmm.reinitialize``,
    ``cudf.pandas``, dask-cuda), and before data is loaded.  cuDF's own stream, the legacy default stream or with
    ``CUDF_PER_THREAD_STREAM=1`` each thread's, is opaque: launches on other streams are ordered after cuDF's earlier
    work, and cuDF's later work after the launch.  Work that stays on cuDF's stream is not delayed.

    Parameters
    ----------
    devices : int or iterable of int, optional
        The devices; the default is those that this process uses.
    policy : {"adaptive", "precise", "lazy"}, optional
        See `DeviceRuntime`.
    pool_allocator : bool
        Put a pool of xlogmem's on RMM's resource.  On RMM's async resource, allocating then costs less than without
        xlogmem.
    initial_pool_size, maximum_pool_size : int, optional
        In bytes, of that pool; see `PoolMemoryResource`.

    Examples
    --------
    >>> import xlogmem.cudf                                                 # doctest: +SKIP
    >>> xlogmem.cudf.enable()               # before data is loaded         # doctest: +SKIP
    """
    xlogmem.rmm.enable(devices, policy=policy, pool_allocator=pool_allocator, initial_pool_size=initial_pool_size,
                       maximum_pool_size=maximum_pool_size)


# ---------------------------------------------------------------------------------------------- the memory of objects
def _of_span(span: Any, hold: Hold) -> Iterator[Any]:
    """Part of a pylibcudf column: an object with an address and a size, or one of cuDF's own buffers."""
    if HAVE_CUDF and isinstance(span, Buffer):
        yield from _of_owner(span.owner, hold)
    elif span.size:
        yield span.ptr


def _of_pylibcudf_column(column: Any, hold: Hold) -> Iterator[Any]:
    for span in (column.data(), column.null_mask()):
        if span is not None:
            yield from _of_span(span, hold)
    for child in column.children():
        yield from _of_pylibcudf_column(child, hold)


def _of_pylibcudf_table(table: Any, hold: Hold) -> Iterator[Any]:
    yield from table.columns()


def _of_owner(owner: Any, hold: Hold) -> Iterator[Any]:
    """One allocation of cuDF's.  It is locked directly: `Buffer.access` does the same, but stores its mode in the
    buffer, where a use that ends in another order, or in another thread, would remove the mode of another use."""
    if not owner.size:
        return
    if isinstance(owner, SpillableBufferOwner):
        lock = SpillLock()
        owner.spill_lock(lock)                          # back from the host if it was spilled
        hold(lock)
    yield owner.ptr


def _of_column(column: Any, hold: Hold) -> Iterator[Any]:
    yield column.plc_column
    categories = getattr(column.dtype, "_categories", None)
    if categories is not None:
        yield categories


def _of_frame(frame: Any, hold: Hold) -> Iterator[Any]:
    """A data frame, a series or an index.  A range counts only if it was already made a column."""
    if isinstance(frame, cudf.RangeIndex):
        if "_column" in frame.__dict__:
            yield frame._column
        return
    yield from frame._columns
    index = getattr(frame, "_index", None)
    if index is not None:
        yield index


def _of_proxy(proxy: Any, hold: Hold) -> Iterator[Any]:
    """An object of cudf.pandas: its memory on the device now.  Requesting more would move it there."""
    wrapped = proxy._fsproxy_wrapped
    if not (isinstance(wrapped, Frame) or hasattr(wrapped, "__cuda_array_interface__")):
        held = f"{type(wrapped).__module__}.{type(wrapped).__qualname__}"
        raise TypeError(f"this {type(proxy).__name__} of cudf.pandas has no device memory at present, it is a {held}: "
                        "take as_gpu_object() of it, and pass that to use() and to the kernel")
    yield wrapped


# ---------------------------------------------------------------------------------------------- addresses for kernels
class ColumnView:
    """The values of one column as a CUDA array, made by `view`.

    CuPy, Numba and `use` accept it.  As long as it or an array made from it lives, the column is not spilled.

    Attributes
    ----------
    mask : ColumnView or None
        The null mask, bytes with one bit for each row, if there are nulls; the values are undefined there.
    """

    __slots__ = ("__cuda_array_interface__", "__weakref__", "_buffer", "_lock", "mask")

    def __init__(self, buffer: Any, shape: tuple[int, ...], typestr: str, offset: int = 0) -> None:
        self._buffer = buffer
        self._lock = None
        self.mask: ColumnView | None = None
        if isinstance(buffer.owner, SpillableBufferOwner):
            self._lock = SpillLock()
            buffer.owner.spill_lock(self._lock)
        address = buffer.ptr + offset if buffer.size else 0
        self.__cuda_array_interface__ = {"shape": shape, "strides": None, "typestr": typestr, "version": 3,
                                         "data": (address, False)}


def view(column: Any) -> ColumnView:
    """The values of a column for a kernel, without making its memory unspillable for ever.

    ``cupy.asarray(series)`` gives the same array, but exposes the buffer, and cuDF never spills it again.

    Parameters
    ----------
    column : cudf.Series, cudf.Index, column, or an object of cudf.pandas
        Numbers, booleans, dates or times.

    Returns
    -------
    ColumnView

    Raises
    ------
    TypeError
        The column has no values of one size in one buffer: strings, lists, structs, categories, decimals.

    Notes
    -----
    Writes through the view change every shallow copy of the column, as with ``cupy.asarray``: cuDF shares memory until
    cuDF itself writes.  Take ``copy(deep=True)`` first to write to one copy only.

    Examples
    --------
    >>> x = cupy.asarray(xlogmem.cudf.view(df["x"]))                        # doctest: +SKIP
    """
    if HAVE_CUDF and isinstance(column, _FastSlowProxy):
        (column,) = _of_proxy(column, lambda _: None)
    values = getattr(column, "_column", column)
    if not HAVE_CUDF or not isinstance(values, ColumnBase) or isinstance(column, cudf.MultiIndex):
        raise TypeError(f"view: a {type(column).__name__} is not a column of cuDF")
    dtype = getattr(values.dtype, "numpy_dtype", values.dtype)
    buffer = values.plc_column.data()
    if not isinstance(dtype, numpy.dtype) or dtype.kind not in "iufbmM" or buffer is None:
        raise TypeError(f"view: a {type(column).__name__} of {values.dtype} is not an array of values of one size")
    seen = ColumnView(buffer, (len(values),), dtype.str, values.plc_column.offset() * dtype.itemsize)
    mask = values.plc_column.null_mask()
    if mask is not None and values.plc_column.null_count():
        seen.mask = ColumnView(mask, (mask.size,), "|u1")
    return seen


def _of_view(seen: ColumnView, hold: Hold) -> Iterator[Any]:
    yield from _of_owner(seen._buffer.owner, hold)
    if seen.mask is not None:
        yield seen.mask


register_resolver(pylibcudf.gpumemoryview, _of_span)
register_resolver(pylibcudf.Column, _of_pylibcudf_column)
register_resolver(pylibcudf.Table, _of_pylibcudf_table)
if HAVE_CUDF:
    register_resolver(BufferOwner, _of_owner)
    register_resolver(Buffer, _of_span)
    register_resolver(ColumnBase, _of_column)
    register_resolver(Frame, _of_frame)
    register_resolver(_FastSlowProxy, _of_proxy)
    register_resolver(ColumnView, _of_view)
