"""A machine for code as nvdisasm prints it, with one thread, which notes through which words memory is accessed.

It knows the instructions that `sass_programs` makes, and nothing of how xlogmem reads code.  Each word that is a
pointer has memory of its own, so an address says which word it came from; both halves of it do.
"""
from __future__ import annotations

import random
import re
from dataclasses import dataclass, field

ONES, MASK = (1 << 32) - 1, (1 << 64) - 1
BASE, PLACE, STACK = 0x210, 0x198, 0x28                  # in the bank of constants
PARAMETERS = 0x0700_0000_0000                            # the address of the parameters
FIRST_BLOCK = 0x10                                       # upper halves of addresses; lower ones are as far apart
OPERAND = re.compile(r"[^,\[\]]*(?:\[[^\]]*\][^,\[\]]*)*")
MOST_STEPS = 400


def block_address(number: int) -> int:
    return (FIRST_BLOCK + number) << 32 | (1 + number) << 24


def block_of(address: int) -> int:
    return (address >> 32) - FIRST_BLOCK


@dataclass
class Machine:
    """`parameters` is the parameter space; what predicates say is chance."""

    parameters: bytes
    chance: random.Random
    registers: dict[str, int] = field(default_factory=dict)
    predicates: dict[str, bool] = field(default_factory=dict)
    memory: dict[tuple[str, int], int] = field(default_factory=dict)    # bytes that were stored; all others are 0
    read: set[int] = field(default_factory=set)                         # numbers of blocks
    written: set[int] = field(default_factory=set)
    touched: set[int] = field(default_factory=set)                      # addresses in blocks
    compares: bool = False                                              # what is compared with zero decides

    def run(self, lines: list[str], jumps: dict[int, list[int]]) -> None:
        at, steps = 0, 0
        while at < len(lines) and steps < MOST_STEPS:
            steps += 1
            words = lines[at].split(None, 1)
            here, at = at, at + 1
            if words[0].startswith("@"):
                if not self.holds(words[0][1:]):
                    continue
                words = words[1].split(None, 1)
            operands = [one.strip() for one in OPERAND.findall(words[1]) if one.strip()] if len(words) > 1 else []
            name = words[0].split(".")[0]
            if name == "EXIT":
                return
            if name in ("BRA", "CALL"):
                at = int(operands[-1], 16) // 16
            elif name == "RET":
                at = self.value(operands[0].split()[0]) // 16
            elif name == "BRX":
                at = self.chance.choice(jumps[here])
            else:
                getattr(self, name.lower())(words[0], operands)

    # -- values
    def holds(self, name: str) -> bool:
        if name.startswith("!"):
            return not self.holds(name[1:])
        return name in ("PT", "UPT") or self.predicates.setdefault(name, self.chance.random() < 0.5)

    def value(self, operand: str, half: int = 0) -> int:
        if operand.startswith("-") and not operand[1:].isdigit() and not operand.startswith("-0x"):
            return -self.value(operand[1:], half) & ONES
        if operand.startswith("~"):
            return ~self.value(operand[1:], half) & ONES
        if operand in ("RZ", "URZ"):
            return 0
        if operand.startswith("c["):
            return self.constant(operand, half)
        if operand.startswith(("R", "UR")):
            name, number = re.match(r"(U?R)(\d+)", operand).groups()    # type: ignore[union-attr]
            return self.registers.get(f"{name}{int(number) + half}", 0)
        return int(operand, 0) & ONES if half == 0 else 0

    def wide(self, operand: str) -> int:
        if operand.startswith("-"):
            return -self.wide(operand[1:]) & MASK
        return self.value(operand) | self.value(operand, 1) << 32

    def constant(self, operand: str, half: int) -> int:
        place = sum(self.value(part) for part in re.findall(r"\[([^\]]*)\]", operand)[1].split("+")) + 4 * half
        if place in (PLACE, PLACE + 4):
            return PARAMETERS >> 8 * (place - PLACE) & ONES
        return int.from_bytes(self.parameters[place - BASE:place - BASE + 4].ljust(4, b"\0"), "little") \
            if place >= BASE else 0

    def set(self, register: str, value: int, half: int = 0) -> None:
        if register not in ("RZ", "URZ"):
            name, number = re.match(r"(U?R)(\d+)", register).groups()   # type: ignore[union-attr]
            self.registers[f"{name}{int(number) + half}"] = value & ONES

    def set_wide(self, register: str, value: int) -> None:
        self.set(register, value)
        self.set(register, value >> 32, 1)

    # -- instructions
    def ldc(self, name: str, operands: list[str]) -> None:
        values = [self.value(operands[1], half) for half in range(self.width(name))]
        for half, value in enumerate(values):
            self.set(operands[0], value, half)

    uldc = ldc

    def mov(self, _: str, operands: list[str]) -> None:
        self.set(operands[0], self.value(operands[1]))

    umov = r2ur = shfl = mov

    def iadd3(self, name: str, operands: list[str]) -> None:
        carry_out = operands.pop(1) if operands[1].startswith("P") else None
        extended = ".X" in name
        total = sum(self.value(one.replace("-", "~")) + (one.startswith("-")) for one in operands[1:4])
        total += self.holds(operands[4]) if extended else 0
        self.set(operands[0], total)
        if carry_out:
            self.predicates[carry_out] = bool(total >> 32)

    def iadd(self, _: str, operands: list[str]) -> None:
        self.set_wide(operands[0], self.wide(operands[1]) + self.wide(operands[2]))

    def viadd(self, _: str, operands: list[str]) -> None:
        self.set(operands[0], self.value(operands[1]) + self.value(operands[2]))

    def imad(self, name: str, operands: list[str]) -> None:
        product = self.value(operands[1]) * self.value(operands[2])
        if ".WIDE" in name:
            self.set_wide(operands[0], product + self.wide(operands[3]))
        else:
            self.set(operands[0], product + self.value(operands[3]))

    def lea(self, name: str, operands: list[str]) -> None:
        if ".HI" in name:
            to, low, added, high, by, carry = operands
            scaled = (self.value(low) | self.value(high) << 32) << int(by, 0) >> 32
            self.set(to, (scaled & ONES) + self.value(added) + self.holds(carry))
        else:
            to, carry, low, added, by = operands
            total = (self.value(low) << int(by, 0) & ONES) + self.value(added)
            self.predicates[carry] = bool(total >> 32)
            self.set(to, total)

    def sel(self, _: str, operands: list[str]) -> None:
        self.set(operands[0], self.value(operands[1] if self.holds(operands[3]) else operands[2]))

    def lop3(self, _: str, operands: list[str]) -> None:
        a, b = self.value(operands[1]), self.value(operands[2])
        self.set(operands[0], {"0xc0": a & b, "0xfc": a | b, "0x3c": a ^ b}[operands[4]])

    def shf(self, name: str, operands: list[str]) -> None:
        both, by = self.value(operands[1]) | self.value(operands[3]) << 32, int(operands[2], 0)
        if ".L." in name:
            self.set(operands[0], self.value(operands[1]) << by)
        elif ".S32." in name:
            self.set(operands[0], ONES if self.value(operands[3]) >> 31 else 0)
        else:
            self.set(operands[0], both >> by)

    def prmt(self, _: str, operands: list[str]) -> None:
        given = (self.value(operands[1]) | self.value(operands[3]) << 32).to_bytes(8, "little")
        self.set(operands[0], int.from_bytes(bytes(given[int(one)] for one in operands[2][:1:-1]), "little"))

    def isetp(self, _: str, operands: list[str]) -> None:
        chance = self.chance.random() < 0.5
        self.predicates[operands[0]] = self.value(operands[2]) != self.value(operands[3]) if self.compares else chance

    def i2f(self, _: str, operands: list[str]) -> None:
        self.set_wide(operands[0], self.chance.getrandbits(20))

    def nop(self, _: str, operands: list[str]) -> None:
        pass

    # -- memory
    def width(self, name: str) -> int:
        return 4 if ".128" in name else 2 if ".64" in name else 1

    def address(self, operand: str) -> int:
        total = 0
        for part in re.findall(r"\[([^\]]*)\]", operand)[-1].split("+"):
            wide = part.startswith(("R", "UR")) and ".U32" not in part
            total += self.wide(part) if wide else self.value(part)
        return total & MASK

    def note(self, address: int, numbers: set[int]) -> None:
        number = block_of(address)
        if 0 <= number < 0x100:
            numbers.add(number)
            self.touched.add(address)

    def fetch(self, space: str, address: int) -> int:
        if space == "G" and 0 <= address - PARAMETERS < len(self.parameters):
            at = address - PARAMETERS
            return int.from_bytes(self.parameters[at:at + 4].ljust(4, b"\0"), "little")
        return sum(self.memory.get((space, address + i), 0) << 8 * i for i in range(4))

    def store(self, space: str, address: int, value: int) -> None:
        for i in range(4):
            self.memory[space, address + i] = value >> 8 * i & 0xFF

    def transfer(self, space: str, name: str, operands: list[str], loads: bool, stores: bool) -> None:
        operands = [one for one in operands if one != "PT"]
        place = next(i for i, one in enumerate(operands) if "[" in one)
        address, width = self.address(operands[place]), self.width(name)
        if space == "L":
            address &= ONES
        if space == "G":
            for numbers, is_done in ((self.read, loads), (self.written, stores)):
                if is_done:
                    self.note(address, numbers)
        found = [self.fetch(space, address + 4 * half) for half in range(width)]
        if stores:
            given = [self.value(operands[place + 1], half) for half in range(width)]
            for half, value in enumerate(given):
                self.store(space, address + 4 * half, value)
        for half, value in enumerate(found if place else []):
            self.set(operands[0], value, half)

    def ldg(self, name: str, operands: list[str]) -> None:
        self.transfer("G", name, operands, True, False)

    def stg(self, name: str, operands: list[str]) -> None:
        self.transfer("G", name, operands, False, True)

    def atomg(self, name: str, operands: list[str]) -> None:
        self.transfer("G", name, operands, True, True)

    ld, st, redg = ldg, stg, atomg

    def lds(self, name: str, operands: list[str]) -> None:
        self.transfer("S", name, operands, True, False)

    def sts(self, name: str, operands: list[str]) -> None:
        self.transfer("S", name, operands, False, True)

    def ldl(self, name: str, operands: list[str]) -> None:
        self.transfer("L", name, operands, True, False)

    def stl(self, name: str, operands: list[str]) -> None:
        self.transfer("L", name, operands, False, True)
