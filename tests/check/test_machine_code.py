"""What kernels' machine code does with their parameters: short pieces of code, and listings of compiled kernels."""
from __future__ import annotations

import itertools
import shutil
import struct
import subprocess
from pathlib import Path

import pytest
from engine_traces import compiler
from machine_listings import (
    CHIPS,
    FOLDER,
    CodeFacts,
    build,
    compile_kernels,
    defects,
    facts_of,
    listings_of,
    output_of,
)
from machine_pieces import JUMPS, JUMPS_OF_NUMBERS, NUMBERS, PARAMETERS, PIECES, RW, A, R, U, W, piece
from made_once import made_once
from sass_machine import block_of
from sass_programs import Code

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler here")
DEFECTS = [defect.name for defect in defects()]
# What each compiled kernel does, on all chips: one that is not here differs.
KERNELS = {
    "a_load_and_a_store": ({0: W, 8: R}, set()),
    "both": ({0: RW}, set()),
    "vectors": ({0: W, 8: R}, set()),
    "unused_fields": ({0: W, 16: R}, set()),
    "nested": ({24: R, 64: W}, set()),
    "by_an_index": ({0: R}, {(offset, 8) for offset in range(8, 64, 8)}),
    "by_an_index_in_front": ({}, {(8, 56)}),
    "sizes_by_an_index": ({48: W}, set()),
    "by_address": ({48: R, 56: W}, {(0, 56)}),
    "by_address_of_a_copy": ({56: W}, {(offset, 8) for offset in range(0, 56, 8)}),
    "packed": ({16: R}, {(0, 8), (8, 8)}),
    "chosen": ({0: U, 8: U}, set()),
    "chosen_to_read": ({0: R, 8: R, 16: W}, set()),
    "bytes_with_an_offset": ({}, {(0, 8), (8, 8)}),
    "bytes_with_an_offset_of_32_bits": ({0: W}, {(8, 8)}),
    "until_the_end": ({0: W}, set()),
    "a_distance": ({}, {(0, 8), (8, 8), (16, 8)}),
    "aligned": ({0: W, 8: W}, set()),
    "a_loop": ({0: R, 8: W}, set()),
    "under_conditions": ({0: R, 8: R, 16: W}, set()),
    "atomics": ({0: A, 8: RW, 16: RW, 24: A}, set()),
    "stored": ({0: W}, {(8, 8)}),
    "exchanged": ({0: A}, {(8, 8)}),
    "on_the_chip": ({8: R}, {(0, 8)}),
    "from_another_lane": ({0: U, 8: U}, set()),
    "called": ({16: W}, {(0, 8), (8, 8)}),
    "handed_over": ({16: W}, {(8, 8)} | {(offset, 8) for offset in range(24, 80, 8)}),
    "a_table_of_jumps": ({8: RW, 16: W, 24: RW, 32: RW, 40: RW, 48: W}, set()),
    "spilled": (dict.fromkeys(range(0, 160, 8), RW), set()),
    "copied": ({0: W, 8: R}, set()),
    "copied_in_bulk": ({0: W, 8: R, 16: RW}, set()),
    "maps_of_tensors": ({0: W}, {(192, 128), (320, 8)}),
}
# Numbers that are added to addresses, and those on which branches depend, by the offsets of the pointers: on sm_75.
NUMBERS_OF_KERNELS = {
    "a_load_and_a_store": ({0: set(), 8: set()}, {0: set(), 8: set()}),
    "both": ({0: {8}}, {0: set()}),
    "bytes_with_an_offset_of_32_bits": ({0: {8, 12}}, {0: set()}),
    "a_loop": ({0: set(), 8: set()}, {0: {0, 4, 16}, 8: {0, 4, 16}}),
    "under_conditions": ({0: set(), 8: set(), 16: set()}, {at: set(range(0, 28, 4)) for at in (0, 8, 16)}),
    "chosen": ({0: {8, 12, 20}, 8: {0, 4, 20}}, {0: {16}, 8: {16}}),
    "a_table_of_jumps": ({at: {56} for at in range(8, 48, 8)} | {48: {0}}, {at: {0} for at in range(8, 56, 8)}),
    "on_the_chip": ({8: {0, 4, 16}}, {8: set()}),
    "from_another_lane": ({0: {8, 12}, 8: {0, 4}}, {0: set(), 8: set()}),
    "called": ({16: set()}, {16: {32}}),
    "handed_over": ({16: set()}, {16: None}),
    "nested": ({24: set(), 64: set()}, {24: set(), 64: set()}),
    "unused_fields": ({0: set(), 16: set()}, {0: set(), 16: set()}),
}
DIFFERENT = {
    # The address of the structure is that of the parameter in front of it and a constant.
    (75, "by_an_index_in_front"): ({}, {(0, 8), (8, 56)}),
    (80, "by_an_index_in_front"): ({}, {(0, 8), (8, 56)}),
    (90, "by_an_index_in_front"): ({}, {(0, 8), (8, 56)}),
    # Other alignment of the maps.
    (90, "maps_of_tensors"): ({0: W}, {(176, 128), (304, 8)}),
    # A check of addresses, which calls a function.
    (120, "copied_in_bulk"): ({0: W, 8: U, 16: RW}, {(24, 8)}),
}


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """With all defects, of which the environment selects one, and with the sanitizers."""
    return made_once(tmp_path_factory, "machine-planted",
                     lambda folder: build(folder, "-fsanitize=address,undefined", "-fno-sanitize-recover=all"))


