import xlogmem

log = xlogmem.LoggingResourceAdaptor(xlogmem.PoolMemoryResource(), "allocations.csv")
runtime = xlogmem.DeviceRuntime(resource=log)
with runtime.allocate(1000), runtime.allocate("2MiB"):
    pass
