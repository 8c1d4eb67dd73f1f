"""A library in C++ that needs libcudart dynamically: it gets the simulated one, without a GPU."""
from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from checked_libraries import line_with, needs

import xlogmem.check.cudart

COMPILER = shutil.which("g++") or shutil.which("c++")
pytestmark = [pytest.mark.simulator, pytest.mark.skipif(COMPILER is None, reason="no C++ compiler here")]
# As nvcc makes it: the image, a wrapper around it, a function that stands for the kernel, and its registration.
SOURCE = r"""
#include <cstddef>
struct dim3 { unsigned x, y, z; };
extern "C" {
int cudaMalloc(void**, size_t);
int cudaStreamCreateWithFlags(void**, unsigned);
int cudaEventCreate(void**);
int cudaEventRecord(void*, void*);
int cudaStreamWaitEvent(void*, void*, unsigned);
int cudaMemsetAsync(void*, int, size_t, void*);
int cudaMemcpy(void*, const void*, size_t, int);
int cudaMemcpyAsync(void*, const void*, size_t, int, void*);
int cudaMemcpy2D(void*, size_t, const void*, size_t, size_t, size_t, int);
int cudaMemcpy2DAsync(void*, size_t, const void*, size_t, size_t, size_t, int, void*);
int cudaLaunchKernel(const void*, dim3, dim3, void**, size_t, void*);
int cudaDeviceSynchronize();
const char* cudaGetErrorName(int);
int cudaStreamBeginCapture(void*, int);
int cudaStreamEndCapture(void*, void**);
int cudaGraphGetNodes(void*, void*, size_t*);
#if MAJOR < 13
int cudaStreamGetCaptureInfo(void*, int*, unsigned long long*);
#else
int cudaStreamGetCaptureInfo(void*, int*, unsigned long long*, void*, void*, void*, size_t*);
#endif
void** __cudaRegisterFatBinary(void*);
void __cudaRegisterFunction(void**, const char*, char*, const char*, int, void*, void*, void*, void*, int*);
}
static const char ptx[] = R"(.version 8.0
.target sm_90
.address_size 64
.visible .entry fill(.param .u64 to, .param .u32 value)
{
    .reg .b64 %r<3>;
    ld.param.u64 %r1, [to];
    ld.param.u32 %r2, [value];
    st.global.u32 [%r1], %r2;
    ret;
}
)";
static struct { int magic, version; const void* image; void* more; } wrapper = {0x466243b1, 1, ptx, nullptr};
static void fill(void*, unsigned) {}
static int failures = 0;
static void ok(int error) { failures += error != 0; }

extern "C" const char* run(int fixed) {
    void** module = __cudaRegisterFatBinary(&wrapper);
    __cudaRegisterFunction(module, reinterpret_cast<const char*>(&fill), nullptr, "fill", -1, nullptr, nullptr, nullptr,
                           nullptr, nullptr);
    void *a, *b, *event, *p;
    ok(cudaStreamCreateWithFlags(&a, 1));
    ok(cudaStreamCreateWithFlags(&b, 1));
    ok(cudaEventCreate(&event));
    ok(cudaMalloc(&p, 4096));
    ok(cudaMemsetAsync(p, 0, 4096, a));
    if (fixed) {
        ok(cudaEventRecord(event, a));
        ok(cudaStreamWaitEvent(b, event, 0));
    }
    unsigned value = 7;
    void* parameters[] = {&p, &value};
    ok(cudaLaunchKernel(reinterpret_cast<const void*>(&fill), {1, 1, 1}, {32, 1, 1}, parameters, 0, b));
    ok(cudaDeviceSynchronize());
    return failures ? "failed" : cudaGetErrorName(2);
}

// Of a capture: whether it is one, its number, and how many nodes its graph has.
static int status_of(void* stream, unsigned long long* number) {
    int status = -1;
#if MAJOR < 13
    ok(cudaStreamGetCaptureInfo(stream, &status, number));
#else
    ok(cudaStreamGetCaptureInfo(stream, &status, number, nullptr, nullptr, nullptr, nullptr));
#endif
    return status;
}

extern "C" long capture() {
    void *stream, *p, *graph;
    unsigned long long number = 0;
    size_t nodes = 0;
    ok(cudaStreamCreateWithFlags(&stream, 1));
    ok(cudaMalloc(&p, 64));
    int before = status_of(stream, &number);
    ok(cudaStreamBeginCapture(stream, 2));
    for (int i = 0; i < 3; i++) ok(cudaMemsetAsync(p, 0, 64, stream));
    int within = status_of(stream, &number);
    ok(cudaStreamEndCapture(stream, &graph));
    ok(cudaGraphGetNodes(graph, nullptr, &nodes));
    return failures || !number ? -1 : 100 * before + 10 * within + long(nodes);
}

// Two blocking streams fill the same memory; between the fills is a copy of the host's own memory, or none.
extern "C" long copy(int copies) {
    void *a, *b, *p;
    static char from[4] = "abc", to[4];
    ok(cudaStreamCreateWithFlags(&a, 0));
    ok(cudaStreamCreateWithFlags(&b, 0));
    ok(cudaMalloc(&p, 64));
    ok(cudaMemsetAsync(p, 0, 64, a));
    if (copies) ok(cudaMemcpy(to, from, 4, 0));
    ok(cudaMemsetAsync(p, 1, 64, b));
    int refused = cudaMemcpyAsync(to, from, 4, 0, &failures);
    return failures || (copies && to[2] != 'c') ? -1 : refused;
}

// Rows go to the device and back, and two streams copy panels of columns, of which one is in both or none.
extern "C" long rows(int apart) {
    void *a, *b, *p, *q;
    static char from[64] = "0123456789abcdef", to[64];
    ok(cudaStreamCreateWithFlags(&a, 1));
    ok(cudaStreamCreateWithFlags(&b, 1));
    ok(cudaMalloc(&p, 64));
    ok(cudaMalloc(&q, 64));
    ok(cudaMemcpy2D(p, 16, from, 8, 4, 2, 1));
    ok(cudaMemcpy2D(to, 4, p, 16, 4, 2, 2));
    ok(cudaMemcpy2DAsync(q, 16, p, 16, 4, 2, 3, a));
    ok(cudaMemcpy2DAsync(static_cast<char*>(q) + (apart ? 4 : 3), 16, p, 16, 4, 2, 4, b));
    ok(cudaDeviceSynchronize());
    return failures || __builtin_memcmp(to, "012389ab", 8) ? -1 : cudaMemcpy2D(p, 3, from, 8, 4, 2, 1);
}
"""
SOURCE_OF_PLANES = r"""
#include <cstddef>
struct Pitched { void* pointer; size_t pitch, width, height; };
struct Extent { size_t width, height, depth; };
struct Place { size_t x, y, z; };
struct Copy { void* array; Place from; Pitched source; void* other; Place to; Pitched target; Extent extent; int way; };
struct PeerCopy { void* array; Place from; Pitched source; int device; void* other; Place to; Pitched target; int peer;
                  Extent extent; };
struct Attributes { int order, places[4]; unsigned flags; };
struct Channels { int x, y, z, w, kind; };
struct Resource { int type; void* array; long more[20]; };
struct Linear { void* address; Channels channels; size_t bytes; };
struct Texture { int modes[6]; float border[4]; int normalized; unsigned anisotropy; int filter; float levels[3];
                 int last[2]; };
extern "C" {
Channels cudaCreateChannelDesc(int, int, int, int, int);
int cudaMallocArray(void**, const Channels*, size_t, size_t, unsigned);
int cudaMalloc3DArray(void**, const Channels*, Extent, unsigned);
int cudaFreeArray(void*);
int cudaArrayGetInfo(Channels*, Extent*, unsigned*, void*);
int cudaMemcpy2DToArray(void*, size_t, size_t, const void*, size_t, size_t, size_t, int);
int cudaMemcpy2DToArrayAsync(void*, size_t, size_t, const void*, size_t, size_t, size_t, int, void*);
int cudaMemcpy2DFromArray(void*, size_t, void*, size_t, size_t, size_t, size_t, int);
int cudaMemcpy2DFromArrayAsync(void*, size_t, void*, size_t, size_t, size_t, size_t, int, void*);
int cudaMemcpy2DArrayToArray(void*, size_t, size_t, void*, size_t, size_t, size_t, size_t, int);
int cudaMemcpyToArray(void*, size_t, size_t, const void*, size_t, int);
int cudaMemcpyFromArray(void*, void*, size_t, size_t, size_t, int);
int cudaCreateTextureObject(unsigned long long*, const Resource*, const Texture*, const void*);
int cudaDestroyTextureObject(unsigned long long);
int cudaGetTextureObjectResourceDesc(Resource*, unsigned long long);
int cudaGetTextureObjectTextureDesc(Texture*, unsigned long long);
int cudaCreateSurfaceObject(unsigned long long*, const Resource*);
int cudaDestroySurfaceObject(unsigned long long);
int cudaEventCreate(void**);
int cudaEventRecord(void*, void*);
int cudaStreamWaitEvent(void*, void*, unsigned);
int cudaStreamCreateWithFlags(void**, unsigned);
int cudaMallocPitch(void**, size_t*, size_t, size_t);
int cudaMalloc3D(Pitched*, Extent);
int cudaMemcpy3D(const Copy*);
int cudaMemcpy3DAsync(const Copy*, void*);
int cudaMemcpy3DPeer(const PeerCopy*);
int cudaMemcpy3DPeerAsync(const PeerCopy*, void*);
int cudaMemset2D(void*, size_t, int, size_t, size_t);
int cudaMemset2DAsync(void*, size_t, int, size_t, size_t, void*);
int cudaMemset3D(Pitched, int, Extent);
int cudaMemset3DAsync(Pitched, int, Extent, void*);
int cudaDeviceSynchronize();
#if MAJOR < 13
int cudaMemcpyBatchAsync(void**, void**, size_t*, size_t, Attributes*, size_t*, size_t, size_t*, void*);
#else
int cudaMemcpyBatchAsync(void**, void**, size_t*, size_t, Attributes*, size_t*, size_t, void*);
#endif
}
static int failures = 0;
static void ok(int error) { failures += error != 0; }

// A cube goes to the device, to a second one there, and back; two streams write planes of it, apart or not.
extern "C" long planes(int apart) {
    void *a, *b, *rows;
    size_t pitch;
    static char from[24] = "abcdefghijklmnopqrstuvw", to[24];
    Pitched p, q;
    Extent cube{4, 3, 2};
    ok(cudaStreamCreateWithFlags(&a, 1));
    ok(cudaStreamCreateWithFlags(&b, 1));
    ok(cudaMalloc3D(&p, cube));
    ok(cudaMalloc3D(&q, cube));
    ok(cudaMallocPitch(&rows, &pitch, 4, 3));
    ok(cudaMemset3D(p, '-', cube));
    ok(cudaMemset2D(rows, pitch, '+', 4, 3));
    Copy up{nullptr, {}, {from, 4, 4, 3}, nullptr, {}, p, {4, 2, 2}, 1};
    ok(cudaMemcpy3D(&up));
    PeerCopy over{nullptr, {}, p, 0, nullptr, {}, q, 0, cube};
    ok(cudaMemcpy3DPeer(&over));
    Copy line{nullptr, {}, {rows, pitch, 4, 3}, nullptr, {0, 2, 1}, q, {4, 1, 1}, 4};
    ok(cudaMemcpy3DAsync(&line, nullptr));
    Copy down{nullptr, {}, q, nullptr, {}, {to, 4, 4, 3}, cube, 2};
    ok(cudaMemcpy3D(&down));
    ok(cudaDeviceSynchronize());
    over.extent = line.extent = {4, 3, 1};
    line.target = p, line.to = {0, 0, apart ? size_t(1) : 0};
    over.target = p, over.source = q;
    ok(cudaMemcpy3DAsync(&line, a));
    ok(cudaMemcpy3DPeerAsync(&over, b));
    ok(cudaMemset2DAsync(rows, pitch, '+', 4, 3, a));
    ok(cudaMemset3DAsync(q, '+', cube, b));
    ok(cudaDeviceSynchronize());
    up.array = &p;
    return failures || __builtin_memcmp(to, "abcdefgh----mnopqrst++++", 24) ? -1 : cudaMemcpy3D(&up);
}

// Rows go to an array and from there, bytes run on from row to row, and a cube goes to an array of planes. Of two
// streams one writes an array, and the other reads it.
extern "C" long arrays(int fixed) {
    void *a, *b, *event, *rows, *flat, *deep, *back;
    size_t pitch;
    char from[24] = "abcdefghijklmnopqrstuvw", to[24] = "", part[4] = "", cube[24] = "";
    Channels bytes = cudaCreateChannelDesc(8, 0, 0, 0, 1), pairs = cudaCreateChannelDesc(8, 8, 0, 0, 1), known;
    Extent size;
    unsigned flags;
    ok(cudaStreamCreateWithFlags(&a, 1));
    ok(cudaStreamCreateWithFlags(&b, 1));
    ok(cudaEventCreate(&event));
    ok(cudaMallocPitch(&rows, &pitch, 8, 3));
    ok(cudaMallocArray(&flat, &bytes, 8, 3, 2));
    ok(cudaMallocArray(&back, &bytes, 8, 3, 0));
    ok(cudaMalloc3DArray(&deep, &pairs, {2, 3, 2}, 0));
    ok(cudaArrayGetInfo(&known, &size, &flags, deep));
    failures += known.x != 8 || known.y != 8 || known.z || known.kind != 1 || size.depth != 2 || flags;
    ok(cudaMemcpy2DToArray(flat, 0, 0, from, 8, 8, 3, 1));
    ok(cudaMemcpy2DArrayToArray(back, 0, 0, flat, 0, 0, 8, 3, 3));
    ok(cudaMemcpyFromArray(to, back, 6, 0, 12, 2));                 // the end of a row, a row, and two bytes
    ok(cudaMemcpyToArray(back, 7, 0, "XYZ", 1, 1));
    ok(cudaMemcpy2DFromArray(part, 2, back, 6, 0, 2, 2, 2));
    Copy up{nullptr, {}, {from, 4, 4, 3}, deep, {}, {}, {2, 3, 2}, 1};
    Copy down{deep, {1, 0, 0}, {}, nullptr, {}, {}, {}, 2};
    ok(cudaMemcpy3D(&up));
    down.target = {cube, 2, 2, 3};
    down.extent = {1, 3, 2};
    ok(cudaMemcpy3D(&down));
    failures += __builtin_memcmp(to, "ghijklmnopqr", 12) || __builtin_memcmp(part, "gXop", 4);
    failures += __builtin_memcmp(cube, "cdghklopstw", 11);
    ok(cudaDeviceSynchronize());
    ok(cudaMemcpy2DToArrayAsync(flat, 0, 0, rows, pitch, 8, 3, 3, a));
    if (fixed) {
        ok(cudaEventRecord(event, a));
        ok(cudaStreamWaitEvent(b, event, 0));
    }
    ok(cudaMemcpy2DFromArrayAsync(rows, pitch, flat, 0, 0, 8, 1, 3, b));
    ok(cudaDeviceSynchronize());
    Resource memory{0, flat, {}}, found{};
    Texture how{}, same{};
    how.anisotropy = 3;
    unsigned long long texture, surface;
    ok(cudaCreateTextureObject(&texture, &memory, &how, nullptr));
    ok(cudaCreateSurfaceObject(&surface, &memory));
    ok(cudaGetTextureObjectResourceDesc(&found, texture));
    ok(cudaGetTextureObjectTextureDesc(&same, texture));
    failures += found.array != flat || __builtin_memcmp(&how, &same, sizeof how);
    Resource linear{2, rows, {}};
    Linear& line = reinterpret_cast<Linear&>(linear.array);
    line = {rows, bytes, 8};
    unsigned long long other;
    ok(cudaCreateTextureObject(&other, &linear, &how, nullptr));
    ok(cudaGetTextureObjectResourceDesc(&found, other));
    Linear& again = reinterpret_cast<Linear&>(found.array);
    failures += again.bytes != 8 || again.channels.x != 8 || again.address != rows;
    ok(cudaDestroyTextureObject(other));
    ok(cudaDestroyTextureObject(texture));
    ok(cudaDestroySurfaceObject(surface));
    int dead = cudaDestroySurfaceObject(surface), late = cudaMemcpyToArray(back, 7, 2, from, 2, 1);
    ok(cudaDeviceSynchronize());
    ok(cudaFreeArray(flat));
    ok(cudaFreeArray(back));
    ok(cudaFreeArray(deep));
    ok(cudaFreeArray(nullptr));
    return failures ? -failures : dead * 100 + late * 10 + cudaMemcpy2DToArray(flat, 0, 0, from, 8, 8, 3, 1);
}

extern "C" long batch(int order) {
    void *a, *rows, *targets[2], *sources[2];
    size_t pitch, sizes[2] = {4, 4}, first = 0, failed = 7;
    char from[8] = "abc", to[8] = "";
    Attributes attributes{order, {}, 0};
    ok(cudaStreamCreateWithFlags(&a, 1));
    ok(cudaMallocPitch(&rows, &pitch, 4, 2));
    targets[0] = sources[1] = rows, sources[0] = from, targets[1] = to;
#if MAJOR < 13
    int result = cudaMemcpyBatchAsync(targets, sources, sizes, 2, &attributes, &first, 1, &failed, a);
    failures += result && failed != ~size_t(0);
#else
    int result = cudaMemcpyBatchAsync(targets, sources, sizes, 2, &attributes, &first, 1, a);
#endif
    ok(cudaDeviceSynchronize());
    return failures || (!result && to[2] != 'c') ? -1 : result;
}
"""
SOURCE_OF_SYMBOLS = r"""
#include <cstddef>
struct dim3 { unsigned x, y, z; };
struct Launch { dim3 grid, block; size_t shared; void *stream, *attributes; unsigned count; };
struct Kernel { size_t shared, constant, local; int threads, registers, ptx_version, more[10], reserved[16]; };
extern "C" {
int cudaStreamCreateWithFlags(void**, unsigned);
int cudaDeviceSynchronize();
int cudaMalloc(void**, size_t);
int cudaGetSymbolAddress(void**, const void*);
int cudaGetSymbolSize(size_t*, const void*);
int cudaMemcpyToSymbol(const void*, const void*, size_t, size_t, int);
int cudaMemcpyFromSymbol(void*, const void*, size_t, size_t, int);
int cudaMemcpyToSymbolAsync(const void*, const void*, size_t, size_t, int, void*);
int cudaMemcpyFromSymbolAsync(void*, const void*, size_t, size_t, int, void*);
int cudaDeviceSetLimit(int, size_t);
int cudaDeviceGetLimit(size_t*, int);
int cudaDeviceGetP2PAttribute(int*, int, int, int);
int cudaFuncGetAttributes(Kernel*, const void*);
int cudaOccupancyAvailableDynamicSMemPerBlock(size_t*, const void*, int, int);
int cudaLaunchCooperativeKernel(const void*, dim3, dim3, void**, size_t, void*);
int cudaLaunchKernelExC(const Launch*, const void*, void**);
void** __cudaRegisterFatBinary(void*);
void __cudaRegisterFunction(void**, const char*, char*, const char*, int, void*, void*, void*, void*, int*);
void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int);
}
static const char ptx[] = ".version 8.0\n.target sm_90\n.address_size 64\n"
    ".visible .entry fill(.param .u64 to) {\n"
    ".reg .b64 %r<2>;\nld.param.u64 %r1, [to];\nst.global.u64 [%r1], %r1;\nret;\n}\n";
static struct { int magic, version; const void* image; void* more; } wrapper = {0x466243b1, 1, ptx, nullptr};
static char table[16], unknown;
static void fill() {}
static int failures = 0;
static void ok(int error) { failures += error != 0; }

// Two launches on two streams fill the same memory.
extern "C" long launches(int fixed) {
    void **module = __cudaRegisterFatBinary(&wrapper), *a, *b, *address, *parameters[] = {&address};
    const void* kernel = reinterpret_cast<const void*>(&fill);
    __cudaRegisterFunction(module, static_cast<const char*>(kernel), nullptr, "fill", -1, nullptr, nullptr, nullptr,
                           nullptr, nullptr);
    ok(cudaStreamCreateWithFlags(&a, 1));
    ok(cudaStreamCreateWithFlags(&b, 1));
    ok(cudaMalloc(&address, 64));
    ok(cudaLaunchCooperativeKernel(kernel, {1, 1, 1}, {1, 1, 1}, parameters, 0, a));
    if (fixed) ok(cudaDeviceSynchronize());
    Launch launch{{1, 1, 1}, {1, 1, 1}, 0, b, nullptr, 0};
    ok(cudaLaunchKernelExC(&launch, kernel, parameters));
    ok(cudaDeviceSynchronize());
    ok(cudaLaunchKernelExC(&launch, &unknown, parameters) == 0);
    ok(cudaLaunchCooperativeKernel(&unknown, {1, 1, 1}, {1, 1, 1}, parameters, 0, a) == 0);
    return failures;
}

extern "C" long symbols(int fixed) {
    void **module = __cudaRegisterFatBinary(&wrapper), *a, *b, *address, *again;
    char to[16] = "";
    size_t bytes = 0, limit = 0, shared = 0;
    int value = -1;
    Kernel kernel;
    const void* kernel_of = reinterpret_cast<const void*>(&fill);
    __cudaRegisterFunction(module, static_cast<const char*>(kernel_of), nullptr, "fill", -1, nullptr, nullptr, nullptr,
                           nullptr, nullptr);
    __cudaRegisterVar(module, table, table, "table", 0, sizeof table, 0, 0);
    ok(cudaStreamCreateWithFlags(&a, 1));
    ok(cudaStreamCreateWithFlags(&b, 1));
    ok(cudaMemcpyToSymbol(table, "0123456789abcde", 16, 0, 1));
    ok(cudaMemcpyToSymbol(table, "--", 2, 4, 1));
    ok(cudaMemcpyFromSymbol(to, table, 16, 0, 2));
    ok(__builtin_memcmp(to, "0123--6789abcde", 16));
    ok(cudaGetSymbolAddress(&address, table));
    ok(cudaGetSymbolAddress(&again, table));
    ok(cudaGetSymbolSize(&bytes, table));
    ok(address != again || bytes != 16);
    ok(cudaDeviceSetLimit(0, 4096) || cudaDeviceGetLimit(&limit, 0) || limit != 4096);
    ok(cudaFuncGetAttributes(&kernel, kernel_of));
    ok(kernel.threads != 1024 || kernel.ptx_version != 90 || kernel.reserved[15]);
    ok(cudaOccupancyAvailableDynamicSMemPerBlock(&shared, kernel_of, 1, 32) || !shared);
    ok(cudaDeviceSynchronize());
    ok(cudaMemcpyToSymbolAsync(table, address, 8, 8, 3, a));
    if (fixed) ok(cudaDeviceSynchronize());
    ok(cudaMemcpyFromSymbolAsync(to, table, 8, 8, 2, b));
    ok(cudaDeviceSynchronize());
    ok(cudaGetSymbolAddress(&address, &unknown) != 13);
    ok(cudaMemcpyToSymbol(table, to, 16, 1, 1) != 1);
    ok(cudaMemcpyToSymbol(table, to, 1, ~size_t(0), 1) != 1);
    ok(cudaDeviceSetLimit(99, 1) == 0);
    ok(cudaDeviceGetP2PAttribute(&value, 2, 0, 0) != 101);
    ok(cudaFuncGetAttributes(&kernel, &unknown) == 0);
    return failures;
}
"""
PROGRAM = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
if "rows" in sys.argv:
    print(library.rows("fixed" in sys.argv))
