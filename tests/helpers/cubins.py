"""Compiled kernels, made by hand: cubins, and single instructions as ptxas makes them."""
from __future__ import annotations

import struct

# The chip, the instruction as nvdisasm prints it (without types), its bytes, and whether it may signal the host.
INSTRUCTIONS = [
    (75, "ATOM.CAS.STRONG.SYS", 0x000000040406738b, 0x000ea20000116506, True),
    (75, "ATOM.EXCH.STRONG.SYS", 0x00000000ff00798a, 0x000ea8000c1f6144, True),
    (75, "ATOM.S32.STRONG.GPU", 0x00000002ff02098a, 0x004ea200081f4344, False),
    (75, "ATOM.STRONG.GPU", 0x00000402ff02098a, 0x000ea800081f4146, False),
    (75, "ATOM.STRONG.SYS", 0x00000000ffff098a, 0x002fe200081f6144, True),
    (75, "ATOMG.CAS.STRONG.GPU", 0x00000004020273a9, 0x000ea800001f4105, False),
    (75, "ATOMG.CAS.STRONG.SYS", 0x00000004020273a9, 0x000ea800001f6105, True),
    (75, "ATOMG.EXCH.STRONG.GPU", 0x00000002ff0279a8, 0x000ea2000c1f4544, False),
    (75, "ATOMG.EXCH.STRONG.SYS", 0x00000002020473a8, 0x000ea800041f65ff, True),
    (75, "ATOMG.STRONG.GPU", 0x00000002ff0209a8, 0x002ea800081f4144, False),
    (75, "ATOMG.STRONG.SYS", 0x00000000ff0079a8, 0x000ea800081f6744, True),
    (75, "BAR.SYNC", 0x0000000000007b1d, 0x000fea0000000000, False),
    (75, "BRX", 0xffffff2008007949, 0x000fea000383ffff, False),
    (75, "CALL.ABS", 0x0000000002007343, 0x000fea0003c00000, True),
    (75, "CALL.REL", 0x0000006000007944, 0x000fea0003c00000, True),
    (75, "CCTL.IVALL", 0x00000000ff00798f, 0x000fca0002000000, False),
    (75, "CCTL.PF2", 0x000000000200798f, 0x000fea0000800100, False),
    (75, "ERRBAR", 0x00000000000079ab, 0x000fc00000000000, False),
    (75, "EXIT", 0x000000000000794d, 0x000fea0003800000, False),
    (75, "FFMA", 0x00000003ff007223, 0x001fca0000000005, False),
    (75, "LD.STRONG.GPU", 0x00000004ff007980, 0x000ea4000c114900, False),
    (75, "LD.STRONG.SYS", 0x00000004ff007980, 0x000ea8000c116900, True),
    (75, "LD.SYS", 0x0000000004067980, 0x000ea4000010eb00, False),
    (75, "LDC", 0x0100000002027b82, 0x000e220000000a00, False),
    (75, "LDG.CONSTANT.SYS", 0x00000004ff007981, 0x000ea8000c1e6900, False),
    (75, "LDG.MMIO.SYS", 0x00000004ff007981, 0x000ea8000c1fe900, True),
    (75, "LDG.STRONG.GPU", 0x00000004ff007981, 0x000ea4000c1f4900, False),
    (75, "LDG.STRONG.SYS", 0x00000004ff007981, 0x000ea4000c1f6900, True),
    (75, "LDG.SYS", 0x00000004ff007981, 0x000ea8000c1ee900, False),
    (75, "LDG.U.CONSTANT.SYS", 0x0000000004087381, 0x002ee800001e6f00, False),
    (75, "LDS.U", 0x00000000ff007984, 0x000e280000001800, False),
    (75, "MEMBAR.ALL.CTA", 0x0000000000007992, 0x000fec0000008000, False),
    (75, "MEMBAR.ALL.GPU", 0x0000000000007992, 0x000fea000000a000, False),
    (75, "MEMBAR.ALL.SYS", 0x0000000000007992, 0x000fea000000b000, True),
    (75, "MEMBAR.SC.CTA", 0x0000000000007992, 0x000fea0000000000, False),
    (75, "MEMBAR.SC.GPU", 0x0000000000007992, 0x000fea0000002000, False),
    (75, "MEMBAR.SC.SYS", 0x0000000000007992, 0x000fea0000003000, True),
    (75, "RED.F64.STRONG.GPU", 0x0000000cff00798e, 0x000fe2000c114d04, False),
    (75, "RED.STRONG.GPU", 0x00000000ff00098e, 0x002fe2000c114104, False),
    (75, "RED.STRONG.SYS", 0x00000000ff00098e, 0x002fe2000c116104, True),
    (75, "RET.REL", 0xfffffb9002007950, 0x000fea0003c3ffff, False),
    (75, "SHFL", 0x00001f0302007589, 0x004e2400000e0000, False),
    (75, "ST.STRONG.GPU", 0x00000006ff007985, 0x0001e2000c114904, False),
    (75, "ST.STRONG.SYS", 0x00000000ff007985, 0x000fe2000c116904, True),
    (75, "ST.SYS", 0x0000000004007385, 0x0001e4000010eb02, False),
    (75, "STG.MMIO.SYS", 0x00000000ff007986, 0x000fe2000c11e904, True),
    (75, "STG.STRONG.CTA", 0x00000000ff007986, 0x000fe2000c110904, False),
    (75, "STG.STRONG.GPU", 0x00000000ff007986, 0x000fe2000c114904, False),
    (75, "STG.STRONG.SYS", 0x00000004ff007986, 0x000fe2000c116d04, True),
    (75, "STG.SYS", 0x00000000ff007986, 0x001fe2000c10e904, False),
    (75, "STS", 0x00000002ff007388, 0x000fe80000000800, False),
    (75, "SUST.D.BA.2D.STRONG.CTA.TRAP", 0x70005c0a0e007b9d, 0x0003e20000110900, False),
    (75, "TEX.SCR.LL", 0x3000580702027b60, 0x00414200019e01ff, False),
    (90, "ATOM.CAS.STRONG.SYS", 0x000000040204738b, 0x0011620000114506, True),
    (90, "ATOM.CAST.SPIN", 0x000000040205738b, 0x000ea400019e0105, False),
    (90, "ATOM.EXCH.STRONG.SYS", 0x000000050205798a, 0x001ea8000c1f41c4, True),
    (90, "ATOM.S32.STRONG.GPU", 0x0000000502ff098a, 0x0020a800081ee3c4, False),
    (90, "ATOM.STRONG.GPU", 0x000004070407098a, 0x000ea200081ee1cc, False),
    (90, "ATOM.STRONG.SYS", 0x0000000502ff098a, 0x002fe200081f41c4, True),
    (90, "ATOMG.CAS.STRONG.GPU", 0x00000004020573a9, 0x001ea200001ee105, False),
    (90, "ATOMG.CAS.STRONG.SYS", 0x00000004020573a9, 0x001ea200001f4105, True),
    (90, "ATOMG.EXCH.STRONG.GPU", 0x00000004020279a8, 0x001ea2000c1ee5c4, False),
    (90, "ATOMG.EXCH.STRONG.SYS", 0x00000002020479a8, 0x001ea8000c1f45c4, True),
    (90, "ATOMG.STRONG.GPU", 0x00000007020709a8, 0x002ea200081ee1c4, False),
    (90, "ATOMG.STRONG.SYS", 0x00000005020579a3, 0x001ea800081f53c4, True),
    (90, "BAR.SYNC.DEFER_BLOCKING", 0x0000000000007b1d, 0x000fe20000010000, False),
    (90, "BRX", 0xfffffffc08bc7949, 0x000fea000383ffff, False),
    (90, "CALL.ABS", 0x0000000008007343, 0x001fea0003c00000, True),
    (90, "CALL.REL", 0x0000000400287944, 0x000fea0003c00000, True),
    (90, "CCTL.DML2", 0x000000000200798f, 0x001fe20005000100, False),
    (90, "CCTL.IVALL", 0x00000000ff00798f, 0x000fe80002000000, False),
    (90, "CCTL.PF2", 0x000000000200798f, 0x001fe20000800100, False),
    (90, "CCTL.RML2", 0x000000000200798f, 0x001fe20005800100, False),
    (90, "ERRBAR", 0x00000000000079ab, 0x000fc00000000000, False),
    (90, "EXIT", 0x000000000000794d, 0x000fea0003800000, False),
    (90, "FENCE.VIEW.ASYNC.G", 0x00000000000073c6, 0x000fe20000000100, False),
    (90, "FENCE.VIEW.ASYNC.S", 0x00000000000073c6, 0x000fe80000000000, False),
    (90, "FFMA", 0x00000007ff007223, 0x000fca0000000003, False),
    (90, "LD", 0x0000000002047980, 0x020ea20000100b00, False),
    (90, "LD.STRONG.GPU", 0x0000000402057980, 0x001ea8000c10f900, False),
    (90, "LD.STRONG.SYS", 0x0000000402057980, 0x001ea8000c115900, True),
    (90, "LDC", 0x00000a00ff017b82, 0x000ff00000000800, False),
    (90, "LDG", 0x0000000402057981, 0x001ea8000c1e1900, False),
    (90, "LDG.CONSTANT", 0x0000000402057981, 0x001ea8000c1e9900, False),
    (90, "LDG.MMIO.SYS", 0x0000000002057381, 0x001ea200001f8900, True),
    (90, "LDG.STRONG.GPU", 0x0000000402057981, 0x001ea8000c1ef900, False),
    (90, "LDG.STRONG.SYS", 0x0000000402057981, 0x001ea8000c1f5900, True),
    (90, "LDGMC.STRONG.SYS", 0x00000000020579a4, 0x001ea2000801417f, True),
    (90, "LDGSTS", 0x0000000002057fae, 0x004fe8000b921c44, False),
    (90, "LDS", 0x00000004ff057984, 0x000e620008000800, False),
    (90, "MEMBAR.ALL.CTA", 0x0000000000007992, 0x0001ec0000008000, False),
    (90, "MEMBAR.ALL.GPU", 0x0000000000007992, 0x000fec000000a000, False),
    (90, "MEMBAR.ALL.SYS", 0x0000000000007992, 0x000fec000000b000, True),
    (90, "MEMBAR.SC.CTA", 0x0000000000007992, 0x0001ec0000000000, False),
    (90, "MEMBAR.SC.GPU", 0x0000000000007992, 0x000fec0000002000, False),
    (90, "MEMBAR.SC.SYS", 0x0000000000007992, 0x000fec0000003000, True),
    (90, "REDG.F64.STRONG.GPU", 0x0000000e0c0079a6, 0x001fe2000c10ff84, False),
    (90, "REDG.STRONG.GPU", 0x000000050200098e, 0x002fe2000c10e184, False),
    (90, "REDG.STRONG.SYS", 0x000000050200098e, 0x002fe2000c114184, True),
    (90, "RET.REL", 0xfffffff402147950, 0x000fea0003c3ffff, False),
    (90, "SHFL", 0x00001f0007057589, 0x004e2400000e0000, False),
    (90, "ST", 0x0000000002007385, 0x0001e40000100b06, False),
    (90, "ST.STRONG.GPU", 0x0000000702007985, 0x000fe2000c10f904, False),
    (90, "ST.STRONG.SYS", 0x0000000502007985, 0x001fe2000c115904, True),
    (90, "STG", 0x0000000502007986, 0x002fe2000c101904, False),
    (90, "STG.MMIO.SYS", 0x00000000ff007986, 0x000fe20008118904, True),
    (90, "STG.STRONG.GPU", 0x0000000502007986, 0x001fe2000c10f904, False),
    (90, "STG.STRONG.SM", 0x0000000502007986, 0x001fe2000c10b904, False),
    (90, "STG.STRONG.SYS", 0x0000000402007986, 0x001fe2000c115d04, True),
    (90, "STS", 0x00000000ff007988, 0x000fe80008000804, False),
    (90, "SUST.D.BA.2D.STRONG.SM.TRAP", 0x7000040608007f9d, 0x0003e2000810a900, False),
    (90, "TEX.LL", 0x2000040704077f60, 0x00416200099e01ff, False),
    (90, "UBLKCP.G.S", 0x00000006040073ba, 0x0003e40008000405, False),
    (90, "UBLKCP.S.G", 0x00000008040073ba, 0x0001d8000800020a, False),
    (90, "UBLKRED.G.S", 0x00000006040073bb, 0x0003d80008000405, False),
    (90, "UTMASTG.2D", 0x000000040c0073b5, 0x0001e20008008000, False),
    (100, "EXIT", 0x000000000000794d, 0x001fea0003800000, False),
    (100, "LDC", 0x0000df00ff017b82, 0x000fe20000000800, False),
    (100, "LDCU", 0x00007000ff0477ac, 0x000e220008000a00, False),
    (100, "MEMBAR.ALL.CTA", 0x0000000000007992, 0x0001ec0000008000, False),
    (100, "STAS", 0x0000000002007dbd, 0x000fe2000c0008ff, True),
    (100, "USTGR.NA.MMIO.SYS", 0x0000000604007377, 0x0013e20008098800, True),
]
FFMA, EXIT = (0x00000003ff007223, 0x001fca0000000005), (0x000000000000794d, 0x000fea0003800000)
SILENT_STORE = {75: (0x00000000ff007986, 0x001fe2000c10e904), 90: (0x0000000502007986, 0x002fe2000c101904)}
SPEAKING_STORE = {75: (0x00000004ff007986, 0x000fe2000c116d04), 90: (0x0000000402007986, 0x001fe2000c115d04)}


