"""Programs that call cuRAND and cuBLAS by their names, and CuPy: without a GPU they get simulated ones."""
from __future__ import annotations

import pytest
from checked_libraries import check_wait_and_repair, check_wait_and_repair_in_cupy, needs
from closed_libraries import BEGIN

import xlogmem.check.cudart

pytestmark = pytest.mark.simulator
RACES = {
    "write/read": """
on(a)
ok(curand.curandGenerateUniform(generator, x, c_size_t(64)))        # the first
wait()
on(b)
ok(gemm(x, y, z))                                                   # the second
""",
    "read/write": """
on(a)
ok(gemm(x, y, z))                                                   # the first
wait()
on(b)
ok(curand.curandGenerateNormal(generator, y, c_size_t(64), c_float(0), c_float(1)))     # the second
""",
    "write/write": """
on(a)
ok(gemm(x, y, z))                                                   # the first
wait()
on(b)
ok(gemm(x, y, z))                                                   # the second
""",
}


@pytest.mark.parametrize(("pair", "program"), RACES.items(), ids=RACES)
def test_the_missing_wait_is_found_and_its_repair_is_silent(checked, pair, program):
    check_wait_and_repair(checked, BEGIN + program, pair)


def test_panels_side_by_side_are_apart(checked):
    program = BEGIN + """
for stream, first in ((a, 0), (b, 4 if "apart" in sys.argv else 3)):
    on(stream)
    ok(gemm(x, y, c_void_p(z.value + 4 * first), m=4, n=8, k=8, ldc=8))
"""
    assert checked(program).pairs == [("write/write", True)]
    assert checked(program, "apart").pairs == []


def test_random_numbers(checked):
    """They follow from the seed and the offset, and have the right distribution."""
    run = checked(BEGIN + """
n = 1 << 16
def made(name, dtype, *more, count=n):
    array = numpy.zeros(n, dtype)
    p = device(array)
    ok(getattr(curand, name)(generator, p, c_size_t(count), *more))
    ok(driver.cuCtxSynchronize())
    return host(p, array)

for dtype, name in (("f4", "curandGenerateUniform"), ("f8", "curandGenerateUniformDouble")):
    uniform = made(name, dtype)
    assert 0 < uniform.min() < 0.01 and 0.99 < uniform.max() < 1 and abs(uniform.mean() - 0.5) < 0.01
for dtype, c, end in (("f4", c_float, ""), ("f8", c_double, "Double")):
    normal = made("curandGenerateNormal" + end, dtype, c(5), c(2))
    assert abs(normal.mean() - 5) < 0.1 and abs(normal.std() - 2) < 0.1
    assert abs(numpy.log(made("curandGenerateLogNormal" + end, dtype, c(5), c(2))).mean() - 5) < 0.1
words = made("curandGenerate", "u4")
assert len(set(words)) > n - 10 and words.max() > 0xfff00000
poisson = made("curandGeneratePoisson", "u4", c_double(3))
assert abs(poisson.mean() - 3) < 0.1 and abs(poisson.var() - 3) < 0.2

def again(offset):
    ok(curand.curandSetPseudoRandomGeneratorSeed(generator, c_ulonglong(7)))
    ok(curand.curandSetGeneratorOffset(generator, c_ulonglong(offset)))
    return made("curandGenerate", "u4", count=1000)[:1000]
assert (again(0) == again(0)).all() and (again(0)[500:] == again(500)[:500]).all() and (again(0) != again(1)).any()
assert curand.curandGenerateNormal(generator, x, c_size_t(3), c_float(0), c_float(1)) == 105    # made in pairs
assert curand.curandGenerateUniform(generator, c_void_p(12345), c_size_t(3)) == 201
assert curand.curandCreateGenerator(byref(c_void_p()), 7) == 103
own, numbers = c_void_p(), numpy.zeros(4, "f4")
ok(curand.curandCreateGeneratorHost(byref(own), 100))
ok(curand.curandGenerateUniform(own, c_void_p(numbers.ctypes.data), c_size_t(4)))
assert numbers.all()
""")
    assert (run.returncode, run.pairs) == (0, []), run.stderr


