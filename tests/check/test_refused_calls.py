"""What the driver refuses was not done: no finding, and the finding where it is done.  The same on a GPU."""
from __future__ import annotations

import json
import subprocess
import sys

import pytest
from checked_programs import DRIVER
from which_driver import SIMULATED

START = DRIVER + """
from xlogmem.sim.kernels import PTX

wrong = sys.argv[1] == "wrong"
a, b = (ok(cuda.cuStreamCreate(1)) for _ in range(2))
p = ok(cuda.cuMemAlloc(4096))
TOO_MANY = 1 << 40                                      # bytes

def fill(stream, count=1024):
    return cuda.cuMemsetD8Async(p, 1, count, stream)

def refused(result):
    assert int(result[0]) != 0
"""
WORK = {
    "fill": "fill(a, 1024 if wrong else TOO_MANY)",
    "copy": "cuda.cuMemcpyDtoDAsync(p, int(p) + 2048, 1024 if wrong else TOO_MANY, a)",
    "launch": """
kernel = ok(cuda.cuModuleGetFunction(ok(cuda.cuModuleLoadData(PTX.encode())), b"xlogmem_fill_u32"))
values = (int(p), 1, 32), (ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint32)
cuda.cuLaunchKernel(kernel, 1, 1, 1, 32 if wrong else 2048, 1, 1, 0, a, values, 0)
""",
}
ORDER = {
    "copy that would wait": """
ok(fill(a))
host = ctypes.create_string_buffer(64)
refused(cuda.cuMemcpyDtoH(ctypes.addressof(host), p, TOO_MANY))
""",
    "free that would wait": """
ok(fill(a))
refused(cuda.cuMemFree(int(p) + 256))
""",
    "wait": """
ok(fill(a))
event = ok(cuda.cuEventCreate(2))
ok(cuda.cuEventRecord(event, a))
ok(cuda.cuEventDestroy(event))
refused(cuda.cuStreamWaitEvent(b, event, 0))
""",
}


def findings(tmp_path, program: str, which: str) -> list[str]:
    (tmp_path / "program.py").write_text(program)
    command = [sys.executable, "-m", "xlogmem", "check", "--json", tmp_path / "report.json",
               *["--no-gpu"] * SIMULATED, "--", sys.executable, tmp_path / "program.py", which]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    found = json.loads((tmp_path / "report.json").read_text())["findings"]
    assert done.returncode == int(any(one["certain"] for one in found)), done.stdout + done.stderr
    return sorted(one["pair"] if one["kind"] == "race" else one["kind"] for one in found if one["certain"])


@pytest.mark.parametrize("name", WORK)
def test_refused_work_is_not_done(tmp_path, name):
    program = f"{START}\n{WORK[name]}\nok(fill(b))\nok(cuda.cuCtxSynchronize())\n"
    assert findings(tmp_path, program, "right") == []
    assert findings(tmp_path, program, "wrong") == ["write/write"]


@pytest.mark.parametrize("name", ORDER)
def test_a_refused_call_orders_nothing(tmp_path, name):
    program = (f"{START}\n{ORDER[name]}\nif not wrong:\n    ok(cuda.cuStreamSynchronize(a))\n"
               "ok(fill(b))\nok(cuda.cuCtxSynchronize())\n")
    dead = ["dead-event"] * (name == "wait")
    assert findings(tmp_path, program, "right") == dead
    assert findings(tmp_path, program, "wrong") == [*dead, "write/write"]
