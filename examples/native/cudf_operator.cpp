// An operator of an engine on libcudf: it casts a column of a batch on a stream of its own and drops the batch, which a
// converter has uploaded on another stream.  cudf_program.py builds and runs it; it needs a GPU.
//
// The batch's buffers are freed on the converter's stream, on which nothing waits for the cast.  So its memory can be
// handed to the next upload while the cast still reads it, and the cast can begin before the upload is complete.
// Engines repair that operator by operator: by rebinding all buffers to the consumer's stream, by joining streams, or by
// two events for each batch, as here.  With xlogmem the operator declares what it reads.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cuda_runtime_api.h>

#include <cudf/column/column.hpp>
#include <cudf/table/table.hpp>
#include <cudf/types.hpp>
#include <cudf/unary.hpp>

#include <rmm/cuda_stream.hpp>
#include <rmm/device_buffer.hpp>

#include <algorithm>
#include <chrono>
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
    rmm::device_buffer data{nbytes, load, resource};
    check(cudaMemcpyAsync(data.data(), rows.memory, nbytes, cudaMemcpyHostToDevice, load.value()));
    std::vector<std::unique_ptr<cudf::column>> columns;
    columns.push_back(std::make_unique<cudf::column>(cudf::data_type{cudf::type_id::INT32}, size, std::move(data),
                                                     rmm::device_buffer{}, 0));
    return std::make_unique<cudf::table>(std::move(columns));
}

enum class repair { none, events, use };

struct streams {
    rmm::cuda_stream load, work;
    cudaEvent_t uploaded, read;
    streams() {
        check(cudaEventCreateWithFlags(&uploaded, cudaEventDisableTiming));
        check(cudaEventCreateWithFlags(&read, cudaEventDisableTiming));
    }
    ~streams() {
        cudaEventDestroy(uploaded);
        cudaEventDestroy(read);
    }
};

static void wait(rmm::cuda_stream const& waiting, rmm::cuda_stream const& source, cudaEvent_t event) {
    check(cudaEventRecord(event, source.value()));
    check(cudaStreamWaitEvent(waiting.value(), event, 0));
}

// The operator.  What it makes is its own stream's, and needs no declaration.
static std::unique_ptr<cudf::column> cast(std::unique_ptr<cudf::table> batch, streams const& on,
                                          xlogmem::memory_resource& resource, repair way) {
    std::optional<xlogmem::launch> use;
    if (way == repair::use) use.emplace(resource.runtime(), on.work, xlogmem::reads(batch->view()));
    if (way == repair::events) wait(on.work, on.load, on.uploaded);
    auto made = cudf::cast(batch->view().column(0), cudf::data_type{cudf::type_id::FLOAT64}, on.work, resource);
    if (way == repair::events) wait(on.load, on.work, on.read);
    return made;
}  // the batch is freed: after the cast, if that was declared

// How many of the results are not what was uploaded, and the seconds until all were there.
static std::pair<int, double> results(py::object python_runtime, int batches, cudf::size_type size, repair way) {
    xlogmem::memory_resource resource{xlogmem::runtime{python_runtime.ptr()}};
    py::gil_scoped_release without_gil;
    streams const on;
    std::size_t const count = static_cast<std::size_t>(size), different = 8;
    std::vector<std::unique_ptr<pinned>> rows;
    for (std::size_t value = 0; value < different; ++value) {
        rows.push_back(std::make_unique<pinned>(count * sizeof(std::int32_t)));
        std::fill_n(static_cast<std::int32_t*>(rows.back()->memory), count, static_cast<std::int32_t>(value));
    }
    std::vector<std::unique_ptr<cudf::column>> made(static_cast<std::size_t>(batches));
    auto const begin = std::chrono::steady_clock::now();
    for (std::size_t batch = 0; batch < made.size(); ++batch)
        made[batch] = cast(convert(*rows[batch % different], size, on.load, resource), on, resource, way);
    check(cudaStreamSynchronize(on.work.value()));
    check(cudaStreamSynchronize(on.load.value()));
    std::chrono::duration<double> const took = std::chrono::steady_clock::now() - begin;
    int wrong = 0;
    std::vector<double> seen(count);
    for (std::size_t batch = 0; batch < made.size(); ++batch) {
        check(cudaMemcpy(seen.data(), made[batch]->view().head(), count * sizeof(double), cudaMemcpyDeviceToHost));
        auto const right = static_cast<double>(batch % different);
        wrong += !std::all_of(seen.begin(), seen.end(), [right](double value) { return value == right; });
    }
    return {wrong, took.count()};
}

PYBIND11_MODULE(cudf_operator, module) {
    try {
        xlogmem::import_table();
    } catch (xlogmem::python_error const&) {
        throw py::error_already_set();
    }
    py::enum_<repair>(module, "Repair")
        .value("none", repair::none)
        .value("events", repair::events)
        .value("use", repair::use);
    module.def("results", results);
}
