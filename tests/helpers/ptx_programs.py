"""Random kernels of PTX: what compilers do with pointers, and some of what they could."""
from __future__ import annotations

import random

from ptx_machine import Machine, block_address


class Kernel:
    """A kernel with parameters that are pointers, numbers and structures of both.

    `pointers` has the offsets of the words that are pointers, and the numbers of their blocks; `text` is PTX.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.lines: list[str] = []
        self.declarations: list[str] = []
        self.places: dict[str, int] = {}
        self.pointers: dict[int, int] = {}
        self.numbers: dict[int, int] = {}           # offsets of numbers, and their sizes
        self.addresses: list[str] = []              # registers that are addresses
        self.counts: list[str] = []                 # that are small numbers, of 64 bits
        self.end = self.register_count = 0
        for _ in range(self.random.randint(2, 5)):
            self.parameter()
        self.load_parameters()
        for _ in range(self.random.randint(3, 14)):
            self.random.choice(self.STEPS)(self)
        self.lines.append("ret;")

    @property
    def text(self) -> str:
        body = "\n".join(f"\t{line}" for line in self.lines)
        return (".version 8.0\n.target sm_90\n.address_size 64\n\n.visible .entry k(\n\t"
                + ",\n\t".join(self.declarations) + f"\n)\n.maxntid 128, 1, 1\n{{\n\t.reg .b64 %r<99>;\n{body}\n}}\n")

    def machine(self, seed: int) -> Machine:
        chance = random.Random(seed)
        space = bytearray(self.end)
        for offset, block in self.pointers.items():
            space[offset:offset + 8] = block_address(block).to_bytes(8, "little")
        for offset, size in self.numbers.items():
            space[offset:offset + size] = chance.choice([0, 1, 3, 8]).to_bytes(size, "little")
        machine = Machine(bytes(space), self.places)
        machine.run(self.lines)
        return machine

    # -- parameters
    def place(self, size: int) -> int:
        begin = (self.end + size - 1) // size * size
        self.end = begin + size
        return begin

    def pointer(self) -> int:
        at = self.place(8)
        self.pointers[at] = len(self.pointers)
        return at

    def parameter(self) -> None:
        name, kind = f"k_param_{len(self.declarations)}", self.random.random()
        if kind < 0.55:
            self.places[name] = self.pointer()
            marked = self.random.choice([".u64", ".u64", ".u64 .ptr .global .align 4"])
            self.declarations.append(f".param {marked} {name}")
        elif kind < 0.75:
            size = self.random.choice([4, 8])
            self.places[name] = self.place(size)
            self.numbers[self.places[name]] = size
            self.declarations.append(f".param .u{8 * size} {name}")
        else:
            words = self.random.randint(1, 4)
            self.end = (self.end + 7) // 8 * 8
            self.places[name] = self.end
            for _ in range(words):
                if self.random.random() < 0.6:
                    self.pointer()
                else:
                    self.numbers[self.place(8)] = 8
            self.declarations.append(f".param .align 8 .b8 {name}[{8 * words}]")

    def load_parameters(self) -> None:
        for name, begin in self.places.items():
            ends = [place for place in self.places.values() if place > begin] + [self.end]
            for at in sorted([*self.pointers, *self.numbers]):
                if begin <= at < min(ends):
                    self.load_parameter(name, at - begin, at)

    def load_parameter(self, name: str, offset: int, at: int) -> None:
        register = self.new()
        if at in self.pointers:
            if self.random.random() < 0.2:
                base = self.new()
                self.add(f"mov.b64 {base}, {name};")
                if self.random.random() < 0.5:
                    self.add(f"add.s64 {base}, {base}, {offset};")
                    offset = 0
                self.add(f"ld.param.u64 {register}, [{base}+{offset}];")
            else:
                self.add(f"ld.param.u64 {register}, [{name}{f'+{offset}' if offset else ''}];")
            if self.random.random() < 0.6:
                self.add(f"cvta.to.global.u64 {register}g, {register};")
                register += "g"
            self.addresses.append(register)
        elif self.numbers[at] == 4:
            self.add(f"ld.param.u32 {register}n, [{name}];")
            self.add(f"cvt.s64.s32 {register}, {register}n;")
            self.counts.append(register)
        else:
            self.add(f"ld.param.u64 {register}, [{name}{f'+{offset}' if offset else ''}];")
            self.counts.append(register)

    # -- steps
    def new(self) -> str:
        self.register_count += 1
        return f"%r{self.register_count}"

    def add(self, line: str) -> None:
        self.lines.append(line)

    def address(self) -> str:
        return self.random.choice(self.addresses) if self.addresses else "4096"

    def count(self) -> str:
        return self.random.choice(self.counts) if self.counts and self.random.random() < 0.8 else "3"

    def space(self) -> str:
        return self.random.choice([".global", ".global", ""])

    def load(self) -> None:
        form, register = self.random.random(), self.new()
        if form < 0.3:
            self.add(f"ld{self.space()}.v2.u32 {{{register}, {register}b}}, [{self.address()}+8];")
        elif form < 0.5:
            self.add(f"ld.global.nc.u64 {register}, [{self.address()}];")
        else:
            self.add(f"ld{self.space()}.u32 {register}, [{self.address()}+4];")
        if self.random.random() < 0.3:
            self.counts.append(register)            # what was loaded is a number

    def store(self) -> None:
        if self.random.random() < 0.3:
            self.add(f"st{self.space()}.v2.u32 [{self.address()}+16], {{{self.count()}, {self.count()}}};")
        else:
            predicate = self.random.choice(["", "", "@%p0 "])
            self.add(f"{predicate}st{self.space()}.u32 [{self.address()}+24], {self.count()};")

    def atomic(self) -> None:
        if self.random.random() < 0.5:
            self.add(f"atom.global.add.u32 {self.new()}, [{self.address()}+32], 1;")
        else:
            self.add(f"red.global.add.u32 [{self.address()}+32], {self.count()};")

    def move(self) -> None:
        register, scaled = self.new(), self.new()
        form = self.random.randrange(7)
        if form == 0:
            self.add(f"mul.wide.s32 {scaled}, {self.count()}, 4;")
            self.add(f"add.s64 {register}, {self.address()}, {scaled};")
        elif form == 1:
            self.add(f"mad.lo.s64 {register}, {self.count()}, 8, {self.address()};")
        elif form == 2:
            self.add(f"add.s64 {register}, {self.address()}, {self.count()};")
        elif form == 3:
            self.add(f"add.s64 {register}, {self.count()}, {self.address()};")
        elif form == 4:
            self.add(f"sub.s64 {register}, {self.address()}, {self.count()};")
        elif form == 5:
            self.add(f"and.b64 {register}, {self.address()}, -16;")
        else:
            self.add(f"mov.b64 {{{scaled}l, {scaled}h}}, {self.address()};")
            self.add(f"mov.b64 {register}, {{{scaled}l, {scaled}h}};")
        self.addresses.append(register)

    def choose(self) -> None:
        register, predicate = self.new(), self.new()
        if self.random.random() < 0.5:
            self.add(f"setp.ne.s64 {predicate}, {self.count()}, 0;")
            self.add(f"selp.b64 {register}, {self.address()}, {self.address()}, {predicate};")
        else:
            self.add(f"max.u64 {register}, {self.address()}, {self.address()};")
        self.addresses.append(register)

    def difference(self) -> None:
        """Another one's address from the distance of two."""
        distance, register, one = self.new(), self.new(), self.address()
        if self.random.random() < 0.5:
            self.add(f"sub.s64 {distance}, {self.address()}, {one};")
            self.add(f"add.s64 {register}, {one}, {distance};")
        else:
            self.add(f"xor.b64 {distance}, {self.address()}, {one};")
            self.add(f"xor.b64 {register}, {distance}, {one};")
        self.addresses.append(register)

    def hand_over(self) -> None:
        """An address through memory, or to a function."""
        register, form = self.new(), self.random.random()
        if form < 0.3:
            self.add(f"st.local.u64 [64], {self.address()};")
            self.add(f"ld.local.u64 {register}, [64];")
        elif form < 0.5:
            self.add(f"st.shared.v2.u64 [128], {{{self.count()}, {self.address()}}};")
            self.add(f"ld.shared.u64 {register}, [136];")
        elif form < 0.8:
            table = self.address()
            self.add(f"st.global.u64 [{table}+64], {self.address()};")
            self.add(f"ld.global.u64 {register}, [{table}+64];")
        else:
            self.add(f"call.uni writes, ({self.address()});")
            return
        self.addresses.append(register)

    def copy(self) -> None:
        self.add(f"cp.async.ca.shared.global [512], [{self.address()}], 16;")

    STEPS = (load, load, load, store, store, store, atomic, move, move, move, choose, difference, hand_over, copy)
