"""Programs that call cuSPARSE by its name, and CuPy's sparse matrices: without a GPU they get a simulated one."""
from __future__ import annotations

import pytest
from checked_libraries import check_call_of_cupys, check_wait_and_repair, needs
from closed_libraries import SPARSE as BEGIN

pytestmark = pytest.mark.simulator
# A copy on `a` writes `p`, which the call on `b` reads, or writes.
FIRST = """
A = scattered((8, 8), "f")
A[0, 0] = 1
M, (offsets, indices, values) = matrix(A)
x8, y8, u, v = (vector(device(numpy.ones(8, "f")), 8, "f") for _ in range(4))
D, E, F = (dense(A, device(ones)) for _ in range(3))
target = TARGET
size = SIZE
if size:
    ok(driver.cuMemsetD8Async(target.value, 0, size, a))                # the first
wait()
ok(sparse.cusparseSetStream(of_sparse, c_void_p(int(b))))
"""
NNZ = "4 * numpy.count_nonzero(A)"
SPMV = 'run("SpMV", 0, byref(one), M, x8, byref({}), y8, 0, 0, area)'
SECOND = {
    "the offsets": ("write/read", "offsets", "36", SPMV.format("zero")),
    "the indices": ("write/read", "indices", NNZ, SPMV.format("zero")),
    "the values": ("write/read", "values", NNZ, SPMV.format("zero")),
    "the vector": ("write/read", 'z; x8 = vector(z, 8, "f")', "32", SPMV.format("zero")),
    "the result": ("write/write", 'z; y8 = vector(z, 8, "f")', "32", SPMV.format("zero")),
    "the work area": ("write/write", "area", "256", SPMV.format("zero")),
    "the factor": ("write/read", "z; ok(sparse.cusparseSetPointerMode(of_sparse, 1))", "4",
                   'run("SpMV", 0, z, M, x8, x, y8, 0, 0, area)'),
    "of a matrix": ("write/read", "z; E = dense(A, z)", "256",
                    'run("SpMM", 0, 0, byref(one), M, E, byref(zero), F, 0, 0, area)'),
    "of a product": ("write/write", "z; F = dense(A, z)", "256",
                     'run("SpMM", 0, 0, byref(one), M, E, byref(zero), F, 0, 0, area)'),
    "of chosen products": ("write/write", "values", NNZ,
                           'run("SDDMM", 0, 0, byref(one), D, E, byref(zero), M, 0, 0, area)'),
    "to a dense one": ("write/write", "z; F = dense(A, z)", "256", 'run("SparseToDense", M, F, 0, area)'),
    "from a dense one": ("write/read", "z; F = dense(A, z)", "256", 'run("DenseToSparse_analysis", F, M, 0, area)'),
    "to a sparse one": ("write/write", "indices", NNZ, 'run("DenseToSparse_convert", F, M, 0, area)'),
    "to other offsets": ("write/write", "z", "36", 'run("Xcoo2csr", x, 8, 8, z, 0)'),
    "to coordinates": ("write/read", "offsets", "36", 'run("Xcsr2coo", offsets, 8, 8, x, 0)'),
    "a transposition": ("write/write", "z", "32",
                        'run("Csr2cscEx2", 8, 8, 8, values, offsets, indices, x, z, y, 0, 1, 0, 1, area)'),
    "a permutation": ("write/write", "z", "32", 'run("CreateIdentityPermutation", 8, z)'),
    "sorted coordinates": ("write/write", "z", "32", 'run("XcoosortByRow", 8, 8, 8, x, z, y, area)'),
    "a sorted row": ("write/read", "offsets", "36", 'run("Xcsrsort", 8, 8, 8, None, offsets, x, y, area)'),
    "gathered numbers": ("write/read", 'z; s = made("SpVec", L(8), L(8), z, x, 2, 0, 0)', "32", 'run("Gather", x8, s)'),
    "scattered numbers": ("write/write", 'z; s = made("SpVec", L(8), L(8), y, x, 2, 0, 0); x8 = vector(z, 8, "f")',
                          "32", 'run("Scatter", s, x8)'),
}


