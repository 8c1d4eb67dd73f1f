"""Calls of the simulated libraries, with library_calls.cpp as their driver.

    python tests/helpers/play_libraries.py LIBRARY

prints the names of those that say, or do, something wrong.
"""
from __future__ import annotations

import json
import sys
from collections.abc import Callable
from ctypes import byref, c_char, c_float, c_int, c_longlong, c_size_t, c_uint64, c_void_p

import numpy
import play_sparse
from played_library import STREAM, Extent, Library, pointer


def numbers_follow_from_the_seed(library: Library) -> None:
    assert library.numbers(seed=1) == library.numbers(seed=1) != library.numbers(seed=2)


def numbers_follow_from_the_offset(library: Library) -> None:
    first = library.numbers(seed=1)
    assert library.numbers(seed=1, offset=8)[:8] == first[8:]
    second = library.numbers(seed=1, offset=16)
    library.numbers(seed=1)
    assert library.numbers() == second


def product(library: Library, of_a: int, beta: float) -> None:
    """Of a matrix of 2 by 3 and one of 3 by 4, by columns, of which each has gaps."""
    a, b, c = (numpy.arange(64, dtype="f4") for _ in range(3))
    before, rows = c.copy(), (3, 2)[of_a == 0]
    library.ok("cublasSgemm_v2", library.handle, of_a, 0, 2, 4, 3, byref(c_float(1)), pointer(a), 5, pointer(b), 6,
               byref(c_float(beta)), pointer(c), 7)
    assert library.newest(a=a, b=b, c=c) == ("cublasSgemm", STREAM, [
        ("a", 4 * rows, 5 - rows, 20, "r"), ("b", 12, 4, 24, "r"), ("c", 8, 4, 28, "b" if beta else "w")])
    left = numpy.array([[a[i + 5 * j] if of_a == 0 else a[j + 5 * i] for j in range(3)] for i in range(2)])
    right = numpy.array([[b[i + 6 * j] for j in range(4)] for i in range(3)])
    for i in range(2):
        for j in range(4):
            assert c[i + 7 * j] == (left @ right)[i, j] + beta * before[i + 7 * j]


def a_product(library: Library) -> None:
    product(library, 0, 0)


def a_product_that_is_added(library: Library) -> None:
    product(library, 0, 2)


def a_product_with_a_transposed_matrix(library: Library) -> None:
    product(library, 1, 0)


def a_batch_of_products(library: Library) -> None:
    """With room between the matrices of the result."""
    a, b, c = (numpy.ones(64, "f4") for _ in range(3))
    library.ok("cublasSgemmStridedBatched", library.handle, 0, 0, 2, 2, 2, byref(c_float(1)), pointer(a), 2,
               c_longlong(0), pointer(b), 2, c_longlong(4), byref(c_float(0)), pointer(c), 2, c_longlong(6), 3)
    assert library.newest(a=a, b=b, c=c) == ("cublasSgemmStridedBatched", STREAM, [
        ("a", 8, 2, 8, "r"), ("b", 8, 6, 8, "r"), ("c", 16, 3, 24, "w")])
    assert list(c[:18]) == [2, 2, 2, 2, 1, 1] * 3


def a_product_with_a_null_factor(library: Library) -> None:
    pointers, beta = numpy.zeros(4, "u8"), numpy.zeros(1, "f4")
    library.ok("cublasSetPointerMode_v2", library.handle, 1)
    at, b = pointer(pointers), pointer(beta)
    assert library.at.cublasSgemmBatched(library.handle, 0, 0, 2, 2, 2, None, at, 2, at, 2, b, at, 2, 4) == 7


def equations_of_a_triangle(library: Library) -> None:
    """Of a unit one its diagonal is not read."""
    for diagonal in (0, 1):
        a, b = numpy.array([2, 3, 9, 4], "f4"), numpy.array([2, 7], "f4")
        column, below = a[2:], a[1:]
        library.ok("cublasStrsm_v2", library.handle, 0, 0, 0, diagonal, 2, 1, byref(c_float(1)), pointer(a), 2,
                   pointer(b), 2)
        read = [("below", 4, 1, 4, "r")] if diagonal else [("a", 8, 1, 8, "r"), ("elsewhere", 4, 1, 4, "r")]
        assert library.newest(a=a, b=b, column=column, below=below) == (
            "cublasStrsm", STREAM, [("b", 8, 1, 8, "b"), *read])
        assert list(b) == ([2, 1] if diagonal else [1, 1])


