"""Streams, tags, generations, accesses and identities, and the states of a block."""
from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from c_table import ENVIRONMENT
from four_streams import READ, FourStreams
from which_driver import SIMULATED

from xlogmem import (
    Access,
    BlockId,
    BlockState,
    DeviceBlock,
    DeviceRuntime,
    DirectMemoryResource,
    LaunchRecorder,
    Stream,
    StreamMisuseError,
    UseAfterFreeError,
    use,
)


@pytest.mark.promise(1, 2)
def test_a_stream_is_a_number_that_callers_do_not_make_up():
    """Handles of one registration are equal, hash alike and show their number; 0 is the pool's default stream."""
    runtime = DeviceRuntime()
    stream, other = runtime.acquire_stream(), runtime.acquire_stream()
    again = runtime.stream_pool.stream(stream.id)
    assert again is not stream
    assert (again == stream, hash(again) == hash(stream)) == (True, True)
    assert stream != other
    assert stream != stream.id
    assert {stream: "found"}[again] == "found"
    assert f"Stream {stream.id} " in repr(stream)
    assert runtime.default_stream.id == 0
    assert runtime.allocate(64).stream == runtime.default_stream
    with pytest.raises(TypeError, match="made by"):
        Stream()
    with pytest.raises(AttributeError):
        stream.id = other.id
    same_number = DeviceRuntime().acquire_stream()
    assert same_number.id == stream.id
    assert same_number != stream


@pytest.mark.promise(3)
def test_a_tag_is_text():
    """Tags are kept as given, compared by text, and absent unless given."""
    runtime = DeviceRuntime()
    one, two, none = runtime.allocate(64, tag="sort"), runtime.allocate(64, tag="so" + "rt"), runtime.allocate(64)
    assert one.tag == two.tag == "sort"
    assert hash(one.tag) == hash(two.tag)
    assert none.tag is None
    assert "sort" in repr(one)
    assert "tag" not in repr(none)
    with pytest.raises(TypeError):
        runtime.allocate(64, tag=b"sort")


@pytest.mark.promise(4, 5)
def test_generations_are_shared_by_threads_resources_and_runtimes():
    """One counter numbers the blocks of the whole process: all different, and growing in every thread."""
    runtimes = [DeviceRuntime(), DeviceRuntime(resource=DirectMemoryResource())]
    if SIMULATED:
        runtimes.append(DeviceRuntime(1))

    def work(number: int) -> list[int]:
        runtime = runtimes[number % len(runtimes)]
        return [runtime.allocate(64).generation for _ in range(100)]

    with ThreadPoolExecutor(8) as pool:
        seen = list(pool.map(work, range(8)))
    assert all(numbers == sorted(numbers) for numbers in seen)
    numbers = sorted(number for some in seen for number in some)
    assert numbers == list(range(numbers[0], numbers[0] + 800))
    assert max(numbers) < 1 << 64
    for runtime in runtimes:
        runtime.reap_pending()


@pytest.mark.promise(5)
def test_generations_start_at_one():
    """The first block of a process has generation 1."""
    program = "import xlogmem; r = xlogmem.DeviceRuntime(); print(r.allocate(64).generation, r.allocate(64).generation)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100,
                          env=os.environ | ENVIRONMENT)
    assert (done.stdout, done.stderr) == ("1 2\n", "")


@pytest.mark.promise(6, 9, 68, 105)
def test_an_address_that_came_back_is_another_block():
    """A stale identity is not taken for the block that lives at its address now, and changes nothing of that block."""
    runtime = DeviceRuntime()
    stream, other = runtime.acquire_stream(), runtime.acquire_stream()
    old = runtime.allocate(64, stream)
    stale = old.id
    old.free()
    new = runtime.allocate(64, stream)
    assert new.ptr == stale.ptr
    assert new.id != stale
    before = new.frontier
    recorder = LaunchRecorder(other).read(new).write(stale)
    assert recorder.recorded_count == 2                 # not merged, although the address is one
    for call in (recorder.preflight, lambda: runtime.record_block_use(stale, other),
                 lambda: runtime.prepare_block_use(stale, other, Access.WRITE),
                 lambda: runtime.finish_block_use(stale, other, Access.WRITE), old.free):
        with pytest.raises(UseAfterFreeError) as error:
            call()
        assert error.value.generation == stale.generation
    assert new.frontier == before
    assert new.state is BlockState.LIVE
    assert runtime.find_block(new.ptr) == new.id


