"""What PyTorch calls of cuSOLVER: functions of any type (`Xpotrf`), Jacobi's method, batches, reflections."""
from __future__ import annotations

import pytest
from checked_libraries import check_call_of_cupys, check_wait_and_repair, needs
from closed_libraries import GENERIC_SOLVER as BEGIN

pytestmark = pytest.mark.simulator
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
