// The classes of xlogmem.hpp, for tests/helpers/native_calls.py.  A function returns NULL, or the name of the exception and
// its text.  Runtimes, launches and the other objects lie on the heap, and Python has their addresses.
#include <Python.h>

#include <algorithm>
#include <string>
#include <vector>

#include "xlogmem.hpp"
#include "xlogmem_cudf.hpp"
#include "xlogmem_graph.hpp"

using xlogmem::accesses;
using xlogmem::block;
using xlogmem::capture;
using xlogmem::flags;
using xlogmem::graph;
using xlogmem::held_stream;
using xlogmem::launch;
using xlogmem::runtime;

namespace {

thread_local std::string said;

// The Python exception that is set, which is then no more.
std::string python_text() {
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    PyObject* const text = PyObject_Str(value);
    std::string const found =
        std::string{reinterpret_cast<PyTypeObject*>(type)->tp_name} + ": " + PyUnicode_AsUTF8(text);
    Py_XDECREF(text);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
    return found;
}

template <class Body>
char const* guarded(Body&& body) {
    auto named = [](char const* name, char const* text) {
        said = std::string{name} + ": " + text;
        return said.c_str();
    };
    try {
        body();
        return nullptr;
    } catch (xlogmem::use_after_free const& e) {
        return named("use_after_free", e.what());
    } catch (xlogmem::untracked_memory const& e) {
        return named("untracked_memory", e.what());
    } catch (xlogmem::capturing_stream const& e) {
        return named("capturing_stream", e.what());
    } catch (xlogmem::conflicting_use const& e) {
        return named("conflicting_use", e.what());
    } catch (xlogmem::device_lost const& e) {
        return named("device_lost", e.what());
    } catch (xlogmem::invalid_argument const& e) {
        return named("invalid_argument", e.what());
    } catch (xlogmem::python_error const&) {
        return named("python_error", python_text().c_str());
    } catch (xlogmem::error const& e) {
        return named("error", e.what());
    } catch (std::bad_alloc const& e) {
        return named(dynamic_cast<xlogmem::out_of_memory const*>(&e) ? "out_of_memory" : "bad_alloc", e.what());
    } catch (std::exception const& e) {
        return named("another", e.what());
    }
}

// A stream as RMM's and CCCL's views are: value() or get().
struct with_value {
    CUstream_st* stream;
    CUstream_st* value() const { return stream; }
};
struct with_get {
    CUstream_st* stream;
    CUstream_st* get() const { return stream; }
};

// As std::span, cuda::std::span and rmm::device_buffer.
struct span {
    float* first;
    std::size_t count;
    float* data() const { return first; }
    std::size_t size() const { return count; }
};
struct without_size {
    void const* first;
    void const* data() const { return first; }
};

// As cudf::column_view and cudf::table_view.
struct column {
    void const* data_;
    unsigned const* mask;
    std::vector<column> children;
    template <class T = void>
    T const* head() const {
        return static_cast<T const*>(data_);
    }
    unsigned const* null_mask() const { return mask; }
    int num_children() const { return static_cast<int>(children.size()); }
    column child(int i) const { return children[static_cast<std::size_t>(i)]; }
    std::size_t size() const { return 1; }
};
struct table {
    std::vector<column> columns;
    int num_columns() const { return static_cast<int>(columns.size()); }
    auto begin() const { return columns.begin(); }
    auto end() const { return columns.end(); }
};

}  // namespace

namespace elsewhere {  // a type of another library, which knows of xlogmem
struct pair {
    void* first;
    span second;
};
void xlogmem_memory(pair const& value, accesses& add) { add(value.first, value.second); }
}  // namespace elsewhere

