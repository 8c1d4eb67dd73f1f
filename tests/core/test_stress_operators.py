"""Operators that drop their buffers and reuse the memory at once, each with a twin that lacks a wait."""
from __future__ import annotations

import ctypes
from collections.abc import Callable

import pytest
from cuda.bindings import driver as cuda
from stress import words_at
from which_driver import SIMULATED

from xlogmem import (
    BlockState,
    DeviceBlock,
    DeviceRuntime,
    StreamMisuseError,
    sim,
    use,
)
from xlogmem.sim.kernels import Kernels, check

WORDS = 256                                             # of a block
LATE = 100_000                                          # nanoseconds: what is queued comes late on a GPU
SCHEDULES = sim.POLICIES if SIMULATED else ("hardware",)


class Pinned:
    """Page-locked host memory."""

    def __init__(self) -> None:
        self.ptr = int(check(cuda.cuMemHostAlloc(4 * WORDS, 0)))

    def write(self, value: int) -> None:
        (ctypes.c_uint32 * WORDS).from_address(self.ptr)[:] = [value] * WORDS

    def close(self) -> None:
        check(cuda.cuMemFreeHost(self.ptr))


class Array:
    """An array over memory that it does not keep."""

    def __init__(self, ptr: int) -> None:
        self.__cuda_array_interface__ = {"data": (ptr, False), "shape": (WORDS,), "typestr": "<u4", "version": 3}


NAMINGS: dict[str, Callable[[DeviceBlock], object]] = {
    "block": lambda block: block, "id": lambda block: block.id, "address": lambda block: block.ptr,
    "inside": lambda block: block.ptr + 4 * WORDS - 1, "array": lambda block: Array(block.ptr)}
# What may be done to two operands a and b, each full of one value: how they are used, the launch, which leaves its
# outcome in `out`, and that outcome.
Launch = Callable[[Kernels, int, int, int, int, int], None]
OPERATORS: dict[str, tuple[str, str, Launch, Callable[[int, int], int]]] = {
    "copy": ("read", "read", lambda k, s, a, b, out, host: k.copy(s, out, a, WORDS), lambda a, b: a),
    "driver's copy": ("read", "read", lambda k, s, a, b, out, host: check(
        cuda.cuMemcpyDtoDAsync(out, b, 4 * WORDS, s)), lambda a, b: b),
    "copy through": ("read", "write", lambda k, s, a, b, out, host: (
        k.copy(s, b, a, WORDS), k.copy(s, out, b, WORDS)), lambda a, b: a),
    "add": ("read", "read_write", lambda k, s, a, b, out, host: (
        k.add(s, b, 5, WORDS), k.copy(s, out, b, WORDS)), lambda a, b: b + 5),
    "count": ("read", "read", lambda k, s, a, b, out, host: (
        k.fill(s, out, 0, WORDS), *(k.count_unequal(s, out + 4 * i, a, i, WORDS) for i in range(WORDS))),
        lambda a, b: WORDS),
    "fill": ("write", "write", lambda k, s, a, b, out, host: (
        k.fill(s, a, 9, WORDS), k.fill(s, b, 8, WORDS), k.copy(s, out, a, WORDS)), lambda a, b: 9),
    "memset": ("write", "read", lambda k, s, a, b, out, host: (
        check(cuda.cuMemsetD32Async(a, 77, WORDS, s)), k.copy(s, out, a, WORDS)), lambda a, b: 77),
    "upload": ("write", "read", lambda k, s, a, b, out, host: (
        check(cuda.cuMemcpyHtoDAsync(a, host, 4 * WORDS, s)), k.copy(s, out, a, WORDS)), lambda a, b: 4321),
    "download": ("read", "read", lambda k, s, a, b, out, host: (
        check(cuda.cuMemcpyDtoHAsync(host, b, 4 * WORDS, s)), check(cuda.cuMemcpyHtoDAsync(out, host, 4 * WORDS, s))),
        lambda a, b: b),
}


