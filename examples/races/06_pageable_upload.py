"""A "synchronous" upload is not done when it returns.

Threads: https://github.com/Rust-GPU/rust-cuda/issues/15, https://github.com/intel/llvm/pull/1798
Wrong:   cuMemcpyHtoD from ordinary memory returns when the bytes are staged; the transfer itself is work of the default
         stream.  A stream made with CU_STREAM_NON_BLOCKING does not wait for that one, and reads too early.
Repair:  Synchronize with the default stream after the upload (or copy on the stream that reads).
"""
import sys

from driver import begin, cuda, ok, stream

FIXED = "--fixed" in sys.argv
SIZE = 1 << 16

begin()
reader = stream()
uploaded, copied = ok(cuda.cuMemAlloc(SIZE)), ok(cuda.cuMemAlloc(SIZE))
ok(cuda.cuMemcpyHtoD(uploaded, bytes(SIZE), SIZE))      # first
if FIXED:
    ok(cuda.cuStreamSynchronize(0))
ok(cuda.cuMemcpyDtoDAsync(copied, uploaded, SIZE, reader))      # then
ok(cuda.cuStreamSynchronize(reader))
