import xlogmem

runtime = xlogmem.get_runtime()
x = runtime.allocate("1MiB")
y: str = runtime.allocate(10)
x.fre()
pool = xlogmem.PoolMemoryResource(initial_pool=3)
