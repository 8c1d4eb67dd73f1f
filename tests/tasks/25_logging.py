import logging

import xlogmem

logging.basicConfig(format="%(name)s %(levelname)s: %(message)s")
logging.getLogger("xlogmem").setLevel(logging.WARNING)
resource = xlogmem.TrackingResourceAdaptor(xlogmem.AsyncMemoryResource())
runtime = xlogmem.DeviceRuntime(resource=resource)
x = runtime.allocate("1MiB", tag="left")
resource.log_outstanding()
