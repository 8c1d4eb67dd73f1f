"""The host's own accesses to page-locked, registered and managed memory that the device works on: programs, each with a
repaired twin, and both lines of what is found."""
from __future__ import annotations

import subprocess

import pytest
from checked_libraries import line_with
from host_programs import BEGIN, PROGRAMS, judged
from page_guard import NEEDED

from xlogmem.check import native

pytestmark = [pytest.mark.simulator, *NEEDED]

@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_is_found_with_both_lines(checked, name):
    done = checked(BEGIN + PROGRAMS[name][1])
    assert not judged(name, done, done.findings, right=False), done.stderr


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_repaired_program_is_silent(checked, name):
    done = checked(BEGIN + PROGRAMS[name][1], "right")
    assert not judged(name, done, done.findings, right=True), done.stderr


def test_two_places_in_one_page_are_two_findings(checked):
    done = checked(BEGIN + """
page = pinned(4096)
upload(page[:64])
ok(driver.cuMemcpyHtoDAsync(int(d) + 64, page[64:].ctypes.data, 64, t))
page[3] = 1
page[5] = 1
page[66] = 1
ok(driver.cuCtxSynchronize())
""")
    assert done.pairs == [("read/write", True)] * 2, done.stderr


def test_a_staging_buffer_stays_guarded(checked):
    """Copies beside a range take no single steps, after many of which its page would be open."""
    done = checked(BEGIN + """
page, piece = pinned(4096), np.ones(1024, np.uint8)
upload(page[:64])
for _ in range(200):
    page[64:1088] = piece
    page[1088:2112] = 0
page[3] = 1
ok(driver.cuCtxSynchronize())
""")
    assert done.pairs == [("read/write", True)], done.stderr


def test_copies_of_libc_are_accesses(checked):
    done = checked(BEGIN + """
page, piece = pinned(4096), np.ones(1024, np.uint8)
upload(page[:64])
page[32:1056] = piece
page[:32] = 0
ok(driver.cuCtxSynchronize())
download(page[:64])
piece[:] = page[:1024]
ok(driver.cuCtxSynchronize())
""")
    assert done.pairs == [("read/write", True), ("read/write", True), ("write/read", True)], done.stderr


def test_an_access_is_compared_with_what_came_before_it(checked):
    """... and not with the upload after it."""
    program = BEGIN + """
page = pinned(4096)
ok(driver.cuMemcpyHtoDAsync(d, page.ctypes.data, 4096, s))      # first
page[3] = 1                                                     # then
ok(driver.cuMemcpyHtoDAsync(d, page.ctypes.data, 4096, s))
ok(driver.cuCtxSynchronize())
"""
    done = checked(program)
    found, = done.findings
    assert found["first"]["stack"][0]["line"] == line_with(program, "# first"), done.stderr


def test_what_the_report_says(checked):
    done = checked(BEGIN + PROGRAMS["a result is read before it is there"][1])
    assert "CERTAIN write/read: the host reads what may not be written yet" in done.stderr
    assert ": host read\n" in done.stderr
    assert "or an event recorded on it after program.py:" in done.stderr
    assert "read it later" not in done.stderr           # which waits for nothing


def test_the_advice_repairs(checked):
    """... a wait for an event, and a buffer for each copy."""
    done = checked(BEGIN + """
event, buffers = ok(driver.cuEventCreate(2)), [pinned(4096), pinned(4096)]
for step in range(4):
    if step > 1:
        ok(driver.cuEventSynchronize(event))
    buffers[step % 2][:] = step
    if step:
        ok(driver.cuEventRecord(event, s))
    upload(buffers[step % 2])
result = pinned(4096)
download(result)
ok(driver.cuStreamSynchronize(s))
first_byte = result[0]
""")
    assert (done.returncode, done.findings) == (0, []), done.stderr


