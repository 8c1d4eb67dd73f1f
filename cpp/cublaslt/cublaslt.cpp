// A cuBLASLt of which nothing is simulated: cuBLAS's users look for it, and few call it. Each function logs its name
// once, and returns that it is not supported.
#include "not_simulated.hpp"

#include <cstddef>

#define CUBLASLT extern "C" __attribute__((visibility("default")))

CUBLASLT std::size_t cublasLtGetVersion() { return LIBRARY_MAJOR * 10000; }
CUBLASLT std::size_t cublasLtGetCudartVersion() { return LIBRARY_MAJOR * 1000; }
CUBLASLT const char* cublasLtGetStatusName(int) { return "CUBLAS_STATUS_NOT_SUPPORTED"; }
CUBLASLT const char* cublasLtGetStatusString(int) { return "the call is not simulated"; }

#define STUB(name) NOT_SIMULATED(name, 15)
#include "names.hpp"