RANDOM = """
rng = numpy.random.default_rng(0)
def random(shape, dtype):
    made = rng.integers(-4, 5, shape) + (1j * rng.integers(-4, 5, shape) if dtype in "FD" else 0)
    return numpy.asfortranarray(made.astype(dtype))
"""
OF_EACH_TYPE = """
apply = (lambda array: array, numpy.transpose, lambda array: array.conj().T)
for dtype, letter in zip("fdFD", "SDCZ"):
    factors = numpy.array([2, 3], dtype)
    for of_a in range(3):
        for of_b in range(3):
            A, B = random((4, 3) if of_a == 0 else (3, 4), dtype), random((3, 5) if of_b == 0 else (5, 3), dtype)
            C = random((7, 5), dtype)
            p, q, r = map(device, (A, B, C))
            at = factors.ctypes.data
            if of_b == 2:
                at = device(factors).value
            ok(cublas.cublasSetPointerMode_v2(handle, int(of_b == 2)))
            ok(getattr(cublas, f"cublas{letter}gemm_v2")(
                handle, of_a, of_b, 4, 5, 3, c_void_p(at), p, A.shape[0], q, B.shape[0],
                c_void_p(at + factors.itemsize), r, 7))
            ok(driver.cuCtxSynchronize())
            expected = C.copy(order="F")
            expected[:4] = 2 * apply[of_a](A) @ apply[of_b](B) + 3 * C[:4]
            assert numpy.array_equal(host(r, C), expected), (dtype, of_a, of_b)
"""
MIXED_AND_BATCHES = """
ok(cublas.cublasSetPointerMode_v2(handle, 0))
one, zero = numpy.ones(1, "f4"), numpy.zeros(1, "f4")
for dtype, code, result, code_of_result, compute in (("f2", 2, "f2", 2, 68), ("f4", 0, "f4", 0, 68),
                                                     ("i1", 3, "i4", 10, 72)):
    A, B, C = (random(shape, dtype).astype(dtype) for shape in ((2, 3), (3, 2), (2, 2)))
    p, q, r = device(A), device(B), device(C.astype(result))
    scale = numpy.array([1, 0], "i4" if compute == 72 else "f4")
    ok(cublas.cublasGemmEx(handle, 0, 0, 2, 2, 3, c_void_p(scale.ctypes.data), p, code, 2, q, code, 3,
                           c_void_p(scale.ctypes.data + 4), r, code_of_result, 2, compute, -1))
    ok(driver.cuCtxSynchronize())
    assert numpy.array_equal(host(r, C.astype(result)), (A.astype("f4") @ B.astype("f4")).astype(result)), dtype
batch = rng.integers(0, 5, (3, 4, 4)).astype("f4")          # by rows: C is the transposed product
p, q, r = device(batch), device(batch[:1]), device(batch)
ok(cublas.cublasSgemmStridedBatched(handle, 0, 0, 4, 4, 4, c_void_p(one.ctypes.data), q, 4, c_longlong(0), p, 4,
                                    c_longlong(16), c_void_p(zero.ctypes.data), r, 4, c_longlong(16), 3))
ok(driver.cuCtxSynchronize())
assert numpy.array_equal(host(r, batch), batch @ batch[0])
assert gemm(x, y, c_void_p(12345)) == 13 and gemm(x, y, z, ldc=4) == 7 and gemm(x, y, z, m=-1) == 7
assert gemm(x, y, c_void_p(0), m=0) == 0
ok(cublas.cublasGetVersion_v2(handle, byref(number)))
assert number.value // 10000 == MAJOR
""".replace("MAJOR", str(xlogmem.check.cudart._usual_major()))


@pytest.mark.parametrize("program", [OF_EACH_TYPE, MIXED_AND_BATCHES], ids=["each type", "mixed types, batches"])
def test_products(checked, program):
    """... are NumPy's, in each type, with transposed factors, gaps between columns and a sum; a factor in the device's
    memory, and batches."""
    run = checked(BEGIN + RANDOM + program)
    assert (run.returncode, run.pairs) == (0, []), run.stderr


