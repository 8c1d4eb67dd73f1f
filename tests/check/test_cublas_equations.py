"""Equations of triangles and products with diagonals, of the simulated cuBLAS: `trsm`, `trsmBatched`, `dgmm`."""
from __future__ import annotations

import pytest
from checked_libraries import check_call_of_cupys, check_wait_and_repair, needs
from closed_libraries import BEGIN, NUMBERS

pytestmark = pytest.mark.simulator
ONE = "byref(c_float(1))"
# Each reads what gemm has written, or writes what it has read.
SECOND = {
    "the triangle": ("write/read", "z, x, y", f"cublasStrsm_v2(handle, 0, 0, 0, 0, 8, 8, {ONE}, z, 8, p, 8)"),
    "the right sides": ("write/write", "z, x, y", f"cublasStrsm_v2(handle, 1, 1, 1, 1, 8, 8, {ONE}, x, 8, z, 8)"),
    "what is read": ("read/write", "p, x, z", f"cublasStrsm_v2(handle, 0, 0, 0, 0, 8, 8, {ONE}, y, 8, z, 8)"),
    "the matrix": ("write/read", "z, x, y", "cublasSdgmm(handle, 0, 8, 8, z, 8, x, 1, p, 8)"),
    "the diagonal": ("write/read", "z, x, y", "cublasSdgmm(handle, 1, 8, 8, x, 8, z, 1, p, 8)"),
    "the product": ("write/write", "z, x, y", "cublasSdgmm(handle, 1, 8, 8, x, 8, y, 1, z, 8)"),
    "the pointers": ("write/read", "z, x, y", f"cublasStrsmBatched(handle, 0, 0, 0, 0, 2, 2, {ONE}, z, 2, x, 2, 8)"),
}


@pytest.mark.parametrize(("pair", "first", "second"), SECOND.values(), ids=SECOND)
def test_the_missing_wait_is_found_and_its_repair_is_silent(checked, pair, first, second):
    made, *factors = first.split(", ")
    check_wait_and_repair(checked, BEGIN + f"""
p = device(ones)
on(a)
ok(gemm({", ".join(factors)}, {made}))                      # the first
wait()
on(b)
ok(cublas.{second})         # the second
""", pair)


def test_two_triangles_are_apart(checked):
    """Of a unit triangle its diagonal is not read, either."""
    program = BEGIN + """
areas, first = [device(ones), device(ones)], device(numpy.ones(81, "f4"))
on(a)
ok(cublas.cublasStrsm_v2(handle, 0, 0, 0, 1, 8, 8, byref(c_float(1)), first, 9, areas[0], 8))   # below the diagonal
on(b)
upper = 0 if "apart" in sys.argv else 1
ok(cublas.cublasScopy_v2(handle, 7, y, 1, c_void_p(first.value + 36 * 7 + 4 * upper), 1))       # above it
ok(cublas.cublasScopy_v2(handle, 8, y, 1, first, 10))                                           # and on it
if "below" in sys.argv:
    ok(cublas.cublasScopy_v2(handle, 8, y, 1, c_void_p(first.value + 4), 1))
"""
    assert checked(program, "apart").pairs == []
    assert checked(program, "apart", "below").pairs == [("read/write", True)]


