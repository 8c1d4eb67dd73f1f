"""Events put the kernels in order, but not the end of the memory between them.

Thread:  https://github.com/NVIDIA/TensorRT-LLM/pull/15265
Wrong:   Weights are computed on an auxiliary stream and handed to the indexer's stream, with an event.  The event
         orders the two computations.  Of the free, which happens on the auxiliary stream, it says nothing: under
         memory pressure the block has another owner while the indexer reads.
Repair:  A second event, from the indexer to the stream that frees (in PyTorch: `record_stream`).

PyTorch's allocator is the driver's here, through cuda.core.
"""
import sys

from cuda.core import Device

FIXED = "--fixed" in sys.argv
SIZE = 1 << 20

device = Device()
device.set_current()
aux, indexer = device.create_stream(), device.create_stream()
indices = device.memory_resource.allocate(SIZE, stream=indexer)


def precompute_aux():
    weights = device.memory_resource.allocate(SIZE, stream=aux)
    weights.fill(3, stream=aux)
    return weights, aux.record()


weights, computed = precompute_aux()
indexer.wait(computed)
indices.copy_from(weights, stream=indexer)              # first
if FIXED:
    aux.wait(indexer.record())
del weights                                             # then
more, _ = precompute_aux()                              # the same memory
aux.sync()
indexer.sync()
