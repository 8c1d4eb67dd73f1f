"""A profiler beside the check: two subscribers of CUPTI, from 13.3 and driver 610 on."""
from __future__ import annotations

import json

import pytest

PROGRAM = """
import ctypes, json, os, sys
from cuda.bindings import driver as cuda
from xlogmem.sim.kernels import check

class Params(ctypes.Structure):
    _fields_ = (("size", ctypes.c_size_t), ("name", ctypes.c_char_p), ("other", ctypes.c_char_p),
                ("other_size", ctypes.c_size_t), ("shared", ctypes.c_uint8), ("padding", ctypes.c_uint8 * 7))

cupti, version, seen = ctypes.CDLL(os.environ["XLOGMEM_CHECK_CUPTI"]), ctypes.c_uint32(), []
cupti.cuptiGetVersion(ctypes.byref(version))
CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p)
callback = CALLBACK(lambda *about: seen.append(about[2]))
DRIVER_API = 1

def profile():
    subscriber, other = ctypes.c_void_p(), ctypes.create_string_buffer(64)
    wanted = Params(ctypes.sizeof(Params), b"a profiler", ctypes.cast(other, ctypes.c_char_p), 64, 1)
    result = cupti.cuptiSubscribe_v2(ctypes.byref(subscriber), callback, None, ctypes.byref(wanted))
    return [result, other.value.decode(), result or cupti.cuptiEnableDomain(1, subscriber, DRIVER_API)]

when, out = sys.argv[1:]
answers = profile() if when == "before" and version.value >= 130300 else None
check(cuda.cuInit(0))
check(cuda.cuCtxPushCurrent(check(cuda.cuDevicePrimaryCtxRetain(0))))
if when == "after" and version.value >= 130300:
    answers = profile()
a, b, memory = check(cuda.cuStreamCreate(1)), check(cuda.cuStreamCreate(1)), check(cuda.cuMemAlloc(64))
check(cuda.cuMemsetD32Async(memory, 1, 16, a))
check(cuda.cuMemsetD32Async(memory, 2, 16, b))
check(cuda.cuCtxSynchronize())
check(cuda.cuMemFree(memory))
with open(out, "w") as file:
    json.dump({"cupti": version.value, "driver": check(cuda.cuDriverGetVersion()),
               "answers": answers, "seen": len(seen)}, file)
"""


@pytest.mark.gpu
@pytest.mark.parametrize("when", ["before", "after"])
def test_both_see_the_calls(checked, tmp_path, when):
    """Whichever of the two subscribes first."""
    run = checked(PROGRAM, when, str(tmp_path / "profiler.json"))
    profiler = json.loads((tmp_path / "profiler.json").read_text())
    if profiler["cupti"] < 130300 or profiler["driver"] < 13030:
        pytest.skip(f"two subscribers need CUPTI 13.3 and its driver: {profiler}")
    assert profiler["answers"][0] == profiler["answers"][2] == 0, profiler
    assert profiler["seen"] > 10
    assert (run.returncode, run.pairs) == (1, [("write/write", True)]), run.stderr
