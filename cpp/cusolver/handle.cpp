// Handles, and objects that change nothing here.
#include "solver.hpp"

#include <new>

using namespace cusolver;

namespace {

constexpr int kVersion[] = {LIBRARY_MAJOR, LIBRARY_MAJOR == 11 ? 7 : 0, LIBRARY_MAJOR == 11 ? 5 : 0};

template <class Made>
Status make(Made** made) {
    if (!made) return kInvalidValue;
    *made = new (std::nothrow) Made;
    return *made ? kSuccess : kAllocationFailed;
}

}  // namespace

CUSOLVER Status cusolverDnCreate(Handle** handle) { return library::begin() ? kNotInitialized : make(handle); }
CUSOLVER Status cusolverDnDestroy(Handle* handle) {
    delete handle;
    return handle ? kSuccess : kNotInitialized;
}
CUSOLVER Status cusolverDnSetStream(Handle* handle, CUstream stream) {
    if (!handle) return kNotInitialized;
    handle->stream = stream;
    return kSuccess;
}
CUSOLVER Status cusolverDnGetStream(Handle* handle, CUstream* stream) {
    if (!handle || !stream) return handle ? kInvalidValue : kNotInitialized;
    *stream = handle->stream;
    return kSuccess;
}
CUSOLVER Status cusolverDnCreateParams(char** parameters) { return make(parameters); }
CUSOLVER Status cusolverDnDestroyParams(char* parameters) {
    delete parameters;
    return kSuccess;
}
CUSOLVER Status cusolverGetProperty(int part, int* value) {  // major, minor, patch
    if (part < 0 || part > 2 || !value) return kInvalidValue;
    *value = kVersion[part];
    return kSuccess;
}
CUSOLVER Status cusolverGetVersion(int* version) {
    if (!version) return kInvalidValue;
    *version = kVersion[0] * 1000 + kVersion[1] * 100 + kVersion[2];
    return kSuccess;
}
