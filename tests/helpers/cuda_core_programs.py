"""Programs in the shape of cuda.core's published examples. With the argument `fixed` they are right."""
from __future__ import annotations

# Kernels are compiled as the examples do, to a cubin, or to PTX, which says what they do with their pointers.
START = """
import ctypes, sys
import numpy
from cuda.core import (Device, GraphMemoryResource, LaunchConfig, LegacyPinnedMemoryResource, Program, ProgramOptions,
                       launch)
from cuda.core.graph import GraphBuilder
fixed = "fixed" in sys.argv
device = Device()
device.set_current()
stream, other = device.create_stream(), device.create_stream()
code = '''
template<typename T> __global__ void saxpy(const T a, const T* x, const T* y, T* out, size_t n) {
    for (size_t i = threadIdx.x + blockIdx.x * blockDim.x; i < n; i += gridDim.x * blockDim.x) out[i] = a * x[i] + y[i];
}
extern "C" __global__ void bump(float* data, size_t n) {
    size_t i = threadIdx.x + blockIdx.x * blockDim.x;
    if (i < n) data[i] = data[i] + 1.0f;
}
extern "C" __global__ void both(float* data, float* pinned, size_t n) {
    size_t i = threadIdx.x + blockIdx.x * blockDim.x;
    if (i < n) data[i] = pinned[i] = data[i] + 3.0f;
}'''
options = ProgramOptions(std="c++17", arch=f"sm_{device.arch}")
module = Program(code, "c++", options).compile("cubin" if "cubin" in sys.argv else "ptx",
                                               name_expressions=("saxpy<float>",))
saxpy, bump, both = (module.get_kernel(name) for name in ("saxpy<float>", "bump", "both"))
config, size, one = LaunchConfig(grid=4, block=256), numpy.uint64(1024), numpy.float32(1)
"""
SAXPY = START + """
import cupy
x, y = cupy.arange(1024, dtype="f4") + 1, cupy.ones(1024, "f4")                 # the first
if fixed:
    device.sync()
out = device.allocate(4096, stream=stream)
launch(stream, config, saxpy, one, x.data.ptr, y.data.ptr, out, size)           # the second
stream.sync()
view = cupy.ndarray(1024, "f4", cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(int(out.handle), out.size, out), 0))
bool(cupy.allclose(view, x + y))
out.close(stream)
"""
MEMORY_OPS = START + """
import cupy
cupy.cuda.ExternalStream(int(stream.handle)).use()
pinned = LegacyPinnedMemoryResource().allocate(4096, stream=stream)
host = numpy.from_dlpack(pinned).view(dtype="f4")
data = device.memory_resource.allocate(4096, stream=stream)
array = cupy.from_dlpack(data).view(dtype="f4")
array[:] = cupy.arange(1024, dtype="f4")
host[:] = cupy.ones(1024, "f4").get()
original = array.copy()
stream.sync()
launch(stream, config, both, data, pinned, size)                                # the first
if fixed:
    stream.sync()
data.copy_to(pinned, stream=other)                                              # the second
other.sync()
new = device.memory_resource.allocate(4096, stream=stream)
pinned.copy_to(new, stream=stream)
bool(cupy.allclose(cupy.from_dlpack(new).view(dtype="f4"), original))
for buffer in (data, pinned, new):
    buffer.close(stream)
cupy.cuda.Stream.null.use()
"""
# As first published, its second part fills on CuPy's null stream, for which the stream of the launches does not wait.
# Later releases make CuPy use that stream.
GRAPH = START + """
import cupy
a, b, c = (cupy.arange(1024, dtype="f4") for _ in range(3))
sum, product = cupy.empty_like(a), cupy.empty_like(a)
device.sync()
builder = stream.create_graph_builder()
builder.begin_building()
launch(builder, config, saxpy, one, a.data.ptr, b.data.ptr, sum.data.ptr, size)
launch(builder, config, saxpy, one, sum.data.ptr, c.data.ptr, product.data.ptr, size)
graph = builder.end_building().complete()
graph.upload(stream)
graph.launch(stream)
stream.sync()
bool(cupy.allclose(product, sum + c))
product.fill(0)                                                                 # the first
if fixed:
    device.sync()
launch(stream, config, saxpy, one, sum.data.ptr, c.data.ptr, product.data.ptr, size)    # the second
stream.sync()
"""
FORKED_GRAPH = START + """
left, right, out = (device.allocate(4096, stream=stream) for _ in range(3))
stream.sync()
builder = device.create_graph_builder().begin_building()
left.fill(0, stream=builder)
builder, branch = builder.split(2)
launch(builder, config, bump, left, size)
launch(branch, config, bump, right, size)                                       # the first
if fixed:
    builder = GraphBuilder.join(builder, branch)
launch(builder, config, saxpy, one, left, right, out, size)                     # the second
builder.callback(lambda: None)
if not fixed:
    builder = GraphBuilder.join(builder, branch)
graph = builder.end_building().complete()
graph.launch(stream)
graph.launch(other)                     # launches of one executable come after each other
other.sync()
"""
UPDATED_GRAPH = START + """
def built(target):
    builder = device.create_graph_builder().begin_building()
    launch(builder, config, bump, target, size)                                 # the first
    launch(builder, config, bump, target, size)
    return builder.end_building()

old, new = (device.allocate(4096, stream=stream) for _ in range(2))
stream.sync()
before, after = built(old), built(new)
graph = before.complete()
graph.upload(stream)
graph.launch(stream)
stream.sync()
graph.update(after)
graph.launch(stream)
old.fill(1, stream=other)
if fixed:
    other.wait(stream)
new.fill(1, stream=other)                                                       # the second
stream.sync()
other.sync()
for what in (graph, before, after, old, new):
    what.close()
"""
# Nodes that the program adds itself.
DEFINED_GRAPH = START + """
from cuda.core.graph import GraphDefinition
left, right, out = (device.allocate(4096, stream=stream) for _ in range(3))
stream.sync()
child = GraphDefinition()
child.memset(right, 0, 4096)
definition = GraphDefinition()
root = definition.memset(left, 0, 4096)
bumped = root.launch(config, bump, left, size)                                  # the first
other_branch = definition.embed(child).callback(lambda: None)
joined = definition.join(bumped if fixed else root, other_branch)
joined.launch(config, saxpy, one, left, right, out, size).memcpy(right, out, 4096)  # the second
assert len(definition.nodes()) == 7 and len(definition.edges()) == 6
assert bumped.pred == {root} and root.type.name.endswith("MEMSET")
graph = definition.instantiate()
graph.upload(stream)
graph.launch(stream)
graph.launch(other)
other.sync()
"""
MEMORY_OF_A_GRAPH = START + """
data = device.allocate(4096, stream=stream)
stream.sync()
builder = device.create_graph_builder().begin_building("relaxed")
scratch = GraphMemoryResource(device).allocate(4096, stream=builder)
scratch.copy_from(data, stream=builder)
launch(builder, config, bump, scratch, size)
data.copy_from(scratch, stream=builder)                                         # the first
scratch.close()
graph = builder.end_building().complete()
graph.launch(stream)
if fixed:
    other.wait(stream)
launch(other, config, bump, data, size)                                         # the second
stream.sync()
other.sync()
"""
STRIDED_VIEW = START + """
import cupy
from cuda.core.utils import args_viewable_as_strided_memory

@args_viewable_as_strided_memory((0,))
def add(array, work):
    view = array.view(work.handle if fixed else -1)     # the work stream comes after the array's, or not
    launch(work, config, bump, view.ptr, size)                                  # the second
    work.sync()

array = cupy.arange(1024, dtype="f4") + 1                                       # the first
add(array, stream)
bool(cupy.allclose(array, array))
"""
CLUSTER = START + """
clusters = LaunchConfig(grid=4, cluster=2, block=32)
data = device.allocate(4096, stream=device.default_stream)
launch(device.default_stream, clusters, bump, data, size)                       # the first
if fixed:
    device.sync()
launch(stream, clusters, bump, data, size)                                      # the second
device.sync()
data.close(stream)
"""
DEALLOCATION_STREAM = START + """
output = LegacyPinnedMemoryResource().allocate(4096)
buffer = device.allocate(4096, stream=stream)
buffer.fill(42, stream=stream)
other.wait(stream.record())
if fixed:
    buffer.set_deallocation_stream(other)
buffer.copy_to(output, stream=other)                                            # the first
buffer.close()                                                                  # the second
other.sync()
assert ctypes.string_at(int(output.handle), 4096) == bytes([42]) * 4096
output.close()
"""