OF_XLOGMEM = """
import ctypes, sys
import xlogmem
from cuda.bindings import driver

runtime = xlogmem.get_runtime()
s, host_memory = runtime.acquire_stream(), getattr(xlogmem, sys.argv[1])()
staging = runtime.allocate(4096, s, resource=host_memory)
block = runtime.allocate(4096, s)
with xlogmem.use(s, read_write=[staging, block]):
    assert int(driver.{copy}(block.ptr, staging.ptr, 4096, s.handle)[0]) == 0
{access}
runtime.synchronize()
"""


@pytest.mark.parametrize("resource", ["PinnedMemoryResource", "ManagedMemoryResource"])
@pytest.mark.parametrize(("pair", "access", "copy", "its"), [
    ("read/write", "write", "cuMemcpyHtoDAsync", "ctypes.memset(staging.ptr, 1, 4096)"),
    ("write/read", "read", "cuMemcpyDtoHAsync", "ctypes.string_at(staging.ptr, 4096)")])
def test_memory_of_xlogmem_is_repaired_by_a_use(checked, resource, pair, access, copy, its):
    program = OF_XLOGMEM.replace("{copy}", copy)
    if access == "read":
        program = program.replace("(block.ptr, staging.ptr", "(staging.ptr, block.ptr")
    done = checked(program.replace("{access}", its), resource)
    assert done.pairs == [(pair, True)], done.stderr
    use = f"with xlogmem.use(xlogmem.host, {access}=staging)"
    assert f"  repair  put program.py:12 in `{use}`: the host waits for each declared use.  Or, before " in done.stderr
    done = checked(program.replace("{access}", f"{use}:\n    {its}"), resource)
    assert (done.returncode, done.findings) == (0, []), done.stderr


FOR_HOST = """
import ctypes, sys
from cuda.bindings import driver
import xlogmem

runtime = xlogmem.get_runtime()
streams = [runtime.acquire_stream() for _ in range(3)]
pinned = xlogmem.PinnedMemoryResource()
memory = {"pool": xlogmem.PoolMemoryResource, "driver": lambda below: below,
          "guard": xlogmem.GuardResourceAdaptor}[sys.argv[1]](pinned)
target = runtime.allocate(4096, streams[0])
for turn in range(6):
    stream = streams[turn % 3]
    block = runtime.allocate(4096, xlogmem.host, resource=memory)
    ctypes.memset(block.ptr, turn, 4096)
    with xlogmem.use(stream, read=block, write=target):
        assert int(driver.cuMemcpyHtoDAsync(target.ptr, block.ptr, 4096, stream.handle)[0]) == 0
    if sys.argv[2] == "wrong":
        ctypes.memset(block.ptr, 9, 4096)
    block.free()
runtime.synchronize()
"""


@pytest.mark.parametrize("memory", ["pool", "driver", "guard"])
def test_memory_for_the_host_belongs_to_no_stream(checked, memory):
    """The program writes it at once, and any stream reads it, without a wait for another."""
    done = checked(FOR_HOST, memory, "right")
    assert (done.returncode, done.findings) == (0, []), done.stderr
    if memory != "guard":                               # between canaries it is no page of its own
        assert checked(FOR_HOST, memory, "wrong").pairs == [("read/write", True)]


FREED = """
import ctypes, sys
from cuda.bindings import driver
import xlogmem

home, way, copy, access = sys.argv[1:]
runtime = xlogmem.get_runtime()
stream = runtime.acquire_stream()
below = xlogmem.ManagedMemoryResource() if home == "managed" else xlogmem.PinnedMemoryResource()
pool = xlogmem.PoolMemoryResource(below)
block = runtime.allocate(4096, stream if home == "stream" else xlogmem.host, resource=pool)
target = runtime.allocate(4096, stream)
first, second = (target, block) if copy == "upload" else (block, target)
with xlogmem.use(stream, read=second, write=first):
    driver.cuMemcpyAsync(first.ptr, second.ptr, 4096, stream.handle)
address = block.ptr
if way == "waited":
    stream.synchronize()
if way == "dropped":
    del block
else:
    block.free(*([stream] if way == "named" else []))
if access == "write":
    ctypes.memset(address, 1, 8)
elif access == "read":
    ctypes.string_at(address, 8)
stream.synchronize()
"""


