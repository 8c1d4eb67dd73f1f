"""PyTorch and CuPy share memory by DLPack in both directions, on one stream that both use.

Right: CuPy works on PyTorch's current stream.
other: CuPy works on a stream of its own, on a tensor whose address it is handed without any wait.
"""
import sys

import cupy
import torch

VARIANT = sys.argv[1] if len(sys.argv) > 1 else "right"
COUNT = 1 << 20

shared = torch.cuda.Stream()
stream = cupy.cuda.Stream(non_blocking=True) if VARIANT == "other" else cupy.cuda.ExternalStream(shared.cuda_stream)
right = 0
for number in range(6):
    with torch.cuda.stream(shared):
        tensor = torch.full((COUNT,), float(number), device="cuda") * 2  # first: other
    with stream:
        if VARIANT == "other":
            memory = cupy.cuda.UnownedMemory(tensor.data_ptr(), tensor.nbytes, tensor)
            array = cupy.ndarray((COUNT,), cupy.float32, cupy.cuda.MemoryPointer(memory, 0))
        else:
            with torch.cuda.stream(shared):
                array = cupy.from_dlpack(tensor)
        more = array + 1  # then: other
    with torch.cuda.stream(shared):
        back = torch.from_dlpack(more) if VARIANT == "right" else tensor
        right += bool((back == 2 * number + 1).all())
    cupy.cuda.Device().synchronize()
print("right:", right, "of 6")
