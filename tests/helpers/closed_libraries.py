"""What programs begin with that call libraries by their names: cuRAND and cuBLAS, cuSOLVER, cuSPARSE."""
from __future__ import annotations

import xlogmem.check.cudart

BEGIN = """
import ctypes, sys
from ctypes import byref, c_double, c_float, c_int, c_longlong, c_size_t, c_ulonglong, c_void_p
import numpy
from cuda.bindings import driver

def ok(result):
    if isinstance(result, int):
        assert result == 0, result
        return None
    assert int(result[0]) == 0, result[0]
    return result[1] if len(result) > 1 else None

ok(driver.cuInit(0))
ok(driver.cuCtxSetCurrent(ok(driver.cuDevicePrimaryCtxRetain(0))))
curand = ctypes.CDLL("libcurand.so.10")
cublas = ctypes.CDLL("libcublas.so.MAJOR")
generator, handle, number = c_void_p(), c_void_p(), c_int()
ok(curand.curandCreateGenerator(byref(generator), 100))
ok(curand.curandSetPseudoRandomGeneratorSeed(generator, c_ulonglong(7)))
ok(cublas.cublasCreate_v2(byref(handle)))
a, b = (ok(driver.cuStreamCreate(1)) for _ in range(2))

def on(stream):
    ok(curand.curandSetStream(generator, c_void_p(int(stream))))
    ok(cublas.cublasSetStream_v2(handle, c_void_p(int(stream))))

def device(array):
    p = ok(driver.cuMemAlloc(array.nbytes))
    ok(driver.cuMemcpyHtoD(p, array, array.nbytes))
    ok(driver.cuCtxSynchronize())
    return c_void_p(int(p))

def host(p, like):
    out = numpy.empty_like(like)
    ok(driver.cuMemcpyDtoH(out, p.value, like.nbytes))
    return out

def wait():
    if "fixed" in sys.argv:
        event = ok(driver.cuEventCreate(2))
        ok(driver.cuEventRecord(event, a))
        ok(driver.cuStreamWaitEvent(b, event, 0))

def gemm(p, q, r, m=8, n=8, k=8, ldc=8, beta=0):
    return cublas.cublasSgemm_v2(handle, 0, 0, m, n, k, byref(c_float(1)), p, max(m, 1), q, k,
                                 byref(c_float(beta)), r, ldc)

ones = numpy.ones(64, "f4")
x, y, z = device(ones), device(ones), device(ones)
""".replace("MAJOR", str(xlogmem.check.cudart._usual_major()))
NUMBERS = """
rng = numpy.random.default_rng(0)

def random(shape, dtype):
    array = rng.standard_normal(shape)
    array = array + 1j * rng.standard_normal(shape) if dtype in "FD" else array
    return numpy.asfortranarray(array.astype(dtype))

def close(one, other):
    assert numpy.allclose(one, other, rtol=1e-3, atol=1e-3), abs(one - other).max()
"""
SOLVER = BEGIN + NUMBERS + f"""
solver = ctypes.CDLL("libcusolver.so.{xlogmem.check.cudart._usual_major() - 1}")
""" + """
CODES = {"S": "f", "D": "d", "C": "F", "Z": "D"}
of_solver, info, room = c_void_p(), device(numpy.full(1, 7, "i4")), c_int()
ok(solver.cusolverDnCreate(byref(of_solver)))

def work(name, dtype, *arguments):
    ok(getattr(solver, f"cusolverDn{name}_bufferSize")(of_solver, *arguments, byref(room)))
    return device(numpy.zeros(room.value, dtype)), room.value

def run(name, *arguments):
    ok(getattr(solver, "cusolverDn" + name)(of_solver, *arguments))

def got(p, like):
    ok(driver.cuCtxSynchronize())
    assert host(info, numpy.zeros(1, "i4")) == 0
    return host(p, like)
"""
# Of any type.
GENERIC_SOLVER = SOLVER + """
TYPES = {"f": 0, "d": 1, "F": 4, "D": 5}
L, S = c_longlong, c_size_t

def generic(name, dtype, *arguments, end=()):
    "Its work area, which is the last of the arguments."
    on_device, on_host = c_size_t(), c_size_t(7)
    ok(getattr(solver, f"cusolverDnX{name}_bufferSize")(of_solver, None, *arguments, TYPES[dtype], byref(on_device),
                                                        byref(on_host), *end))
    assert on_device.value and not on_host.value
    return TYPES[dtype], device(numpy.zeros(on_device.value, "u1")), on_device, None, S(0)

def whole(n, dtype, count=()):
    A = random((*count, n, n), dtype)
    return A @ A.conj().swapaxes(-1, -2) + n * numpy.eye(n, dtype=dtype)
"""
SPARSE = BEGIN + NUMBERS + """
sparse = ctypes.CDLL("libcusparse.so.12")
TYPES = {"f": 0, "d": 1, "F": 4, "D": 5}
L = c_longlong
of_sparse = c_void_p()
ok(sparse.cusparseCreate(byref(of_sparse)))

def run(name, *arguments):
    ok(getattr(sparse, "cusparse" + name)(of_sparse, *arguments))

def made(name, *arguments):
    one = c_void_p()
    ok(getattr(sparse, "cusparseCreate" + name)(byref(one), *arguments))
    return one

def scattered(shape, dtype):
    return numpy.asfortranarray(numpy.where(rng.random(shape) < 0.4, random(shape, dtype), 0).astype(dtype))

def parts(A, format, index="i4", base=0):
    "Its arrays: the offsets, or the rows; the indices; the values."
    B = A.T if format == "Csc" else A
    majors, minors = numpy.nonzero(B)
    values = B[majors, minors]
    if format != "Coo":
        majors = numpy.searchsorted(majors, numpy.arange(B.shape[0] + 1))
    return (majors + base).astype(index), (minors + base).astype(index), values

def matrix(A, format="Csr", index="i4", base=0, arrays=None):
    arrays = arrays or [device(array) for array in parts(A, format, index, base)]
    width = 2 if index == "i4" else 3
    widths = (width,) if format == "Coo" else (width, width)
    count = numpy.count_nonzero(A)
    return made(format, L(A.shape[0]), L(A.shape[1]), L(count), *arrays, *widths, base, TYPES[A.dtype.char]), arrays

def dense(A, p, order=1):
    return made("DnMat", L(A.shape[0]), L(A.shape[1]), L(A.shape[order - 1]), p, TYPES[A.dtype.char], order)

def vector(p, size, dtype):
    return made("DnVec", L(size), p, TYPES[dtype])

def got(p, like):
    ok(driver.cuCtxSynchronize())
    return host(p, like)

area, room, one, zero = device(numpy.zeros(256, "u1")), c_size_t(), c_float(1), c_float(0)
"""
