"""Real cuDF on tracked memory: the same results, nothing added on one stream, and order where there are several."""
from __future__ import annotations

import gc
import importlib.util
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from places import ROOT

import xlogmem
from xlogmem import StreamMisuseError, launch, use
from xlogmem import runtime as runtimes

HAVE_CUDF = all(importlib.util.find_spec(name) for name in ("cudf", "cupy", "numba", "rmm"))
EXAMPLES = ROOT / "examples"
ROWS = 200_000

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not HAVE_CUDF, reason="needs cuDF"),
              pytest.mark.filterwarnings("ignore")]             # cuDF and what it uses warn of their own affairs


@pytest.fixture(autouse=True)
def _fresh(monkeypatch) -> Iterator[None]:
    """RMM's resource as a program finds it that chose the asynchronous one, and no runtime yet."""
    import rmm.mr

    import xlogmem.cudf

    monkeypatch.setattr(runtimes, "_runtimes", [None] * runtimes.MAX_DEVICES)
    monkeypatch.setattr(xlogmem.rmm, "_wrapped", {})
    monkeypatch.setattr(launch, "explanations", [])
    before = rmm.mr.get_current_device_resource()
    rmm.mr.set_current_device_resource(rmm.mr.CudaAsyncMemoryResource())
    yield
    gc.collect()
    rmm.mr.set_current_device_resource(before)


@pytest.fixture(autouse=True)
def _clean_driver(_context) -> None:
    """Instead of the suite's: cuDF keeps scalars, and with them the runtime that they came from."""


def enabled() -> xlogmem.DeviceRuntime:
    xlogmem.cudf.enable(0)
    return xlogmem.get_runtime(0)


def table(seed: int = 1):
    """Keys, numbers with nulls, strings, dates, categories."""
    import cudf
    import cupy

    chance = cupy.random.RandomState(seed)
    frame = cudf.DataFrame({"key": chance.randint(0, 1000, ROWS), "value": chance.randint(-10**6, 10**6, ROWS),
                            "float": chance.randint(0, 10**6, ROWS) / 8})
    frame["missing"] = frame["value"].where(frame["value"] % 7 != 0)
    frame["text"] = "item " + frame["key"].astype("str")
    frame["date"] = frame["value"].astype("datetime64[s]")
    frame["kind"] = (frame["key"] % 5).astype("str").astype("category")
    return frame


# ---------------------------------------------------------------------------------------------- the same results
def groupby():
    return table().groupby("key").agg({"value": ["sum", "min", "max"], "float": "sum", "missing": "count"}).sort_index()


def join():
    left, right = table(1), table(2).drop_duplicates("key")
    return left.merge(right, on="key", how="left", suffixes=("", "_right")).sort_values(["key", "value", "float"])


def sort():
    return table().sort_values(["text", "missing", "value", "float"], ascending=[True, False, True, True])


def strings():
    return table()["text"].str.upper().str.replace("ITEM", "nr").str.split(" ", expand=True)


def parquet():
    import cudf

    file = io.BytesIO()
    table().drop(columns="kind").to_parquet(file)
    file.seek(0)
    return cudf.read_parquet(file)


def orc():
    import cudf

    file = io.BytesIO()
    table().drop(columns="kind").to_orc(file)           # ORC has no categories
    file.seek(0)
    return cudf.read_orc(file)


@pytest.mark.parametrize("pipeline", [groupby, join, sort, strings, parquet, orc], ids=lambda it: it.__name__)
def test_a_pipeline_gives_what_cudf_alone_gives_and_nothing_waits(pipeline):
    expected = pipeline().to_pandas()
    runtime = enabled()
    before = runtime.counters()
    seen = pipeline().to_pandas()
    after = runtime.counters()
    assert len(seen) > 500
    assert seen.reset_index(drop=True).equals(expected.reset_index(drop=True))
    assert after["allocations"] > before["allocations"] + 5
    assert after["frees"] > before["frees"]
    assert (after["waits"], after["host_waits"]) == (before["waits"], before["host_waits"])
    events = after["records"] - before["records"]       # one for 64 MiB of frees
    assert events <= (after["frees"] - before["frees"]) // 16
    gc.collect()
    runtime.reap_pending()
    assert runtime.live_bytes < 1 << 16                 # cuDF keeps scalars


def test_uses_on_cudfs_own_stream_add_nothing():
    runtime = enabled()
    frame = table()
    before = runtime.counters()
    for _ in range(10):
        with use(0, read=frame, write=frame["value"]):
            pass
    after = runtime.counters()
    assert after["uses"] - before["uses"] >= 10
    assert (after["records"], after["waits"]) == (before["records"], before["waits"])