@pytest.mark.parametrize(("pair", "target", "size", "second"), SECOND.values(), ids=SECOND)
def test_the_missing_wait_is_found_and_its_repair_is_silent(checked, pair, target, size, second):
    first = FIRST.replace("TARGET", target).replace("SIZE", size)
    check_wait_and_repair(checked, f"{BEGIN}{first}{second}         # the second\n", pair)


SCATTERED = """
places = [device(numpy.arange(first, first + 4, dtype="i4")) for first in (0, 4)]
halves = [made("SpVec", L(8), L(4), one, device(numpy.ones(4, "f")), 2, 0, 0) for one in places]
whole = vector(z, 8, "f")
run("Scatter", halves[0], whole)
"""
HALO = """
A = numpy.zeros((6, 8), "f")
A[:, :6] = numpy.eye(6)
M, arrays = matrix(A)
run("SpMV", 0, byref(one), M, vector(z, 8, "f"), byref(zero), vector(x, 6, "f"), 0, 0, area)
"""
APART = {
    "scattered": ("write/write", SCATTERED, 'run("Scatter", halves[1], whole)'),
    "gathered": ("write/read", SCATTERED, 'run("Gather", whole, halves[1])'),
    "a product's halo": ("read/write", HALO, "ok(driver.cuMemsetD32Async(z.value + 24, 0, 2, b))"),
}


@pytest.mark.parametrize(("pair", "first", "second"), APART.values(), ids=APART)
def test_elements_that_indices_choose_may_be_apart(checked, pair, first, second):
    """Another stream may use the rest of the vector: a race is certain where it uses all."""
    begin = f"""{BEGIN}
ok(sparse.cusparseSetStream(of_sparse, c_void_p(int(a))))
{first}
wait()
ok(sparse.cusparseSetStream(of_sparse, c_void_p(int(b))))
"""
    assert checked(begin + second).pairs == [(pair, False)]
    every = begin + "ok(driver.cuMemsetD32Async(z.value, 0, 8, b))"
    assert [certain for _, certain in checked(every).pairs] == [True]
    for program in (begin + second, every):
        run = checked(program, "fixed")
        assert (run.returncode, run.pairs) == (0, []), run.stderr


STEPS = """
A = scattered((8, 8), "f") + numpy.eye(8, dtype="f")
M, arrays = matrix(A)
x8, y8 = (vector(p, 8, "f") for p in (x, y))
steps = c_void_p()
"""


def test_equations_hold_their_work_area(checked):
    """The solution reads and writes the area of the analysis, which the program gives once."""
    check_wait_and_repair(checked, BEGIN + STEPS + """
ok(sparse.cusparseSpSV_createDescr(byref(steps)))
run("SpSV_analysis", 0, byref(one), M, x8, y8, 0, 0, steps, area)
ok(driver.cuCtxSynchronize())
ok(driver.cuMemsetD8Async(area.value, 0, 256, a))                       # the first
wait()
ok(sparse.cusparseSetStream(of_sparse, c_void_p(int(b))))
run("SpSV_solve", 0, byref(one), M, x8, y8, 0, 0, steps)                # the second
""", "write/write")


def test_a_product_of_sparse_matrices_is_copied_from_its_areas(checked):
    check_wait_and_repair(checked, BEGIN + STEPS + """
ok(sparse.cusparseSpGEMM_createDescr(byref(steps)))
C, _ = matrix(numpy.zeros((8, 8), "f"), arrays=[device(numpy.zeros(9, "i4")), None, None])
factors = 0, 0, byref(one), M, M, byref(zero), C, 0, 0, steps
areas = device(numpy.zeros(256, "u1")), device(numpy.zeros(256, "u1"))
for name, given in zip(("workEstimation", "compute"), areas):
    run("SpGEMM_" + name, *factors, byref(room), None)
    assert room.value <= 256
    run("SpGEMM_" + name, *factors, byref(room), given)
rows, columns, count = L(), L(), L()
ok(sparse.cusparseSpMatGetSize(C, byref(rows), byref(columns), byref(count)))
assert (rows.value, columns.value, count.value) == (8, 8, numpy.count_nonzero(A @ A))
result = [device(numpy.zeros(64, "i4")) for _ in range(3)]
ok(sparse.cusparseCsrSetPointers(C, *result))
ok(driver.cuMemsetD8Async(areas[1].value, 0, 256, a))                   # the first
wait()
ok(sparse.cusparseSetStream(of_sparse, c_void_p(int(b))))
run("SpGEMM_copy", *factors)                                            # the second
expected = parts(A @ A, "Csr")
ok(driver.cuStreamSynchronize(b))
for p, array in zip(result, expected):
    close(host(p, array), array)
""", "write/read")


