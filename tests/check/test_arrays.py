"""CUDA's arrays, textures and surfaces without a GPU: wrong programs, and their right twins."""
from __future__ import annotations

import pytest
from checked_libraries import line_with
from checked_programs import DRIVER

pytestmark = pytest.mark.simulator

# As nvcc makes them of tex2D, surf2Dwrite, surf2Dread and a texture in constant memory.
START = DRIVER + '''
PTX = b""".version 8.0
.target sm_90
.address_size 64
.const .align 8 .u64 hidden;
.visible .entry _Z5fetchPfyi(.param .u64 out, .param .u64 tex, .param .u32 width)
{
    .reg .pred %p<2>;
    .reg .f32 %f<9>;
    .reg .b32 %r<11>;
    .reg .b64 %rd<6>;
    ld.param.u64 %rd1, [out];
    ld.param.u64 %rd2, [tex];
    ld.param.u32 %r2, [width];
    mov.u32 %r5, %tid.x;
    setp.ge.s32 %p1, %r5, %r2;
    @%p1 bra $L__BB0_2;
    cvta.to.global.u64 %rd3, %rd1;
    cvt.rn.f32.s32 %f1, %r5;
    add.f32 %f2, %f1, 0f3F000000;
    tex.2d.v4.f32.f32 {%f5, %f6, %f7, %f8}, [%rd2, {%f2, %f2}];
    st.global.f32 [%rd3], %f5;
$L__BB0_2:
    ret;
}
.visible .entry put(.param .u64 surface)
{
    .reg .b32 %r<4>;
    .reg .b64 %rd<2>;
    ld.param.u64 %rd1, [surface];
    mov.u32 %r1, %tid.x;
    mov.u32 %r3, 7;
    sust.b.2d.b32.trap [%rd1, {%r1, 4}], {%r3};
    ret;
}
.visible .entry look(.param .u64 surface, .param .u64 out)
{
    .reg .b32 %r<4>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [surface];
    ld.param.u64 %rd2, [out];
    cvta.to.global.u64 %rd3, %rd2;
    mov.u32 %r1, %tid.x;
    suld.b.2d.b32.trap {%r3}, [%rd1, {%r1, 4}];
    st.global.u32 [%rd3], %r3;
    ret;
}
.visible .entry keep(.param .u64 tex, .param .u64 out)
{
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [tex];
    ld.param.u64 %rd2, [out];
    st.global.u64 [%rd2], %rd1;
    ret;
}
.visible .entry measure(.param .u64 tex, .param .u64 out)
{
    .reg .b32 %r<4>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [tex];
    ld.param.u64 %rd2, [out];
    txq.width.b32 %r1, [%rd1];
    st.global.u32 [%rd2], %r1;
    ret;
}
.visible .entry constant(.param .u64 out)
{
    .reg .f32 %f<5>;
    .reg .b32 %r<2>;
    .reg .b64 %rd<6>;
    ld.param.u64 %rd1, [out];
    ld.const.u64 %rd3, [hidden];
    mov.u32 %r1, %tid.x;
    tex.1d.v4.f32.s32 {%f1, %f2, %f3, %f4}, [%rd3, {%r1}];
    st.global.f32 [%rd1], %f1;
    ret;
}
"""
module = ok(cuda.cuModuleLoadData(PTX))
a, b, event = ok(cuda.cuStreamCreate(1)), ok(cuda.cuStreamCreate(1)), ok(cuda.cuEventCreate(0))
p, q, r = (ok(cuda.cuMemAlloc(4096)) for _ in range(3))
fixed = "fixed" in sys.argv
shape = cuda.CUDA_ARRAY3D_DESCRIPTOR()
shape.Width, shape.Height, shape.NumChannels, shape.Flags = 32, 32, 1, 2
shape.Format = cuda.CUarray_format.CU_AD_FORMAT_FLOAT
array = ok(cuda.cuArray3DCreate(shape))
resource, how = cuda.CUDA_RESOURCE_DESC(), cuda.CUDA_TEXTURE_DESC()
resource.res.array.hArray = array

def texture_of(resource):
    return int(ok(cuda.cuTexObjectCreate(resource, how, None)))

def surface_of(resource):
    return int(ok(cuda.cuSurfObjectCreate(resource)))

def launch(name, stream, *values):
    kinds = {"_Z5fetchPfyi": (ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint32)}.get(name, (ctypes.c_uint64,) * 2)
    function = ok(cuda.cuModuleGetFunction(module, name.encode()))
    given = tuple(map(int, values)), kinds[:len(values)]
    ok(cuda.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, given, 0))

def fetch(stream, texture, out=None):
    launch("_Z5fetchPfyi", stream, q if out is None else out, texture, 32)

def wait():
    if fixed:
        ok(cuda.cuEventRecord(event, a))
        ok(cuda.cuStreamWaitEvent(b, event, 0))

def upload(stream, rows=32):
    copy = cuda.CUDA_MEMCPY2D()
    copy.dstMemoryType, copy.dstArray = cuda.CUmemorytype.CU_MEMORYTYPE_ARRAY, array
    copy.srcMemoryType, copy.srcDevice = cuda.CUmemorytype.CU_MEMORYTYPE_DEVICE, p
    copy.srcPitch = copy.WidthInBytes = 128
    copy.Height, copy.dstY = rows, 32 - rows
    ok(cuda.cuMemcpy2DAsync(copy, stream))
'''
END = """
ok(cuda.cuCtxSynchronize())
"""
TEXTURE = "texture = texture_of(resource)\n"
LINEAR = """
resource.resType = cuda.CUresourcetype.CU_RESOURCE_TYPE_LINEAR
linear = resource.res.linear
linear.devPtr, linear.sizeInBytes, linear.numChannels, linear.format = p, 4096, 1, shape.Format
texture = texture_of(resource)
"""
MIPMAP = """
mipmap = ok(cuda.cuMipmappedArrayCreate(shape, 3))
resource.resType = cuda.CUresourcetype.CU_RESOURCE_TYPE_MIPMAPPED_ARRAY
resource.res.mipmap.hMipmappedArray = mipmap
array = ok(cuda.cuMipmappedArrayGetLevel(mipmap, 0))
texture = texture_of(resource)
"""
SURFACE = "surface = surface_of(resource)\n"


