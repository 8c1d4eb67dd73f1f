// The name and the text of each error code, as the runtime of CUDA 13.0 writes them.
#include "runtime.hpp"

#include <cctype>
#include <cstring>
#include <string>

namespace {

struct ErrorText {
    cudart::Error code;
    const char *name, *text;
};
const char* const kUnknown = "unrecognized error code";
// The codes that the driver does not have, those that the runtime calls by another name, and those that the
// runtime of 13.0 does not know. Without a text of its own, a code has the driver's.
const ErrorText kErrors[] = {
    {0, "cudaSuccess", nullptr},
    {2, "cudaErrorMemoryAllocation", nullptr},
    {3, "cudaErrorInitializationError", nullptr},
    {4, "cudaErrorCudartUnloading", nullptr},
    {9, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {12, "cudaErrorInvalidPitchValue", "invalid pitch argument"},
    {13, "cudaErrorInvalidSymbol", "invalid device symbol"},
    {16, "cudaErrorInvalidHostPointer", "invalid host pointer"},
    {17, "cudaErrorInvalidDevicePointer", "invalid device pointer"},
    {18, "cudaErrorInvalidTexture", "invalid texture reference"},
    {19, "cudaErrorInvalidTextureBinding", "texture is not bound to a pointer"},
    {20, "cudaErrorInvalidChannelDescriptor", "invalid channel descriptor"},
    {21, "cudaErrorInvalidMemcpyDirection", "invalid copy direction for memcpy"},
    {22, "cudaErrorAddressOfConstant", "invalid address of constant"},
    {23, "cudaErrorTextureFetchFailed", "fetch from texture failed"},
    {24, "cudaErrorTextureNotBound", "cannot fetch from a texture that is not bound"},
    {25, "cudaErrorSynchronizationError", "incorrect use of __syncthreads()"},
    {26, "cudaErrorInvalidFilterSetting", "linear filtering not supported for non-float type"},
    {27, "cudaErrorInvalidNormSetting", "read as normalized float not supported for data type"},
    {28, "cudaErrorMixedDeviceExecution", "device emulation mode and device execution mode cannot be mixed"},
    {31, "cudaErrorNotYetImplemented", "feature not yet implemented"},
    {32, "cudaErrorMemoryValueTooLarge", "memory size or pointer value too large to fit in 32 bit"},
    {35, "cudaErrorInsufficientDriver", "CUDA driver version is insufficient for CUDA runtime version"},
    {37, "cudaErrorInvalidSurface", "invalid surface reference"},
    {43, "cudaErrorDuplicateVariableName", "duplicate global variable looked up by string name"},
    {44, "cudaErrorDuplicateTextureName", "duplicate texture looked up by string name"},
    {45, "cudaErrorDuplicateSurfaceName", "duplicate surface looked up by string name"},
    {46, "cudaErrorDevicesUnavailable", nullptr},
    {47, kUnknown, kUnknown},
    {49, "cudaErrorIncompatibleDriverContext", "incompatible driver context"},
    {52, "cudaErrorMissingConfiguration", "__global__ function call is not configured"},
    {53, "cudaErrorPriorLaunchFailure", "unspecified launch failure in prior launch"},
    {65, "cudaErrorLaunchMaxDepthExceeded", "launch would exceed maximum depth of nested launches"},
    {66, "cudaErrorLaunchFileScopedTex",
     "launch failed because kernel uses unsupported, file-scoped textures (texture objects are supported)"},
    {67, "cudaErrorLaunchFileScopedSurf",
     "launch failed because kernel uses unsupported, file-scoped surfaces (surface objects are supported)"},
    {68, "cudaErrorSyncDepthExceeded",
     "cudaDeviceSynchronize failed because caller's grid depth exceeds cudaLimitDevRuntimeSyncDepth"},
    {69, "cudaErrorLaunchPendingCountExceeded",
     "launch failed because launch would exceed cudaLimitDevRuntimePendingLaunchCount"},
    {98, "cudaErrorInvalidDeviceFunction", "invalid device function"},
    {103, "cudaErrorSoftwareValidityNotEstablished", "integrity checks failed"},
    {127, "cudaErrorStartupFailure", "startup failure in cuda runtime"},
    {200, "cudaErrorInvalidKernelImage", nullptr},
    {201, "cudaErrorDeviceUninitialized", nullptr},
    {202, kUnknown, kUnknown},
    {205, "cudaErrorMapBufferObjectFailed", nullptr},
    {206, "cudaErrorUnmapBufferObjectFailed", nullptr},
    {209, "cudaErrorNoKernelImageForDevice", nullptr},
    {214, "cudaErrorECCUncorrectable", nullptr},
    {216, "cudaErrorDeviceAlreadyInUse", nullptr},
    {225, "cudaErrorUnsupportedDevSideSync", nullptr},
    {227, kUnknown, kUnknown},
    {400, "cudaErrorInvalidResourceHandle", nullptr},
    {500, "cudaErrorSymbolNotFound", nullptr},
    {708, "cudaErrorSetOnActiveProcess", nullptr},
    {719, "cudaErrorLaunchFailure", nullptr},
    {916, kUnknown, kUnknown},
    {917, kUnknown, kUnknown},
    {918, kUnknown, kUnknown},
    {919, kUnknown, kUnknown},
    {10000, "cudaErrorApiFailureBase", "api failure base"},
};

const ErrorText* own_text(cudart::Error code) {
    for (const ErrorText& entry : kErrors)
        if (entry.code == code) return &entry;
    return nullptr;
}

}  // namespace

using namespace cudart;

RUNTIME const char* cudaGetErrorString(Error error) {
    const ErrorText* own = own_text(error);
    if (own && own->text) return own->text;
    const char* text = nullptr;
    cuGetErrorString(CUresult(error), &text);
    return text ? text : kUnknown;
}

// CUDA_ERROR_INVALID_VALUE is cudaErrorInvalidValue, and most others likewise.
RUNTIME const char* cudaGetErrorName(Error error) {
    static thread_local std::string name;
    if (const ErrorText* own = own_text(error)) return own->name;
    const char* text = nullptr;
    cuGetErrorName(CUresult(error), &text);
    if (!text) return kUnknown;
    name = "cudaError";
    bool upper = true;
    for (const char* c = text + strlen("CUDA_ERROR_"); *c; upper = *c++ == '_')
        if (*c != '_') name += upper ? *c : char(tolower(*c));
    return name.c_str();
}