def equations_of_an_upper_triangle(library: Library) -> None:
    """They are solved from the end."""
    a, b = numpy.array([2, 9, 3, 4], "f4"), numpy.array([7, 4], "f4")
    column = a[2:]
    library.ok("cublasStrsm_v2", library.handle, 0, 1, 0, 0, 2, 1, byref(c_float(1)), pointer(a), 2, pointer(b), 2)
    assert library.newest(a=a, b=b, column=column) == (
        "cublasStrsm", STREAM, [("b", 8, 1, 8, "b"), ("a", 4, 1, 4, "r"), ("column", 8, 1, 8, "r")])
    assert list(b) == [2, 1]


def a_product_with_a_diagonal(library: Library) -> None:
    a, x, c = numpy.array([1, 2, 3, 4], "f4"), numpy.array([5, 0, 6], "f4"), numpy.zeros(4, "f4")
    library.ok("cublasSdgmm", library.handle, 1, 2, 2, pointer(a), 2, pointer(x), 2, pointer(c), 2)
    assert library.newest(a=a, x=x, c=c) == ("cublasSdgmm", STREAM, [
        ("a", 8, 2, 8, "r"), ("x", 4, 2, 8, "r"), ("c", 8, 2, 8, "w")])
    assert list(c) == [5, 10, 18, 24]


def sorting(library: Library) -> None:
    data = numpy.array([3, 1, 2, 9, 8, 7], "f4")
    library.ok("xlogmem_sort", c_char(b"f"), pointer(data), c_uint64(2), c_uint64(3), c_void_p(STREAM))
    assert library.newest(data=data) == ("cupy.cuda.thrust.sort", STREAM, [("data", 24, 1, 24, "b")])
    assert list(data) == [1, 2, 3, 7, 8, 9]


def sorting_by_keys(library: Library) -> None:
    """The last key counts first."""
    keys, places = numpy.array([[1, 0, 2], [5, 5, 4]], "f4"), numpy.zeros(3, "i8")
    library.ok("xlogmem_lexsort", c_char(b"f"), pointer(places), pointer(keys), c_uint64(2), c_uint64(3),
               c_void_p(STREAM))
    assert library.newest(keys=keys, places=places) == (
        "cupy.cuda.thrust.lexsort", STREAM, [("places", 24, 1, 24, "w"), ("keys", 24, 1, 24, "r")])
    assert list(places) == [2, 1, 0]


def transform(library: Library, name: str, kind: int, n: int, inputs: numpy.ndarray, extents: list[Extent],
              *direction: int, in_place: bool = False) -> numpy.ndarray:
    """Two of n numbers."""
    plan, area = c_int(), numpy.zeros(2 * n, "F")
    library.ok("cufftCreate", byref(plan))
    library.ok("cufftMakePlan1d", plan, n, kind, 2, None)
    library.ok("cufftSetStream", plan, c_void_p(STREAM))
    library.ok("cufftSetWorkArea", plan, pointer(area))
    made = inputs if in_place else numpy.zeros(4 * n, "f4")
    library.ok("cufftExec" + name, plan, pointer(inputs), pointer(made), *direction)
    arrays = {"p": inputs, "area": area} | ({} if in_place else {"q": made})
    assert library.newest(**arrays) == ("cufftExec" + name, STREAM, extents)
    library.ok("cufftDestroy", plan)
    return made


def random(n: int, dtype: str = "f4") -> numpy.ndarray:
    return numpy.random.default_rng(0).standard_normal(n).astype(dtype)


def a_transform_to_complex_numbers(library: Library) -> None:
    data = random(12)
    made = transform(library, "R2C", 0x2a, 6, data, [("p", 48, 1, 48, "r"), ("q", 64, 1, 64, "w")])
    assert numpy.allclose(made[:16].view("F").reshape(2, 4), numpy.fft.rfft(data.reshape(2, 6)), atol=1e-5)


def a_transform_to_real_numbers(library: Library) -> None:
    data = random(16)
    expected = numpy.fft.irfft(data.view("F").reshape(2, 4), n=6, norm="forward")
    made = transform(library, "C2R", 0x2c, 6, data, [("p", 64, 1, 64, "b"), ("q", 48, 1, 48, "w")])
    assert numpy.allclose(made[:12].reshape(2, 6), expected, atol=1e-5)


def a_transform_in_its_place(library: Library) -> None:
    """The rows of real numbers have room for the complex ones."""
    data = random(16)
    expected = numpy.fft.rfft(data.reshape(2, 8)[:, :6])
    made = transform(library, "R2C", 0x2a, 6, data, [("p", 24, 2, 32, "r"), ("p", 64, 1, 64, "w")], in_place=True)
    assert numpy.allclose(made.view("F").reshape(2, 4), expected, atol=1e-5)


