"""What PyTorch calls of cuSOLVER: functions of any type (`Xpotrf`), Jacobi's method, batches, reflections."""
from __future__ import annotations

import pytest
from checked_libraries import check_call_of_cupys, check_wait_and_repair, needs
from closed_libraries import SOLVER as BEGIN

pytestmark = pytest.mark.simulator
BEGIN += """
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
LU = """
A = random((8, 8), "f")
p, q, tau, pivots = device(A), device(A), device(A), device(numpy.zeros(8, "i8"))
types = generic("getrf", "f", L(8), L(8), 0, x, L(8))
other = generic("getrf", "f", L(8), L(8), 0, x, L(8))
infos = [device(numpy.zeros(8, "i4")) for _ in range(2)]
parameters, room = c_void_p(), c_int()
ok(solver.cusolverDnCreateSyevjInfo(byref(parameters)))
area = device(numpy.zeros(8192, "f"))
ok(solver.cusolverDnSetStream(of_solver, c_void_p(int(a))))
run("Xgetrf", None, L(8), L(8), 0, p, L(8), pivots, *types, infos[0])              # the first
wait()
ok(solver.cusolverDnSetStream(of_solver, c_void_p(int(b))))
"""
SECOND = {
    "Xgetrs of the pivots": ("write/read", '"Xgetrs", None, 0, L(8), L(1), 0, q, L(8), pivots, 0, x, L(8), infos[1]'),
    "Xgetrs of the right sides": ("write/write",
                                  '"Xgetrs", None, 0, L(8), L(1), 0, q, L(8), None, 0, p, L(8), infos[1]'),
    "Xpotrf": ("write/write", '"Xpotrf", None, 0, L(8), 0, p, L(8), *other, infos[1]'),
    "Xpotrf with the work area": ("write/write", '"Xpotrf", None, 0, L(8), 0, q, L(8), *types, infos[1]'),
    "Xpotrf with the result": ("write/write", '"Xpotrf", None, 0, L(8), 0, q, L(8), *other, infos[0]'),
    "Xpotrs": ("write/read", '"Xpotrs", None, 0, L(8), L(1), 0, p, L(8), 0, x, L(8), infos[1]'),
    "Xgeqrf of the factors": ("write/write", '"Xgeqrf", None, L(8), L(8), 0, q, L(8), 0, p, *other, infos[1]'),
    "XsyevBatched": ("write/write", '"XsyevBatched", None, 1, 0, L(4), 0, p, L(4), 0, x, *other, infos[1], L(4)'),
    "Xgesvd": ("write/write",
               '"Xgesvd", None, 83, 83, L(8), L(8), 0, q, L(8), 0, x, 0, p, L(8), 0, tau, L(8), *other, infos[1]'),
    "Xgesvdp": ("write/write", '"Xgesvdp", None, 1, 1, L(8), L(8), 0, q, L(8), 0, x, 0, tau, L(8), 0, p, L(8), *other, '
                               'infos[1], None'),
    "ormqr of the reflections": ("write/read", '"Sormqr", 0, 1, 8, 8, 8, p, 8, tau, q, 8, area, 64, infos[1]'),
    "ormqr of the factors": ("write/read", '"Sormqr", 0, 1, 8, 8, 8, q, 8, p, tau, 8, area, 64, infos[1]'),
    "ormqr of the product": ("write/write", '"Sormqr", 0, 1, 8, 8, 8, q, 8, x, p, 8, area, 64, infos[1]'),
    "syevj": ("write/write", '"Ssyevj", 1, 0, 8, p, 8, x, area, 64, infos[1], parameters'),
    "syevjBatched": ("write/write", '"SsyevjBatched", 1, 0, 8, q, 8, p, area, 64, infos[1], parameters, 1'),
    "gesvdj": ("write/write", '"Sgesvdj", 1, 1, 8, 8, q, 8, x, p, 8, tau, 8, area, 64, infos[1], parameters'),
    "gesvdjBatched": ("write/write",
                      '"SgesvdjBatched", 1, 8, 8, q, 8, x, tau, 8, p, 8, area, 64, infos[1], parameters, 1'),
    "gesvdaStridedBatched": ("write/read", '"SgesvdaStridedBatched", 1, 8, 8, 8, p, 8, L(64), x, L(8), q, 8, L(64), '
                                           'tau, 8, L(64), area, 64, infos[1], None, 1'),
    "potrfBatched of the pointers": ("write/read", '"SpotrfBatched", 0, 2, p, 2, infos[1], 8'),
    "potrfBatched of the results": ("write/write", '"SpotrfBatched", 0, 2, q, 2, infos[0], 8'),
    "potrsBatched": ("write/read", '"SpotrsBatched", 0, 2, 1, q, 2, p, 2, infos[1], 8'),
}


@pytest.mark.parametrize(("pair", "second"), SECOND.values(), ids=SECOND)
def test_the_missing_wait_is_found_and_its_repair_is_silent(checked, pair, second):
    check_wait_and_repair(checked, BEGIN + LU + f"run({second})          # the second\n", pair)


def test_what_is_computed(checked):
    """Of any type: what NumPy makes of the factors, of matrices with gaps between their columns."""
    run = checked(BEGIN + """
