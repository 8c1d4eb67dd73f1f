import xlogmem

xlogmem.enable("cupy")
import cupy

load, work = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
with load:
    x = cupy.ones(1 << 20)
with work, xlogmem.use(work, read=x):
    y = x + 1
del x                                                   # while `work` may still read it
with load:
    z = cupy.zeros(1 << 20)                             # may have that memory