elif "copy" in sys.argv:
    print(library.copy("fixed" in sys.argv))
elif "capture" in sys.argv:
    print(library.capture())
elif "launches" in sys.argv:
    print(library.launches("fixed" in sys.argv))
elif "symbols" in sys.argv:
    print(library.symbols("fixed" in sys.argv))
elif "arrays" in sys.argv:
    print(library.arrays("fixed" in sys.argv))
elif "planes" in sys.argv:
    print(library.planes("fixed" in sys.argv), library.batch(1), library.batch(9))
else:
    library.run.restype = ctypes.c_char_p
    print(library.run("fixed" in sys.argv))
"""


@pytest.fixture(params=xlogmem.check.cudart.MAJORS)
def library(request, tmp_path):
    """It has a libcudart of this version among what it needs, with the versions of its symbols."""
    runtime, = Path(xlogmem.check.cudart.__file__).parent.glob(f"_cudart{request.param}*.so")
    return built(SOURCE, tmp_path, request.param, runtime)


def built(source, folder, major, runtime):
    (folder / "library.cpp").write_text(source)
    subprocess.run([COMPILER, f"-DMAJOR={major}", "-shared", "-fPIC", "-o", folder / "library.so",
                    folder / "library.cpp", runtime, "-Wl,--unresolved-symbols=ignore-in-shared-libs"], check=True)
    return str(folder / "library.so")


def test_a_missing_wait_and_its_repair(checked, library):
    run = checked(PROGRAM, library)
    assert run.pairs == [("write/write", True)], run.stderr
    assert run.stdout == "b'cudaErrorMemoryAllocation'\n"
    run = checked(PROGRAM, library, "fixed")
    assert (run.returncode, run.pairs) == (0, []), run.stderr


def test_what_a_program_sees_of_a_capture(checked, library):
    run = checked(PROGRAM, library, "capture")
    assert run.stdout == "13\n", run.stderr


def test_a_copy_of_the_hosts_own_memory_is_a_call_of_the_driver(checked, library):
    """It waits as the driver's, and a stream that does not exist is refused."""
    run = checked(PROGRAM, library, "copy")
    assert (run.stdout, run.pairs) == ("400\n", [("write/write", True)]), run.stderr
    run = checked(PROGRAM, library, "copy", "fixed")
    assert (run.stdout, run.pairs) == ("400\n", []), run.stderr


