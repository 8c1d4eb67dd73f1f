import xlogmem

runtime = xlogmem.get_runtime()
load, work = runtime.acquire_stream(), runtime.acquire_stream()
with xlogmem.record_history(stacks="all", timing=True):
    x = runtime.allocate("64MiB", load, tag="left")
    with xlogmem.use(load, write=x):
        pass
    with xlogmem.use(work, read=x):
        pass
    work.synchronize()
print(*xlogmem.why(work), sep="\n")