def test_the_number_of_elements_is_waited_for(checked):
    """The host has it after the analysis of a dense matrix, which then may be written."""
    run = checked(BEGIN + STEPS + """
D = dense(A, device(A))
p = device(A)
D = dense(A, p)
ok(sparse.cusparseSetStream(of_sparse, c_void_p(int(a))))
run("DenseToSparse_analysis", D, M, 0, area)
ok(driver.cuMemsetD8Async(p.value, 0, 256, b))
""")
    assert (run.returncode, run.pairs) == (0, []), run.stderr


def test_what_is_no_matrix_of_the_programs_is_no_error(checked):
    """Kernels compute nothing, so that offsets and indices may be anything: the program goes on."""
    run = checked(BEGIN + """
wild = device(numpy.array([9, -5, 1 << 30, 0, 3, -1 << 31, 2, 64, 7], "i4"))
M = made("Csr", L(8), L(8), L(9), wild, wild, device(numpy.ones(9, "f4")), 2, 2, 0, 0)
C = made("Coo", L(8), L(8), L(9), wild, wild, device(numpy.ones(9, "f4")), 2, 0, 0)
v, w, D, steps = vector(x, 8, "f"), vector(y, 8, "f"), dense(numpy.ones((8, 8), "f4"), z), c_void_p()
ok(sparse.cusparseSpSV_createDescr(byref(steps)))
for of in (M, C):
    for operation in (0, 1):
        run("SpMV", operation, byref(one), of, v, byref(zero), w, 0, 0, area)
        run("SpSV_analysis", operation, byref(one), of, v, w, 0, 0, steps, area)
        run("SpSV_solve", operation, byref(one), of, v, w, 0, 0, steps)
    run("SparseToDense", of, D, 0, area)
run("Csr2cscEx2", 8, 8, 9, wild, wild, wild, device(numpy.ones(9, "f4")), x, y, 0, 1, 0, 1, area)
run("Xcsr2coo", wild, 9, 8, x, 0)
run("Xcoo2csr", wild, 9, 8, x, 0)
run("Xcsrsort", 8, 8, 9, None, wild, x, y, area)
ok(driver.cuCtxSynchronize())
""")
    assert (run.returncode, run.pairs) == (0, []), run.stderr


