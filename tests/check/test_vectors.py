"""cuBLAS's functions of vectors, and of matrices and vectors, without a GPU: they compute, and they are checked."""
from __future__ import annotations

import pytest
from checked_libraries import needs
from closed_libraries import BEGIN

pytestmark = pytest.mark.simulator
START = BEGIN + """
on(a)
TYPES = {"S": "f4", "D": "f8", "C": "c8", "Z": "c16"}
REAL = {"S": "S", "D": "D", "C": "Sc", "Z": "Dz"}
rng = numpy.random.default_rng(5)

def made(letter, *shape):
    array = rng.integers(-9, 9, shape)
    return (array + 1j * rng.integers(-9, 9, shape) if letter in "CZ" else array).astype(TYPES[letter])

def pointer(array):
    return c_void_p(array.ctypes.data)

def call(name, *arguments):
    return getattr(cublas, "cublas" + name)(handle, *arguments)

def same(p, array):
    ok(driver.cuCtxSynchronize())
    found = host(p, numpy.ascontiguousarray(array))
    assert numpy.allclose(found, array), (found, array)
"""
VECTORS = START + """
for letter in TYPES:
    x, y, alpha = made(letter, 12), made(letter, 12), made(letter, 1)
    p, q = device(x), device(y)
    ok(call(letter + "axpy_v2", 6, pointer(alpha), p, 2, q, 1))
    y[:6] += alpha * x[::2]
    same(q, y)
    ok(call(letter + "axpy_v2", 4, pointer(alpha), p, -1, q, 3))            # a negative step: backwards
    y[::3] += alpha * x[:4][::-1]
    same(q, y)
    ok(call(letter + "scal_v2", 6, pointer(alpha), p, 2))
    x[::2] *= alpha
    same(p, x)
    ok(call(letter + "swap_v2", 12, p, 1, q, 1))
    x, y = y, x
    same(p, x), same(q, y)
    ok(call(letter + "copy_v2", 5, p, 1, q, 2))
    y[:10:2] = x[:5]
    same(q, y)
    for function, expected in [("dotu", x @ y), ("dotc", numpy.vdot(x, y))] if letter in "CZ" else [("dot", x @ y)]:
        out = made(letter, 1)
        ok(call(letter + function + "_v2", 12, p, 1, q, 1, pointer(out)))    # the host waits
        assert numpy.allclose(out, expected), function
        where = device(out * 0)
        ok(cublas.cublasSetPointerMode_v2(handle, 1))
        ok(call(letter + function + "_v2", 12, p, 1, q, 1, where))
        ok(cublas.cublasSetPointerMode_v2(handle, 0))
        same(where, numpy.array([expected], TYPES[letter]))
    size = abs(x.real) + abs(x.imag)
    out = numpy.zeros(1, "f4" if letter in "SC" else "f8")
    for function, expected in [("nrm2", numpy.sqrt((abs(x) ** 2).sum())), ("asum", size.sum())]:
        ok(call(REAL[letter] + function + "_v2", 12, p, 1, pointer(out)))
        assert numpy.allclose(out, expected), function
    ok(call(f"I{letter.lower()}amax_v2", 12, p, 1, byref(number)))
    assert number.value == size.argmax() + 1
    ok(call(f"I{letter.lower()}amin_v2", 6, p, 2, byref(number)))
    assert number.value == size[::2].argmin() + 1
    ok(call(f"I{letter.lower()}amax_v2", 0, p, 1, byref(number)))
    assert number.value == 0
half = rng.integers(-9, 9, 8).astype("f2")
out = numpy.zeros(1, "f2")
ok(cublas.cublasDotEx(handle, 8, device(half), 2, 1, device(half), 2, 1, pointer(out), 2, 0))
assert out[0] == (half * half).sum()
"""
MATRICES = START + """
for letter in TYPES:
    A, B = made(letter, 5, 3), made(letter, 5, 3)                           # by columns: 3 rows and 5 columns
    x, y, alpha, beta = made(letter, 5), made(letter, 3), made(letter, 1), made(letter, 1)
    p, q, r, s = device(A), device(x), device(y), device(B)
    ok(call(letter + "gemv_v2", 0, 3, 5, pointer(alpha), p, 3, q, 1, pointer(beta), r, 1))
    y = alpha * (A.T @ x) + beta * y
    same(r, y)
    for operation in (1, 2):
        ok(call(letter + "gemv_v2", operation, 3, 5, pointer(alpha), p, 3, r, 1, pointer(beta), q, 1))
        x = alpha * ((A if operation == 1 else A.conj()) @ y) + beta * x
        same(q, x)
    for function in ("geru", "gerc") if letter in "CZ" else ("ger",):
        ok(call(letter + function + "_v2", 3, 5, pointer(alpha), r, 1, q, 1, p, 3))
        A = A + alpha * numpy.outer(x.conj() if function == "gerc" else x, y)
        same(p, A)
    t = device(made(letter, 5, 3))
    ok(call(letter + "geam", 0, 0, 3, 5, pointer(alpha), p, 3, pointer(beta), s, 3, t, 3))
    same(t, alpha * A + beta * B)
    t = device(made(letter, 3, 5))
    ok(call(letter + "geam", 1, 1, 5, 3, pointer(alpha), p, 3, pointer(beta), s, 3, t, 5))
    same(t, (alpha * A + beta * B).T)
    for fill in (0, 1):
        C = made(letter, 3, 3)
        t = device(C)
        ok(call(letter + "syrk_v2", fill, 0, 3, 5, pointer(alpha), p, 3, pointer(beta), t, 3))
        whole = alpha * (A.T @ A) + beta * C.T
        part = numpy.tril(whole) + numpy.triu(C.T, 1) if fill == 0 else numpy.triu(whole) + numpy.tril(C.T, -1)
        same(t, part.T)
zero = numpy.zeros(1, "f4")
assert call("Sgemv_v2", 3, 3, 5, pointer(zero), x_, 3, x_, 1, pointer(zero), x_, 1) == 7
assert call("Sgemv_v2", 0, 3, 5, pointer(zero), x_, 2, x_, 1, pointer(zero), x_, 1) == 7
assert call("Sgemv_v2", 0, 3, 5, pointer(zero), x_, 3, x_, 0, pointer(zero), x_, 1) == 7
assert call("Sger_v2", 3, -5, pointer(zero), x_, 1, x_, 1, x_, 3) == 7
assert call("Ssyrk_v2", 2, 0, 3, 5, pointer(zero), x_, 3, pointer(zero), x_, 3) == 7
assert call("Sgeam", 1, 0, 3, 3, pointer(zero), x_, 3, pointer(zero), y_, 3, x_, 3) == 7      # in its own place
assert call("Sdot_v2", 3, x_, 1, x_, 1, None) == 7
assert cublas.cublasSscal_v2(None, 1, pointer(zero), x_, 1) == 1
""".replace("x_", "q").replace("y_", "r")
# The first works on `x`, the second on `x` and perhaps others.
RACES = {
    "axpy": ("fill(x)", "axpy(x, y)", "write/read"),
    "axpy's target": ("fill(y)", "axpy(x, y)", "write/write"),
    "between": ("fill(x, 2)", "axpy(x, y, 2)", None),
    "dot": ("fill(y)", "dot(x, y, z)", "write/read"),
    "dot's result": ("dot(x, y, z)", "fill(z)", "write/write"),
    "norm": ("fill(x)", "norm(x, z)", "write/read"),
    "gemv": ("fill(x)", "gemv(x, y, z)", "write/read"),
    "gemv's result": ("gemv(x, y, z)", "fill(z)", "write/write"),
    "gemv of nothing": ("fill(x)", "gemv(x, y, z, 0)", None),
    "ger": ("ger(x, y, z)", "fill(z)", "write/write"),
    "other triangle": ("fill(z, 1)", "syrk(x, z)", None),
    "triangle": ("fill(z, 8)", "syrk(x, z)", "write/write"),
}
RACE = START + """
one, zero = numpy.ones(1, "f4"), numpy.zeros(1, "f4")
def fill(p, first=0):
    stream = a if on_a else b
    ok(driver.cuMemsetD8Async(p.value + 4 * first, 0, 4, stream))
def axpy(p, q, step=1):
    ok(call("Saxpy_v2", 8 // step, pointer(one), c_void_p(p.value + 4 * (step - 1)), step, q, 1))
def dot(p, q, r):
    ok(cublas.cublasSetPointerMode_v2(handle, 1))
    ok(call("Sdot_v2", 8, p, 1, q, 1, r))
    ok(cublas.cublasSetPointerMode_v2(handle, 0))
def norm(p, r):
    ok(cublas.cublasSetPointerMode_v2(handle, 1))
    ok(call("Snrm2_v2", 8, p, 1, r))
    ok(cublas.cublasSetPointerMode_v2(handle, 0))
def gemv(p, q, r, alpha=1):
    ok(call("Sgemv_v2", 0, 8, 8, pointer(one if alpha else zero), p, 8, q, 1, pointer(zero), r, 1))
def ger(p, q, r):
    ok(call("Sger_v2", 8, 8, pointer(one), p, 1, q, 1, r, 8))
def syrk(p, r):                                          # the upper triangle: of column 1, rows 0 and 1
    ok(call("Ssyrk_v2", 1, 0, 8, 8, pointer(one), p, 8, pointer(zero), r, 8))
on_a = True
FIRST
wait()
on(b)
on_a = False
SECOND
ok(driver.cuCtxSynchronize())
"""


