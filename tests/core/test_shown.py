"""What objects show of themselves: reprs, and tables in notebooks."""
from __future__ import annotations

import html
import inspect
import re

import numpy
import pytest
from four_streams import READ, WRITE

import xlogmem
from xlogmem import (
    AsyncMemoryResource,
    DevicePool,
    DeviceRuntime,
    DeviceState,
    LimitingResourceAdaptor,
    PoolMemoryResource,
    StatisticsResourceAdaptor,
    record_history,
)
from xlogmem._base.texts import as_html
from xlogmem.check import ignore

TAG = "<b>tag</b> & \"more\""
OF_PYTHON = (tuple, Exception)              # whose reprs are those of Python


def cells(page: str) -> list[list[str]]:
    """The rows of all tables."""
    return [[html.unescape(cell) for cell in re.findall(r"<t[dh]>(.*?)</t[dh]>", row)]
            for row in re.findall(r"<tr>(.*?)</tr>", page)]


def test_a_page_of_tables_has_no_markup_of_others():
    page = as_html("<i>", (("a<b", "c"), [("<script>", 1), ("&amp;", None)]))
    assert cells(page) == [["a<b", "c"], ["<script>", "1"], ["&amp;", "None"]]
    assert set(re.findall(r"</?(\w+)", page)) == {"p", "table", "tr", "th", "td"}


def test_a_runtime_in_a_notebook():
    runtime = DeviceRuntime()
    kept = runtime.allocate(3000, tag=TAG)
    page = runtime._repr_html_()
    assert page.startswith(f"<p>{html.escape(repr(runtime))}</p>")
    assert ["live", "2.9 KiB in 1 block"] in cells(page)
    assert [repr(TAG), "2.9 KiB", "1"] in cells(page)
    assert "<b>" not in page
    kept.free()
    runtime.reap_pending()


def test_a_buffer_in_a_notebook():
    """Without a look at the memory, and without its address (promise 123); a stale one says that it is."""
    state = DeviceState(DeviceRuntime())
    buffer = state.from_numpy(numpy.arange(12, dtype="float32").reshape(3, 4))
    page = buffer._repr_html_()
    assert page.startswith(f"<p>{html.escape(repr(buffer))}</p>")
    assert cells(page)[1:4] == [["dtype", "float32"], ["shape", "(3, 4)"], ["bytes", "48 B"]]
    assert f"{buffer.ptr:x}" not in page
    buffer.release()
    assert "consumed" in buffer._repr_html_()
    state.runtime.reap_pending()


def test_a_recording_in_a_notebook(four):
    x = four()
    with record_history(max_events=64) as recording:
        block = x.runtime.allocate(512, x.S, tag=TAG)
        x.use(x.S, (block, WRITE))
        x.use(x.T, (block, READ))
        running = recording._repr_html_()
        block.free()
    assert "<p>Recording, running: 6 events, 0 older ones without room</p>" in running
    rows = dict(cells(recording._repr_html_())[1:])
    assert (rows["allocate"], rows["use"], rows["wait"], rows["free"]) == ("1", "2", "2", "1")
    assert rows == {kind: str(sum(event.kind == kind for event in recording.history())) for kind in rows}


@pytest.mark.usefixtures("_cold")
def test_a_pool_of_devices_in_a_notebook():
    pool = DevicePool([0])
    head, row = cells(pool._repr_html_())
    assert head == ["device", "name", "memory", "live", "pending"]
    assert len(row) == 3                                # there is no runtime yet
    runtime = xlogmem.get_runtime(0)
    block = runtime.allocate(2048)
    assert cells(pool._repr_html_())[1][3:] == ["2.0 KiB", "0 B"]
    block.free()
    runtime.reap_pending()


def test_a_stack_of_resources_is_one_line():
    pool = PoolMemoryResource(AsyncMemoryResource())
    stack = LimitingResourceAdaptor(StatisticsResourceAdaptor(pool), limit=1 << 30)
    assert repr(stack) == ("<LimitingResourceAdaptor device=0 over StatisticsResourceAdaptor over PoolMemoryResource "
                           "over AsyncMemoryResource>")
    assert repr(pool) == "<PoolMemoryResource device=0 over AsyncMemoryResource>"


def test_public_objects_have_reprs_of_their_own():
    classes = [value for name in xlogmem.__all__ if inspect.isclass(value := getattr(xlogmem, name))]
    assert len(classes) > 20
    assert [one for one in classes if one.__repr__ is object.__repr__] == []
    assert repr(ignore("it is meant")) == "ignore('it is meant')"


def test_a_plugin_of_dask_shows_its_options():
    pytest.importorskip("distributed", reason="needs distributed")
    from xlogmem.dask import XlogmemPlugin

    assert repr(XlogmemPlugin(libraries="cupy,rmm", limit="8GiB")) == (
        "XlogmemPlugin(libraries=('cupy', 'rmm'), devices=0, prometheus=False, limit='8GiB')")


def test_a_recording_for_nvtx_shows_its_state():
    pytest.importorskip("nvtx", reason="needs nvtx")
    from xlogmem.observe.nvtx import NvtxRecording

    assert repr(NvtxRecording(None, False)) == "<NvtxRecording, no tool is there>"