def test_copies_of_rows(checked, library):
    """Columns side by side are right; a pitch that is smaller than a row is refused."""
    run = checked(PROGRAM, library, "rows")
    assert (run.stdout, run.pairs) == ("1\n", [("write/write", True)]), run.stderr
    run = checked(PROGRAM, library, "rows", "fixed")
    assert (run.stdout, run.pairs) == ("1\n", []), run.stderr


@pytest.mark.parametrize("major", xlogmem.check.cudart.MAJORS)
def test_copies_of_planes_and_batches(checked, tmp_path, major):
    """Planes beside each other are right; an array and an attribute that do not exist are refused."""
    runtime, = Path(xlogmem.check.cudart.__file__).parent.glob(f"_cudart{major}*.so")
    made = built(SOURCE_OF_PLANES, tmp_path, major, runtime)
    run = checked(PROGRAM, made, "planes")
    assert (run.stdout, run.pairs) == ("1 0 1\n", [("write/write", True)]), run.stderr
    run = checked(PROGRAM, made, "planes", "fixed")
    assert (run.stdout, run.pairs) == ("1 0 1\n", []), run.stderr


@pytest.mark.parametrize("major", xlogmem.check.cudart.MAJORS)
def test_arrays_and_objects(checked, tmp_path, major):
    """A destroyed object, bytes behind the end and a freed array are refused."""
    runtime, = Path(xlogmem.check.cudart.__file__).parent.glob(f"_cudart{major}*.so")
    made = built(SOURCE_OF_PLANES, tmp_path, major, runtime)
    run = checked(PROGRAM, made, "arrays")
    assert run.stdout.split()[0] == "111", run.stderr
    assert ("write/read", True) in run.pairs, run.stderr
    run = checked(PROGRAM, made, "arrays", "fixed")
    assert (run.stdout.split()[0], run.pairs) == ("111", []), run.stderr


