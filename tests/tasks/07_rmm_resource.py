import rmm

import xlogmem.rmm

runtime = xlogmem.DeviceRuntime(resource=xlogmem.PoolMemoryResource())
resource = xlogmem.rmm.RuntimeMemoryResource(runtime)
assert isinstance(resource, rmm.mr.DeviceMemoryResource)
memory = resource.allocate(1000)
print(runtime.live_bytes, "bytes are tracked")
resource.deallocate(memory, 1000)
