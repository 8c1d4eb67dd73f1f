"""What kernels' machine code does with their parameters: short pieces of code, and listings of compiled kernels."""
from __future__ import annotations

import re
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
from sass_programs import Code

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler here")
DEFECTS = [defect.name for defect in defects()]
R, W, RW, U = "read", "write", "readwrite", "unknown"

# Pieces of code for sm_90: two pointers, a number and a structure of five words.
P, Q, N, S = "c[0x0][0x210]", "c[0x0][0x218]", "c[0x0][0x220]", "c[0x0][0x228]"
PARAMETERS = "0+8 8+8 16+8 24+40"
LOAD_P, LOAD_Q, LOAD_N = f"LDC.64 R2, {P}", f"LDC.64 R4, {Q}", f"LDC.64 R6, {N}"
STORE = "STG.E desc[UR4][R2.64], R9"
LOAD = "LDG.E R9, desc[UR4][R2.64]"


def piece(*lines: str) -> str:
    """As nvdisasm prints it; a line that ends with a colon is a label, which {its name} refers to."""
    places, code = {}, []
    for line in lines:
        if line.endswith(":"):
            places[line[:-1]] = f"{16 * len(code):#x}"
        else:
            code.append(line)
    code = [re.sub(r"\{(\w+)\}", lambda match: places[match[1]], line) for line in (*code, "EXIT")]
    return "".join(f"        /*{16 * i:04x}*/                   {line} ;\n" for i, line in enumerate(code))


