"""Random tokens, capsules and interface dictionaries: documented errors only, nothing queued, nothing kept.

``python tests/garbage.py 100000 [SEED]`` runs many on the driver that is there; the suite runs a few thousand.
"""
from __future__ import annotations

import random
import sys
from collections import Counter
from typing import Any

from capsules import Producer
from cuda.bindings import driver as cuda

from xlogmem import (
    BufferToken,
    DeviceRuntime,
    DeviceState,
    StaleBufferError,
    StreamMisuseError,
    TokenError,
    from_cuda_array,
    from_dlpack,
)
from xlogmem._kernels import check

NUMBERS = (0, 1, -1, 2, 3, 7, 8, 16, 31, 64, 127, 255, 4096, 4097, 1 << 16, 1 << 31, (1 << 32) - 1, 1 << 40, (1 << 63) - 1,
           -(1 << 63), 1 << 62, -(1 << 31))
TYPESTRS = ("|u1", "<i2", "<i4", "<i8", "<f2", "<f4", "<f8", "<c8", "|b1", ">i4", "<i3", "|V8", "<M8[ns]", "", "x", "<", "|i1",
            "<U4", "|O", "<f16", "\0", "<é4")
ODD: tuple[Any, ...] = (None, "x", 1.5, b"abc", (), [], {}, object(), True, float("nan"), -1, 1 << 80, (1, 2, 3), [None])


class Array:
    def __init__(self, interface: Any) -> None:
        self.__cuda_array_interface__ = interface


class Garbage:
    """One run; `seen` counts what became of what."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.seen: Counter[str] = Counter()
        self.state = DeviceState(DeviceRuntime())
        self.stream = self.state.runtime.acquire_stream()
        self.memory = int(check(cuda.cuMemAlloc(4096)))
        self.buffer = self.state.full(64, 1, "uint8")
        self.token = self.buffer.token

    def close(self) -> None:
        del self.buffer
        self.state.runtime.reap_pending()
        assert self.state.runtime.bytes_outstanding == 0
        check(cuda.cuCtxSynchronize())
        check(cuda.cuMemFree(self.memory))

    def run(self, count: int) -> Counter[str]:
        for number in range(count):
            kind = ("token", "capsule", "interface")[number % 3]
            try:
                getattr(self, kind)()
                self.seen[f"{kind}: taken"] += 1
            except (ValueError, TypeError, BufferError, StreamMisuseError, TokenError, StaleBufferError) as error:
                self.seen[f"{kind}: {type(error).__name__}"] += 1
            if number % 64 == 0:
                self.state.runtime.reap_pending()       # lets go of what was taken
        self.state.runtime.reap_pending()
        return self.seen

    # ------------------------------------------------------------------------------------------ what is drawn
    def number(self) -> int:
        choice = self.draw.random()
        if choice < .5:
            return self.draw.choice(NUMBERS)
        return self.draw.randrange(64) if choice < .9 else self.draw.getrandbits(64) - (1 << 63)

    def address(self) -> int:
        return self.draw.choice((self.memory, self.memory, self.memory + self.draw.randrange(4096), 0, 1,
                                 self.draw.getrandbits(64), self.memory - 1, self.memory + (1 << 40)))

    def extents(self) -> tuple[int, ...]:
        if self.draw.random() < .7:
            return tuple(self.draw.randrange(9) for _ in range(self.draw.randrange(4)))
        return tuple(self.number() for _ in range(self.draw.randrange(4)))

    # ------------------------------------------------------------------------------------------ tokens
    def token_bytes(self) -> bytes:
        data = bytearray(self.token.to_bytes())
        choice = self.draw.random()
        if choice < .3:
            return self.draw.randbytes(self.draw.choice((0, 1, 4, 47, 48, 48, 48, 49, 1000)))
        if choice < .5:
            return bytes(data[:self.draw.randrange(60)])
        for _ in range(self.draw.choice((1, 1, 2, 8))):
            data[self.draw.randrange(48)] = self.draw.randrange(256)
        return bytes(data)

    def token(self) -> None:                            # replaced by a token in __init__; see _token
        raise NotImplementedError


def _token(self: Garbage) -> None:
    if self.draw.random() < .2:
        fields = [self.draw.choice((self.number(), self.draw.choice(ODD), value)) for value in self.good]
        token = BufferToken(*fields)
        assert BufferToken.from_bytes(token.to_bytes()) == token
    else:
        token = BufferToken.from_bytes(self.token_bytes())
    assert token.resolve() is self.buffer


if __name__ == "__main__":
    sys.exit("see main()")
