"""A load that fails leaves an upload behind, and the next one reads its file into the same buffer.

Thread:  https://github.com/microsoft/onnxruntime/pull/32437 (a review comment)
Wrong:   Parts of a file go to the device through two staging buffers in turn.  Where a part fails, the function
         returns at once, while the buffer before is still being uploaded.  It notes in a local variable which buffers
         are in use; the next call takes all of them for idle.
Repair:  Wait for what was queued on every way out.
"""
import sys
import tempfile

from driver import begin, cuda, ok, page_locked, stream

FIXED = "--fixed" in sys.argv
PART, PARTS = 1 << 14, 4

begin()
weights = ok(cuda.cuMemAlloc(PARTS * PART))
staging, streams = [page_locked(PART) for _ in range(2)], [stream() for _ in range(2)]


def load(file):
    used = set()
    try:
        for part in range(PARTS):
            turn = part % 2
            if turn in used:
                ok(cuda.cuStreamSynchronize(streams[turn]))
            if file.readinto(staging[turn]) < PART:     # then
                raise EOFError(f"part {part} is missing")
            place = int(weights) + part * PART
            ok(cuda.cuMemcpyHtoDAsync(place, staging[turn].ctypes.data, PART, streams[turn]))       # first
            used.add(turn)
    except EOFError:
        if FIXED:
            wait_for_all()
        raise
    wait_for_all()


def wait_for_all():
    for one in streams:
        ok(cuda.cuStreamSynchronize(one))


with tempfile.TemporaryFile(buffering=0) as short, tempfile.TemporaryFile(buffering=0) as whole:
    short.write(bytes(PART))
    whole.write(bytes(PARTS * PART))
    for file in short, whole:
        file.seek(0)
        try:
            load(file)
        except EOFError as error:
            print(error)
