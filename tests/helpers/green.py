"""Green contexts and their streams."""
from __future__ import annotations

from cuda.bindings import driver as cuda
from foreign_streams import NON_BLOCKING, ForeignStream

from xlogmem.sim.kernels import check

__all__ = ["DEFAULT_STREAM", "PROCESSORS", "RELAXED", "GreenContext", "GreenStream", "processors"]
RELAXED = cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
PROCESSORS = cuda.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
DEFAULT_STREAM = cuda.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM


def processors(device=0):
    return check(cuda.cuDeviceGetDevResource(device, PROCESSORS))


class GreenContext:
    """A part of a device, with streams of its own."""

    def __init__(self, device=0, count=32):
        (part,), _, _ = check(cuda.cuDevSmResourceSplitByCount(1, processors(device), 0, count))
        self.handle = check(cuda.cuGreenCtxCreate(check(cuda.cuDevResourceGenerateDesc([part], 1)), device,
                                                  DEFAULT_STREAM))
        self.context = check(cuda.cuCtxFromGreenCtx(self.handle))

    def __enter__(self):
        check(cuda.cuCtxPushCurrent(self.context))
        return self

    def __exit__(self, *_):
        check(cuda.cuCtxPopCurrent())

    def destroy(self):
        check(cuda.cuGreenCtxDestroy(self.handle))


class GreenStream(ForeignStream):
    def __init__(self, of):
        self.stream = check(cuda.cuGreenCtxStreamCreate(of.handle, NON_BLOCKING, 0))
