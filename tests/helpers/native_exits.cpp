// Launches of C++ threads that go on while the interpreter ends, for tests/core/test_native_exits.py.
//
// `start` returns with threads inside launches, of which one waits for a launch that stays open.  After the interpreter a
// static object ends that launch, and then the main thread waits for one, as programs may.  The others go on all the time.
#include <Python.h>

#include <unistd.h>

#include <atomic>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "xlogmem.hpp"

namespace {

std::atomic<long> launches{0}, launches_across{0};
std::atomic<bool> across_is_refused{false};

void say(int file, std::string const& text) {
    if (write(file, text.data(), text.size()) < 0) _exit(3);
}

// A body that has to throw nothing.
template <class Body>
void run(Body&& body) noexcept {
    try {
        body();
    } catch (std::exception const& thrown) {
        say(2, std::string{"thrown: "} + thrown.what() + "\n");
    }
}

template <class Condition>
bool comes(Condition&& condition) {
    for (int i = 0; i < 20'000 && !condition(); ++i) usleep(100);
    return condition();
}

bool others_go_on() {
    return comes([before = launches + 10] { return launches > before; });
}

// What the threads use is never destroyed.
auto& streams = *new std::vector<CUstream_st*>;
auto& blocks = *new std::vector<void*>;
xlogmem::runtime const* running = nullptr;

void launch_on(void* block, CUstream_st* stream) {
    xlogmem::launch{*running, stream, xlogmem::flags::none, xlogmem::writes(block)}.commit();
}

// What programs keep in static objects.  They are destroyed after the interpreter.
struct kept {
    std::optional<xlogmem::runtime> runtime;
    std::optional<xlogmem::launch> open, another, across;
    std::atomic<bool> waiter_went_on{false};

    ~kept() {
        if (!open) return;
        bool const waited = others_go_on() && !waiter_went_on && comes([] { return across_is_refused.load(); });
        across.reset();  // nothing is filed any more
        open.reset();
        bool const goes_on = comes([&] { return waiter_went_on.load(); }) && others_go_on();
        std::thread ends_another{[&] {
            usleep(50'000);  // meanwhile the wait looks for signals
            another.reset();
        }};
        run([] { launch_on(blocks[4], streams[1]); });
        ends_another.join();
        say(1, waited && goes_on && others_go_on() ? "went on\n" : "did not go on\n");
    }
} at_exit;

// Launches, and memory, on all streams in turn, until the process is gone.
void work(std::size_t first) {
    run([&] {
        for (std::size_t i = first;; ++i) {
            CUstream_st* const stream = streams[i % streams.size()];
            xlogmem::launch use{*running, stream, xlogmem::reads(blocks[0]), xlogmem::writes(blocks[1 + i % 2])};
            running->deallocate(running->allocate(1000, stream), stream);
            if (i % 3 == 0) use.commit();
            ++launches;
        }
    });
}

// The same with memory of another device, for which Python is needed.  At the end of it no such launch can begin.
void work_across(void* elsewhere) {
    try {
        while (true) {
            xlogmem::launch const use{*running, streams[0], xlogmem::reads(elsewhere)};
            ++launches_across;
        }
    } catch (xlogmem::untracked_memory const&) {
        across_is_refused = true;
    }
}

void begin(PyObject* object) {
    running = new xlogmem::runtime{object};
    for (int i = 0; i < 5; ++i) blocks.push_back(running->allocate(100, streams[0]));  // no objects of Python
    at_exit.runtime.emplace(object);
    at_exit.open.emplace(*at_exit.runtime, streams[0], xlogmem::flags::any_thread, xlogmem::writes(blocks[3]));
    at_exit.runtime->close();  // the launch ends the hold
    xlogmem::runtime const second = xlogmem::runtime::of_device(1);
    void* const elsewhere = second.allocate(100, static_cast<CUstream_st*>(nullptr));
    at_exit.across.emplace(*running, streams[0], xlogmem::flags::any_thread, xlogmem::reads(blocks[0], elsewhere));
    at_exit.another.emplace(*running, streams[0], xlogmem::flags::any_thread, xlogmem::writes(blocks[4]));
    std::thread{[] {
        run([] { launch_on(blocks[3], streams[1]); });
        at_exit.waiter_went_on = true;
    }}.detach();
    for (std::size_t i = 0; i < 3; ++i) std::thread{work, i}.detach();
    std::thread{work_across, elsewhere}.detach();
}

// start(runtime, handle...): True if threads are inside launches.
PyObject* start(PyObject*, PyObject* arguments) {
    for (Py_ssize_t i = 1; i < PyTuple_Size(arguments); ++i)
        streams.push_back(static_cast<CUstream_st*>(PyLong_AsVoidPtr(PyTuple_GetItem(arguments, i))));
    run([&] { begin(PyTuple_GetItem(arguments, 0)); });
    PyThreadState* const thread = PyEval_SaveThread();
    bool const goes_on = others_go_on() && comes([] { return launches_across > 10; });
    PyEval_RestoreThread(thread);
    return PyBool_FromLong(goes_on);
}

PyMethodDef functions[] = {{"start", start, METH_VARARGS, nullptr}, {nullptr, nullptr, 0, nullptr}};
PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "native_exits", nullptr, -1, functions, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit_native_exits() {
    try {
        xlogmem::import_table();
    } catch (xlogmem::python_error const&) {
        return nullptr;
    }
    PyObject* const made = PyModule_Create(&module);
#ifdef Py_GIL_DISABLED
    if (made) PyUnstable_Module_SetGIL(made, Py_MOD_GIL_NOT_USED);
#endif
    return made;
}
