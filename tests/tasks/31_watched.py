import time

import xlogmem

runtime = xlogmem.get_runtime()
x = runtime.allocate("4MiB", tag="left")
print("ready", flush=True)
time.sleep(60)
