"""Calls of the simulated cuSPARSE for play_libraries.py."""
from __future__ import annotations

from ctypes import byref, c_float, c_int, c_longlong, c_size_t, c_void_p

import numpy
from played_library import STREAM, Extent, Library, pointer


class SparseThings:
    """Of the matrix (1, 2; 0, 3) in CSR, with two vectors."""

    def __init__(self, library: Library) -> None:
        self.library, self.handle, self.one, self.zero = library, c_void_p(), c_float(1), c_float(0)
        library.ok("cusparseCreate", byref(self.handle))
        library.ok("cusparseSetStream", self.handle, c_void_p(STREAM))
        self.offsets, self.indices = numpy.array([0, 2, 3], "i4"), numpy.array([0, 1, 1], "i4")
        self.values, self.area = numpy.array([1, 2, 3], "f4"), numpy.zeros(256, "u1")
        self.x, self.y = numpy.array([8, 3], "f4"), numpy.zeros(2, "f4")
        self.matrix = self.made("Csr", c_longlong(2), c_longlong(2), c_longlong(3), pointer(self.offsets),
                                pointer(self.indices), pointer(self.values), 2, 2, 0, 0)
        self.of_x, self.of_y = (self.made("DnVec", c_longlong(2), pointer(p), 0) for p in (self.x, self.y))

    def made(self, name: str, *arguments: object) -> c_void_p:
        found = c_void_p()
        self.library.ok("cusparseCreate" + name, byref(found), *arguments)
        return found

    def newest(self, **more: numpy.ndarray) -> tuple[str, int, list[Extent]]:
        return self.library.newest(offsets=self.offsets, indices=self.indices, values=self.values, area=self.area,
                                   x=self.x, y=self.y, **more)


STRUCTURE: list[Extent] = [("offsets", 12, 1, 12, "r"), ("indices", 12, 1, 12, "r")]
OF_MATRIX: list[Extent] = [*STRUCTURE, ("values", 12, 1, 12, "r")]


def a_product_of_a_sparse_matrix(library: Library) -> None:
    for operation, expected in ((0, [14, 9]), (1, [8, 25])):
        of = SparseThings(library)
        library.ok("cusparseSpMV", of.handle, operation, byref(of.one), of.matrix, of.of_x, byref(of.zero), of.of_y, 0,
                   0, pointer(of.area))
        assert of.newest() == ("cusparseSpMV", STREAM, [
            *OF_MATRIX, ("x", 8, 1, 8, "r"), ("y", 8, 1, 8, "w"), ("area", 256, 1, 256, "w")])
        assert list(of.y) == expected


def a_sparse_product_with_numbers_of_several_types(library: Library) -> None:
    of, y = SparseThings(library), numpy.zeros(2)
    of_y = of.made("DnVec", c_longlong(2), pointer(y), 1)
    arguments = byref(of.one), of.matrix, of.of_x, byref(of.zero), of_y
    assert library.at.cusparseSpMV(of.handle, 0, *arguments, 0, 0, None) == 10


def a_sum_with_a_product_of_sparse_matrices(library: Library) -> None:
    of, steps, room, values = SparseThings(library), c_void_p(), c_size_t(), numpy.ones(3, "f4")
    library.ok("cusparseSpGEMM_createDescr", byref(steps))
    made = of.made("Csr", c_longlong(2), c_longlong(2), c_longlong(3), pointer(of.offsets), pointer(of.indices),
                   pointer(values), 2, 2, 0, 0)
    arguments = of.handle, 0, 0, byref(of.one), of.matrix, of.matrix, byref(of.one), made, 0, 0, steps
    for step in ("workEstimation", "compute"):
        library.ok("cusparseSpGEMM_" + step, *arguments, byref(room), pointer(of.area))
    library.ok("cusparseSpGEMM_copy", *arguments)
    assert of.newest(made=values) == ("cusparseSpGEMM_copy", STREAM, [
        ("offsets", 12, 1, 12, "w"), ("indices", 12, 1, 12, "w"), ("made", 12, 1, 12, "b"), *[
            ("area", 256, 1, 256, "r")] * 2])
    assert list(values) == [2, 9, 10]