def test_numbers_of_several_types(checked):
    """NVIDIA's computes a product with a vector of them, and nothing else."""
    run = checked(BEGIN + STEPS + """
wide = A.astype("d")
W, _ = matrix(wide)
u8, v8 = (vector(device(numpy.ones(8)), 8, "d") for _ in range(2))
D, E, F, G = dense(A, device(A)), dense(A, device(A)), dense(wide, device(wide)), dense(wide, device(wide))
s = made("SpVec", L(8), L(8), device(numpy.zeros(8)), device(numpy.zeros(8, "i4")), 2, 0, 1)
double, none = c_double(1), c_double(0)
for name in ("SpSV", "SpSM", "SpGEMM"):
    ok(getattr(sparse, f"cusparse{name}_createDescr")(byref(steps)))
    globals()[name] = c_void_p(steps.value)
def refused(name, *arguments):
    assert getattr(sparse, "cusparse" + name)(of_sparse, *arguments) == 10, name
refused("SpMV", 0, byref(double), W, x8, byref(none), v8, 1, 0, area)
refused("SpMV", 0, byref(double), W, x8, byref(none), y8, 0, 0, area)
refused("SpMV", 0, byref(one), M, x8, byref(zero), y8, 1, 0, area)
refused("SpMM", 0, 0, byref(double), M, F, byref(none), G, 1, 0, area)
refused("SDDMM", 0, 0, byref(one), D, E, byref(zero), W, 0, 0, area)
refused("SpGEMM_compute", 0, 0, byref(one), M, W, byref(zero), M, 0, 0, SpGEMM, byref(room), area)
refused("SparseToDense", M, F, 0, area)
refused("DenseToSparse_analysis", F, M, 0, area)
refused("SpSV_solve", 0, byref(double), M, u8, v8, 1, 0, SpSV)
refused("SpSM_solve", 0, 0, byref(double), M, F, G, 1, 0, SpSM)
refused("Gather", x8, s)
refused("Scatter", s, x8)
for dtype in "dF":
    like = numpy.zeros(8, dtype)
    p = device(like)
    factors = numpy.array([2, 0], dtype)
    run("SpMV", 0, c_void_p(factors.ctypes.data), M, vector(device(like + 1), 8, dtype),
        c_void_p(factors.ctypes.data + factors.itemsize), vector(p, 8, dtype), TYPES[dtype], 0, area)
    close(got(p, like), 2 * A.sum(1))
""")
    assert (run.returncode, run.pairs) == (0, []), run.stderr


def test_a_product_of_sparse_matrices_is_added(checked):
    """... to what the matrix had in the places of its elements."""
    run = checked(BEGIN + STEPS + """
expected = parts(A @ A, "Csr")
ok(sparse.cusparseSpGEMM_createDescr(byref(steps)))
C, result = matrix(A @ A, arrays=[device(expected[0]), device(expected[1]), device(numpy.ones_like(expected[2]))])
for factor in (c_float(3), c_float(0)):
    factors = 0, 0, byref(one), M, M, byref(factor), C, 0, 0, steps
    for name in ("workEstimation", "compute"):
        run("SpGEMM_" + name, *factors, byref(room), area)
    run("SpGEMM_copy", *factors)
    close(got(result[2], expected[2]), expected[2] + factor.value)
""")
    assert (run.returncode, run.pairs) == (0, []), run.stderr


def test_rows_without_elements_cost_something(checked):
    """A sum of so many rows would keep a CPU for minutes."""
    run = checked(BEGIN + STEPS + """
of, rows = made("MatDescr"), 1 << 27
offsets = c_void_p(int(ok(driver.cuMemAlloc(4 * rows + 4))))
assert sparse.cusparseXcsrgeam2Nnz(of_sparse, rows, 8, of, 0, offsets, None, of, 0, offsets, None, of, offsets,
                                   byref(number), area) == 11
""")
    assert (run.returncode, run.pairs) == (0, []), run.stderr


def test_the_offsets_of_a_sum_are_of_that_sum(checked):
    """Where the same memory has those of another sum by now, it is not known how many elements there are."""
    run = checked(BEGIN + STEPS + """
def things(A):
    return int(numpy.count_nonzero(A)), *(device(array) for array in parts(A, "Csr"))
B = numpy.eye(8, dtype="f")
of, total, offsets = [made("MatDescr") for _ in range(3)], c_int(), device(numpy.zeros(9, "i4"))
def count(one, other):
    run("Xcsrgeam2Nnz", 8, 8, of[0], one[0], one[1], one[2], of[1], other[0], other[1], other[2], of[2], offsets,
        byref(total), area)
def add(one, other):
    p, q = device(numpy.zeros(8, "f")), device(numpy.zeros(8, "i4"))
    run("Scsrgeam2", 8, 8, byref(c_float(1)), of[0], one[0], one[3], one[1], one[2], byref(c_float(1)), of[1], other[0],
        other[3], other[1], other[2], of[2], p, offsets, q, area)
    return got(p, numpy.zeros(8, "f"))
large, small = things(A), things(B)
count(large, small)
assert total.value > 8
ok(driver.cuMemcpyHtoD(offsets.value, numpy.arange(9, dtype="i4"), 36))
add(small, small)
count(small, small)
assert total.value == 8 and (add(small, small) == 2).all()
""")
    assert (run.returncode, run.pairs) == (0, []), run.stderr
    assert list(run.notes["notes"]) == [
        "1 launch was not judged, because it is not known what these kernels do to memory: cusparseScsrgeam2"]


