"""Element types: one table, with the name of each dtype in every standard.

Nothing here needs NumPy.
"""
from __future__ import annotations

import struct
from typing import Any, NamedTuple

__all__ = ["DTYPES", "DType", "dtype_of", "dtype_of_arrow", "dtype_of_dlpack", "element"]

INT, UINT, FLOAT, BFLOAT, COMPLEX, BOOL = 0, 1, 2, 4, 5, 6         # DLDataTypeCode


class DType(NamedTuple):
    """One dtype.

    `typestr` is that of the CUDA array interface, `arrow` the format of Arrow's C data interface, `pack` the letter of
    the struct module; None where there is none.
    """

    name: str
    itemsize: int
    code: int
    typestr: str | None
    arrow: str | None
    pack: str | None


DTYPES = {row.name: row for row in (
    DType("bool", 1, BOOL, "|b1", None, "?"),           # Arrow's is packed in bits
    DType("int8", 1, INT, "|i1", "c", "b"),
    DType("int16", 2, INT, "<i2", "s", "h"),
    DType("int32", 4, INT, "<i4", "i", "i"),
    DType("int64", 8, INT, "<i8", "l", "q"),
    DType("uint8", 1, UINT, "|u1", "C", "B"),
    DType("uint16", 2, UINT, "<u2", "S", "H"),
    DType("uint32", 4, UINT, "<u4", "I", "I"),
    DType("uint64", 8, UINT, "<u8", "L", "Q"),
    DType("float16", 2, FLOAT, "<f2", "e", "e"),
    DType("float32", 4, FLOAT, "<f4", "f", "f"),
    DType("float64", 8, FLOAT, "<f8", "g", "d"),
    DType("bfloat16", 2, BFLOAT, None, None, None),
    DType("complex64", 8, COMPLEX, "<c8", None, "ff"),
    DType("complex128", 16, COMPLEX, "<c16", None, "dd"),
    DType("float8_e3m4", 1, 7, None, None, None),
    DType("float8_e4m3", 1, 8, None, None, None),
    DType("float8_e4m3b11fnuz", 1, 9, None, None, None),
    DType("float8_e4m3fn", 1, 10, None, None, None),
    DType("float8_e4m3fnuz", 1, 11, None, None, None),
    DType("float8_e5m2", 1, 12, None, None, None),
    DType("float8_e5m2fnuz", 1, 13, None, None, None),
    DType("float8_e8m0fnu", 1, 14, None, None, None),
)}
_TYPES = {bool: "bool", int: "int64", float: "float64", complex: "complex128"}
# NumPy's other names of these dtypes, on 64-bit Linux: letters, C's types, and widths in bytes after a letter.
_NAMES = {name: DTYPES[row] for row, names in {
    "bool": "? b1 bool_", "int8": "b i1 byte", "int16": "h i2 short", "int32": "i i4 intc",
    "int64": "l q p i8 int int_ long longlong intp", "uint8": "B u1 ubyte", "uint16": "H u2 ushort",
    "uint32": "I u4 uintc", "uint64": "L Q P u8 uint ulong ulonglong uintp", "float16": "e f2 half",
    "float32": "f f4 single", "float64": "d f8 float double", "complex64": "F c8 csingle",
    "complex128": "D c16 complex cdouble"}.items() for name in names.split()}
_CODES = {(row.code, 8 * row.itemsize): row for row in DTYPES.values()}
_ARROW = {row.arrow: row for row in DTYPES.values() if row.arrow}


def dtype_of(what: Any) -> DType:
    """The row for a dtype: anything that NumPy takes for one of these (``"f4"``, ``float``, ``numpy.float32``), a name
    from the table, or a dtype of another library whose dtypes have a name.

    Raises
    ------
    TypeError
        Buffers do not have this dtype.
    """
    if isinstance(what, DType):
        return what
    if isinstance(what, type):
        what = _TYPES.get(what, what.__name__)          # numpy.float32
    name = what if isinstance(what, str) else getattr(what, "name", None)
    row = _named(name) if isinstance(name, str) else None
    if row is None or getattr(what, "byteorder", "=") == ">":
        raise TypeError(f"dtype {what!r} is unknown; choose one of {', '.join(DTYPES)}")
    return row


def _named(name: str) -> DType | None:
    """The row of a name, letter or typestr, in this machine's byte order."""
    order, code = (name[:1], name[1:]) if name[:1] in ("<", "=", "|", ">") else ("", name)
    if order and code[1:] and not code[1:].isdigit():
        return None                                     # only letters and widths have an order
    row = DTYPES.get(name) or _NAMES.get(code)
    return row if row is None or row.itemsize == 1 or order != ">" else None


def dtype_of_dlpack(code: int, bits: int) -> DType | None:
    return _CODES.get((code, bits))


def dtype_of_arrow(text: str) -> DType | None:
    return _ARROW.get(text)


def element(dtype: DType, value: Any) -> bytes:
    """The bytes of one element.

    Raises
    ------
    TypeError, ValueError
        The value is not of this dtype.
    """
    try:
        if dtype.code == COMPLEX:
            value = complex(value)
            return struct.pack(f"<{dtype.pack}", value.real, value.imag)
        if dtype.code == BFLOAT:
            bits = int.from_bytes(struct.pack("<f", value), "little")
            if bits & 0x7FFFFFFF > 0x7F800000:          # NaN stays NaN
                return (bits >> 16 | 0x40).to_bytes(2, "little")
            return (bits + 0x7FFF + (bits >> 16 & 1) >> 16).to_bytes(2, "little")       # to the nearest, ties to even
        if dtype.pack is None:
            raise TypeError(f"no value can be written as {dtype.name}: copy from memory instead")
        return struct.pack(f"<{dtype.pack}", value)
    except (struct.error, OverflowError) as error:
        raise ValueError(f"{value!r} is not a {dtype.name}: {error}") from None
