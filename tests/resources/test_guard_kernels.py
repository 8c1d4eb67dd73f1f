"""The guard's kernels in PTX do what the simulated ones do: the PTX is interpreted here, instruction by instruction."""
from __future__ import annotations

import ctypes
import random
import re
from collections.abc import Iterator

import numpy as np
import pytest
from cuda.bindings import driver as cuda

from xlogmem.resources.guard_kernels import GUARD_PTX
from xlogmem.sim.kernels import check

ALL = (1 << 64) - 1
SIZES = {"u64": 64, "s64": 64, "b64": 64, "u32": 32, "b32": 32, "u8": 8}
NAMES = ("base", "user", "user_end", "seed", "poison", "first", "count", "gap_at", "gap", "select", "blocks")
TYPES = (ctypes.c_uint64,) * 9 + (ctypes.c_uint32,) * 2
CANARY, TOTAL = 256, 1280


def signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def low(value: int, size: int) -> int:
    return value & ((1 << size) - 1)


COUNTING = ("clz", "popc")                              # of 64 bits, whatever the result is
ARITHMETIC = {"add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b,
              "and": lambda a, b: a & b,
              "or": lambda a, b: a | b, "xor": lambda a, b: a ^ b, "shl": lambda a, b: a << min(b, 64),
              "shr": lambda a, b: a >> min(b, 64), "min": lambda a, b: min(signed(a), signed(b)),
              "max": lambda a, b: max(signed(a), signed(b)), "mov": lambda a: a, "cvt": lambda a: a,
              "not": lambda a: ~a,
              "mad": lambda a, b, c: a * b + c, "brev": lambda a: int(f"{a:064b}"[::-1], 2),
              "clz": lambda a: 64 - a.bit_length(), "popc": lambda a: a.bit_count()}
COMPARE = {"ge": lambda a, b: a >= b, "lt": lambda a, b: a < b, "eq": lambda a, b: a == b, "ne": lambda a, b: a != b}


class Kernel:
    """One entry of the PTX; `memory` is by byte, shared memory by address from 0."""

    def __init__(self, name: str) -> None:
        body = GUARD_PTX.split(f".entry {name}")[1].split("\n{")[1].split("\n}")[0]
        self.code: list[tuple[str, ...]] = []
        self.labels: dict[str, int] = {}
        for line in body.splitlines():
            line = line.split("//")[0].strip()
            if line.endswith(":"):
                self.labels[line[:-1]] = len(self.code)
            elif line and not line.startswith("."):
                self.code.append(tuple(re.findall(r"@!?%\w+|\[[^\]]+\]|[%\w.\-]+", line)))

    def run(self, parameters: dict[str, int], shape: tuple[int, int], memory: dict[int, int]) -> None:
        blocks, width = shape
        for block in range(blocks):
            shared: dict[int, int] = {}
            threads = [Thread(self, parameters, (block, width, thread), memory, shared).run()
                       for thread in range(width)]
            while threads:                              # from one barrier to the next
                threads = [thread for thread in threads if next(thread, "ended") != "ended"]