def transforms_with_a_work_area(library: Library) -> None:
    """Of a length with a large prime factor, and of a large one."""
    for n in (131, 4098):
        data = random(4 * n)
        for direction, function in ((-1, numpy.fft.fft), (1, numpy.fft.ifft)):
            expected = function(data.view("F").reshape(2, n), norm="backward" if direction < 0 else "forward")
            made = transform(library, "C2C", 0x29, n, data, [
                (which, 16 * n, 1, 16 * n, use) for which, use in (("p", "r"), ("q", "w"), ("area", "w"))], direction)
            assert numpy.allclose(made.view("F").reshape(2, n), expected, atol=1e-3)


def solver_of(library: Library) -> c_void_p:
    handle = c_void_p()
    library.ok("cusolverDnCreate", byref(handle))
    library.ok("cusolverDnSetStream", handle, c_void_p(STREAM))
    return handle


def equations(library: Library) -> None:
    """Of a matrix with gaps, which is left as its factors."""
    a, b, area, pivots, info = random(12), random(6), random(6), numpy.zeros(2, "i4"), numpy.ones(1, "i4")
    matrix, right, handle = a.reshape(2, 6)[:, :2].T.copy(), b.copy(), solver_of(library)
    library.ok("cusolverDnSgetrf", handle, 2, 2, pointer(a), 6, pointer(area), pointer(pivots), pointer(info))
    assert library.newest(a=a, area=area, pivots=pivots, info=info) == ("cusolverDnSgetrf", STREAM, [
        ("a", 8, 2, 24, "b"), ("area", 16, 1, 16, "w"), ("pivots", 8, 1, 8, "w"), ("info", 4, 1, 4, "w")])
    library.ok("cusolverDnSgetrs", handle, 0, 2, 1, pointer(a), 6, pointer(pivots), pointer(b), 2, pointer(info))
    assert library.newest(a=a, b=b, pivots=pivots, info=info) == ("cusolverDnSgetrs", STREAM, [
        ("a", 8, 2, 24, "r"), ("b", 8, 1, 8, "b"), ("pivots", 8, 1, 8, "r"), ("info", 4, 1, 4, "w")])
    assert numpy.allclose(matrix @ b[:2], right[:2], atol=1e-4)
    assert list(info) == [0]


def values_and_vectors(library: Library) -> None:
    a, values, area, info = numpy.array([2, 1, 9, 3], "f4"), numpy.zeros(2, "f4"), random(4), numpy.ones(1, "i4")
    library.ok("cusolverDnSsyevd", solver_of(library), 1, 0, 2, pointer(a), 2, pointer(values), pointer(area), 4,
               pointer(info))
    assert library.newest(a=a, values=values, area=area, info=info) == ("cusolverDnSsyevd", STREAM, [
        ("a", 8, 2, 8, "b"), ("values", 8, 1, 8, "w"), ("area", 16, 1, 16, "w"),
        ("info", 4, 1, 4, "w")])
    matrix, vectors = numpy.array([[2, 1], [1, 3]]), a.reshape(2, 2).T
    assert numpy.allclose(matrix @ vectors, vectors * values, atol=1e-5)
    assert values[0] < values[1]


def a_triangle(library: Library) -> None:
    """What is on its other side is not touched."""
    a, area, info = numpy.array([4, 9, 2, 5], "f4"), random(4), numpy.ones(1, "i4")
    library.ok("cusolverDnSpotrf", solver_of(library), 1, 2, pointer(a), 2, pointer(area), 4, pointer(info))
    column = a[2:]
    assert library.newest(a=a, column=column, area=area, info=info) == ("cusolverDnSpotrf", STREAM, [
        ("a", 4, 2, 12, "b"), ("a", 4, 1, 0, "b"), ("column", 8, 1, 0, "b"), ("area", 16, 1, 16, "w"),
        ("info", 4, 1, 4, "w")])
    assert list(a) == [2, 9, 1, 2]


