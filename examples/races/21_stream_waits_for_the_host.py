"""The consumer's stream waits for a download, and the consumer is the host.

Thread:  https://github.com/NVIDIA/DALI/pull/5820
Wrong:   A stream produces a buffer of the host.  The consumer's stream waits for the event, as it does for a buffer of
         the device: that orders what is queued there from now on.  The consumer reads the buffer itself, at once.
Repair:  Where the host reads, the host waits for the event.
"""
import sys

import numpy
from cuda.core import Device, LegacyPinnedMemoryResource

FIXED = "--fixed" in sys.argv
SIZE = 4096

device = Device()
device.set_current()
producer, consumer = device.create_stream(), device.create_stream()
on_device = device.memory_resource.allocate(SIZE, stream=producer)
on_device.fill(1, stream=producer)
on_host = LegacyPinnedMemoryResource().allocate(SIZE)
shapes = numpy.from_dlpack(on_host)

on_host.copy_from(on_device, stream=producer)           # first
ready = producer.record()
if FIXED:
    ready.sync()
else:
    consumer.wait(ready)
print(shapes.max())                                     # then
device.sync()
