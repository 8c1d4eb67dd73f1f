// A PyTorch extension: prefix sums of the rows of a tensor on a side stream, without record_stream and events by hand.
// torch_program.py builds and runs it; it needs a GPU.  xlogmem.enable("torch") has the tensors' memory come from xlogmem.
#include <torch/extension.h>

#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "xlogmem.hpp"

namespace at {
// What `reads` and `writes` take of a tensor: found because it is beside at::Tensor.
void xlogmem_memory(Tensor const& tensor, xlogmem::accesses& add) {
    if (tensor.numel() != 0) add(static_cast<void const*>(tensor.const_data_ptr()));
}
}  // namespace at

// out[i] = sum(in[..i]) by PyTorch's own kernels, on the side stream.  `declared` is for the example.
void cumulate(py::object python_runtime, at::Tensor in, at::Tensor out, std::int64_t stream, bool declared) {
    xlogmem::runtime const runtime{python_runtime.ptr()};  // a module that is called often keeps it
    py::gil_scoped_release without_gil;
    auto const side = c10::cuda::CUDAStream::unpack3(stream, in.device().index(), c10::DeviceType::CUDA);
    c10::cuda::CUDAStreamGuard const current{side};
    auto enqueue = [&] { at::cumsum_out(out, in, 1); };
    if (!declared) return enqueue();
    // PyTorch's streams are never destroyed.
    xlogmem::launch use{runtime, side, xlogmem::flags::keeps_stream, xlogmem::reads(in), xlogmem::writes(out)};
    enqueue();
    use.commit();
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
    try {
        xlogmem::import_table();
    } catch (xlogmem::python_error const&) {
        throw py::error_already_set();
    }
    module.def("cumulate", cumulate);
}
