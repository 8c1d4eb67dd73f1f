"""Graphs whose nodes a program adds itself, without a GPU: wrong programs, and their right twins."""
from __future__ import annotations

import pytest
from checked_libraries import line_with
from checked_programs import DRIVER

import xlogmem.check.cudart

pytestmark = pytest.mark.simulator

START = DRIVER + """
from xlogmem.sim.kernels import PTX

fixed = "fixed" in sys.argv
BYTES = 4096
a, b = (ok(cuda.cuStreamCreate(1)) for _ in range(2))
p, q = ok(cuda.cuMemAlloc(BYTES)), ok(cuda.cuMemAlloc(BYTES))
graph = ok(cuda.cuGraphCreate(0))
edges = (1,) if cuda.CUDA_VERSION < 13000 else (None, 1)       # CUDA 13's functions take data of edges, too
context = ok(cuda.cuCtxGetCurrent())
module = ok(cuda.cuModuleLoadData(PTX.encode()))
fill_kernel = ok(cuda.cuModuleGetFunction(module, b"xlogmem_fill_u32"))

def fill_parameters(target, value):
    made = cuda.CUDA_MEMSET_NODE_PARAMS()
    made.dst, made.value, made.elementSize, made.width, made.height = target, value, 1, BYTES, 1
    return made

def fill(target, value, *before, graph=graph):
    return ok(cuda.cuGraphAddMemsetNode(graph, before, len(before), fill_parameters(target, value), context))

def copy_parameters(target, source):
    made = cuda.CUDA_MEMCPY3D()
    made.srcMemoryType = made.dstMemoryType = cuda.CUmemorytype.CU_MEMORYTYPE_DEVICE
    made.srcDevice, made.dstDevice = source, target
    made.WidthInBytes, made.Height, made.Depth = BYTES, 1, 1
    return made

def copy(target, source, *before, graph=graph):
    return ok(cuda.cuGraphAddMemcpyNode(graph, before, len(before), copy_parameters(target, source), context))

def kernel_parameters(target, value):
    made = cuda.CUDA_KERNEL_NODE_PARAMS()
    made.func = fill_kernel
    made.gridDimX = made.gridDimY = made.gridDimZ = made.blockDimX = made.blockDimY = made.blockDimZ = 1
    made.kernelParams = (int(target), value, BYTES // 4), (ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint32)
    return made

def kernel(target, value, *before):
    return ok(cuda.cuGraphAddKernelNode(graph, before, len(before), kernel_parameters(target, value)))

def bytes_of(source):
    host = ctypes.create_string_buffer(BYTES)
    ok(cuda.cuMemcpyDtoH(ctypes.addressof(host), source, BYTES))
    return host.raw

def error(result):
    return result[0].name.removeprefix("CUDA_ERROR_")
"""
END = """
executable = ok(cuda.cuGraphInstantiate(graph, 0))
ok(cuda.cuGraphLaunch(executable, a))
ok(cuda.cuCtxSynchronize())
"""
# Without the dependency nothing orders the two nodes.
WITHIN = {
    "fill and copy": ("""
first = fill(p, 1)                                      # the first
second = copy(q, p, *[first] * fixed)                   # the second
""", "write/read"),
    "kernel and copy": ("""
first = kernel(p, 7)                                    # the first
second = copy(q, p, *[first] * fixed)                   # the second
""", "write/read"),
    "copy and kernel": ("""
first = copy(q, p)                                      # the first
second = kernel(p, 7, *[first] * fixed)                 # the second
""", "read/write"),
    "empty node": ("""
first = fill(p, 1)                                      # the first
joins = ok(cuda.cuGraphAddEmptyNode(graph, [first], 1))
second = copy(q, p, *[joins] * fixed)                   # the second
""", "write/read"),
    "host node": ("""
called = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: None)
given = cuda.CUDA_HOST_NODE_PARAMS()
given.fn = cuda.CUhostFn(ctypes.cast(called, ctypes.c_void_p).value)
first = fill(p, 1)                                      # the first
host = ok(cuda.cuGraphAddHostNode(graph, [first], 1, given))
second = copy(q, p, *[host] * fixed)                    # the second
""", "write/read"),
    "dependencies": ("""
first = fill(p, 1)                                      # the first
second = copy(q, p)                                     # the second
third = fill(p, 2, second)
if fixed:
    ok(cuda.cuGraphAddDependencies(graph, [first], [second], *edges))
else:
    ok(cuda.cuGraphAddDependencies(graph, [first], [third], *edges))
""", "write/read"),
    "removed dependency": ("""
first = fill(p, 1)                                      # the first
second = copy(q, p, first)                              # the second
if not fixed:
    ok(cuda.cuGraphRemoveDependencies(graph, [first], [second], *edges))
""", "write/read"),
    "destroyed node": ("""
first = fill(p, 1)                                      # the first
between = ok(cuda.cuGraphAddEmptyNode(graph, [first], 1))
second = copy(q, p, between)                            # the second
if not fixed:
    ok(cuda.cuGraphDestroyNode(between))
""", "write/read"),
    "three branches": ("""
root = fill(q, 1)
first = copy(p, q, root)                                # the first
other = ok(cuda.cuGraphAddEmptyNode(graph, [root], 1))
second = fill(p, 3, *[first] * fixed, other)            # the second
""", "write/write"),
    "child graph": ("""
child = ok(cuda.cuGraphCreate(0))
inner = fill(p, 1, graph=child)
first = ok(cuda.cuGraphAddChildGraphNode(graph, None, 0, child))    # the first
ok(cuda.cuGraphDestroy(child))
second = copy(q, p, *[first] * fixed)                   # the second
""", "write/read"),
    "any node": ("""
given = cuda.CUgraphNodeParams()
given.type = cuda.CUgraphNodeType.CU_GRAPH_NODE_TYPE_MEMSET
given.memset.dst, given.memset.value, given.memset.elementSize, given.memset.width = p, 1, 1, BYTES
given.memset.height, given.memset.ctx = 1, context
first = ok(cuda.cuGraphAddNode(graph, None, *([None] * (len(edges) - 1)), 0, given))      # the first
second = copy(q, p, *[first] * fixed)                   # the second
""", "write/read"),
    "clone": ("""
first = fill(p, 1)                                      # the first
second = copy(q, p)                                     # the second
if fixed:
    ok(cuda.cuGraphAddDependencies(graph, [first], [second], *edges))
original, graph = graph, ok(cuda.cuGraphClone(graph))
assert int(ok(cuda.cuGraphNodeFindInClone(first, graph))) != int(first)
ok(cuda.cuGraphDestroy(original))
""", "write/read"),
}