@pytest.fixture(scope="module")
def pieces(tmp_path_factory):
    file = tmp_path_factory.mktemp("pieces") / "pieces.txt"
    text = [f"== {name} | 528 | {PARAMETERS} |\n{piece(*lines)}" for name, (lines, _, _) in PIECES.items()]
    text += [f"== {name} | 528 | {PARAMETERS} | {jumps}\n{piece(*lines)}" for name, (lines, jumps, _) in JUMPS.items()]
    text += [f"== {name} | 528 | {PARAMETERS} | {JUMPS_OF_NUMBERS.get(name, '')}\n{piece(*lines)}"
             for name, (lines, _, _) in NUMBERS.items()]
    file.write_text("".join(text))
    return file


def expected_of_pieces():
    for name, (_, roles, places) in PIECES.items():
        yield name, CodeFacts(False, {}, set()) if roles is None else CodeFacts(True, roles, places)
    for name, (_, _, roles) in JUMPS.items():
        yield name, CodeFacts(False, {}, set()) if roles is None else CodeFacts(True, roles, set())


def listing_of(chip: int) -> Path:
    return FOLDER / f"sm_{chip}.txt"


def wrong_kernels(chip: int, found: dict[str, CodeFacts]):
    """Compiled kernels of which something else is said than in KERNELS and DIFFERENT."""
    for name, facts in found.items():
        roles, places = DIFFERENT.get((chip, name), KERNELS[name])
        if facts != CodeFacts(True, roles, places):
            yield f"sm_{chip}: {name}: {facts}"


def wrong_roles(code: Code, facts: CodeFacts):
    """Of random code, what the machine contradicts."""
    runs = [code.machine(seed) for seed in range(8)]
    for offset, block in code.pointers.items():
        read, written = any(block in run.read for run in runs), any(block in run.written for run in runs)
        role = facts.roles.get(offset)
        is_open = any(begin <= offset < begin + size for begin, size in facts.open)
        if (((read or written) and not (role or is_open)) or (role == R and written) or (role == W and read)
                or not facts.followed):
            yield f"{offset}: {role}"


def wrong_numbers(code: Code, facts: CodeFacts):
    """Of random code, numbers that move accesses through a pointer and are said not to matter."""
    for seed, offset in itertools.product(range(4), code.numbers):
        before, after = (code.machine(seed, **{f"n{offset}": value}).touched for value in (0, 24))
        moved = {block_of(address) for address in before ^ after}
        for pointer, block in code.pointers.items():
            if block in moved and pointer in facts.added and not facts.matters(pointer, offset):
                yield f"{pointer} with {offset}"


def wrong(program, pieces, defect=""):
    found = facts_of(program, pieces, defect=defect)
    yield from (f"{name}: {found.get(name)}" for name, facts in expected_of_pieces() if found.get(name) != facts)
    yield from (f"{name}: {found[name].added} {found[name].deciding}" for name, (_, added, deciding) in NUMBERS.items()
                if (found[name].added, found[name].deciding) != ({0: added}, {0: deciding}))
    for chip in CHIPS:
        yield from wrong_kernels(chip, facts_of(program, listing_of(chip), defect=defect))
    found = facts_of(program, listing_of(75), defect=defect)
    yield from (f"{name}: {found[name].added} {found[name].deciding}" for name, numbers in NUMBERS_OF_KERNELS.items()
                if (found[name].added, found[name].deciding) != numbers)


def test_what_is_said_is_right(program, pieces):
    assert list(wrong(program, pieces)) == []


def test_each_defect_breaks_a_rule_of_its_own():
    assert len(set(DEFECTS)) == len({defect.rule for defect in defects()}) == len(DEFECTS) > 60


@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_is_noticed(program, pieces, name):
    assert any(wrong(program, pieces, name))


def test_random_code(program, tmp_path):
    codes = {f"k{seed}": Code(seed) for seed in range(400)}
    file = tmp_path / "random.txt"
    file.write_text("".join(f"== {name} | {code.head}\n{code.text}" for name, code in codes.items()))
    found = facts_of(program, file)
    assert [f"{name} at {one}" for name, code in codes.items() for one in wrong_roles(code, found[name])] == []
    roles = [found[name].roles.get(offset) for name, code in codes.items() for offset in code.pointers]
    assert {R, W, RW, U} <= set(roles)
    assert sum(role in (R, W, RW) for role in roles) > 150


