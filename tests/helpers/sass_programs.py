"""Random kernels of machine code: what compilers do with pointers, and some of what they could."""
from __future__ import annotations

import random

from sass_machine import BASE, PLACE, STACK, Machine, block_address


class Code:
    """Code with parameters that are pointers, numbers and structures of both.

    `pointers` has the offsets of the words that are pointers, and the numbers of their blocks.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.lines: list[str] = []
        self.jumps: dict[int, list[int]] = {}
        self.parameters: list[tuple[int, int]] = []
        self.pointers: dict[int, int] = {}
        self.numbers: list[int] = []
        self.addresses: list[int] = []                  # even registers: what is there is an address, as a rule
        self.functions: list[tuple[int, str]] = []      # lines of calls and which function is meant
        end = 0
        for _ in range(self.random.randint(2, 5)):
            words = self.random.choice([1, 1, 1, 2, 3, 4])
            self.parameters.append((end, 8 * words))
            for offset in range(end, end + 8 * words, 8):
                if self.random.random() < 0.7:
                    self.pointers[offset] = len(self.pointers)
                else:
                    self.numbers.append(offset)
            end += 8 * words
        self.end = end
        self.add(f"LDC R1, c[0x0][{STACK:#x}]")
        for _ in range(2):
            self.load_word()
        self.steps(self.random.randint(4, 24), 0)
        self.add("EXIT")
        self.add_functions()

    @property
    def text(self) -> str:
        return "".join(f"        /*{16 * i:04x}*/                   {line} ;\n" for i, line in enumerate(self.lines))

    @property
    def head(self) -> str:
        places = " ".join(f"{offset}+{size}" for offset, size in self.parameters)
        jumps = " ".join(f"{16 * at}>{','.join(str(16 * to) for to in targets)}" for at, targets in self.jumps.items())
        return f"{BASE} | {places} | {jumps}"

    def machine(self, seed: int, **numbers: int) -> Machine:
        """After a run.  `numbers` are values by their offsets, as ``n16=8``; then predicates depend on them."""
        chance = random.Random(seed)
        space = bytearray(self.end)
        for offset in range(0, self.end, 8):
            value = block_address(self.pointers[offset]) if offset in self.pointers else chance.choice([0, 1, 8, 24])
            space[offset:offset + 8] = numbers.get(f"n{offset}", value).to_bytes(8, "little")
        machine = Machine(bytes(space), chance, compares=bool(numbers))
        machine.run(self.lines, self.jumps)
        return machine

    # -- what steps consist of
    def add(self, line: str, guard: str = "") -> None:
        self.lines.append(f"{guard}{line}")

    def pair(self) -> int:
        return self.random.randrange(2, 30, 2)

    def given(self) -> int:
        """An even register that should have an address in it."""
        return self.random.choice(self.addresses) if self.addresses else 2

    def made(self, register: int) -> None:
        if register in self.addresses:
            self.addresses.remove(register)
        self.addresses = [*self.addresses[-5:], register]

    def number(self) -> str:
        return f"R{self.random.randrange(30, 34)}"

    def guard(self) -> str:
        return self.random.choice(["", "", "", "@P0 ", "@!P0 ", "@P1 ", "@!P1 "])

    def word(self) -> int:
        return self.random.choice([*self.pointers, *self.pointers, *self.numbers])

    def steps(self, count: int, depth: int) -> None:
        for _ in range(count):
            step = self.random.choice(self.STEPS)
            if step not in (Code.branch, Code.loop, Code.jump):
                step(self)
            elif depth < 2:
                step(self, depth)

    # -- steps
    def load_word(self) -> None:
        to, guard, place = self.pair(), self.guard(), BASE + self.word()
        form = self.random.random()
        if form < 0.6:
            self.add(f"LDC.64 R{to}, c[0x0][{place:#x}]", guard)
        elif form < 0.8:
            self.add(f"LDC R{to}, c[0x0][{place:#x}]", guard)
            self.add(f"LDC R{to + 1}, c[0x0][{place + 4:#x}]", guard)
        else:
            self.add(f"ULDC.64 UR4, c[0x0][{place:#x}]")
            self.add(f"MOV R{to}, UR4", guard)
            self.add(f"MOV R{to + 1}, UR5", guard)
        self.made(to)

    def load_number(self) -> None:
        self.add(f"LDC {self.number()}, c[0x0][{BASE + self.word():#x}]")

    def load_by_index(self) -> None:
        arrays = [one for one in self.parameters if one[1] > 8]
        if not arrays:
            return
        to, (offset, size) = self.pair(), self.random.choice(arrays)
        index = self.random.randrange(0, size, 8)
        shift = self.random.choice([0, 0, -8, 8])
        self.add(f"MOV R34, {max(index - shift, 0):#x}")
        self.add(f"LDC.64 R{to}, c[0x0][R34+{BASE + offset + (shift if index >= shift else 0):#x}]")
        self.made(to)

    def load_by_address(self) -> None:
        to, (offset, size) = self.pair(), self.random.choice(self.parameters)
        at = self.random.randrange(0, size, 8)
        self.add(f"LDC.64 R36, c[0x0][{PLACE:#x}]")
        self.add(f"IADD3 R36, P6, R36, {offset:#x}, RZ")
        self.add("IADD3.X R37, RZ, R37, RZ, P6, !PT")
        if self.random.random() < 0.3:
            self.add(f"MOV R34, {at // 8:#x}")
            self.add("IMAD.WIDE.U32 R36, R34, 0x8, R36")
            at = 0
        self.add(f"LD.E.64 R{to}, desc[UR6][R36.64+{at:#x}]")
        self.made(to)

    def move(self) -> None:
        to, of, guard = self.pair(), self.given(), self.guard()
        name = self.random.choice(["MOV R{0}, R{1}", "PRMT R{0}, R{1}, 0x3210, RZ", "IMAD R{0}, R{1}, 0x1, RZ",
                                   "IADD3 R{0}, R{1}, RZ, RZ"])
        halves = [(to, of), (to + 1, of + 1)] if to != of + 1 else [(to + 1, of + 1), (to, of)]
        for target, source in halves:
            self.add(name.format(target, source), guard)
        self.made(to)

    def add_number(self) -> None:
        to, of, form = self.pair(), self.given(), self.random.randrange(4)
        if form == 0:
            self.add(f"IMAD.WIDE.U32 R{to}, {self.number()}, 0x4, R{of}")
        elif form == 1:
            self.add(f"IADD3 R{to}, P6, {self.number()}, R{of}, RZ")
            self.add(f"IADD3.X R{to + 1}, RZ, R{of + 1}, RZ, P6, !PT")
        elif form == 2:
            self.add(f"LEA R38, P6, {self.number()}, R{of}, 0x2")
            self.add(f"LEA.HI.X R39, R30, R{of + 1}, RZ, 0x2, P6")
            self.add(f"MOV R{to}, R38")
            self.add(f"MOV R{to + 1}, R39")
        else:
            self.add(f"LOP3.LUT R{to}, R{of}, 0xfffffff0, RZ, 0xc0, !PT")
            self.add(f"MOV R{to + 1}, R{of + 1}")
        self.made(to)

    def add_two(self) -> None:
        to, a, b = self.pair(), self.given(), self.given()
        form = self.random.random()
        if form < 0.3:
            self.add(f"IADD.64 R{to}, R{a}, R{b}")
        elif form < 0.6:                                # another one's address from the distance of two
            self.add(f"IADD.64 R38, R{a}, -R{b}")
            self.add(f"IADD.64 R{to}, R{b}, R38")
        elif form < 0.8:
            self.add(f"IADD3 R38, P6, R{a}, -R{b}, RZ")
            self.add(f"IADD3.X R39, R{a + 1}, ~R{b + 1}, RZ, P6, !PT")
            self.add(f"IADD.64 R{to}, R{b}, R38")
        else:
            for half in (0, 1):
                self.add(f"LOP3.LUT R{38 + half}, R{a + half}, R{b + half}, RZ, 0x3c, !PT")
                self.add(f"LOP3.LUT R{38 + half}, R{38 + half}, R{b + half}, RZ, 0x3c, !PT")
            self.add(f"MOV R{to}, R38")
            self.add(f"MOV R{to + 1}, R39")
        self.made(to)

    def choose(self) -> None:
        to, a, b = self.pair(), self.given(), self.given()
        predicate = self.random.choice(["P0", "!P0", "P1"])
        for half in (0, 1):
            self.add(f"SEL R{38 + half}, R{a + half}, R{b + half}, {predicate}")
        for half in (0, 1):
            self.add(f"MOV R{to + half}, R{38 + half}")
        self.made(to)

    def scramble(self) -> None:
        to, of, form = self.pair(), self.given(), self.random.randrange(3)
        if form == 0:                                   # shifted, and back
            self.add(f"SHF.R.U64 R38, R{of}, 0x4, R{of + 1}")
            self.add("SHF.L.U32 R38, R38, 0x4, RZ")
        elif form == 1:                                 # in other order, and back
            self.add(f"PRMT R38, R{of}, 0x1032, RZ")
            self.add("PRMT R38, R38, 0x1032, RZ")
        else:
            self.add(f"LOP3.LUT R40, R{of}, 0xffff, RZ, 0xc0, !PT")
            self.add(f"IADD3 R38, P6, R{of}, -R40, RZ")
            self.add("IADD3 R38, R38, R40, RZ")
        self.add(f"MOV R39, R{of + 1}")
        for half in (0, 1):
            self.add(f"MOV R{to + half}, R{38 + half}")
        self.made(to)

    def compare_number(self) -> None:
        self.add(f"ISETP.NE.U32.AND {self.random.choice(['P0', 'P1'])}, PT, {self.number()}, RZ, PT")

    def compare(self) -> None:
        self.add(f"ISETP.NE.U32.AND {self.random.choice(['P0', 'P1'])}, PT, R{self.given()}, RZ, PT")

    def compute(self) -> None:
        self.add(f"I2F.F64.U64 R{self.random.choice([32, 38, 40])}, R{self.given()}")

    def access(self) -> None:
        place, guard = f"desc[UR6][R{self.given()}.64+{self.random.choice([0, 8]):#x}]", self.guard()
        form = self.random.randrange(8)
        if form == 0:
            self.add(f"ULDC.64 UR8, c[0x0][{BASE + self.word():#x}]")
            place = self.random.choice(["[UR8]", f"[R{self.given()}.64+UR8]", f"desc[UR6][{self.number()}.U32+UR8]"])
        names = ["LDG.E {0}, {1}", "LDG.E {0}, {1}", "STG.E {1}, {0}", "STG.E {1}, {0}",
                 "ATOMG.E.ADD.STRONG.GPU PT, {0}, {1}, R41", "REDG.E.ADD.STRONG.GPU {1}, {0}"]
        self.add(self.random.choice(names).format(self.number(), place), guard)

    def load_address(self) -> None:
        to = self.pair()
        self.add(f"LDG.E.64 R{to}, desc[UR6][R{self.given()}.64]", self.guard())
        self.made(to)

    def store_address(self) -> None:
        of, form = self.given(), self.random.randrange(5)
        slot = self.random.choice([0, 8, 16])
        if form == 0:
            self.add(f"STG.E.64 desc[UR6][R{self.given()}.64], R{of}")
        elif form == 1:
            self.add(f"STS [R42], R{of}")
            self.add(f"STS [R42+0x4], R{of + 1}")
        elif form == 2:
            self.add(f"MOV R42, {slot:#x}")
            self.add(f"VIADD R42, R42, {0:#x}")
            self.add(f"STL.64 [R42], R{of}")
        else:
            self.add(f"STL.64 [R1+{slot:#x}], R{of}", self.guard())

    def load_stored(self) -> None:
        to, form = self.pair(), self.random.randrange(4)
        slot = self.random.choice([0, 8, 16])
        if form == 0:
            self.add(f"LDS.64 R{to}, [R42]")
        elif form == 1:
            self.add(f"MOV R43, {slot:#x}")
            self.add(f"LDL.64 R{to}, [R43]")
        else:
            self.add(f"LDL.64 R{to}, [R1+{slot:#x}]", self.guard())
        self.made(to)

    def move_stack(self) -> None:
        self.add(f"IADD3 R1, R1, {self.random.choice(['0x8', '-0x8'])}, RZ")

    def branch(self, depth: int) -> None:
        predicate = self.random.choice(["P0", "!P0", "P1", "!P1"])
        at = len(self.lines)
        self.add("")
        self.steps(self.random.randint(1, 5), depth + 1)
        if self.random.random() < 0.4:
            other = len(self.lines)
            self.add("")
            self.lines[at] = f"@{predicate} BRA {16 * len(self.lines):#x}"
            self.steps(self.random.randint(1, 4), depth + 1)
            self.lines[other] = f"BRA {16 * len(self.lines):#x}"
        else:
            self.lines[at] = f"@{predicate} BRA {16 * len(self.lines):#x}"
        self.add("NOP")

    def loop(self, depth: int) -> None:
        at = len(self.lines)
        self.add("NOP")
        self.steps(self.random.randint(1, 5), depth + 1)
        self.add("ISETP.NE.AND P2, PT, R41, RZ, PT")
        self.add(f"@P2 BRA {16 * at:#x}")

    def jump(self, depth: int) -> None:
        at, targets, ends = len(self.lines), [], []
        self.add("BRX R41 -0x100")
        for _ in range(self.random.randint(2, 3)):
            targets.append(len(self.lines))
            self.steps(self.random.randint(1, 3), depth + 1)
            if self.random.random() < 0.6:
                ends.append(len(self.lines))
                self.add("")
        self.add("NOP")
        for end in ends:
            self.lines[end] = f"BRA {16 * (len(self.lines) - 1):#x}"
        self.jumps[at] = targets

    def call(self) -> None:
        of = self.given()
        for half in (0, 1):
            self.add(f"MOV R{44 + half}, R{of + half}")
        self.add(f"MOV R50, {16 * (len(self.lines) + 2):#x}")
        self.functions.append((len(self.lines), self.random.choice("fg")))
        self.add("")
        to = self.pair()
        for half in (0, 1):
            self.add(f"MOV R{to + half}, R{44 + half}")
        self.made(to)

    def add_functions(self) -> None:
        for name in "fg":
            calls = [line for line, function in self.functions if function == name]
            if not calls:
                continue
            for line in calls:
                self.lines[line] = f"CALL.REL.NOINC {16 * len(self.lines):#x}"
            self.add("VIADD R1, R1, 0xffffffe0")
            for _ in range(self.random.randint(0, 3)):
                self.random.choice([
                    lambda: self.add("LDG.E R46, desc[UR6][R44.64]"),
                    lambda: self.add("@P3 STG.E desc[UR6][R44.64], R46"),
                    lambda: self.add(f"@P3 LDC.64 R44, c[0x0][{BASE + self.word():#x}]"),
                    lambda: self.add("IMAD.WIDE.U32 R44, R30, 0x8, R44"),
                    lambda: self.add("STL.64 [R1+0x8], R44"),
                    lambda: self.add("LDL.64 R44, [R1+0x8]"),
                    lambda: self.add("ISETP.NE.AND P3, PT, R41, RZ, PT"),
                    lambda: self.add("ISETP.NE.AND P0, PT, R41, RZ, PT"),
                ])()
            self.add("VIADD R1, R1, 0x20")
            self.add("RET.REL.NODEC R50 0x0")

    STEPS = (load_word, load_word, load_word, load_number, load_by_index, load_by_address, move, move, add_number,
             add_number, add_two, choose, scramble, compare, compare_number, compute, access, access, access, access,
             access, load_address, store_address, load_stored, move_stack, branch, branch, loop, jump, call, call)
