import xlogmem

runtime = xlogmem.get_runtime()
load, work = runtime.acquire_stream(), runtime.acquire_stream()
with xlogmem.record_history("run.xlog", stacks="alloc"), xlogmem.scope("load"):
    for _ in range(3):
        x = runtime.allocate("4MiB", load)
        with xlogmem.use(load, write=x):
            pass
        with xlogmem.use(work, read=x):
            pass