@pytest.mark.parametrize("name", WITHIN)
def test_nodes_that_nothing_orders(checked, name):
    text, pair = WITHIN[name]
    program = START + text + END
    run = checked(program)
    assert run.pairs == [(pair, True)], run.stderr
    for which in ("first", "second"):
        stack = run.findings[0][which]["stack"]
        lines = [frame["line"] for frame in stack if frame["file"].endswith("program.py")]
        assert line_with(program, f"# the {which}") in lines, run.stderr
    assert "repair  make the node of " in run.stderr, run.stderr
    assert "depend on the node of " in run.stderr
    fixed = checked(program, "fixed")
    assert (fixed.pairs, fixed.returncode) == ([], 0), fixed.stderr


BESIDE = START + """
first = kernel(p, 0x07070707)
second = copy(q, p, first)
executable = ok(cuda.cuGraphInstantiate(graph, 0))
ok(cuda.cuGraphLaunch(executable, a))
if fixed:
    ok(cuda.cuStreamSynchronize(a))
ok(cuda.cuMemcpyDtoDAsync(p, q, BYTES, b))
ok(cuda.cuCtxSynchronize())
assert bytes_of(q) == b"\\7" * BYTES
"""
CHANGED = START + """
r = ok(cuda.cuMemAlloc(BYTES))
first, second = kernel(p, 1), fill(q, 1)
executable = ok(cuda.cuGraphInstantiate(graph, 0))
place = sys.argv[1]
if place == "kernel":
    ok(cuda.cuGraphExecKernelNodeSetParams(executable, first, kernel_parameters(r, 0x05050505)))
elif place == "fill":
    ok(cuda.cuGraphExecMemsetNodeSetParams(executable, second, fill_parameters(r, 5), context))
elif place == "disabled":
    ok(cuda.cuGraphNodeSetEnabled(executable, first, 0))
    assert ok(cuda.cuGraphNodeGetEnabled(executable, first)) == 0
else:                                                   # the graph itself, and the executable after it
    ok(cuda.cuGraphMemsetNodeSetParams(second, fill_parameters(r, 5)))
    assert int(ok(cuda.cuGraphMemsetNodeGetParams(second)).dst) == int(r)
    ok(cuda.cuGraphExecUpdate(executable, graph))
ok(cuda.cuGraphLaunch(executable, a))
if fixed:
    ok(cuda.cuStreamSynchronize(a))
ok(cuda.cuMemsetD8Async(p if place == "disabled" else r, 9, BYTES, b))
ok(cuda.cuCtxSynchronize())
ok(cuda.cuGraphLaunch(executable, a))
ok(cuda.cuCtxSynchronize())
assert place == "disabled" or bytes_of(r) == b"\\5" * BYTES
"""
EVENTS = START + """
event = ok(cuda.cuEventCreate(0))
if sys.argv[1] == "record":
    first = fill(p, 1)
    ok(cuda.cuGraphAddEventRecordNode(graph, [first], 1, event))
    ok(cuda.cuGraphLaunch(ok(cuda.cuGraphInstantiate(graph, 0)), a))
    if "waits" in sys.argv:
        ok(cuda.cuStreamWaitEvent(b, event, 0))
    ok(cuda.cuMemcpyDtoDAsync(q, p, BYTES, b))
else:
    waits = ok(cuda.cuGraphAddEventWaitNode(graph, None, 0, event))
    copy(q, p, *[waits] * ("waits" in sys.argv))
    ok(cuda.cuMemsetD8Async(p, 1, BYTES, b))
    ok(cuda.cuEventRecord(event, b))
    ok(cuda.cuGraphLaunch(ok(cuda.cuGraphInstantiate(graph, 0)), a))
ok(cuda.cuCtxSynchronize())
assert bytes_of(q) == b"\\1" * BYTES
"""


