"""The host prepares the next step in the buffer that the copy of this step still reads.

Threads: https://github.com/NVIDIA/TensorRT-LLM/pull/15546, https://github.com/lightseekorg/tokenspeed/pull/376
Wrong:   Each step writes its block offsets into one page-locked buffer and uploads that.  The copy reads the buffer
         when the stream gets there, and not when it is queued; the host, a step ahead, has changed it by then.
Repair:  A fresh buffer for each step (or wait for an event that was recorded after the copy).
"""
import sys

from driver import begin, cuda, ok, page_locked, stream

FIXED = "--fixed" in sys.argv
SIZE, STEPS = 1 << 14, 3

begin()
main = stream()
offsets = ok(cuda.cuMemAlloc(SIZE))
reused = page_locked(SIZE)
staged = []
for step in range(STEPS):
    staged.append(page_locked(SIZE) if FIXED else reused)
    staged[step][:] = step                              # then
    ok(cuda.cuMemcpyHtoDAsync(offsets, staged[step].ctypes.data, SIZE, main))       # first
ok(cuda.cuStreamSynchronize(main))
