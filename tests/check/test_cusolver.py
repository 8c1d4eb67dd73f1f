"""Programs that call cuSOLVER by its name, and CuPy's linear algebra: without a GPU they get a simulated one."""
from __future__ import annotations

import pytest
from checked_libraries import check_call_of_cupys, check_wait_and_repair, needs
from closed_libraries import SOLVER as BEGIN

pytestmark = pytest.mark.simulator
LU = """
A = random((8, 8), "f")
p, q, pivots = device(A), device(A), device(numpy.zeros(8, "i4"))
(first, _), (second, _) = (work("Sgetrf", "f", 8, 8, p, 8) for _ in range(2))
infos = [device(numpy.zeros(1, "i4")) for _ in range(2)]
ok(solver.cusolverDnSetStream(of_solver, c_void_p(int(a))))
run("Sgetrf", 8, 8, p, 8, first, pivots, infos[0])              # the first
wait()
ok(solver.cusolverDnSetStream(of_solver, c_void_p(int(b))))
"""
SCENES = {
    "of the matrix": ("write/read", LU + 'run("Sgetrs", 0, 8, 1, p, 8, None, x, 8, infos[1])      # the second\n'),
    "of the pivots": ("write/read", LU + 'run("Sgetrs", 0, 8, 1, q, 8, pivots, x, 8, infos[1])      # the second\n'),
    "of the work area": ("write/write", LU + 'run("Sgetrf", 8, 8, q, 8, first, None, infos[1])      # the second\n'),
    "of the result": ("write/write", LU + 'run("Sgetrf", 8, 8, q, 8, second, None, infos[0])      # the second\n'),
}


@pytest.mark.parametrize(("pair", "program"), SCENES.values(), ids=SCENES)
def test_the_missing_wait_is_found_and_its_repair_is_silent(checked, pair, program):
    check_wait_and_repair(checked, BEGIN + program, pair)


def test_two_triangles_are_apart(checked):
    program = BEGIN + """
p, areas = device(random((9, 9), "f")), [work("Spotrf", "f", 0, 8, x, 8)[0] for _ in range(2)]
infos = [device(numpy.zeros(1, "i4")) for _ in range(2)]
for stream, triangle, first, area, result in zip((a, b), (0, 1), (4, 36), areas, infos):     # below and on the diagonal
    ok(solver.cusolverDnSetStream(of_solver, c_void_p(int(stream))))
    run("Spotrf", triangle if "apart" in sys.argv else 0, 8, c_void_p(p.value + first), 9, area, room, result)
"""
    assert checked(program).pairs == [("write/write", True)]
    assert checked(program, "apart").pairs == []


def test_vectors_of_a_long_matrix_are_left_out(checked):
    """The columns that complete them would keep a CPU for minutes: the call computes nothing."""
    run = checked(BEGIN + """
m, n = 3000, 2
p, s, u, v = (device(numpy.zeros(size, "f4")) for size in (m * n, n, m * m, n * n))
area, count = work("Sgesvd", "f4", m, n)
run("Sgesvd", 65, 65, m, n, p, m, s, u, m, v, n, area, count, None, info)
ok(driver.cuCtxSynchronize())
assert host(info, numpy.zeros(1, "i4")) == 7
parameters = c_void_p()
ok(solver.cusolverDnCreateGesvdjInfo(byref(parameters)))
run("Sgesvdj", 0, 0, m, n, p, m, s, None, m, None, n, area, count, info, parameters)
ok(driver.cuCtxSynchronize())
assert host(info, numpy.zeros(1, "i4")) == 0
""")
    assert (run.returncode, run.pairs) == (0, []), run.stderr


def test_what_is_no_matrix_of_the_programs_is_no_error(checked):
    """Kernels compute nothing, so that a matrix may be anything: the program goes on."""
    run = checked(BEGIN + """
none = numpy.full((4, 4), numpy.nan, "d")
for A in (none, numpy.zeros((4, 4), "d"), -numpy.eye(4, dtype="d")):
    p, q, r, s, pivots = (device(A) for _ in range(5))
    area, count = work("Dgetrf", "d", 4, 4, p, 4)
    run("Dgetrf", 4, 4, p, 4, area, pivots, info)
    run("Dgetrs", 0, 4, 4, p, 4, pivots, q, 4, info)
    run("Dpotrf", 0, 4, device(A), 4, area, count, info)
    run("Dsyevd", 1, 0, 4, device(A), 4, q, area, count, info)
    run("Dgesvd", ord("A"), ord("A"), 4, 4, device(A), 4, q, r, 4, s, 4, area, count, None, info)
    got(q, A)
""")
    assert (run.returncode, run.pairs) == (0, []), run.stderr


