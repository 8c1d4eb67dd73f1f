"""Programs that query NVML for the machine's devices: without a GPU a simulated one answers."""
from __future__ import annotations

import pytest

pytestmark = pytest.mark.simulator
BEGIN = """
import ctypes
from ctypes import byref, c_char_p, c_int, c_uint, c_uint64, c_void_p
from cuda.bindings import driver
nvml = ctypes.CDLL("libnvidia-ml.so.1")
def ok(status):
    assert not status, (status, ctypes.cast(nvml.nvmlErrorString(status), c_char_p).value)
nvml.nvmlErrorString.restype = c_char_p
def text(name, *arguments):
    buffer = ctypes.create_string_buffer(96)
    ok(getattr(nvml, name)(*arguments, buffer, c_uint(96)))
    return buffer.value.decode()
def count():
    number = c_uint()
    ok(nvml.nvmlDeviceGetCount_v2(byref(number)))
    return number.value
def device(index):
    handle = c_void_p()
    ok(nvml.nvmlDeviceGetHandleByIndex_v2(c_uint(index), byref(handle)))
    return handle
"""


def test_the_devices_of_the_machine(checked):
    """All of them, though the process may see one of them alone, and without cuInit."""
    run = checked(BEGIN + """
ok(nvml.nvmlInit_v2())
assert count() == 2
names = {text("nvmlDeviceGetUUID", device(i)) for i in range(2)}
assert len(names) == 2 and all(name.startswith("GPU-") and len(name) == 40 for name in names), names
driver.cuInit(0)
assert driver.cuDeviceGetCount()[1] == 1
seen = driver.cuDeviceGetUuid(0)[1].bytes.hex()
assert text("nvmlDeviceGetUUID", device(1)).removeprefix("GPU-").replace("-", "") == seen
handle = c_void_p()
ok(nvml.nvmlDeviceGetHandleByUUID(text("nvmlDeviceGetUUID", device(1)).encode(), byref(handle)))
assert handle.value == device(1).value
ok(nvml.nvmlDeviceGetHandleByPciBusId_v2(b"00000000:02:00.0", byref(handle)))
assert handle.value == device(1).value
assert nvml.nvmlDeviceGetHandleByPciBusId_v2(b"00000000:03:00.0", byref(handle)) == 6
assert text("nvmlDeviceGetName", device(1)) == driver.cuDeviceGetName(90, 0)[1].split(b"\\0")[0].decode()
assert nvml.nvmlDeviceGetHandleByIndex_v2(c_uint(2), byref(handle)) == 2
""", CUDA_VISIBLE_DEVICES="1")
    assert run.returncode == 0, run.stderr


def test_memory_that_is_in_use(checked):
    run = checked(BEGIN + """
ok(nvml.nvmlInit_v2())
driver.cuInit(0)
driver.cuCtxSetCurrent(driver.cuDevicePrimaryCtxRetain(0)[1])
def memory(i):
    found = (c_uint64 * 3)()
    ok(nvml.nvmlDeviceGetMemoryInfo(device(i), found))
    return list(found)
before = memory(0)
p = driver.cuMemAlloc(1 << 30)[1]
total, free, used = memory(0)
assert total == before[0] and used >= before[2] + (1 << 30) and free == total - used, (before, total, free, used)
assert memory(1)[2] == 0
""")
    assert run.returncode == 0, run.stderr


def test_before_nvml_is_initialised_and_after(checked):
    run = checked(BEGIN + """
number = c_uint()
assert nvml.nvmlDeviceGetCount_v2(byref(number)) == 1
ok(nvml.nvmlInit_v2())
ok(nvml.nvmlShutdown())
assert nvml.nvmlDeviceGetCount_v2(byref(number)) == nvml.nvmlShutdown() == 1
driver.cuInit(0)
""")
    assert run.returncode == 0, run.stderr


def test_what_is_not_simulated_is_not_supported_and_named(checked):
    run = checked(BEGIN + """
ok(nvml.nvmlInit_v2())
driver.cuInit(0)
assert nvml.nvmlDeviceGetFanSpeed(device(0), byref(c_uint())) == 3
ok(3)
""")
    assert "nvmlDeviceGetFanSpeed is not simulated: the program may have ended for that" in run.notes["notes"]


def test_a_process_that_forks_after_nvml_may_use_the_device(checked):
    """NVML initialises no driver."""
    run = checked(BEGIN + """
import os
ok(nvml.nvmlInit_v2())
count()
if not (child := os.fork()):
    os._exit(int(driver.cuInit(0)[0]))
assert os.waitpid(child, 0)[1] == 0
""")
    assert "AssertionError" not in run.stderr, run.stderr
