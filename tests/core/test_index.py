"""The address index against a sorted list: any order of coming and going, any distribution of addresses."""
from __future__ import annotations

import random
from bisect import bisect_right, insort

import pytest
from made_up import adopt_anywhere

from xlogmem import DeviceRuntime

pytestmark = pytest.mark.simulator


@pytest.mark.parametrize("spread", ["dense", "sparse", "clustered"])
@pytest.mark.parametrize("seed", range(3))
def test_lookups_agree_with_a_sorted_list(spread, seed):
    runtime = DeviceRuntime()
    rng = random.Random(seed)
    blocks, starts = {}, []

    def address() -> int:
        if spread == "dense":
            return (1 << 44) + 256 * rng.randrange(3000)
        if spread == "sparse":
            return 256 * rng.randrange(1, 1 << 54)
        return (1 << rng.randrange(20, 60)) + 256 * rng.randrange(300)

    for _ in range(6000):
        if blocks and rng.random() < 0.4:
            start = rng.choice(starts)
            starts.remove(start)
            blocks.pop(start).free()
        else:
            start = address()
            if start not in blocks:
                blocks[start] = adopt_anywhere(runtime, start, rng.choice((1, 100, 256)))
                insort(starts, start)
        probe = rng.choice(starts) + rng.randrange(-300, 300) if starts else address()
        place = bisect_right(starts, probe)
        expected = None
        if place and probe < starts[place - 1] + blocks[starts[place - 1]].nbytes:
            expected = blocks[starts[place - 1]].generation
        found = runtime.find_block(probe)
        assert (found.generation if found else None) == expected
    for start in starts:
        assert runtime.find_block(start).generation == blocks[start].generation


@pytest.mark.parametrize("order", [1, -1])
def test_ascending_and_descending(order):
    runtime = DeviceRuntime()
    starts = [(1 << 44) + 512 * number for number in range(5000)][::order]
    blocks = [adopt_anywhere(runtime, start, 512) for start in starts]
    assert [runtime.find_block(start + 511).generation for start in starts] == [block.generation for block in blocks]
    for block in blocks[::2]:
        block.free()
    for block, start in zip(blocks, starts, strict=True):
        found = runtime.find_block(start)
        assert (found is None) == (block.state.value == "freed")