def test_wrong_arguments(checked):
    run = checked(BEGIN + """
p, (area, count) = device(numpy.ones((8, 8), "f")), work("Sgetrf", "f", 8, 8, x, 8)
assert solver.cusolverDnSgetrf(None, 8, 8, p, 8, area, None, info) == 1
assert solver.cusolverDnSgetrf(of_solver, 8, 8, p, 7, area, None, info) == 3
assert solver.cusolverDnSgetrf(of_solver, -8, 8, p, 8, area, None, info) == 3
assert solver.cusolverDnSgetrf(of_solver, 8, 8, c_void_p(12345), 8, area, None, info) == 6
assert solver.cusolverDnSgetrs(of_solver, 3, 8, 1, p, 8, None, x, 8, info) == 3
assert solver.cusolverDnSpotrf(of_solver, 2, 8, p, 8, area, count, info) == 3
assert solver.cusolverDnSgesvd(of_solver, 65, 65, 4, 8, p, 4, x, y, 4, z, 8, area, count, None, info) == 3
assert solver.cusolverDnSgesvd(of_solver, 79, 79, 8, 8, p, 8, x, y, 8, z, 8, area, count, None, info) == 3
assert solver.cusolverDnSorgqr(of_solver, 4, 8, 4, p, 4, x, area, count, info) == 3
assert solver.cusolverDnDestroy(None) == 1
ok(solver.cusolverDnDestroy(of_solver))
for part in range(3):
    ok(solver.cusolverGetProperty(part, byref(number)))
    assert part or number.value in (11, 12)
""")
    assert (run.returncode, run.pairs) == (0, []), run.stderr


@pytest.mark.parametrize(("library", "name"), [
    ("libcusolver.so.11", "cusolverDnXgeev"), ("libcusolver.so.12", "cusolverDnXgeev"),
    ("libcusparse.so.12", "cusparseScsrilu02")])
def test_what_is_missing_is_named_at_the_end(checked, library, name):
    run = checked(BEGIN + f"ok(ctypes.CDLL({library!r}).{name}())")
    assert f"{name} is not simulated: the program may have ended for that" in run.notes["notes"], run.notes["notes"]


CUPY = """
x = cupy.asarray(numpy.eye(8) + 1)
"""


@needs("cupy", "nvidia.cuda_nvrtc")
@pytest.mark.parametrize("call", ["svd(x, compute_uv=False)", "cholesky(x)", "solve(x, x[0])", "qr(x)", "eigh(x)"])
def test_races_with_cupys_linear_algebra(checked, call):
    check_call_of_cupys(checked, CUPY, f"cupy.linalg.{call}", "(z[0] if isinstance(z, tuple) else z)")


@needs("cupy", "nvidia.cuda_nvrtc")
def test_cupys_linear_algebra_runs_to_its_end(checked):
    run = checked("""
import cupy, numpy
from cupy import linalg
for dtype in "fdFD":
    x = cupy.asarray((numpy.eye(5) + 1).astype(dtype))
    for made in (linalg.svd(x), linalg.svd(x[:3], full_matrices=False), linalg.eigh(x), linalg.eigvalsh(x, UPLO="U"),
                 linalg.qr(x), linalg.qr(x[:3], mode="complete"), linalg.qr(x, mode="r"), linalg.inv(x),
                 linalg.det(x), linalg.slogdet(x), linalg.inv(cupy.stack([x, x])),
                 linalg.pinv(x), linalg.cholesky(x), linalg.solve(x, x[0]), linalg.lstsq(x, x[0]),
                 linalg.matrix_rank(x), linalg.norm(x, 2), linalg.cond(x), linalg.matrix_power(x, -2)):
        assert made is not None
""")
    assert (run.returncode, run.pairs) == (0, []), run.stderr
