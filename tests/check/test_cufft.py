"""Programs that call cuFFT by its name, and CuPy's transforms: without a GPU they get a simulated one."""
from __future__ import annotations

import pytest
from checked_libraries import check_wait_and_repair, check_wait_and_repair_in_cupy, needs
from closed_libraries import BEGIN

import xlogmem.check.cudart

pytestmark = pytest.mark.simulator
BEGIN += """
cufft = ctypes.CDLL("libcufft.so.VERSION")
R2C, C2R, C2C, D2Z, Z2D, Z2Z = 0x2a, 0x2c, 0x29, 0x6a, 0x6c, 0x69
rng = numpy.random.default_rng(0)

def ints(*numbers, of=c_int):
    return (of * len(numbers))(*numbers)

def made(form, *arguments, stream=None):
    plan = c_int()
    ok(getattr(cufft, "cufftPlan" + form)(byref(plan), *arguments))
    ok(cufft.cufftSetStream(plan, stream))
    return plan

def run(name, plan, p, q, *direction):
    ok(getattr(cufft, "cufftExec" + name)(plan, p, q, *direction))

def random(shape, dtype):
    array = rng.standard_normal(shape)
    return (array + 1j * rng.standard_normal(shape) if dtype in "FD" else array).astype(dtype)

def close(p, expected):
    ok(driver.cuCtxSynchronize())
    assert numpy.allclose(host(p, expected), expected, rtol=1e-4, atol=1e-4), abs(host(p, expected) - expected).max()

p, q = device(random(64, "F")), device(random(64, "F"))
streams = c_void_p(int(a)), c_void_p(int(b))
""".replace("VERSION", str(xlogmem.check.cudart._usual_major() - 1))
SCENES = {
    "write/read": """
first, second = (made("1d", 64, C2C, 1, stream=stream) for stream in streams)
third = device(ones.repeat(2))
run("C2C", first, p, q, -1)                                 # the first
wait()
run("C2C", second, q, third, 1)                             # the second
""",
    "read/write": """
first, second = made("1d", 64, R2C, 1, stream=streams[0]), made("1d", 8, C2C, 4, stream=streams[1])
run("R2C", first, p, q)                                     # the first
wait()
run("C2C", second, z, p, -1)                                # the second
""",
    "write/write": """
first, second = (made("1d", 64, R2C, 1, stream=stream) for stream in streams)
run("R2C", first, x, q)                                     # the first
wait()
run("R2C", second, x, q)                                    # the second
""",
}


@pytest.mark.parametrize(("pair", "program"), SCENES.items(), ids=SCENES)
def test_the_missing_wait_is_found_and_its_repair_is_silent(checked, pair, program):
    check_wait_and_repair(checked, BEGIN + program, pair)


def test_a_transform_to_real_numbers_overwrites_its_input(checked):
    check_wait_and_repair(checked, BEGIN + """
first, second = (made("1d", 64, C2R, 1, stream=stream) for stream in streams)
run("C2R", first, p, x)                                     # the first
wait()
run("C2R", second, p, y)                                    # the second
""", "write/write")


@pytest.mark.parametrize("area", ["", """
given = device(numpy.zeros(8192, "F"))
ok(cufft.cufftSetWorkArea(first, given))
"""], ids=["its own", "the program's"])
def test_a_plan_has_one_work_area(checked, area):
    """... so a transform in it has to wait for the one before, whatever they transform."""
    check_wait_and_repair(checked, BEGIN + """
big, other = (device(random(5000, "F")) for _ in range(2))
first = made("1d", 5000, C2C, 1, stream=streams[0])
""" + area + """
run("C2C", first, big, big, -1)                             # the first
wait()
ok(cufft.cufftSetStream(first, streams[1]))
run("C2C", first, other, other, -1)                         # the second
""", "write/write")


