"""What the simulated cuSOLVER computes is what NumPy makes of the factors, in each type: of matrices with gaps between
their columns, and of batches."""
from __future__ import annotations

import pytest
from closed_libraries import GENERIC_SOLVER as BEGIN

pytestmark = pytest.mark.simulator
EACH = """
for letter, dtype in CODES.items():
    t, real, of_real = TYPES[dtype], dtype.lower(), TYPES[dtype.lower()]
    A, B = random((6, 5), dtype), random((6, 2), dtype)
"""
LU = """
    p, pivots, (area, _) = device(A), device(numpy.zeros(5, "i4")), work(letter + "getrf", dtype, 5, 5, x, 6)
    run(letter + "getrf", 5, 5, p, 6, area, pivots, info)
    for operation, apply in ((0, A[:5]), (1, A[:5].T), (2, A[:5].conj().T)):
        q = device(B)
        run(letter + "getrs", operation, 5, 2, p, 6, pivots, q, 6, info)
        made = got(q, B)
        close(apply @ made[:5], B[:5])
        assert (made[5] == B[5]).all()
"""
CHOLESKY_AND_EIGENVALUES = """
    H = A[:5] @ A[:5].conj().T + 5 * numpy.eye(5, dtype=dtype)
    for triangle, cut in ((0, numpy.tril), (1, numpy.triu)):
        padded = random((6, 5), dtype)
        padded[:5] = cut(H) + (padded[:5] - cut(padded[:5]))
        p, q, (area, count) = device(padded), device(B), work(letter + "potrf", dtype, triangle, 5, x, 6)
        run(letter + "potrf", triangle, 5, p, 6, area, count, info)
        run(letter + "potrs", triangle, 5, 2, p, 6, q, 6, info)
        half = cut(got(p, padded)[:5])
        close(half @ half.conj().T if triangle == 0 else half.conj().T @ half, H)
        close(H @ got(q, B)[:5], B[:5])
        assert (got(p, padded)[:5] - cut(got(p, padded)[:5]) == padded[:5] - cut(padded[:5])).all()
        for with_vectors in (0, 1):
            name = letter + ("heevd" if dtype in "FD" else "syevd")
            p, q = device(padded), device(numpy.zeros(5, real))
            area, count = work(name, dtype, 1, triangle, 5, x, 6, y)
            run(name, with_vectors, triangle, 5, p, 6, q, area, count, info)
            values = got(q, numpy.zeros(5, real))
            close(values, numpy.linalg.eigvalsh(H))
            vectors = got(p, padded)[:5]
            if with_vectors:
                close(H @ vectors, vectors * values)
                close(vectors.conj().T @ vectors, numpy.eye(5))
"""
QR = """
    orthogonal = letter + ("ungqr" if dtype in "FD" else "orgqr")
    for m, n, columns in ((6, 4, 4), (6, 4, 6), (5, 5, 5)):
        A = random((7, columns), dtype)
        p, tau, (area, count) = device(A), device(numpy.zeros(n, dtype)), work(letter + "geqrf", dtype, m, n, x, 7)
        run(letter + "geqrf", m, n, p, 7, tau, area, count, info)
        R = numpy.triu(got(p, A)[:n, :n])
        area, count = work(orthogonal, dtype, m, columns, n, x, 7, y)
        run(orthogonal, m, columns, n, p, 7, tau, area, count, info)
        Q = got(p, A)[:m]
        close(Q.conj().T @ Q, numpy.eye(columns))
        close(Q[:, :n] @ R, A[:m, :n])
"""
SINGULAR_VALUES = """
    for jobs in ("AA", "SS", "OS", "AO", "NN"):
        A = random((6, 4), dtype)
        if jobs == "SS":
            A[:, 3] = A[:, 0]                               # of rank 3
        U, V, s = random((6, 6), dtype), random((4, 4), dtype), numpy.zeros(4, real)
        p, u, v, q, (area, count) = device(A), device(U), device(V), device(s), work(letter + "gesvd", dtype, 6, 4)
        run(letter + "gesvd", *(ord(job) for job in jobs), 6, 4, p, 6, q, u, 6, v, 4, area, count, None, info)
        values = got(q, s)
        close(values, numpy.linalg.svd(A, compute_uv=False))
        left = got(p if jobs[0] == "O" else u, A if jobs[0] == "O" else U)
        right = got(p if jobs[1] == "O" else v, A if jobs[1] == "O" else V)[:4]
        if jobs != "NN":
            close(left[:, :4] * values @ right, A)
            columns = 6 if jobs[0] == "A" else 4
            close(left[:, :columns].conj().T @ left[:, :columns], numpy.eye(columns))
            close(right @ right.conj().T, numpy.eye(4))
"""
FACTORS_OF_ANY_TYPE = """
    p, pivots = device(A), device(numpy.zeros(5, "i8"))
    run("Xgetrf", None, L(5), L(5), t, p, L(6), pivots, *generic("getrf", dtype, L(5), L(5), t, x, L(6)), info)
    for operation, apply in ((0, A[:5]), (1, A[:5].T), (2, A[:5].conj().T)):
        q = device(B)
        run("Xgetrs", None, operation, L(5), L(2), t, p, L(6), pivots, t, q, L(6), info)
        made = got(q, B)
        close(apply @ made[:5], B[:5])
        assert (made[5] == B[5]).all()
    H = whole(5, dtype)
    for triangle, cut in ((0, numpy.tril), (1, numpy.triu)):
        padded = random((6, 5), dtype)
        padded[:5] = H
        p, q = device(padded), device(B)
        run("Xpotrf", None, triangle, L(5), t, p, L(6), *generic("potrf", dtype, triangle, L(5), t, x, L(6)), info)
        run("Xpotrs", None, triangle, L(5), L(2), t, p, L(6), t, q, L(6), info)
        half = cut(got(p, padded)[:5])
        close(half @ half.conj().T if triangle == 0 else half.conj().T @ half, H)
        close(H @ got(q, B)[:5], B[:5])
"""
REFLECTIONS = """
    name = letter + ("unmqr" if dtype in "FD" else "ormqr")
    for m, n in ((6, 4), (5, 5)):
        A = random((7, n), dtype)
        p, tau = device(A), device(numpy.zeros(n, dtype))
        types = generic("geqrf", dtype, L(m), L(n), t, x, L(7), t, y)
        run("Xgeqrf", None, L(m), L(n), t, p, L(7), t, tau, *types, info)
        R = numpy.zeros((m, n), dtype)
        R[:n] = numpy.triu(got(p, A)[:n])
        for operation in (0, 2 if dtype in "FD" else 1):
            for side in (0, 1):
                C = numpy.zeros((8, m), dtype, order="F")
                C[:m] = numpy.eye(m)
                q, (area, count) = device(C), work(name, dtype, side, operation, m, m, n, x, 7, y, z, 8)
                run(name, side, operation, m, m, n, p, 7, tau, q, 8, area, count, info)
                Q = got(q, C)[:m]
                Q = Q.conj().T if operation else Q
                close(Q @ R, A[:m])
                close(Q.conj().T @ Q, numpy.eye(m))
                C = random((8, 3) if side == 0 else (8, m), dtype)
                shape = (m, 3) if side == 0 else (4, m)
                q, (area, count) = device(C), work(name, dtype, side, operation, *shape, n, x, 7, y, z, 8)
                run(name, side, operation, *shape, n, p, 7, tau, q, 8, area, count, info)
                by = Q.conj().T if operation else Q
                close(got(q, C)[:shape[0]], by @ C[:m] if side == 0 else C[:4] @ by)
"""
SINGULAR_VALUES_OF_ANY_TYPE = """
    A, s = random((6, 4), dtype), numpy.zeros(4, real)
    U, V = random((6, 6), dtype), random((4, 4), dtype)
    p, q, u, v = device(A), device(s), device(U), device(V)
    run("Xgesvd", None, 65, 65, L(6), L(4), t, p, L(6), of_real, q, t, u, L(6), t, v, L(4), *generic(
        "gesvd", dtype, 65, 65, L(6), L(4), t, x, L(6), of_real, x, t, x, L(6), t, x, L(4)), info)
    close(got(u, U)[:, :4] * got(q, s) @ got(v, V), A)
    for m, n, few in ((6, 4, 0), (6, 4, 1), (4, 6, 0), (4, 6, 1), (3, 3, 1)):
        A, s = random((m, n), dtype), numpy.zeros(min(m, n), real)
        left, right = random((6, 6), dtype), random((6, 6), dtype)
        p, q, u, v = device(A), device(s), device(left), device(right)
        error = (ctypes.c_double * 1)(7)
        run("Xgesvdp", None, 1, few, L(m), L(n), t, p, L(m), of_real, q, t, u, L(6), t, v, L(6), *generic(
            "gesvdp", dtype, 1, few, L(m), L(n), t, x, L(m), of_real, x, t, x, L(6), t, x, L(6)), info, error)
        values, U, V = got(q, s), got(u, left)[:m], got(v, right)[:n]
        close(values, numpy.linalg.svd(A, compute_uv=False))
        close(U[:, :min(m, n)] * values @ V[:, :min(m, n)].conj().T, A)
        for made, rows in ((U, m), (V, n)):
            columns = min(m, n) if few else rows
            close(made[:, :columns].conj().T @ made[:, :columns], numpy.eye(columns))
        assert error[0] == 0 and (got(u, left)[m:] == left[m:]).all()
"""
JACOBI = """
parameters = c_void_p()
ok(solver.cusolverDnCreateGesvdjInfo(byref(parameters)))
ok(solver.cusolverDnXgesvdjSetTolerance(parameters, ctypes.c_double(1e-7)))
ok(solver.cusolverDnXgesvdjSetMaxSweeps(parameters, 20))
ok(solver.cusolverDnXgesvdjSetSortEig(parameters, 1))
many = device(numpy.full(3, 7, "i4"))
def results():
    ok(driver.cuCtxSynchronize())
    assert (host(many, numpy.zeros(3, "i4")) == 0).all()
"""
EIGENVALUES_BY_JACOBI = """
    evj = letter + ("heevj" if dtype in "FD" else "syevj")
    batch = whole(5, dtype, (3,))
    columns = numpy.zeros((3, 5, 6), dtype)                 # column-major, with a gap
    columns[:, :, :5] = batch.swapaxes(1, 2)
    for with_vectors in (0, 1):
        p, q = device(columns), device(numpy.zeros((3, 5), real))
        area, count = work(evj, dtype, 1, 0, 5, x, 6, y)
        run(evj, with_vectors, 1, 5, p, 6, q, area, count, info, parameters)
        close(got(q, numpy.zeros(5, real)), numpy.linalg.eigvalsh(batch[0]))
        room = c_int()
        ok(getattr(solver, f"cusolverDn{evj}Batched_bufferSize")(of_solver, 1, 0, 5, x, 6, y, byref(room), parameters,
                                                                 3))
        for name in (evj + "Batched", "XsyevBatched"):
            p, q = device(columns), device(numpy.zeros((3, 5), real))
            if name[0] == "X":
                run(name, None, with_vectors, 0, L(5), t, p, L(6), of_real, q, *generic(
                    "syevBatched", dtype, 1, 0, L(5), t, x, L(6), of_real, y, end=(L(3),)), many, L(3))
            else:
                area = device(numpy.zeros(room.value, dtype))
                run(name, with_vectors, 0, 5, p, 6, q, area, room.value, many, parameters, 3)
            results()
            values = host(q, numpy.zeros((3, 5), real))
            close(values, numpy.linalg.eigvalsh(batch))
            vectors = host(p, columns)[:, :, :5].swapaxes(1, 2)
            if with_vectors:
                close(batch @ vectors, vectors * values[:, None])
ok(solver.cusolverDnDestroyGesvdjInfo(parameters))
"""
SINGULAR_VALUES_BY_JACOBI = """
    for m, n in ((6, 4), (4, 6)):
        A = random((3, m, n), dtype)
        few = min(m, n)
        given = numpy.ascontiguousarray(A.swapaxes(1, 2))
        for economical in (0, 1):
            p, q, u, v = device(given), *(device(numpy.zeros(400, dtype)) for _ in range(3))
            area, count = work(letter + "gesvdj", dtype, 1, 0, m, n, x, m, y, x, m, x, n)
            run(letter + "gesvdj", 1, economical, m, n, p, m, q, u, m, v, n, area, count, info, parameters)
            values = got(q, numpy.zeros(few, real))
            U = got(u, numpy.zeros((few if economical else m, m), dtype)).T
            V = got(v, numpy.zeros((few if economical else n, n), dtype)).T
            close(values, numpy.linalg.svd(A[0], compute_uv=False))
            close(U[:, :few] * values @ V[:, :few].conj().T, A[0])
        room = c_int()
        ok(getattr(solver, f"cusolverDn{letter}gesvdjBatched_bufferSize")(
            of_solver, 1, m, n, x, m, y, x, m, x, n, byref(room), parameters, 3))
        p, q, u, v, area = device(given), *(device(numpy.zeros(400, dtype)) for _ in range(3)), device(
            numpy.zeros(room.value, dtype))
        run(letter + "gesvdjBatched", 1, m, n, p, m, q, u, m, v, n, area, room.value, many, parameters, 3)
        results()
        values = host(q, numpy.zeros((3, few), real))
        U, V = (host(which, numpy.zeros((3, size, size), dtype)).swapaxes(1, 2) for which, size in ((u, m), (v, n)))
        close(U[:, :, :few] * values[:, None] @ V[:, :, :few].conj().swapaxes(1, 2), A)
ok(solver.cusolverDnDestroyGesvdjInfo(parameters))
"""
# The matrices lie apart.
APART = """
    for m, n in ((6, 4), (4, 4)):
        A, room = random((3, m, n), dtype), c_int()
        given = numpy.ascontiguousarray(A.swapaxes(1, 2))
        ok(getattr(solver, f"cusolverDn{letter}gesvdaStridedBatched_bufferSize")(
            of_solver, 1, n, m, n, x, m, L(m * n), y, L(7), x, m, L(50), x, n, L(60), byref(room), 3))
        residuals = (ctypes.c_double * 3)(7, 7, 7)
        p, q, u, v, area = device(given), *(device(numpy.full(400, 9, dtype)) for _ in range(3)), device(
            numpy.zeros(room.value, dtype))
        run(letter + "gesvdaStridedBatched", 1, n, m, n, p, m, L(m * n), q, L(7), u, m, L(50), v, n, L(60), area,
            room.value, many, residuals, 3)
        results()
        values = host(q, numpy.zeros(18, real))
        U, V = host(u, numpy.zeros(150, dtype)), host(v, numpy.zeros(180, dtype))
        for i in range(3):
            s = values[7 * i:7 * i + n]
            left, right = (made[step * i:step * i + rows * n].reshape(n, rows).T for made, step, rows in (
                (U, 50, m), (V, 60, n)))
            close(left * s @ right.conj().T, A[i])
            assert residuals[i] < 1e-3
        assert values[n] == 9 and U[m * n] == 9             # the room between them
        assert (host(p, given) == given).all()
ok(solver.cusolverDnDestroyGesvdjInfo(parameters))
"""
PROGRAMS = {
    "LU": EACH + LU, "Cholesky, eigenvalues": EACH + CHOLESKY_AND_EIGENVALUES, "QR": EACH + QR,
    "singular values": EACH + SINGULAR_VALUES, "factors of any type": EACH + FACTORS_OF_ANY_TYPE,
    "reflections": EACH + REFLECTIONS, "singular values of any type": EACH + SINGULAR_VALUES_OF_ANY_TYPE,
    "eigenvalues by Jacobi's method": JACOBI + EACH + EIGENVALUES_BY_JACOBI,
    "singular values by Jacobi's method": JACOBI + EACH + SINGULAR_VALUES_BY_JACOBI,
    "matrices that lie apart": JACOBI + EACH + APART,
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_what_is_computed(checked, program):
    run = checked(BEGIN + program)
    assert (run.returncode, run.pairs) == (0, []), run.stderr