@pytest.mark.promise(7)
def test_accesses_read_or_write_or_both():
    """`reads` and `writes` answer for each access, and nothing else is one."""
    answers = {access.name: (access.reads, access.writes) for access in Access}
    answers["READ_WRITE"] = (Access.READ_WRITE.reads, Access.READ_WRITE.writes)
    assert answers == {"READ": (True, False), "WRITE": (False, True), "READ_WRITE": (True, True)}
    with pytest.raises(ValueError, match="8"):
        Access(8)


@pytest.mark.promise(8, 9)
def test_an_identity_copies_four_fields_and_holds_nothing():
    """`block.id` has the block's fields, is equal by generation, outlives the block and cannot be forged."""
    runtime = DeviceRuntime()
    stream = runtime.acquire_stream()
    block = runtime.allocate(64, stream)
    identity, found = block.id, runtime.find_block(block.ptr + 63)
    assert identity is not found
    assert identity == found
    assert hash(identity) == hash(found)
    fields = (block.ptr, block.generation, stream, runtime.device_id)
    for one in (identity, found):
        assert (one.ptr, one.generation, one.alloc_stream, one.device_id) == fields
        for name in ("ptr", "generation", "alloc_stream", "device_id"):
            with pytest.raises(AttributeError):
                setattr(one, name, getattr(one, name))
    forged = BlockId.__new__(BlockId)
    assert forged != identity
    with pytest.raises(StreamMisuseError, match="another runtime"):
        use(stream, write=forged)
    del block                                           # the identity does not keep it
    runtime.reap_pending()
    assert runtime.bytes_outstanding == 0
    assert identity.generation == found.generation


@pytest.mark.promise(10, 19)
def test_the_states_of_a_block():
    """LIVE until it is freed, RETIRED while a window keeps it, FREED for ever after."""
    runtime = DeviceRuntime()
    stream = runtime.acquire_stream()
    block = runtime.allocate(64, stream)
    recorder = LaunchRecorder(stream).read(block)
    recorder.preflight()
    seen = [block.state]
    runtime.deallocate(block)
    seen.append(block.state)
    with pytest.raises(UseAfterFreeError):
        block.free()
    recorder.commit()
    seen.append(block.state)
    assert seen == [BlockState.LIVE, BlockState.RETIRED, BlockState.FREED]
    other = runtime.allocate(64, stream)                # the place in the table is used again
    assert (block.state, other.state) == (BlockState.FREED, BlockState.LIVE)
    assert {state.value for state in BlockState} >= {"live", "retired", "freed"}


@pytest.mark.promise(11, 12)
def test_a_block_has_one_owner_and_says_what_it_is():
    """Fields are read-only, sizes as requested, addresses as aligned as promised; a block is not copied."""
    runtime = DeviceRuntime()
    stream = runtime.acquire_stream()
    for nbytes in (1, 255, 256, 1000, 1 << 20):
        block = runtime.allocate(nbytes, stream, tag="x")
        assert (block.nbytes, block.stream, block.tag, block.core) == (nbytes, stream, "x", runtime)
        assert block.id.device_id == runtime.device_id
        assert block.align >= 256
        assert block.ptr % block.align == 0
        for name in ("ptr", "nbytes", "stream", "tag", "generation", "state", "align", "core"):
            with pytest.raises(AttributeError):
                setattr(block, name, None)
    with pytest.raises(TypeError):
        DeviceBlock()


@pytest.mark.simulator
@pytest.mark.promise(13, 20, 32)
@pytest.mark.parametrize("recorded", [True, False])
def test_work_on_another_stream_has_to_be_recorded(driver, recorded):
    """A reader elsewhere is safe if it is recorded; unrecorded, it races with the fill and with the free."""
    x = FourStreams(driver)
    block = x.alloc(x.S)
    x.work(x.S, (block, "write"))
    if recorded:
        x.use(x.T, (block, READ))
    else:
        x.work(x.T, (block, READ))
    block.free()
    races = driver.races()
    driver.clear_races()
    assert [any(kind in race for race in races) for kind in ("write/read", "read/free")] == [not recorded] * 2
    x.close()
