"""What errors say of memory: of all of it where there is none left, and of the block that an error is about."""
from __future__ import annotations

import logging

import pytest
from c_table import OUT_OF_MEMORY, Hold, Refused
from cuda.bindings import driver as cuda
from four_streams import READ_WRITE, WRITE

from xlogmem import (
    AsyncMemoryResource,
    DeviceMemoryResource,
    DeviceRuntime,
    DirectMemoryResource,
    LimitingResourceAdaptor,
    OutOfBudgetError,
    OutOfDeviceMemoryError,
    PoolMemoryResource,
    StreamMisuseError,
    UseAfterFreeError,
)
from xlogmem._base import log
from xlogmem._base.units import bytes_in_words
from xlogmem.sim.kernels import check

TOO_MUCH = 1 << 60
simulated = pytest.mark.simulator


@simulated
@pytest.mark.parametrize("resource", [AsyncMemoryResource, DirectMemoryResource])
def test_out_of_memory_says_what_there_is_and_which_tags_have_it(four, resource):
    x = four(resource=resource())
    kept = [x.runtime.allocate(1024 * number, x.S, tag=f"tag {number}") for number in range(1, 7)]
    kept += [x.runtime.allocate(9000, x.S), x.runtime.allocate(512, x.S, tag="tag 3")]
    with pytest.raises(OutOfDeviceMemoryError) as caught:
        x.runtime.allocate(TOO_MUCH, x.S)
    first, *holders = str(caught.value).splitlines()
    assert f"while allocating {bytes_in_words(TOO_MUCH)} on " in first
    live = 21 * 1024 + 9000 + 512
    assert f"; the runtime has {bytes_in_words(live)} live in 8 blocks and 0 bytes pending; the device has " in first
    assert first.endswith(f" free of {bytes_in_words(check(cuda.cuMemGetInfo())[1])}")
    assert holders == [
        "  8.8 KiB (9000 bytes) in 1 block: without a tag", "  6.0 KiB (6144 bytes) in 1 block: 'tag 6'",
        "  5.0 KiB (5120 bytes) in 1 block: 'tag 5'", "  4.0 KiB (4096 bytes) in 1 block: 'tag 4'",
        "  3.5 KiB (3584 bytes) in 2 blocks: 'tag 3'"]
    del kept


@simulated
def test_what_the_pool_has_is_said(four):
    x = four(resource=PoolMemoryResource(maximum_pool_size=8192, chunk_size=8192))
    kept = [x.alloc(x.S, 1024) for _ in range(8)]
    del kept[2], kept[4:6]
    x.runtime.reap_pending()
    with pytest.raises(OutOfDeviceMemoryError) as caught:
        x.alloc(x.S, 4096)
    assert ("the pool has 3.0 KiB (3072 bytes) free of 8.0 KiB (8192 bytes), the largest piece 2.0 KiB (2048 bytes); "
            "the device has") in str(caught.value)
    kept.clear()


@simulated
def test_local_blocks_of_caches_count_as_without_a_tag(four):
    x = four(resource=PoolMemoryResource(stream_cache_size="1MiB"))
    for _ in range(5):
        x.alloc(x.S).free()
    local = x.alloc(x.S)
    with pytest.raises(OutOfDeviceMemoryError, match="512 bytes in 1 block: without a tag"):
        x.alloc(x.S, TOO_MUCH)
    assert x.runtime.live_bytes == 512
    local.free()


@simulated
def test_a_budget_says_it_too(four):
    x = four(resource=LimitingResourceAdaptor(AsyncMemoryResource(), 4096))
    block = x.runtime.allocate(4000, x.S, tag="most")
    with pytest.raises(OutOfBudgetError) as caught:
        x.runtime.allocate(200, x.S)
    assert str(caught.value).startswith("out of budget: requested 200 bytes, remaining 96 bytes")
    assert "; the runtime has 3.9 KiB (4000 bytes) live in 1 block" in str(caught.value)
    assert caught.value.requested == 200
    block.free()


def test_the_exception_of_a_resource_in_python_gets_one_note():
    class Mine(DeviceMemoryResource):
        order = "stream"
        error = MemoryError("no more of mine")

        def allocate(self, nbytes, stream):
            raise self.error

        def deallocate(self, ptr, nbytes, stream):
            raise AssertionError

    runtime = DeviceRuntime(resource=Mine(0))
    for _ in range(2):
        with pytest.raises(MemoryError) as caught:
            runtime.allocate(64)
        assert caught.value.args == ("no more of mine",)
        note, = caught.value.__notes__
        assert note.startswith("the runtime has 0 bytes live in 0 blocks")