def test_a_short_transform_needs_no_room(checked):
    run = checked(BEGIN + """
first = made("1d", 64, C2C, 1, stream=streams[0])
run("C2C", first, p, p, -1)
ok(cufft.cufftSetStream(first, streams[1]))
run("C2C", first, q, q, -1)
""")
    assert (run.returncode, run.pairs) == (0, []), run.stderr


def test_columns_side_by_side_are_apart(checked):
    """A plan of one column of eight, of rows with gaps."""
    program = BEGIN + """
none = ints(8)
plans = [made("Many", 1, ints(8), none, 8, 1, none, 8, 1, C2C, 3, stream=stream) for stream in streams]
for plan, first in zip(plans, (0, 3 if "apart" in sys.argv else 2)):
    run("C2C", plan, c_void_p(p.value + 8 * first), c_void_p(p.value + 8 * first), -1)
"""
    assert checked(program).pairs == [("write/write", True)]
    assert checked(program, "apart").pairs == []


def test_transforms_are_numpys(checked):
    """Of all types, of lengths with small and large prime factors, in one to three dimensions."""
    run = checked(BEGIN + """
fft = numpy.fft
for n in (1, 2, 3, 4, 5, 8, 12, 63, 64, 97, 127, 131, 251, 262, 1000, 5003):
    for single, double, names in ((C2C, Z2Z, "C2C Z2Z"), (R2C, D2Z, "R2C D2Z"), (C2R, Z2D, "C2R Z2D")):
        for kind, name, one, other in zip((single, double), names.split(), "FD", "fd"):
            plan = made("1d", n, kind, 3)
            if single == C2C:
                A = random((3, n), one)
                r, s = device(A), device(A)
                run(name, plan, r, s, -1)
                close(s, fft.fft(A).astype(one))
                run(name, plan, r, r, 1)
                close(r, fft.ifft(A, norm="forward").astype(one))
            elif single == R2C:
                A = random((3, n), other)
                expected = fft.rfft(A).astype(one)
                r = device(expected)
                run(name, plan, device(A), r)
                close(r, expected)
            else:
                A = random((3, n // 2 + 1), one)
                expected = fft.irfft(A, n=n, norm="forward").astype(other)
                r = device(expected)
                run(name, plan, device(A), r)
                close(r, expected)
            ok(cufft.cufftDestroy(plan))
for shape in ((4, 6), (3, 5), (2, 131), (3, 4, 5), (1, 2, 6)):
    form = f"{len(shape)}d"
    A, B = random(shape, "D"), random(shape, "d")
    r, half = device(A), fft.rfftn(B)
    run("Z2Z", made(form, *shape, Z2Z), r, r, -1)
    close(r, fft.fftn(A))
    r, s = device(half), device(B)
    run("D2Z", made(form, *shape, D2Z), s, r)
    close(r, half)
    run("Z2D", made(form, *shape, Z2D), r, s)
    close(s, B * B.size)
""")
    assert (run.returncode, run.pairs) == (0, []), run.stderr


def test_layouts(checked):
    """Numbers with gaps, batches that are interleaved, and rows of real numbers that become complex in their place."""
    run = checked(BEGIN + """
fft = numpy.fft
A = random((6, 4), "F")                                     # four of six, side by side
r, s = device(A), device(A)
plan = made("Many", 1, ints(6), ints(6), 4, 1, ints(6), 4, 1, C2C, 4)
run("C2C", plan, r, s, -1)
close(s, fft.fft(A, axis=0).astype("F"))
A, expected = random((2, 5, 8), "d"), numpy.full((2, 6, 9), 7, "D")         # of a part of an array
r, s = device(A), device(expected)
plan = made("Many", 2, ints(3, 4), ints(5, 4), 2, 40, ints(6, 9), 1, 54, D2Z, 2)
run("D2Z", plan, r, s)
expected[:, :3, :3] = fft.rfft2(A[:, :3, ::2])
close(s, expected)
for shape in ((5,), (4, 6), (2, 3, 5)):
    wide = (*shape[:-1], shape[-1] // 2 * 2 + 2)
    A, B = random((3, *wide), "f"), random((3, *shape), "f")
    A[..., :shape[-1]] = B
    axes = tuple(range(1, len(shape) + 1))
    made_of = [made("Many", len(shape), ints(*shape), None, 1, 0, None, 1, 0, kind, 3) for kind in (R2C, C2R)]
    r = device(A)
    run("R2C", made_of[0], r, r)
    close(r, fft.rfftn(B, axes=axes).astype("F"))
    run("C2R", made_of[1], r, r)
    ok(driver.cuCtxSynchronize())
    assert numpy.allclose(host(r, A)[..., :shape[-1]], B * numpy.prod(shape), atol=1e-3)
""")
    assert (run.returncode, run.pairs) == (0, []), run.stderr


