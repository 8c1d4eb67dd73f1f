"""Kernels that the simulated driver does not know: launched under a check, judged by what their images say."""
from __future__ import annotations

import itertools

import pytest
from checked_programs import DRIVER

pytestmark = pytest.mark.simulator

START = DRIVER + r'''
PTX = b""".version 8.0
.target sm_90
.address_size 64
.visible .entry copy(.param .u32 n, .param .u64 to, .param .u64 from)
{
    .reg .b64 %r<4>;
    ld.param.u64 %r1, [to];
    ld.param.u64 %r2, [from];
    ld.global.u32 %r3, [%r2];
    st.global.u32 [%r1], %r3;
    ret;
}
"""

a, b, event = ok(cuda.cuStreamCreate(1)), ok(cuda.cuStreamCreate(1)), ok(cuda.cuEventCreate(0))
p, q, r = (ok(cuda.cuMemAlloc(4096)) for _ in range(3))
fixed = "fixed" in sys.argv

def launch(function, stream, to, source, packed=False):
    values = (1, int(to), int(source)), (ctypes.c_uint32, ctypes.c_uint64, ctypes.c_uint64)
    if not packed:
        ok(cuda.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, values, 0))
        return
    buffer = (ctypes.c_uint64 * 3)(*values[0])
    size = ctypes.c_size_t(24)
    extra = (ctypes.c_void_p * 5)(1, ctypes.addressof(buffer), 2, ctypes.addressof(size), 0)
    ok(cuda.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, 0, ctypes.addressof(extra)))

def wait(before, after):
    if fixed:
        ok(cuda.cuEventRecord(event, before))
        ok(cuda.cuStreamWaitEvent(after, event, 0))

def function_of(image, name=b"copy"):
    return ok(cuda.cuModuleGetFunction(ok(cuda.cuModuleLoadData(image)), name))
'''
TWO_LAUNCHES = START + '''
copy = function_of(PTX)
launch(copy, a, q, p, "packed" in sys.argv)             # the first
wait(a, b)
launch(copy, b, r, q, "packed" in sys.argv)             # the second
'''
LIBRARY = START + '''
copy = ok(cuda.cuKernelGetFunction(ok(cuda.cuLibraryGetKernel(
    ok(cuda.cuLibraryLoadData(PTX, [], [], 0, [], [], 0)), b"copy"))))
launch(copy, a, q, p)
wait(a, b)
launch(copy, b, r, q)
'''
CAPTURED = START + '''
copy = function_of(PTX)
ok(cuda.cuStreamBeginCapture(a, cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
launch(copy, a, q, p)
graph = ok(cuda.cuGraphInstantiate(ok(cuda.cuStreamEndCapture(a)), 0))
ok(cuda.cuGraphLaunch(graph, a))
wait(a, b)
launch(copy, b, r, q)
'''
FREED = START + '''
copy, t = function_of(PTX), ok(cuda.cuMemAllocAsync(4096, a))
launch(copy, a, q, t)
wait(a, b)
ok(cuda.cuMemFreeAsync(t, b))
'''


def line_with(program, text):
    return next(number for number, line in enumerate(program.splitlines(), 1) if text in line)


@pytest.mark.parametrize(("program", "arguments", "pair"), [
    (TWO_LAUNCHES, [], "write/read"), (TWO_LAUNCHES, ["packed"], "write/read"), (LIBRARY, [], "write/read"),
    (CAPTURED, [], "write/read"), (FREED, [], "read/free")])
def test_a_missing_wait_between_kernels(checked, program, arguments, pair):
    run = checked(program, *arguments)
    assert (run.returncode, run.pairs) == (1, [(pair, True)]), run.stderr
    run = checked(program, *arguments, "fixed")
    assert (run.returncode, run.pairs) == (0, []), run.stderr


def test_both_lines_and_the_launches_that_computed_nothing(checked):
    run = checked(TWO_LAUNCHES)
    lines = [run.findings[0][which]["stack"][1]["line"] for which in ("first", "second")]
    assert lines == [line_with(TWO_LAUNCHES, text) for text in ("# the first", "# the second")]
    note = "2 launches of kernels computed nothing, because the check runs without a GPU"
    assert list(run.notes["notes"]) == [note]
    assert run.stderr.splitlines()[-2] == f"xlogmem check: {note}"


def test_one_launch_that_computed_nothing(checked):
    run = checked(START + "launch(function_of(PTX), a, q, p)\n")
    assert list(run.notes["notes"]) == ["1 launch of a kernel computed nothing, because the check runs without a GPU"]


RESULTS = "without a GPU kernels compute nothing: the program may have ended because it works with their results"