# ---------------------------------------------------------------------------------------------- what objects consist of
def addresses(plc_column) -> Iterator[int]:
    """Where the memory of a column of pylibcudf's own is."""
    for span in (plc_column.data(), plc_column.null_mask()):
        if span is not None and span.size:
            yield span.ptr
    for child in plc_column.children():
        yield from addresses(child)


def was_read(runtime, stream, address: int) -> bool:
    return ("has-read", runtime.register_stream(stream).id) in runtime.adopt(address, 1).frontier


def columns():
    """One column of each make, with nulls."""
    import cudf

    numbers = cudf.Series([1, None, 3], dtype="int64")
    yield "numbers", numbers
    yield "booleans", numbers == 3
    yield "dates", numbers.astype("datetime64[s]")
    yield "strings", cudf.Series(["a", None, "ccc"])
    yield "lists", cudf.Series([[1], None, [2, 3]])
    yield "lists of strings", cudf.Series([["a"], None, ["b", "c"]])
    yield "structs", cudf.Series([{"a": 1, "b": "x"}, None, {"a": 3, "b": "z"}])
    yield "decimals", numbers.astype(cudf.Decimal64Dtype(9, 2))
    yield "categories", cudf.Series(["a", None, "b"]).astype("category")
    yield "slice", cudf.Series(range(1000))[10:20]


def test_every_buffer_of_every_kind_of_column_is_named():
    import cudf
    import cupy
    import pylibcudf

    list(columns())                                     # what cuDF keeps is not ours
    runtime = enabled()
    for name, series in columns():
        inner = series._column.to_pylibcudf()
        where = list(addresses(inner))
        least = {"slice": 1, "strings": 3, "lists": 3, "lists of strings": 4, "structs": 5}.get(name, 2)
        assert len(where) >= least, name
        beside = list(addresses(series._column.categories.to_pylibcudf())) if name == "categories" else []
        for what, expected in ((inner, where), (pylibcudf.Table([inner]), where), (series, where + beside),
                               (series._column, where + beside), ([cudf.DataFrame({"a": series})], where + beside)):
            stream = cupy.cuda.Stream(non_blocking=True)
            with use(stream, read=what):
                pass
            assert all(was_read(runtime, stream, address) for address in expected), (name, type(what))
            stream.synchronize()
    labels = cudf.DataFrame({"a": [1, 2]}, index=["x", "y"])
    stream = cupy.cuda.Stream(non_blocking=True)
    with use(stream, read=labels):
        pass
    assert all(was_read(runtime, stream, address) for address in addresses(labels.index._column.to_pylibcudf()))


ALLOCATED_BY_OTHERS = """
import cupy
import numpy
import rmm.mr
import xlogmem.cudf
from numba import cuda
from xlogmem import use

rmm.mr.set_current_device_resource(rmm.mr.CudaAsyncMemoryResource())
xlogmem.cudf.enable(0)
runtime = xlogmem.get_runtime(0)
stream = cupy.cuda.Stream(non_blocking=True)
with stream:
    arrays = [cupy.zeros(1000), cuda.device_array(1000), cuda.to_device(numpy.arange(3))]
arrays.append(cupy.arange(10)[3:])
with use(stream, read=arrays[:2], write=arrays[2:]) as recorder:
    assert recorder.recorded_count == 4
for array in arrays:
    assert runtime.find_block(array.__cuda_array_interface__["data"][0]) is not None, type(array)
stream.synchronize()
print("all tracked")
"""


def test_what_cupy_and_numba_allocate_is_tracked():
    """In a process of its own: Numba looks for its memory manager once, before its first context."""
    done = subprocess.run([sys.executable, "-c", ALLOCATED_BY_OTHERS], capture_output=True, text=True, timeout=100)
    assert done.stdout == "all tracked\n", done.stderr


def test_a_use_unshares_no_copies():
    import cudf
    import cupy

    enabled()
    series = cudf.Series(range(1000))
    shallow = series.copy(deep=False)
    owners = [it._column.plc_column.data().owner for it in (series, shallow)]
    assert owners[0] is owners[1]
    stream = cupy.cuda.Stream(non_blocking=True)
    with use(stream, read=series, write=shallow):
        pass
    with use(stream, read=xlogmem.cudf.view(series)):
        pass
    assert [it._column.plc_column.data().owner for it in (series, shallow)] == owners
    stream.synchronize()


