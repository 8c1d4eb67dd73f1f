"""Random tokens, capsules and interface dictionaries: documented errors only, nothing queued, nothing kept.

``python tests/helpers/fuzz.py 100000 [SEED]`` runs many on the driver that is there; the suite runs a few thousand.
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
from xlogmem.sim.kernels import check

NUMBERS = (0, 1, -1, 2, 3, 7, 8, 16, 31, 64, 127, 255, 4096, 4097, 1 << 16, 1 << 31, (1 << 32) - 1, 1 << 40,
           (1 << 63) - 1, -(1 << 63), 1 << 62, -(1 << 31))
TYPESTRS = ("|u1", "<i2", "<i4", "<i8", "<f2", "<f4", "<f8", "<c8", "|b1", ">i4", "<i3", "|V8", "<M8[ns]", "", "x", "<",
            "|i1", "<U4", "|O", "<f16", "\0", "<é4")
ODD: tuple[Any, ...] = (None, "x", 1.5, b"abc", (), [], {}, object(), True, float("nan"), -1, 1 << 80, (1, 2, 3),
                        [None])


class Array:
    def __init__(self, interface: Any) -> None:
        self.__cuda_array_interface__ = interface


class Fuzz:
    """One run; `seen` counts what became of what."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.seen: Counter[str] = Counter()
        self.state = DeviceState(DeviceRuntime())
        self.stream = self.state.runtime.acquire_stream()
        self.memory = int(check(cuda.cuMemAlloc(4096)))
        self.buffer = self.state.full(64, 1, "uint8")
        self.good = self.buffer.token

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
                self.state.runtime.reap_pending()       # releases what was imported
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

    # ------------------------------------------------------------------------------------------ what is given
    def token(self) -> None:
        draw = self.draw.random()
        if draw < .2:
            odd = self.number(), self.draw.choice(ODD)
            token = BufferToken(*(self.draw.choice((*odd, value)) for value in self.good))
            assert BufferToken.from_bytes(token.to_bytes()) == token
        else:
            data = bytearray(self.good.to_bytes())
            if draw < .5:
                data = bytearray(self.draw.randbytes(self.draw.choice((0, 1, 4, 47, 48, 48, 48, 49, 1000))))
            for _ in range(self.draw.choice((0, 1, 1, 2, 8)) if data else 0):
                data[self.draw.randrange(len(data))] = self.draw.randrange(256)
            token = BufferToken.from_bytes(bytes(data[:self.draw.choice((48, 48, 48, 47, 10))]))
        assert token.resolve() is self.buffer

    def capsule(self) -> None:
        shape, strides = self.extents(), None
        if self.draw.random() < .5:
            strides = tuple(self.number() for _ in shape)
        fields: dict[str, int] = {}
        for name, bits in (("device_type", 31), ("device_id", 31), ("code", 8), ("bits", 8), ("lanes", 16),
                           ("byte_offset", 64)):
            if self.draw.random() < .15:
                fields[name] = self.number() % (1 << bits)
        if self.draw.random() < .5:
            fields |= {"code": self.draw.randrange(15), "bits": self.draw.choice((1, 4, 8, 16, 32, 64, 128))}
        if self.draw.random() < .1:                     # fewer than there are, or too many to be read
            fields["ndim"] = self.draw.choice((-1, 0, 65, 1 << 30, -(1 << 31)))
        version = self.draw.choice((None, (1, 0), (1, 9), (0, 0), (2, 0), (1 << 31, 3)))
        name = self.draw.choice((None, None, None, None, b"dltensor", b"x", b"", b"used_dltensor", b"\xff"))
        if name == b"dltensor":
            version = None
        producer = Producer(self.address(), None if self.draw.random() < .03 else shape, strides, version=version,
                            flags=self.draw.getrandbits(64), name=name, **fields)
        given = producer.capsule() if self.draw.random() < .5 else producer
        if self.draw.random() < .02:
            given = self.draw.choice(ODD)
        stream = self.draw.choice((None, self.stream, self.stream, 1))
        try:
            buffer = from_dlpack(given, stream=stream, state=self.state)
        except BaseException:
            if not producer.deleted:
                producer.forget()
            raise
        assert buffer.access() is None or buffer.access().ptr >= self.memory

    def interface(self) -> None:
        interface: Any = {"version": self.draw.choice((3, 3, 3, 2, 0)), "shape": self.extents(),
                          "typestr": self.draw.choice(TYPESTRS), "data": (self.address(), self.draw.random() < .5)}
        if self.draw.random() < .7:
            interface["stream"] = self.draw.choice((None, 1, 2, self.stream.handle, 0, -1))
        if self.draw.random() < .4:
            interface["strides"] = tuple(self.number() for _ in interface["shape"])
        for _ in range(self.draw.choice((0, 0, 1, 2))):
            key = self.draw.choice(("version", "shape", "typestr", "data", "stream", "strides", "mask", "descr"))
            odd = self.draw.choice(ODD)
            if key == "stream" and isinstance(odd, int):
                continue                                # a made-up handle crashes the driver in any query
            interface[key] = odd
        if self.draw.random() < .05 and len(interface) > 1:
            del interface[self.draw.choice(list(interface))]
        if self.draw.random() < .02:
            interface = self.draw.choice(ODD)
        buffer = from_cuda_array(Array(interface), stream=self.draw.choice((None, self.stream)), state=self.state)
        assert buffer.access() is None or buffer.access().ptr >= self.memory


def main(count: int, seed: int = 0) -> None:
    from xlogmem.commands.start import start_driver

    start_driver()
    check(cuda.cuCtxSetCurrent(check(cuda.cuDevicePrimaryCtxRetain(check(cuda.cuDeviceGet(0))))))
    fuzz = Fuzz(seed)
    for what, times in sorted(fuzz.run(count).items()):
        print(f"{times:>8}  {what}")
    fuzz.close()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
