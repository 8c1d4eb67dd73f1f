"""A page-locked vector is in the order of a stream; the host fills it at once.

Thread:  https://github.com/NVIDIA/cudf/pull/18395
Wrong:   Page-locked vectors come from a pool whose memory returns in the order of the stream: the next vector for that
         stream may lie where an upload still reads.  A host thread decompresses into it without a wait.
Repair:  Synchronize the stream where the host is the first to use a vector.
"""
import sys

from driver import begin, cuda, ok, page_locked, stream

FIXED = "--fixed" in sys.argv
SIZE = 1 << 14
pool = []


def make_vector(on, by_host):
    if FIXED and by_host:
        ok(cuda.cuStreamSynchronize(on))
    return pool.pop() if pool else page_locked(SIZE)


begin()
main = stream()
pages = [ok(cuda.cuMemAlloc(SIZE)) for _ in range(2)]
for number, page in enumerate(pages):
    vector = make_vector(main, by_host=True)
    vector[:] = number                                  # then: the second page
    ok(cuda.cuMemcpyHtoDAsync(page, vector.ctypes.data, SIZE, main))    # first
    pool.append(vector)                                 # in the order of the stream
ok(cuda.cuStreamSynchronize(main))