def test_a_launch_does_what_its_nodes_do(checked):
    assert sorted(checked(BESIDE).pairs) == [(pair, True) for pair in ("read/write", "write/read", "write/write")]
    run = checked(BESIDE, "fixed")
    assert (run.pairs, run.returncode) == ([], 0), run.stderr


@pytest.mark.parametrize("place", ["kernel", "fill", "graph", "disabled"])
def test_a_changed_node_does_something_else(checked, place):
    run = checked(CHANGED, place)
    assert run.pairs == ([] if place == "disabled" else [("write/write", True)]), run.stderr
    run = checked(CHANGED, place, "fixed")
    assert (run.pairs, run.returncode) == ([], 0), run.stderr


@pytest.mark.parametrize("which", ["record", "wait"])
def test_what_events_of_nodes_order_is_not_seen(checked, which):
    """A finding is possible at most where a program waits for such an event."""
    assert checked(EVENTS, which).pairs == [("write/read", True)]
    run = checked(EVENTS, which, "waits")
    assert run.pairs == [("write/read", False)], run.stderr


SHAPE = START + """
first, second = fill(p, 1), copy(q, p)
third = kernel(p, 3, first, second)
types = [ok(cuda.cuGraphNodeGetType(one)).name.rpartition("_")[2] for one in (first, second, third)]
assert types == ["MEMSET", "MEMCPY", "KERNEL"], types
def listed(function, node):
    count = function(node)[-1]
    return [int(one) for one in function(node, count)[1][:count]]
assert listed(cuda.cuGraphGetNodes, graph) == [int(first), int(second), int(third)]
assert listed(cuda.cuGraphGetRootNodes, graph) == [int(first), int(second)]
assert listed(cuda.cuGraphNodeGetDependencies, third) == [int(first), int(second)]
assert listed(cuda.cuGraphNodeGetDependentNodes, first) == [int(third)]
edges_there = cuda.cuGraphGetEdges(graph, 2)
assert [int(one) for one in edges_there[1]] == [int(first), int(second)]
assert [int(one) for one in edges_there[2]] == [int(third)] * 2
given = ok(cuda.cuGraphKernelNodeGetParams(third))
assert int(given.func) == int(fill_kernel) and given.gridDimX == 1
values = ctypes.cast(int(given.kernelParams), ctypes.POINTER(ctypes.POINTER(ctypes.c_uint64)))
assert values[0][0] == int(p)
assert int(ok(cuda.cuGraphMemcpyNodeGetParams(second)).srcDevice) == int(p)
# What the driver refuses.
add, remove = cuda.cuGraphAddDependencies, cuda.cuGraphRemoveDependencies
other = ok(cuda.cuGraphCreate(0))
foreign = ok(cuda.cuGraphAddEmptyNode(other, None, 0))
wrong = fill_parameters(p, 1)
wrong.elementSize = 3
outside = copy_parameters(p, 4096)
for result in [
    cuda.cuGraphAddEmptyNode(graph, [foreign], 1),
    cuda.cuGraphAddEmptyNode(graph, [first, first], 2),
    cuda.cuGraphAddEmptyNode(0, None, 0),
    cuda.cuGraphAddMemsetNode(graph, None, 0, wrong, context),
    cuda.cuGraphAddMemcpyNode(graph, None, 0, outside, context),
    cuda.cuGraphAddChildGraphNode(graph, None, 0, graph),
    cuda.cuGraphAddEventRecordNode(graph, None, 0, 0),
    cuda.cuGraphMemsetNodeGetParams(second),
    add(graph, [first], [third], *edges),
    add(graph, [first], [first], *edges),
    add(graph, [foreign], [first], *edges),
    remove(graph, [first], [second], *edges),
    cuda.cuGraphNodeGetType(0),
]:
    assert error(result) == "INVALID_VALUE", result
assert cuda.cuGraphGetNodes(graph)[-1] == 3
ok(add(graph, [third], [first], *edges))
assert error(cuda.cuGraphInstantiate(graph, 0)) == "INVALID_VALUE"           # a circle
# What is not simulated.
given = cuda.CUgraphNodeParams()
given.type = cuda.CUgraphNodeType.CU_GRAPH_NODE_TYPE_MEM_ALLOC
assert error(cuda.cuGraphAddNode(other, None, *([None] * (len(edges) - 1)), 0, given)) == "NOT_SUPPORTED"
ok(cuda.cuStreamBeginCapture(a, cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
ok(cuda.cuMemsetD8Async(p, 1, BYTES, a))
captured = ok(cuda.cuStreamEndCapture(a))
assert cuda.cuGraphGetNodes(captured)[-1] == 1
assert error(cuda.cuGraphAddEmptyNode(captured, None, 0)) == "NOT_SUPPORTED"
"""