def test_plans_by_other_functions(checked):
    """... their sizes, and what is refused."""
    run = checked(BEGIN + """
plan, work, more, n64 = c_int(), c_size_t(7), c_size_t(), ints(5000, of=c_longlong)
many64 = (1, n64, None, *map(c_longlong, (1, 0)), None, *map(c_longlong, (1, 0)), Z2Z, c_longlong(2))
ok(cufft.cufftCreate(byref(plan)))
ok(cufft.cufftSetAutoAllocation(plan, 0))
ok(cufft.cufftGetSizeMany64(plan, *many64, byref(more)))
assert cufft.cufftExecZ2Z(plan, p, p, -1) == 1
ok(cufft.cufftMakePlanMany64(plan, *many64, byref(work)))
assert work.value == more.value == 2 * 5000 * 16
assert cufft.cufftMakePlanMany64(plan, *many64, byref(work)) == 1
A = random((2, 5000), "D")
r = device(A)
assert cufft.cufftExecZ2Z(plan, r, r, -1) == 13
ok(cufft.cufftSetWorkArea(plan, device(A)))
run("Z2Z", plan, r, r, -1)
close(r, numpy.fft.fft(A))
ok(cufft.cufftGetSize(plan, byref(work)))
ok(cufft.cufftEstimate1d(5000, C2C, 1, byref(more)))
assert (work.value, more.value) == (160000, 40000)
assert cufft.cufftExecZ2Z(plan, r, r, 0) == cufft.cufftExecZ2Z(plan, r, None, -1) == 4
assert cufft.cufftExecC2C(plan, r, r, -1) == 3 and cufft.cufftExecZ2Z(plan, c_void_p(12345), r, -1) == 6
ok(cufft.cufftDestroy(plan))
assert cufft.cufftDestroy(plan) == cufft.cufftSetStream(plan, None) == cufft.cufftExecZ2Z(plan, r, r, -1) == 1
for arguments, status in (((0, C2C, 1), 8), ((8, 7, 1), 3), ((8, C2C, 0), 8), ((-3, C2C, 1), 8)):
    assert cufft.cufftPlan1d(byref(plan), *arguments) == status, arguments
assert cufft.cufftPlanMany(byref(plan), 4, ints(2, 2, 2, 2), None, 1, 0, None, 1, 0, C2C, 1) == 4
assert cufft.cufftPlanMany(byref(plan), 2, ints(2, 8), ints(2, 7), 1, 16, ints(2, 8), 1, 16, C2C, 1) == 8
""")
    assert (run.returncode, run.pairs) == (0, []), run.stderr