def equations_of_any_type(library: Library) -> None:
    a, b, area, pivots, info = random(4), random(2), random(4), numpy.zeros(2, "i8"), numpy.ones(1, "i4")
    matrix, right, handle = a.reshape(2, 2).T.copy(), b.copy(), solver_of(library)
    two = c_longlong(2)
    library.ok("cusolverDnXgetrf", handle, None, two, two, 0, pointer(a), two, pointer(pivots), 0, pointer(area),
               c_size_t(16), None, c_size_t(0), pointer(info))
    assert library.newest(a=a, area=area, pivots=pivots, info=info) == ("cusolverDnXgetrf", STREAM, [
        ("a", 8, 2, 8, "b"), ("area", 16, 1, 16, "w"), ("pivots", 16, 1, 16, "w"), ("info", 4, 1, 4, "w")])
    library.ok("cusolverDnXgetrs", handle, None, 0, two, c_longlong(1), 0, pointer(a), two, pointer(pivots), 0,
               pointer(b), two, pointer(info))
    assert numpy.allclose(matrix @ b, right, atol=1e-4)


def products_with_reflections(library: Library) -> None:
    """Q R is the matrix."""
    a, tau, area, info = random(9), numpy.zeros(3, "f4"), random(9), numpy.ones(1, "i4")
    matrix, handle = a.reshape(3, 3).T.copy(), solver_of(library)
    library.ok("cusolverDnSgeqrf", handle, 3, 3, pointer(a), 3, pointer(tau), pointer(area), 9, pointer(info))
    c = numpy.triu(a.reshape(3, 3).T).T.copy()
    library.ok("cusolverDnSormqr", handle, 0, 0, 3, 3, 3, pointer(a), 3, pointer(tau), pointer(c), 3, pointer(area), 9,
               pointer(info))
    assert library.newest(a=a, tau=tau, c=c, area=area, info=info) == ("cusolverDnSormqr", STREAM, [
        ("c", 12, 3, 12, "b"), ("a", 12, 3, 12, "r"), ("tau", 12, 1, 12, "r"), ("area", 36, 1, 36, "w"),
        ("info", 4, 1, 4, "w")])
    assert numpy.allclose(c.T, matrix, atol=1e-4)


def values_of_a_batch(library: Library) -> None:
    a, area, infos, parameters = random(8), random(8), numpy.ones(2, "i4"), c_void_p()
    values, u, v = numpy.zeros(4, "f4"), numpy.zeros(8, "f4"), numpy.zeros(8, "f4")
    expected = numpy.linalg.svd(a.reshape(2, 2, 2), compute_uv=False)
    library.ok("cusolverDnCreateGesvdjInfo", byref(parameters))
    library.ok("cusolverDnSgesvdjBatched", solver_of(library), 1, 2, 2, pointer(a), 2, pointer(values), pointer(u), 2,
               pointer(v), 2, pointer(area), 8, pointer(infos), parameters, 2)
    assert library.newest(a=a, values=values, u=u, v=v, area=area, infos=infos) == (
        "cusolverDnSgesvdjBatched", STREAM, [
            ("a", 8, 4, 8, "b"), ("values", 8, 2, 8, "w"), ("u", 8, 4, 8, "w"), ("v", 8, 4, 8, "w"),
            ("area", 32, 1, 32, "w"), ("infos", 8, 1, 8, "w")])
    assert numpy.allclose(values.reshape(2, 2), expected, atol=1e-4)
    assert list(infos) == [0, 0]


def factors_of_a_batch(library: Library) -> None:
    pointers, infos = numpy.zeros(3, "u8"), numpy.ones(3, "i4")
    library.ok("cusolverDnSpotrfBatched", solver_of(library), 0, 2, pointer(pointers), 2, pointer(infos), 3)
    assert library.newest(pointers=pointers, infos=infos) == ("cusolverDnSpotrfBatched", STREAM, [
        ("pointers", 24, 1, 24, "r"), ("infos", 12, 1, 12, "w")])
    assert list(infos) == [0, 0, 0]


CALLS: list[Callable[[Library], None]] = [
    numbers_follow_from_the_seed, numbers_follow_from_the_offset, a_product, a_product_that_is_added,
    a_product_with_a_transposed_matrix, a_batch_of_products, a_product_with_a_null_factor,
    equations_of_a_triangle, equations_of_an_upper_triangle, a_product_with_a_diagonal, a_transform_to_complex_numbers,
    a_transform_to_real_numbers, a_transform_in_its_place, transforms_with_a_work_area, equations,
    values_and_vectors, a_triangle, equations_of_any_type, products_with_reflections, values_of_a_batch,
    factors_of_a_batch, *play_sparse.CALLS, sorting, sorting_by_keys]


def wrong(path: str) -> list[str]:
    found = []
    for call in CALLS:
        try:
            call(Library(path))
        except AssertionError:
            found.append(call.__name__)
    return found


if __name__ == "__main__":
    print(json.dumps(wrong(sys.argv[1])))