def test_the_shape_of_a_graph_and_what_is_refused(checked):
    run = checked(SHAPE)
    assert (run.pairs, run.returncode) == ([], 0), run.stderr
    assert "cuGraphAddNode: nodes of this type (10) are not simulated" in run.stderr
    assert "cuGraphAddEmptyNode: changes of a captured graph are not simulated" in run.stderr


RUNTIME = START + """
runtime = ctypes.CDLL("libcudart.so." + sys.argv[1])
class Fill(ctypes.Structure):
    _fields_ = [("dst", ctypes.c_uint64), ("pitch", ctypes.c_size_t), ("value", ctypes.c_uint), ("size", ctypes.c_uint),
                ("width", ctypes.c_size_t), ("height", ctypes.c_size_t)]
graph, executable = ctypes.c_void_p(), ctypes.c_void_p()
first, second = ctypes.c_void_p(), ctypes.c_void_p()
assert runtime.cudaGraphCreate(ctypes.byref(graph), 0) == 0
given = Fill(int(p), 0, 6, 1, BYTES, 1)
nothing = None, ctypes.c_size_t(0)
assert runtime.cudaGraphAddMemsetNode(ctypes.byref(first), graph, *nothing, ctypes.byref(given)) == 0
assert runtime.cudaGraphAddMemcpyNode1D(ctypes.byref(second), graph, *nothing, ctypes.c_void_p(int(q)),
                                        ctypes.c_void_p(int(p)), ctypes.c_size_t(BYTES), 3) == 0
if fixed:
    data = () if sys.argv[1] == "12" else (None,)
    assert runtime.cudaGraphAddDependencies(graph, ctypes.byref(first), ctypes.byref(second), *data,
                                            ctypes.c_size_t(1)) == 0
assert runtime.cudaGraphInstantiate(ctypes.byref(executable), graph, ctypes.c_ulonglong(0)) == 0
assert runtime.cudaGraphLaunch(executable, ctypes.c_void_p(int(a))) == 0
ok(cuda.cuCtxSynchronize())
assert bytes_of(q) == b"\\6" * BYTES
"""


@pytest.mark.parametrize("major", xlogmem.check.cudart.MAJORS)
def test_nodes_by_the_runtime(checked, major):
    run = checked(RUNTIME, str(major))
    assert run.pairs == [("write/read", True)], run.stderr
    run = checked(RUNTIME, str(major), "fixed")
    assert (run.pairs, run.returncode) == ([], 0), run.stderr
