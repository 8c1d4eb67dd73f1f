"""A kernel takes a struct of which places are unused, and the address of freed memory is left in one of them.

Right: the kernel reads as many places as the count says, and that memory is not among them.
"""
import ctypes
import sys

from cuda.bindings import driver
from cuda.core import Device, Program, ProgramOptions

CODE = r"""
struct List { float* at[4]; int count; };
extern "C" __global__ void fill(List list, float value) {
    for (int i = 0; i < list.count; ++i) list.at[i][threadIdx.x] = value;
}"""


class List(ctypes.Structure):
    _fields_ = (("at", ctypes.c_uint64 * 4), ("count", ctypes.c_int))


device = Device()
device.set_current()
stream = device.create_stream()
kernel = Program(CODE, "c++", ProgramOptions(arch=f"sm_{device.arch}")).compile(sys.argv[1]).get_kernel("fill")
for _ in range(3):
    old, now = device.allocate(4096, stream=stream), device.allocate(4096, stream=stream)
    places = List((int(now.handle), 0, 0, int(old.handle)), 1)
    old.close(stream)
    value = ctypes.c_float(2)
    arguments = (ctypes.c_void_p * 2)(ctypes.addressof(places), ctypes.addressof(value))
    status, = driver.cuLaunchKernel(int(kernel.handle), 1, 1, 1, 32, 1, 1, 0, int(stream.handle),
                                    ctypes.addressof(arguments), 0)
    assert not status, status
    now.close(stream)
stream.sync()
print("done")
