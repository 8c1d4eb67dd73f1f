"""`DeviceRuntime.snapshot`: what is in memory at one moment."""
from __future__ import annotations

import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from four_streams import READ, WRITE
from made_up import adopt_anywhere
from pools import no_driver_call
from stress import together

import xlogmem
from xlogmem import (
    AsyncMemoryResource,
    DeviceRuntime,
    DeviceState,
    DirectMemoryResource,
    PoolMemoryResource,
    Snapshot,
    StatisticsResourceAdaptor,
)

RESOURCES = {
    "async": AsyncMemoryResource, "direct": DirectMemoryResource, "pool": PoolMemoryResource,
    "pool with statistics": lambda: StatisticsResourceAdaptor(PoolMemoryResource())}


def block_at(snapshot: Snapshot, address: int) -> xlogmem.observe.snapshots.BlockRecord:
    found, = [block for block in snapshot.blocks if block.address == address]
    return found


def consistent(snapshot: Snapshot) -> None:
    """The sums are the totals."""
    own = [block for block in snapshot.blocks if not block.adopted]
    assert (sum(block.nbytes for block in own), len(own)) == (snapshot.live_bytes, snapshot.live_blocks)
    assert sum(stream.pending_bytes for stream in snapshot.streams) == snapshot.pending_bytes
    assert len({block.generation for block in snapshot.blocks}) == len(snapshot.blocks)
    assert sum(record.nbytes for record in snapshot.by_tag().values()) == snapshot.live_bytes
    for pool in snapshot.pools:
        assert pool["free_bytes"] == pool["pool_size"] - pool["used_bytes"] >= pool["largest_free_bytes"]
        assert pool["used_bytes"] >= sum(-block.nbytes // 256 * -256 for block in own)


# ---------------------------------------------------------------------------------------------- what is in it
@pytest.mark.parametrize("resource", RESOURCES)
def test_every_block_is_there_with_what_is_known_of_it(four, resource):
    x = four(resource=RESOURCES[resource]())
    a = x.runtime.allocate(1000, x.S, tag="a")
    b = x.runtime.allocate(2000, x.T)
    snapshot = x.runtime.snapshot()
    consistent(snapshot)
    assert (snapshot.live_bytes, snapshot.live_blocks, snapshot.device_id) == (3000, 2, 0)
    assert snapshot.resource == repr(x.runtime.resource)
    assert block_at(snapshot, a.ptr) == (
        a.ptr, 1000, "a", a.generation, "live", False, x.S.id, x.S.id, {}, {}, 0, 0, 0, None, None)
    assert block_at(snapshot, b.ptr)[:3] == (b.ptr, 2000, None)
    assert snapshot.by_tag() == {None: (2000, 1), "a": (1000, 1)}
    assert list(snapshot.by_tag()) == [None, "a"]
    streams = {stream.id: stream for stream in snapshot.streams}
    assert streams[x.S.id].handle == x.S.handle
    assert streams[x.S.id][2:4] == ("ordinary", True)


@pytest.mark.parametrize("resource", RESOURCES)
def test_users_are_named_with_their_positions(four, resource):
    x = four(resource=RESOURCES[resource]())
    block = x.alloc(x.S)
    with x.recorder(x.T, (block, WRITE)):
        x.work(x.T, (block, WRITE))
    with x.recorder(x.U, (block, READ)):
        x.work(x.U, (block, READ))
    seen = block_at(x.runtime.snapshot(), block.ptr)
    frontier = block.frontier
    assert seen.writers == {x.T.id: frontier["written", x.T.id]}
    assert seen.readers == {x.U.id: frontier["has-read", x.U.id]}


def test_open_windows_pins_and_frees_that_were_put_off(four):
    x = four()
    state = DeviceState(x.runtime)
    block, exported = x.alloc(x.S), state.empty(64, "u1", x.S)
    address = block.ptr
    recorder = x.prepare(x.T, (block, READ))
    assert block_at(x.runtime.snapshot(), address)[10:12] == (1, 0)
    block.free()
    seen = block_at(x.runtime.snapshot(), address)
    assert (seen.state, seen.windows) == ("freed", 1)
    consistent(x.runtime.snapshot())
    recorder.commit()
    assert all(found.address != address for found in x.runtime.snapshot().blocks)
    capsule = exported.__dlpack__(stream=x.T.handle)
    assert block_at(x.runtime.snapshot(), exported.ptr).pins == 1
    del capsule
    x.runtime.synchronize()
    assert block_at(x.runtime.snapshot(), exported.ptr).pins == 0


def test_adopted_memory_is_there_and_does_not_count(four):
    x = four()
    foreign = SimpleNamespace(__cuda_array_interface__={
        "shape": (64,), "typestr": "|u1", "data": (1 << 44, False), "version": 3})
    block = adopt_anywhere(x.runtime, foreign, tag="theirs")
    snapshot = x.runtime.snapshot()
    consistent(snapshot)
    assert snapshot.live_bytes == 0
    assert snapshot.by_tag() == {}
    assert block_at(snapshot, 1 << 44)[1:8] == (64, "theirs", block.generation, "adopted", True, None, None)


@pytest.mark.simulator
def test_pending_bytes_are_those_of_the_streams(four, driver):
    x = four()
    driver.set_policy("min")
    x.alloc(x.S, 1000).free()
    x.alloc(x.T, 300).free()
    snapshot = x.runtime.snapshot()
    consistent(snapshot)
    assert snapshot.pending_bytes == 1300
    assert {s.id: s.pending_bytes for s in snapshot.streams if s.pending_bytes} == {x.S.id: 1000, x.T.id: 300}
    x.alloc(x.S, 64 << 20).free()                       # a fence is recorded behind it, and what follows has another
    x.alloc(x.S, 50).free()
    consistent(x.runtime.snapshot())
    assert x.runtime.snapshot().pending_bytes == 1350 + (64 << 20)


# ---------------------------------------------------------------------------------------------- pools
def test_what_caches_have_for_further_blocks_is_free_and_their_blocks_are_live(four):
    """Blocks that only a cache knows are not brought in for it."""
    x = four(resource=PoolMemoryResource(stream_cache_size="1MiB"))
    for _ in range(5):
        x.alloc(x.S, 512).free()
    first, second = x.alloc(x.S, 512), x.alloc(x.S, 500)
    x.alloc(x.T, 256).free()
    cached = x.runtime.counters()["cached"]
    assert cached > 0
    snapshot = x.runtime.snapshot()
    consistent(snapshot)
    pool, = snapshot.pools
    assert block_at(snapshot, first.ptr)[1:8] == (512, None, first.generation, "live", False, x.S.id, x.S.id)
    assert {block.address for block in snapshot.blocks} == {first.ptr, second.ptr}
    assert pool["used_bytes"] == 1024
    assert pool == x.runtime.resource.statistics()
    first.free()
    assert x.alloc(x.S, 512).ptr
    assert x.runtime.counters()["cached"] > cached      # its cache has it still


def test_the_pool_below_adaptors(four):
    x = four(resource=StatisticsResourceAdaptor(PoolMemoryResource(chunk_size=1 << 20)))
    kept = [x.alloc(x.S, 1024) for _ in range(4)]
    del kept[1]
    x.runtime.reap_pending()
    snapshot = x.runtime.snapshot()
    assert snapshot.pools[0]["free_spans"] == 2
    assert snapshot.pools[0]["largest_free_bytes"] == (1 << 20) - 4096
    assert four().runtime.snapshot().pools == ()


# ---------------------------------------------------------------------------------------------- how it is taken
@pytest.mark.parametrize("resource", RESOURCES)
def test_no_driver_call(four, driver, resource):
    x = four(resource=RESOURCES[resource]())
    block = x.alloc(x.S)
    with no_driver_call(driver):
        assert x.runtime.snapshot().live_blocks == 1
    block.free()


@pytest.mark.parametrize("resource", RESOURCES)
@pytest.mark.usefixtures("_busy_interpreter")
def test_snapshots_are_consistent_while_threads_allocate_and_free(resource):
    runtime = DeviceRuntime(resource=RESOURCES[resource]())
    ended = threading.Event()
    seen = set()

    def work(number: int) -> None:
        stream = runtime.acquire_stream()
        kept: list[xlogmem.DeviceBlock] = []
        for turn in range(4000):
            kept.append(runtime.allocate(256 * (1 + turn % 3) - number, stream, tag=f"{number}" if turn % 5 else None))
            if len(kept) > 6:
                kept.pop(turn % 6).free()

    def watch() -> None:
        while not ended.is_set():
            snapshot = runtime.snapshot()
            consistent(snapshot)
            seen.add(snapshot.live_bytes)

    watcher = threading.Thread(target=watch)
    failed: list[object] = []
    hook, threading.excepthook = threading.excepthook, failed.append
    try:
        watcher.start()
        together(work, 4)
    finally:
        ended.set()
        watcher.join()
        threading.excepthook = hook
    assert not failed
    assert seen
    runtime.reap_pending()
    consistent(runtime.snapshot())
    assert runtime.snapshot().blocks == ()


def test_what_a_cache_has_is_not_looked_at_without_its_lock():
    """Blocks of a cache change without the runtime's lock: under `.ci/sanitize tsan` a look at them there is a race.

    A snapshot of so many blocks takes longer than the other thread needs to wake up and to go on.
    """
    runtime = DeviceRuntime(resource=PoolMemoryResource())
    stream = runtime.acquire_stream()
    ended = threading.Event()

    def work() -> int:
        turns = 0
        while not ended.is_set():
            runtime.allocate(512, stream).free()
            turns += 1
        return turns

    kept = [runtime.allocate(256, stream) for _ in range(1000)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(1) as pool:
            counted = pool.submit(work)
            try:
                snapshots = [runtime.snapshot() for _ in range(10)]
            finally:
                ended.set()
    finally:
        sys.setswitchinterval(interval)
    for snapshot in snapshots:
        consistent(snapshot)
        assert {block.generation for block in kept} <= {block.generation for block in snapshot.blocks}
        assert snapshot.live_blocks in (len(kept), len(kept) + 1)
    counters = runtime.counters()
    assert counters["frees"] == counted.result() >= counters["cached"]


def test_a_tag_outlives_its_block_in_a_snapshot(four):
    x = four()
    block = x.runtime.allocate(8, x.S, tag="".join(["lo", "st"]))
    snapshot = x.runtime.snapshot()
    block.free()
    assert snapshot.blocks[0].tag == "lost"
    assert x.runtime.snapshot().by_tag() == {}


# ---------------------------------------------------------------------------------------------- forms
def test_json(four, tmp_path):
    x = four(resource=PoolMemoryResource())
    block = x.runtime.allocate(1000, x.S, tag='<"a">')
    with x.recorder(x.T, (block, READ)):
        x.work(x.T, (block, READ))
    snapshot = x.runtime.snapshot()
    text = snapshot.to_json(tmp_path / "memory.json")
    assert (tmp_path / "memory.json").read_text() == text + "\n"
    found = json.loads(text)
    assert found["live_bytes"] == 1000
    assert found["blocks"][0]["tag"] == '<"a">'
    assert list(found["blocks"][0]["readers"]) == [str(x.T.id)]
    assert found["pools"][0]["used_bytes"] == 1024
    assert found["streams"][0]["discipline"] == "ordinary"


def test_text_and_html(four):
    x = four(resource=StatisticsResourceAdaptor(PoolMemoryResource()))
    kept = [x.runtime.allocate(1024 * (number + 1), x.S, tag=f"<tag {number}>") for number in range(12)]
    snapshot = x.runtime.snapshot()
    assert repr(snapshot) == "<Snapshot device=0 live=78.0 KiB in 12 blocks, pending=0 B>"
    lines = str(snapshot).splitlines()
    assert lines[0] == repr(snapshot)
    assert any("peak" in line and "78.0 KiB" in line for line in lines)
    assert "12.0 KiB in 1 block: '<tag 11>'" in lines[-11]
    assert lines[-1].split() == ["3.0", "KiB", "in", "2", "blocks:", "2", "more", "tags"]
    html = snapshot._repr_html_()
    assert "&lt;tag 11&gt;" in html
    assert "<tag" not in html
    assert html.count("<tr>") == (1 + 4) + (1 + 11)     # heads; live, pending, peak, pool; tags
    del kept


def test_a_data_frame_needs_pandas(four, monkeypatch):
    x = four()
    block = x.runtime.allocate(64, x.S, tag="a")
    snapshot = x.runtime.snapshot()
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"needs pandas, which is not installed.* to_dict\(\)"):
        snapshot.to_dataframe()
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=lambda rows, columns: (rows, columns)))
    rows, columns = snapshot.to_dataframe()
    assert dict(zip(columns, rows[0], strict=True))["tag"] == "a"
    del block


@pytest.mark.usefixtures("_cold")
def test_of_the_process_runtime():
    block = xlogmem.get_runtime().allocate(64)
    assert xlogmem.snapshot().live_bytes == xlogmem.snapshot(device_id=0).live_bytes == 64
    with pytest.raises(ValueError, match="from 0 to 15, got 16"):
        xlogmem.snapshot(16)
    block.free()
