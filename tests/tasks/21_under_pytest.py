from cuda.bindings import driver as cuda

cuda.cuInit(0)
cuda.cuCtxSetCurrent(cuda.cuDevicePrimaryCtxRetain(0)[1])
load, work = cuda.cuStreamCreate(1)[1], cuda.cuStreamCreate(1)[1]
x, y = (cuda.cuMemAlloc(1000)[1] for _ in range(2))


def test_that_waits():
    cuda.cuMemsetD8Async(x, 7, 1000, load)
    cuda.cuStreamSynchronize(load)
    cuda.cuMemcpyDtoDAsync(y, x, 1000, work)
    cuda.cuStreamSynchronize(work)


def test_that_does_not():
    cuda.cuMemsetD8Async(x, 7, 1000, load)
    cuda.cuMemcpyDtoDAsync(y, x, 1000, work)
