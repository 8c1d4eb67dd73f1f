import xlogmem

xlogmem.enable("cupy")
import cupy

x = cupy.ones(1000)
tracked = xlogmem.get_runtime().live_bytes
xlogmem.disable("cupy")
y = cupy.ones(1000)
assert xlogmem.get_runtime().live_bytes == tracked      # `x`, which stays tracked
del x
print(xlogmem.get_runtime().live_bytes, "bytes are left")