# The code, what is an address of which role, and what is open; None: the code is not followed.
WHOLE = {(24, 40)}
PIECES = {
    "a store": ([LOAD_P, STORE], {0: W}, set()),
    "a load": ([LOAD_P, LOAD], {0: R}, set()),
    "a load and a store": ([LOAD_P, LOAD, STORE], {0: RW}, set()),
    "an atomic": ([LOAD_P, "ATOMG.E.ADD.STRONG.GPU PT, R9, desc[UR4][R2.64], R8"], {0: RW}, set()),
    "only compared": ([LOAD_P, LOAD_Q, "ISETP.NE.U32.AND P0, PT, R2, R4, PT", "ISETP.NE.AND.EX P0, PT, R3, R5, PT, P0"],
                      {}, set()),
    "never carried out": ([LOAD_P, f"@!PT {STORE}"], {}, set()),
    "prefetched": ([LOAD_P, "CCTL.E.PF2 [R2]"], {}, set()),
    "discarded": ([LOAD_P, "CCTL.E.RML2 [R2]"], {}, {(0, 8)}),
    "not known": ([LOAD_P, "FROBNICATE R9, R2, R3"], {}, {(0, 8)}),
    "not known, of constants": ([f"FROBNICATE R9, {P}"], {}, {(0, 8), (8, 8)}),
    "not known, of 128 bits": ([LOAD_P, "FROBNICATE.128 R9, R0"], {}, {(0, 8)}),
    "a result that is not known": ([LOAD_P, "FROBNICATE R2, R8", LOAD], {}, {(0, 8)}),
    "of a bank without a number": ([LOAD_P, "IADD3 R2, R2, cx[UR6][0x10], RZ", LOAD], None, None),
    "a descriptor": ([f"ULDC.64 UR6, {Q}", LOAD_P, "LDG.E R9, desc[UR6][R2.64]"], {0: R}, {(8, 8)}),
    # ------------------------------------------------------------------------------------ sums
    "an index": ([LOAD_P, "IMAD.WIDE R2, R9, 0x4, R2", STORE], {0: W}, set()),
    "an index that is a parameter": ([LOAD_P, f"ULDC UR6, {N}", "IMAD.WIDE R2, R9, UR6, R2", STORE], {0: W}, set()),
    "an index of bytes": ([LOAD_P, f"LDC R6, {N}", "IADD3 R2, P0, R6, R2, RZ", "SHF.R.S32.HI R7, RZ, 0x1f, R6",
                           "IADD3.X R3, R7, R3, RZ, P0, !PT", STORE], {0: W}, {(16, 8)}),
    "a scaled index": ([LOAD_P, LOAD_N, "LEA R8, P0, R6, R2, 0x2", "LEA.HI.X R9, R6, R3, R7, 0x2, P0",
                        "STG.E desc[UR4][R8.64], R10"], {0: W}, set()),
    "an index that is not scaled": ([LOAD_P, LOAD_N, "LEA R8, P0, R6, R2, 0x0", "LEA.HI.X R9, R6, R3, R7, 0x0, P0",
                                     "STG.E desc[UR4][R8.64], R10"], {}, {(0, 8), (16, 8)}),
    "a product with 1": ([LOAD_P, "IMAD.IADD R8, R2, 0x1, R10", "IMAD.X R9, R3, 0x1, RZ, P0",
                          "LDG.E R9, desc[UR4][R8.64]"], {0: R}, set()),
    "a product with -1": ([LOAD_P, LOAD_Q, "IMAD R2, R4, -0x1, R2", "IMAD.X R3, R5, 0xffffffff, R3, P0", LOAD],
                          {}, {(0, 8), (8, 8)}),
    "a sum of two": ([LOAD_P, LOAD_Q, "IADD.64 R2, R2, R4", STORE], {}, {(0, 8), (8, 8)}),
    "a sum of which one is known": ([LOAD_P, LOAD_Q, LOAD, "IADD.64 R2, R2, R4", STORE], {0: RW}, {(8, 8)}),
    "a sum of two that are known": ([LOAD_P, LOAD_Q, LOAD, "LDG.E R9, desc[UR4][R4.64]", "IADD.64 R2, R2, R4", STORE],
                                    {0: U, 8: U}, set()),
    "a distance": ([LOAD_P, LOAD_Q, "IADD.64 R6, R4, -R2", LOAD, "IADD.64 R2, R2, R6", STORE], {0: U}, {(8, 8)}),
    "a difference": ([LOAD_P, LOAD_Q, LOAD, "IADD.64 R2, R4, -R2", STORE], {0: U}, {(8, 8)}),
    "halves of two words": ([LOAD_P, LOAD_Q, "MOV R3, R5", LOAD], {}, {(0, 8), (8, 8)}),
    "halves in the wrong order": ([LOAD_P, "MOV R8, R3", "MOV R9, R2", "LDG.E R9, desc[UR4][R8.64]"], {}, {(0, 8)}),
    "halves that are moved": ([LOAD_P, "PRMT R8, R2, 0x3210, RZ", "PRMT R9, RZ, 0x7654, R3",
                               "LDG.E R9, desc[UR4][R8.64]"], {0: R}, set()),
    "bytes that are moved": ([LOAD_P, "PRMT R8, R2, 0x3201, RZ", "MOV R9, R3", "LDG.E R9, desc[UR4][R8.64]"],
                             {}, {(0, 8)}),
    "rounded down": ([LOAD_P, "LOP3.LUT R2, R2, 0xfffffff0, RZ, 0xc0, !PT", STORE], {0: W}, set()),
    "a remainder": ([LOAD_P, LOAD_Q, "LOP3.LUT R6, R2, 0xf, RZ, 0xc0, !PT", "IADD3 R4, P0, R6, R4, RZ",
                     "STG.E desc[UR4][R4.64], R9"], {8: W}, {(0, 8)}),
    "combined bits": ([LOAD_P, "LOP3.LUT R2, R2, R9, RZ, 0x3c, !PT", LOAD], {}, {(0, 8)}),
    "shifted to and fro": ([LOAD_P, "SHF.R.U64 R8, R2, 0x4, R3", "SHF.R.U32.HI R9, RZ, 0x4, R3",
                            "SHF.L.U64.HI R9, R8, 0x4, R9", "SHF.L.U32 R8, R8, 0x4, RZ", "LDG.E R9, desc[UR4][R8.64]"],
                           {}, {(0, 8)}),
    "a shifted index": ([LOAD_P, f"LDC R6, {N}", "SHF.L.U32 R6, R6, 0x2, RZ", "IADD3 R2, P0, R6, R2, RZ", STORE],
                        {0: W}, set()),
    "the smaller one": ([LOAD_P, "VIMNMX.U32 R2, R2, R9, PT", LOAD], {}, {(0, 8)}),
    "32 bits of a register": ([LOAD_P, f"ULDC.64 UR6, {Q}", "LDG.E R9, desc[UR4][R2.U32+UR6]"], {8: R}, {(0, 8)}),
    "64 bits of a register": ([LOAD_P, f"ULDC.64 UR6, {Q}", "LDG.E R9, desc[UR4][R2.64+UR6]"],
                              {}, {(0, 8), (8, 8)}),
    "computed from numbers": ([LOAD_P, "I2F.F64.U64 R2, R2", LOAD], {}, set()),
    "a wide result": ([LOAD_P, "DADD R2, R8, R10", "STG.E.64 desc[UR4][R10.64], R2"], {}, set()),
    # ------------------------------------------------------------------------------------ one of several
    "chosen": ([LOAD_P, LOAD_Q, "SEL R8, R2, R4, P0", "SEL R9, R3, R5, P0", "LDG.E R9, desc[UR4][R8.64]"],
               {0: R, 8: R}, set()),
    "chosen to write": ([LOAD_P, LOAD_Q, "SEL R8, R2, R4, P0", "SEL R9, R3, R5, P0", "STG.E desc[UR4][R8.64], R9"],
                        {0: U, 8: U}, set()),
    "chosen or null": ([LOAD_P, "SEL R8, R2, RZ, P0", "SEL R9, R3, RZ, P0", "STG.E desc[UR4][R8.64], R9"],
                       {0: W}, set()),
    "chosen or loaded": ([LOAD_P, "SEL R8, R2, R6, P0", "SEL R9, R3, R7, P0", "STG.E desc[UR4][R8.64], R9"],
                         {0: U}, set()),
    "of two paths": ([LOAD_P, LOAD_Q, "@P0 BRA {there}", "MOV R2, R4", "MOV R3, R5", "there:", LOAD],
                     {0: R, 8: R}, set()),
    "of two paths, one of which is taken": ([LOAD_P, LOAD_Q, "@P0 BRA {there}", "MOV R2, R4", "MOV R3, R5", "there:",
                                             "@P0 BRA {end}", STORE, "end:"], {}, {(0, 8), (8, 8)}),
    "of two paths, under a guard": ([LOAD_P, LOAD_Q, "@P0 BRA {there}", "MOV R2, R4", "MOV R3, R5", "there:",
                                     f"@P1 {STORE}"], {}, {(0, 8), (8, 8)}),
    "a register that was used before": ([LOAD_P, "ISETP.NE.AND P0, PT, R3, RZ, PT", "@P0 BRA {there}",
                                         LOAD_Q.replace("R4", "R2"), STORE, "there:"], {8: W}, set()),
    "under a guard": ([LOAD_P, f"@P0 LDC.64 R2, {Q}", f"@P0 {STORE}"], {8: W}, set()),
    "under two guards": ([LOAD_P, f"@P0 LDC.64 R2, {Q}", f"@!P0 {STORE}"], {0: W}, set()),
    "under other guards": ([LOAD_P, f"@P0 LDC.64 R2, {Q}", f"@P1 {STORE}"], {}, {(0, 8), (8, 8)}),
    "under one and the other": ([LOAD_P, f"@P0 LDC.64 R2, {Q}", f"@!P0 LDC.64 R2, {N}", f"@P0 {STORE}"],
                                {8: W}, set()),
    "a guard that has changed": ([LOAD_P, f"@P0 LDC.64 R2, {Q}", "ISETP.NE.AND P0, PT, R9, RZ, PT", f"@P0 {STORE}"],
                                 {}, {(0, 8), (8, 8)}),
    "a guard of all that has changed": ([LOAD_P, f"@P0 LDC.64 R2, {Q}", "R2P PR, R9, 0x7f", f"@P0 {STORE}"],
                                        {}, {(0, 8), (8, 8)}),
    "a guard that is read": ([LOAD_P, f"@P0 LDC.64 R2, {Q}", "SEL R9, R8, R7, P0", f"@P0 {STORE}"], {8: W}, set()),
    "a guard in another block": ([LOAD_P, f"@P0 LDC.64 R2, {Q}", "@P1 BRA {there}", "MOV R9, RZ", "there:",
                                  f"@P0 {STORE}"], {8: W}, set()),
    "a guard that a branch has": ([LOAD_P, f"@P0 LDC.64 R2, {Q}", "@!P0 BRA {end}", STORE, "end:"], {8: W}, set()),
    "a guard that a branch has and more": ([LOAD_P, f"@P0 LDC.64 R2, {Q}", "@P0 BRA P1, {end}", STORE, "end:"],
                                           {}, {(0, 8), (8, 8)}),
    # ------------------------------------------------------------------------------------ stored, and loaded again
    "stored in memory": ([LOAD_P, "STG.E.64 desc[UR4][R8.64], R2", LOAD], {0: U}, set()),
    "stored in halves": ([LOAD_P, "STS [R8], R2", "STS [R8+0x4], R3", LOAD], {0: U}, set()),
    "half of it is stored": ([LOAD_P, "STG.E desc[UR4][R8.64], R2", LOAD], {0: R}, set()),
    "stored by an atomic": ([LOAD_P, "ATOMG.E.EXCH.64.STRONG.GPU PT, R8, desc[UR4][R8.64], R2"], {}, {(0, 8)}),
    "exchanged on the chip": ([LOAD_P, "ATOMS.EXCH.64 R8, [R8], R2"], {}, {(0, 8)}),
    "a loaded value": ([LOAD_P, "LDG.E.64 R2, desc[UR4][R2.64]", STORE], {0: R}, set()),
    "a value of the chip": ([LOAD_P, "LDS.64 R2, [R9]", STORE], {}, set()),
    "an index on the chip": ([LOAD_P, "STS [R2], R9"], {}, set()),
    "on the stack": (["LDC R1, c[0x0][0x28]", LOAD_P, "IADD3 R1, R1, -0x20, RZ", "STL.64 [R1+0x8], R2",
                      "LDL.64 R8, [R1+0x8]", "STG.E desc[UR4][R8.64], R9"], {0: W}, set()),
    "at another place of the stack": (["LDC R1, c[0x0][0x28]", LOAD_P, "VIADD R1, R1, 0xffffffe0",
                                       "STL.64 [R1+0x8], R2", "VIADD R1, R1, 0x8", "LDL.64 R8, [R1]",
                                       "STG.E desc[UR4][R8.64], R9"], {0: W}, set()),
    "beside it on the stack": (["LDC R1, c[0x0][0x28]", LOAD_P, "STL.64 [R1+0x8], R2", "LDL.64 R8, [R1+0x10]",
                                "STG.E desc[UR4][R8.64], R9"], {}, set()),
    "a stack that is not known": (["LDC R1, c[0x0][0x28]", LOAD_P, "STL.64 [R1+0x8], R2", "IADD3 R1, R1, R9, RZ",
                                   "LDL.64 R8, [R1]", "STG.E desc[UR4][R8.64], R9"], {}, {(0, 8)}),
    "a stack that moves under a guard": (["LDC R1, c[0x0][0x28]", LOAD_P, "STL.64 [R1], R2", "@P0 VIADD R1, R1, 0x8",
                                          "LDL.64 R8, [R1+0x8]", "STG.E desc[UR4][R8.64], R9"], {}, {(0, 8)}),
    "an index on the stack": (["LDC R1, c[0x0][0x28]", LOAD_P, LOAD_Q, "STL.64 [R1], R2", "STL.64 [R1+0x8], R4",
                               "LEA R7, R6, R1, 0x3", "LDL.64 R8, [R7]", "STG.E desc[UR4][R8.64], R9"],
                              {}, {(0, 8), (8, 8)}),
    "stored anywhere on the stack": (["LDC R1, c[0x0][0x28]", LOAD_P, "LEA R7, R6, R1, 0x3", "STL.64 [R7], R2",
                                      "LDL.64 R8, [R1]", "STG.E desc[UR4][R8.64], R9"], {}, {(0, 8)}),
    "loaded in a loop before it is stored": (["LDC R1, c[0x0][0x28]", LOAD_P, "loop:", "LDL.64 R8, [R7]",
                                              "@P1 BRA {there}", "there:", "STG.E desc[UR4][R8.64], R9",
                                              "STL.64 [R7], R2", "@P0 BRA {loop}"], {}, {(0, 8)}),
    "bytes on the stack": (["LDC R1, c[0x0][0x28]", LOAD_P, "STL.U8 [R1], R2", "STL [R1+0x4], R3", "LDL.64 R8, [R1]",
                            "STG.E desc[UR4][R8.64], R9"], {}, {(0, 8)}),
    "bytes that are put together": (["LDC R1, c[0x0][0x28]", LOAD_P, "STL.U8 [R1], R2", "STL.U8 [R1+0x4], R3",
                                     "LDL.64 R8, [R1]", "IMAD R8, R8, 0x100, RZ", "IMAD R9, R9, 0x100, RZ",
                                     "LDG.E R9, desc[UR4][R8.64]"], {}, {(0, 8)}),
    "a stack with an address": (["LDC R1, c[0x0][0x28]", LOAD_P, "STL.64 [R1], R2", "ULDC UR6, c[0x0][0x20]",
                                 "IADD3 R8, P0, R1, UR6, RZ", "LD.E.64 R8, desc[UR4][R8.64]",
                                 "ST.E desc[UR4][R8.64], R9"], {}, {(0, 8)}),
    # ------------------------------------------------------------------------------------ structures
    "a field": (["LDC.64 R2, c[0x0][0x230]", STORE], {32: W}, set()),
    "four words at once": (["LDC.128 R4, c[0x0][0x230]", "STG.E desc[UR4][R6.64], R9"], {40: W}, set()),
    "a field of bytes": (["LDC.U8 R8, c[0x0][0x230]", "MOV R2, R8", "LDC R3, c[0x0][0x234]", LOAD], {}, {(32, 8)}),
    "by an index": (["LDC.64 R2, c[0x0][R6+0x228]", STORE], {}, WHOLE),
    "by an index in front": (["LDC.64 R2, c[0x0][R6+0x220]", STORE], {}, WHOLE | {(16, 8)}),
    "by a uniform index": (["ULDC.64 UR6, c[0x0][UR6+0x228]", "LDG.E R9, [UR6]"], {}, WHOLE),
    "a number by an index": (["LDC R6, c[0x0][R6+0x228]", LOAD_P, "IMAD.WIDE R2, R6, 0x4, R2", STORE], {0: W}, set()),
    "a number by an index that is not scaled": (["LDC R6, c[0x0][R6+0x228]", LOAD_P, "IADD3 R2, P0, R6, R2, RZ",
                                                 "IADD3.X R3, RZ, R3, RZ, P0, !PT", STORE], {0: W}, set()),
    "a field, and by an index": (["LDC.64 R2, c[0x0][0x230]", LOAD, "LDC.64 R2, c[0x0][R6+0x228]", STORE],
                                 {32: U}, WHOLE),
    "by address": (["ULDC.64 UR6, c[0x0][0x198]", "LDC.64 R6, c[0x0][0x198]", "IADD3 R6, P0, R6, 0x18, RZ",
                    "IADD3.X R7, RZ, R7, RZ, P0, !PT", "LD.E.64 R8, desc[UR4][R6.64+0x8]",
                    "ST.E desc[UR4][R8.64], R9"], {32: W}, set()),
    "by address and an index": (["LDC.64 R6, c[0x0][0x198]", "IMAD.WIDE R6, R9, 0x8, R6",
                                 "LD.E.64 R8, desc[UR4][R6.64+0x18]", "ST.E desc[UR4][R8.64], R9"], {}, WHOLE),
    "by address in a loop": (["LDC.64 R6, c[0x0][0x198]", "loop:", "LD.E.64 R8, desc[UR4][R6.64+0x18]",
                              "ST.E desc[UR4][R8.64], R9", "IADD3 R6, P1, R6, 0x8, RZ",
                              "IADD3.X R7, RZ, R7, RZ, P1, !PT", "@P0 BRA {loop}"],
                             {}, WHOLE),
    "an address with bits": (["LDC.64 R6, c[0x0][0x198]", "LOP3.LUT R6, R6, 0x18, RZ, 0xfc, !PT",
                              "LD.E.64 R8, desc[UR4][R6.64]", "ST.E desc[UR4][R8.64], R9"], {}, WHOLE | {(0, 8)}),
    "an address that is handed over": (["LDC.64 R4, c[0x0][0x198]", "IADD.64 R4, R4, 0x18", "CALL.ABS.NOINC R8"],
                                       {}, WHOLE),
    "an address that is written to": (["LDC.64 R4, c[0x0][0x198]", "STG.E desc[UR4][R4.64+0x20], R9"], {}, WHOLE),
    "a map of a tensor": (["ULDC.64 UR6, c[0x0][0x198]", "UIADD3.64 UR6, UR6, 0x18, URZ", "UTMASTG.2D [UR6], [UR8]"],
                          {}, WHOLE),
    "a map in memory": ([f"ULDC.64 UR6, {P}", "UTMALDG.2D [UR8], [UR6]"], {}, {(0, 8)}),
    # ------------------------------------------------------------------------------------ functions
    "calls of other code": ([LOAD_P.replace("R2", "R4"), "LDG.E R9, desc[UR4][R4.64]", "CALL.ABS.NOINC R2"],
                            {0: U}, set()),
    "calls of other code, with a stack": (["LDC R1, c[0x0][0x28]", LOAD_P, "STL.64 [R1], R2", "CALL.ABS.NOINC R8"],
                                          {}, {(0, 8)}),
    "calls of what is not linked": ([LOAD_P.replace("R2", "R4"), "CALL.REL.NOINC {next}", "next:"], {}, {(0, 8)}),
    "kept beside calls": (["LDC.64 R16, c[0x0][0x210]", "CALL.ABS.NOINC R2", "STG.E desc[UR4][R16.64], R9"],
                          {0: W}, set()),
    "a function": ([LOAD_P, "MOV R10, {back}", "CALL.REL.NOINC {f}", "back:", "STG.E desc[UR4][R4.64], R9", "EXIT",
                    "f:", "MOV R4, R2", "MOV R5, R3", "RET.REL.NODEC R10 0x0"], {0: W}, set()),
    "a function of several blocks": ([LOAD_P, "CALL.REL.NOINC {f}", "STG.E desc[UR4][R4.64], R9", "EXIT", "f:",
                                      "MOV R4, R2", "MOV R5, R3", "@P0 BRA {g}", "NOP", "g:",
                                      "RET.REL.NODEC R10 0x0"], {0: W}, set()),
    "kept beside a function": ([LOAD_P, "MOV R4, R2", "CALL.REL.NOINC {f}", "CALL.REL.NOINC {f}", STORE, "EXIT", "f:",
                                "MOV R4, RZ", "RET.REL.NODEC R10 0x0"], {0: W}, set()),
    "a function for several": ([LOAD_P, "CALL.REL.NOINC {f}", LOAD_Q.replace("R4", "R2"), "CALL.REL.NOINC {f}",
                                "STG.E desc[UR4][R4.64], R9", "EXIT", "f:",
                                "MOV R4, R2", "MOV R5, R3", "RET.REL.NODEC R10 0x0"], {}, {(0, 8), (8, 8)}),
    "a function under a guard": ([LOAD_P, LOAD_Q, "@P0 CALL.REL.NOINC {f}", "STG.E desc[UR4][R4.64], R9", "EXIT", "f:",
                                  "MOV R4, R2", "MOV R5, R3", "RET.REL.NODEC R10 0x0"], {0: U, 8: U}, set()),
    "a guard that a function changes": ([LOAD_P, f"@P0 LDC.64 R2, {Q}", "CALL.REL.NOINC {f}", f"@P0 {STORE}", "EXIT",
                                         "f:", "ISETP.NE.AND P0, PT, R9, RZ, PT", "RET.REL.NODEC R10 0x0"],
                                        {}, {(0, 8), (8, 8)}),
    # ------------------------------------------------------------------------------------ paths
    "a loop": ([LOAD_P, "loop:", STORE, "IADD3 R2, P1, R2, 0x4, RZ", "IADD3.X R3, RZ, R3, RZ, P1, !PT",
                "@P0 BRA {loop}"], {0: W}, set()),
    "a uniform branch": ([LOAD_P, "BRA.U UP0, {end}", STORE, "end:"], {0: W}, set()),
    "a divergent branch": ([LOAD_P, "BRA.DIV UR4, {end}", STORE, "end:"], {0: W}, set()),
    "threads that meet": (["BSSY B0, {there}", LOAD_P, "BSYNC B0", "there:", STORE], {0: W}, set()),
    "threads that meet elsewhere": (["BSSY B0, {there}", LOAD_P, "BSYNC B0", "EXIT", "there:", STORE], {0: W}, set()),
    "other threads that meet": (["BSSY B0, {there}", LOAD_P, "BSYNC B0", "there:", "LDC.64 R2, c[0x0][0x218]",
                                 "BSSY B0, {after}", LOAD_Q, "BSYNC B0", "after:", STORE], {8: W}, set()),
    "threads that go on together": ([LOAD_P, "WARPSYNC.COLLECTIVE R9, {there}", "EXIT", "there:", STORE],
                                    {0: W}, set()),
    "code that nothing leads to": (["BRA {end}", LOAD_P, STORE, "end:"], None, None),
    "padding": (["EXIT", "here:", "BRA {here}", "NOP", "NOP"], {}, set()),
    "a jump": ([LOAD_P, "BRX R9 -0x20", STORE], None, None),
    "a jump at the end": ([LOAD_P, STORE, "BRX R9 -0x20"], None, None),
    "a branch that is not known": ([LOAD_P, STORE, "BRZ R9"], None, None),
    "a branch into nothing": (["BRA 0x1000"], None, None),
}
JUMPS = {
    "to one": ([LOAD_P, "BRX R9 -0x20", STORE, "EXIT", LOAD], "16>32", None),
    "to both": ([LOAD_P, "BRX R9 -0x20", STORE, "EXIT", LOAD], "16>32,64", {0: RW}),
    "to others": ([LOAD_P, "BRX R9 -0x20", STORE, "EXIT", LOAD], "32>32,64", None),
}
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
    "atomics": (dict.fromkeys((0, 8, 16, 24), RW), set()),
    "stored": ({0: W}, {(8, 8)}),
    "exchanged": ({0: RW}, {(8, 8)}),
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
    return build(tmp_path_factory.mktemp("machine"), "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


@pytest.fixture(scope="module")
def pieces(tmp_path_factory):
    file = tmp_path_factory.mktemp("pieces") / "pieces.txt"
    text = [f"== {name} | 528 | {PARAMETERS} |\n{piece(*lines)}" for name, (lines, _, _) in PIECES.items()]
    text += [f"== {name} | 528 | {PARAMETERS} | {jumps}\n{piece(*lines)}" for name, (lines, jumps, _) in JUMPS.items()]
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


def wrong(program, pieces, defect=""):
    found = facts_of(program, pieces, defect=defect)
    yield from (f"{name}: {found.get(name)}" for name, facts in expected_of_pieces() if found.get(name) != facts)
    for chip in CHIPS:
        yield from wrong_kernels(chip, facts_of(program, listing_of(chip), defect=defect))


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