def test_plans_by_types_of_their_sides(checked):
    run = checked(BEGIN + """
plan, work, xt = c_int(), c_size_t(), [c_int() for _ in range(3)]
for made_now, of_in, of_out, status in zip(xt, (4, 1, 6), (4, 5, 6), (0, 0, 3)):
    ok(cufft.cufftCreate(byref(made_now)))
    one = (c_longlong(1), c_longlong(0))
    assert cufft.cufftXtMakePlanMany(made_now, 1, ints(64, of=c_longlong), None, *one, of_in, None, *one, of_out,
                                     c_longlong(1), byref(work), of_out) == status
A, B = random(64, "F"), random(64, "d")
r, s = device(A), device(random(33, "D"))
ok(cufft.cufftXtExec(xt[0], r, r, 1))
ok(cufft.cufftXtExec(xt[1], device(B), s, 1))
close(r, (numpy.fft.ifft(A) * 64).astype("F"))
close(s, numpy.fft.rfft(B))
ok(cufft.cufftGetVersion(byref(plan)))
assert plan.value // 1000 in (11, 12)
""")
    assert (run.returncode, run.pairs) == (0, []), run.stderr


def test_a_transform_that_takes_too_long_is_not_computed(checked):
    run = checked(BEGIN + """
n, none = 4096, ints(4096)
big = device(numpy.zeros(n, "F"))
plans = [made("Many", 1, ints(n), none, 1, 0, none, 1, 0, C2C, 1 << 20, stream=stream) for stream in streams]
for plan in plans:
    run("C2C", plan, big, big, -1)
""")
    assert run.pairs == [("write/write", True)], run.stderr
    assert "2 launches of kernels computed nothing, because the check runs without a GPU" in run.notes["notes"]


def test_a_captured_transform_is_one_of_the_graph(checked):
    run = checked(BEGIN + """
plan = made("1d", 64, C2C, 1, stream=streams[0])
before = host(p, random(64, "F"))
ok(driver.cuStreamBeginCapture(a, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
run("C2C", plan, p, q, -1)
graph = ok(driver.cuGraphInstantiate(ok(driver.cuStreamEndCapture(a)), 0))
ok(driver.cuGraphLaunch(graph, a))
close(q, numpy.fft.fft(before).astype("F"))
ok(driver.cuGraphLaunch(graph, a))
ok(cufft.cufftSetStream(plan, streams[1]))
run("C2C", plan, p, q, -1)
""")
    assert run.pairs == [("write/write", True)], run.stderr


@pytest.mark.parametrize("version", [11, 12])
def test_what_is_missing_is_named_at_the_end(checked, version):
    for call in ("cufftXtSetCallback()", "cufftXtMakePlanMany of 16-bit numbers"):
        run = checked(BEGIN + f"""
library, plan = ctypes.CDLL("libcufft.so.{version}"), c_int()
ok(library.cufftCreate(byref(plan)))
many = (plan, 1, ints(8, of=c_longlong), None, *map(c_longlong, (1, 0)), 6, None, *map(c_longlong, (1, 0)), 6,
        c_longlong(1), None, 6)
ok(library.{call if call.endswith("()") else "cufftXtMakePlanMany(*many)"})
""")
        name = call.removesuffix("()")
        assert run.notes["notes"] == {f"{name} is not simulated: the program may have ended for that": 1}, run.stderr


CUPY = """
import sys
import cupy, numpy
from cupyx.scipy import fft
a, b = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
x = cupy.asarray(numpy.ones((32, 32), "D"))
real = cupy.asarray(numpy.ones((32, 32)))
cupy.cuda.Device().synchronize()
def wait():
    if "fixed" in sys.argv:
        b.wait_event(a.record())
"""
CUPY_RACES = {
    "fft": ("write/read", """
with a:
    z = cupy.fft.fft(x)                                     # the first
wait()
with b:
    y = z * 2                                               # the second
"""),
    "fftn": ("write/read", """
with a:
    x *= 2                                                  # the first
wait()
with b:
    y = cupy.fft.fftn(x)                                    # the second
"""),
    "rfft": ("read/write", """
with a:
    z = cupy.fft.rfft(real)                                 # the first
wait()
with b:
    real.fill(1)                                            # the second
"""),
    "in place": ("write/read", """
with a:
    z = fft.fft(x, overwrite_x=True)                        # the first
wait()
with b:
    y = cupy.fft.fft2(x)                                    # the second
"""),
    "plan": ("write/read", """
plan = fft.get_fft_plan(x, axes=(1,))
with a:
    z = fft.ifft(x, axis=1, plan=plan, norm="forward")      # the first
wait()
with b:
    y = fft.fft(z, axis=1, plan=plan)                       # the second
"""),
}


