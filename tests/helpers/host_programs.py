"""Programs whose host uses memory that the device still works on: each has one mistake, and with "right" none.

A comment marks the place of the first operation, and one that of the second.  On a machine with a GPU

    python tests/helpers/host_programs.py [PROCESSES [PROGRAMS [STEPS]]]

runs them, and PROGRAMS random ones (random_host.py) of STEPS steps in each of PROCESSES, under `xlogmem check --gpu`;
exit status 1 if a finding differs.
"""
from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from checked_libraries import line_with

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


def judged(name: str, done: subprocess.CompletedProcess[str], findings: list[dict], right: bool) -> str:
    """What differs from what has to be found; empty: nothing."""
    pair, text = PROGRAMS[name]
    certain = [one for one in findings if one["certain"]]
    if right:
        return "" if (done.returncode, findings) == (0, []) else f"status {done.returncode}, {len(findings)} findings"
    if done.returncode != 1 or [one["pair"] for one in certain] != [pair]:
        return f"status {done.returncode}, certain {[one['pair'] for one in certain]} in place of {pair}"
    for which, mark in (("first", "# first"), ("second", "# then")):
        if line_with(BEGIN + text, mark) not in [frame["line"] for frame in certain[0][which]["stack"]]:
            return f"the line {mark!r} is missing"
    return ""


def run_on_gpu(name: str, right: bool, folder: Path) -> str:
    stem = f"{list(PROGRAMS).index(name)}{'right' if right else ''}"
    file, out = folder / f"{stem}.py", folder / f"{stem}.json"
    file.write_text(BEGIN + PROGRAMS[name][1])
    done = subprocess.run([sys.executable, "-m", "xlogmem", "check", "--gpu", "--json", str(out), "--", sys.executable,
                           str(file), *["right"] * right], capture_output=True, text=True, timeout=120)
    differs = judged(name, done, json.loads(out.read_text())["findings"], right) if out.exists() else "no report"
    return f"differs: {differs}\n{done.stdout}{done.stderr}" if differs else "as it has to be"


def run_random(seed: int, steps: int, programs: int) -> str:
    from xlogmem.check import command, gpu

    environment = os.environ | gpu.environment("driver") | command.preloaded() | {"XLOGMEM_SIMULATE": "0"}
    done = subprocess.run([sys.executable, Path(__file__).with_name("random_host.py"), str(seed), str(steps),
                           str(programs)],
                          capture_output=True, text=True, timeout=300, env=environment)
    said = done.stdout + done.stderr
    return said if done.returncode == 0 and "differs" not in said else f"differs: status {done.returncode}\n{said}"


def main(processes: int = 10, programs: int = 100, steps: int = 100) -> int:
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(8) as pool:
        outcomes = {f"{name}, {'right' if right else 'wrong'}": pool.submit(run_on_gpu, name, right, Path(folder))
                    for name in PROGRAMS for right in (False, True)}
        outcomes |= {f"random from {seed} on": pool.submit(run_random, seed, steps, programs)
                     for seed in range(0, processes * programs, programs)}
        for name, outcome in outcomes.items():
            print(f"{name}: {outcome.result().strip()}", flush=True)
    return int(any("differs" in outcome.result() for outcome in outcomes.values()))


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