@pytest.mark.parametrize(("end", "said", "more"), [
    ("assert a == b", "the program cannot verify its results", "python -O leaves its assertions out"),
    ("raise AssertionError('not equal')", "the program cannot verify its results", ""),
    ("1 / 0", RESULTS, ""), ("1e200 ** 2", RESULTS, ""), ("sys.exit(1)", RESULTS, ""),
    ("raise KeyError(1)", "", ""), ("sys.exit(0)", "", "")])
def test_an_end_that_missing_results_may_explain(checked, end, said, more):
    run = checked(START + f"import os\nlaunch(function_of(PTX), a, q, p)\n{end}\n")
    for text, other in ((RESULTS, said), ("the program cannot verify its results", said), ("python -O", more)):
        assert (text in run.stderr) == (text in other), run.stderr


COMPARED = """
import numpy
from numpy.testing import assert_array_equal
launch(function_of(PTX), a, q, p)
numpy.testing.assert_allclose([1.0], [2.0])
assert_array_equal([1], [2])
print("went on")
"""


def test_assertions_of_numpy_end_a_program_unless_it_leaves_assertions_out(checked):
    run = checked(START + COMPARED)
    assert (run.returncode, run.stdout) == (3, "")
    assert "python -O leaves its assertions out" in run.stderr
    run = checked(START + COMPARED, PYTHONOPTIMIZE="1")
    assert (run.returncode, run.stdout) == (0, "went on\n"), run.stderr
    assert "2 assertions of numpy.testing failed, and Python's -O went on" in run.stderr


def test_assertions_of_numpy_that_no_kernel_can_explain(checked):
    run = checked(START + "import numpy\nnumpy.testing.assert_allclose([1.0], [2.0])\n", PYTHONOPTIMIZE="1")
    assert run.returncode == 3, run.stderr


def test_an_end_without_a_launch_has_another_reason(checked):
    assert RESULTS not in checked(START + "sys.exit(1)\n").stderr


def test_two_reads_are_fine(checked):
    assert checked(START + "copy = function_of(PTX)\nlaunch(copy, a, q, p)\nlaunch(copy, b, r, p)\n").pairs == []


def test_where_the_parameters_are(checked):
    run = checked(START + '''
copy = function_of(PTX)
for query in (cuda.cuFuncGetParamInfo, lambda f, i: cuda.cuKernelGetParamInfo(cuda.CUkernel(int(f)), i)):
    found = [query(copy, i) for i in range(4)]
    assert [tuple(map(int, one)) for one in found[:3]] == [(0, 0, 4), (0, 8, 8), (0, 16, 8)], found
    assert int(found[3][0]) == 1
assert ok(cuda.cuFuncGetName(copy)) == b"copy"
assert int(cuda.cuModuleGetFunction(ok(cuda.cuModuleLoadData(PTX)), b"other")[0]) == 500
''')
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("image", ['b"\\x7fELF" + bytes(100)',
                                   'b".version 9.9\\n.visible .entry mystery(.param .q256 p)\\n{\\nret;\\n}"'])
def test_a_kernel_without_a_layout_is_named_once(checked, image):
    run = checked(START + f"function = function_of({image}, b'mystery')" + '''
for _ in range(3):
    ok(cuda.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, a, 0, 0))
''')
    assert run.returncode == 0
    assert list(run.notes["notes"]) == [
        "3 launches of kernels computed nothing, because the check runs without a GPU",
        "3 launches were not judged, because it is not known what these kernels do to memory: mystery"]


SIGNALS_THE_HOST = START + '''
pinned = ok(cuda.cuMemHostAlloc(4096, 0))
signal = function_of(PTX.replace(b"st.global.u32 [%r1], %r3;", sys.argv[1].encode()))

def signal_on(stream):
    values = (1, int(pinned), int(p)), (ctypes.c_uint32, ctypes.c_uint64, ctypes.c_uint64)
    if "together" in sys.argv:
        ok(cuda.cuLaunchCooperativeKernel(signal, 1, 1, 1, 32, 1, 1, 0, stream, values))
    elif "configured" in sys.argv:
        config = cuda.CUlaunchConfig()
        config.gridDimX = config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1
        config.blockDimX, config.hStream = 32, stream
        ok(cuda.cuLaunchKernelEx(config, signal, values, 0))
    else:
        launch(signal, stream, pinned, p)

if "captured" in sys.argv:
    ok(cuda.cuStreamBeginCapture(a, cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
    signal_on(a)
    graph = ok(cuda.cuGraphInstantiate(ok(cuda.cuStreamEndCapture(a)), 0))
copy = function_of(PTX)
launch(copy, a, q, r)
if "captured" in sys.argv:
    ok(cuda.cuGraphLaunch(graph, a))
else:
    signal_on(a)
if fixed:
    ok(cuda.cuStreamSynchronize(a))
launch(copy, b, r, q)
'''
SIGNALS = ["st.release.sys.global.u32 [%r1], %r3;", "st.volatile.u32 [%r1], %r3;",
           "st.mmio.relaxed.sys.u32 [%r1], %r3;", "call.uni f, (%r1);", "fence.sc.sys; st.u32 [%r1], %r3;"]
