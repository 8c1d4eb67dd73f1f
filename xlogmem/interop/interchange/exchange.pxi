# DLPack between functions in C: results that a library allocates with xlogmem, and tensors that become buffers.
#
# `buffers/exchange.pxi` has the exports, and the stream on which the library works.

from cpython.exc cimport PyErr_SetInterrupt
from cpython.ref cimport Py_INCREF

from xlogmem.interop._dtypes import COMPLEX, dtype_of_dlpack
from xlogmem._foreign.dltensor cimport (
    CUDA,
    CUDA_MANAGED,
    READ_ONLY,
    DLManagedTensorVersioned,
    DLPackExchange,
    DLTensor,
)
from xlogmem._foreign.named cimport exchange_of, shape_of_tensor
from xlogmem.blocks cimport DeviceBlock
from xlogmem.interop._dlpack cimport DLPackExport, DLPackImport, own_export, tensor_layout
from xlogmem.interop.buffers cimport Buffer, exchange, managed_of_buffer, new_buffer, stream_of_consumer


cdef DLPackImport take_by_exchange(object array):
    """Take the tensor of another library's array on a CUDA device, which orders nothing.  None: the array's methods
    describe it."""
    cdef DLPackExchange* known = exchange_of(array)
    cdef DLPackImport taken
    if known == NULL or known.managed_of == NULL or known == &exchange or getattr(array, "requires_grad", False):
        return None                                     # PyTorch's methods refuse what a gradient is required of
    taken = DLPackImport.__new__(DLPackImport)
    try:
        if known.managed_of(<void*>array, &taken.versioned):
            taken.versioned = NULL                      # it failed without an exception
    except Exception:
        taken.versioned = NULL
    if taken.versioned == NULL or taken.versioned.version.major != 1 or (
            taken.versioned.dl_tensor.device.device_type not in (CUDA, CUDA_MANAGED)):
        return None
    if taken.versioned.dl_tensor.dtype.code == COMPLEX:
        return None                                     # it may have yet to be conjugated, which the methods refuse
    return taken


cdef tuple device_of_import(DLPackImport taken):
    return taken.versioned.dl_tensor.device.device_type, taken.versioned.dl_tensor.device.device_id


cdef int allocate_result(DLTensor* prototype, DLManagedTensorVersioned** made, void* context,
                         void (*fail)(void* context, const char* kind, const char* text) noexcept) noexcept with gil:
    """Allocate a result on the stream on which the library works.  Called with the GIL or without."""
    try:
        buffer = new_result(prototype)
        return managed_of_buffer(<void*>buffer, made)
    except BaseException as error:
        text = (str(error) or type(error).__name__).encode(errors="replace")
        fail(context, b"MemoryError" if isinstance(error, MemoryError) else b"BufferError", text)
        if isinstance(error, KeyboardInterrupt):
            PyErr_SetInterrupt()                        # the library drops what it does not know
        return -1


cdef Buffer new_result(DLTensor* prototype):
    cdef DeviceSnapshot device
    cdef int device_id = prototype.device.device_id
    dtype = dtype_of_dlpack(prototype.dtype.code, prototype.dtype.bits)
    if dtype is None or prototype.dtype.lanes != 1 or prototype.device.device_type != CUDA or device_id < 0:
        raise BufferError(f"no buffer has DLPack code {prototype.dtype.code} with {prototype.dtype.bits} bits and "
                          f"{prototype.dtype.lanes} lane(s) on DLPack device ({prototype.device.device_type}, "
                          f"{device_id})")
    shape = shape_of_tensor(prototype)
    state = get_device_state(device_id)
    device = take_snapshot(state, device_id)
    return state.empty(shape, dtype, stream_of_consumer(device.core))


cdef int array_of_tensor(DLManagedTensorVersioned* tensor, void** array) except? -1:
    """Make a buffer of a tensor, which it then owns; after an exception the tensor is still the caller's."""
    cdef DLPackExport* export = own_export(tensor)
    cdef DLPackImport taken = None
    cdef DeviceSnapshot device
    cdef ArrayLayout layout
    cdef Stream producer
    cdef Buffer buffer
    if tensor.version.major != 1 or tensor.dl_tensor.device.device_type not in (CUDA, CUDA_MANAGED):
        raise BufferError(f"a tensor of DLPack {tensor.version.major}.{tensor.version.minor} on DLPack device "
                          f"({tensor.dl_tensor.device.device_type}, {tensor.dl_tensor.device.device_id}) cannot become "
                          "a buffer")
    device = take_snapshot(None, tensor.dl_tensor.device.device_id)
    if export != NULL and export.base.block != NULL and (<DeviceBlock>export.base.block).core is device.core:
        device.refuse_stale()
        layout = tensor_layout(&tensor.dl_tensor, tensor.flags & READ_ONLY)
        buffer = new_buffer(device, <DeviceBlock>export.base.block, layout, None)
        tensor.deleter(tensor)
    else:
        producer = stream_of_consumer(device.core)
        if export != NULL and export.base.stream != NULL and export.base.stream.handle != producer.state.handle:
            raise BufferError("the tensor is memory of another runtime, exported on a stream that is not the one on "
                              "which the library works now: from_dlpack(buffer) orders the two")
        taken = DLPackImport.__new__(DLPackImport)
        taken.versioned = tensor
        try:
            buffer = import_tensor(device, &tensor.dl_tensor, tensor.flags & READ_ONLY, taken, producer, None)
        except BaseException:
            taken.versioned = NULL
            raise
    Py_INCREF(buffer)
    array[0] = <void*>buffer
    return 0


exchange.allocate = allocate_result
exchange.array_of = array_of_tensor