def uses_of(operator: str, *operands: object) -> dict[str, list[object]]:
    """The arguments of `use` for the operands."""
    uses: dict[str, list[object]] = {"read": [], "write": [], "read_write": []}
    for access, operand in zip(OPERATORS[operator], operands, strict=False):
        uses[access].append(operand)
    return uses


def drop_and_reuse(kernels: Kernels, operator: str, naming: str) -> None:
    """Operands made on S, the operator on T, late; they are dropped at once, T gets
    their memory again, and S overwrites it."""
    own, host = DeviceRuntime(), Pinned()
    host.write(4321)
    S, T = own.acquire_stream(), own.acquire_stream()
    launch, outcome = OPERATORS[operator][2:]
    operands, old = [], []
    for value in (1000, 2000):
        operands.append(own.allocate(4 * WORDS, S))
        old.append(operands[-1].ptr)
        kernels.fill(S.handle, operands[-1].ptr, value, WORDS)
    out = own.allocate(4 * WORDS, T)
    with use(T, **uses_of(operator, *map(NAMINGS[naming], operands)), runtime=own):
        kernels.delay(T.handle, LATE)
        launch(kernels, T.handle, *old, out.ptr, host.ptr)
    operands.clear()
    reused = [own.allocate(4 * WORDS, T) for _ in old]
    for block in reused:
        with use(S, write=block):
            kernels.fill(S.handle, block.ptr, 0xDDDD, WORDS)
    with use(T, read=out):
        seen = words_at(out.ptr, WORDS, T)
    kept = [words_at(block.ptr, WORDS, S) for block in reused]
    check(cuda.cuCtxSynchronize())
    host.close()
    assert {block.ptr for block in reused} == set(old), "the memory did not come back: nothing was tested"
    assert seen == [outcome(1000, 2000)] * WORDS
    assert kept == [[0xDDDD] * WORDS] * 2


@pytest.mark.promise(213)
@pytest.mark.parametrize("naming", NAMINGS)
@pytest.mark.parametrize("operator", OPERATORS)
def test_an_operator_survives_drop_and_reuse(kernels, operator, naming):
    for number, policy in enumerate(SCHEDULES):
        if SIMULATED:
            sim.simulator().set_policy(policy, seed=number)
        drop_and_reuse(kernels, operator, naming)


@pytest.mark.simulator
@pytest.mark.promise(213)
@pytest.mark.parametrize("dropped", [1, 4])
@pytest.mark.parametrize("operator", OPERATORS)
def test_an_operator_without_one_of_its_waits_is_noticed(kernels, driver, operator, dropped):
    """The twin: T does not wait for the operands to be made, or S not for T, which has their memory again."""
    driver.drop("cuStreamWaitEvent", dropped)
    drop_and_reuse(kernels, operator, "block")          # eager: the data is right by luck
    assert driver.races()
    driver.clear_races()


@pytest.mark.promise(213)
@pytest.mark.parametrize("foreign", ["a", "b", "both"])
@pytest.mark.parametrize("operator", OPERATORS)
def test_an_operator_rejects_untracked_buffers(kernels, operator, foreign):
    """Nothing is queued and nothing recorded; ``untracked="ignore"`` lets it through."""
    own = DeviceRuntime()
    stream = own.acquire_stream()
    theirs = int(check(cuda.cuMemAlloc(4 * WORDS)))
    block = own.allocate(4 * WORDS, stream)
    a, b = (theirs if foreign in (name, "both") else block for name in "ab")
    before = own.counters(), block.frontier
    with (pytest.raises(StreamMisuseError, match="is not tracked by") as error,
          use(stream, **uses_of(operator, a, b), runtime=own)):
        pytest.fail("it was launched")
    assert str(error.value).count("is not tracked by") == (2 if foreign == "both" else 1)
    assert (own.counters(), block.frontier) == before
    assert block.state is BlockState.LIVE
    with use(stream, **uses_of(operator, a, b), runtime=own, untracked="ignore"):
        pass
    assert own.counters()["uses"] == (foreign != "both")
    check(cuda.cuMemFree(theirs))