@pytest.mark.parametrize("major", xlogmem.check.cudart.MAJORS)
def test_variables_of_the_device_and_launches(checked, tmp_path, major):
    """Two streams copy to a variable and from it, or launch kernels in two ways, with a wait between them or none."""
    runtime, = Path(xlogmem.check.cudart.__file__).parent.glob(f"_cudart{major}*.so")
    made = built(SOURCE_OF_SYMBOLS, tmp_path, major, runtime)
    for what, pair in ("symbols", "write/read"), ("launches", "write/write"):
        run = checked(PROGRAM, made, what)
        assert (run.stdout, run.pairs) == ("0\n", [(pair, True)]), run.stderr
        run = checked(PROGRAM, made, what, "fixed")
        assert (run.stdout, run.pairs) == ("0\n", []), run.stderr


@pytest.mark.parametrize("name", ["libcudart.so", "libcudart.so.12", "libcudart.so.13"])
def test_a_program_that_loads_the_runtime_by_name_gets_the_simulated_one(checked, name):
    """Without a version, too, as a toolkit names it for linkers."""
    program = f"""
        import ctypes
        runtime = ctypes.CDLL({name!r})
        stream, ptr, count = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_int()
        assert runtime.cudaGetDeviceCount(ctypes.byref(count)) == 0 and count.value
        assert runtime.cudaMalloc(ctypes.byref(ptr), ctypes.c_size_t(512)) == 0
        assert runtime.cudaStreamCreateWithFlags(ctypes.byref(stream), 1) == 0
        assert runtime.cudaMemsetAsync(ptr, 1, ctypes.c_size_t(512), stream) == 0
        if SECOND:
            assert runtime.cudaStreamSynchronize(stream) == 0
        assert runtime.cudaStreamCreateWithFlags(ctypes.byref(stream), 1) == 0
        assert runtime.cudaMemsetAsync(ptr, 2, ctypes.c_size_t(512), stream) == 0
        """
    assert checked(program.replace("SECOND", "False")).pairs == [("write/write", True)]
    right = checked(program.replace("SECOND", "True"))
    assert (right.pairs, right.returncode) == ([], 0)