EACH = NUMBERS + """
apply = (lambda array: array, numpy.transpose, lambda array: array.conj().T)
for letter, dtype in zip("SDCZ", "fdFD"):
    def call(name, *arguments):
        ok(getattr(cublas, "cublas" + letter + name)(handle, *arguments))
"""
TRIANGLES = """
    alpha = numpy.full(1, 2, dtype)
    for side in (0, 1):
        n = (5, 3)[side]
        for fill, cut in ((0, numpy.tril), (1, numpy.triu)):
            for operation in range(3):
                for unit in (0, 1):
                    A, B = random((7, n), dtype), random((6, 3), dtype)
                    A[:n] += 4 * numpy.eye(n, dtype=dtype)
                    at = device(alpha).value if unit else alpha.ctypes.data
                    ok(cublas.cublasSetPointerMode_v2(handle, unit))
                    p, q = device(A), device(B)
                    call("trsm_v2", side, fill, operation, unit, 5, 3, c_void_p(at), p, 7, q, 6)
                    ok(driver.cuCtxSynchronize())
                    made, T = host(q, B), cut(A[:n])
                    if unit:
                        T = T - numpy.diag(numpy.diag(T)) + numpy.eye(n)
                    T = apply[operation](T)
                    product = T @ made[:5] if side == 0 else made[:5] @ T
                    assert numpy.allclose(product, 2 * B[:5], rtol=1e-3, atol=1e-3), (dtype, side, fill, operation)
                    assert (made[5] == B[5]).all() and (host(p, A) == A).all()
    ok(cublas.cublasSetPointerMode_v2(handle, 0))
    p = device(B)
    call("trsm_v2", 0, 0, 0, 0, 5, 3, c_void_p(numpy.zeros(1, dtype).ctypes.data), None, 5, p, 6)
    ok(driver.cuCtxSynchronize())
    assert (host(p, B)[:5] == 0).all()                      # of no right sides the triangle is not read
"""
DIAGONALS = """
    A, D = random((6, 4), dtype), random(12, dtype)
    for side, step in ((0, 2), (1, 3), (1, -1)):
        p, q, r = device(A), device(D), device(numpy.zeros_like(A))
        call("dgmm", side, 5, 4, p, 6, q, step, r, 6)
        ok(driver.cuCtxSynchronize())
        count = (5, 4)[side]
        diagonal = D[:count][::-1] if step < 0 else D[::step][:count]
        expected = numpy.zeros_like(A)
        expected[:5] = diagonal[:, None] * A[:5] if side == 0 else A[:5] * diagonal
        assert numpy.allclose(host(r, A), expected)
    call("dgmm", 0, 5, 4, p, 6, q, 1, p, 6)                 # in its place
    ok(driver.cuCtxSynchronize())
    assert numpy.allclose(host(p, A)[:5], D[:5, None] * A[:5])
"""


@pytest.mark.parametrize("program", [EACH + TRIANGLES, EACH + DIAGONALS], ids=["triangles", "diagonals"])
def test_what_is_computed(checked, program):
    """Each is NumPy's, in each type, on both sides, with gaps between columns and a factor in the device's memory."""
    run = checked(BEGIN + program)
    assert (run.returncode, run.pairs) == (0, []), run.stderr


def test_batches_are_read_through_pointers(checked):
    """What is behind them is not known, and that is said."""
    run = checked(BEGIN + """
one = byref(c_float(1))
ok(cublas.cublasStrsmBatched(handle, 0, 0, 0, 0, 2, 2, one, x, 2, y, 2, 8))
ok(cublas.cublasSgeqrfBatched(handle, 2, 2, x, 2, y, byref(number), 8))
assert number.value == 0
ok(driver.cuCtxSynchronize())
assert (host(x, ones) == 1).all()
""")
    assert (run.returncode, run.pairs) == (0, []), run.stderr
    assert list(run.notes["notes"]) == [
        "1 launch of a kernel computed nothing, because the check runs without a GPU",
        "2 launches were not judged, because it is not known what these kernels do to memory: cublasSgeqrfBatched, "
        "cublasStrsmBatched"]