for letter, dtype in CODES.items():
    t, real, of_real = TYPES[dtype], dtype.lower(), TYPES[dtype.lower()]
    A, B = random((6, 5), dtype), random((6, 2), dtype)
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
""")
    assert (run.returncode, run.pairs) == (0, []), run.stderr


def test_what_is_computed_by_jacobis_method(checked):
    """... and of batches: the matrices follow one another, or lie apart."""
    run = checked(BEGIN + """
parameters, values_only = c_void_p(), c_void_p()
ok(solver.cusolverDnCreateGesvdjInfo(byref(parameters)))
ok(solver.cusolverDnXgesvdjSetTolerance(parameters, ctypes.c_double(1e-7)))
ok(solver.cusolverDnXgesvdjSetMaxSweeps(parameters, 20))
ok(solver.cusolverDnXgesvdjSetSortEig(parameters, 1))
many = device(numpy.full(3, 7, "i4"))
def results():
    ok(driver.cuCtxSynchronize())
    assert (host(many, numpy.zeros(3, "i4")) == 0).all()
for letter, dtype in CODES.items():
    t, real, of_real = TYPES[dtype], dtype.lower(), TYPES[dtype.lower()]
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
        if m < n:
            continue
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
for made in (parameters,):
    ok(solver.cusolverDnDestroyGesvdjInfo(made))
""")
    assert (run.returncode, run.pairs) == (0, []), run.stderr


def test_batches_through_pointers(checked):
    """What is behind the pointers is not known, and that is said; each matrix counts as one that has factors."""
    run = checked(BEGIN + """
results = device(numpy.full(8, 7, "i4"))
run("SpotrfBatched", 0, 2, x, 2, results, 8)
run("SpotrsBatched", 1, 2, 1, x, 2, y, 2, info, 8)
got(x, ones)
assert (host(results, numpy.zeros(8, "i4")) == 0).all() and (host(x, ones) == 1).all()
assert solver.cusolverDnSpotrfBatched(of_solver, 0, 2, x, 1, results, 8) == 3
assert solver.cusolverDnSpotrfBatched(of_solver, 2, 2, x, 2, results, 8) == 3
assert solver.cusolverDnSpotrfBatched(None, 0, 2, x, 2, results, 8) == 1
assert solver.cusolverDnSpotrsBatched(of_solver, 0, 2, 1, x, 2, y, 1, info, 8) == 3
""")
    assert (run.returncode, run.pairs) == (0, []), run.stderr
    assert list(run.notes["notes"]) == [
        "2 launches were not judged, because it is not known what these kernels do to memory: cusolverDnSpotrfBatched, "
        "cusolverDnSpotrsBatched"]


def test_residuals_are_waited_for(checked):
    """... on the host, which then may write the matrix; without them nothing is."""
    run = checked(BEGIN + LU.replace("wait()", "") + """
A = device(numpy.ones(64, "f4"))
run("SgesvdaStridedBatched", 1, 8, 8, 8, A, 8, L(64), x, L(8), q, 8, L(64), tau, 8, L(64), area, 64, infos[1],
    (ctypes.c_double * 1)() if "residuals" in sys.argv else None, 1)
ok(driver.cuMemsetD8Async(A.value, 0, 256, a))
""", "residuals")
    assert (run.returncode, run.pairs) == (0, []), run.stderr


def test_a_batch_of_many_ends(checked):
    """Its ranges are few, however many matrices there are.  Where there is no memory it is refused, and what would take
    too long is not computed."""
    run = checked(BEGIN + """
import resource
resource.setrlimit(resource.RLIMIT_DATA, (1 << 31, 1 << 31))
many, rows = (1 << 31) - 1, 3
p, infos = device(numpy.ones(64, "f")), device(numpy.full(1 << 24, 7, "i4"))
def gesvda(count, step, rank=2, of=64):
    return solver.cusolverDnSgesvdaStridedBatched(
        of_solver, 1, rank, rows, 2, p, rows + 1, L(step), x, L(step), y, rows + 1, L(step), z, rows + 1, L(step), p, 0,
        infos, None, count)