@pytest.mark.parametrize("home", ["host", "stream", "managed"])
@pytest.mark.parametrize(("way", "copy", "access"), [
    ("freed", "upload", "write"), ("named", "upload", "write"), ("dropped", "upload", "write"),
    ("freed", "download", "read"), ("dropped", "download", "write")])
def test_memory_that_a_pool_has_back(checked, home, way, copy, access):
    """A dropped block is the program's until the next operation frees it."""
    done = checked(FREED, home, way, copy, access)
    kind = "race" if way == "dropped" else "use-after-free"
    assert [(one["kind"], one["certain"]) for one in done.findings] == [(kind, True)], done.stderr
    assert f"host {access}\n" in done.stderr
    assert way == "dropped" or "repair  free the memory after its last use" in done.stderr


@pytest.mark.parametrize("way", ["freed", "dropped", "waited"])
def test_a_free_while_a_copy_is_pending_is_right(checked, way):
    done = checked(FREED, "host", way, "upload", "none")
    assert (done.returncode, done.findings) == (0, []), done.stderr


PIECES = """
import ctypes, sys
from cuda.bindings import driver
import xlogmem

below = getattr(xlogmem, sys.argv[1])()
nbytes, wrong = int(sys.argv[2]), sys.argv[3:] == ["wrong"]
runtime = xlogmem.get_runtime()
stream = runtime.acquire_stream()
pool = xlogmem.PoolMemoryResource(below, maximum_pool_size=65536, chunk_size=65536)
target = runtime.allocate(nbytes, stream)
first = runtime.allocate(1000, xlogmem.host, resource=pool)     # the chunk begins with other memory
staging = runtime.allocate(nbytes, xlogmem.host, resource=pool)
ctypes.memset(staging.ptr, 1, nbytes)
with xlogmem.use(stream, read=staging, write=target):
    driver.cuMemcpyAsync(target.ptr, staging.ptr, nbytes, stream.handle)
if wrong:
    ctypes.memset(staging.ptr, 2, nbytes)
staging.free()
first.free()
whole = runtime.allocate(65536, stream, resource=pool)          # behind the copy
with xlogmem.use(stream, write=whole):
    driver.cuMemsetD8Async(whole.ptr, 3, 65536, stream.handle)
with xlogmem.use(xlogmem.host, read=whole):
    assert ctypes.string_at(whole.ptr, 1) == bytes([3])
with xlogmem.use(stream, write=whole):
    driver.cuMemsetD8Async(whole.ptr, 4, 65536, stream.handle)
whole.free()
first = runtime.allocate(1000, stream, resource=pool)
piece = runtime.allocate(nbytes, stream, resource=pool)
with xlogmem.use(stream, write=piece):
    driver.cuMemsetD8Async(piece.ptr, 5, nbytes, stream.handle)
with xlogmem.use(stream, read=piece, write=target):
    driver.cuMemcpyAsync(target.ptr, piece.ptr, nbytes, stream.handle)
piece.free()
stream.synchronize()
"""


@pytest.mark.parametrize("below", ["PinnedMemoryResource", "ManagedMemoryResource"])
@pytest.mark.parametrize("nbytes", [512, 4096, 10000])
def test_pieces_of_a_pool_that_the_device_writes_again(checked, below, nbytes):
    """They begin anywhere in a page; what the device does, also for the next owner, does not count as the host's."""
    done = checked(PIECES, below, str(nbytes))
    assert (done.returncode, done.findings) == (0, []), done.stderr
    done = checked(PIECES, below, str(nbytes), "wrong")
    assert done.pairs == [("read/write", True)], done.stderr


