import xlogmem

runtime = xlogmem.get_runtime()
x = runtime.allocate("4MiB", tag="left")
print(runtime.memory_summary())
