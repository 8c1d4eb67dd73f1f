"""A tensor is copied to the host on a side stream, and freed on the main one at once.

Thread:  https://github.com/meta-pytorch/torchrec/pull/4231
Wrong:   The copy runs on a stream of its own so that it overlaps with training; the storage is released behind it, to
         make room.  The allocator knows the main stream alone and hands the memory out again there: NaN on the host.
Repair:  The main stream waits for the copy (in PyTorch: `record_stream`, or `wait_stream`).

PyTorch's allocator is the driver's here, through cuda.core.
"""
import sys

from cuda.core import Device, LegacyPinnedMemoryResource

FIXED = "--fixed" in sys.argv
SIZE = 1 << 20

device = Device()
device.set_current()
main, side = device.create_stream(), device.create_stream()
weights = device.memory_resource.allocate(SIZE, stream=main)
weights.fill(1, stream=main)
stash = LegacyPinnedMemoryResource().allocate(SIZE)

side.wait(main)
stash.copy_from(weights, stream=side)                   # first
if FIXED:
    main.wait(side)
weights.close(main)                                     # then
activations = device.memory_resource.allocate(SIZE, stream=main)
activations.fill(0, stream=main)                        # the same memory
side.sync()
main.sync()
