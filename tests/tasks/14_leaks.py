import xlogmem

resource = xlogmem.TrackingResourceAdaptor(xlogmem.AsyncMemoryResource(), report_at_exit=True)
runtime = xlogmem.DeviceRuntime(resource=resource)
kept = [runtime.allocate("1MiB", tag="kept")]
