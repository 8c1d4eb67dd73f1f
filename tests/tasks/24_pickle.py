import pickle

import numpy

import xlogmem

buffer = xlogmem.get_device_state().from_numpy(numpy.arange(3))
try:
    pickle.dumps(buffer)
except TypeError as error:
    print(error)
assert pickle.loads(pickle.dumps(buffer.token)).resolve() is buffer
