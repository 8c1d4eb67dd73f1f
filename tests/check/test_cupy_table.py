"""CuPy's runtime module without a GPU: the functions that take the places of CuPy's, in programs without CuPy.

`test_cupy_runtime.py` has CuPy itself.
"""
from __future__ import annotations

import pytest
from checked_libraries import line_with

import xlogmem.check.cudart

pytestmark = [pytest.mark.simulator, pytest.mark.parametrize("major", xlogmem.check.cudart.MAJORS)]

START = """
import ctypes, sys
from types import SimpleNamespace
from xlogmem.check import cudart

class CUDARuntimeError(RuntimeError):
    def __init__(self, status):
        super().__init__(f"status {status}")
        self.status = status

major, fixed = int(sys.argv[1]), "fixed" in sys.argv
cudart.loaded(major)
from xlogmem.check.neighbours import _cupy_table as runtime

runtime.begin(SimpleNamespace(CUDARuntimeError=CUDARuntimeError, runtimeGetVersion=lambda: 1000 * major,
                              PointerAttributes=lambda *values: values))
a, b = runtime.streamCreateWithFlags(1), runtime.streamCreateWithFlags(1)
x, y, event = runtime.malloc(512), runtime.malloc(512), runtime.eventCreateWithFlags(2)
runtime.memset(x, 0, 512)
runtime.memset(y, 5, 512)
runtime.deviceSynchronize()

def refused(status, call, *arguments):
    try:
        call(*arguments)
    except CUDARuntimeError as error:
        assert error.status == status, error
    else:
        raise AssertionError(call)
"""
# Sixteen columns of eight rows (with peers of one), which begin 64 bytes apart, at the second.
COPIES = START + """
way = sys.argv[2]
stream = 0 if "now" in way else a
rows = 1 if "peers" in way else 8
fields = ["target_array", "to_x", "to_y", "to_z", "target", "target_pitch", "target_width", "target_height"]

class Parameters(ctypes.Structure):                                             # cudaMemcpy3DParms
    _fields_ = [(name, ctypes.c_size_t) for name in (
        *(name.replace("target", "source").replace("to_", "from_") for name in fields), *fields, "width", "height",
        "depth")] + [("kind", ctypes.c_int)]

cube = Parameters(source=y, source_pitch=64, source_width=64, source_height=2, target=x, target_pitch=64,
                  target_width=64, target_height=2, from_x=16, to_x=16, width=16, height=2, depth=4, kind=3)
at, place = (x + 16, 64, y + 16, 64, 16, 8, 3), ctypes.addressof(cube)
copy = {"rows": lambda: runtime.memcpy2DAsync(*at, a),
        "rows now": lambda: runtime.memcpy2D(*at),
        "planes": lambda: runtime.memcpy3DAsync(place, a),
        "planes now": lambda: runtime.memcpy3D(place),
        "peers": lambda: runtime.memcpyPeerAsync(x + 16, 0, y + 16, 0, 16, a),
        "peers now": lambda: runtime.memcpyPeer(x + 16, 0, y + 16, 0, 16)}[way]
copy()                                                                          # the first
for row in range(rows):
    runtime.memsetAsync(x + 64 * row, 7, 16, b)                                 # the columns before
    runtime.memsetAsync(y + 64 * row + 32, 7, 32, b)                            # and behind
if fixed:
    runtime.eventRecord(event, stream)
    runtime.streamWaitEvent(b, event)
runtime.memsetAsync(y + 64 * rows - 64 + 24, 9, 1, b)                           # writes what is read
runtime.memsetAsync(x + 64 * rows - 64 + 31, 5, 1, b)                           # writes what is written
runtime.deviceSynchronize()
if fixed:
    host = ctypes.create_string_buffer(512)
    runtime.memcpy(ctypes.addressof(host), x, 512, 2)
    assert host.raw[:64 * rows] == (b"\\7" * 16 + b"\\5" * 16 + bytes(32)) * rows
    assert not any(host.raw[64 * rows:])
"""
RACES = {"read/write": "# writes what is read", "write/write": "# writes what is written"}


@pytest.mark.parametrize("way", ["rows", "rows now", "planes", "planes now", "peers", "peers now"])
def test_a_copy_reads_its_source_and_writes_its_target(checked, major, way):
    """... on its stream, the rows and nothing between them."""
    run = checked(COPIES, str(major), way)
    assert (dict(run.pairs), run.returncode) == (dict.fromkeys(RACES, True), 1), run.stderr
    for finding in run.findings:
        for access, text in (finding["first"], "# the first"), (finding["second"], RACES[finding["pair"]]):
            lines = [frame["line"] for frame in access["stack"] if frame["file"].endswith("program.py")]
            assert line_with(COPIES, text) in lines, run.stderr
    run = checked(COPIES, str(major), way, "fixed")
    assert (run.pairs, run.returncode) == ([], 0), run.stderr