def found(checked, *lines):
    """The pairs of the program without the wait; with it there are none."""
    program = START + "\n".join(lines) + END
    right = checked(program, "fixed")
    assert (right.returncode, right.pairs) == (0, []), right.stderr
    wrong = checked(program)
    wrong.program = program
    return wrong


@pytest.mark.parametrize(("begin", "first", "second", "pairs"), [
    (TEXTURE, "upload(a)", "fetch(b, texture)", [("write/read", True)]),
    (TEXTURE, "fetch(a, texture)", "upload(b)", [("read/write", True)]),
    (TEXTURE, "upload(a, 2)", "fetch(b, texture)", [("write/read", False)]),         # other rows, perhaps
    (TEXTURE, "upload(a)", 'launch("keep", b, texture, q)', [("write/read", False)]),   # for another kernel, perhaps
    (LINEAR, "ok(cuda.cuMemsetD8Async(p, 1, 4096, a))", "fetch(b, texture)", [("write/read", True)]),
    (MIPMAP, "upload(a)", "fetch(b, texture)", [("write/read", True)]),
    (TEXTURE + SURFACE, 'launch("put", a, surface)', "fetch(b, texture)", [("write/read", True)]),
    (SURFACE, 'launch("put", a, surface)', 'launch("look", b, surface, q)', [("write/read", True)]),
    (SURFACE, 'launch("put", a, surface)', 'launch("put", b, surface)', [("write/write", True)]),
    (SURFACE, 'launch("look", a, surface, r)', "upload(b)", [("read/write", True)]),
])
def test_a_kernel_with_an_object(checked, begin, first, second, pairs):
    """A missing wait is found with the lines of both; the right twin is silent."""
    wrong = found(checked, begin, f"{first}  # the first", "wait()", f"{second}  # the second")
    assert wrong.pairs == pairs, wrong.stderr
    for which, part in ("the first", "first"), ("the second", "second"):
        lines = [frame["line"] for frame in wrong.findings[0][part]["stack"]]
        assert line_with(wrong.program, f"# {which}") in lines, wrong.stderr


def test_two_that_read_are_right(checked):
    program = START + TEXTURE + SURFACE + """
fetch(a, texture)
fetch(b, texture, r)
launch("look", b, surface, r)
launch("measure", a, texture, q)
ok(cuda.cuCtxSynchronize())
upload(a)
launch("measure", b, texture, r)                # of the object, not of its memory
""" + END
    right = checked(program)
    assert (right.returncode, right.pairs) == (0, []), right.stderr


def test_an_array_is_destroyed_while_a_kernel_reads_it(checked):
    wrong = found(checked, TEXTURE, "fetch(b, texture)", "if fixed:", "    ok(cuda.cuStreamSynchronize(b))",
                  "ok(cuda.cuArrayDestroy(array))")
    assert wrong.pairs == [("read/free", False)], wrong.stderr


def test_an_array_is_read_after_its_end(checked):
    run = checked(START + TEXTURE + "ok(cuda.cuArrayDestroy(array))\nfetch(b, texture)\n" + END)
    assert [certain for _, certain in run.pairs] == [True], run.stderr
    assert "use-after-free" in run.stderr


def test_a_graph_has_the_memory_of_its_objects(checked):
    wrong = found(checked, TEXTURE, """
ok(cuda.cuStreamBeginCapture(b, cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
fetch(b, texture)
graph = ok(cuda.cuGraphInstantiate(ok(cuda.cuStreamEndCapture(b)), 0))
upload(a)
wait()
ok(cuda.cuGraphLaunch(graph, b))
""")
    assert wrong.pairs == [("write/read", True)], wrong.stderr


@pytest.mark.parametrize("launched", ['launch("constant", a, q)', "fetch(a, 77)"])
def test_an_object_that_is_no_parameter_is_said(checked, launched):
    """What a kernel reads through an object in memory, or through none that is there, is not known."""
    run = checked(START + TEXTURE + launched + END)
    assert run.returncode == 0, run.stderr
    said = [note for note in run.notes["notes"] if "constant" in note or "fetch" in note]
    assert len(said) == 1, run.notes
    known = checked(START + TEXTURE + "fetch(a, texture)" + END)
    assert not [note for note in known.notes["notes"] if "fetch" in note], known.notes