PER_THREAD = """
import ctypes, sys, threading
_, major, form, way = sys.argv[:4]
runtime = ctypes.CDLL(f"libcudart.so.{major}")
suffixes = ("_ptsz", "_ptds") if form == "per-thread" else ("", "")
p, q, size = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_size_t(512)
for place in (p, q):
    assert runtime.cudaMalloc(ctypes.byref(place), size) == 0

def call(name, *arguments):
    suffix = suffixes[way == "now" and "Async" not in name and "Synchronize" not in name]
    assert getattr(runtime, name + suffix)(*arguments) == 0, name

def first():
    if way == "async":
        call("cudaMemsetAsync", p, 1, size, None)                               # the first
    else:
        call("cudaMemcpy", q, p, size, 3)                                       # the first, now
    if "fixed" in sys.argv:
        call("cudaStreamSynchronize", None)

thread = threading.Thread(target=first)
thread.start()
thread.join()
call("cudaMemsetAsync", p, 2, size, None)                                       # the second
assert runtime.cudaDeviceSynchronize() == 0
assert getattr(runtime, "cudaStreamQuery" + suffixes[0])(None) == 0
"""


@pytest.mark.parametrize("major", xlogmem.check.cudart.MAJORS)
@pytest.mark.parametrize(("way", "pair"), [("async", "write/write"), ("now", "read/write")])
def test_a_default_stream_of_each_thread(checked, major, way, pair):
    """As `nvcc --default-stream per-thread` compiles it.  The default stream of all threads orders the two."""
    run = checked(PER_THREAD, str(major), "per-thread", way)
    assert (run.pairs, run.returncode) == ([(pair, True)], 1), run.stderr
    for which, text in (("first", "# the first" + ", now" * (way == "now")), ("second", "# the second")):
        lines = [frame["line"] for frame in run.findings[0][which]["stack"]]
        assert line_with(PER_THREAD, text) in lines, run.stderr
    for right in (("per-thread", way, "fixed"), ("legacy", way)):
        run = checked(PER_THREAD, str(major), *right)
        assert (run.pairs, run.returncode) == ([], 0), run.stderr


