// An extension in C++ with pybind11: copy(runtime, stream, target, source, nbytes, declared) enqueues work, and says what it
// uses.  README.md has the command that builds it.
#include <pybind11/pybind11.h>

#include <stdexcept>
#include <string>

#include "work.h"
#include "xlogmem.hpp"

namespace py = pybind11;

static void copy(py::object of, std::uintptr_t handle, py::object target, py::object source, std::size_t nbytes,
                 bool declared) {
    xlogmem::runtime const runtime{of.ptr()};  // a module that is called often keeps it
    xlogmem::block const to{runtime, target.ptr()}, from{runtime, source.ptr()};
    auto* const stream = reinterpret_cast<CUstream_st*>(handle);

    py::gil_scoped_release without_gil;
    auto enqueue = [&] {
        int const result = enqueue_copy(stream, to.identity().address, from.identity().address, nbytes);
        if (result != 0) throw std::runtime_error{"the driver gave " + std::to_string(result)};
    };
    if (!declared) return enqueue();
    xlogmem::launch use{runtime, stream, xlogmem::reads(from), xlogmem::writes(to)};
    enqueue();
    use.commit();
}

// The errors of xlogmem.hpp become those of `xlogmem` in Python.
static void translate(std::exception_ptr thrown) {
    auto raise = [](char const* name, std::exception const& error) {
        PyErr_SetString(py::module_::import("xlogmem").attr(name).ptr(), error.what());
    };
    try {
        if (thrown) std::rethrow_exception(thrown);
    } catch (xlogmem::python_error const&) {  // the exception is set
    } catch (xlogmem::use_after_free const& error) {
        raise("UseAfterFreeError", error);
    } catch (xlogmem::untracked_memory const& error) {
        raise("UnknownBufferError", error);
    } catch (xlogmem::device_lost const& error) {
        raise("DeviceLostError", error);
    } catch (xlogmem::out_of_memory const& error) {
        raise("OutOfDeviceMemoryError", error);
    } catch (xlogmem::error const& error) {  // capturing, conflicting, invalid
        raise("StreamMisuseError", error);
    }
}

PYBIND11_MODULE(copy_pybind, module, py::mod_gil_not_used()) {
    try {
        xlogmem::import_table();
    } catch (xlogmem::python_error const&) {
        throw py::error_already_set();
    }
    py::register_exception_translator(translate);
    module.def("copy", copy);
}