def test_halves_are_rounded_as_numpys(checked):
    run = checked(BEGIN + """
values = numpy.concatenate([rng.standard_normal(4000) * 10.0 ** rng.integers(-9, 6, 4000) for rng in
                            [numpy.random.default_rng(1)]] + [[0, -0.0, numpy.inf, 65519, 65520, 2.0**-24, 2.0**-25]])
A = values.astype("f4")
with numpy.errstate(over="ignore"):
    expected = A.astype("f2")
p, q, r = device(A), device(numpy.ones(1, "f4")), device(expected)
ok(cublas.cublasSgemmEx(handle, 0, 0, A.size, 1, 1, byref(c_float(1)), p, 0, A.size, q, 0, 1, byref(c_float(0)), r, 2,
                        A.size))
ok(driver.cuCtxSynchronize())
assert numpy.array_equal(host(r, expected), expected)
back = device(A)
ok(cublas.cublasSgemmEx(handle, 0, 0, A.size, 1, 1, byref(c_float(1)), r, 2, A.size, q, 0, 1, byref(c_float(0)), back,
                        0, A.size))
ok(driver.cuCtxSynchronize())
assert numpy.array_equal(host(back, A), expected.astype("f4"))
""")
    assert (run.returncode, run.pairs) == (0, []), run.stderr


def test_a_product_that_takes_too_long_is_not_computed(checked):
    """... and counts as a launch that computed nothing; what it reads and writes is known all the same."""
    run = checked(BEGIN + """
on(a)
ok(cublas.cublasSgemmStridedBatched(handle, 0, 0, 8, 8, 8, byref(c_float(1)), x, 8, c_longlong(0), y, 8, c_longlong(0),
                                    byref(c_float(0)), z, 8, c_longlong(0), 1 << 30))
on(b)
ok(gemm(x, y, z))
""")
    assert run.pairs == [("write/write", True)], run.stderr
    assert "1 launch of a kernel computed nothing, because the check runs without a GPU" in run.notes["notes"]


def test_products_through_pointers(checked):
    """A kernel, which computes nothing, may have to write the pointers: they are read, and what is behind them is not
    known.  That is said once."""
    run = checked(BEGIN + """
ok(driver.cuMemsetD8Async(x.value, 0, 64, a))
wait()
on(b)
for _ in range(2):
    ok(cublas.cublasSgemmBatched(handle, 0, 0, 2, 2, 2, byref(c_float(1)), x, 2, y, 2, byref(c_float(0)), z, 2, 8))
ok(driver.cuCtxSynchronize())
assert (host(z, ones) == 1).all()
assert cublas.cublasSgemmBatched(handle, 0, 0, 2, 2, 2, byref(c_float(1)), x, 1, y, 2, byref(c_float(0)), z, 2, 8) == 7
""")
    assert run.pairs == [("write/read", True)], run.stderr
    assert list(run.notes["notes"]) == [
        "2 launches of kernels computed nothing, because the check runs without a GPU",
        "2 launches were not judged, because it is not known what these kernels do to memory: cublasSgemmBatched"]


def test_equations_through_pointers(checked):
    """The pivots and the results are known: each matrix counts as one that has factors."""
    run = checked(BEGIN + """
results, pivots = device(numpy.full(8, 7, "i4")), device(numpy.zeros(16, "i4"))
on(a)
ok(cublas.cublasSgetrfBatched(handle, 2, x, 2, pivots, results, 8))
wait()
on(b)
ok(cublas.cublasSgetrsBatched(handle, 0, 2, 1, x, 2, pivots, y, 2, byref(number), 8))
ok(cublas.cublasSgetriBatched(handle, 2, x, 2, None, y, 2, device(numpy.zeros(8, "i4")), 8))
ok(driver.cuCtxSynchronize())
assert (host(results, numpy.zeros(8, "i4")) == 0).all() and number.value == 0
assert cublas.cublasSgetrfBatched(handle, 2, x, 1, pivots, results, 8) == 7
assert cublas.cublasSgetrsBatched(handle, 0, 2, 1, x, 1, pivots, y, 2, byref(number), 8) == 7 and number.value == -5
""")
    assert run.pairs == [("write/read", True)], run.stderr
    assert list(run.notes["notes"]) == [
        "3 launches were not judged, because it is not known what these kernels do to memory: cublasSgetrfBatched, "
        "cublasSgetriBatched, cublasSgetrsBatched"]