@pytest.mark.parametrize("major", xlogmem.check.cudart.MAJORS)
def test_the_driver_s_functions_for_a_stream_of_each_thread(checked, major):
    run = checked(f"""
        import ctypes
        runtime, status = ctypes.CDLL("libcudart.so.{major}"), ctypes.c_int(7)
        found = []
        for name, flags in (("", 0), ("_ptsz", 0), ("", 2), ("_ptsz", 1)):
            place = ctypes.c_void_p()
            find = getattr(runtime, "cudaGetDriverEntryPointByVersion" + name)
            assert find(b"cuStreamQuery", ctypes.byref(place), 12000, ctypes.c_ulonglong(flags),
                        ctypes.byref(status)) == status.value == 0
            found.append(place.value)
        assert runtime.cudaDeviceSynchronize() == 0
        legacy, own, wanted, other = found
        assert legacy == other and own == wanted and legacy != own
        """)
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("major", xlogmem.check.cudart.MAJORS)
def test_wishes_are_kept(checked, major):
    """Attributes of streams, and how caches and banks are to be divided."""
    run = checked(f"""
        import ctypes
        runtime, value = ctypes.CDLL("libcudart.so.{major}"), ctypes.c_int(7)
        streams = [ctypes.c_void_p() for _ in range(2)]
        for stream in streams:
            assert runtime.cudaStreamCreateWithFlags(ctypes.byref(stream), 1) == 0
        a, b = streams
        attribute = (ctypes.c_int * 16)(3)                              # how the host waits
        assert runtime.cudaStreamSetAttribute(a, 3, attribute) == 0
        assert runtime.cudaStreamCopyAttributes(b, a) == 0
        found = (ctypes.c_int * 16)()
        for stream, wanted in ((b, 3), (None, 1)):
            assert runtime.cudaStreamGetAttribute(stream, 3, found) == 0 and found[0] == wanted
        assert runtime.cudaStreamSetAttribute(a, 8, (ctypes.c_int * 16)(-2)) == 0
        assert runtime.cudaStreamGetPriority(a, ctypes.byref(value)) == 0 and value.value == -2
        assert runtime.cudaStreamGetAttribute(a, 4, found) == 1         # of a launch
        assert runtime.cudaStreamSetAttribute(a, 4, found) == 1
        assert runtime.cudaStreamGetDevice(a, ctypes.byref(value)) == value.value == 0
        for name, most in (("Cache", 3), ("SharedMem", 2)):
            get = getattr(runtime, f"cudaDeviceGet{{name}}Config")
            assert get(ctypes.byref(value)) == value.value == 0
            assert getattr(runtime, f"cudaDeviceSet{{name}}Config")(most) == 0
            assert getattr(runtime, f"cudaDeviceSet{{name}}Config")(most + 1) == 1
            assert get(ctypes.byref(value)) == 0 and value.value == most
        """)
    assert run.returncode == 0, run.stderr
    assert "not simulated" not in run.stderr