MANAGED = START + """
m = runtime.mallocManaged(4096)
runtime.memsetAsync(m, 1, 4096, a)                                              # the first
if fixed:
    runtime.eventRecord(event, a)
    runtime.streamWaitEvent(b, event)
for device in (0, -1):
    runtime.memAdvise(m, 4096, 3, device)                                       # the preferred place
    runtime.memPrefetchAsync(m, 4096, device, b)
if "reads" in sys.argv:
    runtime.memcpyAsync(x, m, 512, 3, b)                                        # the second
runtime.deviceSynchronize()
refused(101, runtime.memPrefetchAsync, m, 4096, 99, b)
"""


def test_a_prefetch_through_cupys_table_is_no_access(checked, major):
    run = checked(MANAGED, str(major))
    assert (run.pairs, run.returncode) == ([], 0), run.stderr
    assert checked(MANAGED, str(major), "reads").pairs == [("write/read", True)]
    run = checked(MANAGED, str(major), "reads", "fixed")
    assert (run.pairs, run.returncode) == ([], 0), run.stderr


VALUES = START + """
class Properties:
    def __reduce__(self):                                                       # as CuPy's are pickled
        return (type, (Properties, 0, (1, runtime.getDevice(), 0, 1)))          # allocation, device, handle, location

pool = runtime.memPoolCreate(Properties())
block = runtime.mallocFromPoolAsync(64, pool, a)
assert runtime.pointerGetAttributes(block)[0] == 0
runtime.freeAsync(block, a)
runtime.streamSynchronize(a)
runtime.memPoolDestroy(pool)
names = [runtime.deviceGetPCIBusId(device) for device in range(runtime.getDeviceCount())]
assert [runtime.deviceGetByPCIBusId(name) for name in names] == list(range(len(names)))
assert [runtime.getDeviceProperties(i)["pciBusID"] for i in range(len(names))] == [int(name[5:7], 16) for name in names]
assert runtime.getDeviceProperties(0)["totalGlobalMem"] == runtime.memGetInfo()[1]
refused(101, runtime.getDeviceProperties, 99)
refused(101, runtime.deviceGetByPCIBusId, "0000:99:00.0")
refused(101, runtime.deviceGetPCIBusId, 99)
runtime.deviceSetLimit(0, 2048)
assert runtime.deviceGetLimit(0) == 2048
refused(215, runtime.deviceSetLimit, 99, 1)
for _ in range(2):
    runtime._deviceEnsurePeerAccess(1)
refused(704, runtime.deviceEnablePeerAccess, 1)
runtime.deviceDisablePeerAccess(1)
refused(705, runtime.deviceDisablePeerAccess, 1)
runtime.profilerStart()
runtime.profilerStop()
assert runtime._getLocalRuntimeVersion() == 1000 * major
"""


def test_what_programs_request_of_devices_and_pools(checked, major):
    run = checked(VALUES, str(major))
    assert (run.pairs, run.returncode) == ([], 0), run.stderr


CALLED = START + """
called, mark = [], object()
runtime.launchHostFunc(a, lambda number: called.append(number), 3)
runtime.streamAddCallback(a, lambda *arguments: called.append(arguments), 4)
runtime.streamSynchronize(a)
assert called == [3, (a, 0, 4)], called

function = called.append
pair, before = (function, mark), sys.getrefcount(mark)
runtime.streamBeginCapture(a)
runtime._launchHostFuncUnmanaged(a, pair)
graph = runtime.streamEndCapture(a)
made = runtime.graphInstantiate(graph)
for _ in range(3):
    runtime.graphLaunch(made, a)
runtime.streamSynchronize(a)
assert called[2:] == [mark] * 3
del called[:]
assert sys.getrefcount(mark) == before

count = sys.getrefcount(function)
for call in (runtime.launchHostFunc, runtime.streamAddCallback):
    refused(400, call, 12345, function, 5)
    assert sys.getrefcount(function) == count                                   # not kept: it is not called
refused(400, runtime._launchHostFuncUnmanaged, 12345, pair)
assert not called
"""


def test_functions_of_the_host_are_called(checked, major):
    """In a graph once for each launch: the reference is the caller's."""
    run = checked(CALLED, str(major))
    assert (run.pairs, run.returncode) == ([], 0), run.stderr