assert gesvda(many, 0) == 6                                 # more results than there is memory
assert gesvda(1 << 24, 7) == 6                              # more matrices
assert gesvda(4, 9) == 0 and gesvda(1 << 24, 0) == 0
ok(driver.cuCtxSynchronize())
made = host(infos, numpy.zeros(1 << 24, "i4"))
assert (made[:4] == 0).all() and (made[4:] == 7).all()      # the others are too many
""")
    assert (run.returncode, run.pairs) == (0, []), run.stderr


def test_wrong_arguments(checked):
    run = checked(BEGIN + """
p, area, parameters = device(numpy.ones((8, 8), "f")), device(numpy.ones(999, "f")), c_void_p()
ok(solver.cusolverDnCreateSyevjInfo(byref(parameters)))
def potrf(of=of_solver, triangle=0, n=8, type=0, at=p, lda=8):
    return solver.cusolverDnXpotrf(of, None, triangle, L(n), type, at, L(lda), 0, area, S(64), None, S(0), info)
assert potrf() == 0 and potrf(of=None) == 1 and potrf(type=2) == 9 and potrf(at=c_void_p(12345)) == 6
assert potrf(triangle=2) == potrf(n=-1) == potrf(lda=7) == 3
assert solver.cusolverDnXpotrs(of_solver, None, 0, L(8), L(1), 0, p, L(8), 1, x, L(8), info) == 3       # of two types
sizes = c_size_t(), c_size_t()
assert solver.cusolverDnXpotrf_bufferSize(of_solver, None, 0, L(8), 2, p, L(8), 0, *map(byref, sizes)) == 9
assert solver.cusolverDnXpotrf_bufferSize(of_solver, None, 0, L(8), 0, p, L(8), 0, None, byref(sizes[1])) == 3
def ormqr(side=0, operation=1, m=8, n=4, k=4, lda=8, ldc=8):
    return solver.cusolverDnSormqr(of_solver, side, operation, m, n, k, p, lda, x, y, ldc, area, 64, info)
assert ormqr() == 0 and ormqr(side=1, k=4, lda=4) == 0
assert ormqr(side=2) == ormqr(operation=3) == ormqr(lda=7) == ormqr(ldc=7) == ormqr(k=9) == ormqr(k=-1) == 3
assert solver.cusolverDnCunmqr(of_solver, 0, 1, 2, 2, 2, p, 2, x, y, 2, area, 64, info) == 3        # not transposed
def syevj(n=8, of=parameters, count=1):
    return solver.cusolverDnSsyevjBatched(of_solver, 0, 0, n, p, 8, x, area, 64, info, of, count)
assert syevj() == 0 and syevj(n=9) == syevj(of=None) == syevj(count=-1) == 3
def gesvdj(m=8, n=8, count=1, ldu=33):
    return solver.cusolverDnSgesvdjBatched(of_solver, 0, m, n, p, 8, x, y, ldu, z, 33, area, 64, info, parameters,
                                              count)
assert gesvdj() == 0 and gesvdj(m=33) == gesvdj(count=-1) == gesvdj(m=9) == 3
assert solver.cusolverDnSgesvdaStridedBatched(of_solver, 0, 4, 4, 8, p, 4, L(32), x, L(8), y, 8, L(64), z, 8, L(64),
                                              area, 64, info, None, 1) == 3
assert solver.cusolverDnXsyevjSetTolerance(None, ctypes.c_double(1)) == 3
ok(solver.cusolverDnDestroySyevjInfo(parameters))
""")
    assert (run.returncode, run.pairs) == (0, []), run.stderr


CUPY = """
from cupyx import cusolver
x, y = (cupy.asarray(numpy.eye(8) + 1) for _ in range(2))
many = cupy.asarray(numpy.stack([numpy.eye(8) + 1] * 3))
"""


@needs("cupy", "nvidia.cuda_nvrtc")
@pytest.mark.parametrize("call", ["cusolver.syevj(x)", "cusolver.syevj(many)", "cusolver.gesvdj(x)",
                                  "cupy.linalg.lstsq(x, y)"])
def test_races_with_cupys_calls(checked, call):
    check_call_of_cupys(checked, CUPY, call, "(z[0] if isinstance(z, tuple) else z)")