@pytest.mark.parametrize("program", [VECTORS, MATRICES], ids=["vectors", "matrices"])
def test_they_compute(checked, program):
    run = checked(program)
    assert (run.pairs, run.returncode) == ([], 0), run.stderr


@pytest.mark.parametrize("name", RACES)
def test_they_are_checked(checked, name):
    first, second, pair = RACES[name]
    program = RACE.replace("FIRST", first).replace("SECOND", second)
    run = checked(program)
    assert run.pairs == ([(pair, True)] if pair else []), run.stderr
    assert checked(program, "fixed").pairs == [], run.stderr


CUPY = """
import sys
import cupy, numpy
from cupy import cublas
a, b = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
x, A = cupy.asarray(numpy.ones(64, "f4")), cupy.asarray(numpy.ones((64, 64), "f4"))
cupy.cuda.Device().synchronize()
with a:
    y = A @ x                                            # a matrix and a vector
if "fixed" in sys.argv:
    b.wait_event(a.record())
with b:
    z = cupy.dot(y, x)
    n = cupy.linalg.norm(x)
    m = cublas.nrm2(x)
cupy.cuda.Device().synchronize()
assert (y.get() == 64).all() and float(m) == 8           # sums and norms are kernels of CuPy's
"""


@needs("cupy")
def test_cupy_calls_them(checked):
    run = checked(CUPY)
    assert ("write/read", True) in run.pairs, run.stderr
    run = checked(CUPY, "fixed")
    assert (run.pairs, run.returncode) == ([], 0), run.stderr
