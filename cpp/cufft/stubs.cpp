// Functions that are not simulated: each logs its name once, and returns that it is not supported.
#include "fft.hpp"
#include "not_simulated.hpp"

#define STUB(name) NOT_SIMULATED(name, cufft::kNotSupported)
#include "names.hpp"
