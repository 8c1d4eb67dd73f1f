// An operator of an engine on libcudf: it casts a column of a batch on a stream of its own and drops the batch, which a
// converter has uploaded on another stream.  cudf_program.py builds and runs it; it needs a GPU.
//
// The batch's buffers are freed on the converter's stream, on which nothing waits for the cast.  So its memory can be
// handed to the next upload while the cast still reads it, and the cast can begin before the upload is complete.  Engines
// repair that operator by operator: by rebinding all buffers to the consumer's stream, by events, or by joining streams.
// Here the operator declares what it reads.
#include <pybind11/pybind11.h>

#include <cuda_runtime_api.h>

#include <cudf/column/column.hpp>
#include <cudf/table/table.hpp>
#include <cudf/types.hpp>
#include <cudf/unary.hpp>

#include <rmm/cuda_stream.hpp>
#include <rmm/device_buffer.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "xlogmem_cudf.hpp"
#include "xlogmem_mr.hpp"

namespace py = pybind11;

static void check(cudaError_t result) {
    if (result != cudaSuccess) throw std::runtime_error{cudaGetErrorString(result)};
}

// Page-locked memory, from which the converter uploads without waiting.
struct pinned {
    explicit pinned(std::size_t nbytes) { check(cudaMallocHost(&memory, nbytes)); }
    ~pinned() { cudaFreeHost(memory); }
    pinned(pinned const&) = delete;
    void* memory = nullptr;
};

// The converter: a batch of one column, uploaded on its stream.
static std::unique_ptr<cudf::table> convert(pinned const& rows, cudf::size_type size, rmm::cuda_stream const& load,
                                            xlogmem::memory_resource& resource) {
    std::size_t const nbytes = static_cast<std::size_t>(size) * sizeof(std::int32_t);
    rmm::device_buffer data{nbytes, load.view(), resource};
    check(cudaMemcpyAsync(data.data(), rows.memory, nbytes, cudaMemcpyHostToDevice, load.value()));
    std::vector<std::unique_ptr<cudf::column>> columns;
    columns.push_back(std::make_unique<cudf::column>(cudf::data_type{cudf::type_id::INT32}, size, std::move(data),
                                                     rmm::device_buffer{}, 0));
    return std::make_unique<cudf::table>(std::move(columns));
}

// The operator.  What it makes is its own stream's, and needs no declaration.
static std::unique_ptr<cudf::column> cast(std::unique_ptr<cudf::table> batch, rmm::cuda_stream const& work,
                                          xlogmem::memory_resource& resource, bool declared) {
    std::optional<xlogmem::launch> use;
    if (declared) use.emplace(resource.runtime(), work, xlogmem::reads(batch->view()));
    return cudf::cast(batch->view().column(0), cudf::data_type{cudf::type_id::FLOAT64}, work.view(), resource);
}  // the batch is freed: after the cast, if that was declared

// How many of the results are not what was uploaded.
static int wrong_results(py::object python_runtime, int batches, cudf::size_type size, bool declared) {
    xlogmem::memory_resource resource{xlogmem::runtime{python_runtime.ptr()}};
    py::gil_scoped_release without_gil;
    rmm::cuda_stream const load, work;
    std::size_t const count = static_cast<std::size_t>(size);
    std::vector<std::unique_ptr<pinned>> rows;
    for (int batch = 0; batch < batches; ++batch) {
        rows.push_back(std::make_unique<pinned>(count * sizeof(std::int32_t)));
        for (std::size_t i = 0; i < count; ++i) static_cast<std::int32_t*>(rows.back()->memory)[i] = batch;
    }
    std::vector<std::unique_ptr<cudf::column>> results;
    for (auto const& one : rows) results.push_back(cast(convert(*one, size, load, resource), work, resource, declared));
    int wrong = 0;
    std::vector<double> seen(count);
    for (int batch = 0; batch < batches; ++batch) {
        auto const result = results[static_cast<std::size_t>(batch)]->view();
        check(
            cudaMemcpyAsync(seen.data(), result.head(), count * sizeof(double), cudaMemcpyDeviceToHost, work.value()));
        check(cudaStreamSynchronize(work.value()));
        bool right = true;
        for (double value : seen) right = right && value == batch;
        wrong += !right;
    }
    check(cudaStreamSynchronize(load.value()));
    return wrong;
}

PYBIND11_MODULE(cudf_operator, module) {
    try {
        xlogmem::import_table();
    } catch (xlogmem::python_error const&) {
        throw py::error_already_set();
    }
    module.def("wrong_results", wrong_results);
}