KERNEL = '''
ptx = b""".version 8.0
.target sm_80
.address_size 64
.visible .entry say(.param .u64 where) {
    .reg .u64 %a; .reg .u32 %v;
    ld.param.u64 %a, [where];
    cvta.to.global.u64 %a, %a;
    mov.u32 %v, 1;
    st.release.sys.global.u32 [%a], %v;
    ret;
}
"""
function = ok(driver.cuModuleGetFunction(ok(driver.cuModuleLoadData(ptx)), b"say"))
word = pinned(1, np.uint32)
word[0] = 0
ok(driver.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, s, ((word.ctypes.data,), (ctypes.c_void_p,)), 0))
for _ in range(3):
    if word[0]:
        break
ok(driver.cuStreamSynchronize(s))
'''


def test_a_flag_that_a_kernel_writes_is_no_certain_finding(checked):
    """The host is meant to look at it while the kernel runs."""
    done = checked(BEGIN + KERNEL)
    assert (done.returncode, done.pairs) == (0, [("write/read", False)]), done.stderr


@pytest.mark.parametrize("guarded", [True, False])
def test_a_crash_is_the_programs_own(checked, guarded):
    """... whether anything is guarded or not: it ends the process."""
    done = checked(BEGIN + f"""
buffer = pinned(4096)
if {guarded}:
    upload(buffer)
ctypes.string_at(8)
""")
    assert done.returncode == 3
    assert "the program was ended by SIGSEGV" in done.stderr


def test_memory_that_ends_while_it_is_uploaded(checked):
    """It was registered, and is unmapped without a word to the driver: malloc has its own mapping for so much."""
    done = checked(BEGIN + """
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
address = libc.malloc(1 << 20)
ok(driver.cuMemHostRegister(address, 1 << 20, 0))
ok(driver.cuMemcpyHtoDAsync(d, address, 1 << 20, s))
libc.free(address)
again = np.ones(1 << 20, np.uint8)
again[:] = 3
""")
    assert ("read/free", True) in done.pairs, done.stderr


IN_C = """#include <pthread.h>

void* fill(void* page) {
    *(volatile char*)page = 3;
    return 0;
}

void in_thread(void* page) {
    pthread_t thread;
    if (!pthread_create(&thread, 0, fill, page)) pthread_join(thread, 0);
}
"""


@pytest.mark.parametrize("lines", [True, False], ids=["with lines", "without lines"])
def test_a_thread_that_runs_no_python_has_a_place(checked, tmp_path, lines):
    source = tmp_path / "filler.c"
    source.write_text(IN_C)
    subprocess.run(["gcc", "-shared", "-fPIC", "-pthread", *(["-g"] if lines else []), source, "-o",
                    tmp_path / "filler.so"], check=True)
    done = checked(BEGIN + """
page = pinned(4096)
upload(page)
wait()
ctypes.CDLL("./filler.so").in_thread(ctypes.c_void_p(page.ctypes.data))
ok(driver.cuCtxSynchronize())
""")
    assert done.pairs == [("read/write", True)], done.stderr
    first, *_ = done.findings[0]["second"]["stack"]
    assert first["function"] == "fill"
    if lines and native.tool():
        assert (first["file"], first["line"]) == (str(source), line_with(IN_C, "= 3;"))
        assert "before filler.c:4, wait for stream" in done.stderr
    else:
        assert (first["file"], first["line"]) == (str(tmp_path / "filler.so"), 0)
        assert "before host write in filler.so of the memory that was allocated" in done.stderr


def test_the_repaired_thread_is_silent(checked, tmp_path):
    (tmp_path / "filler.c").write_text(IN_C)
    subprocess.run(["gcc", "-shared", "-fPIC", "-pthread", "filler.c", "-o", "filler.so"], check=True, cwd=tmp_path)
    done = checked(BEGIN + """
page = pinned(4096)
upload(page)
wait()
ctypes.CDLL("./filler.so").in_thread(ctypes.c_void_p(page.ctypes.data))
ok(driver.cuCtxSynchronize())
""", "right")
    assert done.findings == []
