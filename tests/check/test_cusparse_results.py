"""What the simulated cuSPARSE computes: it is NumPy's, in each type, format and width, transposed, with factors on the
device, in batches."""
from __future__ import annotations

import pytest
from closed_libraries import SPARSE as BEGIN

pytestmark = pytest.mark.simulator
EACH = """
apply = (lambda array: array, numpy.transpose, lambda array: array.conj().T)
for dtype, t in TYPES.items():
    A, scale = scattered((6, 5), dtype), numpy.array([2, 3], dtype)
"""
PRODUCTS = """
    for format in ("Csr", "Csc", "Coo"):
        for index, base in (("i4", 0), ("i8", 1)):
            M, arrays = matrix(A, format, index, base)
            for operation in range(3):
                T = apply[operation](A)
                X, Y, factors = random(T.shape[1], dtype), random(T.shape[0], dtype), numpy.array([2, 3], dtype)
                p, q, at = device(X), device(Y), factors.ctypes.data
                if base:
                    at = device(factors).value
                ok(sparse.cusparseSetPointerMode(of_sparse, base))
                scales = c_void_p(at), c_void_p(at + factors.itemsize)
                y1, x1 = vector(q, Y.size, dtype), vector(p, X.size, dtype)
                run("SpMV_bufferSize", operation, scales[0], M, x1, scales[1], y1, t, 0, byref(room))
                assert room.value <= 256
                run("SpMV", operation, scales[0], M, x1, scales[1], y1, t, 0, area)
                close(got(q, Y), 2 * T @ X + 3 * Y)
                for of_b, order in ((0, 1), (1, 2), (2, 1)):
                    B = random((T.shape[1], 3) if of_b == 0 else (3, T.shape[1]), dtype)
                    C = random((T.shape[0], 3), dtype)
                    of_order = numpy.asfortranarray if order == 1 else numpy.ascontiguousarray
                    B, C = of_order(B), of_order(C)
                    p, q = device(B), device(C)
                    run("SpMM", operation, of_b, scales[0], M, dense(B, p, order), scales[1], dense(C, q, order), t, 0,
                        area)
                    close(got(q, C), 2 * T @ apply[of_b](B) + 3 * C)
"""
CONVERSIONS = """
    for format in ("Csr", "Csc", "Coo"):
        for index, base in (("i4", 0), ("i8", 1)):
            M, arrays = matrix(A, format, index, base)
            q = device(numpy.ones_like(A))
            run("SparseToDense", M, dense(A, q), 0, area)
            close(got(q, A), A)
            q = device(A)
            again, _ = matrix(A, format, index, base, [arrays[0], None, None])
            run("DenseToSparse_analysis", dense(A, q), again, 0, area)
            rows, columns, count = L(), L(), L()
            ok(sparse.cusparseSpMatGetSize(again, byref(rows), byref(columns), byref(count)))
            assert count.value == numpy.count_nonzero(A)
            expected = parts(A, format, index, base)
            results = [device(numpy.zeros_like(array)) for array in expected]
            ok(getattr(sparse, f"cusparse{format}SetPointers")(again, *results))
            run("DenseToSparse_convert", dense(A, q), again, 0, area)
            for p, array in zip(results, expected):
                close(got(p, array), array)
"""
CHOSEN_AND_BATCHES = """
    B, C = random((6, 4), dtype), random((4, 5), dtype)
    M, arrays = matrix(A)
    run("SDDMM", 0, 0, c_void_p(scale.ctypes.data), dense(B, device(B)), dense(C, device(C)),
        c_void_p(scale.ctypes.data + scale.itemsize), M, t, 0, area)
    close(got(arrays[2], parts(A, "Csr")[2]), (2 * B @ C + 3 * A)[A != 0])
    batch = random((5, 6), dtype)                           # two of 5 by 3
    p, q = device(batch), device(numpy.zeros((6, 6), dtype))
    D, E = dense(batch[:, :3], p), dense(A[:, :3], q)
    for of, stride in ((D, 15), (E, 18)):
        ok(sparse.cusparseDnMatSetStridedBatch(of, 2, L(stride)))
    M, arrays = matrix(A)
    units = numpy.array([1, 0], dtype)
    run("SpMM", 0, 0, c_void_p(units.ctypes.data), M, D, c_void_p(units.ctypes.data + units.itemsize), E, t, 0, area)
    close(got(q, numpy.zeros((6, 6), dtype, order="F")), A @ batch)
"""
EQUATIONS = """
    S = scattered((6, 6), dtype) + 4 * numpy.eye(6, dtype=dtype)
    for format in ("Csr", "Coo"):
        M, arrays = matrix(S, format)
        for fill, cut in ((0, numpy.tril), (1, numpy.triu)):
            for unit in (0, 1):
                for attribute, value in ((0, fill), (1, unit)):
                    ok(sparse.cusparseSpMatSetAttribute(M, attribute, byref(c_int(value)), c_size_t(4)))
                U = cut(S)
                U = U - numpy.diag(numpy.diag(U)) + numpy.eye(6) if unit else U
                for operation in range(3):
                    T, B, alpha = apply[operation](U), random((6, 2), dtype), c_void_p(scale.ctypes.data)
                    p, q = device(B), device(numpy.zeros_like(B))
                    steps = c_void_p()
                    ok(sparse.cusparseSpSV_createDescr(byref(steps)))
                    vectors = vector(p, 6, dtype), vector(q, 6, dtype)
                    run("SpSV_analysis", operation, alpha, M, *vectors, t, 0, steps, area)
                    run("SpSV_solve", operation, alpha, M, *vectors, t, 0, steps)
                    close(T @ got(q, B)[:, 0], 2 * B[:, 0])
                    for of_b in range(3):
                        C = numpy.asfortranarray(apply[of_b](B))
                        p = device(C)
                        matrices = dense(C, p), dense(B, q)
                        run("SpSM_analysis", operation, of_b, alpha, M, *matrices, t, 0, steps, area)
                        run("SpSM_solve", operation, of_b, alpha, M, *matrices, t, 0, steps)
                        close(T @ got(q, B), 2 * B)
"""
SUMS = """
    offsets, indices, values = (device(array) for array in parts(A, "Csr"))
    results = [device(numpy.zeros_like(array)) for array in parts(A, "Csc")]
    count = int(numpy.count_nonzero(A))
    run("Csr2cscEx2", 6, 5, count, values, offsets, indices, results[2], results[0], results[1], t, 1, 0, 1, area)
    for p, array in zip(results, parts(A, "Csc")):
        close(got(p, array), array)
    B = scattered((6, 5), dtype)
    other_count = int(numpy.count_nonzero(B))
    descriptions = [made("MatDescr") for _ in range(3)]
    others = [device(array) for array in parts(B, "Csr")]
    new, total, nonzero = device(numpy.zeros(7, "i4")), c_int(), (A != 0) | (B != 0)
    run("Xcsrgeam2Nnz", 6, 5, descriptions[0], count, offsets, indices, descriptions[1], other_count, *others[:2],
        descriptions[2], new, byref(total), area)
    assert total.value == numpy.count_nonzero(nonzero)
    columns, sums = device(numpy.zeros(total.value, "i4")), device(numpy.zeros(total.value, dtype))
    letter = "SDCZ"["fdFD".index(dtype)]
    run(letter + "csrgeam2", 6, 5, c_void_p(scale.ctypes.data), descriptions[0], count, values, offsets, indices,
        c_void_p(scale.ctypes.data + scale.itemsize), descriptions[1], other_count, others[2], *others[:2],
        descriptions[2], sums, new, columns, area)
    close(got(sums, numpy.zeros(total.value, dtype)), (2 * A + 3 * B)[nonzero])
    assert (got(columns, numpy.zeros(total.value, "i4")) == numpy.nonzero(nonzero)[1]).all()
"""
SOME = """
    x5 = random(5, dtype)
    p, q, places = device(x5), device(numpy.zeros(3, dtype)), device(numpy.array([4, 0, 2], "i4"))
    v, s = vector(p, 5, dtype), made("SpVec", L(5), L(3), places, q, 2, 0, t)
    run("Gather", v, s)
    close(got(q, x5[:3]), x5[[4, 0, 2]])
    ok(driver.cuMemsetD8(p.value, 0, x5.nbytes))
    run("Scatter", s, v)
    close(got(p, x5), x5 * [1, 0, 1, 0, 1])
"""
SORTING = """
rows, columns = rng.integers(0, 5, 30).astype("i4"), rng.permutation(30).astype("i4")
for name, keys in (("Row", (columns, rows)), ("Column", (rows, columns))):
    p, q, r = device(rows), device(columns), device(numpy.zeros(30, "i4"))
    run("CreateIdentityPermutation", 30, r)
    run("XcoosortBy" + name, 5, 30, 30, p, q, r, area)
    order = numpy.lexsort(keys)
    for at, array in ((r, numpy.arange(30)), (p, rows), (q, columns)):
        assert (got(at, rows) == array[order]).all()
offsets = device(numpy.searchsorted(numpy.sort(rows), numpy.arange(6)).astype("i4"))
p, q, r = device(numpy.zeros(30, "i4")), device(columns), device(numpy.arange(30, dtype="i4"))
run("Xcsr2coo", offsets, 30, 5, p, 0)
assert (got(p, rows) == numpy.sort(rows)).all()
run("Xcoo2csr", p, 30, 5, x, 0)
assert (got(x, numpy.zeros(6, "i4")) == host(offsets, numpy.zeros(6, "i4"))).all()
for name in ("Xcsrsort", "Xcscsort"):
    q, r = device(columns), device(numpy.arange(30, dtype="i4"))
    run(name, *((5, 30) if name == "Xcsrsort" else (30, 5)), 30, None, offsets, q, r, area)
    order = numpy.lexsort((columns, numpy.sort(rows)))
    assert (got(r, rows) == order).all() and (host(q, rows) == columns[order]).all()
"""
PROGRAMS = {
    "products": EACH + PRODUCTS, "conversions": EACH + CONVERSIONS, "some products, batches": EACH + CHOSEN_AND_BATCHES,
    "equations": EACH + EQUATIONS, "sums": EACH + SUMS, "some elements": EACH + SOME, "sorting": SORTING,
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_what_is_computed(checked, program):
    run = checked(BEGIN + program)
    assert (run.returncode, run.pairs) == (0, []), run.stderr
