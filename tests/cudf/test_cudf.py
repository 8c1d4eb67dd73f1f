"""How `xlogmem.cudf` takes cuDF's objects apart, without cuDF and without a GPU.

cuDF is half a gigabyte."""
from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import sys
import types
import weakref
from importlib.machinery import ModuleSpec
from importlib.util import find_spec

import pytest
from arrays import CudaArray

import xlogmem
from xlogmem import BlockState, DeviceRuntime, StreamMisuseError, register_resolver, use


class Span:                                             # pylibcudf.gpumemoryview
    def __init__(self, ptr: int, size: int) -> None:
        self.ptr, self.size = ptr, size


class PlcColumn:                                        # pylibcudf.Column
    def __init__(self, data=None, mask=None, children=(), offset=0) -> None:
        self._data, self._mask, self._children, self._offset = data, mask, list(children), offset

    def data(self):
        return self._data

    def null_mask(self):
        return self._mask

    def null_count(self):
        return int(self._mask is not None)

    def children(self):
        return self._children

    def offset(self):
        return self._offset


class PlcTable:                                         # pylibcudf.Table
    def __init__(self, *columns) -> None:
        self._columns = columns

    def columns(self):
        return self._columns


class SpillLock:
    pass


class BufferOwner:
    def __init__(self, block) -> None:
        self.block, self.size = block, block.nbytes if block is not None else 0

    @property
    def ptr(self):
        assert self.size, "the address of a buffer without memory was read"
        return self.block.ptr


class SpillableBufferOwner(BufferOwner):
    """Its address exposes it, unless it is locked; a lock brings it back."""

    def __init__(self, block) -> None:
        super().__init__(block)
        self.locks: weakref.WeakSet[SpillLock] = weakref.WeakSet()
        self.spilled = True

    def spill_lock(self, lock) -> None:
        self.spilled = False
        self.locks.add(lock)

    @property
    def ptr(self):
        assert self.locks, "exposed for ever"
        assert not self.spilled
        return self.block.ptr


class Buffer:
    def __init__(self, owner: BufferOwner, offset: int = 0) -> None:
        self.owner, self.offset, self.size = owner, offset, owner.size

    @property
    def ptr(self):
        return self.owner.ptr + self.offset

    @property
    def __cuda_array_interface__(self):
        raise AssertionError("copy-on-write copies were unshared")


class ColumnBase:
    def __init__(self, plc_column, dtype, length=4) -> None:
        self.plc_column, self.dtype, self.length = plc_column, dtype, length

    def __len__(self) -> int:
        return self.length


class Categories:                                       # CategoricalDtype
    def __init__(self, column) -> None:
        self._categories = column


class Frame:
    def __init__(self, *columns, index=None) -> None:
        self._columns = columns
        if index is not None:
            self._index = index


class Series(Frame):
    @property
    def _column(self):
        return self._columns[0]

    @property
    def dtype(self):
        return self._column.dtype

    @property
    def __cuda_array_interface__(self):
        raise AssertionError("the column was exposed")


class RangeIndex(Frame):
    @property
    def _columns(self):
        raise AssertionError("a range was made a column")

    @_columns.setter
    def _columns(self, columns):
        pass


class MultiIndex(Series):                               # has a `_column`, its first
    pass


class Proxy:                                            # cudf.pandas
    def __init__(self, wrapped) -> None:
        self._fsproxy_wrapped = wrapped

    @property
    def __cuda_array_interface__(self):
        raise AssertionError("moved to the device")


def module(name: str, **contents: object) -> types.ModuleType:
    made = types.ModuleType(name)
    made.__spec__ = ModuleSpec(name, None, is_package=True)
    made.__path__ = []
    made.__dict__.update(contents)
    return made


PYLIBCUDF = [module("pylibcudf", gpumemoryview=Span, Column=PlcColumn, Table=PlcTable)]
CUDF = [
    module("cudf", RangeIndex=RangeIndex, MultiIndex=MultiIndex), module("cudf.core"), module("cudf.pandas"),
    module("cudf.core.frame", Frame=Frame), module("cudf.core.column", ColumnBase=ColumnBase),
    module("cudf.core.buffer", Buffer=Buffer, BufferOwner=BufferOwner, SpillLock=SpillLock),
    module("cudf.core.buffer.spillable_buffer", SpillableBufferOwner=SpillableBufferOwner),
    module("cudf.pandas.fast_slow_proxy", _FastSlowProxy=Proxy)]


@contextlib.contextmanager
def imported_beside(monkeypatch, modules):
    """`xlogmem.cudf`, imported beside the stand-ins."""
    if find_spec("rmm") is None:
        pytest.skip("needs RMM")
    pytest.importorskip("numpy")
    for made in modules:
        monkeypatch.setitem(sys.modules, made.__name__, made)
    monkeypatch.delitem(sys.modules, "xlogmem.cudf", raising=False)
    vars(xlogmem).pop("cudf", None)
    loaded = importlib.import_module("xlogmem.cudf")
    yield loaded
    for kind in (Span, PlcColumn, PlcTable, BufferOwner, Buffer, ColumnBase, Frame, Proxy, loaded.ColumnView):
        register_resolver(kind, None)
    vars(xlogmem).pop("cudf", None)
    sys.modules.pop("xlogmem.cudf", None)


@pytest.fixture
def cudf(monkeypatch):
    with imported_beside(monkeypatch, PYLIBCUDF + CUDF) as loaded:
        yield loaded


