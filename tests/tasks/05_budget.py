import xlogmem

budget = xlogmem.LimitingResourceAdaptor(xlogmem.PoolMemoryResource(), "8GiB")
runtime = xlogmem.DeviceRuntime(resource=budget)
index = runtime.allocate("6GiB", tag="index")
try:
    runtime.allocate("3GiB", tag="join")
except xlogmem.OutOfBudgetError as error:
    print(error)