@simulated
def test_what_the_driver_does_not_say_is_left_out(four, driver):
    x = four()
    driver.fail("cuMemGetInfo", 1, 999)
    with pytest.raises(OutOfDeviceMemoryError) as caught:
        x.alloc(x.S, TOO_MUCH)
    assert "the runtime has" in str(caught.value)
    assert "the device has" not in str(caught.value)
    assert not x.runtime.lost


@simulated
def test_an_allocation_that_succeeds_queries_nothing(four, driver):
    x = four()
    x.alloc(x.S).free()
    assert driver.all_calls().get("cuMemGetInfo", 0) == 0
    with pytest.raises(OutOfDeviceMemoryError):
        x.alloc(x.S, TOO_MUCH)
    assert driver.all_calls()["cuMemGetInfo"] == 1


@simulated
def test_the_c_table_says_what_is_live_and_pending(four_and_hold):
    b, hold = four_and_hold
    block = b.alloc(b.S, 4096)
    with pytest.raises(Refused, match=r"CUDA_ERROR_OUT_OF_MEMORY .*; 4096 bytes live, 0 pending$") as refused:
        hold.allocate(TOO_MUCH)
    assert refused.value.kind == OUT_OF_MEMORY
    block.free()


def test_the_c_table_leaves_the_text_of_a_resource_alone():
    """RMM's binding recognises by it what RMM threw."""
    class Mine(DeviceMemoryResource):
        order = "stream"

        def allocate(self, nbytes, stream):
            raise MemoryError("no more of mine")

        def deallocate(self, ptr, nbytes, stream):
            raise AssertionError

    hold = Hold(DeviceRuntime(resource=Mine(0)))
    with pytest.raises(Refused, match=r"MemoryError: no more of mine$"):
        hold.allocate(100)
    hold.close()


@simulated
def test_the_c_table_says_it_of_a_budget(four):
    x = four(resource=LimitingResourceAdaptor(AsyncMemoryResource(), 4096))
    hold = Hold(x.runtime)
    with pytest.raises(Refused, match=r"remaining 4096 bytes of 4096 bytes; 0 bytes live, 0 pending$"):
        hold.allocate(5000)
    hold.close()


# ---------------------------------------------------------------------------------------------- errors about a block
def test_a_second_free_names_the_block(four):
    x = four()
    block = x.runtime.allocate(300, x.S, tag="a")
    block.free()
    for once_more in (block.free, block.__enter__):
        with pytest.raises(UseAfterFreeError, match=(
                rf"^block {block.generation} \(300 bytes, tag 'a', allocated on stream {x.S.id}\) was "
                "freed")) as caught:
            once_more()
        assert caught.value.generation == block.generation


@simulated
def test_a_conflict_names_the_block(four):
    x = four()
    block = x.runtime.allocate(300, x.S, tag="a")
    recorder = x.prepare(x.T, (block, WRITE))
    with pytest.raises(StreamMisuseError, match=(
            rf"block {block.generation} \(300 bytes, tag 'a', allocated on stream {x.S.id}\)")):
        x.prepare(x.U, (block, READ_WRITE), on_conflict="raise")
    recorder.cancel()


def test_a_use_of_what_is_being_freed_names_the_block(four):
    x = four()
    block = x.runtime.allocate(300, x.S)
    recorder = x.prepare(x.T, (block, WRITE))
    block.free()
    with pytest.raises(UseAfterFreeError, match=rf"\(300 bytes, allocated on stream {x.S.id}\)"):
        x.prepare(x.T, (block, WRITE))
    recorder.commit()


def test_an_overlap_names_the_block(four):
    x = four()
    block = x.runtime.allocate(512, x.S, tag="a")
    with pytest.raises(StreamMisuseError, match=rf"block {block.generation} \(512 bytes, tag 'a', .*\) in part"):
        x.runtime.adopt(block.ptr + 8, 4096)
    block.free()


def test_the_logger_is_the_one_that_programs_know():
    assert log.logger() is logging.getLogger("xlogmem")