@needs("cupy", "nvidia.cuda_nvrtc")
@pytest.mark.parametrize(("pair", "program"), CUPY_RACES.values(), ids=CUPY_RACES)
def test_races_with_cupys_transforms(checked, pair, program):
    end = "\nwait()\na.synchronize()\nb.synchronize()\n"
    check_wait_and_repair_in_cupy(checked, CUPY + program + end, pair)


@needs("cupy", "nvidia.cuda_nvrtc")
def test_cupys_transforms_are_numpys(checked):
    """As far as cuFFT computes them: CuPy scales, reorders and copies in kernels of its own, which compute nothing."""
    run = checked("""
import cupy, numpy
from cupyx.scipy import fft
rng = numpy.random.default_rng(0)
def close(made, expected):
    assert made.shape == expected.shape and numpy.allclose(cupy.asnumpy(made), expected, rtol=1e-4, atol=1e-4)
for shape in ((64,), (3, 9), (2, 131), (3, 4, 5)):
    for dtype in "fdFD":
        A = rng.standard_normal(shape)
        A = (A + 1j * rng.standard_normal(shape) if dtype in "FD" else A).astype(dtype)
        x = cupy.asarray(A)
        if dtype in "fd":
            close(cupy.fft.rfft(x), numpy.fft.rfft(A))
            close(cupy.fft.rfftn(x), numpy.fft.rfftn(A))
        else:
            close(cupy.fft.fft(x), numpy.fft.fft(A))
            close(cupy.fft.fftn(x), numpy.fft.fftn(A))
            close(cupy.fft.ifftn(x, norm="forward"), numpy.fft.ifftn(A, norm="forward"))
            close(fft.fft(x, overwrite_x=True), numpy.fft.fft(A))
for run in (cupy.fft.irfft, cupy.fft.irfftn, cupy.fft.hfft, cupy.fft.ihfft, cupy.fft.fftshift, fft.dct, fft.idst):
    assert run(x if run is not cupy.fft.ihfft and run is not fft.dct and run is not fft.idst else x.real).size
""")
    assert (run.returncode, run.pairs) == (0, []), run.stderr


@pytest.mark.parametrize(("kind", "found"), [
    (None, [("write/read", True), ("write/write", True)]), (0, [("write/write", True)]), (4, [("write/read", True)])])
def test_a_function_of_the_program_loads_or_stores_the_numbers(checked, kind, found):
    """What it accesses is not known: the other side is."""
    run = checked(BEGIN + f"""
for r, s in ((p, device(random(64, "F"))), (device(random(64, "F")), p)):
    plan = c_int()
    ok(cufft.cufftCreate(byref(plan)))
    if {kind} is not None:
        ok(cufft.cufftXtSetJITCallback(plan, b"function", b"image", c_size_t(5), {kind}, None))
    ok(cufft.cufftMakePlan1d(plan, 64, C2C, 1, byref(c_size_t())))
    ok(cufft.cufftSetStream(plan, streams[1]))
    ok(driver.cuCtxSynchronize())
    ok(driver.cuMemsetD8Async(p.value, 0, 8, a))
    run("C2C", plan, r, s, -1)
    assert cufft.cufftXtSetJITCallback(plan, b"function", b"image", c_size_t(5), 0, None) == 1
""")
    assert sorted(run.pairs) == found, run.stderr
    assert ("cufftExecC2C" in run.stderr.partition("xlogmem check:")[2]) == (kind is not None), run.stderr