NO_SIGNALS = ["st.global.u32 [%r1], %r3;", "st.release.gpu.u32 [%r1], %r3;", "red.global.add.u32 [%r1], %r3;"]


@pytest.mark.parametrize(("body", "how"), [
    *((body, "plain") for body in SIGNALS + NO_SIGNALS),
    *itertools.product((SIGNALS[0], NO_SIGNALS[0]), ("together", "configured", "captured"))])
def test_the_host_may_learn_from_a_kernel(checked, body, how):
    """... that has an access of the system's scope, of what came before it."""
    certain = body in NO_SIGNALS
    run = checked(SIGNALS_THE_HOST, body, how)
    assert ("write/read", certain) in run.pairs, run.stderr
    assert {found for _, found in run.pairs} == {certain}
    assert checked(SIGNALS_THE_HOST, body, how, "fixed").pairs == []


def test_what_is_not_computed_is_zero_and_what_was_there_stays(checked):
    run = checked(START + '''
copy, sizes = function_of(PTX), (ctypes.c_uint32 * 1024)()
ok(cuda.cuMemsetD8(p, 7, 4096))
ok(cuda.cuCtxSynchronize())
launch(copy, a, q, p)
launch(copy, a, p, q)
ok(cuda.cuStreamSynchronize(a))
for source, expected in ((q, 0), (p, 0x07070707)):
    ok(cuda.cuMemcpyDtoH(sizes, source, 4096))
    assert set(sizes) == {expected}, set(sizes)
''')
    assert run.returncode == 0, run.stderr


def test_a_function_runs_in_place_of_a_kernel(checked):
    program = START + '''
import xlogmem.check

def run(launch):
    assert launch.name == "copy" and launch.block == (32, 1, 1) and launch.value(0) == 1
    launch.view(1)[:4] = launch.view(2)[:4]
    done.append(launch)

done = []
xlogmem.check.kernel("c?py", run=run)
copy, found = function_of(PTX), (ctypes.c_uint32 * 1)()
ok(cuda.cuMemsetD32(p, 42, 4))
ok(cuda.cuCtxSynchronize())
launch(copy, a, q, p)
wait(a, b)
ok(cuda.cuMemcpyDtoHAsync(found, q, 4, b))
ok(cuda.cuStreamSynchronize(b))
ok(cuda.cuStreamSynchronize(a))
assert len(done) == 1
assert not fixed or found[0] == 42, found[0]
'''
    run = checked(program)
    assert run.pairs == [("write/read", True)], run.stderr
    run = checked(program, "fixed")
    assert (run.returncode, run.notes["notes"]) == (0, {}), run.stderr


def test_a_function_that_fails_is_printed(checked):
    run = checked(START + '''
import xlogmem.check
xlogmem.check.kernel("copy", run=lambda launch: launch.view(0))
launch(function_of(PTX), a, q, p)
ok(cuda.cuStreamSynchronize(a))
''')
    assert "ValueError: 0x1 is not device memory" in run.stderr


@pytest.mark.parametrize(("declared", "pairs"), [
    ("", [("write/read", True)]), ('xlogmem.check.kernel("copy", read=[1])', []),
    ('xlogmem.check.kernel("other*", read=[1])', [("write/read", True)]),
    ('xlogmem.check.kernel("copy", read=[1], write=[2])', [("read/write", True)])])
def test_declared_roles(checked, declared, pairs):
    program = TWO_LAUNCHES.replace("copy = function_of", f"import xlogmem.check\n{declared}\ncopy = function_of")
    assert checked(program).pairs == pairs


def test_a_negative_parameter_is_refused():
    import xlogmem.check
    with pytest.raises(ValueError, match="count from 0"):
        xlogmem.check.kernel("copy", read=[-1])


def test_outside_of_a_check_such_a_launch_is_refused(driver, memory, _context):
    from cuda.bindings import driver as cuda

    from xlogmem.sim.kernels import check
    module = check(cuda.cuModuleLoadData(b".version 8.0\n.target sm_90\n.visible .entry alone()\n{\nret;\n}\n"))
    function = check(cuda.cuModuleGetFunction(module, b"alone"))
    assert int(cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0)[0]) == 801
    check(cuda.cuModuleUnload(module))