def test_a_batch_of_many_ends(checked):
    """Its ranges are few, however many matrices there are, and of memory that is not there it is refused."""
    program = BEGIN + STEPS + """
import resource
resource.setrlimit(resource.RLIMIT_DATA, (1 << 31, 1 << 31))
B, C = dense(A, device(numpy.ones(1 << 20, "f"))), dense(A, device(numpy.ones(1 << 20, "f")))
def spmm(count, step):
    for of in (B, C):
        ok(sparse.cusparseDnMatSetStridedBatch(of, count, L(step)))
    return sparse.cusparseSpMM(of_sparse, 0, 0, byref(one), M, B, byref(zero), C, 0, 0, area)
many = (1 << 31) - 1
assert spmm(many, 67) == 6 and spmm(many, 1 << 61) == 6
assert spmm(15000, 67) == 0
assert spmm(many, 0) == 0                                   # too many to be computed
"""
    run = checked(program)
    assert (run.returncode, run.pairs) == (0, []), run.stderr


def test_wrong_arguments(checked):
    """A number of another type is none of cuSPARSE's here; where the program ends for that, it is said."""
    run = checked(BEGIN + STEPS + """
N, F, V, ignored = L(8), dense(A, device(A)), vector(z, 7, "f"), c_void_p()
def spmv(of=of_sparse, operation=0, A=M, x=x8, y=y8, type=0, at=area):
    return sparse.cusparseSpMV(of, operation, byref(one), A, x, byref(zero), y, type, 0, at)
assert spmv() == 0 and spmv(of=None) == 1 and spmv(type=2) == 10 and spmv(at=c_void_p(12345)) == 6
assert spmv(operation=3) == spmv(A=None) == spmv(x=V) == spmv(y=V) == 3
assert sparse.cusparseCreateCsr(byref(ignored), L(-1), N, N, x, y, z, 2, 2, 0, 0) == 3
assert sparse.cusparseCreateCsr(byref(ignored), N, N, N, x, y, z, 2, 4, 0, 0) == 3
assert sparse.cusparseCreateCsr(byref(ignored), N, N, N, x, y, z, 2, 2, 0, 2) == 10         # numbers of 16 bits
assert sparse.cusparseCreateDnMat(byref(ignored), N, N, L(7), x, 0, 1) == 3
huge = L(1 << 62)
assert sparse.cusparseCreateCsr(byref(ignored), huge, N, N, x, y, z, 2, 2, 0, 0) == 3
assert sparse.cusparseCreateCoo(byref(ignored), N, N, huge, x, y, z, 2, 0, 0) == 3
assert sparse.cusparseCreateDnVec(byref(ignored), huge, x, 0) == 3
assert sparse.cusparseCreateSpVec(byref(ignored), huge, N, x, y, 2, 0, 0) == 3
assert sparse.cusparseCreateDnMat(byref(ignored), L(1 << 31), L(1 << 31), L(1 << 31), x, 0, 1) == 3
assert sparse.cusparseCreateDnMat(byref(ignored), N, N, N, x, 0, 3) == 3
assert sparse.cusparseSpMM(of_sparse, 0, 0, byref(one), M, None, byref(zero), F, 0, 0, area) == 3
assert sparse.cusparseSpSV_solve(of_sparse, 0, byref(one), M, x8, y8, 0, 0, None) == 3
assert sparse.cusparseSpMatSetAttribute(M, 2, byref(c_int(0)), c_size_t(4)) == 3
assert sparse.cusparseSetPointerMode(of_sparse, 2) == 3 and sparse.cusparseSetStream(None, None) == 1
assert sparse.cusparseXcoo2csr(of_sparse, x, -1, 8, y, 0) == 3
values, stream = [L() for _ in range(3)], c_void_p()
assert sparse.cusparseSpMatGetSize(None, *map(byref, values)) == 3
for name, of in (("SpMat", M), ("DnVec", x8), ("DnMat", F)):
    assert getattr(sparse, "cusparseDestroy" + name)(of) == 0
for part in range(3):
    ok(sparse.cusparseGetProperty(part, byref(number)))
    assert part or number.value == 12
ok(sparse.cusparseGetStream(of_sparse, byref(stream)))
sparse.cusparseGetErrorName.restype = ctypes.c_char_p
assert sparse.cusparseGetErrorName(3) == b"CUSPARSE_STATUS_INVALID_VALUE"
ok(sparse.cusparseDestroy(of_sparse))
assert sparse.cusparseDestroy(None) == 1
""")
    assert (run.returncode, run.pairs) == (0, []), run.stderr
    run = checked(BEGIN + 'ok(sparse.cusparseCreateDnVec(byref(c_void_p()), L(8), x, 2))')
    assert any("cuSPARSE with numbers of this type is not simulated" in note for note in run.notes["notes"]), run.notes


