import numpy

import xlogmem

samples = numpy.arange(1000, dtype="float32")
x = xlogmem.get_device_state().from_numpy(samples)
assert (x.to_numpy() == samples).all()
print("there and back")
