"""cuDF's own classes taken apart by `xlogmem.cudf`, without a GPU: columns around blocks of the simulated driver.

Nothing here computes; `tests/cudf/test_cudf_gpu.py` does.
"""
from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest
from arrays import CudaArray

from xlogmem import DeviceRuntime, StreamPool, use

pytestmark = [pytest.mark.skipif(importlib.util.find_spec("cudf") is None, reason="needs cuDF"),
              pytest.mark.filterwarnings("ignore")]             # cuDF and what it uses warn of their own affairs
ROWS = 8


class Memory:
    """Blocks on one stream, cuDF's buffers around them, and which of them a use elsewhere named."""

    def __init__(self) -> None:
        self.runtime = DeviceRuntime(stream_pool=StreamPool(max_streams=64))
        self.stream = self.runtime.acquire_stream()
        self.blocks: list = []
        self.streams: list = []

    def block(self):
        self.blocks.append(self.runtime.allocate(256, self.stream))
        return self.blocks[-1]

    def buffer(self):
        from cudf.core.buffer import Buffer, BufferOwner

        return Buffer(owner=BufferOwner(ptr=self.block().ptr, size=256, owner=None), offset=8, size=240)

    def plc_column(self, kind="INT64", data=True, mask=False, children=()):
        import pylibcudf

        return pylibcudf.Column(pylibcudf.DataType(getattr(pylibcudf.TypeId, kind)), ROWS,
                                self.buffer() if data else None, self.buffer() if mask else None, int(mask), 0,
                                list(children), validate=False)

    def column(self, dtype=None, **parts):
        import numpy
        from cudf.core.column import ColumnBase

        return ColumnBase.create(self.plc_column(**parts), dtype or numpy.dtype("int64"), validate=False)

    def series(self, dtype=None, **parts):
        import cudf

        return cudf.Series._from_column(self.column(dtype, **parts))

    def strings(self):
        return self.plc_column("STRING", children=[self.plc_column("INT32")])

    def named_by(self, *what: object) -> list[int]:
        self.streams.append(self.runtime.acquire_stream())      # each its own
        with use(self.streams[-1], read=list(what)):
            pass
        number = self.streams[-1].id
        return [i for i, block in enumerate(self.blocks) if ("has-read", number) in block.frontier]


@pytest.fixture
def spill_manager() -> Iterator[None]:
    from cudf.core.buffer.spill_manager import SpillManager, set_global_manager

    set_global_manager(SpillManager())
    yield
    set_global_manager(None)


def test_frames_and_indices():
    import cudf
    import pylibcudf

    import xlogmem.cudf  # noqa: F401

    memory = Memory()
    a, b, labels = memory.column(), memory.column(mask=True), memory.column()
    assert memory.named_by(a) == memory.named_by(a.plc_column) == [0]
    assert memory.named_by(pylibcudf.Table([a.plc_column, b.plc_column])) == [0, 1, 2]
    frame = cudf.DataFrame._from_data({"a": a, "b": b})
    assert memory.named_by(frame) == [0, 1, 2]
    assert memory.named_by(frame["b"]) == [1, 2]
    assert memory.named_by(frame.index) == []
    frame = cudf.DataFrame._from_data({"a": a}, index=cudf.Index._from_column(labels))
    assert memory.named_by(frame) == memory.named_by(frame["a"]) == [0, 3]
    assert memory.named_by(frame.index) == [3]
    assert memory.named_by(cudf.MultiIndex._from_data({"x": b, "y": labels})) == [1, 2, 3]


def test_nested_columns():
    import cudf
    import pylibcudf
    from cudf.core.column import ColumnBase
    from cudf.utils.dtypes import DEFAULT_STRING_DTYPE

    import xlogmem.cudf  # noqa: F401

    memory = Memory()
    strings = ColumnBase.create(memory.strings(), DEFAULT_STRING_DTYPE, validate=False)
    assert memory.named_by(cudf.Series._from_column(strings)) == [0, 1]
    categories = cudf.CategoricalDtype()
    categories._categories = strings
    assert memory.named_by(memory.series(categories, kind="UINT8")) == [0, 1, 2]
    lists = [memory.plc_column("INT32"), memory.strings()]
    assert memory.named_by(memory.series(cudf.ListDtype("str"), kind="LIST", data=False, mask=True,
                                         children=lists)) == [3, 4, 5, 6]
    array = pylibcudf.gpumemoryview(CudaArray(memory.block().ptr, (64,)))
    assert memory.named_by(array) == memory.named_by(array.byte_slice(slice(8, 16))) == [7]
    kind = pylibcudf.DataType(pylibcudf.TypeId.FLOAT32)
    assert memory.named_by(pylibcudf.Column(kind, 64, array, None, 0, 0, [])) == [7]


def test_views_and_shared_copies():
    import cudf
    import numpy
    import pandas

    import xlogmem.cudf

    memory = Memory()
    series = memory.series(mask=True)
    shallow = series.copy(deep=False)
    owner = series._column.plc_column.data().owner
    seen = xlogmem.cudf.view(series)
    assert memory.named_by(seen) == memory.named_by(series, shallow) == [0, 1]
    assert seen.__cuda_array_interface__ == {"shape": (ROWS,), "strides": None, "typestr": "<i8", "version": 3,
                                             "data": (memory.blocks[0].ptr + 8, False)}
    assert seen.mask.__cuda_array_interface__["data"][0] == memory.blocks[1].ptr + 8
    assert series._column.plc_column.data().owner is shallow._column.plc_column.data().owner is owner
    dates = memory.series(numpy.dtype("datetime64[s]"), kind="TIMESTAMP_SECONDS")
    assert xlogmem.cudf.view(dates).__cuda_array_interface__["typestr"] == "<M8[s]"
    assert xlogmem.cudf.view(memory.series(pandas.Int64Dtype())).__cuda_array_interface__["typestr"] == "<i8"
    assert xlogmem.cudf.view(series).mask is not None
    for what in (memory.series(cudf.CategoricalDtype(), kind="UINT8"), cudf.DataFrame._from_data({"a": series._column}),
                 cudf.MultiIndex._from_data({"a": series._column, "b": series._column})):
        with pytest.raises(TypeError, match="view: a"):
            xlogmem.cudf.view(what)


def test_spilling_is_put_off_and_never_forbidden(spill_manager):
    import cudf
    import numpy
    import pylibcudf
    from cudf.core.buffer import SpillableBuffer
    from cudf.core.buffer.spillable_buffer import SpillableBufferOwner
    from cudf.core.column import ColumnBase

    import xlogmem.cudf

    memory = Memory()
    owner = SpillableBufferOwner(ptr=memory.block().ptr, size=256, owner=None)
    owner._finalize_init(ptr_desc={"type": "gpu"})
    kind = pylibcudf.DataType(pylibcudf.TypeId.INT64)
    column = pylibcudf.Column(kind, ROWS, SpillableBuffer(owner=owner), None, 0, 0, [], validate=False)
    series = cudf.Series._from_column(ColumnBase.create(column, numpy.dtype("int64"), validate=False))
    assert owner.spillable
    stream = memory.runtime.acquire_stream()
    for what in (series, cudf.DataFrame._from_data({"a": series._column}), column):
        with use(stream, write=what):
            assert not owner.spillable
        assert owner.spillable
    seen = xlogmem.cudf.view(series)
    assert not owner.spillable
    del seen
    assert owner.spillable
    assert not owner.exposed