def test_numbers_of_random_code(program, tmp_path):
    codes = {f"k{seed}": Code(seed) for seed in range(400, 700)}
    file = tmp_path / "random.txt"
    file.write_text("".join(f"== {name} | {code.head}\n{code.text}" for name, code in codes.items()))
    found = facts_of(program, file)
    assert [f"{name}: {one}" for name, code in codes.items() for one in wrong_numbers(code, found[name])] == []
    matter = [found[name].matters(pointer, offset) for name, code in codes.items() for offset in code.numbers
              for pointer in found[name].added]
    assert matter.count(True) > 100 < matter.count(False)


def test_damaged_listings_are_read_without_harm(program, pieces):
    lines = output_of(program, "--mutate", "10", pieces, listing_of(90), listing_of(120)).splitlines()
    assert len(lines) == 3
    assert all(int(line) > 50 for line in lines)        # many are still followed


nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc here")


@nvcc
@pytest.mark.parametrize("chip", CHIPS)
def test_kernels_compiled_afresh(program, chip, tmp_path):
    try:
        cubin = compile_kernels(chip, tmp_path)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"this nvcc cannot: {error.stderr.decode()[-200:]}")
    text = listings_of(program, cubin, sorted(KERNELS)[CHIPS.index(chip)::len(CHIPS)])      # of each chip others
    if text is None:
        pytest.skip("no nvdisasm here that knows the chip")
    file = tmp_path / "listing.txt"
    file.write_text(text)
    # Another compiler may do it in another way, but it does the same.
    found, before = facts_of(program, file), facts_of(program, listing_of(chip))
    for name, facts in found.items():
        assert facts.followed
        for offset, role in facts.roles.items():
            expected = before[name].roles.get(offset, U)
            assert U in (role, expected) or role == expected, f"{name} at {offset}"


def cubin_with(code: bytes, version: int, flags: int, targets: dict[int, list[int]]) -> bytes:
    """An ELF file as far as it is read: the code of a kernel k, and what is said of it."""
    jumps = b"".join(struct.pack(f"<III{len(to)}I", at, 0, len(to), *to) for at, to in targets.items())
    attributes = [(0x0A, struct.pack("<IHH", 0, 0x210, 16)), (0x17, struct.pack("<IHHI", 0, 1, 8, 8 << 18)),
                  (0x17, struct.pack("<IHHI", 0, 0, 0, 8 << 18)), (0x34, jumps)]
    info = b"".join(struct.pack("<BBH", 4, number, len(value)) + value for number, value in attributes)
    names, sections, data = b"\0.text.k\0.nv.info.k\0", [], b""
    for name, contents in ((1, code), (9, info), (0, names)):
        sections.append((name, 64 + len(data), len(contents)))
        data += contents
    header = bytearray(64)
    header[:9] = b"\x7fELF\2\1\1\x33" + bytes([version])
    struct.pack_into("<Q", header, 0x28, 64 + len(data))
    struct.pack_into("<IHHHHHH", header, 0x30, flags, 64, 0, 0, 64, 3, 2)
    return bytes(header) + data + b"".join(
        struct.pack("<IIQQQQIIQQ", name, 1, 0, 0, at, size, 0, 0, 1, 0) for name, at, size in sections)


@pytest.mark.parametrize(("version", "flags", "chip"), [(7, 0x5A055A, 90), (8, 0x6005A04, 90), (8, 0x6007802, 120)])
def test_code_of_a_cubin(program, tmp_path, version, flags, chip):
    file = tmp_path / "k.cubin"
    file.write_bytes(cubin_with(b"code of it", version, flags, {16: [32, 64], 80: [96]}))
    assert output_of(program, "--cubin", file) == f"k | 528 | 0+8 8+8 | 16>32,64 80>96 | {chip} 64 10\n"
    assert int(output_of(program, "--cubin", "--mutate", "300", file)) > 30


@nvcc
def test_code_of_compiled_cubins(program, tmp_path):
    heads = {}
    for chip in (75, 90, 120):
        for line in output_of(program, "--cubin", compile_kernels(chip, tmp_path)).splitlines():
            name, base, parameters, jumps, place = (field.strip() for field in line.split("|"))
            heads[chip, name] = int(base), parameters, jumps, place.split()[0]
    assert {base for base, *_ in heads.values()} == {0x160, 0x210, 0x380}
    assert all(int(sm) == chip for (chip, _), (_, _, _, sm) in heads.items())
    assert heads[90, "by_an_index"][1] == "0+8 8+56 64+4"
    for (_, name), (_, _, jumps, _) in heads.items():
        assert bool(jumps) == (name == "a_table_of_jumps")
