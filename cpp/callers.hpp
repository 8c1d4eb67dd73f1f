// The caller of a driver call: a library, for itself, or any other code. Read from the native stack, which takes
// microseconds, and the loader's lock: no lock of the check may be held.
#pragma once

#include <link.h>
#include <unwind.h>

#include <cstdint>
#include <string>

namespace check {

// The part of the process's memory into which a library is loaded.
struct Loaded {
    std::uintptr_t address = 0;  // of some code of it
    std::uintptr_t begin = 0, end = 0;
    std::string name;  // as libcudnn_graph.so.9; empty for the program itself

    bool has(std::uintptr_t code) const { return code >= begin && code < end; }
};

// Without symbols, unlike dladdr(), which looks through all of a library: PyTorch's have hundreds of thousands.
inline Loaded library_at(std::uintptr_t address) {
    Loaded found;
    found.address = address;
    dl_iterate_phdr(
        [](dl_phdr_info* info, std::size_t, void* wanted) {
            auto& one = *static_cast<Loaded*>(wanted);
            for (int i = 0; i < info->dlpi_phnum; i++) {
                const auto& part = info->dlpi_phdr[i];
                std::uintptr_t begin = info->dlpi_addr + part.p_vaddr;
                if (part.p_type != PT_LOAD || one.address < begin || one.address >= begin + part.p_memsz) continue;
                one.begin = begin;
                one.end = begin + part.p_memsz;
                std::string path = info->dlpi_name ? info->dlpi_name : "";
                one.name = path.substr(path.rfind('/') + 1);
                return 1;
            }
            return 0;
        },
        &found);
    return found;
}

inline bool begins_with(const std::string& name, const char* const* all) {
    for (; *all; all++)
        if (!name.rfind(*all, 0)) return true;
    return false;
}

// The libraries that a call came through, the nearest first; not those between the caller and this library.
struct Callers {
    static constexpr int kMost = 2, kMostFrames = 64;
    std::string names[kMost];
    int count = 0, frames = 0;
    Loaded here, last;

    _Unwind_Reason_Code add(std::uintptr_t code) {
        // A library that has the CUDA runtime linked in is its own caller.
        static const char* const between[] = {"libcupti.so", "libcuda.so", "libcudart.so", "_cudart1", nullptr};
        if (++frames > kMostFrames || !code) return _URC_END_OF_STACK;
        if (here.has(code) || last.has(code)) return _URC_NO_REASON;
        last = library_at(code);
        if (begins_with(last.name, between)) return _URC_NO_REASON;
        names[count++] = last.name;
        return count == kMost ? _URC_END_OF_STACK : _URC_NO_REASON;
    }
};

inline Callers callers() {
    Callers found;
    found.here = library_at(reinterpret_cast<std::uintptr_t>(&callers));
    _Unwind_Backtrace([](_Unwind_Context* frame,
                         void* all) { return static_cast<Callers*>(all)->add(std::uintptr_t(_Unwind_GetIP(frame))); },
                      &found);
    return found;
}

// The name of the library that makes the call in progress, if the library makes streams for itself, which a program
// never sees; else an empty string.
inline std::string library_of_caller() {
    static const char* const own[] = {"libcudnn",    "libcublas",   "libcufft",   "libcurand", "libcusolver",
                                      "libcusparse", "libcutensor", "libnvshmem", "libnvjpeg", "libnvcomp",
                                      "libnpp",      "libcufile",   "libnccl",    "libcudf",   nullptr};
    std::string caller = callers().names[0];
    return begins_with(caller, own) ? caller : "";
}

// True if the query in progress is a library's own: the program may not learn of it. PyTorch's library has the pool of
// page-locked memory and the watchdog of NCCL; the polls that a program makes come directly from that for Python. (Its
// pool of device memory is in libc10_cuda.so, which makes polls of the program's too: see
// torch_pool/pieces.hpp.)
inline bool is_query_of_library() {
    static const char* const own[] = {"libnccl", "xla_", "libjax_common", nullptr};
    static const char *const torch[] = {"libtorch_cuda.so", nullptr}, *const python[] = {"libtorch_python.so", nullptr};
    Callers found = callers();
    return begins_with(found.names[0], own) ||
           (begins_with(found.names[0], torch) && !begins_with(found.names[1], python));
}

}  // namespace check
