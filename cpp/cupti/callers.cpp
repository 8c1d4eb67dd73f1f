// The native stack of a call: see callers.hpp.
#include "callers.hpp"

#include <dlfcn.h>
#include <execinfo.h>

#include <cstring>

namespace check {

namespace {

bool begins_with(const char* name, const char* const* all) {
    for (; *all; all++)
        if (!strncmp(name, *all, strlen(*all))) return true;
    return false;
}

}  // namespace

std::string library_of_caller() {
    // Libraries between the caller and this library. A library that has the CUDA runtime linked in is its own caller.
    static const char* const between[] = {"libcupti.so", "libcuda.so", "libcudart.so", nullptr};
    static const char* const own[] = {"libcudnn",    "libcublas",   "libcufft",   "libcurand", "libcusolver",
                                      "libcusparse", "libcutensor", "libnvshmem", "libnvjpeg", "libnvcomp",
                                      "libnpp",      "libcufile",   "libnccl",    "libcudf",   nullptr};
    void* frames[64];
    int count = backtrace(frames, 64);
    Dl_info here, info;
    if (!dladdr(reinterpret_cast<void*>(&library_of_caller), &here)) return {};
    for (int i = 0; i < count; i++) {
        if (!dladdr(frames[i], &info) || !info.dli_fname) return {};
        const char* slash = strrchr(info.dli_fname, '/');
        const char* name = slash ? slash + 1 : info.dli_fname;
        if (info.dli_fbase == here.dli_fbase || begins_with(name, between)) continue;
        return begins_with(name, own) ? name : "";
    }
    return {};
}

}  // namespace check
