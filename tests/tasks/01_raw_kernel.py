import xlogmem

xlogmem.enable("cupy")
import cupy

double = cupy.RawKernel(r"""
extern "C" __global__ void twice(const int *x, int n, int *y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = 2 * x[i];
}""", "twice")
n = 1 << 20
load, work = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
with load:
    x, y = cupy.arange(n, dtype=cupy.int32), cupy.empty(n, dtype=cupy.int32)
with work, xlogmem.use(work, read=x, write=y):
    double((n // 256,), (256,), (x, n, y))
