"""The simulated driver: values that a stream writes."""
from __future__ import annotations

import ctypes

import pytest
from sim_support import alloc, fill, stream, sync

pytestmark = pytest.mark.simulator
INVALID_VALUE, INVALID_HANDLE = 1, 400
VALUE = 0x0123456789ABCDEF


def write(simulator, bits, on, p, value=VALUE):
    kind = {32: ctypes.c_uint32, 64: ctypes.c_uint64}[bits]
    return getattr(simulator._library, f"cuStreamWriteValue{bits}_v2")(
        ctypes.c_void_p(int(on)), ctypes.c_uint64(p), kind(value), 0)


@pytest.mark.parametrize("bits", [32, 64])
def test_a_value_is_written_in_the_order_of_the_stream(scheduled, bits):
    a, width = stream(), bits // 8
    p = alloc(a)
    fill(p, 1, a)
    assert write(scheduled, bits, a, p + 8) == 0
    sync(a)
    written = VALUE.to_bytes(8, "little")[:width]
    assert scheduled.peek(p, 24) == b"\1" * 8 + written + b"\1" * (16 - width)


@pytest.mark.parametrize("bits", [32, 64])
def test_it_is_an_access_to_these_bytes(simulator, bits):
    a, b = stream(), stream()
    p = alloc(a)
    sync(a)
    assert write(simulator, bits, a, p) == 0
    fill(p + bits // 8, 1, b, 8)
    assert simulator.races() == []
    fill(p + bits // 8 - 1, 1, b, 8)
    assert [one.split(":")[0] for one in simulator.races()] == ["RACE write/write"]
    simulator.clear_races()
    sync(a)
    sync(b)


@pytest.mark.parametrize("bits", [32, 64])
def test_which_places(simulator, bits):
    a = stream()
    p = alloc(a)
    assert [write(simulator, bits, on, at) for on, at in (
        (a, p + bits // 16), (a, 0), (a, p + 64), (64, p), (2, p))] == [
            INVALID_VALUE, INVALID_VALUE, INVALID_VALUE, INVALID_HANDLE, 0]
    sync(a)
    sync(2)
