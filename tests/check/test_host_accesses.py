"""The host's own accesses to page-locked, registered and managed memory that the device works on: programs, each with a
repaired twin, and both lines of what is found."""
from __future__ import annotations

import pytest
from checked_libraries import line_with
from page_guard import NEEDED

pytestmark = [pytest.mark.simulator, *NEEDED]
BEGIN = """
import ctypes, faulthandler, os, signal, sys, tempfile, threading
import numpy as np
from cuda.bindings import driver

RIGHT = "right" in sys.argv

def ok(result):
    assert int(result[0]) == 0, result[0]
    return result[1] if len(result) > 1 else None

def memory_of(address, count, dtype):
    bytes = count * np.dtype(dtype).itemsize
    return np.frombuffer((ctypes.c_char * bytes).from_address(int(address)), dtype)

def pinned(count, dtype=np.uint8):
    return memory_of(ok(driver.cuMemHostAlloc(count * np.dtype(dtype).itemsize, 0)), count, dtype)

def upload(array, stream=None):
    ok(driver.cuMemcpyHtoDAsync(d, array.ctypes.data, array.nbytes, stream or s))

def download(array, stream=None):
    ok(driver.cuMemcpyDtoHAsync(array.ctypes.data, d, array.nbytes, stream or s))

def wait():
    if RIGHT:
        ok(driver.cuStreamSynchronize(s))

ok(driver.cuInit(0))
ok(driver.cuCtxSetCurrent(ok(driver.cuDevicePrimaryCtxRetain(0))))
s, t = ok(driver.cuStreamCreate(1)), ok(driver.cuStreamCreate(1))
d = ok(driver.cuMemAlloc(1 << 22))
ok(driver.cuMemsetD8(d, 5, 1 << 22))
ok(driver.cuCtxSynchronize())
"""
PROGRAMS = {
    "a staging buffer is filled for the next step": ("read/write", """
tokens = pinned(4096)
for step in range(4):
    tokens[:] = step                                    # then
    upload(tokens)                                      # first
    wait()
ok(driver.cuStreamSynchronize(s))
"""),
    "a result is read before it is there": ("write/read", """
logits = pinned(4096, np.float32)
download(logits)                                        # first
wait()
best = int(logits.argmax())                             # then
"""),
    "a number among the host's own in one page": ("write/read", """
page = pinned(1024, np.int32)
for i in range(5):
    page[:16] = i
    download(page[16:17])                               # first
    page[17:40] += 1
    assert page[3] == i
    wait()
    number = page[16].item()                            # then
ok(driver.cuStreamSynchronize(s))
"""),
    "a file is read into a buffer that is being uploaded": ("read/write", """
buffer = pinned(1 << 16)
with tempfile.TemporaryFile(buffering=0) as file:
    file.write(bytes(range(256)) * 256)
    file.seek(0)
    upload(buffer)                                      # first
    wait()
    assert file.readinto(buffer) == 1 << 16             # then
    assert (buffer[:256] == np.arange(256)).all()
ok(driver.cuStreamSynchronize(s))
"""),
    "a file is written from a buffer that is being downloaded": ("write/read", """
buffer = pinned(1 << 16)
with tempfile.TemporaryFile(buffering=0) as file:
    download(buffer)                                    # first
    wait()
    assert file.write(buffer) == 1 << 16                # then
ok(driver.cuStreamSynchronize(s))
"""),
    "the other half of a page is read from a pipe": ("read/write", """
page = pinned(4096)
ends = os.pipe()
upload(page[:2048])                                     # first
os.write(ends[1], b"x" * 100)
assert os.readv(ends[0], [memoryview(page)[2048:2148]]) == 100
wait()
page[7] = 1                                             # then
ok(driver.cuStreamSynchronize(s))
"""),
    "an array that was registered": ("read/write", """
array, others = np.ones(40000, np.uint8), [np.ones(100) for _ in range(100)]
ok(driver.cuMemHostRegister(array.ctypes.data, array.nbytes, 0))
for step in range(4):
    array[20000] = step                                 # then
    others = [np.ones(100) + one for one in others]
    upload(array)                                       # first
    wait()
ok(driver.cuStreamSynchronize(s))
ok(driver.cuMemHostUnregister(array.ctypes.data))
"""),
    "a small array that was registered, whose page has other owners": ("read/write", """
array = np.ones(1000, np.uint8)
ok(driver.cuMemHostRegister(array.ctypes.data, array.nbytes, 0))
upload(array)                                           # first
wait()
array[5] = 7
ok(driver.cuStreamSynchronize(s))                       # then
ok(driver.cuMemHostUnregister(array.ctypes.data))
"""),
    "managed memory, in turn": ("write/write", """
shared = memory_of(ok(driver.cuMemAllocManaged(1 << 16, 1)), 1 << 16, np.uint8)
for step in range(4):
    shared[0] = step                                    # then
    ok(driver.cuMemsetD8Async(shared.ctypes.data, step, 1 << 16, s))    # first
    wait()
ok(driver.cuStreamSynchronize(s))
"""),
    "a wait for the first of two uploads": ("read/write", """
buffer, events = pinned(4096), [ok(driver.cuEventCreate(2)) for _ in range(2)]
for event in events:
    upload(buffer)                                      # first
    ok(driver.cuEventRecord(event, s))
ok(driver.cuEventSynchronize(events[1 if RIGHT else 0]))
buffer[0] = 1                                           # then
ok(driver.cuStreamSynchronize(s))
"""),
    "an event that is queried once": ("write/read", """
result, event = pinned(4096), ok(driver.cuEventCreate(2))
download(result)                                        # first
ok(driver.cuEventRecord(event, s))
while RIGHT and int(driver.cuEventQuery(event)[0]):
    pass
first_byte = result[0]                                  # then
ok(driver.cuStreamSynchronize(s))
"""),
    "a thread with all signals blocked, and faulthandler": ("read/write", """
buffer = pinned(1 << 16)
upload(buffer)                                          # first
faulthandler.enable()
wait()

def work():
    signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 32))
    buffer[:] = 4                                       # then

thread = threading.Thread(target=work)
thread.start()
thread.join()
ok(driver.cuStreamSynchronize(s))
"""),
    "a child of a fork, which has the pages too": ("read/write", """
buffer = pinned(1 << 16)
upload(buffer)                                          # first
child = os.fork()
if not child:
    array = np.ones(100)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
wait()
buffer[:] = 4                                           # then
ok(driver.cuStreamSynchronize(s))
"""),
    "the launch of a graph reads the buffer again": ("read/write", """
buffer = pinned(4096)
ok(driver.cuStreamBeginCapture(s, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL))
upload(buffer)
graph = ok(driver.cuStreamEndCapture(s))
program = ok(driver.cuGraphInstantiate(graph, 0))
for step in range(3):
    buffer[0] = step                                    # then
    ok(driver.cuGraphLaunch(program, s))                # first
    wait()
ok(driver.cuStreamSynchronize(s))
"""),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_is_found_with_both_lines(checked, name):
    pair, text = PROGRAMS[name]
    done = checked(BEGIN + text)
    assert done.returncode == 1, done.stderr
    assert {one["pair"] for one in done.findings if one["certain"]} == {pair}, done.stderr
    found, = (one for one in done.findings if one["certain"])
    program = BEGIN + text
    for which, mark in (("first", "# first"), ("second", "# then")):
        assert line_with(program, mark) in [frame["line"] for frame in found[which]["stack"]], done.stderr


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_repaired_program_is_silent(checked, name):
    done = checked(BEGIN + PROGRAMS[name][1], "right")
    assert (done.returncode, done.findings) == (0, []), done.stderr


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
    assert "; or read it later" in done.stderr


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
