"""Arrays of other libraries, by the bytes that they take: all of them have to be in one block."""
from __future__ import annotations

import pytest
from arrays import Array
from four_streams import WRITE

from xlogmem import Access, LaunchRecorder, PoolMemoryResource, StreamMisuseError, use

HUGE = 1 << 62


def place(block, offset: int = 0, **interface) -> Array:
    return Array(data=(block.ptr + offset, False), **interface)


def neighbours(four):
    """A runtime with four streams, and two blocks of 256 bytes, the second right behind the first."""
    x = four(resource=PoolMemoryResource(chunk_size=4096))
    blocks = sorted([x.alloc(x.S, 256), x.alloc(x.S, 256)], key=lambda block: block.ptr)
    assert blocks[1].ptr == blocks[0].ptr + 256
    return x, *blocks


INSIDE = {
    "all of it": (0, {"shape": (256,)}),
    "wide elements": (0, {"shape": (4, 8), "typestr": "<f8"}),
    "an offset": (240, {"shape": (2, 2), "typestr": "<i4"}),
    "one element": (255, {"shape": ()}),
    "strides": (0, {"shape": (2, 3), "strides": (128, 60), "typestr": "<i8"}),
    "backwards": (252, {"shape": (64,), "strides": (-4,), "typestr": "<i4"}),
    "the same element": (252, {"shape": (HUGE, HUGE), "strides": (0, 0), "typestr": "<i4"}),
    "no strides": (0, {"shape": (256,), "strides": None}),
    "nothing": (0, {"shape": (HUGE, 0, HUGE), "strides": (HUGE, 1, HUGE)}),
    "no bytes": (0, {"shape": (3,), "typestr": "|V0"}),
}
BEYOND = {
    "one byte": (0, {"shape": (257,)}),
    "an offset": (1, {"shape": (256,)}),
    "wide elements": (0, {"shape": (33,), "typestr": "<f8"}),
    "strides": (0, {"shape": (2, 2), "strides": (128, 121), "typestr": "<i8"}),
    "backwards": (4, {"shape": (3,), "strides": (-4,), "typestr": "<i4"}),
    "a huge product": (0, {"shape": (HUGE, HUGE, HUGE), "typestr": "<f8"}),
    "a product that is small in 64 bits": (0, {"shape": (1 << 32, 1 << 32), "typestr": "|u1"}),
    "a huge stride": (0, {"shape": (3,), "strides": (HUGE,)}),
    "huge and backwards": (0, {"shape": (3,), "strides": (-HUGE,)}),
    "a huge element": (0, {"shape": (1,), "typestr": "|V" + "9" * 18}),
}


@pytest.mark.parametrize("name", INSIDE)
def test_an_array_inside_of_a_block_is_the_block(four, name):
    x, block, _ = neighbours(four)
    offset, interface = INSIDE[name]
    array = place(block, offset, **interface)
    recorder = LaunchRecorder(x.T).write([array])
    assert recorder.recorded_count == (name != "nothing")
    recorder.preflight()
    recorder.commit()


@pytest.mark.parametrize("name", BEYOND)
@pytest.mark.parametrize("wrap", [lambda array: array, lambda array: [array], lambda array: (array,)])
def test_an_array_that_reaches_beyond_its_block_is_refused(four, name, wrap):
    """Before anything is queued, and with the block, its size and what the array takes."""
    x, block, _ = neighbours(four)
    offset, interface = BEYOND[name]
    array = place(block, offset, **interface)
    calls = x.driver.all_calls()
    says = rf"Array is not in one block: .* bytes 0x.* block {block.generation}, .* has 256 bytes"
    with pytest.raises(StreamMisuseError, match=says):
        use(x.T, write=wrap(array)).preflight()
    with pytest.raises(StreamMisuseError, match=says):
        x.runtime.prepare_block_use(array, x.T, Access.WRITE)
    with pytest.raises(StreamMisuseError, match=says):
        x.runtime.record_block_use(array, x.T)
    assert x.waits() == calls.get("cuStreamWaitEvent", 0)
    assert len(block.frontier) == 1


@pytest.mark.simulator
def test_recorders_that_ignore_untracked_memory_record_what_is_tracked_of_an_array(four):
    """The blocks that it begins in, ends in and runs across; what is between them is untracked."""
    x = four(resource=PoolMemoryResource(chunk_size=4096))
    blocks = sorted([x.alloc(x.S, 256) for _ in range(5)], key=lambda block: block.ptr)
    blocks[1].free()
    array = place(blocks[2], 255, shape=(2, 2), strides=(-512, 2))      # from blocks[0] to blocks[3]
    with use(x.T, write=array, untracked="ignore") as recorder:
        assert recorder.recorded_count == 3
        with pytest.raises(StreamMisuseError):
            LaunchRecorder(x.U, on_conflict="raise").write(blocks[3]).preflight()
        x.prepare(x.U, (blocks[4], WRITE), on_conflict="raise").cancel()


@pytest.mark.parametrize("interface", [
    {"typestr": None}, {"typestr": 4}, {"typestr": "<f"}, {"typestr": "<f4x"}, {"typestr": "<f-4"}, {"typestr": "f"},
    {"typestr": "<f" + "9" * 5000}, {"typestr": "<f\u0664"}, {"strides": 4}, {"strides": (1, 1)}, {"strides": ("1",)},
    {"shape": ("1",)}, {"shape": (-1,)}, {"shape": (None,)}, {"shape": (1.5,)}])
def test_what_does_not_say_how_much_it_takes_is_refused(four, interface):
    x, block, _ = neighbours(four)
    with pytest.raises(TypeError, match=r"read=: __cuda_array_interface__ of \S*Array has shape"):
        use(x.T, read=place(block, **interface))