def code(*instructions: tuple[int, int]) -> bytes:
    return b"".join(struct.pack("<QQ", *one) for one in (FFMA, *instructions, EXIT))


def symbols(places: list[str], variables: dict[str, tuple[str, int]]) -> dict[str, bytes]:
    """The sections of the symbols: {name: (its section, its size)}, and one of a function; `managed:x` is managed."""
    names, table = b"\0k\0", bytes(24) + struct.pack("<IBBHQQ", 1, 0x12, 0, 0, 0, 256)
    for name, (section, size) in variables.items():
        is_managed = name.startswith("managed:")
        table += struct.pack("<IBBHQQ", len(names), 0x11, 4 * is_managed, places.index(section), 0, size)
        names += name.removeprefix("managed:").encode() + b"\0"
    return {".symtab": table, ".strtab": names}


def cubin(kernels: dict[str, list[tuple[int, int]]], sm: int = 0, codes: dict[str, bytes] | None = None,
          variables: dict[str, tuple[str, int]] | None = None) -> bytes:
    """An ELF file as nvcc makes it, as far as it is read: {name: [(offset, size), ...]}, and their machine code."""
    contents = {f".text.{name}": text for name, text in (codes or {}).items()}
    contents |= {section: b"" for section, _ in (variables or {}).values()}
    for name, parameters in kernels.items():
        info = struct.pack("<BBH", 3, 0x1B, 255)
        for ordinal, (offset, size) in reversed(list(enumerate(parameters))):
            info += struct.pack("<BBHIHHI", 4, 0x17, 12, 0, ordinal, offset, size << 18 | 0x1F000)
        contents[f".nv.info.{name}"] = info
    contents |= symbols(list(contents), variables) if variables else {}
    names, sections, data = b"\0", [], b""
    for name, text in contents.items():
        sections.append((len(names), 64 + len(data), len(text)))
        names, data = names + name.encode() + b"\0", data + text
    sections.append((0, 64 + len(data), len(names)))
    data += names
    header = bytearray(64)
    header[:6] = b"\x7fELF\2\1"
    struct.pack_into("<Q", header, 0x28, 64 + len(data))
    struct.pack_into("<I", header, 0x30, sm)
    struct.pack_into("<HHH", header, 0x3A, 64, len(sections), len(sections) - 1)
    return bytes(header) + data + b"".join(
        struct.pack("<IIQQQQIIQQ", name, 1, 0, 0, at, size, 0, 0, 1, 0) for name, at, size in sections)