class Thread:
    """One thread of a launch; `place` is its block, the threads of a block, and its number."""

    def __init__(self, kernel: Kernel, parameters: dict[str, int], place: tuple[int, int, int],
                 memory: dict[int, int], shared: dict[int, int]) -> None:
        self.kernel, self.parameters, self.memory, self.shared = kernel, parameters, memory, shared
        self.registers: dict[str, int] = dict(zip(("%ctaid.x", "%ntid.x", "%tid.x"), place, strict=True), found=0)

    def value(self, text: str) -> int:
        return self.registers[text] if text in self.registers else int(text, 0) & ALL

    def address(self, text: str) -> int:
        name, _, offset = text[1:-1].partition("+")
        return self.value(name) + int(offset or 0)

    def run(self) -> Iterator[str]:
        at = 0
        while at < len(self.kernel.code):
            words = self.kernel.code[at]
            at += 1
            if words[0].startswith("@"):
                if self.registers[words[0].lstrip("@!")] == words[0].startswith("@!"):
                    continue
                words = words[1:]
            name, *what = words[0].split(".")
            if name == "ret":
                return
            if name == "bra":
                at = self.kernel.labels[words[1]]
            elif name == "bar":
                yield "barrier"
            elif name == "st":
                self.store(what, words)
            elif name == "ld":
                self.registers[words[1]] = self.load(what, words[2])
            elif name == "atom":
                self.registers[words[1]] = self.atomic(what, words)
            elif name != "membar":
                self.registers[words[1]] = self.compute(name, what, words[2:])

    def load(self, what: list[str], source: str) -> int:
        if what[0] == "param":
            return self.parameters[source[1:-1]]
        if what[0] == "shared":
            return self.shared[self.address(source)]
        return sum(self.memory[self.address(source) + i] << 8 * i for i in range(SIZES[what[-1]] // 8))

    def store(self, what: list[str], words: tuple[str, ...]) -> None:
        target, value = self.address(words[1]), self.value(words[2])
        if what[0] == "shared":
            self.shared[target] = value
        else:
            self.memory.update({target + i: value >> 8 * i & 255 for i in range(SIZES[what[-1]] // 8)})

    def atomic(self, what: list[str], words: tuple[str, ...]) -> int:
        place, operand = self.address(words[2]), self.value(words[3])
        old = self.shared[place]
        self.shared[place] = min(old, operand) if what[1] == "min" else old + operand
        return old

    def compute(self, name: str, what: list[str], words: tuple[str, ...]) -> int:
        if name == "selp":
            return self.value(words[0] if self.registers[words[2]] else words[1])
        values = [self.value(word) for word in words]
        size = SIZES[what[0]] if name in ("mov", "cvt") else 64 if "wide" in what else SIZES[what[-1]]
        if name == "setp":
            return COMPARE[what[0]](*(low(value, size) for value in values))
        return low(ARITHMETIC[name](*values), size if name not in COUNTING else 64)


class Driver:
    """The same kernels where the tests run: simulated, or on a GPU."""

    def __init__(self) -> None:
        self.module = check(cuda.cuModuleLoadData(GUARD_PTX.encode() + b"\0"))
        self.base = int(check(cuda.cuMemAlloc(TOTAL)))
        self.result = int(check(cuda.cuMemHostAlloc(16 * 64, 0)))

    def launch(self, name: str, parameters: dict[str, int], blocks: int, width: int) -> None:
        function = check(cuda.cuModuleGetFunction(self.module, name.encode()))
        values, types = tuple(parameters[of] for of in NAMES), TYPES
        if name.endswith("check"):
            values, types = (self.result, *values), (ctypes.c_uint64, *TYPES)
        check(cuda.cuLaunchKernel(function, blocks, 1, 1, width, 1, 1, 0, 0, (values, types), 0))
        check(cuda.cuCtxSynchronize())

    def put(self, content: bytes) -> None:
        check(cuda.cuMemcpyHtoD(self.base, content, TOTAL))

    def get(self) -> bytes:
        content = bytearray(TOTAL)
        check(cuda.cuMemcpyDtoH(content, self.base, TOTAL))
        return bytes(content)

    def results(self, blocks: int) -> np.ndarray:
        words = (ctypes.c_uint64 * (8 * blocks)).from_address(self.result)
        return np.array(words, np.uint64).reshape(blocks, 8)[:, :7]

    def close(self) -> None:
        check(cuda.cuMemFree(self.base))
        check(cuda.cuMemFreeHost(self.result))
        check(cuda.cuModuleUnload(self.module))


@pytest.fixture
def real(_context):
    real = Driver()
    yield real
    real.close()


def case(rng: random.Random, base: int) -> tuple[dict[str, int], int, int]:
    """Parameters as the guard computes them, and the shape of the launch."""
    nbytes = rng.choice([1, 3, 8, 100, 255, 256, 500, 767, 768])
    select = rng.choice([1, 2, 3])
    inside, front = nbytes // 8, CANARY // 8
    total = (2 * CANARY + (nbytes + 255) // 256 * 256) // 8
    parameters = {"base": base, "user": base + CANARY, "user_end": base + CANARY + nbytes, "seed": rng.getrandbits(64),
                  "poison": 0xDDDDDDDDDDDDDDDD, "first": front if select == 2 else 0,
                  "count": (nbytes + 7) // 8 if select == 2 else total - inside if select == 1 else total,
                  "gap_at": front if select == 1 else ALL, "gap": 8 * inside if select == 1 else 0, "select": select}
    blocks = rng.choice([1, 2, 3])
    return parameters | {"blocks": blocks}, blocks, rng.choice([8, 16])


@pytest.mark.parametrize("seed", range(30))
def test_ptx_and_the_driver_agree(real, seed):
    rng = random.Random(seed)
    parameters, blocks, width = case(rng, real.base)
    before = rng.randbytes(TOTAL)
    real.put(before)
    memory = {real.base + i: byte for i, byte in enumerate(before)}
    real.launch("xlogmem_guard_fill", parameters, blocks, width)
    Kernel("xlogmem_guard_fill").run(parameters, (blocks, width), memory)
    after = real.get()
    assert after == bytes(memory[real.base + i] for i in range(TOTAL))
    assert after != before
    damaged = bytearray(after)
    for i in rng.sample(range(TOTAL), rng.choice([0, 1, 5, 300])):
        damaged[i] ^= rng.randrange(1, 256)
    real.put(bytes(damaged))
    memory = {real.base + i: byte for i, byte in enumerate(damaged)}
    real.launch("xlogmem_guard_check", parameters, blocks, width)
    Kernel("xlogmem_guard_check").run(parameters | {"result": 64}, (blocks, width), memory)
    interpreted = np.array([[sum(memory[64 + 64 * block + 8 * i + k] << 8 * k for k in range(8)) for i in range(7)]
                            for block in range(blocks)], np.uint64)
    seen = real.results(blocks)
    assert (interpreted[:, 6] == 1).all()
    assert (seen[:, 6] == 1).all()                      # the simulated kernel leaves all findings to one thread block
    assert (interpreted[:, :3].min(axis=0) == seen[:, :3].min(axis=0)).all()
    assert (interpreted[:, 3:6].sum(axis=0) == seen[:, 3:6].sum(axis=0)).all()
    wrong = [i for i in range(TOTAL) if damaged[i] != after[i] and selected(parameters, real.base + i)]
    assert seen[:, 3:6].sum() == len(wrong)


def selected(parameters: dict[str, int], address: int) -> bool:
    """Whether a byte is compared, said plainly."""
    end = parameters["base"] + 8 * (parameters["first"] + parameters["count"]) + parameters["gap"]
    inside = parameters["user"] <= address < parameters["user_end"]
    return bool(parameters["select"] & (2 if inside else 1)) and address < end
