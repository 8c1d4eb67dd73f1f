// The names of cuSPARSE, which is not simulated: a library that is loaded with it (cuSOLVER) can be loaded. Each function
// logs its name once, and returns that it is not supported.
#include "not_simulated.hpp"

#define CUSPARSE extern "C" __attribute__((visibility("default")))

CUSPARSE const char* cusparseGetErrorName(int) { return "CUSPARSE_STATUS_NOT_SUPPORTED"; }
CUSPARSE const char* cusparseGetErrorString(int) { return "operation not supported"; }

#define STUB(name) NOT_SIMULATED(name, 10)
#include "names.hpp"