def test_a_spilled_column_comes_back_stays_and_can_be_spilled_again():
    import cudf
    import cupy
    from cudf.core.buffer.spill_manager import SpillManager, set_global_manager

    set_global_manager(None)
    set_global_manager(SpillManager())
    try:
        runtime = enabled()
        series = cudf.Series(range(1000))
        owner = series._column.plc_column.data().owner
        stream = cupy.cuda.Stream(non_blocking=True)
        for name_it in (lambda it: it, xlogmem.cudf.view, lambda it: cudf.DataFrame({"a": it})):
            owner.spill("cpu")
            with use(stream, read_write=name_it(series)):
                assert not owner.is_spilled
                assert not owner.spillable
                assert runtime.find_block(owner.memory_info()[0]) is not None
            assert owner.spillable
            assert not owner.exposed
        array = cupy.asarray(xlogmem.cudf.view(series))
        assert not owner.spillable
        assert int(array.sum()) == sum(range(1000))
        del array
        gc.collect()
        assert owner.spillable
        stream.synchronize()
        del series, owner
        gc.collect()
    finally:
        set_global_manager(None)


# ---------------------------------------------------------------------------------------------- RMM's resource changes
def test_a_replaced_resource_is_noticed():
    import cudf
    import rmm.mr

    enabled()
    rmm.mr.set_current_device_resource(rmm.mr.CudaAsyncMemoryResource())
    series = cudf.Series(range(1000))
    with pytest.raises(StreamMisuseError, match=r"Series at .* is not tracked.*call xlogmem\.rmm\.enable\(\) again"), \
            use(0, read=series):
        pass
    xlogmem.cudf.enable(0)
    series = cudf.Series(range(1000))
    with use(0, read=series):
        pass
    del series
    xlogmem.cudf.disable()
    assert isinstance(rmm.mr.get_current_device_resource(), rmm.mr.CudaAsyncMemoryResource)


def python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=110,
                          env=os.environ | environment)


def test_under_cudf_pandas():
    run = python("-m", "cudf.pandas", "-c", """
import pandas as pd, cupy, rmm.mr, xlogmem, xlogmem.cudf
xlogmem.cudf.enable()
stream = cupy.cuda.Stream(non_blocking=True)
frame = pd.DataFrame({"a": range(1000), "b": ["x"] * 1000})
with xlogmem.use(stream, read=frame, write=frame["a"]) as recorder:
    assert recorder.recorded_count == 4, recorder.recorded_count        # numbers, offsets, characters; numbers
    cupy.asarray(xlogmem.cudf.view(frame["a"]))
frame._fsproxy_slow                         # as anything does that cuDF cannot do
try:
    xlogmem.use(stream, read=frame)
except TypeError as error:
    assert "no device memory at present" in str(error), error
else:
    raise SystemExit("host memory was taken")
rmm.mr.set_current_device_resource(rmm.mr.CudaAsyncMemoryResource())
frame = pd.DataFrame({"a": range(1000)})
try:
    with xlogmem.use(stream, read=frame): pass
except xlogmem.StreamMisuseError as error:
    assert "cudf.pandas" in str(error), error
else:
    raise SystemExit("untracked memory was taken")
xlogmem.cudf.enable()
frame = pd.DataFrame({"a": range(1000)})
with xlogmem.use(stream, read=frame): pass
print("right")
""", CUDF_PANDAS_RMM_MODE="async")
    assert run.stdout.endswith("right\n"), run.stdout + run.stderr


def test_with_a_default_stream_for_each_thread():
    run = python("-c", """
import cudf, cupy, rmm.mr, threading, xlogmem, xlogmem.cudf
rmm.mr.set_current_device_resource(rmm.mr.CudaAsyncMemoryResource())
xlogmem.cudf.enable()
runtime = xlogmem.get_runtime()
stream = cupy.cuda.Stream(non_blocking=True)
def work():
    for number in range(20):
        series = cudf.Series(range(1000)) * number
        array = cupy.asarray(series)
        with xlogmem.use(stream, read_write=series), stream:
            array += 1
        assert int(series.sum()) == number * 499500 + 1000, number
before = runtime.counters()
cudf.Series(range(1000)).sum()
assert runtime.counters()["waits"] == before["waits"]
threads = [threading.Thread(target=work) for _ in range(3)]
for thread in threads: thread.start()
for thread in threads: thread.join()
work()
print("right", runtime.counters())
""", CUDF_PER_THREAD_STREAM="1")
    assert run.stdout.startswith("right"), run.stdout + run.stderr


# ---------------------------------------------------------------------------------------------- the examples
@pytest.mark.parametrize("name", [
    "cudf_side_streams", pytest.param("cudf_sort_join_threads", marks=pytest.mark.promise(212)), "cudf_spilling",
    "cudf_pandas_side_stream"])
def test_an_example_is_right_and_its_twin_is_wrong(name):
    for arguments, status in ((["--rounds", "50"], 0), (["--rounds", "1000", "--without"], 3)):     # 1 % are wrong
        run = python(str(EXAMPLES / f"{name}.py"), *arguments, "--json")
        assert run.returncode == status, run.stdout + run.stderr
        seen = json.loads(run.stdout.splitlines()[-1])
        assert (seen["wrong"] > 0) == bool(status), seen
