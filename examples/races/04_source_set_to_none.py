"""`to_copy = None` while another stream still copies from it.

Thread:  https://github.com/pytorch/pytorch/issues/23729
Wrong:   Memory returns on the stream that allocated it, whichever stream is current.  Nothing puts the end of
         `to_copy` behind the copy, so that the next computation on the default stream may be given its memory.
Repair:  The stream that allocated it waits for the copy (in PyTorch: `to_copy.record_stream(copy_stream)`).

The thread copies to a second GPU; one is enough to go wrong.
"""
import sys

from cuda.core import Device

FIXED = "--fixed" in sys.argv
SIZE = 1 << 20

device = Device()
device.set_current()
current, copy_stream = device.create_stream(), device.create_stream()
to_copy = device.memory_resource.allocate(SIZE, stream=current)
to_copy.fill(1, stream=current)
copied = device.memory_resource.allocate(SIZE, stream=copy_stream)

copy_stream.wait(current)
copied.copy_from(to_copy, stream=copy_stream)           # first
if FIXED:
    current.wait(copy_stream)
to_copy = None                                          # then
calculated = device.memory_resource.allocate(SIZE, stream=current)
calculated.fill(100, stream=current)                    # the same memory
current.sync()
copy_stream.sync()