def test_sorting_in_place_of_cupys(checked):
    """The order is NumPy's, in each type, with NaN last and equal numbers as they were."""
    run = checked(BEGIN + """
from xlogmem.check import cudart
thrust = cudart.thrust()
rng = numpy.random.default_rng(3)
def sort(name, dtype, rows, columns, *pointers, stream=None):
    return getattr(thrust, "xlogmem_" + name)(ctypes.c_char(dtype.encode()), *pointers, c_size_t(rows),
                                              c_size_t(columns), c_void_p(stream))
for dtype in "?bBhHiIlLqQefdFD":
    array = rng.integers(-9, 9, (3, 50)).astype(dtype)
    if dtype in "efdFD":
        array[:, ::7] = numpy.nan
    if dtype in "FD":
        array = (array + 1j * rng.integers(-2, 3, (3, 50))).astype(dtype)
    places = numpy.zeros((3, 50), "i8")
    p, q = device(array), device(places)
    ok(sort("lexsort", dtype, 3, 50, q, p))
    ok(driver.cuCtxSynchronize())
    assert numpy.array_equal(host(q, places)[0], numpy.lexsort(array)) or dtype in "FD", dtype
    ok(sort("argsort", dtype, 3, 50, q, p))
    ok(driver.cuCtxSynchronize())
    in_order = numpy.sort(array, axis=1)
    assert numpy.array_equal(host(q, places), numpy.argsort(array, axis=1, kind="stable")), dtype
    same = dict(equal_nan=dtype in "efdFD")
    assert numpy.array_equal(host(p, array), in_order, **same), dtype
    p = device(array)
    ok(sort("sort", dtype, 3, 50, p))
    ok(driver.cuCtxSynchronize())
    assert numpy.array_equal(host(p, array), in_order, **same), dtype
assert sort("sort", "M", 3, 50, p) == -1 and sort("sort", "f", 3, 50, c_void_p(12345)) == 1
places = device(numpy.zeros(64, "i8"))
ok(sort("lexsort", "f", 1, 64, places, x, stream=int(a)))
wait()
ok(sort("argsort", "f", 1, 64, places, x, stream=int(b)))
""")
    assert sorted(run.pairs) == [("read/write", True), ("write/write", True)], run.stderr


def test_a_captured_call_is_one_of_the_graph(checked):
    run = checked(BEGIN + """
on(a)
ok(driver.cuStreamBeginCapture(a, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
ok(gemm(x, y, z))
graph = ok(driver.cuGraphInstantiate(ok(driver.cuStreamEndCapture(a)), 0))
assert (host(z, ones) == 1).all()
ok(driver.cuGraphLaunch(graph, a))
ok(driver.cuStreamSynchronize(a))
assert (host(z, ones) == 8).all()
ok(driver.cuGraphLaunch(graph, a))
on(b)
ok(gemm(x, y, z))
""")
    assert run.pairs == [("write/write", True)], run.stderr


@pytest.mark.parametrize(("library", "name"), [
    ("libcublas.so.12", "cublasStrmm_v2"), ("libcublas.so.13", "cublasStrmm_v2"),
    ("libcublasLt.so.12", "cublasLtMatmul"), ("libcublasLt.so.13", "cublasLtMatmul"),
    ("libcurand.so.10", "curandGetDirectionVectors32")])