@pytest.mark.parametrize("major", xlogmem.check.cudart.MAJORS)
def test_a_device_by_its_bus_and_a_profiler(checked, major):
    run = checked(f"""
        import ctypes
        runtime = ctypes.CDLL("libcudart.so.{major}")
        name, device = ctypes.create_string_buffer(13), ctypes.c_int(7)
        assert runtime.cudaDeviceGetPCIBusId(name, 13, 1) == 0
        assert runtime.cudaDeviceGetByPCIBusId(ctypes.byref(device), name) == 0
        assert runtime.cudaDeviceGetByPCIBusId(ctypes.byref(device), b"0000:99:00.0") == 101
        assert (device.value, runtime.cudaGetLastError()) == (1, 101)
        assert runtime.cudaProfilerStart() == runtime.cudaProfilerStop() == 0
        """)
    assert (run.returncode, run.pairs) == (0, []), run.stderr
    assert "not simulated" not in run.stderr


@pytest.mark.parametrize("reset", ["cudaDeviceReset", "cudaThreadExit"])
def test_a_device_begins_anew(checked, reset):
    """Its streams and its memory end when all of its work is done; the program goes on with others."""
    program = f"""
        import ctypes, sys
        runtime = ctypes.CDLL("libcudart.so.12")
        place, stream = ctypes.c_void_p(), ctypes.c_void_p()
        for _ in range(2):
            assert runtime.cudaMalloc(ctypes.byref(place), ctypes.c_size_t(512)) == 0
            assert runtime.cudaStreamCreateWithFlags(ctypes.byref(stream), 1) == 0
            assert runtime.cudaMemsetAsync(place, 1, ctypes.c_size_t(512), stream) == 0
            assert runtime.{reset}() == 0
        if "late" in sys.argv:
            assert runtime.cudaMemsetAsync(place, 1, ctypes.c_size_t(512), stream) != 0
        """
    run = checked(program)
    assert (run.returncode, run.pairs) == (0, []), run.stderr
    assert "not simulated" not in run.stderr
    assert "CERTAIN dead-stream" in checked(program, "late").stderr