extern "C" {

char const* import_table() { return guarded(xlogmem::import_table); }
char const* use_table(xlogmem_table const* table) {
    return guarded([&] { xlogmem::set_table(table); });
}
char const* open_runtime(PyObject* object, runtime** made) {
    return guarded([&] { *made = new runtime{object}; });
}
char const* runtime_of_device(int device, runtime** made) {
    return guarded([&] { *made = new runtime{runtime::of_device(device)}; });
}
void close_runtime(runtime* one) { one->close(); }
void delete_runtime(runtime* one) { delete one; }
runtime* move_runtime(runtime* one) { return new runtime{std::move(*one)}; }

char const* allocate(runtime* of, std::size_t nbytes, CUstream_st* stream, void** made) {
    return guarded([&] { *made = of->allocate(nbytes, stream); });
}
char const* deallocate(runtime* of, void* memory, CUstream_st* stream) {
    return guarded([&] { of->deallocate(memory, stream); });
}
char const* allocate_many(runtime* of, std::size_t count, std::size_t const* nbytes, CUstream_st* stream, void** made) {
    return guarded([&] {
        std::vector<void*> const memory = of->allocate_many({nbytes, nbytes + count}, stream);
        std::copy(memory.begin(), memory.end(), made);
    });
}
char const* deallocate_many(runtime* of, std::size_t count, void* const* memory, CUstream_st* stream) {
    return guarded([&] { of->deallocate_many({memory, memory + count}, stream); });
}
char const* record_use(runtime* of, void* memory, CUstream_st* stream) {
    return guarded([&] { of->record_use(memory, stream); });
}

// A launch of what the arrays name: addresses to read, to write and for both.
char const* open_launch(runtime* of, CUstream_st* stream, std::uintptr_t const* reads, std::size_t n_reads,
                        std::uintptr_t const* writes, std::size_t n_writes, std::uintptr_t const* both,
                        std::size_t n_both, std::uint32_t wanted, launch** made) {
    return guarded([&] {
        accesses list;
        for (std::size_t i = 0; i < n_reads; ++i) list.append(xlogmem::reads(reads[i]));
        for (std::size_t i = 0; i < n_writes; ++i) list.append(xlogmem::writes(writes[i]));
        for (std::size_t i = 0; i < n_both; ++i) list.append(xlogmem::reads_writes(both[i]));
        *made = new launch{*of, stream, list, static_cast<flags>(wanted)};
    });
}
char const* commit(launch* one) {
    return guarded([&] { one->commit(); });
}
void cancel(launch* one) { one->cancel(); }
void delete_launch(launch* one) { delete one; }
launch* move_launch(launch* one) { return new launch{std::move(*one)}; }
void assign_launch(launch* to, launch* from) { *to = std::move(*from); }

// A launch that says its memory as each of these types does, by `form`; `work` is called inside, and its result is thrown.
char const* launch_around(runtime* of, CUstream_st* stream, int form, char* read, char* written, int (*work)()) {
    return guarded([&] {
        auto inside = [&] {
            if (work()) throw std::runtime_error{"the work failed"};
        };
        float* const to = reinterpret_cast<float*>(written);
        switch (form) {
            case 0: {  // pointers, and a stream as it is
                launch use{*of, stream, xlogmem::reads(read), xlogmem::writes(written)};
                return inside();
            }
            case 1: {  // addresses, and an RMM stream
                launch use{*of, with_value{stream}, xlogmem::writes(reinterpret_cast<std::uintptr_t>(written)),
                           xlogmem::reads(reinterpret_cast<std::uintptr_t>(read))};
                return inside();
            }
            case 2: {  // spans, empty ones too, and a CCCL stream
                launch use{*of, with_get{stream}, xlogmem::reads(without_size{read}, span{nullptr, 0}),
                           xlogmem::writes(span{to, 1}, span{reinterpret_cast<float*>(std::uintptr_t{8}), 0})};
                return inside();
            }
            case 3: {  // identities
                block const source{*of, read}, target{*of, static_cast<void const*>(written)};
                launch use{*of, stream, xlogmem::reads(source), xlogmem::writes(target)};
                return inside();
            }
            case 4: {  // a type with a function beside it
                elsewhere::pair const both{read, span{to, 1}};
                launch use{*of, stream, xlogmem::reads_writes(both)};
                return inside();
            }
            case 5: {  // a column with a null mask and a child, in a table
                table const from{{column{nullptr, nullptr, {column{read, nullptr, {}}}}}};
                column const into{nullptr, reinterpret_cast<unsigned const*>(written), {}};
                launch use{*of, stream, xlogmem::reads(from), xlogmem::writes(into)};
                return inside();
            }
            case 6: {  // more than a list has room for, by flags, groups and an array
                accesses list;
                for (int i = 0; i < 40; ++i) list.append(xlogmem::reads(read));
                list.append(xlogmem::writes(written));
                std::vector<xlogmem_access> const kept{list.data(), list.data() + list.size()};
                launch use{*of, stream, kept.data(), kept.size(), flags::any_thread | flags::hand_back_writes};
                return inside();
            }
            default: {  // flags before the groups
                launch use{*of, stream, flags::keeps_stream, xlogmem::reads(read), xlogmem::writes(written)};
                return inside();
            }
        }
    });
}

char const* access_on_host(runtime* of, void* memory, int (*work)()) {
    return guarded([&] {
        {
            launch use{*of, xlogmem::host, xlogmem::reads_writes(memory)};
            if (work()) throw std::runtime_error{"the work failed"};
        }
        xlogmem::wait(*of, xlogmem::host, xlogmem::writes(memory));
    });
}

char const* wait_for(runtime* of, CUstream_st* stream, void* memory, int written) {
    return guarded([&] {
        if (written)
            xlogmem::wait(*of, stream, xlogmem::writes(memory));
        else
            xlogmem::wait(*of, stream, xlogmem::reads(memory));
    });
}

char const* hold_stream(runtime* of, CUstream_st* stream, held_stream** made) {
    return guarded([&] {
        held_stream first{*of, stream};
        *made = new held_stream{std::move(first)};
    });
}
void delete_held_stream(held_stream* one) { delete one; }

char const* find_block(runtime* of, void const* memory, block** made) {
    return guarded([&] { *made = new block{*of, memory}; });
}
char const* identify_block(runtime* of, PyObject* object, block** made) {
    return guarded([&] { *made = new block{*of, object}; });
}
void* data_of(block const* one) { return one->data(); }
char const* is_ready(block const* one, runtime* of, int kind, int* done) {
    return guarded([&] { *done = kind ? one->ready(*of, xlogmem_access_kind(kind)) : one->ready(*of); });
}
char const* synchronize(block const* one, runtime* of, int kind) {
    return guarded([&] { kind ? one->synchronize(*of, xlogmem_access_kind(kind)) : one->synchronize(*of); });
}
char const* launch_of_block(runtime* of, CUstream_st* stream, block const* one, std::uint32_t wanted) {
    return guarded([&] {
        launch use{*of, stream, static_cast<flags>(wanted), xlogmem::writes(*one)};
        use.cancel();
    });
}
void delete_block(block* one) { delete one; }

// Graphs.  `mode` is one of CUDA's; 3 is a capture of others, whose work reads and writes memory.
char const* begin_capture(runtime* of, CUstream_st* stream, std::uint32_t mode, void const* read, void const* written,
                          capture** made) {
    return guarded([&] {
        if (mode == 3)
            *made = new capture{*of, stream, xlogmem::of_others, xlogmem::reads(read), xlogmem::writes(written)};
        else
            *made = new capture{*of, stream, static_cast<xlogmem::capture_mode>(mode)};
    });
}
char const* fork_capture(capture* one, CUstream_st* stream) {
    return guarded([&] { one->fork(stream); });
}
char const* end_capture(capture* one, graph** made) {
    return guarded([&] { *made = new graph{one->end()}; });
}
void delete_capture(capture* one) { delete one; }
char const* open_graph(runtime* of, PyObject* object, graph** made) {
    return guarded([&] { *made = new graph{*of, object}; });
}
graph* move_graph(graph* one) { return new graph{std::move(*one)}; }
char const* launch_graph(graph* one, CUstream_st* stream) {
    return guarded([&] { one->launch(stream); });
}
char const* open_launch_of_graph(graph* one, CUstream_st* stream, std::uint32_t wanted, launch** made) {
    return guarded([&] { *made = new launch{one->launching(stream, static_cast<flags>(wanted))}; });
}
void delete_graph(graph* one) { delete one; }
graph* empty_graph() { return new graph; }
void assign_graph(graph* to, graph* from) { *to = std::move(*from); }
void close_graph(graph* one) { one->close(); }
char const* handle_of_graph(graph* one, void** made) {
    return guarded([&] { *made = one->handle(); });
}
}
