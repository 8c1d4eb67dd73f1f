"""A machine for kernels of PTX with one thread, which notes through which parameters memory is accessed.

It knows the instructions that `ptx_programs` makes, and nothing of how xlogmem reads PTX.  Each parameter that is a
pointer has a megabyte of its own, so an address says which parameter it came from.
"""
from __future__ import annotations

import re
from dataclasses import dataclass, field

MASK = (1 << 64) - 1
FIRST_BLOCK, LOCAL, SHARED = 0x10, 0x900, 0xA00          # megabytes
OPERAND = re.compile(r"\[[^\]]*\]|\{[^}]*\}|[^,\s]+")


def block_address(number: int) -> int:
    return (FIRST_BLOCK + number) << 20 | 0x8000


@dataclass
class Machine:
    """`parameters` is the parameter space, `places` where each named parameter begins in it."""

    parameters: bytes
    places: dict[str, int]
    registers: dict[str, int] = field(default_factory=dict)
    memory: dict[int, int] = field(default_factory=dict)            # bytes that were stored; all others are 0
    read: set[int] = field(default_factory=set)                     # numbers of blocks
    written: set[int] = field(default_factory=set)
    touched: dict[int, str] = field(default_factory=dict)           # by address: "r", "w" or both

    def run(self, lines: list[str]) -> None:
        for line in lines:
            words = line.rstrip(";").split(None, 1)
            if words[0].startswith("@"):                            # whether it is executed may not matter
                words = words[1].split(None, 1)
            self.execute(words[0].split("."), OPERAND.findall(words[1]) if len(words) > 1 else [])

    # -- values
    def value(self, name: str) -> int:
        if name.startswith("%"):
            return self.registers.get(name, 0)
        return self.places[name] if name in self.places else int(name, 0) & MASK

    def address(self, operand: str) -> int:
        return sum(self.value(part.strip()) for part in operand[1:-1].split("+")) & MASK

    def names(self, operand: str) -> list[str]:
        return [name.strip() for name in operand.strip("{}").split(",")]

    def set(self, name: str, value: int) -> None:
        self.registers[name] = value & MASK

    # -- memory
    def note(self, address: int, numbers: set[int]) -> None:
        number = (address >> 20) - FIRST_BLOCK
        if 0 <= number < 0x100:
            numbers.add(number)
            self.touched[address] = self.touched.get(address, "") + ("r" if numbers is self.read else "w")

    def fetch(self, address: int, size: int) -> int:
        return sum(self.memory.get(address + i, 0) << 8 * i for i in range(size))

    def store(self, address: int, size: int, value: int) -> None:
        for i in range(size):
            self.memory[address + i] = value >> 8 * i & 255

    # -- instructions
    def execute(self, words: list[str], operands: list[str]) -> None:
        size = next((int(word[1:]) // 8 for word in reversed(words) if re.fullmatch(r"[busf]\d+", word)), 8)
        getattr(self, "do_" + words[0])(words, operands, size)

    def where(self, words: list[str], operand: str) -> int:
        space = LOCAL << 20 if "local" in words else SHARED << 20 if "shared" in words else 0
        return self.address(operand) + space

    def do_ld(self, words: list[str], operands: list[str], size: int) -> None:
        at = self.where(words, operands[1])
        for i, name in enumerate(self.names(operands[0])):
            if "param" in words:
                self.set(name, int.from_bytes(self.parameters[at + i * size:at + (i + 1) * size], "little"))
            else:
                self.note(at, self.read)
                self.set(name, self.fetch(at + i * size, size))

    def do_st(self, words: list[str], operands: list[str], size: int) -> None:
        at = self.where(words, operands[0])
        self.note(at, self.written)
        for i, name in enumerate(self.names(operands[1])):
            self.store(at + i * size, size, self.value(name))

    def do_atom(self, words: list[str], operands: list[str], size: int) -> None:
        at = self.where(words, operands[1])
        before = self.fetch(at, size)
        self.do_red(words, operands[1:], size)
        self.set(operands[0], before)

    def do_red(self, words: list[str], operands: list[str], size: int) -> None:
        at = self.where(words, operands[0])
        self.note(at, self.read)
        self.note(at, self.written)
        value = self.value(operands[1])
        self.store(at, size, value if "exch" in words else self.fetch(at, size) + value)

    def do_cp(self, words: list[str], operands: list[str], size: int) -> None:
        self.note(self.address(operands[1]), self.read)

    def do_call(self, words: list[str], operands: list[str], size: int) -> None:
        """The one function that is called writes through its argument."""
        self.note(self.value(operands[-1].strip("()")), self.written)

    def do_mov(self, words: list[str], operands: list[str], size: int) -> None:
        names = self.names(operands[0])
        if operands[1].startswith("{"):
            low, high = self.names(operands[1])
            self.set(names[0], self.value(low) & 0xFFFFFFFF | self.value(high) << 32)
        elif len(names) == 2:
            self.set(names[0], self.value(operands[1]) & 0xFFFFFFFF)
            self.set(names[1], self.value(operands[1]) >> 32)
        else:
            self.set(names[0], self.value(operands[1]))

    do_cvta = do_cvt = do_mov

    def do_selp(self, words: list[str], operands: list[str], size: int) -> None:
        self.set(operands[0], self.value(operands[1] if self.value(operands[3]) else operands[2]))

    def do_setp(self, words: list[str], operands: list[str], size: int) -> None:
        self.set(operands[0], int(self.value(operands[1]) != self.value(operands[2])))

    def binary(self, operands: list[str], result: int) -> None:
        self.set(operands[0], result)

    def do_add(self, words: list[str], operands: list[str], size: int) -> None:
        self.binary(operands, self.value(operands[1]) + self.value(operands[2]))

    def do_sub(self, words: list[str], operands: list[str], size: int) -> None:
        self.binary(operands, self.value(operands[1]) - self.value(operands[2]))

    def do_mul(self, words: list[str], operands: list[str], size: int) -> None:
        self.binary(operands, self.value(operands[1]) * self.value(operands[2]))

    def do_mad(self, words: list[str], operands: list[str], size: int) -> None:
        self.binary(operands, self.value(operands[1]) * self.value(operands[2]) + self.value(operands[3]))

    def do_and(self, words: list[str], operands: list[str], size: int) -> None:
        self.binary(operands, self.value(operands[1]) & self.value(operands[2]))

    def do_xor(self, words: list[str], operands: list[str], size: int) -> None:
        self.binary(operands, self.value(operands[1]) ^ self.value(operands[2]))

    def do_max(self, words: list[str], operands: list[str], size: int) -> None:
        self.binary(operands, max(self.value(operands[1]), self.value(operands[2])))

    def do_ret(self, words: list[str], operands: list[str], size: int) -> None:
        pass