class Memory:
    """Blocks on one stream, and which of them a use on another named."""

    def __init__(self) -> None:
        self.runtime = DeviceRuntime()
        self.stream, self.other = self.runtime.acquire_stream(), self.runtime.acquire_stream()
        self.blocks: list[xlogmem.DeviceBlock] = []

    def block(self):
        self.blocks.append(self.runtime.allocate(64, self.stream))
        return self.blocks[-1]

    def span(self) -> Span:
        return Span(self.block().ptr, 64)

    def buffer(self, kind=BufferOwner) -> Buffer:
        return Buffer(kind(self.block()), 8)

    def column(self, kind=BufferOwner, dtype=None) -> ColumnBase:
        import numpy

        return ColumnBase(PlcColumn(self.buffer(kind)), dtype or numpy.dtype("i4"))

    def named_by(self, *what: object) -> list[int]:
        with use(self.other, read=list(what)):
            pass
        return [i for i, block in enumerate(self.blocks) if ("has-read", self.other.id) in block.frontier]


def test_a_pylibcudf_column_is_its_data_mask_and_children(cudf):
    memory = Memory()
    chars, mask, offsets, inner, innermost = (memory.span() for _ in range(5))
    unnamed = memory.block()
    nested = PlcColumn(None, mask, [PlcColumn(offsets), PlcColumn(inner, Span(0, 0), [PlcColumn(innermost)])])
    assert memory.named_by(PlcTable(PlcColumn(chars), nested)) == [0, 1, 2, 3, 4]
    assert unnamed.state is BlockState.LIVE
    assert memory.named_by(memory.span())[-1] == 6


def test_pylibcudf_alone_is_enough(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "cudf" else find_spec(name))
    with imported_beside(monkeypatch, PYLIBCUDF) as loaded:
        memory = Memory()
        assert memory.named_by(PlcColumn(memory.span(), memory.span())) == [0, 1]
        with pytest.raises(TypeError, match="view: a PlcColumn is not a column"):
            loaded.view(PlcColumn())


def test_a_frame_is_its_columns_and_its_index(cudf):
    memory = Memory()
    a, b, labels = (memory.column() for _ in range(3))
    assert memory.named_by(Series(a)) == [0]
    assert memory.named_by(Frame(a, b, index=Frame(labels))) == [0, 1, 2]


def test_categories_belong_to_their_column(cudf):
    memory = Memory()
    categories = memory.column()
    assert memory.named_by(Series(memory.column(dtype=Categories(categories)))) == [0, 1]


def test_a_range_is_not_made_a_column(cudf):
    memory = Memory()
    rows = RangeIndex()
    assert memory.named_by(Frame(memory.column(), index=rows)) == [0]
    rows.__dict__["_column"] = memory.column()          # its values were used
    assert memory.named_by(rows) == [0, 1]


def test_empty_buffers_are_nothing_to_touch(cudf):
    memory = Memory()
    empty = ColumnBase(PlcColumn(Buffer(BufferOwner(None)), Span(0, 0)), None)
    assert memory.named_by(Series(empty)) == []


def test_a_spilled_buffer_is_brought_back_and_kept_until_the_use_is_recorded(cudf):
    memory = Memory()
    series = Series(memory.column(SpillableBufferOwner))
    owner = series._column.plc_column.data().owner
    with use(memory.other, write=series):
        assert not owner.spilled
        assert len(owner.locks) == 1
    assert not owner.locks


def test_a_view_keeps_its_column_on_the_device_and_exposes_nothing(cudf):
    memory = Memory()
    column = memory.column(SpillableBufferOwner)
    column.plc_column._mask, column.plc_column._offset = memory.buffer(SpillableBufferOwner), 2
    owners = [column.plc_column.data().owner, column.plc_column.null_mask().owner]
    seen = cudf.view(Series(column))
    interface = seen.__cuda_array_interface__
    assert interface["data"][0] == owners[0].block.ptr + 8 + 2 * 4
    assert (interface["shape"], interface["typestr"]) == ((4,), "<i4")
    assert seen.mask.__cuda_array_interface__["shape"] == (64,)
    assert [len(owner.locks) for owner in owners] == [1, 1]
    assert memory.named_by(seen) == [0, 1]
    del seen
    gc.collect()
    assert not any(owner.locks for owner in owners)
    for what in (Series(memory.column(dtype=Categories(None))), MultiIndex(memory.column()), Frame(), 3, Span(4096, 4)):
        with pytest.raises(TypeError, match="view: a"):
            cudf.view(what)


def test_a_proxy_of_cudf_pandas_stands_for_what_is_on_the_device(cudf):
    memory = Memory()
    series = Series(memory.column())
    assert memory.named_by(Proxy(series)) == [0]
    assert memory.named_by(Proxy(CudaArray(memory.block().ptr))) == [0, 1]
    assert cudf.view(Proxy(series)).__cuda_array_interface__["shape"] == (4,)
    with pytest.raises(TypeError, match=r"no device memory at present, it is a builtins\.dict.*as_gpu_object"), \
            use(memory.other, read=Proxy({})):
        pass


def test_untracked_memory_of_a_series_is_refused_by_name(cudf):
    memory = Memory()
    foreign = ColumnBase(PlcColumn(Span(4096, 4)), None)
    with pytest.raises(StreamMisuseError, match=r"Series .*is not tracked by"), \
            use(memory.other, read=Series(foreign)):
        pass


@pytest.mark.skipif(find_spec("pylibcudf") is not None, reason="cuDF is here")
def test_without_cudf_the_import_says_what_is_missing():
    with pytest.raises(ImportError, match=r"xlogmem\.cudf needs cuDF"):
        importlib.import_module("xlogmem.cudf")
