"""Scenes of the bytes that copies and fills touch."""
from __future__ import annotations

from copy_shapes import PITCH, ROWS, UNIFIED, WIDTH, planes, rows, words
from fabricated import PAGEABLE, PINNED, A, B, Program, X, Y, scene


@scene("certain write/write")
def the_last_byte_of_a_copy(p: Program, repaired: bool) -> None:
    p.call("cuMemcpyDtoDAsync_v2", dstDevice=X, srcDevice=Y, ByteCount=1024, hStream=A)
    p.call("cuMemsetD8Async", dstDevice=X + (1024 if repaired else 1023), N=1, hStream=B)


for bits in (16, 32):
    def last_element(p: Program, repaired: bool, bits: int = bits) -> None:
        p.call(f"cuMemsetD{bits}Async", dstDevice=X, N=10, hStream=A)
        p.call("cuMemsetD8Async", dstDevice=X + 10 * bits // 8 - (not repaired), N=1, hStream=B)

    scene("certain write/write", name=f"the elements of cuMemsetD{bits} have {bits} bits")(last_element)

    def last_of_rows(p: Program, repaired: bool, bits: int = bits) -> None:
        p.call(f"cuMemsetD2D{bits}Async", dstDevice=X, dstPitch=WIDTH, Width=WIDTH * 8 // bits, Height=3, hStream=A)
        p.call("cuMemsetD8Async", dstDevice=X + 3 * WIDTH - (not repaired), N=1, hStream=B)

    scene("certain write/write", name=f"the elements of cuMemsetD2D{bits} have {bits} bits")(last_of_rows)


@scene("certain write/write")
def panels_of_columns_side_by_side(p: Program, repaired: bool) -> None:
    """Of one matrix: they touch, or have a column in common."""
    for column, stream in ((0, A), (WIDTH - (not repaired), B)):
        p.call("cuMemsetD2D8Async", dstDevice=X + column, dstPitch=PITCH, Width=WIDTH, Height=ROWS, hStream=stream)


@scene("certain write/write")
def the_first_byte_of_rows_with_gaps_is_certain(p: Program, repaired: bool) -> None:
    p.call("cuMemsetD2D8Async", dstDevice=X + WIDTH, dstPitch=PITCH, Width=WIDTH, Height=ROWS, hStream=A)
    if repaired:
        p.order(A, B)
    p.fill(X, B)


@scene("certain write/write")
def one_row_has_no_gaps(p: Program, repaired: bool) -> None:
    p.call("cuMemsetD2D8Async", dstDevice=X, dstPitch=PITCH, Width=WIDTH, Height=1, hStream=A)
    p.call("cuMemsetD8Async", dstDevice=X + WIDTH - (not repaired), N=1, hStream=B)


@scene("certain write/write")
def panels_of_columns_that_are_copied(p: Program, repaired: bool) -> None:
    for column, stream in ((0, A), (WIDTH - (not repaired), B)):
        copy = rows(X, Y, dstXInBytes=column, srcXInBytes=column, WidthInBytes=WIDTH)
        p.call("cuMemcpy2DAsync_v2", pCopy=copy, hStream=stream)


@scene("certain write/write")
def rows_begin_at_their_offset(p: Program, repaired: bool) -> None:
    copy = rows(X, Y, dstXInBytes=16, dstY=2, WidthInBytes=PITCH, Height=1)
    p.call("cuMemcpy2DAsync_v2", pCopy=copy, hStream=A)
    begin = X + 2 * PITCH + 16
    p.call("cuMemsetD8Async", dstDevice=begin - (1 if repaired else 0), N=1, hStream=B)


@scene("certain write/write")
def rows_end_with_the_last_one(p: Program, repaired: bool) -> None:
    p.call("cuMemcpy2DAsync_v2", pCopy=rows(X, Y), hStream=A)
    p.call("cuMemsetD8Async", dstDevice=X + ROWS * PITCH - (not repaired), N=1, hStream=B)


@scene("certain write/write")
def rows_without_a_pitch_are_dense(p: Program, repaired: bool) -> None:
    p.call("cuMemcpy2DAsync_v2", pCopy=rows(X, Y, dstPitch=0, WidthInBytes=WIDTH), hStream=A)
    p.call("cuMemsetD8Async", dstDevice=X + ROWS * WIDTH - (not repaired), N=1, hStream=B)


@scene("certain write/write")
def planes_begin_at_their_offset(p: Program, repaired: bool) -> None:
    copy = planes(X, Y, dstXInBytes=8, dstY=1, dstZ=1, Height=1, Depth=1)
    p.call("cuMemcpy3DAsync_v2", pCopy=copy, hStream=A)
    begin = X + (ROWS + 1) * PITCH + 8
    p.call("cuMemsetD8Async", dstDevice=begin - (1 if repaired else 0), N=1, hStream=B)


@scene("possible write/write")
def planes_with_gaps_are_only_possible(p: Program, repaired: bool) -> None:
    for row, stream in ((0, A), (ROWS // 2, B)):
        if repaired and stream == B:
            p.order(A, B)
        p.call("cuMemcpy3DAsync_v2", pCopy=planes(X, Y, dstY=row, srcY=row, Height=ROWS // 2), hStream=stream)


@scene("certain write/write")
def the_last_plane(p: Program, repaired: bool) -> None:
    p.call("cuMemcpy3DAsync_v2", pCopy=planes(X, Y), hStream=A)
    p.call("cuMemsetD8Async", dstDevice=X + 4 * ROWS * PITCH - (not repaired), N=1, hStream=B)


@scene("certain read/write")
def the_source_has_an_extent_of_its_own(p: Program, repaired: bool) -> None:
    copy = rows(X, Y, srcPitch=2 * PITCH, srcY=1)
    p.call("cuMemcpy2DAsync_v2", pCopy=copy, hStream=A)
    p.call("cuMemsetD8Async", dstDevice=Y + 2 * PITCH - (1 if repaired else 0), N=1, hStream=B)


@scene("certain write/write")
def nothing_is_copied(p: Program, repaired: bool) -> None:
    p.call("cuMemcpyDtoDAsync_v2", dstDevice=X, srcDevice=Y, ByteCount=0 if repaired else 1, hStream=A)
    p.call("cuMemsetD2D8Async", dstDevice=X, dstPitch=PITCH, Width=WIDTH, Height=0, hStream=A)
    p.fill(X, B)


@scene("certain write/write", "certain write/write")
def each_copy_of_a_batch_counts(p: Program, repaired: bool) -> None:
    p.call("cuMemcpyBatchAsync", dsts=words(X, Y), srcs=words(PINNED, PINNED), sizes=words(64, 64), count=2, hStream=A)
    if repaired:
        p.order(A, B)
    p.fill(X, B)
    p.fill(Y, B)


@scene("certain write/read")
def unified_addresses_may_be_on_either_side(p: Program, repaired: bool) -> None:
    p.fill(X, A)
    target = PAGEABLE if repaired else Y
    p.call("cuMemcpy2DAsync_v2", pCopy=rows(target, X, dstMemoryType=UNIFIED, srcMemoryType=UNIFIED), hStream=A)
    p.read(X, B)
