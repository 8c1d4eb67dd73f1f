"""What the driver is handed for copies of rows and planes."""
from __future__ import annotations

import ctypes
from typing import Any

from fabricated import u32, u64

HOST, DEVICE, ARRAY, UNIFIED = 1, 2, 3, 4           # CUmemorytype
PITCH, WIDTH, ROWS = 64, 32, 8


class Copy2D(ctypes.Structure):
    """CUDA_MEMCPY2D."""

    _fields_ = [(side + field, kind) for side in ("src", "dst") for field, kind in (
        ("XInBytes", u64), ("Y", u64), ("MemoryType", u32), ("Host", u64), ("Device", u64), ("Array", u64),
        ("Pitch", u64))] + [("WidthInBytes", u64), ("Height", u64)]


class Copy3D(ctypes.Structure):
    """CUDA_MEMCPY3D, and with contexts in the places of what is reserved CUDA_MEMCPY3D_PEER."""

    _fields_ = [(side + field, kind) for side in ("src", "dst") for field, kind in (
        ("XInBytes", u64), ("Y", u64), ("Z", u64), ("LOD", u64), ("MemoryType", u32), ("Host", u64), ("Device", u64),
        ("Array", u64), ("Reserved", u64), ("Pitch", u64), ("Height", u64))] + [
        ("WidthInBytes", u64), ("Height", u64), ("Depth", u64)]


def rows(target: int, source: int, **more: int) -> Copy2D:
    return Copy2D(**{"dstMemoryType": DEVICE, "dstDevice": target, "dstPitch": PITCH, "srcMemoryType": DEVICE,
                     "srcDevice": source, "srcPitch": PITCH, "WidthInBytes": PITCH, "Height": ROWS} | more)


def planes(target: int, source: int, **more: int) -> Copy3D:
    return Copy3D(**{"dstMemoryType": DEVICE, "dstDevice": target, "dstPitch": PITCH, "dstHeight": ROWS,
                     "srcMemoryType": DEVICE, "srcDevice": source, "srcPitch": PITCH, "srcHeight": ROWS,
                     "WidthInBytes": PITCH, "Height": ROWS, "Depth": 4} | more)


def words(*values: int) -> Any:
    return (u64 * len(values))(*values)