def equations_of_a_sparse_triangle(library: Library) -> None:
    """They hold the work area of their analysis."""
    of, steps, fill = SparseThings(library), c_void_p(), c_int(1)
    library.ok("cusparseSpMatSetAttribute", of.matrix, 0, byref(fill), c_size_t(4))
    library.ok("cusparseSpSV_createDescr", byref(steps))
    arguments = of.handle, 0, byref(of.one), of.matrix, of.of_x, of.of_y, 0, 0, steps
    library.ok("cusparseSpSV_analysis", *arguments, pointer(of.area))
    library.ok("cusparseSpSV_solve", *arguments)
    assert of.newest() == ("cusparseSpSV_solve", STREAM, [
        *OF_MATRIX, ("x", 8, 1, 8, "r"), ("y", 8, 1, 8, "w"), ("area", 256, 1, 256, "b")])
    assert list(of.y) == [6, 1]


def a_sparse_matrix_of_a_dense_one(library: Library) -> None:
    of, dense = SparseThings(library), numpy.array([0, 5, 6, 7], "f4")
    matrix = of.made("DnMat", c_longlong(2), c_longlong(2), c_longlong(2), pointer(dense), 0, 1)
    library.ok("cusparseDenseToSparse_analysis", of.handle, matrix, of.matrix, 0, pointer(of.area))
    assert of.newest(dense=dense) == ("cusparseDenseToSparse_analysis", STREAM, [
        ("dense", 8, 2, 8, "r"), ("offsets", 12, 1, 12, "w"), ("area", 256, 1, 256, "w")])
    library.ok("cusparseDenseToSparse_convert", of.handle, matrix, of.matrix, 0, pointer(of.area))
    assert (list(of.offsets), list(of.indices), list(of.values)) == ([0, 1, 3], [1, 0, 1], [6, 5, 7])


def a_sparse_matrix_by_columns(library: Library) -> None:
    of, values, offsets, rows = SparseThings(library), numpy.zeros(3, "f4"), numpy.zeros(3, "i4"), numpy.zeros(3, "i4")
    of.offsets[:], of.indices[:] = [0, 2, 3], [0, 1, 0]
    library.ok("cusparseCsr2cscEx2", of.handle, 2, 2, 3, pointer(of.values), pointer(of.offsets), pointer(of.indices),
               pointer(values), pointer(offsets), pointer(rows), 0, 1, 0, 1, pointer(of.area))
    name, stream, extents = of.newest(new_values=values, new_offsets=offsets, rows=rows)
    assert (name, stream, extents) == ("cusparseCsr2cscEx2", STREAM, [
        *OF_MATRIX, ("new_offsets", 12, 1, 12, "w"), ("rows", 12, 1, 12, "w"), ("new_values", 12, 1, 12, "w"),
        ("area", 256, 1, 256, "w")])
    assert (list(offsets), list(rows), list(values)) == ([0, 2, 3], [0, 1, 0], [1, 3, 2])


def offsets_that_no_kernel_has_written(library: Library) -> None:
    """They count as those before them, and indices outside of the matrix are left out."""
    of = SparseThings(library)
    of.offsets[:], of.indices[:] = [3, -1, 99], [0, 7, -1]
    library.ok("cusparseSpMV", of.handle, 0, byref(of.one), of.matrix, of.of_x, byref(of.zero), of.of_y, 0, 0, None)
    assert list(of.y) == [0, 0]
    of.offsets[:] = [0, 3, 1]
    library.ok("cusparseSpMV", of.handle, 0, byref(of.one), of.matrix, of.of_x, byref(of.zero), of.of_y, 0, 0, None)
    assert list(of.y) == [8, 0]


CALLS = [a_product_of_a_sparse_matrix, a_sparse_product_with_numbers_of_several_types,
         a_sum_with_a_product_of_sparse_matrices, equations_of_a_sparse_triangle, a_sparse_matrix_of_a_dense_one,
         a_sparse_matrix_by_columns, offsets_that_no_kernel_has_written]
