# What is not simulated: sharing between processes, pictures of graphs.  Each call logs the function's name, which the
# end of the report has too, and raises.

from libc.stdint cimport intptr_t


cpdef graphDebugDotPrint(intptr_t graph, str path, unsigned int flags):
    check(cudaGraphDebugDotPrint())


def ipcGetMemHandle(intptr_t devPtr):
    check(cudaIpcGetMemHandle())


def ipcOpenMemHandle(handle, flags=1):
    check(cudaIpcOpenMemHandle())


def ipcCloseMemHandle(intptr_t devPtr):
    check(cudaIpcCloseMemHandle())


def ipcGetEventHandle(intptr_t event):
    check(cudaIpcGetEventHandle())


def ipcOpenEventHandle(handle):
    check(cudaIpcOpenEventHandle())