def test_a_function_that_is_missing_is_named_at_the_end(checked):
    """Of the driver, where the exception that ends the program names it, and of the runtime, where it was called."""
    begin = """
        import ctypes, sys
        from cuda.bindings import driver
        driver.cuInit(0)
        driver.cuCtxSetCurrent(driver.cuDevicePrimaryCtxRetain(0)[1])
        driver.cuMemsetD8(driver.cuMemAlloc(64)[1], 1, 64)
        """
    text = "{} is not simulated: the program may have ended for that"
    done = checked(begin + "driver.cuCtxResetPersistingL2Cache()")
    assert done.notes["notes"] == {text.format("cuCtxResetPersistingL2Cache"): 1}
    assert text.format("cuCtxResetPersistingL2Cache") in done.stderr + done.stdout
    external = begin + "ctypes.CDLL('libcudart.so').cudaImportExternalMemory()"
    done = checked(external + "\n        raise RuntimeError('that is not supported')")
    assert done.notes["notes"] == {text.format("cudaImportExternalMemory"): 1}
    for right in (begin, external):
        assert checked(right).notes["notes"] == {}
    assert checked(begin + "raise RuntimeError('cuMemAlloc: not found')").notes["notes"] == {}


@needs("cupy")
def test_a_function_that_cupy_misses_is_named(checked):
    """CuPy's runtime says of what it did not find that it found no symbol, and not of which."""
    done = checked("""
        import cupy
        cupy.cuda.runtime.ipcCloseMemHandle(1)
        """)
    assert "cudaIpcCloseMemHandle is not simulated: the program may have ended for that" in done.notes["notes"]
