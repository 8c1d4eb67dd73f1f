// Handles and their settings.
#include "blas.hpp"

#include <new>

using namespace cublas;

namespace {

constexpr int kVersion = LIBRARY_MAJOR * 10000 + (LIBRARY_MAJOR == 12 ? 900 : 0);

template <class Member>
Status get(Handle* handle, Member Handle::* member, Member* value) {
    if (!handle || !value) return handle ? kInvalidValue : kNotInitialized;
    *value = handle->*member;
    return kSuccess;
}
template <class Member>
Status set(Handle* handle, Member Handle::* member, Member value) {
    if (!handle) return kNotInitialized;
    handle->*member = value;
    return kSuccess;
}

}  // namespace

CUBLAS Status cublasCreate_v2(Handle** handle) {
    if (!handle) return kInvalidValue;
    if (CUresult refused = library::begin()) return status_of(refused);
    *handle = new (std::nothrow) Handle;
    return *handle ? kSuccess : kAllocationFailed;
}
CUBLAS Status cublasDestroy_v2(Handle* handle) {
    if (!handle) return kNotInitialized;
    delete handle;
    return kSuccess;
}
CUBLAS Status cublasGetVersion_v2(Handle*, int* version) {
    if (!version) return kInvalidValue;
    *version = kVersion;
    return kSuccess;
}
CUBLAS Status cublasGetProperty(int part, int* value) {  // major, minor, patch
    if (part < 0 || part > 2 || !value) return kInvalidValue;
    *value = part == 0 ? kVersion / 10000 : part == 1 ? kVersion / 100 % 100 : kVersion % 100;
    return kSuccess;
}
CUBLAS std::size_t cublasGetCudartVersion() { return LIBRARY_MAJOR * 1000; }

CUBLAS Status cublasSetStream_v2(Handle* handle, CUstream stream) { return set(handle, &Handle::stream, stream); }
CUBLAS Status cublasGetStream_v2(Handle* handle, CUstream* stream) { return get(handle, &Handle::stream, stream); }
CUBLAS Status cublasSetWorkspace_v2(Handle* handle, void*, std::size_t) { return handle ? kSuccess : kNotInitialized; }

#define SETTING(name, member) \
    CUBLAS Status cublasGet##name(Handle* handle, int* value) { return get(handle, &Handle::member, value); } \
    CUBLAS Status cublasSet##name(Handle* handle, int value) { return set(handle, &Handle::member, value); }
SETTING(PointerMode_v2, pointer_mode)
SETTING(MathMode, math_mode)
SETTING(AtomicsMode, atomics_mode)
SETTING(SmCountTarget, multiprocessors)

CUBLAS const char* cublasGetStatusName(int status) {
    switch (status) {
        case kSuccess: return "CUBLAS_STATUS_SUCCESS";
        case kNotInitialized: return "CUBLAS_STATUS_NOT_INITIALIZED";
        case kAllocationFailed: return "CUBLAS_STATUS_ALLOC_FAILED";
        case kInvalidValue: return "CUBLAS_STATUS_INVALID_VALUE";
        case kExecutionFailed: return "CUBLAS_STATUS_EXECUTION_FAILED";
        case kInternalError: return "CUBLAS_STATUS_INTERNAL_ERROR";
        case kNotSupported: return "CUBLAS_STATUS_NOT_SUPPORTED";
        default: return "CUBLAS_STATUS_UNKNOWN";
    }
}
CUBLAS const char* cublasGetStatusString(int status) { return cublasGetStatusName(status); }