def test_wrong_arguments(checked):
    run = checked(BEGIN + """
one = byref(c_float(1))
def trsm(side=0, fill=0, operation=0, diagonal=0, m=8, n=8, lda=8, ldb=8, of=handle):
    return cublas.cublasStrsm_v2(of, side, fill, operation, diagonal, m, n, one, x, lda, y, ldb)
def batched(m=2, lda=2, count=8, of=handle):
    return cublas.cublasStrsmBatched(of, 0, 0, 0, 0, m, 2, one, x, lda, y, 2, count)
assert trsm(of=None) == 1 and trsm() == 0
for wrong in ({"side": 2}, {"fill": 2}, {"operation": 3}, {"diagonal": 2}, {"m": -1}, {"n": -1}, {"lda": 7},
              {"ldb": 7}):
    assert trsm(**wrong) == 7, wrong
assert trsm(side=1, n=4, lda=4) == 0 and trsm(m=0) == 0
assert batched(of=None) == 1 and batched(lda=1) == 7 and batched(count=-1) == 7 and batched(m=0) == 0
assert cublas.cublasSdgmm(None, 0, 8, 8, x, 8, y, 1, z, 8) == 1
assert cublas.cublasSdgmm(handle, 2, 8, 8, x, 8, y, 1, z, 8) == 7
assert cublas.cublasSdgmm(handle, 0, 8, 8, x, 7, y, 1, z, 8) == 7
assert cublas.cublasSdgmm(handle, 0, 8, 8, x, 8, y, 1, c_void_p(12345), 8) == 13
assert cublas.cublasSgeqrfBatched(handle, 2, 2, x, 1, y, byref(number), 8) == 7 and number.value == -4
assert cublas.cublasSgeqrfBatched(handle, -2, 2, x, 2, y, byref(number), 8) == 7 and number.value == -1
""")
    assert (run.returncode, run.pairs) == (0, []), run.stderr


def test_a_factor_is_not_null(checked):
    """... on the host or on the device, and neither is the place of an answer."""
    run = checked(BEGIN + """
one, L = byref(c_float(1)), c_longlong
def calls(alpha, beta):
    "With both factors, then with one."
    yield "Sgemm_v2", 0, 0, 2, 2, 2, alpha, x, 2, y, 2, beta, z, 2
    yield "SgemmStridedBatched", 0, 0, 2, 2, 2, alpha, x, 2, L(4), y, 2, L(4), beta, z, 2, L(4), 3
    yield "SgemmBatched", 0, 0, 2, 2, 2, alpha, x, 2, y, 2, beta, z, 2, 8
    yield "GemmEx", 0, 0, 2, 2, 2, alpha, x, 0, 2, y, 0, 2, beta, z, 0, 2, 68, -1
    yield "Sgemv_v2", 0, 2, 2, alpha, x, 2, y, 1, beta, z, 1
    yield "Sgeam", 0, 0, 2, 2, alpha, x, 2, beta, y, 2, z, 2
    yield "Ssyrk_v2", 0, 0, 2, 2, alpha, x, 2, beta, z, 2
    if beta is one:
        yield "Saxpy_v2", 8, alpha, x, 1, y, 1
        yield "AxpyEx", 8, alpha, 0, x, 0, 1, y, 0, 1, 0
        yield "Sscal_v2", 8, alpha, x, 1
        yield "Sger_v2", 2, 2, alpha, x, 1, y, 1, z, 2
        yield "Strsm_v2", 0, 0, 0, 0, 2, 2, alpha, x, 2, y, 2
        yield "StrsmBatched", 0, 0, 0, 0, 2, 2, alpha, x, 2, y, 2, 8
for mode in (0, 1):
    ok(cublas.cublasSetPointerMode_v2(handle, mode))
    for factors in ((None, one), (one, None)):
        for name, *arguments in calls(*factors):
            assert getattr(cublas, "cublas" + name)(handle, *arguments) == 7, (name, mode, factors)
assert cublas.cublasSaxpy_v2(handle, 0, None, x, 1, y, 1) == 0                  # nothing is to be done
assert cublas.cublasGetPointerMode_v2(handle, None) == cublas.cublasGetVersion_v2(handle, None) == 7
ok(cublas.cublasSetPointerMode_v2(handle, 0))
for name, *arguments in calls(one, one):
    ok(getattr(cublas, "cublas" + name)(handle, *arguments))
""")
    assert (run.returncode, run.pairs) == (0, []), run.stderr


CUPY = """
from cupy import cublas
from cupyx.scipy import linalg
x, y = (cupy.asarray(numpy.asfortranarray(numpy.eye(8) + 1)) for _ in range(2))
d = cupy.asarray(numpy.ones(8))
"""


@needs("cupy", "nvidia.cuda_nvrtc")
@pytest.mark.parametrize("call", ["linalg.solve_triangular(x, y, lower=True)", "cublas.dgmm('L', x, d)"])
def test_races_with_cupys_calls(checked, call):
    check_call_of_cupys(checked, CUPY, call)
