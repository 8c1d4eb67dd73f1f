import xlogmem

xlogmem.enable("cupy", limit="8GiB")
import cupy

index = cupy.empty(6 << 30, "u1")
try:
    cupy.empty(3 << 30, "u1")
except cupy.cuda.memory.OutOfMemoryError as error:
    print(error, error.__cause__)