CAPTURES = START + """
assert not runtime.streamIsCapturing(a)
runtime.streamBeginCapture(a)
assert runtime.streamIsCapturing(a)
assert runtime.streamQuery(a) == 900                                            # ends it
try:
    runtime.streamIsCapturing(a)
except RuntimeError as error:
    assert not isinstance(error, CUDARuntimeError) and "invalidated the capture" in str(error)
else:
    raise AssertionError
refused(901, runtime.streamEndCapture, a)
assert not runtime.streamIsCapturing(a)
"""


def test_a_capture_that_an_error_has_ended_is_said(checked, major):
    run = checked(CAPTURES, str(major))
    assert (run.pairs, run.returncode) == ([], 0), run.stderr


ARRAYS = START + """
channels = (ctypes.c_int * 5)(32, 0, 0, 0, 2)
place = ctypes.addressof(channels)
now = "now" in sys.argv
made = runtime.mallocArray(place, 8, 4, 2)
cube = runtime.malloc3DArray(place, 8, 4, 2)
resource, texture = (ctypes.c_uint64 * 32)(0, made), (ctypes.c_int * 32)()
objects = [runtime.createTextureObject(ctypes.addressof(resource), ctypes.addressof(texture)),
           runtime.createSurfaceObject(ctypes.addressof(resource))]
assert objects[0] != objects[1]
if now:
    runtime.memcpy2DToArray(made, 4, 1, y, 32, 8, 2, 3)                         # now the first
else:
    runtime.memcpy2DToArrayAsync(made, 4, 1, y, 32, 8, 2, 3, a)                 # the first
if fixed:
    runtime.eventRecord(event, 0 if now else a)
    runtime.streamWaitEvent(b, event)
runtime.memcpy2DFromArrayAsync(x, 16, made, 4, 1, 8, 2, 3, b)                   # the second
runtime.deviceSynchronize()
runtime.memcpy2DFromArray(x + 64, 16, made, 4, 1, 8, 2, 3)
host = ctypes.create_string_buffer(128)
runtime.memcpy(ctypes.addressof(host), x, 128, 2)
half = b"\\5" * 8 + bytes(8)
assert host.raw == (half * 2 + bytes(32)) * 2, host.raw
runtime.destroyTextureObject(objects[0])
runtime.destroySurfaceObject(objects[1])
refused(1, runtime.destroyTextureObject, objects[0])
refused(1, runtime.destroySurfaceObject, objects[0])
for one in (made, cube):
    runtime.freeArray(one)
refused(400, runtime.freeArray, made)
refused(1, runtime.memcpy2DToArray, made, 0, 0, y, 32, 8, 2, 3)
refused(20, runtime.mallocArray, ctypes.addressof((ctypes.c_int * 5)(32, 32, 32, 0, 2)), 8, 4)
refused(1, runtime.malloc3DArray, place, 0, 1, 1)
"""


@pytest.mark.parametrize("now", ["", "now"])
def test_arrays(checked, major, now):
    run = checked(ARRAYS, str(major), now)
    assert (run.pairs, run.returncode) == ([("write/read", True)], 1), run.stderr
    for which in ("first", "second"):
        lines = [frame["line"] for frame in run.findings[0][which]["stack"]]
        text = f"# now the {which}" if now and which == "first" else f"# the {which}"
        assert line_with(ARRAYS, text) in lines, run.stderr
    run = checked(ARRAYS, str(major), now, "fixed")
    assert (run.pairs, run.returncode) == ([], 0), run.stderr


REFUSED = START + """
calls = [("GraphDebugDotPrint", 1, "a.dot", 0), ("IpcGetMemHandle", x),
         ("IpcOpenMemHandle", bytes(64)), ("IpcCloseMemHandle", x), ("IpcGetEventHandle", event),
         ("IpcOpenEventHandle", bytes(64))]
for name, *arguments in calls:
    refused(801, getattr(runtime, name[0].lower() + name[1:]), *arguments)
    print(f"cuda{name}")
"""


def test_what_is_out_of_reach_is_named(checked, major):
    run = checked(REFUSED, str(major))
    assert run.returncode == 0, run.stderr
    for name in run.stdout.split():
        assert f"{name} is not simulated" in run.stderr
    run = checked(REFUSED + "raise RuntimeError('not supported')", str(major))
    text = "{} is not simulated: the program may have ended for that"
    assert [one for one in run.notes["notes"] if "simulated" in one] == [text.format(one) for one in run.stdout.split()]