def test_what_is_missing_is_named_at_the_end(checked, library, name):
    run = checked(BEGIN + f"ok(ctypes.CDLL({library!r}).{name}())")
    assert run.notes["notes"][f"{name} is not simulated: the program may have ended for that"] == 1, run.notes["notes"]
    assert f"{name} is not simulated" in run.stderr


CUPY_RACES = {
    "random": """
cupy.random.seed(3)
with a:
    z = cupy.random.rand(1000)                              # the first
wait()
with b:
    y = z * 2                                               # the second
""",
    "product": """
with a:
    z = x @ x                                               # the first
wait()
with b:
    y = cupy.dot(x, z)                                      # the second
""",
    "sort": """
with a:
    x.sort()                                                # the first
wait()
with b:
    y = x * 2                                               # the second
""",
}
CUPY = """
import sys
import cupy, numpy
a, b = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
x = cupy.asarray(numpy.ones((32, 32)))
cupy.cuda.Device().synchronize()
def wait():
    if "fixed" in sys.argv:
        b.wait_event(a.record())
"""


@needs("cupy", "nvidia.cuda_nvrtc")
@pytest.mark.parametrize("program", CUPY_RACES.values(), ids=CUPY_RACES)
def test_races_with_cupys_calls_of_libraries(checked, program):
    end = "\nwait()\na.synchronize()\nb.synchronize()\n"
    check_wait_and_repair_in_cupy(checked, CUPY + program + end, "write/read")


@needs("cupy", "nvidia.cuda_nvrtc")
def test_cupys_random_numbers_run_to_their_end(checked):
    run = checked("""
import cupy
from cupy import asnumpy, random
random.seed(1)
first = asnumpy(random.rand(1000))
assert 0 < first.min() and first.max() < 1
random.seed(1)
assert (asnumpy(random.rand(1000)) == first).all()
normal = asnumpy(random.normal(10, 2, 10001))
assert abs(normal.mean() - 10) < 0.2 and abs(normal.std() - 2) < 0.2
uniform = asnumpy(random.RandomState(3).uniform(0, 1, 10))
assert 0 < uniform.min() and uniform.max() < 1
assert ((0 <= (words := asnumpy(random.randint(0, 9, 100)))) & (words < 9)).all()
assert sorted(asnumpy(random.permutation(20)).tolist()) == list(range(20))
shuffled = cupy.arange(10)
random.shuffle(shuffled)
for made in (random.randn(7), random.standard_normal((2, 3)), random.choice(9, 3), random.poisson(3, 5),
             random.random_sample(3), random.default_rng(1).random(5)):
    assert made.size
""")
    assert (run.returncode, run.pairs) == (0, []), run.stderr


@needs("cupy", "nvidia.cuda_nvrtc")
def test_cupys_products_are_numpys(checked):
    run = checked("""
import cupy, numpy
rng = numpy.random.default_rng(0)
for dtype in "efdFD":
    A, B = (rng.integers(-3, 4, shape).astype(dtype) for shape in ((4, 3), (3, 5)))
    if dtype in "FD":
        A = A + A.dtype.type(1j) * A[::-1]
    x, y = cupy.asarray(A), cupy.asarray(B)
    for made, expected in ((x @ y, A @ B), (cupy.dot(x, y), A @ B), (cupy.matmul(y.T, x.T), B.T @ A.T),
                           (x @ x[0], A @ A[0]), (x[0] @ y, A[0] @ B),
                           (cupy.tensordot(x, y, axes=1), numpy.tensordot(A, B, axes=1))):
        assert numpy.array_equal(cupy.asnumpy(made), expected), dtype
    if dtype != "e":                                        # a kernel of CuPy's own
        A, B = (rng.integers(-3, 4, shape).astype(dtype) for shape in ((2, 4, 3), (2, 3, 5)))
        assert numpy.array_equal(cupy.asnumpy(cupy.asarray(A) @ cupy.asarray(B)), A @ B), dtype
cupy.linalg.norm(x), cupy.linalg.norm(x[0]), cupy.dot(x[0], x[0])
""")
    assert (run.returncode, run.pairs) == (0, []), run.stderr