CUPY = """
import cupyx.scipy.sparse
from cupyx import cusparse
y, m = cupy.asarray(numpy.ones(8)), cupy.asarray(numpy.asfortranarray(numpy.eye(8)))
x = cusparse.denseToSparse(m)
"""


@needs("cupy", "nvidia.cuda_nvrtc")
@pytest.mark.parametrize("call", ["x @ y", "x @ m", "x.T @ y", "x + x", "x.tocsc()", "cusparse.denseToSparse(m)",
                                  "cusparse.spsm(x, y)"])
def test_races_with_cupys_sparse_matrices(checked, call):
    """Without `x @ x`: CuPy 14 makes that on the stream of its last call of cuSPARSE, which may be another one."""
    check_call_of_cupys(checked, CUPY, call, "(z if isinstance(z, cupy.ndarray) else z.data)")


@needs("cupy", "nvidia.cuda_nvrtc")
def test_cupys_sparse_matrices_are_numpys(checked):
    """CuPy's own kernels, such as those of `toarray`, compute nothing."""
    run = checked("""
import cupy, numpy
from cupyx import cusparse
import cupyx.scipy.sparse
def check(made, expected):
    by = expected.T if made.format == "csc" else expected
    majors, minors = numpy.nonzero(by)
    assert numpy.allclose(made.data.get(), by[majors, minors]) and (made.indices.get() == minors).all()
    assert (made.indptr.get() == numpy.searchsorted(majors, numpy.arange(len(by) + 1))).all()
for dtype in "fdFD":
    A = numpy.asfortranarray(numpy.eye(6, k=1).astype(dtype) + 2 * numpy.eye(6).astype(dtype))
    x, v, m = cusparse.denseToSparse(cupy.asarray(A)), cupy.asarray(numpy.arange(6).astype(dtype)), cupy.asarray(A)
    for made, expected in ((x @ v, A @ v.get()), (x.T @ v, A.T @ v.get()), (cusparse.spmm(x, m), A @ A),
                           (cusparse.spsm(x, v, lower=False), numpy.linalg.solve(A, v.get())),
                           (cusparse.sparseToDense(x), A)):
        assert numpy.allclose(made.get(order="A"), expected), (dtype, made, expected)      # another order is a copy
    check(x, A)
    check(cusparse.spgemm(x, x), A @ A)
    check(cusparse.csrgeam2(x, x, 2, 3), 5 * A)
    check(cusparse.csr2cscEx2(x), A)
    assert (cusparse.csr2coo(x, x.data, x.indices).row.get() == numpy.nonzero(A)[0]).all()
""")
    assert (run.returncode, run.pairs) == (0, []), run.stderr
